//! Steps whose rows are spread over ranks: what is exchanged before the kernels of such a step, and after
//! them.

use std::ops::Range;

use gumball_spec::{Error, Kind, Result};

use crate::abi::{self, MAX_RANKS, TILE, exchange_flags, flags};
use crate::launch::tuning;
use crate::memory::rows::{MaskRows, Rows};
use crate::pipeline::messages::RESULTS_OFFSET;
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout, RankRows};
use crate::pipeline::row_batch::RowBatch;
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;

/// Why drafts are not judged under a survey.
const UNSURVEYED_DRAFTS: &str = "drafts are judged by probabilities of whole rows, which are not surveyed where they are; take gather or swap";

/// The assigned rows of a workspace, or those of a batch of drafts, spread over ranks.
#[derive(Debug)]
pub(crate) struct Spread<'a> {
    pub(super) windows: &'a Windows,
    pub(super) rows: &'a RankRows<'a>,
    pub(super) rank: usize,
    batch: &'a RowBatch,
    /// Whether what comes out of the rows travels, too.
    has_results: bool,
    /// The number of rows.
    pub(super) assigned: usize,
    /// Where the number of each row in the batch lies, if rows are assigned in another order; else 0.
    pub(super) batch_rows: u64,
}

impl<'a> Spread<'a> {
    /// Checks that a batch of rows can be spread over ranks.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for a batch that ranks do not take.
    ///
    /// # Panics
    /// If the windows were made for another workspace, or `rows` is for another number of ranks.
    pub fn new(
        workspace: &Workspace,
        batch: &'a RowBatch,
        windows: &'a Windows,
        rows: &'a RankRows<'a>,
    ) -> Result<Self> {
        windows.check(workspace, rows.layout)?;
        let peers = windows.peers;
        let firsts = [rows.first_rows.len(), rows.first_requests.len(), rows.first_ids.len()];
        assert_eq!(firsts, [peers.world as usize + 1; 3], "firsts of each rank");
        let (shape, proposes) = (batch.shape, batch.proposals.is_some());
        let is_gather = rows.layout == ExchangeLayout::Gather;
        let is_survey = rows.layout == ExchangeLayout::Survey;
        let is_judged = shape.drafts.is_some_and(|drafts| drafts.rule.judgement().is_some());
        let (surveys_judged, surveys_kept) = (is_survey && is_judged, is_survey && workspace.limits().kept);
        let refused = [
            (
                proposes && !is_gather,
                "layout",
                "batch",
                "each rank draws all drafts, from rows that are gathered",
            ),
            (surveys_judged, "layout", "drafts", UNSURVEYED_DRAFTS),
            (
                shape.row_indices,
                "row_indices",
                "ranks",
                "each row of a step over ranks has logits of its own",
            ),
            (surveys_kept, "layout", "kept", "a survey leaves no kept sets; take gather or swap"),
        ];
        match refused.into_iter().find(|(is_refused, ..)| *is_refused) {
            Some((_, parameter, other, reason)) => Err(Error::Conflict { parameter, other, reason }),
            None => Ok(Self {
                windows,
                rows,
                rank: peers.rank as usize,
                batch,
                has_results: !proposes,
                assigned: shape.rows,
                batch_rows: if proposes { 0 } else { windows.batch_rows() },
            }),
        }
    }

    /// Spreads rows that are gathered and of no batch.
    ///
    /// # Panics
    /// As for [`Spread::new`].
    pub fn of_gathered(
        workspace: &'a Workspace,
        windows: &'a Windows,
        rows: &'a RankRows<'a>,
        count: usize,
    ) -> Result<Self> {
        windows.check(workspace, rows.layout)?;
        let (batch, rank) = (workspace.rows(), windows.peers.rank as usize);
        Ok(Self { windows, rows, rank, batch, has_results: false, assigned: count, batch_rows: 0 })
    }

    /// Returns whether this rank has whole rows, those that it samples.
    pub fn has_whole_rows(&self) -> bool {
        self.rows.layout == ExchangeLayout::Replicated
    }

    /// Checks that rows are assigned in the order of the batch, in which the caller's lists are.
    pub fn check_order(&self, parameter: &'static str) -> Result<()> {
        if self.batch_rows == 0 {
            return Ok(());
        }
        let reason = "the requests were assigned in another order than the batch's; own them in blocks";
        Err(Error::Conflict { parameter, other: "ownership", reason })
    }

    fn is_gather(&self) -> bool {
        self.rows.layout == ExchangeLayout::Gather
    }

    /// Returns which of the assigned rows this rank samples.
    pub fn part(&self) -> Range<usize> {
        let firsts = self.rows.first_rows;
        if self.is_gather() { 0..self.assigned } else { firsts[self.rank]..firsts[self.rank + 1] }
    }

