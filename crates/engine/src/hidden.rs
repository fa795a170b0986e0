//! A step from hidden states: a head computes the logits, and the stages go on as in any step.
//!
//! ```text
//! rows that a certified head can decide:    bounds of all their logits; then the logits that matter, -inf elsewhere
//! all other rows, and those it gives up:    all logits
//! ```
//!
//! Either way a row of logits comes out, and the route's stages draw from it.

use std::sync::PoisonError;

use gumball_head::{Certified, Contest, HiddenStates, Spread, WholeRow};
use gumball_spec::{Error, Kind, Result, memory};
use rayon::prelude::*;

use crate::lm_head::{Head, HeadBuffers, HeadCounts};
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Pool, Slot, check_vocab};
use crate::route::{ORACLE, RACE};

impl Pool {
    /// Chooses the next token of each hidden state, and appends it to the sequence in the row's slot.
    ///
    /// What comes out is, bit for bit, what [`Pool::step`] makes of the logits that rules H1 and H2 give, with either kind of head. On
    /// the caller's thread it allocates nothing once `out`, the stages, the histories and the memory for logits have grown; over
    /// threads, rayon's queues may.
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: R hidden states of the head's width. `slots`: R slots, [`PADDING`] for a row without a
    /// sequence, whose hidden state is not read, no other twice. `options`: R of each kind that is given. `out`: R rows of the
    /// pool's widths.
    ///
    /// # Errors
    /// - Those of [`Pool::step`], under the same conditions.
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::Unavailable`] if the system refuses the memory of logits and bounds, 4 to 12 bytes for each id of each row.
    pub fn step_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let head = head.into();
        check_vocab(self.vocab, head.exact().vocab())?;
        head.exact().check_width(states.width())?;
        if slots.len() != states.rows() {
            return Err(Error::length(
                "slots",
                slots.len(),
                format!("one per hidden state, {}", states.rows()),
            ));
        }
        self.check_rows(Kind::Logits, slots, options)?;
        // Taken out while the pool computes; put back whatever comes.
        let mut buffers = std::mem::take(&mut self.head);
        let computed = self.compute_hidden(head, states, slots, options, &mut buffers, out);
        self.head = buffers;
        computed?;
        self.advance(slots, out);
        Ok(())
    }

    /// Returns why a certified head must compute every logit of a request's rows, whatever hidden state they have, or `None` if there is no such
    /// reason. It may do so all the same: for a hidden state that is not finite, where too many tokens could be chosen, or in a step of many rows.
    ///
    /// `hooked`: whether the row has a hook. `with_kept`: whether the outputs collect kept sets.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn needs_whole_row(&self, slot: Slot, hooked: bool, with_kept: bool) -> Result<Option<WholeRow>> {
        let task = self.sequence(slot)?.task(Kind::Logits, None, None);
        if ![RACE, ORACLE].contains(&self.route()) {
            return Ok(Some(WholeRow::Route));
        }
        Ok(Certified::decisive(&task, hooked, with_kept).err())
    }

    /// Returns what the heads of [`Pool::step_hidden`] have done since the pool was made.
    #[must_use]
    pub fn head_counts(&self) -> HeadCounts {
        self.head.counts
    }

    /// Computes what a step from hidden states gives that was checked, and changes no sequence.
    fn compute_hidden(
        &self,
        head: Head<'_>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        buffers: &mut HeadBuffers,
        out: &mut Outputs,
    ) -> Result<()> {
        self.choose_rows(head, states, slots, options, out.collects_kept(), buffers);
        let screened = buffers.decisive.len();
        if let Head::Certified(certified) = head
            && screened > 0
        {
            memory::reserve("memory for logits", &mut buffers.logits, self.elements(screened)?)?;
            buffers.logits.resize(self.elements(screened)?.max(buffers.logits.len()), 0.0);
            self.settle(certified, states, slots, options, buffers)?;
        }

        let HeadBuffers { whole, logits, lines, rows, computed, counts, .. } = buffers;
        lines.clear();
        lines.resize(slots.len(), 0);
        for (line, (row, computed)) in (0..).zip(rows.iter().zip(&*computed)) {
            lines[*row] = line;
            let Some(count) = computed else { continue };
            counts.certified_rows += 1;
            counts.certified_logits += *count as u64;
        }
        // The rows that were not screened follow, and those that were given up; the lines that these had are not read.
        let given_up = |line: &usize| computed[*line].is_none();
        let others = (0..screened).filter(given_up).chain(screened..rows.len()).map(|line| rows[line]);
        (screened as u32..).zip(others.clone()).for_each(|(line, row)| lines[row] = line);
        whole.fill_rows(states, others);
        counts.whole_rows += whole.rows() as u64;
        // Padding names a line, too, though it reads none.
        let held = (screened + whole.rows()).max(1);
        memory::reserve("memory for logits", logits, self.elements(held)?)?;
        logits.resize(self.elements(held)?, 0.0);
        if whole.rows() > 0 {
            let exact = head.exact();
            let states = &*whole;
            let place = screened * self.vocab..(screened + states.rows()) * self.vocab;
            self.workers.threads().run(
                &mut logits[place],
                |logits| exact.logits(states, Spread::Rayon, logits),
                |logits| exact.logits(states, Spread::Caller, logits),
            )?;
        }
        let logits = Logits::new(&*logits, held, self.vocab)?.select(lines)?;
        self.compute(logits, slots, options, out)
    }

    /// Returns how many logits rows have.
    fn elements(&self, rows: usize) -> Result<usize> {
        memory::product("memory for logits", &[rows, self.vocab])
    }

    /// Lists the rows that have a sequence: first those that a certified head may decide, and which tokens do.
    fn choose_rows(
        &self,
        head: Head<'_>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        keep_ids: bool,
        buffers: &mut HeadBuffers,
    ) {
        let HeadBuffers { rows, decisive, computed, .. } = buffers;
        rows.clear();
        decisive.clear();
        computed.clear();
        // Another route may read what is not decisive: the sum of a whole row's probabilities, for instance.
        if let Head::Certified(certified) = head
            && [RACE, ORACLE].contains(&self.route())
        {
            for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
                let sequence = self.slots[*slot as usize].as_ref().expect("checked: admitted");
                let task = sequence.task(Kind::Logits, None, None);
                if let Ok(tokens) = Certified::decisive(&task, options.hook(row).is_some(), keep_ids)
                    && certified.is_worth_screening(tokens)
                    && certified.can_screen(states, row)
                {
                    rows.push(row);
                    decisive.push(tokens);
                }
            }
            if rows.len() > certified.most_rows() {
                rows.clear();
                decisive.clear();
            }
        }
        computed.resize(rows.len(), None);
        let mut screened = 0;
        for (row, slot) in slots.iter().enumerate() {
            if rows.get(screened) == Some(&row) && screened < decisive.len() {
                screened += 1;
            } else if *slot != PADDING {
                rows.push(row);
            }
        }
    }

    /// Bounds the screened rows, and computes the logits that decide them.
    fn settle(
        &self,
        certified: &Certified<'_>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        buffers: &mut HeadBuffers,
    ) -> Result<()> {
        let HeadBuffers { screened, logits, bounds, rows, decisive, computed, idle, .. } = buffers;
        let count = decisive.len();
        screened.fill_rows(states, rows[..count].iter().copied());
        let (screened, idle) = (&*screened, &*idle);
        self.workers.threads().run(
            &mut *bounds,
            |bounds| certified.bound(screened, Spread::Rayon, bounds),
            |bounds| certified.bound(screened, Spread::Caller, bounds),
        )?;
        let one = |line: usize, bounds: &mut [f32], row: &mut [f32], computed: &mut Option<usize>| {
            let place = rows[line];
            let sequence = self.slots[slots[place] as usize].as_ref().expect("checked: admitted");
            let task = sequence.task(Kind::Logits, options.masks.row(place), options.forced(place));
            let popped = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut contest = popped.map_or_else(|| Contest::new(self.level()), Ok)?;
            let settled = certified.settle(screened, line, bounds, decisive[line], &task, &mut contest, row);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(contest);
            *computed = settled?;
            Ok(())
        };
        let vocab = self.vocab;
        let parts = (bounds.rows_mut(), &mut logits[..count * vocab], &mut computed[..count]);
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
