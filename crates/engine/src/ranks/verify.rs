//! A verification over ranks: the rows of a request's drafts stay on one rank, unless they are surveyed.

use gumball_dist::{LogitsLayout, Plan, What, bytes_of, words_of};
use gumball_spec::layout::Layout;
use gumball_spec::{NONE, Result};

use super::alike::For;
use super::step::logits_of;
use super::{HostRanks, corrupt, refuse_survey};
use crate::batch::{Batch, Checked};
use crate::drafts::{Drafted, Drafts, ReadDrafts, starts};
use crate::logits::Logits;
use crate::outputs::{Outputs, PADDED};
use crate::rows::Rows;
use crate::slots::Slots;

impl HostRanks {
    /// Checks a verification, whose rows are this rank's part, and takes it if there are outputs for it; a
    /// request's rows stay together.
    pub(super) fn verify(
        &mut self,
        sequences: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: Option<&mut Outputs>,
    ) -> Result<()> {
        let logits = rows.of_rank(batch)?;
        let drafts = &drafts.read(&Drafted::of(batch), self.host.vocab)?;
        let most = batch.counts.iter().copied().max().unwrap_or(0) as usize;
        let kind = batch.mode.step_kind();
        let plan = &self.common.planned(sequences, batch, most, kind, false)?;
        self.check_plan(plan, logits, &drafts.starts)?;
        refuse_survey(plan, batch.mode)?;
        if plan.layout == LogitsLayout::Survey {
            self.check_survey(sequences, logits, batch)?;
        }
        let batch = &self.host.check_requests(sequences, logits.kind(), batch, drafts)?;
        let Some(out) = out else { return Ok(()) };
        let work = For::Verify(batch.mode);
        let mut digest = self.begin(sequences, plan, logits, batch, work);
        self.common.alike.add_drafts(&mut digest, drafts, self.host.vocab);
        self.common.group.begin(digest);
        let rows = |rank: usize| -> Vec<usize> {
            plan.shares.of(rank).flat_map(|request| drafts.places(request)).collect()
        };
        match plan.layout {
            LogitsLayout::Gather => {
                let all: Vec<usize> = (0..drafts.rows()).collect();
                let whole = self.whole_rows(logits, &vec![all; self.common.group.world()])?;
                let rows = logits_of(&whole, drafts.rows(), self.host.vocab, logits)?;
                self.host.judge(sequences, rows, batch, drafts, out)?;
                self.whole = whole;
            }
            LogitsLayout::Swap => {
                let shares: Vec<Vec<usize>> = (0..self.common.group.world()).map(rows).collect();
                let whole = self.whole_rows(logits, &shares)?;
                let own = &shares[self.common.group.rank()];
                let rows = logits_of(&whole, own.len(), self.host.vocab, logits)?;
                self.verify_share(sequences, plan, rows, own, (batch, drafts), out)?;
                self.whole = whole;
            }
            LogitsLayout::Replicated => {
                let own = rows(self.common.group.rank());
                self.verify_share(sequences, plan, logits, &own, (batch, drafts), out)?;
            }
            LogitsLayout::Survey => self.survey_drafts(sequences, plan, logits, (batch, drafts), out)?,
        }
        sequences.append(batch.slots, out);
        self.common.planner.count(plan);
        Ok(())
    }

    /// Verifies this rank's share of the requests, whose rows are given, and exchanges what comes out.
    fn verify_share(
        &mut self,
        sequences: &Slots,
        plan: &Plan,
        logits: Logits<'_>,
        rows: &[usize],
        (batch, drafts): (&Checked<'_>, &ReadDrafts<'_>),
        out: &mut Outputs,
    ) -> Result<()> {
        let vocab = self.host.vocab;
        let own: Vec<usize> = plan.shares.of(self.common.group.rank()).collect();
        let picked = batch.pick(&own, rows);
        let own_batch = &picked.batch();
        let trees: Vec<_> = own.iter().map(|request| drafts.tree(*request)).collect();
        let ids: Vec<i32> = trees.iter().flat_map(|tree| tree.drafts).copied().collect();
        let parents = trees.iter().flat_map(|tree| tree.parents.unwrap_or(&[])).copied();
        let row_probs = |probs: &[f32]| -> Vec<f32> {
            rows.iter().flat_map(|row| &probs[row * vocab..][..vocab]).copied().collect()
        };
        let probs = drafts.probs.map(row_probs);
        let share = ReadDrafts {
            ids: &ids,
            parents: drafts.parents.as_ref().map(|_| parents.collect()),
            probs: probs.as_deref(),
            starts: starts(own_batch.counts),
        };
        self.host.judge(sequences, logits, own_batch, &share, &mut self.share)?;

        let mut words = Vec::new();
        for request in 0..own.len() {
            let places = share.places(request);
            for row in places.clone() {
                self.share.pack(row, &mut words);
                let from = self.share.row_of_logits(row);
                words.push(if from == PADDED { PADDED } else { from - places.start as u32 });
            }
        }
        let most_words = 1 + self.share.most_packed(vocab);
        let rows_of = |rank| plan.shares.of(rank).map(|request| drafts.places(request).len());
        let most_bytes = |rank| size_of::<u32>() * most_words * rows_of(rank).sum::<usize>();
        let messages = self.common.group.all_gather(What::Outputs, &bytes_of(&words), most_bytes)?;
        out.whole(Layout { rows: drafts.rows(), widths: self.host.widths })?;
        let mut rows = vec![PADDED; drafts.rows()];
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            let mut rest = &words[..];
            for request in plan.shares.of(rank) {
                let places = drafts.places(request);
                for row in places.clone() {
                    let unpacked = out.unpack(row, &mut rest);
                    let from = rest.split_off_first().copied();
                    let (Some(()), Some(from)) = (unpacked, from) else {
                        return Err(corrupt(&mut self.common.group, rank));
                    };
                    let is_row = from == PADDED || (from as usize) < places.len();
                    // A padded row emits nothing.
                    let is_padded = from == PADDED && out.tokens()[row] != NONE;
                    if !is_row || is_padded || !self.is_outcome(out, row) {
                        return Err(corrupt(&mut self.common.group, rank));
                    }
                    rows[row] = if from == PADDED { PADDED } else { from + places.start as u32 };
                }
            }
            if !rest.is_empty() {
                return Err(corrupt(&mut self.common.group, rank));
            }
        }
        out.note_walks(&drafts.starts, rows);
        Ok(())
    }
}
