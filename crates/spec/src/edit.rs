//! Edits: how a request's history, biases and bans change a row before a token is drawn.
//!
//! In this order, in f32, never rounded back to the row's type: repetition penalty, frequency, presence, DRY,
//! logit bias, unless it comes first (`bias_first`); the caller's own edits; then the bans (allowed ids,
//! banned ids, bad words, no-repeat-ngram, minimum length) and the grammar bitmask (rules E1 to E7).
//!
//! Here every rule walks the whole history or vocabulary again; a backend keeps counts.

use std::collections::HashMap;

use crate::params::{Dry, Scope};
use crate::request::Request;
use crate::row::{Row, Status, clean};
use crate::section;

/// The caller's own edits: sees the row after the logit bias, before the bans, and may change it.
///
/// Its result is read as input is: NaN as -inf, +inf as `f32::MAX`, each with its status bit.
pub type Hook<'h> = &'h mut dyn FnMut(&mut [f32]);

/// A row before and after its edits.
#[derive(Clone, Debug)]
pub struct Edited {
    /// The logits as they came, cleaned.
    pub raw: Vec<f32>,
    /// The logits the later stages see; -inf where banned.
    pub z: Vec<f32>,
    /// Whether bans and bitmask allow an id.
    pub allowed: Vec<bool>,
    /// `NAN` and `INF`, of allowed ids.
    pub status: Status,
}

/// Applies all edits of a request to a row.
#[must_use]
pub fn edit(row: Row<'_>, request: &Request<'_>, hook: Option<Hook<'_>>) -> Edited {
    let raw = row.values(request.kind);
    let mut z = raw.clone();
    if request.params.bias_first {
        bias(&mut z, request);
    }
    repetition(&mut z, request);
    frequency_and_presence(&mut z, request);
    dry(&mut z, request);
    if !request.params.bias_first {
        bias(&mut z, request);
    }
    let input: Vec<f32> = (0..z.len()).map(|id| row.logit(id)).collect();
    let hooked = hook.is_some();
    if let Some(hook) = hook {
        hook(&mut z);
    }

    let allowed = allowed(request, z.len());
    let mut status = Status::default();
    for id in (0..z.len()).filter(|id| allowed[*id]) {
        status.insert(request.kind.status(input[id]));
        // A hook's result is read as input is.
        if hooked {
            status.insert(request.kind.status(z[id]));
        }
    }
    for (z, allowed) in z.iter_mut().zip(&allowed) {
        *z = if *allowed { clean(*z) } else { f32::NEG_INFINITY };
    }
    Edited { raw, z, allowed, status }
}

/// Changes one logit: -inf stays, an infinite result becomes the largest finite one, and an id outside
/// the vocabulary edits nothing (E1, E5).
fn change(z: &mut [f32], id: u32, edit: impl FnOnce(f32) -> f32) {
    if let Some(z) = z.get_mut(id as usize).filter(|z| **z > f32::NEG_INFINITY) {
        let edited = edit(*z);
        // A bias of -inf is a ban and comes with the bans; until then, to a hook, it shows as -f32::MAX.
        *z = edited.clamp(-f32::MAX, f32::MAX);
    }
}

/// Counts each id of a scope among the last tokens of the history that the penalty window holds.
fn counts(request: &Request<'_>, scope: Scope) -> HashMap<u32, u32> {
    let history = history(request);
    let before = history.len() - last(&history, request.params.penalty_window).len();
    let mut counts = HashMap::new();
    for (j, id) in history.iter().enumerate().skip(before) {
        let is_prompt = j < request.prompt.len();
        if scope == Scope::Both || is_prompt == (scope == Scope::Prompt) {
            *counts.entry(*id).or_insert(0) += 1;
        }
    }
    counts
}

/// Returns the last `window` ids, all if that is 0.
fn last(ids: &[u32], window: u32) -> &[u32] {
    let window = if window == 0 { ids.len() } else { ids.len().min(window as usize) };
    &ids[ids.len() - window..]
}

fn bias(z: &mut [f32], request: &Request<'_>) {
    for (id, bias) in &request.params.logit_bias {
        change(z, *id, |z| z + bias);
    }
}

fn repetition(z: &mut [f32], request: &Request<'_>) {
    let r = request.params.repetition_penalty;
    if r != 1.0 {
        for id in counts(request, request.params.repetition_scope).into_keys() {
            change(z, id, |z| if z > 0.0 { z / r } else { z * r });
        }
    }
}

