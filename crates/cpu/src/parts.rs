//! A row whose parts lie in several processes: what of it is known here, and which query to send next.
//!
//! The stages run over it as over any row. The first time that a stage needs a fact about the row that this
//! process does not know, [`PartRow`](crate::PartRow) notes a query. The stages go on with the known facts,
//! and the caller drops their result. Once the other processes have responded to the query, the stages run
//! again from the start and get further. So one code serves rows that lie here and rows that do not. The last
//! run notes no query: it has read known facts alone, so its result is the whole row's.

use std::cell::RefCell;

use gumball_spec::TILE;
use gumball_spec::num::{key, key_id, key_logit};
use gumball_spec::survey::{Factor, Measure};

use crate::cut::Cut;
use crate::tile::{EMPTY_TILE, Tile, TileSum, Total, entropy_of, fixed_distance};

/// A query about a row, for each of its parts. Scales are as [`gumball_spec::survey::scale`] makes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Query {
    /// The tokens at or above a logit, except those that are known.
    Tokens {
        /// The least logit.
        least: f32,
        /// The logit from which on tokens are known; +inf at first.
        known: f32,
    },
    /// The sums of the whole row at a scale.
    Sums {
        /// The scale.
        scale: f32,
    },
    /// The sums from which a standard deviation is computed.
    Deviations,
    /// How many tokens there are down to a key, and it.
    Rank {
        /// The key.
        key: u64,
    },
    /// The logits of ids.
    Logits {
        /// The ids.
        ids: Vec<u32>,
    },
    /// The token of a cut that wins the race.
    Race {
        /// The largest key of the cut.
        first_key: u64,
        /// Its least key.
        last_key: u64,
        /// The logit of its first token.
        first: f32,
        /// The scale.
        scale: f32,
    },
}

/// The sums of the whole row, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSums {
    /// The mass of the tiles that lie in one part.
    pub mass: u64,
    /// The sum of their weighted distances.
    pub distances: u64,
    /// How many tokens there are, in all tiles.
    pub count: u64,
}

/// Three sums of a set of tokens, of which a deviation is made: their number, the sum of their deviations,
/// and the sum of the squares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// The number of tokens.
    pub count: u64,
    /// The sum of their deviations.
    pub sum: u64,
    /// The sum of the squares.
    pub squares: u64,
}

impl Moments {
    /// Adds the sums of another part.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            count: self.count.wrapping_add(other.count),
            sum: self.sum.wrapping_add(other.sum),
            squares: self.squares.wrapping_add(other.squares),
        }
    }
}

/// The winner of a race in a part, or of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Winner {
    /// Its score.
    pub score: f32,
    /// Its id; `u32::MAX` if there is no token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
}

impl Winner {
    /// No token.
    pub const NONE: Winner = Winner { score: f32::NEG_INFINITY, id: u32::MAX, logit: f32::NEG_INFINITY };

    /// Returns the one of two that wins (D1).
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let is_ahead = other.score > self.score || other.score == self.score && other.id < self.id;
        if is_ahead { other } else { self }
    }
}

/// The known facts of a row.
#[derive(Debug, Default)]
pub struct Parts {
    vocab: usize,
    /// For each tile its place in `tiles` plus one, or 0.
    place_of: Vec<u32>,
    tiles: Vec<Tile>,
    /// All tokens at or above this logit are in `tiles`.
    known: f32,
    sums: Vec<(f32, Total, f32)>,
    moments: Option<Moments>,
    ranks: Vec<(u64, u32)>,
    /// Logits of single ids, which need not be at or above `known`.
    logits: Vec<(u32, f32)>,
    winner: Option<Winner>,
    query: RefCell<Option<Query>>,
}

impl Parts {
    /// Forgets the row, for one of another vocabulary.
    pub fn clear(&mut self, vocab: usize) {
        self.vocab = vocab;
        self.place_of.clear();
        self.place_of.resize(vocab.div_ceil(TILE), 0);
        self.tiles.clear();
        self.known = f32::INFINITY;
        self.sums.clear();
        self.moments = None;
        self.ranks.clear();
        self.logits.clear();
        self.winner = None;
        *self.query.get_mut() = None;
    }

