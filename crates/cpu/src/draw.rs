//! The draw: an exponential race that is run only where it can be won (section 3, D1, D2).
//!
//! ```text
//! for every tile:   bound = y(maximum) - log2(first arrival)      one Philox counter a tile
//! best = score of the token that arrives first in the tile of the largest bound
//! for every tile with bound >= best, that one first:
//!     the token that arrives first scores exactly y - log2(first arrival)
//!     of the others, those with y - log2(first arrival) >= best are candidates
//! candidates are scored sixteen at a time                         one Philox counter each
//! ```
//!
//! `log2` is exactly monotone, so a bound that falls below the best score excludes a tile or a token with
//! no slack. On ordinary rows a handful of tiles and tokens are left. A listed set is scored whole.

use std::ops::Range;

use gumball_spec::TILE;
use gumball_spec::num::{Tag, key_id, key_logit};

use crate::cut::CutLanes;
use crate::filter::{Given, Reader};
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::num;
use crate::tiles::EMPTY_TILE;

/// Which of the independent draws: what a Philox counter holds besides its index.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// The seed.
    pub seed: u64,
    /// The position.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// Buffers of the draw stage: a tile's bound, the `log2` of its first arrival, the arrival and its place.
#[derive(Debug, Default)]
pub struct Buffers {
    bounds: Vec<f32>,
    log_arrivals: Vec<f32>,
    arrivals: Vec<f32>,
    places: Vec<u32>,
}

/// The token that leads the race; of equal scores the smallest id.
#[derive(Clone, Copy, Debug)]
struct Leader {
    score: f32,
    id: u32,
}

impl Leader {
    #[inline(always)]
    fn meet(&mut self, score: f32, id: u32) {
        if score > self.score || score == self.score && id < self.id {
            *self = Self { score, id };
        }
    }
}

/// Returns the kept token that wins the race at the scale `s`.
pub fn draw(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    keys: &[u64],
    kept: &Given,
    s: f32,
    stream: Stream,
) -> u32 {
    match &kept.listed {
        Some(range) => dispatch(reader.level, ListRace { keys, range: range.clone(), kept, s, stream }),
        None => dispatch(reader.level, TileRace { reader, buffers, kept, s, stream }),
    }
}

/// The first arrivals of sixteen tiles and their places.
#[inline(always)]
fn tile_arrivals<L: Lanes>(l: L, stream: Stream, tiles: L::U) -> (L::F, L::U) {
    let [w0, w1, w2, _] = l.philox(stream.seed, tiles, [stream.position, Tag::Tile as u32, stream.draw]);
    (l.mul(num::exp_of_u64(l, w0, w1), l.splat(1.0 / TILE as f32)), l.shr::<24>(w2))
}

/// How much later than their tile's first arrival sixteen other tokens arrive.
#[inline(always)]
fn token_delays<L: Lanes>(l: L, stream: Stream, ids: L::U) -> L::F {
    let rest = [stream.position, Tag::Token as u32, stream.draw];
    let words = l.philox(stream.seed, l.shr::<2>(ids), rest);
    let odd = l.equal_u(l.and(ids, l.splat_u(1)), l.splat_u(1));
    let high = l.equal_u(l.and(ids, l.splat_u(2)), l.splat_u(2));
    let low_pair = l.select_u(odd, words[1], words[0]);
    let high_pair = l.select_u(odd, words[3], words[2]);
    num::exp_of_u32(l, l.select_u(high, high_pair, low_pair))
}

/// A race of listed tokens.
struct ListRace<'a> {
    keys: &'a [u64],
    range: Range<usize>,
    kept: &'a Given,
    s: f32,
    stream: Stream,
}

