//! A short given set as a sorted list: its weights, its mass, and where a prefix reaches a mass.

use std::cmp::Reverse;
use std::ops::Range;

use gumball_spec::TILE;
use gumball_spec::num::{key, key_id, key_logit};
use gumball_spec::survey::{Factor, Measure};

use crate::lanes::{Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::mass::{entropy_of, factor, fixed_distance};
use crate::measure::{self, measured};

/// Tokens by their keys, and columns about a given part of them.
#[derive(Debug, Default)]
pub struct List {
    /// The keys; in order once sorted.
    pub keys: Vec<u64>,
    /// For each token of the given part, its tile's place in `tiles`.
    places: Vec<u32>,
    /// For each token of the given part, its weight.
    weights: Weights,
    /// The tiles of the given part.
    tiles: Vec<ListTile>,
    /// For each tile of the row, its place in `tiles` plus one, or 0.
    place_of: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct ListTile {
    tile: u32,
    maximum: f32,
    factor: Factor,
    q: u64,
    r: u64,
}

impl List {
    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.keys.clear();
    }

    /// Sorts the tokens by the order.
    pub fn sort(&mut self) {
        self.keys.sort_unstable_by_key(|key| Reverse(*key));
    }

    /// Weighs a part of the sorted list as a given set; returns its mass.
    pub fn give(&mut self, level: Proven, range: Range<usize>, measure: Measure) -> u64 {
        self.tiles.clear();
        self.places.clear();
        // The range lies inside the list and has a token, unless another thread wrote the row meanwhile: then
        // any token will do.
        let range = range.start..range.end.max(range.start + 1);
        if range.end > self.keys.len() {
            self.keys.resize(range.end, key(0.0, 0));
        }
        let first = key_logit(self.keys[range.start]);
        self.weights.clear();
        for key in &self.keys[range] {
            let tile = key_id(*key) / TILE as u32;
            if self.place_of.len() <= tile as usize {
                self.place_of.resize(tile as usize + 1, 0);
            }
            let place_of = &mut self.place_of[tile as usize];
            if *place_of == 0 {
                // In order, so a tile's first token is its maximum.
                let maximum = key_logit(*key);
                self.tiles.push(ListTile { tile, maximum, factor: Factor { mantissa: 0, k: 0 }, q: 0, r: 0 });
                *place_of = self.tiles.len() as u32;
            }
            self.places.push(*place_of - 1);
            self.weights.push(key_logit(*key), self.tiles[*place_of as usize - 1].maximum);
        }
        for tile in &self.tiles {
            self.place_of[tile.tile as usize] = 0;
        }
        self.weights.weigh(level, measure);
        let tiles = &mut self.tiles;
        measured!(measure, |weights| dispatch(level, Factors { tiles, first, weights }));
        for (place, q) in self.places.iter().zip(&self.weights.q) {
            self.tiles[*place as usize].q += u64::from(*q);
        }
        self.tiles.iter().map(|tile| tile.factor.mass(tile.q)).sum()
    }

    /// Returns the entropy in bits of the part given last, whose mass was `mass` (M5).
    pub fn entropy(&mut self, mass: u64, measure: Measure) -> f32 {
        for (i, place) in self.places.iter().enumerate() {
            let d = fixed_distance(measure.exponent(self.weights.m[i], self.weights.z[i]));
            self.tiles[*place as usize].r += u64::from(self.weights.q[i]) * d;
        }
        let first = self.weights.z[0];
        let part = |tile: &ListTile| {
            let d = fixed_distance(measure.exponent(first, tile.maximum));
            tile.factor.mass((tile.r + tile.q * d) >> 24)
        };
        entropy_of(mass, self.tiles.iter().map(part).sum())
    }

    /// Returns how many tokens of the part given last, visited in the order of `places`, first reach a mass.
    pub fn reach_in(&mut self, order: impl Iterator<Item = usize>, target: u64) -> usize {
        self.tiles.iter_mut().for_each(|tile| tile.q = 0);
        let mut mass = 0;
        let mut visited = 0;
        for i in order {
            let tile = &mut self.tiles[self.places[i] as usize];
            let before = tile.factor.mass(tile.q);
            tile.q += u64::from(self.weights.q[i]);
            mass += tile.factor.mass(tile.q).saturating_sub(before);
            visited += 1;
            if mass >= target {
                break;
            }
        }
        visited
    }
}

/// Weights of listed tokens, from their logits and their tiles' maxima.
#[derive(Debug, Default)]
pub struct Weights {
    z: Vec<f32>,
    m: Vec<f32>,
    /// The weights.
    pub q: Vec<u32>,
    /// The rough weights, whose sum is a rough mass.
    pub rough: Vec<f32>,
}

impl Weights {
    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.z.clear();
        self.m.clear();
    }

    /// Adds a token.
    pub fn push(&mut self, z: f32, maximum: f32) {
        self.z.push(z);
        self.m.push(maximum);
    }

    /// Computes the weights.
    pub fn weigh(&mut self, level: Proven, measure: Measure) {
        let tokens = self.z.len();
        self.q.resize(tokens.next_multiple_of(WIDTH), 0);
        self.z.resize(self.q.len(), 1.0);
        self.m.resize(self.q.len(), 1.0);
        measured!(measure, |weights| dispatch(level, Weigh { list: self, weights }));
        self.q.truncate(tokens);
    }
}

impl Weights {
    /// Computes the rough weights of tokens whose weights have been computed.
    pub fn weigh_roughly<const FINE: bool>(&mut self, level: Proven, measure: Measure) {
        self.rough.resize(self.z.len(), 0.0);
        measured!(measure, |weights| dispatch(level, WeighRoughly::<_, FINE> { list: self, weights }));
    }
}

struct WeighRoughly<'a, W, const FINE: bool> {
    list: &'a mut Weights,
    weights: W,
}

impl<W: measure::Weights, const FINE: bool> Kernel for WeighRoughly<'_, W, FINE> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Weights { z, m, rough, .. } = self.list;
        let values = z.as_chunks::<WIDTH>().0.iter().zip(m.as_chunks::<WIDTH>().0);
        for ((z, m), rough) in values.zip(rough.as_chunks_mut().0) {
            let origin = self.weights.rough_origin(l, l.load(m));
            l.store(self.weights.add_rough::<L, FINE>(l, l.splat(0.0), l.load(z), origin), rough);
        }
    }
}

struct Weigh<'a, W> {
    list: &'a mut Weights,
    weights: W,
}

impl<W: measure::Weights> Kernel for Weigh<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Weights { z, m, q, .. } = self.list;
        for ((z, m), q) in
            z.as_chunks::<WIDTH>().0.iter().zip(m.as_chunks::<WIDTH>().0).zip(q.as_chunks_mut().0)
        {
            l.store_u(self.weights.weight(l, l.load(z), l.load(m)), q);
        }
    }
}

/// The factors of listed tiles.
struct Factors<'a, W> {
    tiles: &'a mut [ListTile],
    first: f32,
    weights: W,
}

impl<W: measure::Weights> Kernel for Factors<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let first = l.splat(self.first);
        for tiles in self.tiles.chunks_mut(WIDTH) {
            let mut values = [self.first; WIDTH];
            for (value, tile) in values.iter_mut().zip(tiles.iter()) {
                *value = tile.maximum;
            }
            l.store(self.weights.ratio(l, l.load(&values), first), &mut values);
            for (tile, value) in tiles.iter_mut().zip(values) {
                tile.factor = factor(value);
            }
        }
    }
}
