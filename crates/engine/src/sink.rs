//! Rows to be written: outputs split into blocks of rows, so that threads can fill them at the same time.

use std::ops::Range;

use gumball_cpu::{Chosen, Task};
use gumball_spec::logprobs::Logprobs;
use gumball_spec::{NONE, Result, Row, Status};

use crate::batch::RowHook;
use crate::stages::Stages;
use gumball_spec::layout::Widths;

/// A block of consecutive rows, to be written by one thread.
#[derive(Debug)]
pub(crate) struct RowsMut<'a> {
    pub(crate) first: usize,
    pub(crate) widths: Widths,
    pub(crate) tokens: &'a mut [i32],
    pub(crate) statuses: &'a mut [u32],
    pub(crate) logprobs: &'a mut [f32],
    pub(crate) ranks: &'a mut [u32],
    pub(crate) temperatures: &'a mut [f32],
    pub(crate) mirostat_mu: &'a mut [f32],
    pub(crate) second_logprobs: &'a mut [f32],
    pub(crate) top_ids: &'a mut [i32],
    pub(crate) top_logprobs: &'a mut [f32],
    pub(crate) id_logprobs: &'a mut [f32],
    pub(crate) id_ranks: &'a mut [u32],
    pub(crate) kept: &'a mut [Vec<u32>],
}

impl RowsMut<'_> {
    /// Returns the rows of the block, as places in the batch.
    pub(crate) fn range(&self) -> Range<usize> {
        self.first..self.first + self.tokens.len()
    }

    /// Splits off the first `len` rows.
    pub(crate) fn split_at(self, len: usize) -> (Self, Self) {
        let Widths { top_n, ids } = self.widths;
        let (tokens, tokens_b) = self.tokens.split_at_mut(len);
        let (statuses, statuses_b) = self.statuses.split_at_mut(len);
        let (logprobs, logprobs_b) = self.logprobs.split_at_mut(len);
        let (ranks, ranks_b) = self.ranks.split_at_mut(len);
        let (temperatures, temperatures_b) = self.temperatures.split_at_mut(len);
        let (mirostat_mu, mirostat_mu_b) = self.mirostat_mu.split_at_mut(len);
        let (second_logprobs, second_logprobs_b) = self.second_logprobs.split_at_mut(len);
        let (top_ids, top_ids_b) = self.top_ids.split_at_mut(len * top_n);
        let (top_logprobs, top_logprobs_b) = self.top_logprobs.split_at_mut(len * top_n);
        let (id_logprobs, id_logprobs_b) = self.id_logprobs.split_at_mut(len * ids);
        let (id_ranks, id_ranks_b) = self.id_ranks.split_at_mut(len * ids);
        let (kept, kept_b) = self.kept.split_at_mut(len.min(self.kept.len()));
        let a = Self {
            first: self.first,
            widths: self.widths,
            tokens,
            statuses,
            logprobs,
            ranks,
            temperatures,
            mirostat_mu,
            second_logprobs,
            top_ids,
            top_logprobs,
            id_logprobs,
            id_ranks,
            kept,
        };
        let b = Self {
            first: self.first + len,
            widths: self.widths,
            tokens: tokens_b,
            statuses: statuses_b,
            logprobs: logprobs_b,
            ranks: ranks_b,
            temperatures: temperatures_b,
            mirostat_mu: mirostat_mu_b,
            second_logprobs: second_logprobs_b,
            top_ids: top_ids_b,
            top_logprobs: top_logprobs_b,
            id_logprobs: id_logprobs_b,
            id_ranks: id_ranks_b,
            kept: kept_b,
        };
        (a, b)
    }

    /// Writes a row that has nothing to say.
    pub(crate) fn write_padding(&mut self, row: usize) {
        let nothing = Chosen { token: NONE, status: Status::default(), mu: 0.0, temperature: 0.0 };
        self.write(row, &nothing, None, &[]);
    }

    /// Carries a row through the stages, writes what comes out to row `to`, which must be in the block, and
    /// returns the token.
    pub(crate) fn carry(
        &mut self,
        logits: Row<'_>,
        to: usize,
        task: &Task<'_>,
        hook: Option<RowHook<'_>>,
        stages: &mut dyn Stages,
    ) -> Result<i32> {
        stages.collect_kept(!self.kept.is_empty());
        let chosen = match hook {
            Some(hook) => stages.sample(logits, task, Some(&mut |z: &mut [f32]| hook(z))),
            None => stages.sample(logits, task, None),
        }?;
        self.write(to, &chosen, stages.logprobs(), stages.kept());
        Ok(chosen.token)
    }

    /// Writes what came out of a row.
    pub(crate) fn write(&mut self, row: usize, chosen: &Chosen, logprobs: Option<&Logprobs>, kept: &[u32]) {
        if let Some(ids) = self.kept.get_mut(row - self.first) {
            // Ascending, as they come from a device.
            ids.extend_from_slice(kept);
            ids.sort_unstable();
        }
        let (row, Widths { top_n, ids }) = (row - self.first, self.widths);
        self.tokens[row] = chosen.token;
        self.statuses[row] = chosen.status.0;
        self.temperatures[row] = chosen.temperature;
        self.mirostat_mu[row] = chosen.mu;
        let (logprob, rank) =
            logprobs.map_or((f32::NEG_INFINITY, 0), |logprobs| (logprobs.token.logprob, logprobs.token.rank));
        (self.logprobs[row], self.ranks[row]) = (logprob, rank);
        self.second_logprobs[row] = logprobs.map_or(f32::NEG_INFINITY, |logprobs| logprobs.second);

        let top = logprobs.map_or(&[][..], |logprobs| &logprobs.top);
        for place in 0..top_n {
            let (id, logprob) =
                top.get(place).map_or((NONE, f32::NEG_INFINITY), |member| (member.id, member.logprob));
            self.top_ids[row * top_n + place] = id;
            self.top_logprobs[row * top_n + place] = logprob;
        }
        let given = logprobs.map_or(&[][..], |logprobs| &logprobs.ids);
        for place in 0..ids {
            let (logprob, rank) =
                given.get(place).map_or((f32::NEG_INFINITY, 0), |member| (member.logprob, member.rank));
            self.id_logprobs[row * ids + place] = logprob;
            self.id_ranks[row * ids + place] = rank;
        }
    }
}