impl Kernel for ListRace<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u32 {
        let mut leader = Leader { score: f32::NEG_INFINITY, id: key_id(self.keys[self.range.start]) };
        for keys in self.keys[self.range].chunks(WIDTH) {
            let mut z = [f32::NEG_INFINITY; WIDTH];
            let mut ids = [0; WIDTH];
            for (i, key) in keys.iter().enumerate() {
                (z[i], ids[i]) = (key_logit(*key), key_id(*key));
            }
            let id = l.load_u(&ids);
            let (first, place) = tile_arrivals(l, self.stream, l.shr::<8>(id));
            let is_first = l.equal_u(l.and(id, l.splat_u(TILE as u32 - 1)), place);
            let delay = l.select(is_first, l.splat(0.0), token_delays(l, self.stream, id));
            let y = l.mul(l.sub(l.load(&z), l.splat(self.kept.first)), l.splat(self.s));
            let mut scores = [0.0; WIDTH];
            l.store(l.sub(y, num::log2(l, l.add(first, delay))), &mut scores);
            for i in 0..keys.len() {
                leader.meet(scores[i], ids[i]);
            }
        }
        leader.id
    }
}

/// A race of all tokens of a cut.
struct TileRace<'a> {
    reader: &'a Reader<'a>,
    buffers: &'a mut Buffers,
    kept: &'a Given,
    s: f32,
    stream: Stream,
}

/// Tokens that might still win, not yet scored.
struct Candidates {
    count: usize,
    ids: [u32; 2 * WIDTH],
    y: [f32; 2 * WIDTH],
    first: [f32; 2 * WIDTH],
}

impl Kernel for TileRace<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) -> u32 {
        let top = self.bounds(l);
        let mut leader = Leader { score: f32::NEG_INFINITY, id: u32::MAX };
        let mut candidates =
            Candidates { count: 0, ids: [0; 2 * WIDTH], y: [0.0; 2 * WIDTH], first: [0.0; 2 * WIDTH] };
        self.meet_first(top, &mut leader);
        self.collect(l, top, &mut candidates, &mut leader);
        self.score(l, &mut candidates, &mut leader);

        // The first arrivals of all other tiles come first: they cost nothing and raise the best score.
        for group in 0..self.reader.maxima.len().div_ceil(WIDTH) {
            let mut open = self.open(l, group, leader.score);
            while open != 0 {
                let tile = group * WIDTH + open.trailing_zeros() as usize;
                open &= open - 1;
                self.meet_first(tile, &mut leader);
            }
        }
        for group in 0..self.reader.maxima.len().div_ceil(WIDTH) {
            let mut open = self.open(l, group, leader.score);
            while open != 0 {
                let tile = group * WIDTH + open.trailing_zeros() as usize;
                open &= open - 1;
                if tile != top {
                    self.collect(l, tile, &mut candidates, &mut leader);
                }
            }
        }
        self.score(l, &mut candidates, &mut leader);
        leader.id
    }
}

