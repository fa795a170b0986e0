//! Whether a token can be the answer to a task: a net under engines that misread it.
//!
//! This is no test of an engine, only proof that the engine does the task: it is loose where rivals
//! settle ties, order their filters, or round otherwise. The floor answers no token and is not asked.

use gumball_bench_protocol::{Parameters, Row};

/// Says what is wrong with a token as the answer for a row, if anything is.
///
/// Parameters with penalties or a mask only have the id and its bit checked.
pub fn objection(row: Row<'_>, parameters: &Parameters, token: i64) -> Option<String> {
    let logits: Vec<f32> = match row {
        Row::F32(logits) => logits.to_vec(),
        Row::Bf16(logits) => logits.iter().map(|logit| logit.to_f32()).collect(),
    };
    let Some(&logit) = usize::try_from(token).ok().and_then(|id| logits.get(id)) else {
        return Some(format!("token {token} is none of 0..{}", logits.len()));
    };
    let word = parameters.mask.get(token as usize / 32).copied();
    if word.is_some_and(|word| word >> (token % 32) & 1 == 0) {
        return Some(format!("token {token} is masked"));
    }
    if !parameters.history.is_empty() || !parameters.mask.is_empty() {
        return None;
    }
    let above = logits.iter().filter(|&&other| other > logit).count();
    if parameters.temperature == 0.0 && above > 0 {
        return Some(format!("{above} tokens are more likely than greedy token {token}"));
    }
    if parameters.top_k > 0 && above >= parameters.top_k {
        return Some(format!("{above} tokens are more likely than {token} of the top {}", parameters.top_k));
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Some filter before the temperature, some after: the looser of the two.
    let temperature = parameters.temperature.max(1.0);
    let loosest = largest + parameters.min_p.ln() * temperature - 1e-3;
    if parameters.min_p > 0.0 && logit < loosest {
        return Some(format!("token {token} is less likely than min-p {} allows", parameters.min_p));
    }
    if parameters.top_p < 1.0 && parameters.top_k == 0 {
        let weight = |z: f32| ((f64::from(z) - f64::from(largest)) / f64::from(temperature)).exp();
        let (before, all) = logits.iter().fold((0.0, 0.0), |(before, all), &z| {
            (before + if z > logit { weight(z) } else { 0.0 }, all + weight(z))
        });
        if before / all > f64::from(parameters.top_p) + 1e-3 {
            return Some(format!("{:.4} of the mass comes before token {token}", before / all));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use gumball_bench_protocol::Task;

    use super::*;

    fn objects(task: Task, logits: &[f32], token: i64) -> bool {
        objection(Row::F32(logits), &Parameters::of(task, logits.len()), token).is_some()
    }

    #[test]
    fn ids_outside_the_row_are_refused_for_every_task() {
        for task in Task::ALL {
            assert!(objects(task, &[0.0, 1.0], 2));
            assert!(objects(task, &[0.0, 1.0], -1));
        }
    }

    #[test]
    fn greedy_takes_any_of_the_tied_maxima() {
        let logits = [1.0, 3.0, 3.0, 2.0];
        assert_eq!(
            [0, 1, 2, 3].map(|token| objects(Task::Greedy, &logits, token)),
            [true, false, false, true]
        );
    }

    #[test]
    fn filters_refuse_what_is_far_outside_them() {
        let mut logits: Vec<f32> = (0..100).map(|i| -(i as f32) / 100.0).collect();
        assert!(!objects(Task::TopKTopP, &logits, 49));
        assert!(objects(Task::TopKTopP, &logits, 50));
        logits[99] = -5.0;
        assert!(!objects(Task::MinP, &logits, 98));
        assert!(objects(Task::MinP, &logits, 99));
        assert!(!objects(Task::TopP, &logits, 50));
        assert!(objects(Task::TopP, &logits, 99));
        assert!(!objects(Task::Plain, &logits, 99));
    }

    #[test]
    fn everything_refuses_what_is_masked() {
        let logits = vec![0.0; 256];
        let mask = Parameters::of(Task::Everything, 256).mask;
        for token in 0..256 {
            let masked = mask[token / 32] >> (token % 32) & 1 == 0;
            assert_eq!(objects(Task::Everything, &logits, token as i64), masked, "{token}");
        }
    }
}
