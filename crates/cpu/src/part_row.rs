//! A row of which others hold parts, at the one who draws from it: answers are put together here.

use std::ops::Range;

use gumball_spec::num::{key_id, key_logit};
use gumball_spec::{Result, Row, Status, TILE};

use crate::filter::Reader;
use crate::float_env::FloatEnv;
use crate::mass::TileSum;
use crate::parts::{Moments, Parts, Question, RowSums, Winner};
use crate::shard::{Answer, tiles_of};
use crate::task::Task;
use crate::tiles::View;
use crate::workspace::{Chosen, Late, Workspace};

/// A row of which others hold parts, at the one who draws from it.
#[derive(Debug, Default)]
pub struct PartRow {
    edited: Told,
    /// The row without its edits, if logprobs speak of it.
    raw: Option<Told>,
    status: Status,
}

/// What was told of one of them.
#[derive(Debug, Default)]
struct Told {
    parts: Parts,
    maxima: Vec<f32>,
    first: f32,
}

impl Told {
    fn new(vocab: usize) -> Self {
        let mut parts = Parts::default();
        parts.clear(vocab);
        Self { parts, maxima: vec![f32::NEG_INFINITY; vocab.div_ceil(TILE)], first: f32::NEG_INFINITY }
    }

    fn reader(&self, workspace: &Workspace) -> Reader<'_> {
        let view = View { parts: Some(&self.parts), ..View::raw(Default::default(), Row::F32(&[])) };
        let (level, list_limit) = (workspace.level, workspace.list_limit);
        Reader { level, view, maxima: &self.maxima, first: self.first, list_limit, start: 0 }
    }
}

impl PartRow {
    /// Begins a row of which nothing was told.
    #[must_use]
    pub fn new(vocab: usize, has_raw: bool) -> Self {
        let raw = has_raw.then(|| Told::new(vocab));
        Self { edited: Told::new(vocab), raw, status: Status::default() }
    }

    /// Begins a row whose filters keep none but these tokens, of which there may be more than they keep. Nothing will be asked.
    #[must_use]
    pub fn of_list(vocab: usize, keys: impl Iterator<Item = u64>) -> Self {
        let mut row = Self::new(vocab, false);
        let Told { parts, maxima, first } = &mut row.edited;
        keys.for_each(|key| parts.insert(key_id(key), key_logit(key)));
        parts.tell_tokens(-f32::MAX);
        parts.maxima(maxima);
        *first = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row
    }

    fn told(&mut self, raw: bool) -> &mut Told {
        match &mut self.raw {
            Some(told) if raw => told,
            _ => &mut self.edited,
        }
    }

    /// Takes in the status of a part.
    pub fn tell_status(&mut self, status: Status) {
        self.status.insert(status);
    }

    /// Takes in the maxima of a part's tiles, from a tile on.
    pub fn tell_maxima(&mut self, raw: bool, from: usize, maxima: &[f32]) {
        let told = self.told(raw);
        for (tile, maximum) in told.maxima[from..].iter_mut().zip(maxima) {
            *tile = tile.max(*maximum);
            told.first = told.first.max(*maximum);
        }
    }

    /// Returns the maximum of a tile in the whole row.
    #[must_use]
    pub fn maximum(&self, raw: bool, tile: usize) -> f32 {
        let raw = self.raw.as_ref().filter(|_| raw);
        raw.unwrap_or(&self.edited).maxima[tile]
    }

    /// Returns the largest logit of the whole row.
    #[must_use]
    pub fn first(&self, raw: bool) -> f32 {
        self.raw.as_ref().filter(|_| raw).unwrap_or(&self.edited).first
    }

