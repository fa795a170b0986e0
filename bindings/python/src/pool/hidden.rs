//! Steps, drafts and scores of a pool from hidden states, by a head; on the host. Steps on a device are in `device_hidden`.

use gumball_engine::head::HiddenStates;
use gumball_engine::{
    Batch, Error, Head as EngineHead, HeadCounts, Outputs as Verified, Pool as EnginePool, Proposals, Result,
    Rows, Scored, Slot,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::backend::Backend;
use super::draft::to_arrays;
use super::draft_lists::{DraftLists, DraftProbs, PathLists};
use super::steps::ScoredIds;
use super::verify::check_probs;
use super::{Inner, Pool, verify};
use crate::arrays::{Array, Matrix};
use crate::device_head::DeviceHead;
use crate::errors::{draft_names, to_py_err, wrong_type};
use crate::heads::{Head, Hidden};
use crate::lists::{extract_int, integers};
use crate::options::{Keywords, Options};
use crate::outputs::Outputs;
use crate::turns::Caller;
use crate::verification::Verification;

/// How many rows of a score are computed at a time, unless the call says otherwise.
const CHUNK_ROWS: usize = 64;

impl Inner {
    /// Returns the pool of the host, where heads are.
    fn host_pool(&mut self) -> Result<&mut EnginePool> {
        match &mut self.backend {
            Backend::Host(host) => Ok(&mut host.pool),
            Backend::Device(_) => {
                let reason = "a Head computes on the CPU; Head.to makes a DeviceHead of it, for step_hidden, enqueue_hidden \
                     and enqueue_verify_hidden there; DeviceHead.counts counts its rows";
                let reason = reason.to_owned();
                Err(Error::Unavailable {
                    resource: "hidden states by a head of the host in a pool on a device",
                    reason,
                })
            }
        }
    }
}

/// What comes with a call from hidden states, and the objects whose turns it keeps.
struct Work<'a> {
    head: EngineHead<'a>,
    states: HiddenStates<'a>,
    options: &'a Options,
    of: Batch<'a>,
    caller: Caller<'a>,
}

impl Work<'_> {
    /// Works with the pool, the rows, and the batch with their masks and forced tokens.
    fn run<R>(
        &self,
        inner: &mut Inner,
        work: impl FnOnce(&mut EnginePool, Rows<'_>, &Batch<'_>) -> Result<R>,
    ) -> Result<R> {
        let pool = inner.host_pool()?;
        let work = |batch: &Batch<'_>| work(pool, Rows::hidden(self.head, self.states), batch);
        // SAFETY: the caller keeps the masks alive; Python's callers do not write them during the call.
        unsafe { self.options.with_hooks(&self.caller, &self.of, work) }
    }
}

/// Reads options whose masks lie on the host.
fn read_options<'py>(keywords: &Keywords<'_, 'py>) -> PyResult<(Options, Option<Array<'py>>)> {
    let (options, masks) = keywords.read(None)?;
    options.masks_on_host()?;
    options.check_present().map_err(to_py_err)?;
    Ok((options, masks))
}

#[pymethods]
impl Pool {
    /// Chooses the next token of each hidden state, appends it to the sequence in the row's slot, and returns the Outputs:
    /// those that step would return for head.logits(hidden), bit for bit. A clustered head's logits are -inf here for ids that it does not probe; the
    /// Outputs say is_approximate then.
    ///
    /// head: a Head of the pool's vocabulary, or a DeviceHead of its device. hidden: [rows, width], or [width] for one row, on the CPU or on the pool's device;
    /// float32, bfloat16 or float16; rows may be strided. Other arguments: as for step, one for each row.
    ///
    /// Raises UnavailableError for a Head and a pool on a device; RuntimeError if the head's weights were written; ValueError or TypeError for
    /// another shape, type or device; and the errors of step. After an error no sequence has changed.
    #[pyo3(signature = (head, hidden, slots, *, masks=None, mask_present=None, forced=None, hooks=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn step_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, PyAny>,
        hidden: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Outputs> {
        let keywords = Keywords { masks, mask_present, forced, hooks, ..Keywords::default() };
        if let Ok(head) = head.cast::<DeviceHead>() {
            return self.step_hidden_there(py, head, hidden, slots, &keywords);
        }
        let head = head.cast::<Head>().map_err(|_| wrong_type("head", "a Head or a DeviceHead", head))?;
        let hidden = Hidden::read(hidden)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let (options, _masks) = read_options(&keywords)?;
        let (head, states, caller) = (head.get().get(py)?, hidden.states()?, self.caller());
        let head = head.head();
        let (work, kept) =
            (Work { head, states, options: &options, of: Batch::of(&slots), caller }, self.kept);
        self.with(py, None, |inner| {
            let mut out = std::mem::take(&mut inner.out);
            let stepped = work.run(inner, |pool, rows, batch| pool.step(rows, batch, &mut out));
            inner.out = out;
            stepped?;
            (inner.rows, inner.requests) = (slots.len(), 0);
            Ok(Outputs::new(&inner.out, kept))
        })
    }

