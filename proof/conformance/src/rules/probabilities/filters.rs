//! Every filter on rows of probabilities against f64 (P1 with F1 to F9).

use gumball_spec::{Filter, FilterOrder, Kind, Mirostat, SamplingParams};

use crate::case::Case;
use crate::generate::with_filter;
use crate::reference::{Reference, xtc_acts};
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(probability_filter_rules:
    P1 top_k_and_top_p_of_probabilities_agree_with_f64,
    P1 each_filter_of_probabilities_agrees_with_f64,
    P1 mirostat_of_probabilities_agrees_with_f64,
    P1 chains_and_joint_filters_of_probabilities_agree_with_f64,
    P1 a_softmax_is_filtered_as_its_logits_are,
);

/// Holds random rows under random parameters to the reference, which may abstain seldom.
fn agrees(check: &Check<'_>, params: impl Fn(&mut Words) -> SamplingParams) {
    const ROWS: u64 = 60;
    let mut abstained = 0;
    for seed in 0..ROWS {
        let mut words = Words(seed + 1000);
        let vocab = [2, 5, 40, 255, 257, 700, 1030][words.below(7)];
        let logits = match seed % 3 {
            0 => rows::model_like(vocab, seed),
            1 => rows::bell(vocab, 0.2 + 4.0 * words.fraction(), seed),
            _ => rows::grid(vocab, 0.5, 12, seed),
        };
        let unit = [1.0, 1e-3, 1e20][words.below(3)];
        let zero = |id: usize| seed % 4 == 3 && id % 3 == 1;
        let row: Vec<f32> =
            (0..vocab).map(|id| if zero(id) { 0.0 } else { logits[id].exp2() * unit }).collect();
        let mu = 1.0 + 8.0 * words.fraction();
        let case = Case { mu, ..Case::of_probabilities(&row, params(&mut words)) }.at(seed, seed as u32);
        let cleaned: Vec<f32> = row.iter().map(|p| case.kind.clean(*p)).collect();
        let reference = Reference::of(Kind::Probabilities, &cleaned);
        let acts = xtc_acts(case.params.xtc_probability, case.seed, case.position, case.draw);
        match reference.kept(&case.params, 1.0, mu, acts) {
            Some(kept) => {
                let ids: Vec<u32> = reference.order[kept].iter().map(|id| *id as u32).collect();
                check.keeps(&case, &ids);
            }
            None => abstained += 1,
        }
    }
    assert!(abstained * 8 <= ROWS, "{abstained} of {ROWS} are too close");
}

fn plain() -> SamplingParams {
    SamplingParams::default()
}

fn top_k_and_top_p_of_probabilities_agree_with_f64(check: &Check<'_>) {
    agrees(check, |words| SamplingParams {
        top_k: words.below(60) as i64,
        top_p: words.fraction(),
        ..plain()
    });
}

fn each_filter_of_probabilities_agrees_with_f64(check: &Check<'_>) {
    for filter in Filter::ALL.into_iter().filter(|filter| !filter.parameter().of_logits) {
        agrees(check, |words| with_filter(plain(), filter, words));
    }
}

fn mirostat_of_probabilities_agrees_with_f64(check: &Check<'_>) {
    agrees(check, |_| SamplingParams {
        mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }),
        ..plain()
    });
}

fn chains_and_joint_filters_of_probabilities_agree_with_f64(check: &Check<'_>) {
    agrees(check, |words| {
        let orders = [
            FilterOrder::Default,
            FilterOrder::Joint,
            FilterOrder::List(vec![Filter::MinP, Filter::TopP, Filter::TypicalP, Filter::TopK]),
        ];
        SamplingParams {
            top_k: 5 + words.below(60) as i64,
            top_p: 0.5 + 0.5 * words.fraction(),
            typical_p: 0.5 + 0.5 * words.fraction(),
            min_p: 0.05 * words.fraction(),
            order: orders[words.below(3)].clone(),
            ..plain()
        }
    });
}

/// The softmax of a row keeps what the row keeps, but where the end of a cut lies within the roundings of its
/// numbers.
fn a_softmax_is_filtered_as_its_logits_are(check: &Check<'_>) {
    let mut same = 0;
    for seed in 0..40 {
        let row = rows::model_like(600, seed);
        let params = SamplingParams { top_k: 100, top_p: 0.9, min_p: 0.001, ..plain() };
        let softmax = gumball_spec::oracle::sample((&row).into(), &Case::of(&row, plain()).request(), None);
        let softmax = softmax.expect("valid").probabilities();
        let of_logits = check.kept(&Case::of(&row, params.clone()));
        let of_softmax = check.kept(&Case::of_probabilities(&softmax, params));
        assert!(of_logits.len().abs_diff(of_softmax.len()) <= 1, "seed {seed}");
        same += usize::from(of_logits == of_softmax);
    }
    assert!(same >= 38, "{same} of 40");
}
