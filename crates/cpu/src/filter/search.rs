//! Searching a long set: where a count or a mass is reached, by weighing its upper part at a few pivots.
//!
//! The plain algorithm, which returns the last key of the shortest prefix that reaches the goal:
//!
//! ```text
//! low, high = the set's least logit, one more than its first      as ordered bits
//! below, above = the totals of the tokens from low up, from high up; base = the tile sums of the latter
//! while more tokens lie between low and high than a list holds, and more than one value:
//!     pivot = halfway between low and high, by bits
//!     total = the number or the mass of the tokens from pivot up, one read of the row
//!     if total reaches the goal: low, below = pivot, total
//!     otherwise: high, above, base = pivot, total, its tile sums
//! list and sort the tokens between low and high, another read
//! for each of them: add its weight to its tile's sum in base; return its key if the mass reaches the goal
//! ```
//!
//! That is 33 reads at most. A pivot decides nothing but the time, so most of what follows chooses pivots
//! better. In the order in which a search meets it:
//!
//! 1. The first pivot of a top-p is guessed, and weighed in the same read as the whole row, which is read
//!    anyhow: the goal is a part of its mass (`first_pivot`). Otherwise the first logit is the first pivot,
//!    which ends rows whose tokens are all alike.
//! 2. A set of `PROFILED` tokens or more is profiled (`profile.rs`): a vector of each tile shows about where
//!    the goal is reached. A guess aims a little beyond that, so that the other end closes in.
//! 3. A guess near to the pivot weighed last is not weighed: the tokens between them are listed, or counted
//!    if they are equal, and added to the sums or taken from them (`weigh_beside`). That usually is the last
//!    step, and its list the one that is walked.
//! 4. The third and the fourth guess are logits of sampled tokens: where two guesses did not suffice, most
//!    tokens between the ends are alike.
//! 5. After `GUESSES` guesses, the least logit that can matter makes the interval one to interpolate in
//!    (`close_in`).
//! 6. Then four of six pivots are interpolated, now a little above the estimate and now a little below, so
//!    that both ends close in; one is sampled, which finds the heaps of equal tokens that interpolation jumps
//!    over; and one is halfway by bits. After `INTERPOLATED` pivots all are, which bounds the reads of any
//!    row.
//! 7. Tokens of one value are not listed, as they may be the whole row: whole tiles of them are stepped over,
//!    and the tile in which the goal is reached is walked (`skip_tiles`).
//! 8. Sums saturate or wrap, and a key is returned even if none is found: where another thread writes the row
//!    meanwhile, sums taken one after the other contradict each other, and the search ends at some token.
//!
//! Tried and left: halving by value and by bits in turn, then interpolation with every third pivot halfway by
//! bits and none sampled. 1 and 3 came together with cheaper bounds of short nuclei, faster comparisons and
//! half the levels of a profile: top-p over 128,256 tokens took 99 us for 305 on flat rows, and 154 for 515
//! on rows of ties (f32, AVX2, Zen 3). What spares a row its search is in `docs/stages/filter.md`.

use std::ops::RangeInclusive;

use gumball_spec::num::{from_ordered_bits, key, key_id, key_logit, ordered_bits};
use gumball_spec::{Kind, TILE};

use super::goal::Goal;
use super::list::Weights;
use super::profile::{Profile, Side};
use super::{Buffers, Given, List, Reader};
use crate::cut::Cut;
use crate::lanes::{Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::mass::{Mass, TileSum, Total};
use crate::measure::least_that_matters;
use crate::tiles::{EMPTY_TILE, for_tiles_reaching};

/// Buffers of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// Tile sums above the upper end.
    base: Vec<TileSum>,
    /// Tile sums beside the sums of the pivot weighed last.
    next: Vec<TileSum>,
    /// The tiles that hold a value, and how many tokens of it.
    ties: Vec<(u32, u32)>,
    weights: Weights,
    profile: Profile,
}

