//! The row after the edits: with one kind of edit more at each step.

use gumball_spec::edit::edit;
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
    /// Applies the edits of a request one kind after another.
    pub(super) fn of(row: Row<'_>, request: &Request<'_>, texts: Texts<'_>) -> Self {
        let mut before = row.logits();
        let (raw, mut steps) = (before.clone(), Vec::new());
        for (name, params, mask) in stages(request) {
            let after = edit(row, &Request { params: &params, mask, ..*request }, None).z;
            let step = step(name, &before, &after, texts);
            if step.changed > 0 {
                steps.push(step);
            }
            before = after;
        }
        let changed = raw.iter().zip(&before).filter(|(raw, z)| raw != z).count();
        let gone = |(raw, z): &(&f32, &f32)| **z == f32::NEG_INFINITY && **raw > f32::NEG_INFINITY;
        Self { changed, banned: raw.iter().zip(&before).filter(gone).count(), steps }
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
