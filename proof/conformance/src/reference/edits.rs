//! Edits the long way round: for each id of the vocabulary, each rule over the whole history, each operation
//! in f64 and rounded to f32 (which is one rounding: f64 holds any sum, product or quotient of two f32 to
//! more than twice their precision).

use gumball_spec::{Scope, Section};

use crate::case::Case;

/// Returns the edited logits of a case without a hook.
#[must_use]
pub fn edits(case: &Case) -> Vec<f32> {
    let history = [&case.prompt[..], &case.output[..]].concat();
    (0..case.vocab() as u32)
        .map(|id| {
            if banned(case, &history, id) {
                return f32::NEG_INFINITY;
            }
            let z = case.logits.row().logit(id as usize);
            if z.is_nan() || z == f32::NEG_INFINITY {
                return f32::NEG_INFINITY;
            }
            let z = penalised(case, &history, id, finite(z.into()));
            if z == 0.0 { 0.0 } else { z }
        })
        .collect()
}

/// Rounds to f32, an infinite result to the largest finite number.
fn finite(z: f64) -> f32 {
    (z as f32).clamp(-f32::MAX, f32::MAX)
}

/// Counts an id backwards from the end of the history: in the output, then in the prompt.
fn count(case: &Case, scope: Scope, id: u32) -> u32 {
    let output = case.output.iter().rev().map(|id| (Scope::Output, *id));
    let backwards = output.chain(case.prompt.iter().rev().map(|id| (Scope::Prompt, *id)));
    let is_counted = |(part, other): &(Scope, u32)| *other == id && [*part, Scope::Both].contains(&scope);
    backwards.take(window(case.params.penalty_window)).filter(is_counted).count() as u32
}

/// Returns how many ids a window has at most.
fn window(parameter: u32) -> usize {
    if parameter == 0 { usize::MAX } else { parameter as usize }
}

fn penalised(case: &Case, history: &[u32], id: u32, mut z: f32) -> f32 {
    let params = &case.params;
    let add = |z: f32| {
        let of = params.logit_bias.iter().filter(|(biased, _)| *biased == id);
        of.fold(z, |z, (_, bias)| finite(f64::from(z) + f64::from(*bias)))
    };
    if params.bias_first {
        z = add(z);
    }
    if count(case, params.repetition_scope, id) > 0 {
        let r = f64::from(params.repetition_penalty);
        z = finite(if z > 0.0 { f64::from(z) / r } else { f64::from(z) * r });
    }
    let occurrences = count(case, params.penalty_scope, id);
    if occurrences > 0 {
        let product = (f64::from(params.frequency_penalty) * f64::from(occurrences)) as f32;
        z = finite(f64::from(z) - f64::from(product));
        z = finite(f64::from(z) - f64::from(params.presence_penalty));
    }
    let dry = &params.dry;
    if dry.multiplier > 0.0
        && let Some(products) =
            repeat(&history[history.len().saturating_sub(window(dry.window))..], id, &dry.breakers)
                .checked_sub(dry.allowed_length as usize)
    {
        let grow = |power: f32, _| (f64::from(power) * f64::from(dry.base)) as f32;
        let power = (0..products.min(64)).fold(1.0f32, grow);
        let penalty = (f64::from(dry.multiplier) * f64::from(power)) as f32;
        z = finite(f64::from(z) - f64::from(penalty));
    }
    if params.bias_first { z } else { add(z) }
}

/// Returns the longest repeat that an id would continue: tried from the longest down, by comparing slices.
fn repeat(history: &[u32], id: u32, breakers: &[u32]) -> usize {
    let n = history.len();
    let continues = |len: usize| {
        let tail = &history[n - len..];
        let unbroken = tail.iter().all(|id| !breakers.contains(id));
        unbroken && (len..n).any(|j| history[j] == id && history[j - len..j] == *tail)
    };
    (1..n).rev().find(|len| continues(*len)).unwrap_or(0)
}

/// Returns the tokens of the section that a history ends in: a walk forward, with the ids of `end` that the
/// tokens have begun counted as they come, and not found again at each.
#[must_use]
pub fn open_section(section: &Section, prompt: &[u32], output: &[u32]) -> Option<Vec<u32>> {
    let Section { open, close, budget, .. } = section;
    let end = if section.end.is_empty() { close } else { &section.end };
    let (mut inside, mut outside) = (open.is_empty().then(Vec::new), Vec::new());
    // Of the lengths of `end` that the tokens end with the longest that is not the whole.
    let mut begun = 0;
    for id in if open.is_empty() { &[] } else { prompt }.iter().chain(output) {
        let Some(tokens) = &mut inside else {
            outside.push(*id);
            if !open.is_empty() && outside.ends_with(open) {
                (inside, begun) = (Some(Vec::new()), 0);
            }
            continue;
        };
        let (was_spent, before) = (tokens.len() as u64 >= u64::from(*budget), begun);
        tokens.push(*id);
        let grown = (1..=end.len()).filter(|len| tokens.ends_with(&end[..*len]));
        let lengths: Vec<usize> = grown.collect();
        begun = lengths.iter().copied().filter(|len| *len < end.len()).max().unwrap_or(0);
        let is_ended = tokens.len() as u64 >= u64::from(*budget) && lengths.contains(&end.len());
        let is_next = was_spent && end[before] == *id;
        if is_ended || tokens.ends_with(close) && !is_next {
            (inside, outside) = (None, Vec::new());
        }
    }
    inside
}

fn banned(case: &Case, history: &[u32], id: u32) -> bool {
    let params = &case.params;
    let completes = |word: &[u32]| {
        let (last, before) = word.split_last().expect("not empty");
        *last == id && history.len() >= before.len() && history[history.len() - before.len()..] == *before
    };
    let n = params.no_repeat_ngram as usize;
    let masked = |mask: &Vec<u32>| {
        let word = mask.get(id as usize / 32).copied().unwrap_or(0);
        word & 1 << (id % 32) == 0
    };
    params.allowed_ids.as_ref().is_some_and(|ids| !ids.contains(&id))
        || params.banned_ids.contains(&id)
        || params.logit_bias.contains(&(id, f32::NEG_INFINITY))
        || params.bad_words.iter().any(|word| completes(word))
        || n > 0 && history.len() >= n && history.windows(n).any(completes)
        || params.stop_ids.contains(&id) && case.output.len() < params.min_tokens as usize
        || params.section.as_ref().is_some_and(|section| {
            let before = open_section(section, &case.prompt, &case.output);
            before.is_some_and(|before| {
                let after = [&before[..], &[id]].concat();
                before.len() < section.min as usize && after.ends_with(&section.close)
            })
        })
        || case.mask.as_ref().is_some_and(masked)
}
