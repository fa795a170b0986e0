//! A verification over ranks: the rows of a request's drafts stay on one rank.

use gumball_dist::{LogitsLayout, Plan, What, bytes_of, words_of};
use gumball_spec::layout::Layout;
use gumball_spec::{NONE, Result};

use super::step::logits_of;
use super::{DistPool, corrupt, refuse_survey};
use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::pool::Slot;
use crate::verify::{Drafts, PADDED, Verification, VerifyMode};

impl DistPool {
    /// Verifies the drafts of each request, and appends the emitted tokens to its sequence, on all ranks: what comes out is what
    /// [`Pool::verify`](crate::Pool::verify) gives for the whole logits, bit for bit.
    ///
    /// # Shapes and units
    /// `slots`, `drafts`, `options`: as [`Pool::verify`](crate::Pool::verify) takes them, the same on all ranks. `logits`: the rows
    /// that it takes, in the shape that [`DistPool::step`] takes; a request's rows stay together. `out`: the whole batch, on every rank.
    ///
    /// # Errors
    /// - Those of [`Pool::verify`](crate::Pool::verify) and [`DistPool::step`].
    /// - [`Error::Conflict`](gumball_spec::Error::Conflict) under `Survey`, which no verification takes.
    #[expect(clippy::too_many_arguments, reason = "a plan, and what a verification takes")]
    pub fn verify(
        &mut self,
        plan: &Plan,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        drafts.check(slots.len(), self.pool.vocab(), mode)?;
        let starts = drafts.starts();
        self.check_plan(plan, logits, &starts)?;
        refuse_survey(plan)?;
        options.check(starts[slots.len()], self.pool.vocab())?;
        self.pool.check_requests(logits.kind(), slots, drafts, &starts, mode.judgement(), options)?;
        let counts = drafts.counts.iter().map(|count| u64::from(*count));
        let ids = drafts.ids.iter().chain(drafts.parents.unwrap_or(&[])).map(|id| *id as u64);
        let drafted = (&mode.words()[..], counts.chain(ids));
        self.begin(plan, logits, slots, (options, starts[slots.len()]), drafted);
        let rows = |rank: usize| -> Vec<usize> {
            plan.shares.of(rank).flat_map(|request| starts[request]..starts[request + 1]).collect()
        };
        match plan.layout {
            LogitsLayout::Gather => {
                let all: Vec<usize> = (0..starts[slots.len()]).collect();
                let whole = self.whole_rows(logits, &vec![all; self.group.world()])?;
                let whole = logits_of(&whole, starts[slots.len()], self.pool.vocab(), logits)?;
                self.pool.judge(whole, slots, drafts, mode, options, out)?;
            }
            LogitsLayout::Swap => {
                let shares: Vec<Vec<usize>> = (0..self.group.world()).map(rows).collect();
                let whole = self.whole_rows(logits, &shares)?;
                let own = &shares[self.group.rank()];
                let whole = logits_of(&whole, own.len(), self.pool.vocab(), logits)?;
                self.verify_share(plan, whole, own, slots, drafts, mode, options, out)?;
            }
            LogitsLayout::Replicated => {
                let own = rows(self.group.rank());
                self.verify_share(plan, logits, &own, slots, drafts, mode, options, out)?;
            }
            LogitsLayout::Survey => unreachable!("checked"),
        }
        self.pool.append(slots, out);
        self.planner.count(plan);
        Ok(())
    }

    /// Verifies this rank's share of the requests, whose rows are given, and exchanges what comes out.
    #[expect(clippy::too_many_arguments, reason = "what a verification takes, and a share of it")]
    fn verify_share(
        &mut self,
        plan: &Plan,
        logits: Logits<'_>,
        rows: &[usize],
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        let (starts, vocab) = (drafts.starts(), self.pool.vocab());
        let own: Vec<usize> = plan.shares.of(self.group.rank()).collect();
        let own_slots: Vec<Slot> = own.iter().map(|request| slots[*request]).collect();
        let counts: Vec<u32> = own.iter().map(|request| drafts.counts[*request]).collect();
        let trees = own.iter().map(|request| drafts.tree(starts[*request]..starts[request + 1], *request));
        let trees: Vec<_> = trees.collect();
        let ids: Vec<i32> = trees.iter().flat_map(|tree| tree.drafts).copied().collect();
        let parents: Vec<i32> = trees.iter().flat_map(|tree| tree.parents.unwrap_or(&[])).copied().collect();
        let row_probs = |probs: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|row| &probs[row * vocab..][..vocab]).copied().collect()
        };
        let probs = drafts.probs.map(row_probs);
        let share = Drafts {
            counts: &counts,
            ids: &ids,
            parents: drafts.parents.map(|_| &parents[..]),
            probs: probs.as_deref(),
        };
        let picked = options.pick(rows);
        let verified = if out.outputs.collects_kept() { &mut self.kept_verified } else { &mut self.verified };
        self.pool.judge(logits, &own_slots, &share, mode, &picked.options(), verified)?;

        let mut words = Vec::new();
        for request in 0..own.len() {
            let places = verified.starts[request]..verified.starts[request + 1];
            for row in places.clone() {
                verified.outputs.pack(row, &mut words);
                let from = verified.rows[row];
                words.push(if from == PADDED { PADDED } else { from - places.start as u32 });
            }
        }
        let most_words = 1 + verified.outputs.most_packed(vocab);
        let rows_of = |rank| plan.shares.of(rank).map(|request| starts[request + 1] - starts[request]);
        let most_bytes = |rank| size_of::<u32>() * most_words * rows_of(rank).sum::<usize>();
        let messages = self.group.all_gather(What::Outputs, &bytes_of(&words), most_bytes)?;
        (out.starts, out.accepted, out.rows) = Default::default();
        out.outputs.whole(Layout { rows: starts[slots.len()], widths: self.pool.widths })?;
        out.rows.resize(starts[slots.len()], PADDED);
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            let mut rest = &words[..];
            for request in plan.shares.of(rank) {
                let places = starts[request]..starts[request + 1];
                for row in places.clone() {
                    let unpacked = out.outputs.unpack(row, &mut rest);
                    let from = rest.split_off_first().copied();
                    let (Some(()), Some(from)) = (unpacked, from) else {
                        return Err(corrupt(&mut self.group, rank));
                    };
                    let is_row = from == PADDED || (from as usize) < places.len();
                    // A padded row emits nothing.
                    let is_padded = from == PADDED && out.outputs.tokens()[row] != NONE;
                    if !is_row || is_padded || !self.is_outcome(&out.outputs, row) {
                        return Err(corrupt(&mut self.group, rank));
                    }
                    out.rows[row] = if from == PADDED { PADDED } else { from + places.start as u32 };
                }
            }
            if !rest.is_empty() {
                return Err(corrupt(&mut self.group, rank));
            }
        }
        out.starts = starts;
        Ok(())
    }
}
