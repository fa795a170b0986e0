//! Steps and verifications whose rows are surveyed where they are. Of drafts each rank has the tokens of all
//! rows, and walks.

use std::sync::{Mutex, PoisonError};

use gumball_cpu::{History, Task, Workspace};
use gumball_dist::{Needs, Plan, Spread, StepKind, SurveyRow, Surveyed, survey_rows};
use gumball_spec::layout::Layout;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::coupled::{row_after, stops};
use gumball_spec::{Error, Kind, Result, SamplingParams};

use super::HostRanks;
use crate::batch::Batch;
use crate::draft::after_path;
use crate::drafts::ReadDrafts;
use crate::logits::Logits;
use crate::outputs::{Outputs, PADDED};
use crate::route::Route;
use crate::score::reads_history;
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::workers::Workers;

impl HostRanks {
    /// Checks that rows can be surveyed: each is logits that no hook changes, on the route of the race, of a
    /// request without adaptive-p that asks for no radius.
    pub(super) fn check_survey(
        &self,
        sequences: &Slots,
        logits: Logits<'_>,
        batch: &Batch<'_>,
    ) -> Result<()> {
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
        if sequences.shape(batch, 0, StepKind::Decode, false)?.needs == Needs::Whole {
            return conflict(
                "params",
                "adaptive-p and a radius are of a whole row, and no rank has one; take gather or swap",
            );
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
        let drawn: Vec<Drawn<'_>> = (0..slots.len())
            .filter(|row| slots[*row] != PADDING)
            .map(|row| {
                let sequence = sequences.admitted(slots[row]);
                let task = sequence.task(logits.kind(), batch.masks.row(row), batch.forced(row));
                Drawn { row, owner: plan.shares.owner(row), task }
            })
            .collect();
        self.survey_rows(&drawn, logits, out)
    }

    /// Computes a verification from this rank's parts: each row draws after its path, and every rank walks
    /// by the tokens of all.
    pub(super) fn survey_drafts(
        &mut self,
        sequences: &Slots,
        plan: &Plan,
        logits: Logits<'_>,
        (batch, drafts): (&Batch<'_>, &ReadDrafts<'_>),
        out: &mut Outputs,
    ) -> Result<()> {
        let greedy = self.host.greedy(sequences, batch.slots, batch.mode)?;
        let requests = || (0..batch.slots.len()).filter(|request| batch.slots[*request] != PADDING);
        let mut rows = Vec::new();
        for request in requests() {
            let (sequence, tree) = (sequences.admitted(batch.slots[request]), drafts.tree(request));
            let paths = (drafts.places(request).start..).zip(self.paths(sequence.params(), &tree));
            rows.extend(paths.filter_map(|(row, path)| Some((request, row, path?))));
        }
        let mut histories: Vec<Option<History>> = rows.iter().map(|_| None).collect();
        let drawn = rows.iter().zip(&mut histories).map(|((request, row, path), history)| {
            let sequence = sequences.admitted(batch.slots[*request]);
            let task = sequence.task(logits.kind(), batch.masks.row(*row), batch.forced(*row));
            let is_read = reads_history(sequence.params());
            let task = after_path(task, greedy[*request].as_ref(), path, (is_read, history));
            Drawn { row: *row, owner: plan.shares.owner(*request), task }
        });
        let drawn: Vec<Drawn<'_>> = drawn.collect();
        let mut of_rows = std::mem::take(&mut self.share);
        let done = self.survey_rows(&drawn, logits, &mut of_rows).and_then(|()| {
            let mut to = out.reshape(of_rows.layout())?;
            (0..drafts.rows()).for_each(|row| to.write_padding(row));
            Ok(())
        });
        let (mut places, mut words) = (vec![PADDED; drafts.rows()], Vec::new());
        if done.is_ok() {
            for request in requests() {
                let params = sequences.admitted(batch.slots[request]).params();
                let (first, tree) = (drafts.places(request).start, drafts.tree(request));
                let (mut to, mut next) = (first, Some(0));
                while let Some(row) = next {
                    words.clear();
                    of_rows.pack(first + row, &mut words);
                    out.unpack(to, &mut &words[..]).expect("rows of one layout");
                    places[to] = (first + row) as u32;
                    to += 1;
                    next = row_after(&tree, params, row, of_rows.tokens()[first + row]);
                }
            }
            out.note_walks(&drafts.starts, places);
        }
        self.share = of_rows;
        done
    }

    /// Returns the drafts on the path to each row of a request; `None` where no walk gets to, after a stop id
    /// or what is no token.
    fn paths(&self, params: &SamplingParams, tree: &DraftTree<'_>) -> Vec<Option<Vec<i32>>> {
        let mut paths = vec![Some(Vec::new())];
        for (node, draft) in tree.drafts.iter().enumerate() {
            let is_token = usize::try_from(*draft).is_ok_and(|id| id < self.host.vocab);
            let goes_on = is_token && !stops(params, *draft);
            let before = paths[tree.row_before(node)].as_ref().filter(|_| goes_on);
            paths.push(before.map(|path: &Vec<i32>| [&path[..], &[*draft]].concat()));
        }
        paths
    }

    /// Draws from rows of which each rank has a part, and exchanges the outputs of the rows that ranks own.
    /// All other rows are padding.
    fn survey_rows(&mut self, drawn: &[Drawn<'_>], logits: Logits<'_>, out: &mut Outputs) -> Result<()> {
        let (own, keeps) = (self.common.group.rank(), out.collects_kept());
        let columns = self.common.planner.split().ids(own).len();
        let widths = self.host.widths;
        let needs_of = |task: &Task<'_>| Needs::of(task.prepared.params(), task.prepared.reading());
        let rows: Vec<SurveyRow<'_>> = drawn
            .iter()
            .map(|Drawn { row, owner, task }| SurveyRow {
                // The padding after its columns is left out.
                part: logits.row(*row).part(0..columns),
                task: *task,
                // A kept set may be long: it is found as in a row that needs its masses.
                needs: if keeps { needs_of(task).max(Needs::Mass) } else { needs_of(task) },
                owner: *owner,
            })
            .collect();
        let owned = |rank: usize| -> Vec<usize> {
            let of_rank = rows.iter().zip(drawn);
            let of_rank = of_rank.filter(|(row, _)| row.needs > Needs::Winner && row.owner == rank);
            of_rank.map(|(_, drawn)| drawn.row).collect()
        };
        let owned: Vec<Vec<usize>> = (0..self.common.group.world()).map(owned).collect();
        self.workspace.collect_kept(keeps);
        let mut to = out.reshape(Layout { rows: logits.rows(), widths })?;
        (0..logits.rows()).for_each(|row| to.write_padding(row));
        let (split, shards) = (self.common.planner.split(), &mut self.shards);
        let stages = (&mut self.workspace, &Spreader { workers: &self.host.workers, idle: &self.idle });
        survey_rows(&mut self.common.group, split, stages, &rows, shards, &mut |row, surveyed| {
            let Surveyed { chosen, logprobs, kept } = surveyed;
            to.write(drawn[row].row, &chosen, logprobs, kept);
        })?;
        if owned.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let mut words = Vec::new();
        owned[own].iter().for_each(|row| out.pack(*row, &mut words));
        self.exchange_rows(&words, out, |rank| owned[rank].clone())
    }
}

/// A row that draws a token: the rank that owns it, and its task.
struct Drawn<'a> {
    row: usize,
    owner: usize,
    task: Task<'a>,
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