    /// Verifies the drafts of each request from hidden states, appends the emitted tokens to the sequences, and returns the
    /// Verification: that which verify would return for head.logits(hidden), bit for bit.
    ///
    /// head, hidden: as for step_hidden, with [requests + drafts, width] hidden states in the order of verify's rows. A certified head
    /// computes a part of a row in the modes "coupled" and "greedy", and for requests without drafts. Other arguments: as for verify.
    ///
    /// Raises the errors of step_hidden and of verify. After an error no sequence has changed.
    #[pyo3(
        signature = (
            head, hidden, slots, drafts, *, parents=None, first_child=None, next_sibling=None, draft_probs=None, mode="coupled",
            threshold_single=None, threshold_acc=None, masks=None, mask_present=None, forced=None, hooks=None,
        ),
        text_signature = "($self, head, hidden, slots, drafts, *, parents=None, first_child=None, next_sibling=None, \
                          draft_probs=None, mode='coupled', threshold_single=1.0, threshold_acc=1.0, masks=None, \
                          mask_present=None, forced=None, hooks=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn verify_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, Head>,
        hidden: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        drafts: &Bound<'py, PyAny>,
        parents: Option<&Bound<'py, PyAny>>,
        first_child: Option<&Bound<'py, PyAny>>,
        next_sibling: Option<&Bound<'py, PyAny>>,
        draft_probs: Option<&Bound<'py, PyAny>>,
        mode: &str,
        threshold_single: Option<&Bound<'py, PyAny>>,
        threshold_acc: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Verification> {
        let mode = verify::mode(mode, threshold_single, threshold_acc)?;
        let hidden = Hidden::read(hidden)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let lists = DraftLists::read(drafts, parents)?.with_links(first_child, next_sibling)?;
        let (options, _masks) =
            read_options(&Keywords { masks, mask_present, forced, hooks, ..Keywords::default() })?;
        let (rows, host) = (hidden.matrix.rows, hidden.matrix.location);
        let check = |probs: &Matrix| check_probs(probs, host, self.vocab, rows);
        let probs = DraftProbs::read(draft_probs, None, check)?;
        let drafts = lists.with_probs(probs.there()?);
        let (head, states, caller) = (head.get().get(py)?, hidden.states()?, self.caller());
        let head = head.head();
        let (work, kept) = (
            Work {
                head,
                states,
                options: &options,
                of: Batch { counts: &lists.counts, mode, ..Batch::of(&slots) },
                caller,
            },
            self.kept,
        );
        let verified = self.with(py, None, |inner| {
            let mut out = if kept { Verified::with_kept() } else { Verified::new() };
            let verified = work.run(inner, |pool, rows, batch| pool.verify(rows, batch, &drafts, &mut out));
            verified.map_err(draft_names)?;
            Ok(out)
        })?;
        Verification::new(py, verified, kept)
    }

