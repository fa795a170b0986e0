//! Verification on a device: which drafts of each request are accepted, and the token after them (rules S3 and S5 to S7).
//!
//! All rows of a request are drawn from at once, or made probabilities, each behind the drafts on the path to it. Then the device
//! walks through them, and advances the requests by what it emits; nothing waits for the host. See `drafts.cu` and
//! `judge_requests.cu` in `gumball-cuda`.

use gumball_cuda::{
    Buffer, DeviceSlice, DraftCounts, DraftIds, DraftRule, Dtype, IntType, Rows, StepInput, StepVariant,
};
use gumball_spec::layout::Layout;
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::{Error, Result};

use super::head::DeviceHead;
use super::input::{DeviceInput, DeviceOptions, copy_bytes_up};
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use crate::batch::Batch;
use crate::drafts::{Drafts, ReadDrafts, in_request, starts};
use crate::outputs::Outputs;
use crate::slot::{PADDING, Slot};
use crate::verify::check_forced_block;
use crate::verify_mode::VerifyMode;

/// Returns the rule of a mode.
pub(super) fn rule(mode: VerifyMode) -> DraftRule {
    match mode.judgement() {
        Some(judgement) => DraftRule::Judged(judgement),
        None if mode == VerifyMode::Greedy => DraftRule::Greedy,
        None => DraftRule::Coupled,
    }
}

/// Drafts of the host that were copied to the device.
#[derive(Debug)]
pub(super) struct UploadedDrafts {
    ids: Buffer,
    parents: Buffer,
    probs: Option<Buffer>,
}

impl UploadedDrafts {
    /// Returns where the drafts lie.
    pub fn ids(&self, drafts: &ReadDrafts<'_>, vocab: usize) -> Result<DraftIds<'_>> {
        let column = |buffer| DeviceSlice::of(buffer, IntType::I32).first(drafts.ids.len());
        let probs = self.probs.as_ref();
        let probs = probs.map(|probs| Rows::of(probs, Dtype::F32, 0, drafts.rows(), vocab, vocab));
        Ok(DraftIds {
            ids: column(&self.ids)?,
            parents: drafts.parents.as_ref().map(|_| column(&self.parents)).transpose()?,
            links: None,
            probs: probs.transpose()?,
        })
    }
}

impl DevicePool {
    /// Verifies the drafts of each request against the target's rows in the host's memory, and appends the emitted tokens to its
    /// sequence.
    ///
    /// The results equal those of [`Pool::verify`](crate::Pool::verify), but for a fast head's. The call copies the rows and the drafts to the
    /// device and the outputs back.
    ///
    /// # Errors
    /// - Those of [`Pool::verify`](crate::Pool::verify), of [`DevicePool::enqueue_verify`],
    ///   [`DevicePool::enqueue_verify_hidden_assigned`] and [`DevicePool::fetch`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host, and for a head of the host.
    ///
    /// No sequence was changed then, unless the device failed.
    pub fn verify(
        &mut self,
        rows: crate::Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let drafts = self.read_drafts(batch, drafts)?;
        let source = rows.read(batch, self.config.vocab)?;
        source.check_drafted(drafts.rows())?;
        let head = source.device_head()?;
        batch.check(drafts.rows(), self.config.vocab)?;
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the tokens.
        self.check_kept(out)?;
        out.reserve(Layout { rows: drafts.rows(), widths: self.config.widths })?;
        self.assign_drafts(batch.slots, batch.counts, batch.mode, &DeviceOptions::of(batch))?;
        if batch.slots.is_empty() {
            self.note(0, head.is_some_and(DeviceHead::is_approximate));
        } else {
            let kind = rows.kind();
            self.with_copied(rows.matrix(), |pool, copied| {
                pool.with_uploaded(&drafts, None, |pool, ids| match head {
                    None => pool.enqueue_verify_assigned(copied.with_kind(kind), ids),
                    Some(head) => pool.enqueue_verify_hidden_assigned(head, copied, ids),
                })
            })?;
        }
        self.fetch(out)
    }

