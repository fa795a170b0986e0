//! Rows of logits from hidden states, as far as what they are for needs them.
//!
//! ```text
//! rows that a certified head can decide:    bounds of all their logits; then the logits that matter, -inf elsewhere
//! all other rows, and rows it gives up:     all logits
//! rows of a clustered head:                 the logits of their probed sets, -inf elsewhere
//! rows that nothing reads, of forced tokens too: nothing
//! ```
//!
//! Either way a row of logits comes out, and the route's stages read it. What rows are for, steps,
//! verifications, drafts and scores say by [`RowTasks`].

use std::sync::PoisonError;

use gumball_cpu::{Chosen, Task};
use gumball_head::{Certified, Clustered, Contest, Reading, Spread};
use gumball_spec::{HostMatrix, Kind, Result, memory};
use rayon::prelude::*;

use crate::batch::Batch;
use crate::host::Host;
use crate::lm_head::{Head, HeadBuffers};
use crate::logits::Logits;
use crate::route::Route;

/// The tasks of the rows of a batch.
pub(crate) trait RowTasks: Sync {
    /// Returns which logits of a row something reads.
    fn reading(&self, row: usize) -> Option<Reading>;

    /// Returns the batch, if its rows with forced tokens may be left unread (D2).
    fn batch(&self) -> Option<&Batch<'_>> {
        None
    }

    /// Returns whether a row that something reads is not read by the routes that know the forced tokens' rows
    /// (D2).
    fn is_unread(&self, row: usize) -> bool {
        self.batch().is_some_and(|batch| batch.hook(row).is_none())
            && self.with_task(row, |task| Chosen::unread(task).is_some())
    }

    /// Works with the task of a row; only for rows that something reads.
    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R;
}

impl Host {
    /// Works with the memory of the pool's heads, which is put back even after an error.
    pub(crate) fn with_head_buffers<R>(&mut self, work: impl FnOnce(&Self, &mut HeadBuffers) -> R) -> R {
        let mut buffers = std::mem::take(&mut self.head);
        let result = work(self, &mut buffers);
        self.head = buffers;
        result
    }

    /// Computes the logits of hidden states, as far as the rows' tasks need them, for [`HeadBuffers::rows`].
    pub(crate) fn fill_rows(
        &self,
        head: Head<'_>,
        states: HostMatrix<'_>,
        tasks: &impl RowTasks,
        buffers: &mut HeadBuffers,
    ) -> Result<()> {
        self.choose_rows(head, states, tasks, buffers);
        if let Head::Clustered(clustered) = head {
            return self.probe_rows(clustered, states, buffers);
        }
        let screened = buffers.readings.len();
        if let Head::Certified(certified) = head
            && screened > 0
        {
            memory::reserve(MEMORY, &mut buffers.logits, self.elements(screened)?)?;
            buffers.logits.resize(self.elements(screened)?.max(buffers.logits.len()), 0.0);
            self.settle(certified, states, tasks, buffers)?;
        }

        let HeadBuffers { whole, logits, lines, rows, computed, counts, .. } = buffers;
        lines.clear();
        lines.resize(states.rows(), 0);
        for (line, (row, computed)) in (0..).zip(rows.iter().zip(&*computed)) {
            lines[*row] = line;
            let Some(logits) = computed else { continue };
            counts.certified_rows += 1;
            counts.certified_logits += *logits as u64;
        }
        // The rows that were not screened follow, then the rows that were given up; the lines that these had
        // are not read.
        let given_up = |line: &usize| computed[*line].is_none();
        let others = (0..screened).filter(given_up).chain(screened..rows.len()).map(|line| rows[line]);
        (screened as u32..).zip(others.clone()).for_each(|(line, row)| lines[row] = line);
        whole.fill_rows(states, others);
        counts.whole_rows += whole.rows() as u64;
        counts.weight_reads += u64::from(whole.rows() > 0);
        counts.screen_reads += u64::from(screened > 0);
        // A row that nothing reads names a line, too.
        let held = (screened + whole.rows()).max(1);
        memory::reserve(MEMORY, logits, self.elements(held)?)?;
        logits.resize(self.elements(held)?, 0.0);
        if whole.rows() > 0 {
            let exact = match head {
                Head::Exact(exact) => exact,
                Head::Certified(certified) => certified.exact(),
                _ => unreachable!("a clustered head's rows are computed above, a device's refused"),
            };
            let states = &*whole;
            let place = screened * self.vocab..(screened + states.rows()) * self.vocab;
            self.workers.threads().run(
                &mut logits[place],
                |logits| exact.logits(states, Spread::Rayon, logits),
                |logits| exact.logits(states, Spread::Caller, logits),
            )?;
        }
        Ok(())
    }

