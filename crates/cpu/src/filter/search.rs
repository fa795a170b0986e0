//! Searching a long set: where a count or a mass is reached, by weighing its upper part at a few pivots.
//!
//! Two logits hold the answer between them, and every pivot moves one of them. The first pivots of a long set are guessed
//! from a profile of its values, which usually leaves few tokens between them. Further ones are interpolated, now
//! a little above the estimate and now a little below, so that both ends close in. Every third is
//! the logit of a sampled token, which finds the heaps of equal tokens that interpolation jumps over; and
//! every sixth halves the interval by bits, so that no row takes long whatever its values. Once few
//! tokens are left between the ends they are listed, and the answer is walked to. Tokens of one logit are not
//! listed: whole tiles of them are stepped over.
//!
//! Where another thread writes the row meanwhile, sums taken one after the other contradict each other. Then the search still
//! ends, at some token.

use gumball_spec::num::{from_ordered_bits, key, key_id, key_logit, ordered_bits};
use gumball_spec::{Kind, TILE};

use super::goal::Goal;
use super::list::Weights;
use super::profile::{Profile, Side};
use super::{Buffers, Given, Reader};
use crate::cut::Cut;
use crate::lanes::Proven;
use crate::mass::{Mass, TileSum, Total};
use crate::measure::least_that_matters;

/// Buffers of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// Tile sums above the upper end.
    base: Vec<TileSum>,
    weights: Weights,
    profile: Profile,
}

/// From this number of tokens on, a set is profiled before it is searched.
const PROFILED: usize = 8192;
/// How many pivots are guessed by a profile. In between, where few pivots do not suffice, some are values of
/// tokens: then most tokens between the ends are alike.
const GUESSES: u32 = 4;
const SAMPLED_AFTER: u32 = 2;
const SAMPLED: u32 = 2;
/// How many tokens a guess goes beyond what the profile says, besides a twentieth of the way.
const MARGIN: f64 = 64.0;