    /// Enqueues the verification of drafts that the host has, for rows in the device's memory.
    ///
    /// The call copies the drafts to the device, and does not wait. Everything else is as of [`DevicePool::enqueue_verify`], but that
    /// trees are checked first. `probs`: the drafter's, if they lie in the device's memory: a row for each row of the logits, as of
    /// [`Drafts::probs`].
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_verify`].
    /// - [`Error::OutOfRange`] for a parent that is neither -1 nor a draft before in the same request, and for `probs` of another type than
    ///   f32, or another shape.
    /// - [`Error::Conflict`] if the mode does not read `probs`, or `drafts` has some too.
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host.
    pub fn enqueue_host_drafts<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        probs: Option<Rows<'b>>,
    ) -> Result<()> {
        if drafts.probs.is_some() && probs.is_some() {
            let reason = "the drafter's probabilities are either here or on the device";
            return Err(Error::Conflict { parameter: "drafts.probs", other: "probs", reason });
        }
        let drafts = self.read_drafts(batch, drafts)?;
        self.assign_drafts(batch.slots, batch.counts, batch.mode, &DeviceOptions::of(batch))?;
        if batch.slots.is_empty() {
            self.note(0, false);
            return Ok(());
        }
        let input = input.into();
        self.with_uploaded(&drafts, probs, |pool, ids| pool.enqueue_verify_assigned(input, ids))
    }

    /// Reads drafts of the host for a batch on the device, and checks the batch as far as its rows do not matter.
    pub(super) fn read_drafts<'a>(
        &mut self,
        batch: &Batch<'a>,
        drafts: &Drafts<'a>,
    ) -> Result<ReadDrafts<'a>> {
        batch.refuse_plan()?;
        self.refuse_hooks(batch, batch.hooks.len())?;
        let drafts = drafts.read(batch, self.config.vocab)?;
        self.slots.check(batch.slots)?;
        for request in (0..batch.slots.len()).filter(|request| batch.slots[*request] != PADDING) {
            let tree = drafts.tree(request);
            let check = if batch.mode == VerifyMode::Block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
        }
        Ok(drafts)
    }

    /// Copies drafts of the host up, into the memory of the last ones where that suffices, and does work with where they lie there. `probs`:
    /// the drafter's, if they are there already.
    fn with_uploaded(
        &mut self,
        drafts: &ReadDrafts<'_>,
        probs: Option<Rows<'_>>,
        work: impl FnOnce(&mut Self, &DraftIds<'_>) -> Result<()>,
    ) -> Result<()> {
        let uploaded = self.upload_drafts(drafts)?;
        let ids = uploaded.ids(drafts, self.config.vocab);
        let done = ids.and_then(|ids| work(self, &DraftIds { probs: ids.probs.or(probs), ..ids }));
        self.keep_uploaded(uploaded);
        done
    }

    /// Copies drafts of the host up. They must be given back by [`DevicePool::keep_uploaded`].
    pub(super) fn upload_drafts(&mut self, drafts: &ReadDrafts<'_>) -> Result<UploadedDrafts> {
        let runtime = self.device.runtime();
        let [id_memory, parent_memory, probs_memory] = &mut self.draft_uploads;
        let ids = copy_bytes_up(runtime, id_memory, bytemuck::cast_slice(drafts.ids))?;
        let parents = bytemuck::cast_slice(drafts.parents.as_deref().unwrap_or(&[]));
        let parents = copy_bytes_up(runtime, parent_memory, parents)?;
        let rows = drafts.probs.map(|rows| copy_bytes_up(runtime, probs_memory, bytemuck::cast_slice(rows)));
        Ok(UploadedDrafts { ids, parents, probs: rows.transpose()? })
    }

    /// Keeps the memory of drafts for the next ones. Work that reads it may still run: a later copy waits for it.
    pub(super) fn keep_uploaded(&mut self, uploaded: UploadedDrafts) {
        let UploadedDrafts { ids, parents, probs } = uploaded;
        self.draft_uploads = [Some(ids), Some(parents), probs.or(self.draft_uploads[2].take())];
    }

    /// Enqueues the verification of drafts that lie in the device's memory, and returns before the device has finished.
    ///
    /// The tokens are those of [`Pool::verify`](crate::Pool::verify). The device advances each request by its emitted tokens, so
    /// a step or another verification may follow at once. [`DevicePool::fetch`] reads what came out;
    /// [`DevicePool::outputs_address`] says where it lies.
    ///
    /// # Shapes and units
    /// `slots`, `counts`: one for each request. `input`: as many rows as there are requests and drafts together, unless
    /// `options.row_indices` says which row each of these reads. `drafts`: as many ids as the counts add up to; and parents,
    /// or links between rows as of [`Tree::Links`](crate::Tree::Links), or neither for chains. Nobody checks them on the host: an id
    /// outside the vocabulary is never accepted, and a request whose parents or links are no tree, or no chain in [`VerifyMode::Block`], takes a step, with the status
    /// [`NO_TREE`](gumball_spec::Status::NO_TREE). Probabilities of the drafter: a row for each row of the step, whatever
    /// `row_indices` say. `options`: each list in them is empty or has one element for each row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape differs, or there are more rows than the pool allows.
    /// - [`Error::OutOfRange`] for more than 64 drafts of a request.
    /// - [`Error::Conflict`] for a request with mirostat and drafts: mu would depend on the tokens of the path.
    /// - [`Error::Conflict`] for probabilities of the drafter in a mode that does not read them, and in `Block` for a forced token
    ///   beside drafts.
    /// - [`Error::OutOfRange`] for a threshold outside 0..=1.
    /// - [`Error::Unavailable`] for a mode that judges drafts by probabilities, in a pool of the route `probabilities`.
    /// - Those of [`DevicePool::enqueue`].
    ///
    /// After an error no sequence has changed.
    pub fn enqueue_verify<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        counts: &[u32],
        drafts: &DraftIds<'b>,
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.assign_drafts(slots, counts, mode, options)?;
        self.enqueue_verify_assigned(input, drafts)
    }

    /// Assigns slots with their numbers of drafts, a mode and options to the next verifications, those of captured graphs
    /// included. See [`DevicePool::assign`].
    ///
    /// Allocates memory where the rows behind drafts need more than ever before for their penalties and other edits that
    /// depend on the history. The first mode that judges drafts by probabilities takes memory for these, once: 4 bytes for
    /// each id of each of the pool's rows, 40 bytes more for each row, and 320 KiB.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_verify`] that concern slots, counts, mode and options.
    pub fn assign_drafts(
        &mut self,
        slots: &[Slot],
        counts: &[u32],
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        let rows = self.check_draft_counts(slots, counts, mode, options)?;
        let drafts = DraftCounts { counts, rule: rule(mode), batch_requests: &[] };
        self.assign_rows(slots, rows, options, Some(drafts))
    }

