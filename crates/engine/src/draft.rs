//! Drafting: tokens of a draft model, drawn as the request would draw its own (rule S8).
//!
//! Nothing of a sequence changes. The rows of a call follow paths of drafts, each for itself, so that a chain
//! takes a call for each draft, and a tree one for each level.

use gumball_cpu::{History, Prepared, Task};
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::coupled::{check_drafts, check_marked};
use gumball_spec::verify::draft::{DraftWords, check_path};
use gumball_spec::{Error, Kind, NONE, Result, SamplingParams, memory};

use crate::batch::{Batch, Checked};
use crate::host::Host;
use crate::logits::Logits;
use crate::rows::{Rows, Source};
use crate::slot::PADDING;
use crate::slots::Slots;
use crate::stages::Stages;
use crate::verify_mode::VerifyMode;

/// The drafts of a draft model, in memory that is used again from call to call.
#[derive(Clone, Debug)]
pub struct Proposals {
    siblings: usize,
    vocab: usize,
    ids: Vec<i32>,
    probs: Option<Vec<f32>>,
}

impl Proposals {
    /// Makes an empty one for `siblings` drafts of each row: 1 for chains, at most 64, as many as a
    /// verification takes of a request.
    #[must_use]
    pub fn new(siblings: usize) -> Self {
        Self { siblings, vocab: 0, ids: Vec::new(), probs: None }
    }

    /// Makes an empty one that collects the probabilities that drafts are drawn from as well; see
    /// [`Proposals::row_probs`].
    #[must_use]
    pub fn with_probs(siblings: usize) -> Self {
        Self { probs: Some(Vec::new()), ..Self::new(siblings) }
    }

    /// Returns the drafts of all rows, as many for each, [`NONE`] where there are no more.
    #[must_use]
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Returns the drafts after a row: the likeliest to be drawn first.
    #[must_use]
    pub fn row(&self, row: usize) -> &[i32] {
        &self.ids[row * self.siblings..][..self.siblings]
    }

    /// Returns the probabilities that the drafts of all rows were drawn from, a row of the vocabulary for
    /// each; empty unless made by [`Proposals::with_probs`].
    #[must_use]
    pub fn probs(&self) -> &[f32] {
        self.probs.as_deref().unwrap_or_default()
    }

    /// Returns the probabilities of one row, for [`Drafts::probs`](crate::Drafts::probs).
    #[must_use]
    pub fn row_probs(&self, row: usize) -> &[f32] {
        self.probs.as_ref().map_or(&[], |probs| &probs[row * self.vocab..][..self.vocab])
    }

    /// Returns how many drafts a row has.
    pub(crate) fn siblings(&self) -> usize {
        self.siblings
    }

    /// Returns whether probabilities are collected.
    pub(crate) fn has_probs(&self) -> bool {
        self.probs.is_some()
    }

    /// Returns the drafts of all rows, to be written.
    pub(crate) fn ids_mut(&mut self) -> &mut [i32] {
        &mut self.ids
    }

    /// Returns the probabilities of a row, to be written.
    pub(crate) fn row_probs_mut(&mut self, row: usize) -> &mut [f32] {
        let vocab = self.vocab;
        self.probs.as_mut().map_or(&mut [], |probs| &mut probs[row * vocab..][..vocab])
    }

    pub(crate) fn reshape(&mut self, rows: usize, vocab: usize) -> Result<()> {
        let probs = self.probs.as_mut().map(|probs| (probs, rows.saturating_mul(vocab)));
        if self.siblings > MAX_DRAFTS {
            return Err(Error::out_of_range("siblings", self.siblings, format!("in 0..={MAX_DRAFTS}")));
        }
        let ids = rows.saturating_mul(self.siblings);
        memory::reserve(MEMORY, &mut self.ids, ids)?;
        self.ids.clear();
        self.ids.resize(ids, NONE);
        if let Some((probs, len)) = probs {
            memory::reserve(MEMORY, probs, len)?;
            probs.clear();
            probs.resize(len, 0.0);
        }
        self.vocab = vocab;
        Ok(())
    }
}

const MEMORY: &str = "memory for drafts";

/// A row to be drafted from, with its places in the proposals.
struct Place<'a> {
    row: usize,
    path: &'a [i32],
    ids: &'a mut [i32],
    probs: &'a mut [f32],
}

impl Host {
    /// Draws drafts from rows of logits or of hidden states.
    pub fn draft(
        &mut self,
        slots: &Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        let source = rows.read(batch, self.vocab)?;
        rows.check_slots(batch)?;
        let (batch, paths) = &self.check_draft(slots, rows.kind(), batch, paths)?;
        let greedy = self.greedy(slots, batch.slots, batch.mode)?;
        match source {
            Source::Given(logits) => self.propose(slots, logits, batch, (paths, &greedy), out),
            Source::Hidden(head, states) => {
                self.propose_hidden(slots, head, states, batch, (paths, &greedy), out)
            }
        }
    }