/// A pivot, as ordered bits, whose sums the mass has.
#[derive(Clone, Copy, Debug)]
pub struct Pivot {
    at: u32,
    /// The number and the mass of the tokens from there up.
    total: Total,
    /// Whether a profile guessed it and can guess more.
    guessed: bool,
}

/// From this number of tokens on, a set is profiled before it is searched.
const PROFILED: usize = 8192;
/// How many pivots are guessed by a profile, except for these, which are values of tokens: where few pivots
/// do not suffice, most tokens between the ends are alike.
const GUESSES: u32 = 6;
const SAMPLED: RangeInclusive<u32> = 3..=4;
/// How many pivots are chosen by the tokens between the ends, after the guessed pivots.
const INTERPOLATED: u32 = 18;
/// How many tokens a guess goes beyond what the profile says, besides a part of the way.
const MARGIN: f64 = 64.0;
const BEYOND: f64 = 1.0 / 16.0;

impl Given {
    /// Weighs the whole row, which the set must be and be given to the mass, and along with it the first
    /// pivot of a search for a part `p` of its mass, of which there may be an estimate.
    pub fn first_pivot(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        p: f32,
        estimate: Option<f64>,
    ) -> (Total, Pivot) {
        let Buffers { mass, search, .. } = buffers;
        let count = reader.view.vocab();
        let guessed = count >= PROFILED && search.profile.make(reader, mass, self, true, estimate);
        let at = if guessed {
            let wanted = f64::from(p) * search.profile.whole();
            let (low, high) = (ordered_bits(self.cut.low()), ordered_bits(self.first) + 1);
            search.profile.guess(wanted, Side::Within, low, high)
        } else {
            ordered_bits(self.first)
        };
        let (all, total) = mass.weigh_all_and(reader.level, &reader.view, from_ordered_bits(at));
        (Total { mass: all, count }, Pivot { at, total, guessed })
    }

    /// Returns the last key of the shortest prefix of an unlisted set that reaches a goal, which the whole
    /// set does: `whole` is its number of tokens and its mass. The set must have been weighed last, or
    /// counted for a number of tokens; or else a pivot was, which is given.
    pub fn search(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        goal: Goal,
        whole: Total,
        known: Option<Pivot>,
    ) -> u64 {
        let Buffers { mass, between, search, .. } = buffers;
        search.base.clear();
        search.base.resize(mass.sums.len(), TileSum::default());
        let ends = Ends {
            low: ordered_bits(self.cut.low()),
            high: ordered_bits(self.first) + 1,
            below: whole,
            above: Total::default(),
        };
        let (at, is_listed) = (None, false);
        let mut narrowing =
            Narrowing { given: self, reader, goal, mass, between, search, ends, at, is_listed };
        let guided = match known {
            Some(pivot) => {
                narrowing.set(pivot.at, pivot.total);
                pivot.guessed.then_some(pivot)
            }
            None => {
                // The first logit comes first: rows whose tokens are all alike end there.
                let first = ordered_bits(self.first);
                let total = narrowing.weigh(first);
                let pivot = Pivot { at: first, total, guessed: false };
                (whole.count >= PROFILED && narrowing.is_open() && narrowing.profile(whole)).then_some(pivot)
            }
        };
        if let Some(pivot) = guided {
            narrowing.guess(pivot);
        }
        narrowing.close_in();
        narrowing.last()
    }

    /// Returns the exact mass of the listed tokens, their rough mass, and the mass of the last one, in units
    /// of the first token's weight. The set must be given to the mass.
    pub fn listed_mass<const FINE: bool>(&self, reader: &Reader<'_>, buffers: &mut Buffers) -> [f64; 3] {
        let Buffers { mass, list, search: Search { weights, .. }, .. } = buffers;
        weights.clear();
        list.keys.iter().for_each(|key| weights.push(key_logit(*key), mass.maximum(tile_of(*key))));
        weights.weigh(reader.level, mass.measure());
        weights.weigh_roughly::<FINE>(reader.level, mass.measure());
        let (mut listed, mut roughly, mut last) = (0.0, 0.0, 0.0);
        for ((key, q), rough) in list.keys.iter().zip(&weights.q).zip(&weights.rough) {
            let factor = mass.factor_value(tile_of(*key));
            last = factor * f64::from(*q);
            listed += last;
            roughly += factor * f64::from(*rough);
        }
        [listed / TWO_POW_28, roughly, last / TWO_POW_28]
    }

