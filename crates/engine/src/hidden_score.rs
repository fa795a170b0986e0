//! Scores from hidden states (H6): a head makes the logits of some rows at a time, so that the logits of a
//! long text are never held at once.

use gumball_cpu::Task;
use gumball_spec::layout::Layout;
use gumball_spec::{Error, HostMatrix, Kind, Reading, Result};

use crate::hidden_rows::RowTasks;
use crate::host::Host;
use crate::lm_head::Head;
use crate::outputs::Outputs;
use crate::score::Scoring;

impl Host {
    /// Scores known tokens that were checked except for their chunks.
    pub(crate) fn score_hidden(
        &mut self,
        head: Head<'_>,
        states: HostMatrix<'_>,
        scoring: &Scoring<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let chunk_rows = scoring.scored.chunk_rows.unwrap_or(states.rows().max(1));
        if chunk_rows == 0 {
            return Err(Error::out_of_range("chunk_rows", chunk_rows, "1 or more"));
        }
        let collects_kept = out.collects_kept();
        let mut rest = out.reshape(Layout { rows: states.rows(), widths: scoring.widths() })?;
        self.with_head_buffers(|host, buffers| -> Result<()> {
            while !rest.range().is_empty() {
                let range = rest.range();
                let count = range.len().min(chunk_rows);
                let (rows, others) = rest.split_at(count);
                rest = others;
                let tasks = ScoreTasks { scoring, first: range.start, collects_kept };
                let states = states.part(range.start..range.start + count);
                host.fill_rows(head, states, &tasks, buffers)?;
                host.score_rows(scoring, buffers.rows(host.vocab)?, rows)?;
            }
            Ok(())
        })?;
        out.mark_approximate(head.is_approximate());
        Ok(())
    }
}

/// What some rows of a score are for, from `first` on.
struct ScoreTasks<'a> {
    scoring: &'a Scoring<'a>,
    first: usize,
    collects_kept: bool,
}

impl RowTasks for ScoreTasks<'_> {
    fn reading(&self, row: usize) -> Option<Reading> {
        let hooked = self.scoring.batch.hook(self.first + row).is_some();
        Some(self.scoring.prepared.reading_with(hooked, self.collects_kept))
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        work(&self.scoring.task(self.first + row, Kind::Logits, &mut None))
    }
}
