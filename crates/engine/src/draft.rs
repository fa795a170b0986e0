//! Drafting: tokens of a draft model, drawn as the request would draw its own (rule S8).
//!
//! Nothing of a sequence changes. The rows of a call stand behind paths of drafts, each for itself, so that a chain takes a call
//! for each draft, and a tree one for each level.

use std::ops::Range;

use gumball_cpu::Task;
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::verify::draft::{DraftWords, check_path};
use gumball_spec::{Error, Kind, NONE, Result, memory};

use crate::logits::Logits;
use crate::options::BatchOptions;
use crate::pool::{PADDING, Pool, Slot, check_vocab};
use crate::route::Stages;
use crate::verify::VerifyMode;

/// The drafts that each row of a draft model stands behind, those of one row after those of another; `default()` is for rows that
/// all stand behind the histories.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paths<'a> {
    /// For each row the number of drafts between the end of the history and the row, in 0..64; empty: none for any row.
    pub counts: &'a [u32],
    /// These drafts, in turn: ids of the vocabulary.
    pub ids: &'a [i32],
}

/// What a draft model proposes, in memory that is used again from call to call.
#[derive(Clone, Debug)]
pub struct Proposals {
    siblings: usize,
    vocab: usize,
    ids: Vec<i32>,
    probs: Option<Vec<f32>>,
}

impl Proposals {
    /// Makes an empty one for `siblings` drafts of each row: 1 for chains, at most 64, as many as a verification takes of a request.
    #[must_use]
    pub fn new(siblings: usize) -> Self {
        Self { siblings, vocab: 0, ids: Vec::new(), probs: None }
    }

    /// Makes an empty one that collects the probabilities that drafts are drawn from as well; see [`Proposals::row_probs`].
    #[must_use]
    pub fn with_probs(siblings: usize) -> Self {
        Self { probs: Some(Vec::new()), ..Self::new(siblings) }
    }

    /// Returns the drafts of all rows, as many for each, [`NONE`] where there are no more.
    #[must_use]
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// Returns the drafts behind a row: the likeliest to be drawn first.
    #[must_use]
    pub fn row(&self, row: usize) -> &[i32] {
        &self.ids[row * self.siblings..][..self.siblings]
    }

    /// Returns the probabilities that the drafts of all rows were drawn from, a row of the vocabulary for each; empty unless made by
    /// [`Proposals::with_probs`].
    #[must_use]
    pub fn probs(&self) -> &[f32] {
        self.probs.as_deref().unwrap_or_default()
    }

    /// Returns those of one row, for [`Drafts::probs`](crate::Drafts::probs).
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
    #[cfg(feature = "cuda")]
    pub(crate) fn ids_mut(&mut self) -> &mut [i32] {
        &mut self.ids
    }

