//! typical-p: the tokens whose surprise is nearest to the entropy (rule F3).
//!
//! Along the order the surprise grows, so its distance to the entropy falls and then rises, and "nearest"
//! is an interval of logits. A list is sorted by distance; in a long set the least distance whose interval
//! has the mass is found by bisection over floats, each step one weighing.

use gumball_spec::Kind;
use gumball_spec::filter::target_mass;
use gumball_spec::num::{key, key_logit};
use gumball_spec::survey::{Measure, log_mass};

use super::given::least_value;
use super::{Buffers, Given, Reader};
use crate::cut::Cut;

impl Given {
    /// Keeps the tokens whose surprise is nearest to the entropy, up to a mass of `p`.
    pub fn typical_p(&self, reader: &Reader<'_>, buffers: &mut Buffers, p: f32, measure: Measure) -> Given {
        let (total, entropy) = self.total_and_entropy(reader, buffers, measure);
        let (lz, target) = (log_mass(total), target_mass(p, total));
        // How far above the entropy the surprise lies; falls as the logit rises.
        let excess = |z: f32| (lz - self.y(z, measure)) - entropy;
        let cut = match self.listed.clone() {
            Some(range) => {
                let Buffers { list, distances, nearest, .. } = buffers;
                let keys = &list.keys[range.clone()];
                distances.clear();
                distances.extend(keys.iter().map(|key| excess(key_logit(*key)).abs()));
                nearest.clear();
                nearest.extend(0..keys.len());
                nearest.sort_unstable_by(|a, b| distances[*a].total_cmp(&distances[*b]).then(a.cmp(b)));
                let reached = list.reach_in(nearest.iter().copied(), target);
                let delta = distances[nearest[reached - 1]];
                // The nearest token is kept; a distance that is no number, of a row that was written
                // meanwhile, is none.
                let start = distances.iter().position(|d| *d <= delta).unwrap_or(0);
                let end = distances.iter().rposition(|d| *d <= delta).unwrap_or(0);
                Cut { first: list.keys[range.start + start], last: list.keys[range.start + end] }
            }
            None => {
                let within = |delta: f32| within(self, reader.view.kind, delta, excess);
                let mass = &mut buffers.mass;
                // Distances are not negative, so their bits are in order; infinity reaches all.
                let (mut fails, mut reaches) = (0u32, f32::INFINITY.to_bits());
                let none = mass.weigh(reader.level, &reader.view, within(0.0));
                if none.mass >= target && none.count > 0 {
                    reaches = 0;
                }
                let (mut count_fails, mut count_reaches) = (none.count, usize::MAX);
                while reaches > fails + 1 && count_reaches > count_fails.saturating_add(1) {
                    let middle = fails + (reaches - fails) / 2;
                    let part = mass.weigh(reader.level, &reader.view, within(f32::from_bits(middle)));
                    if part.mass >= target && part.count > 0 {
                        (reaches, count_reaches) = (middle, part.count);
                    } else {
                        (fails, count_fails) = (middle, part.count);
                    }
                }
                within(f32::from_bits(reaches))
            }
        };
        self.interval(reader, buffers, cut).unwrap_or_else(|| Given::only_first(reader))
    }
}

/// Returns the cut of the logits whose excess is at most `delta` either way.
fn within(given: &Given, kind: Kind, delta: f32, excess: impl Fn(f32) -> f32) -> Cut {
    if excess(given.first) > delta {
        // Even the first token surprises too much: no token is near enough.
        return Cut { first: 0, last: u64::MAX };
    }
    let last = key(least_value(kind, given.first, |z| excess(z) <= delta), u32::MAX).max(given.cut.last);
    if excess(given.first) >= -delta {
        return Cut { first: given.cut.first, last };
    }
    // The largest logit that is near enough is the one below the least that is too near the first.
    let too_early = least_value(kind, given.first, |z| excess(z) < -delta);
    Cut { first: key(too_early, u32::MAX).saturating_sub(1), last }
}
