//! The operator that judges trees of drafts, chains among them, by probabilities.

use gumball_engine::{DraftTreeCounts, DraftTrees, HostDraftTrees, Judgement, NONE, Status};
use gumball_spec::memory::filled;
use js_sys::{Array, Int32Array, Uint32Array};
use wasm_bindgen::prelude::*;

use super::arguments::{KEYS, Keys};
use super::{run, words};
use crate::error::{Failure, Result};
use crate::values::{Options, integer, is_absent, lists, object};
use crate::verify::floats;

/// The drafts of a batch, as many for each tree.
struct Drafts {
    many: usize,
    each: usize,
    ids: Vec<i32>,
}

impl Drafts {
    fn read(ids: &JsValue) -> Result<Self> {
        let (counts, ids) = lists(ids, "draft_token_ids")?;
        let each = counts.first().copied().unwrap_or(0);
        if let Some(other) = counts.iter().find(|count| **count != each) {
            let allowed = format!("{each} drafts, as the first; fill up with -1");
            return Err(Failure::length("draft_token_ids", *other as usize, allowed));
        }
        Ok(Self { many: counts.len(), each: each as usize, ids })
    }

    /// Returns tokens or rows as one array for each tree.
    fn split(&self, all: &[i32]) -> JsValue {
        let each = all.chunks(self.each + 1).map(|one| JsValue::from(Int32Array::new_from_slice(one)));
        each.collect::<Array>().into()
    }
}

/// Reads by which rule trees are judged.
fn judgement(options: &Options) -> Result<Judgement> {
    Ok(match options.text("rule")?.as_deref() {
        None | Some("rejection") => Judgement::Rejection,
        Some("block") => Judgement::Block,
        Some("threshold") => Judgement::Threshold {
            single: options.number("threshold_single")?.unwrap_or(1.0),
            acc: options.number("threshold_acc")?.unwrap_or(1.0),
        },
        Some(other) => return Err(Failure::unknown("rule", other, &["rejection", "block", "threshold"])),
    })
}

/// Walks each tree of drafts from its root while a draft is accepted; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn judge(
    draft_probs: &JsValue,
    draft_token_ids: &JsValue,
    target_probs: &JsValue,
    vocab: &JsValue,
    options: &JsValue,
) -> Result<JsValue> {
    let names: Vec<&str> =
        KEYS.into_iter().chain(["parents", "rule", "threshold_single", "threshold_acc"]).collect();
    let options = Options::new(options, &names)?;
    let (drafts, keys) = (Drafts::read(draft_token_ids)?, Keys::read(&options, 1)?);
    let probs = if is_absent(draft_probs) { None } else { Some(floats(draft_probs, "draft_probs")?) };
    let parents: Option<Vec<i32>> = match options.get("parents")? {
        None => None,
        Some(parents) => {
            let (counts, parents) = lists(&parents, "parents")?;
            if counts.len() != drafts.many || counts.iter().any(|count| *count as usize != drafts.each) {
                let allowed = format!("{} for each of {} trees", drafts.each, drafts.many);
                return Err(Failure::length("parents", parents.len(), allowed));
            }
            Some(parents)
        }
    };
    let target_probs = floats(target_probs, "target_probs")?;
    let trees = HostDraftTrees {
        trees: drafts.many,
        drafts: drafts.each,
        vocab: integer(vocab, "vocab")?,
        draft_probs: probs.as_deref(),
        draft_token_ids: &drafts.ids,
        parents: parents.as_deref(),
        target_probs: &target_probs,
    };
    let judgement = judgement(&options)?;
    let mut tokens = filled("memory for drafts", NONE, drafts.many.saturating_mul(drafts.each + 1))?;
    let mut rows = tokens.clone();
    let (mut accepted, mut statuses) = (vec![0; drafts.many], vec![Status::default(); drafts.many]);
    let mut alone = judgement.is_of_chains(parents.is_some(), probs.is_some()).then(|| accepted.clone());
    run(|operators| {
        let counts = DraftTreeCounts {
            accepted: Some((&mut accepted[..]).into()),
            accepted_alone: alone.as_mut().map(|alone| (&mut alone[..]).into()),
            statuses: Some((&mut statuses[..]).into()),
            adds: false,
        };
        let trees = DraftTrees::Host { trees, tokens: &mut tokens, rows: Some(&mut rows) };
        operators.judge(trees, judgement, &keys.draws(), counts)
    })?;
    Ok(object([
        ("tokens", drafts.split(&tokens)),
        ("rows", drafts.split(&rows)),
        ("accepted", Uint32Array::new_from_slice(&accepted).into()),
        ("accepted_alone", alone.map_or(JsValue::NULL, |alone| Uint32Array::new_from_slice(&alone).into())),
        ("statuses", words(&statuses).into()),
    ]))
}