    /// Returns the number of ids.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Takes in a token.
    pub fn insert(&mut self, id: u32, z: f32) {
        let place = &mut self.place_of[id as usize / TILE];
        if *place == 0 {
            self.tiles.push(EMPTY_TILE);
            *place = self.tiles.len() as u32;
        }
        self.tiles[*place as usize - 1][id as usize % TILE] = z;
    }

    /// Notes that all tokens at or above a logit were taken in.
    pub fn add_tokens(&mut self, least: f32) {
        self.known = self.known.min(least);
    }

    /// Takes in the sums of the row at a scale: the sums of the tiles that lie in one part, and of each other
    /// tile its maximum and what its parts add up to.
    pub fn add_sums(&mut self, scale: f32, first: f32, sums: RowSums, cut_tiles: &[(f32, TileSum)]) {
        let measure = Measure::Logits { s: scale };
        let (mut mass, mut distances) = (sums.mass, sums.distances);
        for (maximum, sum) in cut_tiles.iter().filter(|(_, sum)| sum.q > 0) {
            let factor = Factor::new(measure.ratio(*maximum, first).min(1.0));
            let d = fixed_distance(measure.exponent(first, *maximum));
            // A tile's weights sum to 2^36 at most, unless a part sent something else.
            let q = sum.q.min(1 << 36);
            mass = mass.saturating_add(factor.mass(q));
            let below = sum.r.wrapping_add(q.wrapping_mul(d)).min(1 << 62) >> 24;
            distances = distances.wrapping_add(factor.mass(below));
        }
        let total = Total { mass, count: sums.count as usize };
        self.sums.push((scale, total, entropy_of(mass, distances)));
    }

    /// Takes in the moments of the row.
    pub fn add_moments(&mut self, moments: Moments) {
        self.moments = Some(moments);
    }

    /// Takes in how many tokens there are down to a key.
    pub fn add_rank(&mut self, key: u64, tokens: u32) {
        self.ranks.push((key, tokens));
    }

    /// Takes in the logit of an id.
    pub fn add_logit(&mut self, id: u32, z: f32) {
        self.logits.push((id, z));
    }

    /// Takes in who won the race.
    pub fn add_winner(&mut self, winner: Winner) {
        self.add_logit(winner.id, winner.logit);
        self.winner = Some(winner);
    }

    /// Returns the query that was noted since the row was cleared or the last one was taken.
    pub fn take_query(&mut self) -> Option<Query> {
        self.query.get_mut().take()
    }

    /// Returns whether a query was noted that was not taken yet.
    pub fn has_query(&self) -> bool {
        self.query.borrow().is_some()
    }

    /// Returns the known tokens of a tile; -inf elsewhere.
    pub fn tile(&self, tile: usize) -> &Tile {
        match self.place_of[tile] {
            0 => &EMPTY_TILE,
            place => &self.tiles[place as usize - 1],
        }
    }

    /// Writes the maximum of the known tokens of each tile.
    pub fn maxima(&self, maxima: &mut Vec<f32>) {
        maxima.clear();
        let maximum = |tile: usize| self.tile(tile).iter().copied().fold(f32::NEG_INFINITY, f32::max);
        maxima.extend((0..self.place_of.len()).map(maximum));
    }

    /// Returns whether all of the row is known.
    pub fn is_whole(&self) -> bool {
        self.known <= -f32::MAX
    }

    /// Notes a query unless all tokens at or above a logit are known.
    pub fn need_tokens(&self, least: f32) {
        let least = least.max(-f32::MAX);
        if least < self.known {
            self.note(Query::Tokens { least, known: self.known });
        }
    }

    /// Returns number, mass and entropy of the whole row's tokens. If they are not known, it notes a query
    /// and returns harmless numbers.
    pub fn need_sums(&self, measure: Measure) -> (Total, f32) {
        let Measure::Logits { s } = measure else { unreachable!("rows of logits alone are known in parts") };
        match self.sums.iter().find(|(scale, ..)| scale.to_bits() == s.to_bits()) {
            Some((_, total, entropy)) => (*total, *entropy),
            None => {
                self.note(Query::Sums { scale: s });
                (Total { mass: 1 << 43, count: self.vocab }, 0.0)
            }
        }
    }

