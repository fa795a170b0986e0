//! Searching a long set: where a count or a mass is reached, by weighing its upper part at a few pivots.
//!
//! The interval that holds the answer shrinks at every pivot, by value and by bits in turn, so neither
//! a spread of 1e30 nor a row within one ulp takes more than some dozen passes; ordinary rows take few. Once
//! few tokens are left between the ends they are listed, and the answer is walked to.

use gumball_spec::TILE;
use gumball_spec::num::{from_ordered_bits, key, key_id, key_logit, ordered_bits};

use super::list::Weights;
use super::{Buffers, Given, Reader};
use crate::Level;
use crate::cut::Cut;
use crate::mass::{Mass, TileSum, Total};

/// What a prefix shall reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A number of tokens.
    Count(usize),
    /// A mass of the set that was weighed last.
    Mass(u64),
}

impl Goal {
    fn is_reached(self, total: Total) -> bool {
        match self {
            Goal::Count(count) => total.count >= count,
            Goal::Mass(mass) => total.mass >= mass,
        }
    }
}

/// Buffers of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// Tile sums above the upper end.
    base: Vec<TileSum>,
    weights: Weights,
}

impl Given {
    /// Returns the last key of the shortest prefix of an unlisted set that reaches a goal, which the whole
    /// set does. The set must have been weighed last.
    pub fn search(&self, reader: &Reader<'_>, buffers: &mut Buffers, goal: Goal) -> u64 {
        let Buffers { mass, between, search, .. } = buffers;
        search.base.clear();
        search.base.resize(mass.sums.len(), TileSum::default());
        let mut above = Total::default();
        // The goal is reached at `low` and not at `high`.
        let (mut low, mut high) = (ordered_bits(self.cut.low()), ordered_bits(self.first) + 1);
        let mut count_low = mass.sums.iter().map(|sum| sum.count as usize).sum::<usize>();
        let mut by_value = true;
        while count_low - above.count > reader.list_limit && high - low > 1 {
            let pivot = pivot(low, high, by_value);
            by_value = !by_value;
            let total = mass.weigh(reader.level, &reader.view, self.cut.at_least(from_ordered_bits(pivot)));
            if goal.is_reached(total) {
                (low, count_low) = (pivot, total.count);
            } else {
                (high, above) = (pivot, total);
                search.base.clone_from(&mass.sums);
            }
        }

        between.clear();
        let first = (u64::from(high) << 32) - 1;
        let low = key(from_ordered_bits(low), u32::MAX);
        reader.gather(self.cut.and(Cut { first, last: low }), usize::MAX, between);
        if high > (low >> 32) as u32 + 1 {
            // Tokens of one logit are gathered by id and lie in order already.
            between.sort();
        }
        match goal {
            Goal::Count(count) => between.keys[count - above.count - 1],
            Goal::Mass(target) => {
                search
                    .walk(reader.level, mass, &between.keys, above.mass, target)
                    .expect("the whole set reaches the goal")
                    .0
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

impl Search {
    /// Adds tokens to the sums of `base`, whose mass is `reached`, until a target is reached.
    fn walk(
        &mut self,
        level: Level,
        mass: &Mass,
        keys: &[u64],
        mut reached: u64,
        target: u64,
    ) -> Option<(u64, u64)> {
        self.weights.clear();
        for key in keys {
            self.weights.push(key_logit(*key), mass.maximum(key_id(*key) as usize / TILE));
        }
        self.weights.weigh(level, mass.s());
        for (key, q) in keys.iter().zip(&self.weights.q) {
            let tile = key_id(*key) as usize / TILE;
            let (factor, sum) = (mass.factor(tile), &mut self.base[tile].q);
            reached -= factor.mass(*sum);
            *sum += u64::from(*q);
            reached += factor.mass(*sum);
            if reached >= target {
                return Some((*key, reached));
            }
        }
        None
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