    /// Returns the probabilities of a row, to be written.
    #[cfg(feature = "cuda")]
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

impl Pool {
    /// Draws drafts from the rows of a draft model, for the requests in `slots`, and changes no sequence.
    ///
    /// A row stands behind the history of its sequence and a path of drafts. Its drafts are the first tokens that arrive in the
    /// request's race over the row, with all its parameters and with the path as output. The first is the token that the
    /// request would draw there if the row were the target's; the others, siblings of a tree, are the runners-up. `mode` is
    /// that which [`Pool::verify`] will judge the drafts by: the same random words draw drafts and tokens where that is sound,
    /// and drafts of a [`VerifyMode::Block`] get words of their own.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(4))?;
    /// let slot = pool.admit(SamplingParams { seed: Some(5), ..Default::default() }, &[0])?;
    /// let (mode, options) = (VerifyMode::Coupled, BatchOptions::default());
    /// // The draft model agrees with the target, so both drafts are what the target draws.
    /// let row = [0.0f32, 1.0, 2.0, 3.0];
    /// let (mut path, mut next) = (Vec::new(), Proposals::new(1));
    /// for _ in 0..2 {
    ///     let paths = Paths { counts: &[path.len() as u32], ids: &path };
    ///     pool.draft(Logits::new(&row, 1, 4)?, &[slot], &paths, mode, &options, &mut next)?;
    ///     path.extend(next.row(0));
    /// }
    /// let drafts = Drafts { counts: &[2], ids: &path, ..Drafts::default() };
    /// let (rows, mut out) = ([row; 3].concat(), Verification::new());
    /// pool.verify(Logits::new(&rows, 3, 4)?, &[slot], &drafts, mode, &options, &mut out)?;
    /// assert_eq!(out.accepted(), [2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `logits`: R rows of the pool's vocabulary. `slots`: R slots, [`PADDING`] for a row without a sequence, which gets
    /// [`NONE`]s; a slot may stand there several times. `options`: each list in it is empty or has R elements; a forced token is the
    /// only draft of its row.
    ///
    /// # Errors
    /// - [`Error::Length`] if a shape is not so.
    /// - [`Error::OutOfRange`] for a vacant slot, a path of 64 drafts or more, an id of a path outside the vocabulary, and more than
    ///   64 siblings.
    /// - [`Error::Conflict`] for a request with mirostat, which has no drafts.
    /// - [`Error::Unavailable`] if the pool's route cannot draw siblings, drafts of blocks or probabilities; or if the system
    ///   refuses the memory.
    /// - For rows of probabilities those of [`SamplingParams::validate_for`](crate::SamplingParams::validate_for), and
    ///   [`Error::Conflict`] if a row has a hook.
    pub fn draft(
        &self,
        logits: Logits<'_>,
        slots: &[Slot],
        paths: &Paths<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Proposals,
    ) -> Result<()> {
        let vocab = self.vocab;
        check_vocab(vocab, logits.vocab())?;
        if slots.len() != logits.rows() {
            return Err(Error::length("slots", slots.len(), format!("one per row, {}", logits.rows())));
        }
        let places = self.check_draft(logits.kind(), slots, paths, options)?;
        let greedy = self.greedy(slots, mode)?;

        out.reshape(slots.len(), vocab)?;
        let siblings = out.siblings;
        let mut ids = &mut out.ids[..];
        let mut probs = out.probs.as_deref_mut().unwrap_or_default();
        let rows = places.into_iter().enumerate().map(|(row, path)| Place {
            row,
            path: &paths.ids[path],
            ids: ids.split_off_mut(..siblings).expect("reshaped"),
            probs: probs.split_off_mut(..vocab).unwrap_or_default(),
        });
        let rows = rows.filter(|place| slots[place.row] != PADDING).collect();
        self.workers.each(rows, |place: &mut Place<'_>, stages| {
            let Place { row, path, ids, probs } = place;
            let sequence = self.sequence(slots[*row])?;
            let task = sequence.task(logits.kind(), options.masks.row(*row), options.forced(*row));
            let extended = (!path.is_empty()).then(|| {
                let mut history = task.history.clone();
                path.iter().for_each(|id| history.push(*id as u32));
                history
            });
            let task = Task {
                prepared: greedy[*row].as_ref().unwrap_or(task.prepared),
                history: extended.as_ref().unwrap_or(task.history),
                position: task.position.wrapping_add(path.len() as u32),
                ..task
            };
            let words = match mode {
                VerifyMode::Block => DraftWords::Block { depth: path.len() as u32 },
                _ => DraftWords::Position,
            };
            draw(logits, *row, &task, options, words, (ids, probs), stages)
        })
    }
}

impl Pool {
    /// Checks rows to be drafted from, as far as their logits do not matter, and returns where the path of each lies.
    pub(crate) fn check_draft(
        &self,
        kind: Kind,
        slots: &[Slot],
        paths: &Paths<'_>,
        options: &BatchOptions<'_>,
    ) -> Result<Vec<Range<usize>>> {
        options.check(slots.len(), self.vocab)?;
        let places = paths.places(slots.len(), self.vocab)?;
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            check_drafts(self.sequence(*slot)?.params(), 1)?;
            self.check_row(*slot, kind, options.hook(row).is_some())?;
        }
        Ok(places)
    }
}

/// Draws the drafts of a row, and writes the probabilities that they are drawn from where there is a place for them.
fn draw(
    logits: Logits<'_>,
    row: usize,
    task: &Task<'_>,
    options: &BatchOptions<'_>,
    words: DraftWords,
    (ids, probs): (&mut [i32], &mut [f32]),
    stages: &mut dyn Stages,
) -> Result<()> {
    let (z, hook) = (logits.row(row), options.hook(row));
    let mut edit = |z: &mut [f32]| hook.into_iter().for_each(|hook| hook(z));
    stages.draft(z, task, if hook.is_some() { Some(&mut edit) } else { None }, words, ids)?;
    if !probs.is_empty() {
        stages.probabilities(z, task, if hook.is_some() { Some(&mut edit) } else { None }, probs)?;
    }
    Ok(())
}

impl Paths<'_> {
    /// Returns where the path of each row lies in `ids`.
    pub(crate) fn places(&self, rows: usize, vocab: usize) -> Result<Vec<Range<usize>>> {
        if !self.counts.is_empty() && self.counts.len() != rows {
            let allowed = format!("one per row, {rows}, or 0");
            return Err(Error::length("paths.counts", self.counts.len(), allowed));
        }
        let mut end = 0;
        let mut places = Vec::with_capacity(rows);
        for row in 0..rows {
            let count = self.counts.get(row).map_or(0, |count| *count as usize);
            check_path(count)?;
            places.push(end..end + count);
            end += count;
        }
        if self.ids.len() != end {
            return Err(Error::length("paths.ids", self.ids.len(), format!("{end}, the sum of the counts")));
        }
        let inside = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < vocab);
        match self.ids.iter().find(|id| !inside(id)) {
            Some(id) => Err(Error::out_of_range("paths.ids", id, format!("an id in 0..{vocab}"))),
            None => Ok(places),
        }
    }
}