impl Given {
    /// Returns the last key of the shortest prefix of an unlisted set that reaches a goal, which the whole
    /// set does. The set must have been weighed last, or counted for a number of tokens.
    pub fn search(&self, reader: &Reader<'_>, buffers: &mut Buffers, goal: Goal) -> u64 {
        let Buffers { mass, between, search, .. } = buffers;
        search.base.clear();
        search.base.resize(mass.sums.len(), TileSum::default());
        let whole = mass.total();
        let mut ends = Ends {
            low: ordered_bits(self.cut.low()),
            high: ordered_bits(self.first) + 1,
            below: whole,
            above: Total::default(),
        };
        // The first logit comes first: rows whose tokens are all alike end there. Then the least that can
        // matter, which makes the interval one to interpolate in.
        let floor = match goal {
            Goal::Count(_) => -f32::MAX,
            Goal::Mass(_) => least_that_matters(mass.measure(), self.first),
        };
        let mut guesses = if whole.count >= PROFILED { 0 } else { GUESSES };
        let (mut wanted, mut side) = (goal.wanted(), Side::Within);
        let (mut sampled, mut passes) = (0, 0);
        while ends.below.count.saturating_sub(ends.above.count) > reader.list_limit
            && ends.high.saturating_sub(ends.low) > 1
        {
            if passes == 1 && guesses == 0 && !search.profile.make(reader, mass, self, goal, whole) {
                guesses = GUESSES;
            }
            let guess = passes > 0 && guesses < GUESSES;
            let pivot = match passes {
                _ if guess && guesses == SAMPLED_AFTER && sampled < SAMPLED => {
                    sampled += 1;
                    ends.sampled(reader, sampled)
                }
                _ if guess => {
                    guesses += 1;
                    ordered_bits(search.profile.value_at(wanted, side) + 0.0)
                        .clamp(ends.low + 1, ends.high - 1)
                }
                0 => ordered_bits(self.first),
                1 => {
                    mass.visits += 1;
                    ordered_bits(reader.least(self.cut.at_least(floor)).min(self.first))
                }
                pass if pass % 3 == 1 && pass % 6 != 1 => ends.sampled(reader, pass),
                pass => ends.pivot(goal, pass, reader.view.kind),
            };
            passes += u32::from(!guess);
            if pivot <= ends.low || pivot >= ends.high {
                continue;
            }
            let part = self.cut.at_least(from_ordered_bits(pivot));
            let total = match goal {
                Goal::Count(_) => mass.count(reader.level, &reader.view, part),
                Goal::Mass(_) => mass.weigh(reader.level, &reader.view, part),
            };
            let is_reached = goal.is_reached(total);
            if guess {
                // From what is exact here, the profile leads to the goal, and a little beyond: so the other end
                // closes in.
                let (value, missing) = (from_ordered_bits(pivot), goal.wanted() - goal.amount(total));
                let beyond = 0.05 * missing.abs() + MARGIN * search.profile.amount_of(goal, value);
                let beyond = if is_reached { -beyond } else { beyond };
                side = if is_reached { Side::Above } else { Side::Below };
                wanted = search.profile.amount_at(value) + missing + beyond;
            }
            if is_reached {
                (ends.low, ends.below) = (pivot, total);
            } else {
                (ends.high, ends.above) = (pivot, total);
                search.base.clone_from(&mass.sums);
            }
        }

        let first = (u64::from(ends.high) << 32) - 1;
        let low = from_ordered_bits(ends.low);
        let rest = self.cut.and(Cut { first, last: key(low, u32::MAX) });
        let is_tie = ends.high.saturating_sub(ends.low) <= 1;
        between.clear();
        mass.visits += 1;
        match goal {
            Goal::Count(count) => {
                let place = count.saturating_sub(ends.above.count);
                // Tokens of one logit are gathered by id and lie in order already.
                reader.gather(rest, if is_tie { place } else { usize::MAX }, between);
                if !is_tie {
                    between.sort();
                }
                nth(&between.keys, place).unwrap_or_else(|| reader.first_key())
            }
            Goal::Mass(target) => {
                let (mut reached, mut part) = (ends.above.mass, rest);
                if is_tie {
                    mass.weigh(reader.level, &reader.view, self.cut.at_least(low));
                    let tile;
                    (tile, reached) = search.skip_tiles(mass, reached, target);
                    part = rest.and(Cut {
                        first: key(low, tile * TILE as u32),
                        last: key(low, tile * TILE as u32 + 255),
                    });
                }
                reader.gather(part, usize::MAX, between);
                between.sort();
                let found = search.walk(reader.level, mass, &between.keys, reached, target);
                let last = || nth(&between.keys, between.keys.len()).unwrap_or_else(|| reader.first_key());
                found.map_or_else(last, |(key, _)| key)
            }
        }
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

/// Returns the n-th key, from 1; the nearest there is.
fn nth(keys: &[u64], n: usize) -> Option<u64> {
    keys.get(n.clamp(1, keys.len().max(1)) - 1).copied()
}

impl Search {
    /// Takes in whole tiles of the part that was weighed last until one reaches a target; returns that tile,
    /// which is not taken in, and the mass before it.
    fn skip_tiles(&mut self, mass: &Mass, mut reached: u64, target: u64) -> (u32, u64) {
        for (tile, (base, sum)) in self.base.iter_mut().zip(&mass.sums).enumerate() {
            let factor = mass.factor(tile);
            let with = reached.saturating_sub(factor.mass(base.q)).saturating_add(factor.mass(sum.q));
            if sum.count > base.count && with >= target {
                return (tile as u32, reached);
            }
            reached = with;
            base.q = sum.q;
        }
        // The whole set reaches the goal, so this tile is beyond all.
        (self.base.len() as u32, reached)
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
            self.weights.push(key_logit(*key), mass.maximum(key_id(*key) as usize / TILE));
        }
        self.weights.weigh(level, mass.measure());
        for (key, q) in keys.iter().zip(&self.weights.q) {
            let tile = key_id(*key) as usize / TILE;
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
    /// What the tokens from `low` up come to.
    below: Total,
    /// What the tokens from `high` up come to.
    above: Total,
}

impl Ends {
    /// Returns the median of some tokens between the ends, or just above it if that is the lower end already.
    fn sampled(&self, reader: &Reader<'_>, pass: u32) -> u32 {
        let vocab = reader.view.row.vocab();
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
            return self.low + (self.high - self.low) / 2;
        }
        let (_, median, _) = sample[..count].select_nth_unstable(count / 2);
        if *median == self.low { self.low + 1 } else { *median }
    }

    /// Returns the next pivot, which may be one of the ends.
    fn pivot(&self, goal: Goal, pass: u32, kind: Kind) -> u32 {
        if pass % 3 == 1 {
            return self.low + (self.high - self.low) / 2;
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
