//! Steps whose rows are spread over ranks: what is exchanged before the kernels of such a step, and behind them.

use gumball_spec::{Error, Kind, Result};

use crate::abi::dtype::Dtype;
use crate::abi::{self, MAX_RANKS, TILE, exchange_flags, flags};
use crate::launch::{shards as launch, tuning};
use crate::memory::rows::Rows;
use crate::pipeline::draft_rows::DraftIds;
use crate::pipeline::graph::{Graph, Work};
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout, RankRows};
use crate::pipeline::step::Step;
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::StepFeatures;

/// Why drafts are not verified under a survey.
const UNSURVEYED_DRAFTS: &str = "rows of drafts are not surveyed where they are; take gather or swap";

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
    /// - [`Error::Conflict`] for an assignment with row indices or drafts; for a workspace that records kept sets, unless all ranks sample
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
        self.over_ranks(rows, None, windows, spread)
    }

    /// Fixes the launches of a step like [`Workspace::verify`] over rows that are spread over ranks, as those of [`Workspace::step_over_ranks`]
    /// are. The rows of a request have one owner.
    ///
    /// The walks lie behind the results in each rank's window, as [`Results::read_walks`](crate::Results::read_walks) has them; rows are those of the batch.
    ///
    /// # Shapes and units
    /// `rows`: as [`Workspace::step_over_ranks`] takes them, of each row of the verification. `drafts`: those of the whole batch, in its order, on
    /// all ranks alike; of the drafter's probabilities only the rows of own requests are read.
    ///
    /// # Errors
    /// - Those of [`Workspace::verify`] and [`Workspace::step_over_ranks`].
    /// - [`Error::Conflict`] for [`ExchangeLayout::Survey`].
    ///
    /// # Panics
    /// As [`Workspace::step_over_ranks`].
    pub fn verify_over_ranks<'b>(
        &self,
        rows: &Rows<'b>,
        drafts: &DraftIds<'b>,
        windows: &Windows,
        spread: &RankRows<'_>,
    ) -> Result<Step<'b>> {
        self.over_ranks(rows, Some(drafts), windows, spread)
    }

    fn over_ranks<'b>(
        &self,
        rows: &Rows<'b>,
        drafts: Option<&DraftIds<'b>>,
        windows: &Windows,
        spread: &RankRows<'_>,
    ) -> Result<Step<'b>> {
        windows.check(self);
        let RankRows { layout, first_rows, first_requests, ids: (first_id, end_id) } = *spread;
        let (peers, assigned) = (windows.peers(), self.rows().shape().rows);
        let (rank, world) = (peers.rank as usize, peers.world as usize);
        assert_eq!([first_rows.len(), first_requests.len()], [world + 1; 2], "firsts of each rank");
        let own = first_rows[rank]..first_rows[rank + 1];
        let is_gather = layout == ExchangeLayout::Gather;
        self.check_spread(layout)?;
        let requests = first_requests[world];
        let own_requests =
            if is_gather { 0..requests } else { first_requests[rank]..first_requests[rank + 1] };
        let step_drafts = self.step_drafts(drafts, own_requests, if is_gather { 0 } else { own.start })?;
        let (bytes, part) = (rows.dtype.bytes(), end_id - first_id);
        let sends = layout != ExchangeLayout::Replicated;
        if sends && (rows.rows != assigned || rows.vocab < part && assigned > 0) {
            let allowed =
                format!("{assigned} rows of {part} elements, this rank's ids, or more with padding");
            return Err(Error::length("logits", rows.rows, allowed));
        }
        if !sends && rows.vocab != self.limits().vocab {
            let allowed = format!("{} elements in a row, the vocabulary", self.limits().vocab);
            return Err(Error::length("logits", rows.vocab, allowed));
        }
        let mut step = match layout {
            ExchangeLayout::Gather => {
                self.step_over(&windows.window_rows(rows, assigned)?, None, 0..assigned)?
            }
            ExchangeLayout::Swap | ExchangeLayout::Survey => {
                self.step_over(&windows.window_rows(rows, own.len())?, None, own.clone())?
            }
            ExchangeLayout::Replicated => self.step_over(rows, None, own.clone())?,
        };
        step.drafts = step_drafts;
        let most_rows = first_rows.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let exchange_flags = if is_gather { exchange_flags::GATHER } else { 0 };
        let row_bytes = part * bytes;
        let chunk_bytes = tuning::chunk_bytes(&self.device, assigned, row_bytes);
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
            slots: self.rows().slots(),
            rows: if has_rows { assigned as u32 } else { 0 },
            slot_count: requests as u32,
            first_rows: firsts(first_rows),
            most_rows: if has_rows { most_rows as u32 } else { 0 },
            chunk_bytes: chunk_bytes as u32,
            chunks_per_row: row_bytes.div_ceil(chunk_bytes).max(1) as u32,
            unit_bytes: unit_bytes.unwrap_or(2),
            flags: exchange_flags,
            row_digest: row_digest(rows),
            reserved: 0,
        });
        let table = self.bare_step();
        let results = abi::SendResults {
            peers,
            step: abi::Step {
                params: table.params,
                requests: table.requests,
                states: table.states,
                flags: step.step.flags & !flags::NO_ADVANCE,
                ..step.step
            },
            requests: if drafts.is_some() { self.rows().draft_rows().requests() } else { 0 },
            results_offset: windows.results_offset(),
            arrivals_offset: windows.arrivals_offset(),
            arrivals_bytes: windows.arrivals_bytes(),
            batch_rows: windows.batch_rows(),
            slots: self.rows().slots(),
            rows: assigned as u32,
            first_row: if is_gather { 0 } else { own.start as u32 },
            first_requests: firsts(first_requests),
            most_rows: most_rows as u32,
            flags: exchange_flags,
            row_digest: row_digest(rows),
        };
        let surveys = layout == ExchangeLayout::Survey;
        let shards = surveys.then(|| self.shard_step(rows, windows, (first_id, end_id))).transpose()?;
        step.exchange =
            Some(Exchange { layout, first_rows: firsts(first_rows), rows: send, results, shards });
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
            ..self.argument(self.rows(), 0..self.rows().shape().rows)
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
            row_digest: row_digest(rows),
        })
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
        let Some(exchange) = &fixed.exchange else { return Ok(()) };
        let Exchange { rows, results, .. } = exchange;
        let flags = exchange_flags::PARTIAL;
        let own_slots = swap_slots + u64::from(results.first_row) * size_of::<i32>() as u64;
        let exchange = Exchange {
            rows: rows.map(|rows| abi::SendRows { slots: swap_slots, flags: rows.flags | flags, ..rows }),
            results: abi::SendResults { slots: swap_slots, flags: results.flags | flags, ..*results },
            shards: None,
            ..*exchange
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
    fn check_spread(&self, layout: ExchangeLayout) -> Result<()> {
        let shape = self.rows().shape();
        let keeps = layout != ExchangeLayout::Gather && self.limits().kept;
        let surveys_drafts = layout == ExchangeLayout::Survey && shape.drafts.is_some();
        let refused = [
            (surveys_drafts, "layout", "drafts", UNSURVEYED_DRAFTS),
            (
                shape.row_indices,
                "row_indices",
                "ranks",
                "each row of a step over ranks has logits of its own",
            ),
            (keeps, "kept", "ranks", "kept sets are not sent to other ranks"),
        ];
        match refused.into_iter().find(|(is_refused, ..)| *is_refused) {
            Some((_, parameter, other, reason)) => Err(Error::Conflict { parameter, other, reason }),
            None => Ok(()),
        }
    }
}

