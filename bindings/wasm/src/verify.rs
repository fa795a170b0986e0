//! Drafts: a pool verifies them against a target's rows, and draws them from the rows of a draft model.

use gumball_engine::{Batch, Drafts, Error, Matrix, Outputs, Proposals, Slot, Tree, VerifyMode};
use js_sys::{Array, Float32Array, Int32Array};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, draft_names};
use crate::outputs;
use crate::pool::{Pool, known, settle};
use crate::rows::{kind, wrong_rows};
use crate::step::Extras;
use crate::values::{GivenRows, Integers, Options, VerifyOptions, integers, lists};

/// Reads how drafts are judged.
fn mode(options: &Options) -> Result<VerifyMode> {
    let name = options.text("mode")?;
    let thresholds = ["threshold_single", "threshold_acc"];
    for given in thresholds {
        if name.as_deref() != Some("threshold") && options.get(given)?.is_some() {
            return Err(Failure::out_of_range(given, "given", "left out unless mode is \"threshold\""));
        }
    }
    Ok(match name.as_deref() {
        None | Some("coupled") => VerifyMode::Coupled,
        Some("greedy") => VerifyMode::Greedy,
        Some("rejection") => VerifyMode::Rejection,
        Some("block") => VerifyMode::Block,
        Some("threshold") => VerifyMode::Threshold {
            single: options.number("threshold_single")?.unwrap_or(1.0),
            acc: options.number("threshold_acc")?.unwrap_or(1.0),
        },
        Some(other) => {
            let known = ["coupled", "greedy", "rejection", "block", "threshold"];
            return Err(Failure::unknown("mode", other, &known));
        }
    })
}

/// What drafts follow, as JavaScript hands it in.
enum GivenTree {
    Chain,
    Parents(Vec<i32>),
    Links([Vec<i32>; 2]),
}

impl GivenTree {
    /// Reads the parents of drafts, which are given as such or as links.
    fn read(options: &Options, counts: &[u32]) -> Result<Self> {
        let links = [options.get("first_child")?, options.get("next_sibling")?];
        match (options.get("parents")?, links) {
            (None, [None, None]) => Ok(Self::Chain),
            (Some(parents), [None, None]) => {
                let (given, parents) = lists(&parents, "parents")?;
                if given != counts {
                    let allowed = "one for each draft of each request";
                    return Err(Failure::length("parents", parents.len(), allowed));
                }
                Ok(Self::Parents(parents))
            }
            (None, [Some(first), Some(next)]) => {
                let links = |links: &JsValue, name: &str| -> Result<Vec<i32>> {
                    let (given, links) = lists(links, name)?;
                    if !given.iter().copied().eq(counts.iter().map(|count| count + 1)) {
                        let allowed = "one for each request and one for each of its drafts";
                        return Err(Failure::length(name, links.len(), allowed));
                    }
                    Ok(links)
                };
                Ok(Self::Links([links(&first, "first_child")?, links(&next, "next_sibling")?]))
            }
            (Some(_), _) => Err(Error::Conflict {
                parameter: "parents",
                other: "first_child and next_sibling",
                reason: "both say which tree it is; give one of them",
            }
            .into()),
            _ => Err(Failure::length("first_child and next_sibling", 1, "both or neither")),
        }
    }

    /// Returns it as the engine takes it.
    fn tree(&self) -> Tree<'_> {
        match self {
            Self::Chain => Tree::Chain,
            Self::Parents(parents) => Tree::Parents(parents.into()),
            Self::Links([first_child, next_sibling]) => {
                Tree::Links { first_child: first_child.into(), next_sibling: next_sibling.into() }
            }
        }
    }
}