    /// Takes in all answers to a question, one for each part: with the ids of the part, and the tiles of its answer that others
    /// share, its first and its last.
    pub fn tell(&mut self, raw: bool, question: &Question, answers: Vec<(Range<usize>, [bool; 2], Answer)>) {
        let Told { parts, maxima, first } = self.told(raw);
        let (mut is_all, mut sums, mut shared) = (true, RowSums::default(), Vec::<(usize, TileSum)>::new());
        let (mut moments, mut tokens, mut winner) = (Moments::default(), 0u32, Winner::NONE);
        for (ids, cut, answer) in answers {
            match answer {
                Answer::Tokens(tokens) => {
                    is_all &= ids.is_empty();
                    tokens.iter().for_each(|(z, id)| parts.insert(*id, *z));
                }
                Answer::All(logits) => {
                    ids.zip(logits).for_each(|(id, z)| parts.insert(id as u32, z));
                }
                Answer::Sums(own, of_cut) => {
                    sums.mass = sums.mass.saturating_add(own.mass);
                    sums.distances = sums.distances.wrapping_add(own.distances);
                    sums.count = sums.count.saturating_add(own.count);
                    let tiles = tiles_of(&ids);
                    for (end, tile) in [tiles.start, tiles.end.saturating_sub(1)].into_iter().enumerate() {
                        if cut[end] {
                            shared.push((tile, of_cut[end]));
                        }
                    }
                }
                Answer::Moments(own) => moments = moments.and(own),
                Answer::Count(own) => tokens = tokens.saturating_add(own),
                Answer::Logits(logits) => {
                    if let Question::Logits { ids: asked } = question {
                        let own = asked.iter().zip(logits).filter(|(id, _)| ids.contains(&(**id as usize)));
                        own.for_each(|(id, z)| parts.tell_logit(*id, z));
                    }
                }
                Answer::Winner(own) => winner = winner.or(own),
            }
        }
        match question {
            Question::Tokens { least, .. } => parts.tell_tokens(if is_all { -f32::MAX } else { *least }),
            Question::Sums { scale } => {
                shared.sort_unstable_by_key(|(tile, _)| *tile);
                let sums_of = |of: &[(usize, TileSum)]| {
                    let add = |sum: TileSum, (_, part): &(usize, TileSum)| TileSum {
                        q: sum.q.saturating_add(part.q),
                        r: sum.r.wrapping_add(part.r),
                        count: sum.count.wrapping_add(part.count),
                    };
                    (maxima[of[0].0], of.iter().fold(TileSum::default(), add))
                };
                let shared: Vec<_> = shared.chunk_by(|a, b| a.0 == b.0).map(sums_of).collect();
                parts.tell_sums(*scale, *first, sums, &shared);
            }
            Question::Deviations => parts.tell_moments(moments),
            Question::Rank { key } => parts.tell_rank(*key, tokens),
            Question::Logits { .. } => {}
            Question::Race { .. } => parts.tell_winner(winner),
        }
    }
}

impl Workspace {
    /// Chooses the next token of a row of which others hold parts, if enough was told; or else returns what is to be asked, and
    /// whether of the row without its edits. Then [`Workspace::logprobs`] and [`Workspace::kept`] speak of no row.
    ///
    /// # Errors
    /// Those of [`Workspace::new`].
    pub fn conclude(
        &mut self,
        row: &mut PartRow,
        task: &Task<'_>,
    ) -> Result<std::result::Result<Chosen, (bool, Question)>> {
        self.begin()?;
        let _env = FloatEnv::enter();
        self.kept.clear();
        self.filter.mass.visits = 0;
        self.has_logprobs = task.prepared.params().logprobs.is_some();
        let reader = row.edited.reader(self);
        let raw = row.raw.as_ref().map(|told| told.reader(self));
        let late = Late {
            filter: &mut self.filter,
            draw: &mut self.draw,
            kept: self.keep_ids.then_some(&mut self.kept),
            logprobs: &mut self.logprobs,
        };
        let chosen = late.finish(&reader, raw.as_ref(), row.status, task);
        self.end();
        if let Some(question) = row.edited.parts.take_question() {
            return Ok(Err((false, question)));
        }
        if let Some(question) = row.raw.as_mut().and_then(|raw| raw.parts.take_question()) {
            return Ok(Err((true, question)));
        }
        Ok(Ok(chosen))
    }
}
