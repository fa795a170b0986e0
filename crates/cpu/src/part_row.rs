//! A row whose parts lie in several processes, in the one that draws from it: it puts their responses
//! together.

use std::ops::Range;

use gumball_spec::num::{key_id, key_logit};
use gumball_spec::{Result, Row, Status, TILE};

use crate::filter::Reader;
use crate::float_env::FloatEnv;
use crate::parts::{Moments, Parts, Query, RowSums, Winner};
use crate::shard::{Response, tiles_of};
use crate::task::Task;
use crate::tile::TileSum;
use crate::tiles::View;
use crate::workspace::{Chosen, Late, Workspace};

/// A row whose parts lie in several processes, in the one that draws from it.
#[derive(Debug, Default)]
pub struct PartRow {
    edited: KnownRow,
    /// The row without its edits, if logprobs speak of it.
    raw: Option<KnownRow>,
    status: Status,
}

/// The known facts of a row, with or without its edits.
#[derive(Debug, Default)]
struct KnownRow {
    parts: Parts,
    maxima: Vec<f32>,
    first: f32,
}

impl KnownRow {
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
    /// Begins a row of which nothing is known.
    #[must_use]
    pub fn new(vocab: usize, has_raw: bool) -> Self {
        let raw = has_raw.then(|| KnownRow::new(vocab));
        Self { edited: KnownRow::new(vocab), raw, status: Status::default() }
    }

    /// Begins a row whose filters keep none but these tokens, of which there may be more than they keep. It
    /// needs no query.
    #[must_use]
    pub fn of_list(vocab: usize, keys: impl Iterator<Item = u64>) -> Self {
        let mut row = Self::new(vocab, false);
        let KnownRow { parts, maxima, first } = &mut row.edited;
        keys.for_each(|key| parts.insert(key_id(key), key_logit(key)));
        parts.add_tokens(-f32::MAX);
        parts.maxima(maxima);
        *first = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row
    }

    fn known(&mut self, raw: bool) -> &mut KnownRow {
        match &mut self.raw {
            Some(known) if raw => known,
            _ => &mut self.edited,
        }
    }

    /// Takes in the status of a part.
    pub fn add_status(&mut self, status: Status) {
        self.status.insert(status);
    }

    /// Takes in the maxima of a part's tiles, from a tile on.
    pub fn add_maxima(&mut self, raw: bool, from: usize, maxima: &[f32]) {
        let known = self.known(raw);
        for (tile, maximum) in known.maxima[from..].iter_mut().zip(maxima) {
            *tile = tile.max(*maximum);
            known.first = known.first.max(*maximum);
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

    /// Adds the responses of all parts to a query. Of each part: its ids; whether borders cut its first and
    /// its last tile; its response.
    pub fn add(&mut self, raw: bool, query: &Query, responses: Vec<(Range<usize>, [bool; 2], Response)>) {
        let KnownRow { parts, maxima, first } = self.known(raw);
        let (mut is_all, mut sums, mut shared) = (true, RowSums::default(), Vec::<(usize, TileSum)>::new());
        let (mut moments, mut tokens, mut winner) = (Moments::default(), 0u32, Winner::NONE);
        for (ids, cut, response) in responses {
            match response {
                Response::Tokens(tokens) => {
                    is_all &= ids.is_empty();
                    tokens.iter().for_each(|(z, id)| parts.insert(*id, *z));
                }
                Response::All(logits) => {
                    ids.zip(logits).for_each(|(id, z)| parts.insert(id as u32, z));
                }
                Response::Sums(own, of_cut) => {
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
                Response::Moments(own) => moments = moments.and(own),
                Response::Count(own) => tokens = tokens.saturating_add(own),
                Response::Logits(logits) => {
                    if let Query::Logits { ids: wanted } = query {
                        let own = wanted.iter().zip(logits).filter(|(id, _)| ids.contains(&(**id as usize)));
                        own.for_each(|(id, z)| parts.add_logit(*id, z));
                    }
                }
                Response::Winner(own) => winner = winner.or(own),
            }
        }
        match query {
            Query::Tokens { least, .. } => parts.add_tokens(if is_all { -f32::MAX } else { *least }),
            Query::Sums { scale } => {
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
                parts.add_sums(*scale, *first, sums, &shared);
            }
            Query::Deviations => parts.add_moments(moments),
            Query::Rank { key } => parts.add_rank(*key, tokens),
            Query::Logits { .. } => {}
            Query::Race { .. } => parts.add_winner(winner),
        }
    }
}

impl Workspace {
    /// Chooses the next token of a row, if enough of it is known; or else returns the query to send, and
    /// whether it is about the row without its edits. Then [`Workspace::logprobs`] and [`Workspace::kept`]
    /// speak of no row.
    ///
    /// # Errors
    /// The errors of [`Workspace::new`].
    pub fn conclude(
        &mut self,
        row: &mut PartRow,
        task: &Task<'_>,
    ) -> Result<std::result::Result<Chosen, (bool, Query)>> {
        self.begin()?;
        let _env = FloatEnv::enter();
        self.kept.clear();
        self.filter.mass.visits = 0;
        self.has_logprobs = task.prepared.params().logprobs.is_some();
        let reader = row.edited.reader(self);
        let raw = row.raw.as_ref().map(|known| known.reader(self));
        let late = Late {
            filter: &mut self.filter,
            draw: &mut self.draw,
            kept: self.collects_kept.then_some(&mut self.kept),
            logprobs: &mut self.logprobs,
            hooked: false,
        };
        let chosen = late.finish(&reader, raw.as_ref(), row.status, task);
        self.end();
        if let Some(query) = row.edited.parts.take_query() {
            return Ok(Err((false, query)));
        }
        if let Some(query) = row.raw.as_mut().and_then(|raw| raw.parts.take_query()) {
            return Ok(Err((true, query)));
        }
        Ok(Ok(chosen))
    }
}