    /// Returns the last key of the shortest prefix of the list that reaches a mass, if it does, and its mass.
    /// The list starts with the set's first tokens, and the set must be given to the mass.
    pub fn reach_in_list(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        target: u64,
    ) -> Option<(u64, u64)> {
        let Buffers { mass, list, search, .. } = buffers;
        search.base.clear();
        search.base.resize(mass.sums.len(), TileSum::default());
        search.walk(reader.level, mass, &list.keys, 0, target)
    }
}

/// The unit of a weight, inverted.
const TWO_POW_28: f64 = (1u64 << 28) as f64;

fn tile_of(key: u64) -> usize {
    key_id(key) as usize / TILE
}

/// A search under way.
struct Narrowing<'a> {
    given: &'a Given,
    reader: &'a Reader<'a>,
    goal: Goal,
    mass: &'a mut Mass,
    between: &'a mut List,
    search: &'a mut Search,
    ends: Ends,
    /// The pivot whose sums the mass has, if it has a pivot's.
    at: Option<u32>,
    /// Whether `between` has all tokens between the ends.
    is_listed: bool,
}

impl Narrowing<'_> {
    /// Returns whether there are more tokens between the ends than are listed.
    fn is_open(&self) -> bool {
        let Ends { low, high, below, above } = &self.ends;
        below.count.saturating_sub(above.count) > self.reader.list_limit && high.saturating_sub(*low) > 1
    }

    /// Profiles the set; returns false if that leads nowhere.
    fn profile(&mut self, whole: Total) -> bool {
        let (of_mass, whole) = (matches!(self.goal, Goal::Mass(_)), self.goal.amount(whole));
        self.search.profile.make(self.reader, self.mass, self.given, of_mass, Some(whole))
    }

    /// Makes a pivot an end; the mass has its sums.
    fn set(&mut self, pivot: u32, total: Total) {
        self.at = Some(pivot);
        if self.goal.is_reached(total) {
            (self.ends.low, self.ends.below) = (pivot, total);
        } else {
            (self.ends.high, self.ends.above) = (pivot, total);
            self.search.base.clone_from(&self.mass.sums);
        }
    }

    /// Weighs the part of the set from a pivot up, or counts it, and makes the pivot an end.
    fn weigh(&mut self, pivot: u32) -> Total {
        let part = self.given.cut.at_least(from_ordered_bits(pivot));
        let total = match self.goal {
            Goal::Count(_) => self.mass.count(self.reader.level, &self.reader.view, part),
            Goal::Mass(_) => self.mass.weigh(self.reader.level, &self.reader.view, part),
        };
        self.set(pivot, total);
        total
    }

    /// Makes a pivot an end as [`Narrowing::weigh`] does, but by the tokens between the pivot and the one
    /// that was weighed last: these are listed, or counted if they have one value. Returns `None` if they are
    /// too many.
    fn weigh_beside(&mut self, pivot: u32) -> Option<Total> {
        let from = self.at?;
        let (low, high) = (from.min(pivot), from.max(pivot));
        let Self { given, reader, mass, between, search, .. } = self;
        let Search { base, next, weights, ties, .. } = &mut **search;
        let is_tie = pivot > from && high - low == 1 && given.cut.is_at_least();
        mass.visits += 1;
        weights.clear();
        if is_tie {
            let z = from_ordered_bits(low);
            ties.clear();
            reader.view.need(z);
            dispatch(reader.level, Ties { reader, maxima: mass.maxima(), z, ties });
            ties.iter().for_each(|(tile, _)| weights.push(z, mass.maximum(*tile as usize)));
        } else {
            let part =
                Cut { first: (u64::from(high) << 32) - 1, last: key(from_ordered_bits(low), u32::MAX) };
            between.clear();
            if !reader.gather(given.cut.and(part), reader.list_limit, between) {
                return None;
            }
            ties.clear();
            ties.extend(between.keys.iter().map(|key| (key_id(*key) / TILE as u32, 1)));
            let maximum = |key: &u64| mass.maximum(tile_of(*key));
            between.keys.iter().for_each(|key| weights.push(key_logit(*key), maximum(key)));
        }
        next.clone_from(&mass.sums);
        weights.weigh(reader.level, mass.measure());
        for ((tile, count), q) in ties.iter().zip(&weights.q) {
            let (sum, q) = (&mut next[*tile as usize], u64::from(*q) * u64::from(*count));
            if pivot > from {
                (sum.q, sum.count) = (sum.q.saturating_sub(q), sum.count.saturating_sub(*count));
            } else {
                (sum.q, sum.count) = (sum.q.wrapping_add(q), sum.count + count);
            }
        }
        let total = mass.total_of(next);
        let is_reached = self.goal.is_reached(total);
        if is_reached == (pivot > from) {
            // The answer lies beyond.
            std::mem::swap(next, &mut mass.sums);
            self.set(pivot, total);
        } else if is_reached {
            (self.ends.low, self.ends.below) = (pivot, total);
            self.is_listed = !is_tie;
        } else {
            (self.ends.high, self.ends.above) = (pivot, total);
            std::mem::swap(next, base);
            self.is_listed = !is_tie;
        }
        Some(total)
    }

    /// Moves the ends to pivots that a profile guesses, from one that has been set.
    fn guess(&mut self, from: Pivot) {
        let Pivot { at: mut pivot, mut total, guessed } = from;
        let (mut wanted, mut side, mut is_near) = (self.goal.wanted(), Side::Within, false);
        let mut aim = guessed;
        for step in 1..=GUESSES {
            if aim {
                // From what is exact here, the profile leads to the goal, and a little beyond: so the other
                // end closes in.
                let (value, missing) =
                    (from_ordered_bits(pivot), self.goal.wanted() - self.goal.amount(total));
                let profile = &self.search.profile;
                let each = profile.amount_of(value);
                let beyond = BEYOND * missing.abs() + MARGIN * each;
                let is_reached = self.goal.is_reached(total);
                side = if is_reached { Side::Above } else { Side::Below };
                wanted = profile.amount_at(value) + missing + if is_reached { -beyond } else { beyond };
                is_near = missing.abs() + beyond <= self.reader.list_limit as f64 * each;
            }
            if !self.is_open() {
                return;
            }
            pivot = if SAMPLED.contains(&step) {
                self.ends.sampled(self.reader, step)
            } else {
                self.search.profile.guess(wanted, side, self.ends.low, self.ends.high)
            };
            aim = self.ends.low < pivot && pivot < self.ends.high;
            if aim {
                let is_next = self.at.is_some_and(|at| pivot == at + 1);
                let beside = if is_near || is_next { self.weigh_beside(pivot) } else { None };
                total = beside.unwrap_or_else(|| self.weigh(pivot));
            }
        }
    }

    /// Moves the ends until few tokens are left between them.
    fn close_in(&mut self) {
        for pass in 1.. {
            if !self.is_open() {
                return;
            }
            let pivot = match pass {
                // The least that can matter makes the interval one to interpolate in.
                1 => {
                    self.mass.visits += 1;
                    let floor = match self.goal {
                        Goal::Count(_) => -f32::MAX,
                        Goal::Mass(_) => least_that_matters(self.mass.measure(), self.given.first),
                    };
                    let least = self.reader.least(self.given.cut.at_least(floor));
                    ordered_bits(least.min(self.given.first))
                }
                pass if pass > INTERPOLATED => self.ends.halfway(),
                pass if pass % 3 == 1 && pass % 6 != 1 => self.ends.sampled(self.reader, pass),
                pass => self.ends.pivot(self.goal, pass, self.reader.view.kind),
            };
            if self.ends.low < pivot && pivot < self.ends.high {
                self.weigh(pivot);
            }
        }
    }

    /// Returns the last key, which lies between the ends.
    fn last(self) -> u64 {
        let Self { given, reader, goal, mass, between, search, ends, at, is_listed } = self;
        let first = (u64::from(ends.high) << 32) - 1;
        let low = from_ordered_bits(ends.low);
        let rest = given.cut.and(Cut { first, last: key(low, u32::MAX) });
        let is_tie = !is_listed && ends.high.saturating_sub(ends.low) <= 1;
        mass.visits += 1;
        match goal {
            Goal::Count(count) => {
                let place = count.saturating_sub(ends.above.count);
                if !is_listed {
                    between.clear();
                    // Tokens of one logit are gathered by id and lie in order already.
                    reader.gather(rest, if is_tie { place } else { usize::MAX }, between);
                }
                if !is_tie {
                    between.sort();
                }
                nth(&between.keys, place).unwrap_or_else(|| reader.first_key())
            }
            Goal::Mass(target) => {
                let mut reached = ends.above.mass;
                if !is_listed {
                    between.clear();
                }
                if is_tie {
                    if at != Some(ends.low) {
                        mass.weigh(reader.level, &reader.view, given.cut.at_least(low));
                    }
                    let tile;
                    (tile, reached) = search.skip_tiles(mass, reached, target);
                    let ids = tile * TILE..reader.view.vocab().min((tile + 1) * TILE);
                    let keys = ids.map(|id| key(reader.view.logit(id) + 0.0, id as u32));
                    between.keys.extend(keys.filter(|key| rest.contains(*key)));
                } else if !is_listed {
                    reader.gather(rest, usize::MAX, between);
                }
                between.sort();
                let found = search.walk(reader.level, mass, &between.keys, reached, target);
                let last = || nth(&between.keys, between.keys.len()).unwrap_or_else(|| reader.first_key());
                found.map_or_else(last, |(key, _)| key)
            }
        }
    }
}

