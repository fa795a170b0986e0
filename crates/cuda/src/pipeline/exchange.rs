//! Steps whose rows are spread over ranks: what is exchanged before the kernels of such a step, and behind them.

use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, MAX_RANKS, TILE, exchange_flags};
use crate::launch::{shards as launch, tuning};
use crate::memory::rows::Rows;
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout, RankRows};
use crate::pipeline::step::Step;
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::{Edits, StepFeatures, Variant};

impl Workspace {
    /// Fixes the launches of a step like [`Workspace::step`] over rows that are spread over ranks. All ranks assign the same slots,
    /// options and rows, and enqueue the same steps in the same order.
    ///
    /// The results of the whole batch lie in each rank's window then, and each rank has advanced all requests.
    ///
    /// # Shapes and units
    /// `rows`: of each assigned row this rank's part, which may be followed by padding; under [`ExchangeLayout::Replicated`] the whole rows
    /// that this rank owns. The workspace and the windows must outlive the step's work.
    ///
    /// # Errors
    /// - Those of [`Workspace::step`], and [`Error::Length`] for parts of other sizes.
    /// - [`Error::Conflict`] for [`ExchangeLayout::Survey`], if the windows were made without it.
    /// - [`Error::Conflict`] for an assignment with row indices or drafts, or a workspace that records kept sets, unless all ranks sample
    ///   all rows.
    ///
    /// # Panics
    /// If the windows were made for another workspace, or `spread` is for another number of ranks.
    pub fn step_over_ranks<'b>(
        &self,
        rows: &Rows<'b>,
        windows: &Windows,
        spread: &RankRows<'_>,
    ) -> Result<Step<'b>> {
        windows.check(self);
        let RankRows { layout, first_rows, ids: (first_id, end_id) } = *spread;
        let peers = windows.peers();
        assert_eq!(first_rows.len(), peers.world as usize + 1, "first rows of each rank");
        let assigned = self.rows();
        let own = first_rows[peers.rank as usize]..first_rows[peers.rank as usize + 1];
        let is_gather = layout == ExchangeLayout::Gather;
        self.check_spread(is_gather)?;
        let (bytes, part) = (rows.dtype.bytes(), end_id - first_id);
        let sends = layout != ExchangeLayout::Replicated;
        if sends && (rows.rows != assigned || rows.vocab < part && assigned > 0) {
            let allowed =
                format!("{assigned} rows of {part} elements, this rank's ids, or more with padding");
            return Err(Error::length("logits", rows.rows, allowed));
        }
        let mut step = match layout {
            ExchangeLayout::Gather => self.step(&windows.window_rows(rows, assigned)?)?,
            ExchangeLayout::Swap | ExchangeLayout::Survey => {
                self.step_over(&windows.window_rows(rows, own.len())?, None, own.clone())?
            }
            ExchangeLayout::Replicated => self.step_over(rows, None, own.clone())?,
        };
        let mut firsts = [assigned as u32; MAX_RANKS + 1];
        first_rows.iter().zip(&mut firsts).for_each(|(row, first)| *first = *row as u32);
        let most_rows = first_rows.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let flags = if is_gather { exchange_flags::GATHER } else { 0 };
        let row_bytes = part * bytes;
        let chunk_bytes = tuning::chunk_bytes(&self.device, assigned, row_bytes);
        let slots = step.step.slots - own_offset(is_gather, own.start);
        let (stride_bytes, part_offset) = ((rows.stride * bytes) as u64, (first_id * bytes) as u64);
        let alignment = rows.address | stride_bytes | part_offset | row_bytes as u64;
        let unit_bytes = [16, 4, 2].into_iter().find(|unit| alignment.is_multiple_of(u64::from(*unit)));
        let has_rows = part > 0;
        let send = sends.then(|| abi::SendRows {
            peers,
            parts: rows.address,
            stride_bytes,
            row_bytes: row_bytes as u64,
            rows_offset: windows.rows_offset(),
            window_stride_bytes: windows.row_bytes(rows.dtype) as u64,
            part_offset,
            block_flags_offset: windows.block_flags_offset(),
            batch_rows: windows.batch_rows(),
            slots,
            rows: if has_rows { assigned as u32 } else { 0 },
            slot_count: assigned as u32,
            first_rows: firsts,
            most_rows: if has_rows { most_rows as u32 } else { 0 },
            chunk_bytes: chunk_bytes as u32,
            chunks_per_row: row_bytes.div_ceil(chunk_bytes).max(1) as u32,
            unit_bytes: unit_bytes.unwrap_or(2),
            flags,
        });
        let results = abi::SendResults {
            peers,
            step: step.step,
            results_offset: windows.results_offset(),
            arrivals_offset: windows.arrivals_offset(),
            arrivals_bytes: windows.arrivals_bytes(),
            batch_rows: windows.batch_rows(),
            slots,
            rows: assigned as u32,
            first_row: if is_gather { 0 } else { own.start as u32 },
            first_rows: firsts,
            flags,
        };
        let surveys = layout == ExchangeLayout::Survey;
        let shards = surveys.then(|| self.shard_step(rows, windows, (first_id, end_id))).transpose()?;
        step.exchange = Some(Exchange { rows: send, results, shards });
        Ok(step)
    }

    /// Returns the argument of the kernels that survey and finish the assigned rows, of which this rank has the ids from the first to the end.
    fn shard_step(
        &self,
        rows: &Rows<'_>,
        windows: &Windows,
        (first_id, end_id): (usize, usize),
    ) -> Result<abi::ShardStep> {
        let Some((words_offset, words_bytes)) = windows.words() else {
            let reason = "the windows were made without places for what decides";
            return Err(Error::Conflict { parameter: "layout", other: "windows", reason });
        };
        let skipped = first_id % TILE;
        let vocab = if end_id > first_id { end_id - first_id + skipped } else { 0 };
        let step = abi::Step {
            // The skipped ids may lie before the memory, and are not read.
            logits: rows.address.wrapping_sub((skipped * rows.dtype.bytes()) as u64),
            stride: rows.stride as u64,
            // The parts lie in the order of the batch.
            row_indices: windows.batch_rows(),
            vocab: vocab as u32,
            tiles: vocab.div_ceil(TILE) as u32,
            outputs: windows.results_address(),
            ..self.abi().with_rows(0..self.rows())
        };
        Ok(abi::ShardStep {
            peers: windows.peers(),
            step,
            words_offset,
            words_bytes,
            batch_rows: windows.batch_rows(),
            slots: step.slots,
            swap_slots: windows.swap_slots(),
            first_tile: (first_id / TILE) as u32,
            skipped: skipped as u32,
            vocab: self.limits().vocab as u32,
            reserved: 0,
        })
    }

    /// Returns whether a winner or a list of each rank decides all assigned rows, as rows of logits: then a step under
    /// [`ExchangeLayout::Survey`] sends no others.
    #[must_use]
    pub fn is_decided_in_shards(&self) -> bool {
        !self.assigned.shape.masks && self.needs().are_decided_in_shards(Kind::Logits)
    }

    /// Launches the kernels of a step under [`ExchangeLayout::Survey`]: those of the parts, then those that swap the rows that the former do
    /// not decide.
    pub(crate) fn enqueue_survey(
        &self,
        fixed: &Step<'_>,
        needs: StepFeatures,
        shards: &abi::ShardStep,
    ) -> crate::Result<()> {
        let (row_type, swap_slots) = ((fixed.kind, fixed.dtype), shards.swap_slots);
        if shards.step.masks == 0 && needs.are_decided_in_shards(fixed.kind) {
            let shards = abi::ShardStep { swap_slots: 0, ..*shards };
            return self.enqueue_shards(row_type, needs, &shards);
        }
        let Some(Exchange { rows, results, .. }) = &fixed.exchange else { return Ok(()) };
        let flags = exchange_flags::PARTIAL;
        let own_slots = swap_slots + u64::from(results.first_row) * size_of::<i32>() as u64;
        let exchange = Exchange {
            rows: rows.map(|rows| abi::SendRows { slots: swap_slots, flags: rows.flags | flags, ..rows }),
            results: abi::SendResults { slots: swap_slots, flags: results.flags | flags, ..*results },
            shards: None,
        };
        let mut swapped = fixed.clone();
        swapped.step.slots = own_slots;
        swapped.exchange = Some(exchange);
        self.enqueue_shards(row_type, needs, shards)?;
        self.enqueue_kernels(&swapped, needs)
    }

    /// Launches the kernels that survey and finish a step's rows, of which each rank has a part.
    fn enqueue_shards(
        &self,
        row_type: (Kind, Dtype),
        needs: StepFeatures,
        shards: &abi::ShardStep,
    ) -> crate::Result<()> {
        if shards.step.rows == 0 {
            return Ok(());
        }
        // SAFETY: the windows and this workspace outlive enqueued work, and `step_over_ranks` checked their sizes against the
        // shape. The creator of `Rows` guarantees the logits.
        unsafe { launch::survey_shards(&*self.runtime, &self.device, row_type, shards) }?;
        // SAFETY: as above. The kernel before is the survey.
        unsafe { launch::finish_shards(&*self.runtime, &self.device, row_type, needs, shards) }
    }

    /// Checks that the assignment can be spread over ranks.
    fn check_spread(&self, is_gather: bool) -> Result<()> {
        let shape = self.assigned.shape;
        let refused = [
            (shape.drafts.is_some(), "drafts", "steps over ranks verify no drafts on devices"),
            (shape.row_indices, "row_indices", "each row of a step over ranks has logits of its own"),
            (!is_gather && self.limits().kept, "kept", "kept sets are not sent to other ranks"),
        ];
        match refused.into_iter().find(|(is_refused, ..)| *is_refused) {
            Some((_, parameter, reason)) => Err(Error::Conflict { parameter, other: "ranks", reason }),
            None => Ok(()),
        }
    }
}

impl StepFeatures {
    /// Returns whether a winner or a list of each rank decides rows of these features: unedited rows of logits that need no mass of the
    /// whole row.
    pub(crate) fn are_decided_in_shards(self, kind: Kind) -> bool {
        kind == Kind::Logits && self.edits == Edits::None && self.variant <= Variant::Candidates && !self.sums
    }
}

/// Returns how far behind the first row's slot that of a step's first row lies, in bytes.
fn own_offset(is_gather: bool, first: usize) -> u64 {
    if is_gather { 0 } else { first as u64 * 4 }
}
