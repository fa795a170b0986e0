//! A shard: the part of a row that lies here. It is edited and surveyed in place, and responds to queries
//! about the row.
//!
//! Its places begin at a whole tile. Where its ids begin inside one, the ids before are none of its tokens,
//! and the tile is shared with the parts before it (S1).

use std::ops::Range;

use gumball_spec::edit::Hook;
use gumball_spec::num::{key_id, key_logit};
use gumball_spec::survey::Measure;
use gumball_spec::{LogprobMode, Result, Row, SamplingParams, Status, TILE};

use crate::cut::Cut;
use crate::edit::Edits;
use crate::filter::{Given, Reader, filter};
use crate::float_env::FloatEnv;
use crate::logprobs::count;
use crate::parts::{Moments, Query, RowSums, Winner, cut_from, key_from};
use crate::survey::{Survey, survey};
use crate::task::Task;
use crate::tile::TileSum;
use crate::tiles::View;
use crate::workspace::Workspace;

/// The part of a row that lies here, edited and surveyed.
#[derive(Debug, Default)]
pub struct Shard {
    edits: Edits,
    /// The ids, in the row.
    ids: Range<usize>,
    /// The part from the start of a tile on, if it does not lie so.
    aligned: Vec<f32>,
    edited: Surveyed,
    /// Of the part without its edits, if logprobs speak of it.
    raw: Option<Surveyed>,
    status: Status,
}

#[derive(Debug, Default)]
struct Surveyed {
    maxima: Vec<f32>,
    first: f32,
    odd: bool,
}

/// The facts that a query about a row brings from the row's owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct About {
    /// Whether it is about the row without its edits.
    pub raw: bool,
    /// The largest logit of the whole row.
    pub first: f32,
    /// For sums: the maxima of the part's first and last tile in the whole row, where others have a part of
    /// these.
    pub cut_maxima: [Option<f32>; 2],
}

/// The response of a part to a [`Query`].
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// Tokens, by their logits and ids.
    Tokens(Vec<(f32, u32)>),
    /// The logits of all ids of the part, where the tokens of the query would take more bytes.
    All(Vec<f32>),
    /// Sums of the tiles that lie in this part alone; of its first and last tile, where others have a part of
    /// these, their own.
    Sums(RowSums, [TileSum; 2]),
    /// Moments.
    Moments(Moments),
    /// A number of tokens.
    Count(u32),
    /// Logits of the query's ids; -inf for ids that do not lie here.
    Logits(Vec<f32>),
    /// Who won the race.
    Winner(Winner),
}

impl Shard {
    /// Returns the status of the part, except for `EMPTY`.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the largest logit of the part after its edits; -inf if it has no token.
    #[must_use]
    pub fn first(&self) -> f32 {
        self.edited.first
    }

    /// Returns the tiles that the part has places in.
    #[must_use]
    pub fn tiles(&self) -> Range<usize> {
        tiles_of(&self.ids)
    }

    /// Returns the maxima of these tiles, as far as they lie here; -inf where there is no token.
    #[must_use]
    pub fn maxima(&self) -> &[f32] {
        &self.edited.maxima
    }

    /// Returns the tile maxima of the part without its edits, if logprobs speak of it.
    #[must_use]
    pub fn raw_maxima(&self) -> Option<&[f32]> {
        self.raw.as_ref().map(|raw| &raw.maxima[..])
    }

    fn start(&self) -> usize {
        self.ids.start / TILE * TILE
    }

    /// Returns the part as it came, from the start of a tile on.
    fn placed<'a>(&'a self, part: Row<'a>) -> Row<'a> {
        if self.ids.start.is_multiple_of(TILE) { part } else { Row::F32(&self.aligned) }
    }

    fn reader<'a>(&'a self, workspace: &Workspace, part: Row<'a>, raw: bool) -> Reader<'a> {
        let placed = self.placed(part);
        let (view, of) = match &self.raw {
            Some(of) if raw => (View::raw(Default::default(), placed), of),
            _ => (self.edits.view(placed), &self.edited),
        };
        Reader {
            level: workspace.level,
            view: View { odd: of.odd, ..view },
            maxima: &of.maxima,
            first: of.first,
            list_limit: workspace.list_limit,
            start: self.start() as u32,
        }
    }
}