    /// Returns the moments of the whole row, as [`Parts::need_sums`] does.
    pub fn need_moments(&self) -> Moments {
        self.moments.unwrap_or_else(|| {
            self.note(Query::Deviations);
            Moments { count: 1, ..Moments::default() }
        })
    }

    /// Returns how many tokens there are down to a key, as [`Parts::need_sums`] does.
    pub fn need_rank(&self, key: u64) -> u32 {
        match self.ranks.iter().find(|(known, _)| *known == key) {
            Some((_, tokens)) => *tokens,
            None => {
                self.note(Query::Rank { key });
                1
            }
        }
    }

    /// Notes a query unless the logits of all these ids are known.
    pub fn need_logits(&self, ids: impl Iterator<Item = u32>) {
        let ids: Vec<u32> = ids.filter(|id| self.known_logit(*id).is_none()).collect();
        if !ids.is_empty() {
            self.note(Query::Logits { ids });
        }
    }

    /// Returns the winner of the race among the tokens of a cut, as [`Parts::need_sums`] does.
    pub fn need_winner(&self, cut: Cut, first: f32, measure: Measure) -> Winner {
        let Measure::Logits { s } = measure else { unreachable!("rows of logits alone are known in parts") };
        self.winner.unwrap_or_else(|| {
            self.note(Query::Race { first_key: cut.first, last_key: cut.last, first, scale: s });
            Winner { score: 0.0, id: 0, logit: first }
        })
    }

    /// Returns the logit of an id; -inf if it is not known.
    pub fn logit(&self, id: usize) -> f32 {
        self.known_logit(id as u32).unwrap_or(f32::NEG_INFINITY)
    }

    fn known_logit(&self, id: u32) -> Option<f32> {
        let z = self.tile(id as usize / TILE)[id as usize % TILE];
        if z > f32::NEG_INFINITY || self.is_whole() {
            return Some(z);
        }
        self.logits.iter().find(|(known, _)| *known == id).map(|(_, z)| *z)
    }

    /// Notes a query, unless there is one already: whatever a stage needs after the first query may rest on
    /// wrong numbers.
    fn note(&self, query: Query) {
        self.query.borrow_mut().get_or_insert(query);
    }
}

/// Returns a cut as keys of ids that are `start` less: as a part sees it whose first id is `start`.
pub fn cut_from(cut: Cut, start: u32) -> Cut {
    // Of tokens with the logit of the last key those up to its id lie inside, none if it lies in front of the
    // part.
    let last = match (cut.last as u32, key_id(cut.last).checked_sub(start)) {
        (0, _) => cut.last,
        (_, Some(id)) => cut.last & !0xFFFF_FFFF | u64::from(!id),
        (_, None) => (cut.last | 0xFFFF_FFFF).saturating_add(1),
    };
    let id = key_id(cut.first).saturating_sub(start);
    Cut { first: cut.first & !0xFFFF_FFFF | u64::from(!id), last }
}

/// Returns the key of a part's token among the tokens of the row.
pub fn key_from(part: u64, start: u32) -> u64 {
    key(key_logit(part), key_id(part) + start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_spec::Kind;

    #[test]
    fn a_part_sees_of_a_cut_what_the_row_does() {
        let values = [1.0, 0.5, 0.5, 0.5, -1.0, 0.5, 2.0];
        for start in [0, 256, 512] {
            let keys: Vec<u64> =
                (0..1000).map(|id| key(values[id as usize % values.len()], id)).step_by(3).collect();
            let mut cuts = vec![Cut::all(Kind::Logits), Cut::all(Kind::Logits).at_least(0.5)];
            cuts.extend(
                keys.iter()
                    .flat_map(|first| keys.iter().step_by(7).map(|last| Cut { first: *first, last: *last })),
            );
            for cut in cuts {
                let seen = cut_from(cut, start);
                for key_of_row in keys.iter().filter(|key| key_id(**key) >= start) {
                    let of_part = key(key_logit(*key_of_row), key_id(*key_of_row) - start);
                    assert_eq!(key_from(of_part, start), *key_of_row);
                    assert_eq!(seen.contains(of_part), cut.contains(*key_of_row), "{cut:?} from {start}");
                }
            }
        }
    }
}
