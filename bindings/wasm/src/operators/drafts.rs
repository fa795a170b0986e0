//! Operators that judge drafts by probabilities: chains, and trees.

use gumball_engine::{
    DraftChainCounts, DraftChains, DraftTreeCounts, DraftTrees, HostDraftChains, HostDraftTrees, Judgement,
    NONE, Status,
};
use gumball_spec::memory::filled;
use js_sys::{Array, Int32Array, Uint32Array};
use wasm_bindgen::prelude::*;

use super::arguments::{KEYS, Keys};
use super::{run, words};
use crate::error::{Failure, Result};
use crate::values::{Options, integer, is_absent, lists, object};
use crate::verify::floats;

/// The drafts of a batch, as many for each chain or tree.
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

    /// Returns tokens or rows as one array for each chain or tree.
    fn split(&self, all: &[i32]) -> JsValue {
        let each = all.chunks(self.each + 1).map(|one| JsValue::from(Int32Array::new_from_slice(one)));
        each.collect::<Array>().into()
    }
}

/// Accepts each chain's drafts up to the first that is rejected; see `types.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn chain_speculative_sampling(
    draft_probs: &JsValue,
    draft_token_ids: &JsValue,
    target_probs: &JsValue,
    vocab: &JsValue,
    options: &JsValue,
) -> Result<JsValue> {
    let options = Options::new(options, &KEYS)?;
    let (drafts, keys) = (Drafts::read(draft_token_ids)?, Keys::read(&options, 1)?);
    let (draft_probs, target_probs) =
        (floats(draft_probs, "draft_probs")?, floats(target_probs, "target_probs")?);
    let chains = HostDraftChains {
        chains: drafts.many,
        drafts: drafts.each,
        vocab: integer(vocab, "vocab")?,
        draft_probs: &draft_probs,
        draft_token_ids: &drafts.ids,
        target_probs: &target_probs,
    };
    let mut tokens = filled("memory for drafts", NONE, drafts.many.saturating_mul(drafts.each + 1))?;
    let (mut accepted, mut emitted) = (vec![0; drafts.many], vec![0; drafts.many]);
    let mut statuses = vec![Status::default(); drafts.many];
    run(|operators| {
        let counts = DraftChainCounts {
            accepted: Some((&mut accepted[..]).into()),
            emitted: Some((&mut emitted[..]).into()),
            statuses: Some((&mut statuses[..]).into()),
            adds: false,
        };
        let chains = DraftChains::Host { chains, tokens: &mut tokens };
        operators.chain_speculative_sampling(chains, &keys.draws(), counts)
    })?;
    Ok(object([
        ("tokens", drafts.split(&tokens)),
        ("accepted", Uint32Array::new_from_slice(&accepted).into()),
        ("emitted", Uint32Array::new_from_slice(&emitted).into()),
        ("statuses", words(&statuses).into()),
    ]))
}

/// Reads by which rule trees are judged.
fn judgement(options: &Options<'_>) -> Result<Judgement> {
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

/// Walks each tree of drafts from its root while a draft is accepted; see `types.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn tree_speculative_sampling(
    draft_probs: &JsValue,
    draft_token_ids: &JsValue,
    parents: &JsValue,
    target_probs: &JsValue,
    vocab: &JsValue,
    options: &JsValue,
) -> Result<JsValue> {
    let names: Vec<&str> = KEYS.into_iter().chain(["rule", "threshold_single", "threshold_acc"]).collect();
    let options = Options::new(options, &names)?;
    let (drafts, keys) = (Drafts::read(draft_token_ids)?, Keys::read(&options, 1)?);
    let probs = if is_absent(draft_probs) { None } else { Some(floats(draft_probs, "draft_probs")?) };
    let parents: Option<Vec<i32>> = match is_absent(parents) {
        true => None,
        false => {
            let (counts, parents) = lists(parents, "parents")?;
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
    run(|operators| {
        let counts = DraftTreeCounts {
            accepted: Some((&mut accepted[..]).into()),
            statuses: Some((&mut statuses[..]).into()),
        };
        let trees = DraftTrees::Host { trees, tokens: &mut tokens, rows: Some(&mut rows) };
        operators.tree_speculative_sampling(trees, judgement, &keys.draws(), counts)
    })?;
    Ok(object([
        ("tokens", drafts.split(&tokens)),
        ("rows", drafts.split(&rows)),
        ("accepted", Uint32Array::new_from_slice(&accepted).into()),
        ("statuses", words(&statuses).into()),
    ]))
}