fn frequency_and_presence(z: &mut [f32], request: &Request<'_>) {
    let (f, p) = (request.params.frequency_penalty, request.params.presence_penalty);
    for (id, count) in counts(request, request.params.penalty_scope) {
        change(z, id, |z| z - f * count as f32);
        change(z, id, |z| z - p);
    }
}

fn dry(z: &mut [f32], request: &Request<'_>) {
    let Dry { multiplier, base, allowed_length, .. } = request.params.dry;
    if multiplier == 0.0 {
        return;
    }
    for (id, length) in dry_lengths(request) {
        if length >= allowed_length {
            let mut power = 1.0f32;
            for _ in 0..(length - allowed_length).min(64) {
                power *= base;
            }
            change(z, id, |z| z - multiplier * power);
        }
    }
}

/// Returns, for each id, how long a repeat it would continue (E3).
fn dry_lengths(request: &Request<'_>) -> HashMap<u32, u32> {
    let history = history(request);
    let history = last(&history, request.params.dry.window);
    let breakers = &request.params.dry.breakers;
    let unbroken = history.iter().rev().take_while(|id| !breakers.contains(id)).count();
    let mut lengths = HashMap::new();
    for (j, id) in history.iter().enumerate() {
        let same = history[..j].iter().rev().zip(history.iter().rev()).take_while(|(a, b)| a == b).count();
        let length = lengths.entry(*id).or_insert(0);
        *length = (*length).max(same.min(unbroken) as u32);
    }
    lengths
}

fn history(request: &Request<'_>) -> Vec<u32> {
    [request.prompt, request.output].concat()
}

/// Returns which ids bans and bitmask allow (E4).
#[must_use]
pub fn allowed(request: &Request<'_>, vocab: usize) -> Vec<bool> {
    let params = request.params;
    let mut allowed = vec![params.allowed_ids.is_none(); vocab];
    for id in params.allowed_ids.iter().flatten() {
        allowed[*id as usize] = true;
    }
    let mut ban = |id: u32| {
        if let Some(allowed) = allowed.get_mut(id as usize) {
            *allowed = false;
        }
    };

    params.banned_ids.iter().for_each(|id| ban(*id));
    params.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).for_each(|(id, _)| ban(*id));
    let history = history(request);
    for word in &params.bad_words {
        let (last, before) = word.split_last().expect("validated: at least one id");
        if history.ends_with(before) {
            ban(*last);
        }
    }
    let n = params.no_repeat_ngram as usize;
    if n > 0 && n <= history.len() {
        let tail = &history[history.len() - (n - 1)..];
        let before = history.len() - last(&history, params.no_repeat_ngram_window).len();
        let part = params.no_repeat_ngram_scope.part(request.prompt.len(), history.len());
        let grams = history[..part.end].windows(n).skip(part.start.max(before));
        let repeated = grams.filter(|gram| gram[..n - 1] == *tail).map(|gram| gram[n - 1]);
        repeated.filter(|id| !params.no_repeat_ngram_exempt_ids.contains(id)).for_each(&mut ban);
    }
    if request.output.len() < params.min_tokens as usize {
        params.stop_ids.iter().for_each(|id| ban(*id));
    }
    section::banned(request).into_iter().for_each(ban);

    for (id, allowed) in allowed.iter_mut().enumerate() {
        *allowed &= request.mask_allows(id as u32);
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::sample;
    use crate::params::SamplingParams;
    use crate::request::Forced;

    #[test]
    fn a_hook_sees_what_the_edits_leave_also_of_banned_ids_and_of_forced_rows() {
        let bans = |bias_first| SamplingParams {
            logit_bias: vec![(1, f32::NEG_INFINITY)],
            repetition_penalty: 0.25,
            bias_first,
            ..SamplingParams::default()
        };
        for (bias_first, forced, banned) in
            [(false, None, -f32::MAX), (true, None, -f32::MAX * 0.25), (true, Some(1), -f32::MAX * 0.25)]
        {
            let params = bans(bias_first);
            let forced = forced.map(Forced::by_caller);
            let request = Request { forced, ..Request::new(&params, &[1], 3) };
            let mut seen = Vec::new();
            let mut hook = |z: &mut [f32]| {
                seen = z.to_vec();
                z[0] = f32::NAN;
            };
            let outcome = sample(Row::F32(&[1.0, 2.0, 3.0]), &request, Some(&mut hook)).unwrap();
            assert_eq!(seen, [1.0, banned, 3.0]);
            let (token, status) = if forced.is_some() { (1, Status::FORCED) } else { (2, Status::NAN) };
            assert_eq!((outcome.token, outcome.status), (token, status));
        }
    }
}
