//! Verification on the host: which drafts of each request are accepted, and the token after them (rules S3
//! and S5 to S7).
//!
//! Each request is walked on one thread (`walk.rs`). As in a step, everything is checked first, then computed
//! from state that stays as it is, then the tokens are appended.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use gumball_cpu::Prepared;
use gumball_spec::layout::Layout;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::coupled::{check_drafts, check_judged};
use gumball_spec::{Error, Kind, Result, SamplingParams};

use crate::batch::{Batch, Checked};
use crate::drafts::{Drafted, Drafts, ReadDrafts, in_request};
use crate::host::Host;
use crate::logits::Logits;
use crate::outputs::{Outputs, PADDED};
use crate::rows::{Rows, Source};
use crate::sink::RowsMut;
use crate::slot::{PADDING, Slot};
use crate::slots::Slots;
use crate::stages::Stages;
use crate::verify_mode::VerifyMode;
use crate::walk::Walk;

impl Host {
    /// Checks a verification, and takes it if there are outputs for it.
    pub fn verify(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        let drafts = &drafts.read(&Drafted::of(batch), self.vocab)?;
        let source = rows.read(batch, self.vocab)?;
        rows.check_drafted(batch, drafts.rows())?;
        let batch = &self.check_requests(slots, rows.kind(), batch, drafts)?;
        let Some(out) = out else { return Ok(()) };
        match source {
            Source::Given(logits) => self.judge(slots, logits, batch, drafts, out)?,
            Source::Hidden(head, states) => self.judge_hidden(slots, head, states, batch, drafts, out)?,
        }
        slots.append(batch.slots, out);
        Ok(())
    }

    /// Computes what a verification gives, and changes no sequence.
    pub fn judge(
        &self,
        sequences: &Slots,
        logits: Logits<'_>,
        batch: &Checked<'_>,
        drafts: &ReadDrafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (slots, judgement) = (batch.slots, batch.mode.judgement());
        let greedy = self.greedy(sequences, slots, batch.mode)?;

        let rows = out.reshape(Layout { rows: logits.rows(), widths: self.widths })?;
        let path: Vec<AtomicU32> = (0..logits.rows()).map(|_| AtomicU32::new(PADDED)).collect();
        let (level, starts) = (self.workers.level(), &drafts.starts);
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            for request in requests_in(starts, rows.range()) {
                let places = drafts.places(request);
                let mut emitted = 0;
                if slots[request] != PADDING {
                    let sequence = sequences.admitted(slots[request]);
                    let tree = drafts.tree(request);
                    let judge = judgement.filter(|_| !tree.drafts.is_empty());
                    let walk = Walk {
                        logits,
                        batch,
                        sequence,
                        greedy: greedy[request].as_ref(),
                        tree,
                        start: places.start,
                    };
                    let walked = match judge {
                        None => walk.coupled(rows, stages)?,
                        Some(judgement) => walk.judged(judgement, drafts.probs, level, rows, stages)?,
                    };
                    emitted = walked.len();
                    let to = path[places.start..].iter().zip(walked);
                    to.for_each(|(to, row)| to.store((places.start + row) as u32, Ordering::Relaxed));
                }
                places.skip(emitted).for_each(|row| rows.write_padding(row));
            }
            Ok(())
        };
        let split = |range: Range<usize>| {
            let requests = requests_in(starts, range);
            (requests.len() > 1).then(|| starts[requests.start + requests.len() / 2])
        };
        self.workers.over(rows, &split, &work)?;

        out.note_walks(starts, path.into_iter().map(AtomicU32::into_inner).collect());
        Ok(())
    }

    /// Checks the requests of a verification and the options of their rows, as far as logits do not matter.
    pub fn check_requests<'a>(
        &self,
        slots: &mut Slots,
        kind: Kind,
        batch: &Batch<'a>,
        drafts: &ReadDrafts<'_>,
    ) -> Result<Checked<'a>> {
        let batch = self.check_drafted(slots, batch, &drafts.starts)?;
        for (request, slot) in batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            let tree = drafts.tree(request);
            let check = if batch.mode == VerifyMode::Block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
            let hooked = drafts.places(request).into_iter().any(|row| batch.hook(row).is_some());
            slots.check_row(*slot, kind, hooked)?;
        }
        Ok(batch)
    }

    /// Checks a batch whose requests have their first rows, and the end of the last one's, in `starts`.
    pub fn check_drafted<'a>(
        &self,
        slots: &mut Slots,
        batch: &Batch<'a>,
        starts: &[usize],
    ) -> Result<Checked<'a>> {
        let batch = batch.check(starts.last().copied().unwrap_or(0), self.vocab)?;
        batch.mode.judgement().map_or(Ok(()), Judgement::check)?;
        slots.check(batch.slots)?;
        let requests = batch.slots.iter().zip(starts.array_windows());
        for (slot, [start, end]) in requests.filter(|(slot, _)| **slot != PADDING) {
            check_drafts(slots.admitted(*slot).params(), end - start - 1)?;
            if batch.mode.judgement().is_some() {
                check_judged(slots.admitted(*slot).params(), end - start - 1)?;
            }
            if batch.mode == VerifyMode::Block {
                check_forced_block(*start..*end, |row| batch.forced(row))?;
            }
        }
        Ok(batch)
    }

    /// Returns the parameters of the requests that are greedy by the mode alone.
    pub fn greedy(
        &self,
        sequences: &Slots,
        slots: &[Slot],
        mode: VerifyMode,
    ) -> Result<Vec<Option<Prepared>>> {
        let prepare = |slot: &Slot| {
            if mode != VerifyMode::Greedy || *slot == PADDING {
                return Ok(None);
            }
            let params = sequences.sequence(*slot)?.params();
            Prepared::new(SamplingParams { temperature: 0.0, ..params.clone() }, self.vocab).map(Some)
        };
        slots.iter().map(prepare).collect()
    }
}

/// Checks that no row of a block with drafts has a forced token.
pub(crate) fn check_forced_block(
    mut rows: Range<usize>,
    forced: impl Fn(usize) -> Option<u32>,
) -> Result<()> {
    if rows.len() > 1 && rows.any(|row| forced(row).is_some()) {
        let reason = "a block is judged as a whole; force tokens in another mode, or without drafts";
        return Err(Error::Conflict { parameter: "forced", other: "block", reason });
    }
    Ok(())
}

/// Returns the request that a row is of.
pub(crate) fn request_of(starts: &[usize], row: usize) -> usize {
    starts.partition_point(|start| *start <= row) - 1
}

/// Returns the requests whose rows are in a range, which cuts none in two.
fn requests_in(starts: &[usize], rows: Range<usize>) -> Range<usize> {
    let request = |row| starts.partition_point(|start| *start < row);
    request(rows.start)..request(rows.end)
}
