//! Scores from hidden states (H6): a head makes the logits of some rows at a time, so that those of a long text are never held at once.

use gumball_cpu::{Task, decisive};
use gumball_head::HiddenStates;
use gumball_spec::layout::Layout;
use gumball_spec::{Error, Kind, Result};

use crate::hidden_rows::{Needs, RowTasks};
use crate::lm_head::Head;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::score::{Scored, Scoring};

impl Pool {
    /// Returns the logprobs of known tokens from hidden states, without the logits of all rows: those of `chunk_rows` are held at a time.
    ///
    /// What comes out is, bit for bit, what [`Pool::score`] makes of the head's rows, of the logits that rules H1 and H2 give, with a clustered head of those of probed ids (H8), and with
    /// any number of rows at a time. The exact head reads its weights once for `chunk_rows` rows. A certified head computes a part of a row
    /// where that decides its logprobs: in mode `processed` behind top-k or min-p, and at temperature 0 also in mode `tempered`; and if
    /// `chunk_rows` is not above [`Certified::most_rows`](crate::head::Certified::most_rows).
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: R hidden states of the head's width. `chunk_rows`: how many rows are computed at a time,
    /// 1 or more. For each of these rows the call holds 4 bytes for each id, with a certified head 12; with a clustered head also 12 for each cluster, and 4
    /// for each id that it computes: 8 for each id in all if `chunk_rows` is above [`Clustered::most_rows`](crate::head::Clustered::most_rows). `scored`, `options` and `out`: as for
    /// [`Pool::score`].
    ///
    /// # Errors
    /// - Those of [`Pool::score`], under the same conditions.
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::OutOfRange`] if `chunk_rows` is 0.
    /// - [`Error::Unavailable`] if the system refuses the memory of logits and bounds.
    pub fn score_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        scored: Scored<'_>,
        options: &BatchOptions<'_>,
        chunk_rows: usize,
        out: &mut Outputs,
    ) -> Result<()> {
        let head = head.into();
        self.check_head(head, states)?;
        if chunk_rows == 0 {
            return Err(Error::out_of_range("chunk_rows", chunk_rows, "1 or more"));
        }
        let scoring = Scoring::new(scored, states.rows(), self.vocab, options)?;
        let keep_ids = out.collects_kept();
        let mut rest = out.reshape(Layout { rows: states.rows(), widths: scoring.widths() })?;
        self.with_head_buffers(|pool, buffers| -> Result<()> {
            while !rest.range().is_empty() {
                let range = rest.range();
                let count = range.len().min(chunk_rows);
                let (rows, others) = rest.split_at(count);
                rest = others;
                let tasks = ScoreTasks { scoring: &scoring, first: range.start, keep_ids };
                let states = states.part(range.start..range.start + count);
                pool.fill_rows(head, states, &tasks, buffers)?;
                pool.score_rows(&scoring, buffers.rows(pool.vocab)?, rows)?;
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
    keep_ids: bool,
}

impl RowTasks for ScoreTasks<'_> {
    fn needs(&self, row: usize) -> Needs {
        let hooked = self.scoring.options.hook(self.first + row).is_some();
        decisive(&self.scoring.prepared, hooked, self.keep_ids).into()
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        work(&self.scoring.task(self.first + row, Kind::Logits, &mut None))
    }
}
