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

use super::input::{DeviceInput, DeviceOptions, copy_bytes_up, copy_up};
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::pool::{PADDING, Slot};
use crate::verify::{Drafts, Verification, VerifyMode, check_forced_block, check_rows, in_request, starts};

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
    pub fn ids(&self, drafts: &Drafts<'_>, vocab: usize) -> Result<DraftIds<'_>> {
        let column = |buffer| DeviceSlice::of(buffer, IntType::I32).first(drafts.ids.len());
        let rows = drafts.counts.len() + drafts.ids.len();
        let probs = self.probs.as_ref().map(|probs| Rows::of(probs, Dtype::F32, 0, rows, vocab, vocab));
        Ok(DraftIds {
            ids: column(&self.ids)?,
            parents: drafts.parents.map(|_| column(&self.parents)).transpose()?,
            links: None,
            probs: probs.transpose()?,
        })
    }
}

impl DevicePool {
    /// Verifies the drafts of each request against the target's rows in the host's memory, and appends the emitted tokens to its
    /// sequence.
    ///
    /// The results equal those of [`Pool::verify`](crate::Pool::verify). The call copies the logits to the device and the
    /// outputs back.
    ///
    /// # Errors
    /// - Those of [`Pool::verify`](crate::Pool::verify), of [`DevicePool::enqueue_verify`] and of
    ///   [`DevicePool::fetch_verification`].
    /// - [`Error::Unavailable`] if a row has a hook, which can only run on the host.
    pub fn verify(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        drafts.check(slots.len(), self.config.vocab, mode)?;
        check_rows(logits, self.config.vocab, &drafts.starts(), options)?;
        self.refuse_hooks(options, logits.rows())?;
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the tokens.
        self.check_kept(&out.outputs)?;
        out.outputs.reserve(Layout { rows: logits.rows(), widths: self.config.widths })?;
        let (data, lines, stride, select) = logits.matrix();
        let on_device = DeviceOptions {
            masks: options.masks,
            forced: options.forced,
            row_indices: select.unwrap_or_default(),
        };
        let (buffer, dtype) = copy_up(self.device.runtime(), &mut self.upload, data)?;
        let enqueued = Rows::of(&buffer, dtype, 0, lines, logits.vocab(), stride).and_then(|rows| {
            self.enqueue_host_drafts(rows.with_kind(logits.kind()), slots, drafts, mode, &on_device)
        });
        self.upload = Some(buffer);
        enqueued?;
        self.fetch_verification(out)
    }

    /// Enqueues the verification of drafts that the host has, for rows in the device's memory.
    ///
    /// The call copies the drafts to the device, and does not wait. Everything else is as of [`DevicePool::enqueue_verify`], but that
    /// trees are checked first.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_verify`].
    /// - [`Error::OutOfRange`] for a parent that is neither -1 nor a draft before in the same request.
    pub fn enqueue_host_drafts<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.enqueue_host_drafts_with(input.into(), slots, drafts, None, mode, options)
    }

    /// Enqueues the verification of drafts as [`DevicePool::enqueue_host_drafts`] does, judged by probabilities of the drafter
    /// that lie in the device's memory: a row for each row of the logits, as of [`Drafts::probs`](crate::Drafts::probs).
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_host_drafts`].
    /// - [`Error::Conflict`] if the mode does not read them, or `drafts` has some too.
    /// - [`Error::OutOfRange`] for another type than f32, or another shape.
    pub fn enqueue_host_drafts_with_probs<'b>(
        &mut self,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        probs: Rows<'b>,
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        if drafts.probs.is_some() {
            let reason = "the drafter's probabilities are either here or on the device";
            return Err(Error::Conflict { parameter: "drafts.probs", other: "probs", reason });
        }
        self.enqueue_host_drafts_with(input.into(), slots, drafts, Some(probs), mode, options)
    }

    fn enqueue_host_drafts_with<'b>(
        &mut self,
        input: DeviceInput<'b>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        probs: Option<Rows<'b>>,
        mode: VerifyMode,
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_host_drafts(slots, drafts, mode)?;
        self.assign_drafts(slots, drafts.counts, mode, options)?;
        if slots.is_empty() {
            self.note(0, false);
            return Ok(());
        }
        let uploaded = self.upload_drafts(drafts)?;
        let on_device = uploaded.ids(drafts, self.config.vocab);
        let on_device = on_device.map(|on_device| DraftIds { probs: on_device.probs.or(probs), ..on_device });
        let enqueued = on_device.and_then(|on_device| self.enqueue_verify_assigned(input, &on_device));
        self.keep_uploaded(uploaded);
        enqueued
    }

    /// Checks drafts of the host: those of each request are a tree, or a chain where the mode judges them as a block.
    pub(super) fn check_host_drafts(
        &mut self,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
    ) -> Result<()> {
        drafts.check(slots.len(), self.config.vocab, mode)?;
        self.check_slots(slots)?;
        for (request, places) in drafts.starts().array_windows().map(|[start, end]| *start..*end).enumerate()
        {
            if slots[request] != PADDING {
                let tree = drafts.tree(places, request);
                let check = if mode == VerifyMode::Block { tree.check_chain() } else { tree.check() };
                check.map_err(|error| in_request(error, request))?;
            }
        }
        Ok(())
    }

    /// Copies drafts of the host up, into the memory of the last ones where that suffices. It must be given back by
    /// [`DevicePool::keep_uploaded`].
    pub(super) fn upload_drafts(&mut self, drafts: &Drafts<'_>) -> Result<UploadedDrafts> {
        let runtime = self.device.runtime();
        let [id_memory, parent_memory, probs_memory] = &mut self.draft_uploads;
        let ids = copy_bytes_up(runtime, id_memory, bytemuck::cast_slice(drafts.ids))?;
        let parents = bytemuck::cast_slice(drafts.parents.unwrap_or(&[]));
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
    /// a step or another verification may follow at once. [`DevicePool::fetch_verification`] reads what came out;
    /// [`DevicePool::outputs_address`] says where it lies.
    ///
    /// # Shapes and units
    /// `slots`, `counts`: one for each request. `input`: as many rows as there are requests and drafts together, unless
    /// `options.row_indices` says which row each of these reads. `drafts`: as many ids as the counts add up to; and parents,
    /// or links between rows as [`Drafts::parents_of`] takes them, or neither for chains. Nobody checks them on the host: an id
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

    /// Waits for the enqueued work and copies what came out of the last verification into `out`.
    ///
    /// After a step each request counts as one without drafts.
    ///
    /// # Errors
    /// Those of [`DevicePool::fetch`].
    pub fn fetch_verification(&mut self, out: &mut Verification) -> Result<()> {
        self.fetch(&mut out.outputs)?;
        match &self.last.counts {
            Some(counts) => {
                out.starts = starts(counts);
                (out.rows, out.accepted) = self.read_walks()?;
            }
            None => out.note_step(&self.last.slots),
        }
        Ok(())
    }

    /// Returns the addresses, in the device's memory, of what [`Verification::rows`] and [`Verification::accepted`] are of the last
    /// verification: for each row of the outputs a u32, [`u32::MAX`] where it has no emitted token; and for each request a u32.
    ///
    /// They lie behind the outputs, so they move with the number of rows, and with nothing else.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let Layout { rows, .. } = self.outputs_layout();
        let path = self.outputs_address() + (self.outputs_layout().words() * size_of::<u32>()) as u64;
        [path, path + (rows * size_of::<u32>()) as u64]
    }
}