impl Graph<'_> {
    /// Checks that rows are spread over ranks as they were when the graph was captured, for a replay.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if the layout, the order of the rows, or the number of rows that a rank owns is another.
    pub fn check_spread(&self, windows: &Windows, spread: &RankRows<'_>) -> Result<()> {
        let is_gather = spread.layout == ExchangeLayout::Gather;
        let is_same = |exchange: &Exchange| {
            exchange.layout == spread.layout
                // Where each rank has all rows, it does not matter whose they are.
                && (is_gather || exchange.first_rows == firsts(spread.first_rows))
                && exchange.results.first_requests == firsts(spread.first_requests)
                && exchange.results.batch_rows == windows.batch_rows()
        };
        let mut steps = self.work().iter().filter_map(|work| match work {
            Work::Step(step) => Some(step),
            _ => None,
        });
        if steps.all(|step| step.exchange.as_ref().is_some_and(is_same)) {
            return Ok(());
        }
        let reason = "a graph over ranks was captured with another layout, or other numbers of rows of ranks";
        Err(Error::Conflict { parameter: "assignment", other: "graph", reason })
    }
}

/// Returns what stands for the type and the kind of rows in the digest of a step: ranks of others write windows at other strides.
fn row_digest(rows: &Rows<'_>) -> u32 {
    let number = 2 * rows.dtype as u32 + u32::from(rows.kind == Kind::Probabilities);
    // It is combined by xor with the digest of the assignment: a large odd factor spreads these few numbers over all bits.
    (number + 1).wrapping_mul(0x9E37_79B1)
}

/// Returns what kernels take of the first row or request of each rank, and the end of the last's.
fn firsts(of_ranks: &[usize]) -> [u32; MAX_RANKS + 1] {
    let end = of_ranks.last().map_or(0, |end| *end as u32);
    let mut firsts = [end; MAX_RANKS + 1];
    of_ranks.iter().zip(&mut firsts).for_each(|(of_rank, first)| *first = *of_rank as u32);
    firsts
}