    /// Draws drafts: after `paths`, by the parameters in `greedy` where there are
    /// some.
    pub(crate) fn propose(
        &self,
        sequences: &Slots,
        logits: Logits<'_>,
        batch: &Checked<'_>,
        (paths, greedy): (&[&[i32]], &[Option<Prepared>]),
        out: &mut Proposals,
    ) -> Result<()> {
        let (slots, vocab) = (batch.slots, self.vocab);
        out.reshape(slots.len(), vocab)?;
        let siblings = out.siblings;
        let mut ids = &mut out.ids[..];
        let mut probs = out.probs.as_deref_mut().unwrap_or_default();
        let rows = paths.iter().enumerate().map(|(row, path)| Place {
            row,
            path,
            ids: ids.split_off_mut(..siblings).expect("reshaped"),
            probs: probs.split_off_mut(..vocab).unwrap_or_default(),
        });
        let rows = rows.filter(|place| slots[place.row] != PADDING).collect();
        self.workers.each(rows, |place: &mut Place<'_>, stages| {
            let Place { row, path, ids, probs } = place;
            let sequence = sequences.sequence(slots[*row])?;
            let task = sequence.task(logits.kind(), batch.masks.row(*row), batch.forced(*row));
            let mut extended = None;
            // A route of the caller's own may read the history, even if no parameter does.
            let task = after_path(task, greedy[*row].as_ref(), path, (true, &mut extended));
            let words = match batch.mode {
                VerifyMode::Block => DraftWords::Block { depth: path.len() as u32 },
                _ => DraftWords::Position,
            };
            draw(logits, *row, &task, batch, words, (ids, probs), stages)
        })
    }

    /// Checks rows to be drafted from, as far as their logits do not matter, and returns the path of each.
    pub(crate) fn check_draft<'a, 'b>(
        &self,
        slots: &Slots,
        kind: Kind,
        batch: &Batch<'a>,
        paths: &'b [i32],
    ) -> Result<(Checked<'a>, Vec<&'b [i32]>)> {
        let batch = batch.check(batch.slots.len(), self.vocab)?;
        let paths = split_paths(paths, &batch, self.vocab)?;
        for (row, slot) in batch.slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            check_drawn(slots.sequence(*slot)?.params(), batch.mode)?;
            slots.check_row(*slot, kind, batch.hook(row).is_some())?;
        }
        Ok((batch, paths))
    }
}

/// Checks that a request may have drafts that are drawn for this mode.
pub(crate) fn check_drawn(params: &SamplingParams, mode: VerifyMode) -> Result<()> {
    check_drafts(params, 1)?;
    if mode == VerifyMode::Block { check_marked(params, 1) } else { Ok(()) }
}

/// Returns the task of a row after a path of drafts: with the parameters in `prepared` if there are some,
/// and, if anything reads its history, with the longer one that `extended` is set to.
pub(crate) fn after_path<'a>(
    task: Task<'a>,
    prepared: Option<&'a Prepared>,
    path: &[i32],
    (is_read, extended): (bool, &'a mut Option<History>),
) -> Task<'a> {
    *extended = (is_read && !path.is_empty()).then(|| {
        let mut history = task.history.clone();
        path.iter().for_each(|id| history.push(*id as u32));
        history
    });
    let prepared = prepared.unwrap_or(task.prepared);
    let position = task.position.wrapping_add(path.len() as u32);
    Task { prepared, history: extended.as_ref().unwrap_or(task.history), position, ..task }
}

/// Draws the drafts of a row, and writes the probabilities that they are drawn from where there is a place
/// for them.
fn draw(
    logits: Logits<'_>,
    row: usize,
    task: &Task<'_>,
    batch: &Batch<'_>,
    words: DraftWords,
    (ids, probs): (&mut [i32], &mut [f32]),
    stages: &mut dyn Stages,
) -> Result<()> {
    let (z, hook) = (logits.row(row), batch.hook(row));
    let mut edit = |z: &mut [f32]| hook.into_iter().for_each(|hook| hook(z));
    stages.draft(z, task, if hook.is_some() { Some(&mut edit) } else { None }, words, ids)?;
    if !probs.is_empty() {
        stages.probabilities(z, task, if hook.is_some() { Some(&mut edit) } else { None }, probs)?;
    }
    Ok(())
}

/// Returns the path in front of each row.
pub(crate) fn split_paths<'a>(ids: &'a [i32], batch: &Batch<'_>, vocab: usize) -> Result<Vec<&'a [i32]>> {
    let (rows, counts) = (batch.slots.len(), batch.counts);
    if !counts.is_empty() && counts.len() != rows {
        let allowed = format!("one per row, {rows}, or 0");
        return Err(Error::length("counts", counts.len(), allowed));
    }
    let (mut rest, mut total) = (ids, 0);
    let mut paths = Vec::with_capacity(rows);
    for row in 0..rows {
        let count = counts.get(row).map_or(0, |count| *count as usize);
        check_path(count)?;
        total += count;
        paths.push(rest.split_off(..count).unwrap_or_default());
    }
    if ids.len() != total {
        return Err(Error::length("paths", ids.len(), format!("{total}, the sum of the counts")));
    }
    let inside = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < vocab);
    match ids.iter().find(|id| !inside(id)) {
        Some(id) => Err(Error::out_of_range("paths", id, format!("an id in 0..{vocab}"))),
        None => Ok(paths),
    }
}
