//! Scores over the devices of ranks: rows are gathered, as many at a time as a step has, and each rank scores
//! all of them.

use gumball_cuda::GatheredRows;
use gumball_dist::LogitsLayout;
use gumball_spec::{Error, Result};

use super::GpuRanks;
use super::step::gathered_rows;
use crate::batch::Batch;
use crate::outputs::Outputs;
use crate::ranks::gathered;
use crate::rows::Rows;
use crate::score::Scored;
use crate::slots::Slots;

impl GpuRanks {
    /// Scores known tokens, from rows of which this rank has a part.
    pub(super) fn score(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        rows.check_of_rank(batch)?;
        let batch = &gathered(batch)?;
        let Some(mut scorer) = self.gpu.scorer_of(rows, batch, scored, out)? else { return Ok(()) };
        let (matrix, ids) = (rows.matrix(), self.common.planner.split().ids(self.common.group.rank()));
        if matrix.width() < ids.len() {
            let allowed = format!("{} elements in a row, this rank's ids", ids.len());
            return Err(Error::length("logits", matrix.width(), allowed));
        }
        let digest = self.common.alike.of_scores(slots, LogitsLayout::Gather, &scorer.batch, scored);
        self.set_digest(digest)?;
        let mut uploads = std::mem::take(&mut self.gpu.uploads);
        let placed = uploads.rows(self.gpu.device.runtime(), rows);
        let there = placed.and_then(|rows| rows.matrix().on_device("logits"));
        let done = there.and_then(|there| {
            let there = there.with_kind(rows.kind());
            self.turn.rows = Some((there.dtype(), there.kind()));
            let at_once = self.gpu.rows;
            (0..there.rows()).step_by(at_once).try_for_each(|first| {
                let part = first..there.rows().min(first + at_once);
                let ranks = gathered_rows(&self.spread.nobodys, &self.common.planner);
                let rows = there.part(part.clone());
                let rows = GatheredRows::gather(&self.gpu.workspace, &self.windows, &ranks, &rows)?;
                self.wait(slots)?;
                let scores = scorer.score(part, rows.rows(), out);
                rows.release(&self.gpu.workspace)?;
                scores
            })
        });
        self.gpu.uploads = uploads;
        self.gpu.scorer = Some(scorer.workspace);
        done?;
        self.wait(slots)
    }
}
