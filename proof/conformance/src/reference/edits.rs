//! Edits the long way round: for each id of the vocabulary, each rule over the whole history, each operation
//! in f64 and rounded to f32 (which is one rounding: f64 holds any sum, product or quotient of two f32 to
//! more than twice their precision).

use gumball_spec::{SamplingParams, Scope};

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

/// What stands at the end of a text.
#[derive(Debug, Default)]
pub struct TextEnd {
    /// The tokens of an open section.
    pub section: Option<Vec<u32>>,
    /// Whether that section is spent.
    pub is_spent: bool,
    /// How many ids of its end its tokens end with, of fewer than all.
    pub begun: usize,
    /// How many ids of a loop's end are left.
    pub left: usize,
}

/// Walks forward over a text, with the ids of `end` that a section's tokens have begun, and the run of each
/// period, counted as they come, and not found again at each token.
#[must_use]
pub fn text_end(params: &SamplingParams, prompt: &[u32], output: &[u32]) -> TextEnd {
    let section = params.section.clone().unwrap_or_default();
    let (has_section, comes_once) = (params.section.is_some(), section.open.is_empty());
    let end = if section.end.is_empty() { &section.close } else { &section.end };
    let mut at = TextEnd { section: (has_section && comes_once).then(Vec::new), ..TextEnd::default() };
    at.is_spent = at.section.is_some() && section.budget == 0;
    let mut outside = Vec::new();
    // The tokens in which a loop is looked for, and for each period how many of the last equal the one so far
    // before.
    let (mut tokens, mut runs) = (Vec::new(), vec![0; 129]);
    for (place, id) in prompt.iter().chain(output).enumerate() {
        let is_output = place >= prompt.len();
        let was_open = at.section.is_some();
        match &mut at.section {
            _ if !has_section || comes_once && !is_output => {}
            None => {
                outside.push(*id);
                if !comes_once && outside.ends_with(&section.open) {
                    (at.section, at.is_spent, at.begun) = (Some(Vec::new()), section.budget == 0, 0);
                }
            }
            Some(inside) => {
                let (was_spent, before) = (at.is_spent, at.begun);
                inside.push(*id);
                let lengths = (1..=end.len()).filter(|len| inside.ends_with(&end[..*len]));
                let lengths: Vec<usize> = lengths.collect();
                at.begun = lengths.iter().copied().filter(|len| *len < end.len()).max().unwrap_or(0);
                at.is_spent |= inside.len() as u64 >= u64::from(section.budget);
                let is_ended = at.is_spent && lengths.contains(&end.len());
                let is_next = was_spent && end[before] == *id;
                if is_ended || inside.ends_with(&section.close) && !is_next {
                    (at.section, at.is_spent, outside) = (None, false, Vec::new());
                }
            }
        }
        let Some(loops) = params.loops.as_ref().filter(|_| is_output) else { continue };
        if at.left > 0 {
            at.left -= 1;
            continue;
        }
        if loops.close && was_open != at.section.is_some() {
            tokens.clear();
            runs.fill(0);
            continue;
        }
        tokens.push(*id);
        for (period, run) in runs.iter_mut().enumerate().skip(1) {
            let is_same = tokens.len() > period && tokens[tokens.len() - 1 - period] == *id;
            *run = if is_same { *run + 1 } else { 0 };
        }
        let mut periods = loops.min_period..=loops.max_period;
        let is_loop = periods.any(|period| {
            let least = loops.min_tokens.max(loops.min_copies * period);
            runs[period as usize] + period >= least && tokens.len() >= least as usize
        });
        let is_row = (place + 1 - prompt.len()).is_multiple_of(loops.every as usize);
        if is_loop && is_row && !at.is_spent && (at.section.is_some() || !loops.close) {
            (at.is_spent, at.left) = (at.is_spent || loops.close, loops.end.len());
            tokens.clear();
            runs.fill(0);
        }
    }
    at
}

/// Returns the token that the end of a section or of a loop forces.
#[must_use]
pub fn forced(case: &Case) -> Option<u32> {
    let at = text_end(&case.params, &case.prompt, &case.output);
    let of_loop = case.params.loops.iter().flat_map(|loops| loops.end.iter().rev());
    let of_section = case.params.section.iter().flat_map(|section| section.end().iter());
    match at.left {
        0 => of_section.copied().nth(at.begun).filter(|_| at.is_spent),
        left => of_loop.copied().nth(left - 1),
    }
}

/// Returns the n-grams of a history that are not repeated: those of which each id has the place that it must
/// have.
fn ngrams<'a>(case: &Case, history: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
    let (n, prompt) = (case.params.no_repeat_ngram as usize, case.prompt.len());
    let (scope, last) = (case.params.no_repeat_ngram_scope, window(case.params.no_repeat_ngram_window));
    let counts = move |place: usize, len: usize| {
        let part = if place < prompt { Scope::Prompt } else { Scope::Output };
        len - place <= last && [part, Scope::Both].contains(&scope)
    };
    let grams = history.windows(n.clamp(1, history.len() + 1)).enumerate();
    grams
        .filter(move |(place, _)| (*place..place + n).all(|place| counts(place, history.len())))
        .map(|(_, gram)| gram)
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
        || n > 0 && !params.no_repeat_ngram_exempt_ids.contains(&id) && ngrams(case, history).any(completes)
        || params.stop_ids.contains(&id) && case.output.len() < params.min_tokens as usize
        || params.section.as_ref().is_some_and(|section| {
            let at = text_end(params, &case.prompt, &case.output);
            at.section.filter(|_| !at.is_spent).is_some_and(|before| {
                let after = [&before[..], &[id]].concat();
                before.len() < section.min as usize && after.ends_with(&section.close)
            })
        })
        || case.mask.as_ref().is_some_and(masked)
}