/// Returns the tiles that ids lie in.
pub(crate) fn tiles_of(ids: &Range<usize>) -> Range<usize> {
    if ids.is_empty() { 0..0 } else { ids.start / TILE..ids.end.div_ceil(TILE) }
}

/// Returns whether a task may change the row that logprobs of the mode `raw` speak of.
#[must_use]
pub fn has_raw_row(task: &Task<'_>) -> bool {
    let params = task.prepared.params();
    let is_raw = params.logprobs.as_ref().is_some_and(|logprobs| logprobs.mode.contains(LogprobMode::Raw));
    is_raw && (task.mask.is_some() || task.prepared.is_edited())
}

impl Workspace {
    /// Edits and surveys the part of a row that lies here: `part` are the logits of `ids`, and the task is
    /// that of the whole row.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] if there is not one logit for each id.
    pub fn open_shard(
        &mut self,
        part: Row<'_>,
        ids: Range<usize>,
        task: &Task<'_>,
        shard: &mut Shard,
    ) -> Result<()> {
        if part.vocab() != ids.len() {
            let allowed = format!("{} ids of this part", ids.len());
            return Err(gumball_spec::Error::length("logits", part.vocab(), allowed));
        }
        let _env = FloatEnv::enter();
        // Where a part of nothing lies does not matter.
        shard.ids = if ids.is_empty() { 0..0 } else { ids };
        shard.aligned.clear();
        let before = shard.ids.start % TILE;
        if before > 0 {
            shard.aligned.resize(before, f32::NEG_INFINITY);
            shard.aligned.extend((0..part.vocab()).map(|place| part.logit(place)));
        }
        let start = shard.start();
        let Shard { edits, aligned, edited, raw, status, .. } = shard;
        let placed = if before > 0 { Row::F32(aligned) } else { part };
        edits.edit_from(self.level, placed, task, None::<Hook<'_>>, start);
        let view = edits.view(placed);
        let Survey { first, odd } = survey(self.level, &view, &mut edited.maxima);
        (edited.first, edited.odd) = (first, odd);
        *status = edits.status(placed, odd);
        *raw = has_raw_row(task).then(|| {
            let mut maxima = Vec::new();
            let Survey { first, odd } = survey(self.level, &View::raw(task.kind, placed), &mut maxima);
            Surveyed { maxima, first, odd }
        });
        Ok(())
    }

    /// Returns the token of the part that wins the row's race, or in a greedy row its first, with 0 for a
    /// score: for requests without filters or with min-p alone. `first` is the largest logit of the whole
    /// row.
    pub fn winner(&mut self, part: Row<'_>, shard: &Shard, task: &Task<'_>, first: f32) -> Winner {
        if shard.first() == f32::NEG_INFINITY {
            return Winner::NONE;
        }
        let _env = FloatEnv::enter();
        let temperature = task.prepared.params().temperature;
        let reader = shard.reader(self, part, false);
        if SamplingParams::is_greedy(temperature) {
            let key = key_from(reader.first_key(), reader.start);
            return Winner { score: 0.0, id: key_id(key), logit: key_logit(key) };
        }
        let kept = filter(&Reader { first, ..reader }, &mut self.filter, task, temperature);
        let measure = Measure::new(task.kind, temperature);
        crate::draw::winner(&reader, &mut self.draw, &kept, measure, task.stream())
    }

    /// Appends the first `k` tokens of the part, or all it has, by their keys in the row.
    pub fn list_shard(&mut self, part: Row<'_>, shard: &Shard, k: usize, keys: &mut Vec<u64>) {
        if shard.first() == f32::NEG_INFINITY {
            return;
        }
        let _env = FloatEnv::enter();
        let reader = shard.reader(self, part, false);
        let top = Given::whole(&reader).take(&reader, &mut self.filter, k);
        let listed = top.keys(&reader, &mut self.filter);
        keys.extend(listed.iter().take(k).map(|key| key_from(*key, reader.start)));
    }

    /// Responds to a query about the part.
    pub fn respond(
        &mut self,
        part: Row<'_>,
        shard: &Shard,
        task: &Task<'_>,
        query: &Query,
        about: About,
    ) -> Response {
        let About { raw, first, cut_maxima } = about;
        let _env = FloatEnv::enter();
        let reader = shard.reader(self, part, raw);
        let (start, ids) = (reader.start, &shard.ids);
        let is_empty = reader.first == f32::NEG_INFINITY || ids.is_empty();
        match query {
            Query::Tokens { least, known } => {
                let list = &mut self.filter.list;
                list.clear();
                if !is_empty {
                    let first = match known.is_finite() {
                        true => gumball_spec::num::key(*known, 0) | 0xFFFF_FFFF,
                        false => u64::MAX,
                    };
                    let all = Cut::all(reader.view.kind).at_least(*least);
                    reader.gather(Cut { first, ..all }, usize::MAX, list);
                    list.keys.retain(|key| key_logit(*key) < *known);
                }
                // A token is two words.
                if list.keys.len() * 2 > ids.len() {
                    let places = ids.start - start as usize..ids.end - start as usize;
                    return Response::All(places.map(|place| reader.view.logit(place) + 0.0).collect());
                }
                let token = |key: &u64| (key_logit(*key), key_id(*key) + start);
                Response::Tokens(list.keys.iter().map(token).collect())
            }
            Query::Sums { .. } | Query::Deviations | Query::Rank { .. } if is_empty => match query {
                Query::Sums { .. } => Response::Sums(RowSums::default(), Default::default()),
                Query::Deviations => Response::Moments(Moments::default()),
                _ => Response::Count(0),
            },
            Query::Sums { scale } => {
                let (sums, cut) = self.sums(&reader, *scale, first, cut_maxima);
                Response::Sums(sums, cut)
            }
            Query::Deviations => {
                let all = Cut::all(reader.view.kind);
                Response::Moments(crate::filter::moments(&reader, all, first))
            }
            Query::Rank { key } => {
                let earlier = cut_from(Cut { first: u64::MAX, last: *key }, start);
                Response::Count(if earlier.is_empty() { 0 } else { count(&reader, earlier) })
            }
            Query::Logits { ids: wanted } => {
                let logit = |id: &u32| match ids.contains(&(*id as usize)) {
                    true => reader.view.logit((id - start) as usize) + 0.0,
                    false => f32::NEG_INFINITY,
                };
                Response::Logits(wanted.iter().map(logit).collect())
            }
            Query::Race { first_key, last_key, first, scale } => {
                let cut = cut_from(Cut { first: *first_key, last: *last_key }, start);
                if is_empty || cut.is_empty() {
                    return Response::Winner(Winner::NONE);
                }
                let kept = Given { cut, first: *first, prefix: false, listed: None };
                let measure = Measure::Logits { s: *scale };
                Response::Winner(crate::draw::winner(&reader, &mut self.draw, &kept, measure, task.stream()))
            }
        }
    }

    /// Sums the whole part, by the maxima of whole tiles.
    fn sums(
        &mut self,
        reader: &Reader<'_>,
        scale: f32,
        first: f32,
        cut_maxima: [Option<f32>; 2],
    ) -> (RowSums, [TileSum; 2]) {
        let mut maxima = reader.maxima.to_vec();
        let ends = [0, maxima.len() - 1];
        for (tile, maximum) in ends.iter().zip(cut_maxima) {
            // A tile without a token here has no part of the sum.
            if let Some(maximum) = maximum.filter(|_| maxima[*tile] > f32::NEG_INFINITY) {
                maxima[*tile] = maximum;
            }
        }
        let (mass, measure) = (&mut self.filter.mass, Measure::Logits { s: scale });
        let all = Cut::all(reader.view.kind);
        mass.give(reader.level, &reader.view, &maxima, all, first, true, measure);
        let count = mass.weigh_with_entropy(reader.level, &reader.view, all).0.count as u64;
        let mut cut = [TileSum::default(); 2];
        for (end, sum) in cut.iter_mut().enumerate() {
            // One tile may be both ends.
            if cut_maxima[end].is_some() && !(end == 1 && ends[0] == ends[1] && cut_maxima[0].is_some()) {
                *sum = std::mem::take(&mut mass.sums[ends[end]]);
            }
        }
        let (mass, distances) = (mass.total().mass, mass.distances());
        (RowSums { mass, distances, count }, cut)
    }
}
