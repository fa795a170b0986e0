//! top-k, and the upper part of a set that is likely to hold a nucleus.
//!
//! Tile maxima are tokens too: if `k` of them reach a logit, so do at least `k` tokens. So a logit
//! that the maxima of a few more than `k` tiles reach bounds the k-th token from below, and the tokens at
//! or above it are few. Where a row has fewer tiles, the maxima of sixteenths of tiles do the same.

use gumball_spec::num::{from_ordered_bits, ordered_bits};

use gumball_spec::survey::Measure;

use super::goal::Goal;
use super::{Buffers, Given, Reader};
use crate::cut::Cut;
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::tiles::EMPTY_TILE;

impl Given {
    /// Returns the first `k` tokens of the set; all of it if there are no more (top-k).
    pub fn take(&self, reader: &Reader<'_>, buffers: &mut Buffers, k: usize) -> Given {
        if let Some(range) = &self.listed {
            let last = buffers.list.keys[range.start + k.min(range.len()).max(1) - 1];
            return self.keep(buffers, last);
        }
        if self.list_top(reader, buffers, k) {
            let last = buffers.list.keys[k - 1];
            return Given { listed: Some(0..buffers.list.keys.len()), ..self.clone() }.keep(buffers, last);
        }
        let mut given = self.clone();
        given.list(reader, buffers);
        if given.listed.is_some() {
            return given.take(reader, buffers, k);
        }
        // Only the counts matter here, at any scale.
        self.give(reader, buffers, Measure::new(reader.view.kind, 1.0));
        let total = buffers.mass.count(reader.level, &reader.view, self.cut);
        if total.count <= k {
            return self.clone();
        }
        let last = self.search(reader, buffers, Goal::Count(k), total, None);
        self.keep(buffers, last)
    }

    /// Returns an interval of the set, with at least `n` tokens of the set from its first one on (F11).
    pub fn keep_at_least(&self, reader: &Reader<'_>, buffers: &mut Buffers, kept: Given, n: usize) -> Given {
        if n <= 1 || kept.listed.as_ref().is_some_and(|range| range.len() >= n) {
            return kept;
        }
        let from = match kept.cut.first == self.cut.first {
            true => Some(self.clone()),
            false => self.interval(reader, buffers, Cut { first: kept.cut.first, ..self.cut }),
        };
        let least = from.map(|from| from.take(reader, buffers, n));
        least.filter(|least| kept.listed.is_some() || least.cut.last < kept.cut.last).unwrap_or(kept)
    }

    /// Lists at least the first `k` tokens of a prefix, in order, if few more than those do; they need not be
    /// all of the set.
    pub fn list_top(&self, reader: &Reader<'_>, buffers: &mut Buffers, k: usize) -> bool {
        if !self.prefix || k > reader.list_limit {
            return false;
        }
        let sixteenths = reader.maxima.len() * WIDTH;
        let maxima = if k <= reader.maxima.len() {
            reader.maxima
        } else if k + k / 4 <= sixteenths && 2 * k <= reader.list_limit && reader.view.parts.is_none() {
            buffers.mass.visits += 1;
            buffers.maxima.clear();
            dispatch(reader.level, LaneMaxima { reader, maxima: &mut buffers.maxima });
            &buffers.maxima
        } else {
            return false;
        };
        let Some(logit) = reached_by(reader, maxima, self.cut.low(), k) else { return false };
        buffers.list.clear();
        buffers.mass.visits += 1;
        reader.gather_top(self.cut.at_least(logit), k, reader.list_limit, &mut buffers.list);
        // The row's ties at its end may cut off some of the k.
        let listed = buffers.list.keys.len() >= k;
        if listed {
            buffers.list.sort();
        }
        listed
    }
}

/// Returns a logit of at least `low` that at least `k` of a row's maxima reach, and not many more.
fn reached_by(reader: &Reader<'_>, maxima: &[f32], low: f32, k: usize) -> Option<f32> {
    let count = |z: f32| dispatch(reader.level, CountAtLeast { maxima, z });
    if count(low) < k {
        return None;
    }
    if count(reader.first) >= k {
        return Some(reader.first);
    }
    let (mut reached, mut above) = (ordered_bits(low), ordered_bits(reader.first) + 1);
    let mut by_value = true;
    for _ in 0..48 {
        if above.saturating_sub(reached) <= 1 {
            break;
        }
        let pivot = super::search::pivot(reached, above, by_value);
        by_value = !by_value;
        let reaching = count(from_ordered_bits(pivot));
        if reaching >= k {
            reached = pivot;
            if reaching <= k + k / 8 {
                break;
            }
        } else {
            above = pivot;
        }
    }
    Some(from_ordered_bits(reached))
}

/// Appends the maxima of the sixteenths of each tile.
struct LaneMaxima<'a> {
    reader: &'a Reader<'a>,
    maxima: &'a mut Vec<f32>,
}

impl Kernel for LaneMaxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (mut scratch, mut maxima) = (EMPTY_TILE, [0.0; WIDTH]);
        for tile in 0..self.reader.maxima.len() {
            let logits = self.reader.view.tile(l, tile, &mut scratch);
            l.store(l.maximum(logits, &mut [l.seen_nothing(); 4]), &mut maxima);
            self.maxima.extend_from_slice(&maxima);
        }
    }
}

/// How many maxima reach a logit.
struct CountAtLeast<'a> {
    maxima: &'a [f32],
    z: f32,
}

impl Kernel for CountAtLeast<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> usize {
        let z = l.splat(self.z);
        let (chunks, rest) = self.maxima.as_chunks::<WIDTH>();
        let mut whole = 0;
        for chunk in chunks {
            whole += l.ge(l.load(chunk), z).count_ones();
        }
        whole as usize + rest.iter().filter(|m| **m >= self.z).count()
    }
}