impl TileRace<'_> {
    /// Fills the buffers; returns the tile of the largest bound.
    #[inline(always)]
    fn bounds<L: Lanes>(&mut self, l: L) -> usize {
        let maxima = self.reader.maxima;
        let padded = maxima.len().next_multiple_of(WIDTH);
        let Buffers { bounds, log_arrivals, arrivals, places } = &mut *self.buffers;
        bounds.resize(padded, 0.0);
        log_arrivals.resize(padded, 0.0);
        arrivals.resize(padded, 0.0);
        places.resize(padded, 0);
        let (first, s) = (l.splat(self.kept.first), l.splat(self.s));
        let lowest = l.splat(f32::NEG_INFINITY);
        let low = l.splat(self.kept.cut.low());
        let (mut largest, mut top) = (lowest, l.splat_u(0));
        for group in 0..padded / WIDTH {
            let mut m = [f32::NEG_INFINITY; WIDTH];
            let from = &maxima[group * WIDTH..maxima.len().min((group + 1) * WIDTH)];
            m[..from.len()].copy_from_slice(from);
            let m = l.load(&m);
            let tiles = l.add_u(l.iota(), l.splat_u((group * WIDTH) as u32));
            let (arrival, place) = tile_arrivals(l, self.stream, tiles);
            let log_arrival = num::log2(l, arrival);
            // Where filters dropped the first tokens, no kept token has y above 0.
            let y = l.min(l.mul(l.sub(m, first), s), l.splat(0.0));
            let bound = l.select(l.ge(m, low), l.sub(y, log_arrival), lowest);
            let higher = l.gt(bound, largest);
            largest = l.select(higher, bound, largest);
            top = l.select_u(higher, tiles, top);
            let at = group * WIDTH;
            l.store(bound, bounds[at..].first_chunk_mut().expect("padded"));
            l.store(log_arrival, log_arrivals[at..].first_chunk_mut().expect("padded"));
            l.store(arrival, arrivals[at..].first_chunk_mut().expect("padded"));
            l.store_u(place, places[at..].first_chunk_mut().expect("padded"));
        }
        let best = l.equal(largest, l.splat(l.reduce_max(largest)));
        let mut tops = [0; WIDTH];
        l.store_u(top, &mut tops);
        tops[best.trailing_zeros() as usize] as usize
    }

    /// Returns which of sixteen tiles may still hold the winner.
    #[inline(always)]
    fn open<L: Lanes>(&self, l: L, group: usize, best: f32) -> u16 {
        let bounds = l.load(self.buffers.bounds[group * WIDTH..].first_chunk().expect("padded"));
        l.ge(bounds, l.splat(best)) & l.gt(bounds, l.splat(f32::NEG_INFINITY))
    }

    /// Lets the token that arrives first in a tile meet the leader: its score needs no further arrival.
    #[inline(always)]
    fn meet_first(&self, tile: usize, leader: &mut Leader) {
        let id = tile * TILE + self.buffers.places[tile] as usize;
        if id < self.reader.view.row.vocab() {
            let z = self.reader.view.logit(id) + 0.0;
            if z > f32::NEG_INFINITY && self.kept.cut.contains(gumball_spec::num::key(z, id as u32)) {
                leader.meet(self.kept.y(z, self.s) - self.buffers.log_arrivals[tile], id as u32);
            }
        }
    }

    /// Adds the kept tokens of a tile that may still win, but for the first arrival.
    #[inline(always)]
    fn collect<L: Lanes>(&self, l: L, tile: usize, candidates: &mut Candidates, leader: &mut Leader) {
        let mut scratch = EMPTY_TILE;
        let cut = CutLanes::new(l, self.kept.cut);
        let (first, s) = (l.splat(self.kept.first), l.splat(self.s));
        let log_arrival = l.splat(self.buffers.log_arrivals[tile]);
        let place = self.buffers.places[tile] as usize;
        let logits = self.reader.view.tile(l, tile, &mut scratch);
        for (i, chunk) in logits.as_chunks::<WIDTH>().0.iter().enumerate() {
            let z = l.load(chunk);
            let y = l.mul(l.sub(z, first), s);
            let mut open = l.ge(l.sub(y, log_arrival), l.splat(leader.score));
            if open == 0 {
                continue;
            }
            let start = (tile * TILE + i * WIDTH) as u32;
            open &= cut.members(l, z, l.add_u(l.iota(), l.splat_u(start)));
            if place / WIDTH == i {
                open &= !(1 << (place % WIDTH));
            }
            let mut ys = [0.0; WIDTH];
            l.store(y, &mut ys);
            while open != 0 {
                let lane = open.trailing_zeros();
                open &= open - 1;
                candidates.ids[candidates.count] = start + lane;
                candidates.y[candidates.count] = ys[lane as usize];
                candidates.first[candidates.count] = self.buffers.arrivals[tile];
                candidates.count += 1;
            }
            if candidates.count >= WIDTH {
                self.score(l, candidates, leader);
            }
        }
    }

    /// Scores all candidates.
    #[inline(always)]
    fn score<L: Lanes>(&self, l: L, candidates: &mut Candidates, leader: &mut Leader) {
        for start in (0..candidates.count).step_by(WIDTH) {
            let ids = candidates.ids[start..].first_chunk().expect("two vectors of room");
            let first = l.load(candidates.first[start..].first_chunk().expect("two vectors of room"));
            let y = l.load(candidates.y[start..].first_chunk().expect("two vectors of room"));
            let arrival = l.add(first, token_delays(l, self.stream, l.load_u(ids)));
            let mut scores = [0.0; WIDTH];
            l.store(l.sub(y, num::log2(l, arrival)), &mut scores);
            for i in 0..WIDTH.min(candidates.count - start) {
                leader.meet(scores[i], ids[i]);
            }
        }
        candidates.count = 0;
    }
}
