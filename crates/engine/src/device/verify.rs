//! Verification on a device: which drafts of each request are accepted, and the token after them (rule S3).
//!
//! All rows of a request are drawn from at once, each behind the drafts on the path to it. Then the device walks through them,
//! and advances the requests by what it emits; nothing waits for the host. See `drafts.cu` in `gumball-cuda`.

use gumball_cuda::{DeviceSlice, DraftCounts, DraftIds, Graph, IntType, Rows, StepVariant};
use gumball_spec::layout::Layout;
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::{Error, Result};

use super::input::{DeviceInput, DeviceOptions, copy_bytes_up, copy_up};
use super::pool::DevicePool;
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::pool::{PADDING, Slot};
use crate::verify::{
    Drafts, PADDED, Verification, VerifyMode, check_counts, check_rows, check_taken, in_request, starts,
};

/// Returns whether a mode draws at temperature 0.
///
/// # Errors
/// - [`Error::Unavailable`] for a mode that judges drafts by probabilities.
fn is_greedy(mode: VerifyMode) -> Result<bool> {
    let name = match mode {
        VerifyMode::Coupled => return Ok(false),
        VerifyMode::Greedy => return Ok(true),
        VerifyMode::Rejection => "rejection",
        VerifyMode::Block => "block",
        VerifyMode::Threshold { .. } => "threshold",
    };
    let reason =
        format!("mode {name} is not implemented there; take coupled or greedy, or Pool::verify on the host");
    Err(Error::Unavailable { resource: "verification by probabilities on a device", reason })
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
        drafts.check(slots.len(), self.config.vocab)?;
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
        let input: DeviceInput<'_> = input.into();
        drafts.check(slots.len(), self.config.vocab)?;
        self.check_slots(slots)?;
        for (request, places) in drafts.starts().array_windows().map(|[start, end]| *start..*end).enumerate()
        {
            if slots[request] != PADDING {
                drafts.tree(places, request).check().map_err(|error| in_request(error, request))?;
            }
        }
        self.assign_drafts(slots, drafts.counts, mode, options)?;
        if slots.is_empty() {
            self.note(0);
            return Ok(());
        }
        let runtime = self.device.runtime();
        let [id_memory, parent_memory] = &mut self.draft_uploads;
        let ids = copy_bytes_up(runtime, id_memory, bytemuck::cast_slice(drafts.ids))?;
        let parents = bytemuck::cast_slice(drafts.parents.unwrap_or(&[]));
        let parents = copy_bytes_up(runtime, parent_memory, parents)?;
        let column = |buffer| DeviceSlice::of(buffer, IntType::I32).first(drafts.ids.len());
        let on_device = column(&ids).and_then(|column_of_ids| {
            let parents = drafts.parents.map(|_| column(&parents)).transpose()?;
            Ok(DraftIds { ids: column_of_ids, parents })
        });
        let enqueued = on_device.and_then(|on_device| self.enqueue_verify_assigned(input, &on_device));
        self.draft_uploads = [Some(ids), Some(parents)];
        enqueued
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
    /// or `None` for chains. Nobody checks them on the host: an id outside the vocabulary is never accepted, and a request
    /// whose parents are no tree takes a step, with the status [`NO_TREE`](gumball_spec::Status::NO_TREE). `options`: each
    /// list in them is empty or has one element for each row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape differs, or there are more rows than the pool allows.
    /// - [`Error::OutOfRange`] for more than 64 drafts of a request.
    /// - [`Error::Conflict`] for a request with mirostat and drafts: mu would depend on the tokens of the path.
    /// - [`Error::Unavailable`] for a mode that judges drafts by probabilities.
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
    /// depend on the history.
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
        let greedy = is_greedy(mode)?;
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        if let Some(count) = counts.iter().find(|count| **count as usize > MAX_DRAFTS) {
            return Err(Error::out_of_range("counts", count, format!("in 0..={MAX_DRAFTS}")));
        }
        let rows = starts(counts).last().copied().unwrap_or(0);
        if rows > self.config.rows {
            let allowed =
                format!("at most {} requests and drafts together, the pool's rows", self.config.rows);
            return Err(Error::length("counts", rows, allowed));
        }
        self.assign_rows(slots, rows, options, Some(DraftCounts { counts, greedy }))
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
        self.enqueue_step(&input, variant, |workspace| {
            workspace.verify(&input.logits, input.masks.as_ref(), drafts)
        })
    }

    /// Captures a verification for each input with its drafts, to be replayed in this order by [`DevicePool::replay`].
    /// Nothing runs yet. See [`DevicePool::capture`].
    ///
    /// A replay uses the assignment of that moment, and reads the drafts that lie there then. The numbers of requests and of
    /// rows and the mode must stay the same; how many drafts each request has may change.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_verify_assigned`].
    pub fn capture_verify<'b>(&self, inputs: &[(DeviceInput<'b>, DraftIds<'b>)]) -> Result<Graph<'b>> {
        inputs.iter().try_for_each(|(input, _)| self.check_input(input))?;
        let step = |(input, drafts): &(DeviceInput<'b>, DraftIds<'b>)| {
            self.workspace.verify(&input.logits, input.masks.as_ref(), drafts)
        };
        self.workspace.capture(&inputs.iter().map(step).collect::<Result<Vec<_>>>()?)
    }

    /// Waits for the enqueued work and copies what came out of the last verification into `out`.
    ///
    /// After a step each request counts as one without drafts.
    ///
    /// # Errors
    /// Those of [`DevicePool::fetch`].
    pub fn fetch_verification(&mut self, out: &mut Verification) -> Result<()> {
        self.fetch(&mut out.outputs)?;
        let counts = self.last.counts.clone();
        out.starts = starts(&counts.unwrap_or_else(|| vec![0; self.last.slots.len()]));
        if self.last.counts.is_some() {
            (out.rows, out.accepted) = self.read_walks()?;
        } else {
            let row = |(row, slot): (usize, &Slot)| if *slot == PADDING { PADDED } else { row as u32 };
            out.rows = self.last.slots.iter().enumerate().map(row).collect();
            out.accepted = vec![0; self.last.slots.len()];
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

    /// Takes away the last `counts[i]` output tokens of the sequence in `slots[i]`. See
    /// [`Pool::shorten`](crate::Pool::shorten).
    ///
    /// The states go through the host, which may have to wait for the device.
    ///
    /// # Errors
    /// - Those of [`Pool::shorten`](crate::Pool::shorten) and [`DevicePool::sequence`].
    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        check_counts(counts, slots)?;
        for slot in slots {
            self.host_sequence(*slot)?;
        }
        self.check_slots(slots)?;
        for (slot, count) in slots.iter().zip(counts) {
            check_taken(*slot, *count, self.sequence(*slot)?)?;
        }
        for (slot, count) in slots.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let left = self.sequence(*slot)?.history().output().len() - count;
            self.truncate(*slot, left)?;
        }
        Ok(())
    }
}