    /// Draws drafts from the hidden states of a draft model, and changes no sequence; returns what draft would for
    /// head.logits(hidden), bit for bit.
    ///
    /// head, hidden: as for step_hidden; the draft model's. Other arguments: as for draft.
    ///
    /// Raises the errors of step_hidden and of draft.
    #[pyo3(
        signature = (
            head, hidden, slots, *, paths=None, siblings=None, mode="coupled", probs=false, masks=None, mask_present=None,
            forced=None, hooks=None,
        ),
        text_signature = "($self, head, hidden, slots, *, paths=None, siblings=1, mode='coupled', probs=False, masks=None, \
                          mask_present=None, forced=None, hooks=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn draft_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, Head>,
        hidden: &Bound<'py, PyAny>,
        slots: &Bound<'py, PyAny>,
        paths: Option<&Bound<'py, PyAny>>,
        siblings: Option<&Bound<'py, PyAny>>,
        mode: &str,
        probs: bool,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mode = verify::mode(mode, None, None)?;
        let siblings = siblings.map_or(Ok(1), |siblings| extract_int::<u32>(siblings, "siblings"))? as usize;
        let hidden = Hidden::read(hidden)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let lists = PathLists::read(paths)?;
        let (options, _masks) =
            read_options(&Keywords { masks, mask_present, forced, hooks, ..Keywords::default() })?;
        let (head, states, caller) = (head.get().get(py)?, hidden.states()?, self.caller());
        let head = head.head();
        let work = Work { head, states, options: &options, of: lists.of_rows(&slots, mode), caller };
        let drafted = self.with(py, None, |inner| {
            let mut out = if probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
            let drafted = work.run(inner, |pool, rows, batch| pool.draft(rows, batch, &lists.ids, &mut out));
            drafted.map_err(draft_names)?;
            Ok(out)
        })?;
        to_arrays(py, &drafted, (slots.len(), siblings), probs.then_some(self.vocab))
    }

    /// Returns the logprobs of given tokens from hidden states, in the Outputs that score would return for
    /// head.logits(hidden), bit for bit, without the logits of all rows.
    ///
    /// head, hidden: as for step_hidden. chunk_rows: how many rows are computed at a time, 4 bytes for each id of each; 12 with a certified head, up to
    /// 8 and 12 for each cluster with a clustered one. Other arguments: as for score.
    ///
    /// Raises the errors of step_hidden and of score.
    #[pyo3(
        signature = (
            head, hidden, params, ids, *, prompt_len=None, start=None, chunk_rows=None, masks=None, mask_present=None, hooks=None,
        ),
        text_signature = "($self, head, hidden, params, ids, *, prompt_len=None, start=1, chunk_rows=64, masks=None, \
                          mask_present=None, hooks=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn score_hidden<'py>(
        &self,
        py: Python<'py>,
        head: &Bound<'py, Head>,
        hidden: &Bound<'py, PyAny>,
        params: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        prompt_len: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        chunk_rows: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Outputs> {
        let hidden = Hidden::read(hidden)?;
        let scored = ScoredIds::read(params, ids, prompt_len, start)?;
        let chunk_rows = chunk_rows.map_or(Ok(CHUNK_ROWS), |it| extract_int(it, "chunk_rows"))?;
        let (options, _masks) =
            read_options(&Keywords { masks, mask_present, hooks, ..Keywords::default() })?;
        let (head, states, caller) = (head.get().get(py)?, hidden.states()?, self.caller());
        let head = head.head();
        let work = Work { head, states, options: &options, of: Batch::default(), caller };
        self.with(py, None, |inner| {
            let mut out = gumball_engine::Outputs::new();
            work.run(inner, |pool, rows, batch| {
                let scored = Scored { chunk_rows: Some(chunk_rows), ..scored.of() };
                pool.score(rows, batch, &scored, &mut out)
            })?;
            Ok(Outputs::new(&out, false))
        })
    }

    /// Why a certified head must compute every logit of a request's rows, whatever hidden state they have; None if there is no such
    /// reason.
    ///
    /// The reason is "hook" (hooked: whether the row has a hook; a pool on a device has none), "kept" (the pool reports kept sets, and no filter bounds them), "logprobs"
    /// (of a mode whose members are all tokens), "dynamic_temperature", "mirostat", "joint", "route", or the name of the filter that acts first, such as "top_p".
    /// A row may take the whole product all the same: for a hidden state that is not finite, where too many tokens could be
    /// chosen, or in a call of many rows.
    ///
    /// Raises ValueError for a vacant slot.
    #[pyo3(signature = (slot, *, hooked=false))]
    fn needs_whole_row(
        &self,
        py: Python<'_>,
        slot: &Bound<'_, PyAny>,
        hooked: bool,
    ) -> PyResult<Option<&'static str>> {
        let (slot, kept): (Slot, _) = (extract_int(slot, "slot")?, self.kept);
        self.with(py, None, |inner| {
            let reason = match &mut inner.backend {
                Backend::Host(host) => host.pool.needs_whole_row(slot, hooked, kept)?,
                Backend::Device(pool) => pool.needs_whole_row(slot, false, kept)?,
            };
            Ok(reason.map(|reason| reason.name()))
        })
    }

    /// What heads have done for this pool since it was made, as a dict: whole_rows, rows whose logits were all computed; certified_rows,
    /// rows that a part of their logits decided; certified_logits, how many these took in all; clustered_rows, rows of which the probed clusters alone were
    /// computed; clustered_logits, how many these took in all; weight_reads, screen_reads and centroid_reads, how often all weights, a certified head's copy, and
    /// centroids were read.
    ///
    /// Raises UnavailableError for a pool on a device, where DeviceHead.counts says it for each head.
    fn head_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts: HeadCounts = self.with(py, None, |inner| Ok(inner.host_pool()?.head_counts()))?;
        let named = PyDict::new(py);
        for (name, count) in [
            ("whole_rows", counts.whole_rows),
            ("certified_rows", counts.certified_rows),
            ("certified_logits", counts.certified_logits),
            ("clustered_rows", counts.clustered_rows),
            ("clustered_logits", counts.clustered_logits),
            ("weight_reads", counts.weight_reads),
            ("screen_reads", counts.screen_reads),
            ("centroid_reads", counts.centroid_reads),
        ] {
            named.set_item(name, count)?;
        }
        Ok(named)
    }
}