    /// Returns whether all ranks end all rows of this kind, by the words that they send each other.
    pub fn surveys(&self, kind: Kind) -> bool {
        self.rows.layout == ExchangeLayout::Survey && kind == Kind::Logits
    }

    /// Returns which of the assigned requests this rank samples.
    pub fn requests(&self) -> Range<usize> {
        let firsts = self.rows.first_requests;
        if self.is_gather() { 0..firsts[firsts.len() - 1] } else { firsts[self.rank]..firsts[self.rank + 1] }
    }

    /// Returns the ids of this rank's part of each row.
    fn ids(&self) -> Range<usize> {
        self.rows.first_ids[self.rank]..self.rows.first_ids[self.rank + 1]
    }

    /// Returns the rows that this rank samples: those that the exchange brings into its window, or whole rows
    /// that it has. `parts` are the caller's.
    pub fn sampled<'b>(&self, parts: &Rows<'b>) -> Result<Rows<'b>> {
        if self.has_whole_rows() { Ok(*parts) } else { self.window_rows(parts) }
    }

    /// Returns the rows of this rank's window that the exchange of parts fills.
    pub fn window_rows(&self, parts: &Rows<'_>) -> Result<Rows<'static>> {
        let (part, assigned) = (self.ids().len(), self.assigned);
        if parts.rows != assigned || parts.vocab < part && assigned > 0 {
            let allowed =
                format!("{assigned} rows of {part} elements, this rank's ids, or more with padding");
            return Err(Error::length("logits", parts.rows, allowed));
        }
        self.windows.window_rows(parts, self.part().len())
    }

    /// Returns the arguments of the kernels that exchange the caller's parts of rows, and the results of a
    /// step over this rank's rows. Drafts have no results: each rank draws all of them.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for bitmasks of a caller whose rows are assigned in another order than the
    ///   batch's; and those of bitmasks.
    pub fn exchange(
        &self,
        workspace: &Workspace,
        (parts, masks): (&Rows<'_>, Option<&MaskRows<'_>>),
        step: &abi::Step,
    ) -> Result<Exchange> {
        masks.map_or(Ok(()), |_| self.check_order("masks"))?;
        let Self { windows, rows: &RankRows { layout, first_rows, first_requests, .. }, batch, .. } = *self;
        let (has_results, verifies) = (self.has_results, batch.shape.drafts.is_some());
        let most_rows = first_rows.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let exchange_flags = if self.is_gather() { exchange_flags::GATHER } else { 0 };
        let post = windows.post.as_ref();
        let sends = !self.has_whole_rows() && post.is_none();
        let table = workspace.bare_step();
        let results = abi::SendResults {
            peers: windows.peers,
            step: abi::Step {
                params: table.params,
                requests: table.requests,
                states: table.states,
                flags: step.flags & !flags::NO_ADVANCE,
                ..*step
            },
            requests: if verifies && has_results { batch.draft_rows().requests.address() } else { 0 },
            results_offset: RESULTS_OFFSET as u64,
            arrivals_offset: windows.arrivals_offset(),
            arrivals_bytes: windows.arrivals_bytes(),
            batch_rows: self.batch_rows,
            slots: batch.slots(),
            rows: if has_results { self.assigned as u32 } else { 0 },
            first_row: self.part().start as u32,
            first_requests: firsts(first_requests),
            most_rows: most_rows as u32,
            flags: exchange_flags,
            row_digest: row_digest(parts),
        };
        let surveys = layout == ExchangeLayout::Survey;
        Ok(Exchange {
            layout,
            first_rows: firsts(first_rows),
            rows: sends.then(|| self.send_rows(workspace, parts, (most_rows, exchange_flags))),
            results,
            mail: post.map(|post| Box::new(self.mail(post, workspace, parts, &results))),
            shards: surveys.then(|| self.shard_step(workspace, parts, masks)).transpose()?,
        })
    }

    /// Returns the argument of the kernel that sends the caller's parts of rows to the ranks that sample
    /// them.
    fn send_rows(
        &self,
        workspace: &Workspace,
        parts: &Rows<'_>,
        (most_rows, flags): (usize, u32),
    ) -> abi::SendRows {
        let Self { windows, rows: &RankRows { first_rows, first_requests, .. }, batch_rows, .. } = *self;
        let (bytes, assigned, ids) = (parts.dtype.bytes(), self.assigned, self.ids());
        let row_bytes = ids.len() * bytes;
        let chunk_bytes = tuning::chunk_bytes(&workspace.device, assigned, row_bytes);
        let (stride_bytes, part_offset) = ((parts.stride * bytes) as u64, (ids.start * bytes) as u64);
        let alignment = parts.address | stride_bytes | part_offset | row_bytes as u64;
        let unit_bytes = [16, 4, 2].into_iter().find(|unit| alignment.is_multiple_of(u64::from(*unit)));
        let has_rows = row_bytes > 0;
        abi::SendRows {
            peers: windows.peers,
            parts: parts.address,
            stride_bytes,
            row_bytes: row_bytes as u64,
            rows_offset: windows.rows_offset as u64,
            window_stride_bytes: windows.row_bytes(parts.dtype) as u64,
            part_offset,
            block_flags_offset: windows.block_flags_offset(),
            batch_rows,
            slots: self.batch.slots(),
            rows: if has_rows { assigned as u32 } else { 0 },
            slot_count: first_requests.last().map_or(0, |end| *end as u32),
            first_rows: firsts(first_rows),
            most_rows: if has_rows { most_rows as u32 } else { 0 },
            chunk_bytes: chunk_bytes as u32,
            chunks_per_row: row_bytes.div_ceil(chunk_bytes).max(1) as u32,
            unit_bytes: unit_bytes.unwrap_or(2),
            flags,
            row_digest: row_digest(parts),
            reserved: 0,
        }
    }

    /// Returns the argument of the kernels that survey and finish the assigned rows, of which this rank has a
    /// part.
    fn shard_step(
        &self,
        workspace: &Workspace,
        parts: &Rows<'_>,
        masks: Option<&MaskRows<'_>>,
    ) -> Result<abi::ShardStep> {
        let (windows, ids) = (self.windows, self.ids());
        let Some((words_offset, words_bytes)) = windows.words() else {
            let reason = "a survey exchanges words inside kernels, which messages do not carry";
            return Err(Error::Conflict { parameter: "layout", other: "windows", reason });
        };
        let skipped = ids.start % TILE;
        let vocab = if ids.is_empty() { 0 } else { ids.len() + skipped };
        let mut step = abi::Step {
            // The skipped ids may lie before the memory, and are not read.
            logits: parts.address.wrapping_sub((skipped * parts.dtype.bytes()) as u64),
            stride: parts.stride as u64,
            // The parts lie in the order of the batch.
            row_indices: windows.batch_rows(),
            vocab: vocab as u32,
            tiles: vocab.div_ceil(TILE) as u32,
            outputs: windows.results_address(),
            ..workspace.argument(workspace.rows(), 0..self.assigned)
        };
        if let Some(masks) = masks {
            workspace.set_masks(&mut step, masks, (self.assigned, 0))?;
        }
        Ok(abi::ShardStep {
            peers: windows.peers,
            step,
            words_offset,
            words_bytes,
            batch_rows: windows.batch_rows(),
            slots: step.slots,
            swap_slots: windows.swap_slots.address(),
            first_tile: (ids.start / TILE) as u32,
            skipped: skipped as u32,
            vocab: workspace.limits().vocab as u32,
            row_digest: row_digest(parts),
        })
    }
}