    /// Checks the numbers of drafts, the mode, and the options that it does not take; returns the number of rows.
    pub(super) fn check_draft_counts(
        &self,
        slots: &[Slot],
        counts: &[u32],
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<usize> {
        self.check_judgement(mode)?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        if let Some(count) = counts.iter().find(|count| **count as usize > MAX_DRAFTS) {
            return Err(Error::out_of_range("counts", count, format!("in 0..={MAX_DRAFTS}")));
        }
        let starts = starts(counts);
        let rows = starts.last().copied().unwrap_or(0);
        if rows > self.config.rows {
            let allowed =
                format!("at most {} requests and drafts together, the pool's rows", self.config.rows);
            return Err(Error::length("counts", rows, allowed));
        }
        if mode == VerifyMode::Block {
            let forced = |row: usize| options.forced.get(row).copied().flatten();
            let requests = starts.array_windows().zip(slots).filter(|(_, slot)| **slot != PADDING);
            for ([start, end], _) in requests {
                check_forced_block(*start..*end, forced)?;
            }
        }
        Ok(rows)
    }

    /// Checks a mode that judges drafts by probabilities.
    fn check_judgement(&self, mode: VerifyMode) -> Result<()> {
        let Some(judgement) = mode.judgement() else { return Ok(()) };
        judgement.check()?;
        if self.config.route == PoolRoute::Probabilities {
            let reason = "verify coupled, or take the route race".to_owned();
            return Err(Error::Unavailable { resource: "probabilities of rows on this route", reason });
        }
        Ok(())
    }

    /// Enqueues the verification of drafts for the requests that were assigned last; it only launches kernels.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the verification becomes part of it, as
    /// one of [`StepVariant::Full`]; see [`DevicePool::enqueue_verify_variant`]. A replay reads the drafts that lie there then.
    ///
    /// # Errors
    /// - [`Error::Conflict`] unless drafts were assigned.
    /// - Those of [`DevicePool::enqueue_verify`] that concern input and drafts.
    pub fn enqueue_verify_assigned<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        drafts: &DraftIds<'b>,
    ) -> Result<()> {
        self.enqueue_verify_with(input.into(), drafts, None)
    }

    /// Enqueues the verification of drafts for the requests that were assigned last, with the kernels of a named variant.
    /// See [`DevicePool::enqueue_variant`].
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_variant`] and [`DevicePool::enqueue_verify_assigned`].
    pub fn enqueue_verify_variant<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        drafts: &DraftIds<'b>,
        variant: StepVariant,
    ) -> Result<()> {
        self.enqueue_verify_with(input.into(), drafts, Some(variant))
    }

    fn enqueue_verify_with<'b>(
        &mut self,
        input: DeviceInput<'b>,
        drafts: &DraftIds<'b>,
        variant: Option<StepVariant>,
    ) -> Result<()> {
        self.enqueue_step(&StepInput { drafts: Some(*drafts), ..input.of_step() }, variant)?;
        Ok(())
    }

    /// Returns the addresses, in the device's memory, of the walks of the last verification: for each row of the outputs a u32,
    /// the row of logits that it comes from, [`u32::MAX`] where it has no emitted token; and for each request a u32, how many drafts were accepted.
    ///
    /// They lie behind the outputs, so they move with the number of rows, and with nothing else.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let Layout { rows, .. } = self.outputs_layout();
        let path = self.outputs_address() + (self.outputs_layout().words() * size_of::<u32>()) as u64;
        [path, path + (rows * size_of::<u32>()) as u64]
    }
}
