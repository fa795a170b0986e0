//! Drafts and scores over ranks. Each rank draws all drafts from rows that are gathered, and scores a share
//! of the known tokens.

use gumball_dist::{LogitsLayout, Ownership, Plan, Shares, StepShape};
use gumball_spec::Result;
use gumball_spec::layout::Layout;

use super::alike::{For, add_scored};
use super::step::logits_of;
use super::{HostRanks, gathered};
use crate::batch::Batch;
use crate::draft::Proposals;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::score::{Scored, Scoring};
use crate::slots::Slots;

impl HostRanks {
    /// Draws drafts after paths, from rows of which this rank has a part.
    pub(super) fn draft(
        &mut self,
        sequences: &Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        let (logits, batch, count) = (rows.of_rank(batch)?, &gathered(batch)?, batch.slots.len());
        let plan = &self.gather_plan(logits, count)?;
        let (batch, split) = &self.host.check_draft(sequences, logits.kind(), batch, paths)?;
        let greedy = self.host.greedy(sequences, batch.slots, batch.mode)?;
        out.reshape(count, self.host.vocab)?;
        let work = For::Drafts(batch.mode, out.siblings());
        let mut digest = self.begin(sequences, plan, logits, batch, work);
        self.common.alike.add_ids(&mut digest, paths.iter().copied());
        self.common.group.begin(digest);
        let all: Vec<usize> = (0..count).collect();
        let whole = self.whole_rows(logits, &vec![all; self.common.group.world()])?;
        let rows = logits_of(&whole, count, self.host.vocab, logits)?;
        self.host.propose(sequences, rows, batch, (split, &greedy), out)?;
        self.whole = whole;
        Ok(())
    }

    /// Scores known tokens, from rows of which this rank has a part.
    pub(super) fn score(
        &mut self,
        sequences: &Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (logits, batch) = (rows.of_rank(batch)?, &gathered(batch)?);
        let (count, world, vocab) = (logits.rows(), self.common.group.world(), self.host.vocab);
        scored.params.check_kind(logits.kind())?;
        scored.refuse_chunks()?;
        let scoring = Scoring::new(scored, count, vocab, batch)?;
        let plan = &self.gather_plan(logits, count)?;
        out.reserve(Layout { rows: count, widths: scoring.widths() })?;
        let mut digest = self.begin(sequences, plan, logits, &scoring.batch, For::Scores);
        add_scored(&mut digest, scored);
        self.common.group.begin(digest);

        // Neighbours are scored by one rank, which builds a history once for them.
        let shares = Shares::new(Ownership::Blocks, count, world);
        let shares: Vec<Vec<usize>> = (0..world).map(|rank| shares.of(rank).collect()).collect();
        let whole = self.whole_rows(logits, &shares)?;
        let own = &shares[self.common.group.rank()];
        let own_rows = logits_of(&whole, own.len(), vocab, logits)?;
        let rows = out.reshape(Layout { rows: count, widths: scoring.widths() })?;
        let (_, rest) = rows.split_at(own.first().copied().unwrap_or(0));
        self.host.score_rows(&scoring, own_rows, rest.split_at(own.len()).0)?;
        self.whole = whole;
        let mut words = Vec::new();
        own.iter().for_each(|row| out.pack(*row, &mut words));
        self.exchange_rows(&words, out, |rank| shares[rank].clone())
    }
    /// Plans that `count` rows are gathered, and checks this rank's part of them.
    fn gather_plan(&self, logits: Logits<'_>, count: usize) -> Result<Plan> {
        let shape = StepShape { requests: count, ..StepShape::default() };
        let plan = self.common.planner.plan_as(LogitsLayout::Gather, &shape);
        self.check_plan(&plan, logits, &(0..=count).collect::<Vec<_>>())?;
        Ok(plan)
    }
}