/// Counts the tokens of one value in each tile that has some.
struct Ties<'a> {
    reader: &'a Reader<'a>,
    maxima: &'a [f32],
    z: f32,
    ties: &'a mut Vec<(u32, u32)>,
}

impl Kernel for Ties<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (z, mut scratch) = (l.splat(self.z), EMPTY_TILE);
        if self.z.to_bits() == (-0.0f32).to_bits() {
            // It equals +0.0, and so would tokens that lie above it.
            return;
        }
        for_tiles_reaching!(l, self.maxima, self.z, |tile| {
            let mut count = 0;
            for chunk in self.reader.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>().0 {
                count += l.equal(l.load(chunk), z).count_ones();
            }
            if count > 0 {
                self.ties.push((tile as u32, count));
            }
        });
    }
}

/// Returns the n-th key, from 1; the nearest there is.
fn nth(keys: &[u64], n: usize) -> Option<u64> {
    keys.get(n.clamp(1, keys.len().max(1)) - 1).copied()
}

impl Search {
    /// Takes in whole tiles of the part that was weighed last until one reaches a target; returns that tile,
    /// which is not taken in, and the mass before it.
    fn skip_tiles(&mut self, mass: &Mass, mut reached: u64, target: u64) -> (usize, u64) {
        for (tile, (base, sum)) in self.base.iter_mut().zip(&mass.sums).enumerate() {
            let factor = mass.factor(tile);
            let with = reached.saturating_sub(factor.mass(base.q)).saturating_add(factor.mass(sum.q));
            if sum.count > base.count && with >= target {
                return (tile, reached);
            }
            reached = with;
            base.q = sum.q;
        }
        // The whole set reaches the goal, so this tile is beyond all.
        (self.base.len(), reached)
    }

