//! The row after the edits: with one kind of edit more at each step.

use gumball_spec::edit::{Edited, edit};
use gumball_spec::{Request, Row, SamplingParams};
use serde::Serialize;

use super::Texts;

/// All edits of a row.
#[derive(Clone, Debug, Serialize)]
pub struct Edits {
    /// How many logits differ from how they came.
    pub changed: usize,
    /// How many of them are banned.
    pub banned: usize,
    /// Each kind of edit that changed something, in the order they act.
    pub steps: Vec<Edit>,
}

/// One kind of edit.
#[derive(Clone, Debug, Serialize)]
pub struct Edit {
    /// Its name.
    pub name: &'static str,
    /// How many logits it changed.
    pub changed: usize,
    /// The changed tokens that stood highest before.
    pub examples: Vec<Change>,
}

/// One changed logit.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The token.
    pub id: u32,
    /// Its text, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its logit before.
    pub before: f32,
    /// Its logit after; none if banned.
    pub after: Option<f32>,
}

/// How many tokens are shown of each edit.
const EXAMPLES: usize = 6;

impl Edits {
    /// Applies the edits of a request one kind after another; `edited` is the row after all of them.
    pub(super) fn of(row: Row<'_>, request: &Request<'_>, edited: &Edited, texts: Texts<'_>) -> Self {
        let (mut before, mut steps) = (edited.raw.clone(), Vec::new());
        let mut last = (SamplingParams::default(), None);
        for (name, params, mask) in stages(request) {
            // A kind that is not switched on changes nothing, and to edit a row of 2^20 ids takes
            // milliseconds.
            if (&params, mask) == (&last.0, last.1) {
                continue;
            }
            let after = edit(row, &Request { params: &params, mask, ..*request }, None).z;
            let step = step(name, &before, &after, texts);
            if step.changed > 0 {
                steps.push(step);
            }
            (before, last) = (after, (params, mask));
        }
        let changes = || edited.raw.iter().zip(&before).filter(|(raw, z)| raw != z);
        let banned = changes().filter(|(_, z)| **z == f32::NEG_INFINITY).count();
        Self { changed: changes().count(), banned, steps }
    }
}

/// Returns the request's parameters with ever more kinds of edits switched on, each with the mask then seen.
fn stages<'a>(request: &Request<'a>) -> Vec<(&'static str, SamplingParams, Option<&'a [u32]>)> {
    let all = request.params;
    let mut params = SamplingParams::default();
    let mut stages = Vec::new();
    if all.bias_first {
        params.bias_first = true;
        params.logit_bias = all.logit_bias.clone();
        stages.push(("logit_bias", params.clone(), None));
    }
    params.repetition_penalty = all.repetition_penalty;
    params.repetition_scope = all.repetition_scope;
    params.penalty_window = all.penalty_window;
    stages.push(("repetition_penalty", params.clone(), None));
    params.frequency_penalty = all.frequency_penalty;
    params.penalty_scope = all.penalty_scope;
    stages.push(("frequency_penalty", params.clone(), None));
    params.presence_penalty = all.presence_penalty;
    stages.push(("presence_penalty", params.clone(), None));
    params.dry = all.dry.clone();
    stages.push(("dry", params.clone(), None));
    params.logit_bias = all.logit_bias.clone();
    stages.push(("logit_bias", params.clone(), None));
    params.allowed_ids = all.allowed_ids.clone();
    stages.push(("allowed_ids", params.clone(), None));
    params.banned_ids = all.banned_ids.clone();
    stages.push(("banned_ids", params.clone(), None));
    params.bad_words = all.bad_words.clone();
    stages.push(("bad_words", params.clone(), None));
    params.no_repeat_ngram = all.no_repeat_ngram;
    params.no_repeat_ngram_scope = all.no_repeat_ngram_scope;
    params.no_repeat_ngram_window = all.no_repeat_ngram_window;
    params.no_repeat_ngram_exempt_ids = all.no_repeat_ngram_exempt_ids.clone();
    stages.push(("no_repeat_ngram", params.clone(), None));
    params.min_tokens = all.min_tokens;
    params.stop_ids = all.stop_ids.clone();
    stages.push(("min_tokens", params.clone(), None));
    // A loop may close the section, whose least length then bans nothing more.
    params.loops = all.loops.clone();
    params.section = all.section.clone();
    stages.push(("section", params.clone(), None));
    stages.push(("mask", params, request.mask));
    stages
}

fn step(name: &'static str, before: &[f32], after: &[f32], texts: Texts<'_>) -> Edit {
    let mut changed: Vec<u32> =
        (0..before.len() as u32).filter(|id| before[*id as usize] != after[*id as usize]).collect();
    let count = changed.len();
    changed.sort_by(|a, b| before[*b as usize].total_cmp(&before[*a as usize]).then(a.cmp(b)));
    changed.truncate(EXAMPLES);
    let change = |id: u32| Change {
        id,
        text: texts(id),
        before: before[id as usize],
        after: Some(after[id as usize]).filter(|z| *z > f32::NEG_INFINITY),
    };
    Edit { name, changed: count, examples: changed.into_iter().map(change).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_is_left_out_would_have_changed_nothing() {
        let row = [1.5, -2.0, f32::NAN, f32::INFINITY, -0.0, 3.0, f32::NEG_INFINITY, 0.25];
        let mask = [0b0111_1111];
        let of = |params: &SamplingParams, mask| {
            let request = Request { output: &[1, 5, 1], mask, ..Request::new(params, &[4, 4], 7) };
            let (mut before, mut steps, mut left_out) = (Row::F32(&row).logits(), Vec::new(), 0);
            let mut last = SamplingParams::default();
            for (name, params, mask) in stages(&request) {
                let after = edit(Row::F32(&row), &Request { params: &params, mask, ..request }, None).z;
                if params == last && mask.is_none() {
                    let bits = |row: &[f32]| row.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&before), bits(&after), "{name}");
                    left_out += 1;
                }
                let step = step(name, &before, &after, &|_| None);
                steps.extend((step.changed > 0).then_some(step));
                (before, last) = (after, params);
            }
            let edited = edit(Row::F32(&row), &request, None);
            assert_eq!(before, edited.z);
            let edits = Edits::of(Row::F32(&row), &request, &edited, &|_| None);
            assert_eq!(format!("{:?}", edits.steps), format!("{steps:?}"));
            (left_out, edits.changed, edits.banned)
        };
        let neutral = SamplingParams::default;
        assert_eq!(of(&neutral(), None), (12, 0, 0));
        assert_eq!(of(&neutral(), Some(&mask)), (11, 1, 1));
        let params = SamplingParams { presence_penalty: 0.5, logit_bias: vec![(7, 1.0)], ..neutral() };
        assert_eq!(of(&params, None), (10, 3, 0));
        let params = SamplingParams { bias_first: true, banned_ids: vec![0], ..params };
        assert_eq!(of(&params, Some(&mask)), (9, 4, 2));
    }
}