    /// Computes the rows that something reads by a clustered head, for any task.
    fn probe_rows(
        &self,
        clustered: &Clustered<'_>,
        states: HostMatrix<'_>,
        buffers: &mut HeadBuffers,
    ) -> Result<()> {
        let HeadBuffers { whole, logits, lines, rows, probes, counts, .. } = buffers;
        lines.clear();
        lines.resize(states.rows(), 0);
        (0..).zip(&*rows).for_each(|(line, row)| lines[*row] = line);
        whole.fill_rows(states, rows.iter().copied());
        // A row that nothing reads names a line, too.
        let held = self.elements(rows.len().max(1))?;
        memory::reserve(MEMORY, logits, held)?;
        logits.resize(held, 0.0);
        if rows.is_empty() {
            return Ok(());
        }
        let states = &*whole;
        let probed = self.workers.threads().run(
            (&mut logits[..], probes),
            |(logits, probes)| clustered.rows(states, Spread::Rayon, probes, logits),
            |(logits, probes)| clustered.rows(states, Spread::Caller, probes, logits),
        )?;
        let count = rows.len() as u64;
        *(if probed.is_whole { &mut counts.whole_rows } else { &mut counts.clustered_rows }) += count;
        counts.clustered_logits += probed.logits as u64;
        counts.weight_reads += u64::from(probed.is_whole);
        counts.centroid_reads += 1;
        Ok(())
    }

    /// Returns how many logits rows have.
    fn elements(&self, rows: usize) -> Result<usize> {
        memory::product(MEMORY, &[rows, self.vocab])
    }

    /// Lists the rows that something reads: first the rows that a certified head may decide, and which tokens
    /// do.
    fn choose_rows(
        &self,
        head: Head<'_>,
        states: HostMatrix<'_>,
        tasks: &impl RowTasks,
        buffers: &mut HeadBuffers,
    ) {
        let HeadBuffers { rows, readings, computed, .. } = buffers;
        rows.clear();
        readings.clear();
        computed.clear();
        // Another route may read what is not decisive: the sum of a whole row's probabilities, for instance.
        let reads_little = [Route::Race, Route::Oracle].contains(self.workers.route());
        let reading_of = |row: usize| tasks.reading(row).filter(|_| !(reads_little && tasks.is_unread(row)));
        if let Head::Certified(certified) = head
            && reads_little
        {
            for row in 0..states.rows() {
                if let Some(reading) = reading_of(row)
                    && certified.is_worth_screening(reading)
                {
                    rows.push(row);
                    readings.push(reading);
                }
            }
            if rows.len() > certified.most_rows() {
                rows.clear();
                readings.clear();
            }
        }
        computed.resize(rows.len(), None);
        let mut screened = 0;
        for row in 0..states.rows() {
            if rows.get(screened) == Some(&row) && screened < readings.len() {
                screened += 1;
            } else if reading_of(row).is_some() {
                rows.push(row);
            }
        }
    }

    /// Bounds the screened rows, and computes the logits that decide them.
    fn settle(
        &self,
        certified: &Certified<'_>,
        states: HostMatrix<'_>,
        tasks: &impl RowTasks,
        buffers: &mut HeadBuffers,
    ) -> Result<()> {
        let HeadBuffers { screened, logits, bounds, rows, readings, computed, idle, .. } = buffers;
        let count = readings.len();
        screened.fill_rows(states, rows[..count].iter().copied());
        let (screened, idle) = (&*screened, &*idle);
        self.workers.threads().run(
            &mut *bounds,
            |bounds| certified.bound(screened, Spread::Rayon, bounds),
            |bounds| certified.bound(screened, Spread::Caller, bounds),
        )?;
        let (bounds, of_states) = bounds.parts_mut();
        let one = |line: usize, bounds: &mut [f32], row: &mut [f32], computed: &mut Option<usize>| {
            let popped = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut contest = popped.map_or_else(|| Contest::new(self.workers.level()), Ok)?;
            let settled = tasks.with_task(rows[line], |task| {
                let place = (screened, line);
                certified.settle(place, bounds, of_states, readings[line], task, &mut contest, row)
            });
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(contest);
            *computed = settled?;
            Ok(())
        };
        let vocab = self.vocab;
        let parts = (bounds, &mut logits[..count * vocab], &mut computed[..count]);
        self.workers.threads().run(
            parts,
            |(bounds, logits, computed)| {
                let rows = bounds.par_chunks_mut(vocab).zip(logits.par_chunks_mut(vocab));
                let rows = rows.zip(computed).enumerate();
                rows.try_for_each(|(line, ((bounds, row), computed))| one(line, bounds, row, computed))
            },
            |(bounds, logits, computed)| {
                let rows = bounds.chunks_mut(vocab).zip(logits.chunks_mut(vocab));
                let mut rows = rows.zip(computed).enumerate();
                rows.try_for_each(|(line, ((bounds, row), computed))| one(line, bounds, row, computed))
            },
        )
    }
}

impl HeadBuffers {
    /// Returns the rows that [`Host::fill_rows`] computed last.
    pub(crate) fn rows(&self, vocab: usize) -> Result<Logits<'_>> {
        let rows = HostMatrix::of_vocab(&self.logits, self.logits.len() / vocab, vocab, vocab)?;
        Logits::of(rows, Kind::Logits).select(&self.lines)
    }
}

/// Names, in errors, the memory of rows of logits.
const MEMORY: &str = "memory for logits";