    /// Adds tokens to the sums of `base`, whose mass is `reached`, until a target is reached.
    fn walk(
        &mut self,
        level: Proven,
        mass: &Mass,
        keys: &[u64],
        mut reached: u64,
        target: u64,
    ) -> Option<(u64, u64)> {
        self.weights.clear();
        for key in keys {
            self.weights.push(key_logit(*key), mass.maximum(tile_of(*key)));
        }
        self.weights.weigh(level, mass.measure());
        for (key, q) in keys.iter().zip(&self.weights.q) {
            let tile = tile_of(*key);
            let (factor, sum) = (mass.factor(tile), &mut self.base[tile].q);
            reached = reached.saturating_sub(factor.mass(*sum));
            *sum += u64::from(*q);
            reached = reached.saturating_add(factor.mass(*sum));
            if reached >= target {
                return Some((*key, reached));
            }
        }
        None
    }
}

/// How many tokens are looked at for a sampled pivot.
const SAMPLE: usize = 64;

/// Two logits, as ordered bits, that hold the answer: the goal is reached at `low` and not at `high`.
struct Ends {
    low: u32,
    high: u32,
    /// The total of the tokens from `low` up.
    below: Total,
    /// The total of the tokens from `high` up.
    above: Total,
}

impl Ends {
    /// Returns the median of some tokens between the ends, or just above it if that is the lower end already.
    fn sampled(&self, reader: &Reader<'_>, pass: u32) -> u32 {
        let vocab = reader.view.vocab();
        let mut sample = [0; SAMPLE];
        let mut count = 0;
        for i in 0..SAMPLE {
            let id = (i * vocab / SAMPLE + pass as usize * 7) % vocab;
            let bits = ordered_bits(reader.view.logit(id) + 0.0);
            if (self.low..self.high).contains(&bits) {
                sample[count] = bits;
                count += 1;
            }
        }
        if count == 0 {
            return self.halfway();
        }
        let (_, median, _) = sample[..count].select_nth_unstable(count / 2);
        if *median == self.low { self.low + 1 } else { *median }
    }