#[wasm_bindgen]
impl Pool {
    /// Verifies the drafts of each request, and appends the emitted tokens to its sequence.
    ///
    /// A request with n drafts, 0 to 64, has n + 1 rows of logits, one after the other: the row after its
    /// history, then one after each draft. `drafts`: a list of ids for each request; chains, unless the
    /// options have a tree. Emitted are the accepted drafts and one token more. Throws as `step` does. No
    /// sequence has changed then.
    #[wasm_bindgen(unchecked_return_type = "Verification")]
    pub fn verify(
        &mut self,
        logits: &GivenRows,
        slots: &Integers,
        #[wasm_bindgen(unchecked_param_type = "readonly Integers[]")] drafts: &JsValue,
        options: Option<VerifyOptions>,
    ) -> Result<JsValue> {
        let others = [
            "parents",
            "first_child",
            "next_sibling",
            "draft_probs",
            "mode",
            "threshold_single",
            "threshold_acc",
            "kind",
            "dtype",
        ];
        let options = Options::new(options, &known(&others))?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let (counts, ids): (_, Vec<i32>) = lists(drafts, "drafts")?;
        let (mode, given, kind) = (mode(&options)?, GivenTree::read(&options, &counts)?, kind(&options)?);
        let probs = options.get("draft_probs")?.map(|probs| floats(&probs, "draft_probs")).transpose()?;
        self.rows.copy(logits, &options, "logits")?;
        let (marks, keeps) = (self.marks(&slots), self.keeps);
        let Self { inner, rows, .. } = self;
        let (vocab, rows) = (inner.vocab(), rows.rows(inner.vocab(), kind, "logits")?);
        let extras = Extras::read(&options, rows.matrix().rows())?;
        let count = slots.len() + ids.len();
        if let Some(probs) = &probs
            && probs.len() != count.saturating_mul(vocab)
        {
            let allowed = format!("{count} rows of {vocab}: one per row of logits");
            return Err(Failure::length("draft_probs", probs.len(), allowed));
        }
        let probs = probs.as_deref().map(|probs| Matrix::new(probs, count, vocab)).transpose()?;
        let drafts = Drafts { ids: (&ids).into(), tree: given.tree(), probs };
        let mut out = Outputs::new();
        let verify = |of_rows: &Batch<'_>| {
            let batch = Batch { slots: &slots, counts: &counts, mode, ..*of_rows };
            inner.verify(rows, &batch, &drafts, &mut out)
        };
        let hooks = extras.with(verify).map_err(|failure| renamed(failure, "drafts"))?;
        settle(inner, &marks, hooks)?;
        Ok(outputs::verification(&out, slots.len(), keeps))
    }

    /// Draws drafts from the rows of a draft model; see `whole.ts`.
    #[wasm_bindgen(skip_typescript)]
    pub fn draft(&mut self, logits: &JsValue, slots: &JsValue, options: &JsValue) -> Result<JsValue> {
        let options =
            Options::new(options, &known(&["paths", "siblings", "mode", "probs", "kind", "dtype"]))?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let (counts, ids): (_, Vec<i32>) = match options.get("paths")? {
            None => Default::default(),
            Some(paths) => lists(&paths, "paths")?,
        };
        let siblings = options.integer("siblings")?.unwrap_or(1);
        let (mode, probs, kind) = (mode(&options)?, options.truth("probs")?, kind(&options)?);
        let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
        self.rows.copy(logits, &options, "logits")?;
        let Self { inner, rows, .. } = self;
        let rows = rows.rows(inner.vocab(), kind, "logits")?;
        let extras = Extras::read(&options, rows.matrix().rows())?;
        let draft = |of_rows: &Batch<'_>| {
            let batch = Batch { slots: &slots, counts: &counts, mode, ..*of_rows };
            inner.draft(rows, &batch, &ids, &mut out)
        };
        extras.with(draft).map_err(|failure| renamed(failure, "paths"))??;
        let ids = JsValue::from(Int32Array::new_from_slice(out.ids()));
        if !probs {
            return Ok(ids);
        }
        Ok(Array::of2(&ids, &Float32Array::new_from_slice(out.probs())).into())
    }
}

/// Gives an error of the engine the names of JavaScript's arguments.
fn renamed(failure: Failure, counted: &'static str) -> Failure {
    match failure {
        Failure::Engine(error) => draft_names(error, counted),
        other => other,
    }
}

/// Reads rows that are f32.
pub fn floats(rows: &JsValue, name: &str) -> Result<Vec<f32>> {
    match rows.dyn_ref::<Float32Array>() {
        Some(rows) => {
            let mut all = gumball_spec::memory::filled("memory for rows", 0.0, rows.length() as usize)?;
            rows.copy_to(&mut all);
            Ok(all)
        }
        None => Err(wrong_rows(name, rows, "a Float32Array")),
    }
}
