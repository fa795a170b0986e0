//! A step from hidden states: a head computes the logits, and the stages go on as in any step.

use gumball_head::{Exact, HiddenStates, Spread};
use gumball_spec::{Error, Kind, Result, memory};

use crate::lm_head::{Head, HeadBuffers};
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::outputs::Outputs;
use crate::pool::{PADDING, Pool, Slot, check_vocab};

impl Pool {
    /// Chooses the next token of each hidden state, and appends it to the sequence in the row's slot.
    ///
    /// What comes out is, bit for bit, what [`Pool::step`] makes of the logits that rules H1 and H2 give. On the caller's thread it
    /// allocates nothing once `out`, the stages, the histories and the memory for logits have grown; over threads, rayon's queues
    /// may.
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: R hidden states of the head's width. `slots`: R slots, [`PADDING`] for a row without a
    /// sequence, whose hidden state is not read, no other twice. `options`: R of each kind that is given. `out`: R rows of the
    /// pool's widths.
    ///
    /// # Errors
    /// - Those of [`Pool::step`], under the same conditions.
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::Unavailable`] if the system refuses the memory of the logits, 4 bytes for each id of each row.
    pub fn step_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let head = head.into();
        let exact = head.exact();
        check_vocab(self.vocab, exact.vocab())?;
        exact.check_width(states.width())?;
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
        let computed = self.compute_hidden(exact, states, slots, options, &mut buffers, out);
        self.head = buffers;
        computed?;
        self.advance(slots, out);
        Ok(())
    }

    /// Computes what a step from hidden states gives that was checked, and changes no sequence.
    fn compute_hidden(
        &self,
        exact: &Exact<'_>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        buffers: &mut HeadBuffers,
        out: &mut Outputs,
    ) -> Result<()> {
        let HeadBuffers { states: widened, logits, lines } = buffers;
        lines.clear();
        let mut count = 0;
        for slot in slots {
            lines.push(if *slot == PADDING { 0 } else { count });
            count += u32::from(*slot != PADDING);
        }
        let rows = slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING).map(|(row, _)| row);
        widened.fill_rows(states, rows);
        // Padding names a line, too, though it reads none.
        let held = memory::product("memory for logits", &[widened.rows().max(1), self.vocab])?;
        memory::reserve("memory for logits", logits, held)?;
        logits.resize(held, 0.0);
        if count > 0 {
            let states = &*widened;
            let spread = |logits: &mut [f32]| exact.logits(states, Spread::Rayon, logits);
            let alone = |logits: &mut [f32]| exact.logits(states, Spread::Caller, logits);
            self.workers.threads().run(&mut logits[..], spread, alone)?;
        }
        let logits = Logits::new(&*logits, widened.rows().max(1), self.vocab)?.select(lines)?;
        self.compute(logits, slots, options, out)
    }
}