    fn halfway(&self) -> u32 {
        self.low + (self.high - self.low) / 2
    }

    /// Returns the next pivot, which may be one of the ends.
    fn pivot(&self, goal: Goal, pass: u32, kind: Kind) -> u32 {
        if pass % 3 == 1 {
            return self.halfway();
        }
        let (above, below, goal) = (goal.amount(self.above), goal.amount(self.below), goal.wanted());
        // The margin shrinks with the interval, and is never so small that the ends cannot meet.
        let margin = if pass % 3 == 2 { 0.02 } else { -0.02 };
        let part = ((goal - above) / (below - above) + margin).clamp(0.001, 0.999);
        let between = |low: f64, high: f64| high - (high - low) * part;
        let pivot = match kind {
            Kind::Logits => {
                let [low, high] = [self.low, self.high].map(|bits| f64::from(from_ordered_bits(bits)));
                ordered_bits(between(low, high) as f32 + 0.0)
            }
            // The bits of a positive float are nearly its logarithm, and so nearly a logit.
            Kind::Probabilities => between(self.low.into(), self.high.into()) as u32,
        };
        // Where floats are too coarse for the margin, the neighbour of an end still moves it.
        pivot.clamp(self.low + 1, self.high - 1)
    }
}

/// Returns a pivot strictly between two ends: halfway by value, or by bits.
pub fn pivot(low: u32, high: u32, by_value: bool) -> u32 {
    let middle = low + (high - low) / 2;
    if by_value {
        let value = from_ordered_bits(low) / 2.0 + from_ordered_bits(high) / 2.0;
        let pivot = ordered_bits(value + 0.0);
        if low < pivot && pivot < high {
            return pivot;
        }
    }
    middle
}
