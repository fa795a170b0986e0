//! A step whose rows are surveyed where they are.

use std::sync::{Mutex, PoisonError};

use gumball_cpu::Workspace;
use gumball_dist::{Needs, Plan, Spread, SurveyRow, Surveyed, survey_rows};
use gumball_spec::layout::Layout;
use gumball_spec::{Error, Kind, Result};

use super::HostRanks;
use crate::batch::Batch;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::route::Route;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::workers::Workers;

impl HostRanks {
    /// Checks that rows can be surveyed: each is logits that no hook changes, on the route of the race.
    pub(super) fn check_survey(&self, logits: Logits<'_>, batch: &Batch<'_>) -> Result<()> {
        let conflict = |other, reason| Err(Error::Conflict { parameter: "layout", other, reason });
        if batch.hooks.iter().any(Option::is_some) {
            return conflict("hooks", "a hook sees a whole row, and no rank has one; take gather or swap");
        }
        if logits.kind() == Kind::Probabilities {
            return conflict("probabilities", "only logits are surveyed where they are; take gather or swap");
        }
        if *self.host.workers.route() != Route::Race {
            return conflict("route", "only the route race surveys rows where they are; take gather or swap");
        }
        Ok(())
    }

    /// Computes a step from this rank's parts, and exchanges what comes out of the rows that ranks own.
    pub(super) fn survey(
        &mut self,
        sequences: &Slots,
        plan: &Plan,
        logits: Logits<'_>,
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let slots = batch.slots;
        let (own, keeps) = (self.common.group.rank(), out.collects_kept());
        let columns = self.common.planner.split().ids(own).len();
        let drawn: Vec<usize> = (0..slots.len()).filter(|row| slots[*row] != PADDING).collect();
        let (vocab, widths) = (self.host.vocab, self.host.widths);
        let rows: Vec<SurveyRow<'_>> = drawn
            .iter()
            .map(|row| {
                let sequence = sequences.admitted(slots[*row]);
                let needs = Needs::of(sequence.params(), vocab);
                SurveyRow {
                    // The padding after its columns is left out.
                    part: logits.row(*row).part(0..columns),
                    task: sequence.task(logits.kind(), batch.masks.row(*row), batch.forced(*row)),
                    // A kept set may be long: it is found as in a row that needs its masses.
                    needs: if keeps { needs.max(Needs::Mass) } else { needs },
                    owner: plan.shares.owner(*row),
                }
            })
            .collect();
        let owned = |rank: usize| -> Vec<usize> {
            let of_rank = rows.iter().zip(&drawn);
            let of_rank = of_rank.filter(|(row, _)| row.needs > Needs::Winner && row.owner == rank);
            of_rank.map(|(_, row)| *row).collect()
        };
        let owned: Vec<Vec<usize>> = (0..self.common.group.world()).map(owned).collect();
        self.workspace.keep_ids(keeps);
        let mut to = out.reshape(Layout { rows: slots.len(), widths })?;
        (0..slots.len()).filter(|row| slots[*row] == PADDING).for_each(|row| to.write_padding(row));
        let (split, shards) = (self.common.planner.split(), &mut self.shards);
        let stages = (&mut self.workspace, &Spreader { workers: &self.host.workers, idle: &self.idle });
        survey_rows(&mut self.common.group, split, stages, &rows, shards, &mut |row, surveyed| {
            let Surveyed { chosen, logprobs, kept } = surveyed;
            to.write(drawn[row], &chosen, logprobs, kept);
        })?;
        if owned.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let mut words = Vec::new();
        owned[own].iter().for_each(|row| out.pack(*row, &mut words));
        self.exchange_rows(&words, out, |rank| owned[rank].clone())
    }
}

/// The threads of a pool, each with stages of its own while it needs them.
struct Spreader<'a> {
    workers: &'a Workers,
    idle: &'a Mutex<Vec<Workspace>>,
}

impl Spread for Spreader<'_> {
    fn each<T: Send>(
        &self,
        mut items: Vec<T>,
        work: impl Fn(&mut T, &mut Workspace) -> Result<()> + Sync,
    ) -> Result<Vec<T>> {
        let one = |item: &mut T| {
            let popped = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut stages = popped.map_or_else(|| Workspace::new(self.workers.level()), Ok)?;
            let result = work(item, &mut stages);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(stages);
            result
        };
        self.workers.spread(&mut items, one)?;
        Ok(items)
    }
}