impl Exchange {
    /// Enqueues what brings rows to the ranks that sample them.
    ///
    /// # Safety
    /// The windows and the workspace outlive enqueued work, and so does the caller's memory. All ranks
    /// enqueue the same.
    pub unsafe fn begin(&self, workspace: &Workspace) -> crate::Result<()> {
        if let Some(mail) = &self.mail {
            // SAFETY: the caller guarantees it; `Spread` checked the sizes of rows against the windows.
            return unsafe { mail.exchange_rows(workspace) };
        }
        // SAFETY: as above.
        let send = |rows| unsafe {
            tuning::send_rows(&workspace.device, rows, false).enqueue(&*workspace.runtime, rows)
        };
        self.rows.as_ref().map_or(Ok(()), send)
    }

    /// Enqueues what sends results, and says that the rows may be written again.
    ///
    /// # Safety
    /// As for [`Exchange::begin`]. The kernels before write the results.
    pub unsafe fn end(&self, workspace: &Workspace) -> crate::Result<()> {
        if let Some(mail) = &self.mail {
            // SAFETY: the caller guarantees it.
            return unsafe { mail.exchange_results(workspace) };
        }
        // SAFETY: as above.
        unsafe { tuning::send_results(&self.results, false).enqueue(&*workspace.runtime, &self.results) }
    }
}

/// Returns what stands for the type and the kind of rows in the digest of a step: ranks of others write
/// windows at other strides.
fn row_digest(rows: &Rows<'_>) -> u32 {
    let number = 2 * rows.dtype as u32 + u32::from(rows.kind == Kind::Probabilities);
    // It is combined by xor with the digest of the assignment: a large odd factor spreads these few numbers
    // over all bits.
    (number + 1).wrapping_mul(0x9E37_79B1)
}

/// Returns what kernels take of the first row or request of each rank, and the end of the last's; behind it
/// zeros, which none reads.
pub(crate) fn firsts(of_ranks: &[usize]) -> [u32; MAX_RANKS + 1] {
    let mut firsts = [0; MAX_RANKS + 1];
    of_ranks.iter().zip(&mut firsts).for_each(|(of_rank, first)| *first = *of_rank as u32);
    firsts
}
