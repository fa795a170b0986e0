//! The draw: an exponential race that is run only where it can be won (D1 to D3).
//!
//! ```text
//! best = the best score in the tile of the first token
//! for every tile:                                                 one Philox counter a tile
//!     if the first arrival may be early enough to reach best:     one comparison of integers
//!         bound = y(maximum) - log2(first arrival)
//!         the token that arrives first scores exactly y - log2(first arrival)
//! for every tile with bound >= best:
//!     of the other tokens, those with y - log2(first arrival) >= best are candidates
//! candidates are scored sixteen at a time                         one Philox counter each
//! ```
//!
//! `log2` is exactly monotone, so a bound that falls below the best score excludes a tile or a token with
//! no slack. On ordinary rows a handful of tiles and tokens are left. A listed set is scored whole.

use gumball_spec::TILE;
use gumball_spec::num::{key, key_id, key_logit};
use gumball_spec::survey::Measure;

use crate::cut::CutLanes;
use crate::filter::{Given, Reader};
use crate::lanes::{Kernel, Lanes, Mask, WIDTH, dispatch};
use crate::measure::{Adapted, Exponents, Pace, measured};
use crate::num;
use crate::parts::Winner;
use crate::task::Stream;
use crate::tiles::EMPTY_TILE;

/// A tile that may hold the winner.
#[derive(Clone, Copy, Debug)]
struct OpenTile {
    tile: u32,
    bound: f32,
    arrival: f32,
    log_arrival: f32,
    /// The place of the token that arrives first.
    place: u32,
}

/// Buffers of the draw stage.
#[derive(Debug, Default)]
pub struct Buffers {
    open: Vec<OpenTile>,
}

/// Who leads the race.
trait Lead {
    /// Lets a token take its place, if it has one.
    fn meet(&mut self, score: f32, id: u32);

    /// Returns the least score that may still take a place.
    fn least(&self) -> f32;
}

/// The token that leads the race; of equal scores the smallest id.
#[derive(Clone, Copy, Debug)]
struct Leader {
    score: f32,
    id: u32,
}

impl Lead for Leader {
    #[inline(always)]
    fn meet(&mut self, score: f32, id: u32) {
        if score > self.score || score == self.score && id < self.id {
            *self = Self { score, id };
        }
    }

    #[inline(always)]
    fn least(&self) -> f32 {
        self.score
    }
}

/// The first tokens of the race, the leader first; of equal scores the smallest id first. None has the score
/// -inf.
#[derive(Debug)]
struct Leaders<'a> {
    places: &'a mut [Leader],
    /// How many of the places are taken.
    taken: usize,
}

/// All tokens whose score is at least a number.
#[derive(Debug)]
struct Reaching<'a> {
    least: f32,
    ids: &'a mut Vec<u32>,
}

impl Lead for Reaching<'_> {
    #[inline(always)]
    fn meet(&mut self, score: f32, id: u32) {
        if score >= self.least && score > f32::NEG_INFINITY {
            self.ids.push(id);
        }
    }

    #[inline(always)]
    fn least(&self) -> f32 {
        self.least
    }
}

impl Lead for Leaders<'_> {
    #[inline(always)]
    fn meet(&mut self, score: f32, id: u32) {
        let ahead = |leader: &Leader| leader.score > score || leader.score == score && leader.id < id;
        let place = self.places[..self.taken].partition_point(ahead);
        if score > f32::NEG_INFINITY && place < self.places.len() {
            self.taken = self.places.len().min(self.taken + 1);
            self.places[place..self.taken].rotate_right(1);
            self.places[place] = Leader { score, id };
        }
    }

    #[inline(always)]
    fn least(&self) -> f32 {
        if self.taken < self.places.len() { f32::NEG_INFINITY } else { self.places[self.taken - 1].score }
    }
}

/// Returns the kept token that wins the race.
pub fn draw(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    keys: &[u64],
    kept: &Given,
    pace: impl Into<Pace>,
    stream: Stream,
) -> u32 {
    let mut leader = Leader { score: f32::NEG_INFINITY, id: u32::MAX };
    let of_first_tile = race(reader, buffers, keys, kept, pace, stream, &mut leader);
    // No token is left of the set where the row was written since its survey. It still has a place for one.
    if leader.id == u32::MAX { of_first_tile } else { leader.id }
}

/// Returns the kept token of a part of a row that wins the race there; its cut speaks of places.
pub fn winner(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    kept: &Given,
    measure: Measure,
    stream: Stream,
) -> Winner {
    let mut leader = Leader { score: f32::NEG_INFINITY, id: u32::MAX };
    race(reader, buffers, &[], kept, measure, stream, &mut leader);
    match leader.id {
        u32::MAX => Winner::NONE,
        id => {
            let logit = reader.view.logit((id - reader.start) as usize) + 0.0;
            Winner { score: leader.score, id, logit }
        }
    }
}

/// Appends the ids of all kept tokens whose score is at least `least`. In a row of bounds `kept.first` is the
/// largest true logit, so no true y is above 0, and a token whose bound is above it is taken as if its y were
/// 0.
pub fn that_score(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    kept: &Given,
    measure: Measure,
    stream: Stream,
    least: f32,
    ids: &mut Vec<u32>,
) {
    race(reader, buffers, &[], kept, measure, stream, &mut Reaching { least, ids });
}

/// Writes the kept tokens that arrive first, in turn, and [`NONE`] where there are no more.
pub fn first_arrivals(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    keys: &[u64],
    kept: &Given,
    measure: Measure,
    stream: Stream,
    tokens: &mut [i32],
) {
    if tokens.is_empty() {
        return;
    }
    let mut places = vec![Leader { score: f32::NEG_INFINITY, id: u32::MAX }; tokens.len()];
    let mut leaders = Leaders { places: &mut places, taken: 0 };
    race(reader, buffers, keys, kept, measure, stream, &mut leaders);
    // The id of a free place is `NONE`.
    tokens.iter_mut().zip(&places).for_each(|(token, leader)| *token = leader.id as i32);
}

/// Lets the kept tokens race; returns an id of the first token's tile, or of the first token.
fn race<P: Lead>(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    keys: &[u64],
    kept: &Given,
    pace: impl Into<Pace>,
    stream: Stream,
    leader: &mut P,
) -> u32 {
    let Pace { measure, adaptive } = pace.into();
    let parts = reader.view.parts.filter(|parts| kept.listed.is_none() && !parts.is_whole());
    measured!(measure, |weights| match (adaptive, parts) {
        (Some(adaptive), _) => {
            let weights = Adapted { weights, measure, adaptive };
            race_by(weights, reader, buffers, keys, kept, stream, leader)
        }
        (None, Some(parts)) => {
            let Winner { score, id, .. } = parts.need_winner(kept.cut, kept.first, measure);
            leader.meet(score, id);
            if id == u32::MAX { 0 } else { id }
        }
        (None, None) => race_by(weights, reader, buffers, keys, kept, stream, leader),
    })
}

/// As [`race`], by exponents: over the list of kept tokens if there is one, else over the tiles.
fn race_by<W: Exponents, P: Lead>(
    weights: W,
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    keys: &[u64],
    kept: &Given,
    stream: Stream,
    leader: &mut P,
) -> u32 {
    match &kept.listed {
        Some(range) => {
            dispatch(reader.level, ListRace { keys: &keys[range.clone()], kept, weights, stream, leader })
        }
        None => dispatch(reader.level, TileRace { reader, buffers, kept, weights, stream, leader }),
    }
}

/// The Philox words of sixteen tiles.
#[inline(always)]
fn tile_words<L: Lanes>(l: L, stream: Stream, tiles: L::U) -> [L::U; 4] {
    l.philox(stream.seed, tiles, [stream.position, stream.tags[0], stream.draw])
}

/// The first arrivals of sixteen tiles and their places.
#[inline(always)]
fn tile_arrivals<L: Lanes>(l: L, [w0, w1, w2, _]: [L::U; 4]) -> (L::F, L::U) {
    (l.mul(num::exp_of_u64(l, w0, w1), l.splat(1.0 / TILE as f32)), l.shr::<24>(w2))
}

/// How much later than their tile's first arrival sixteen other tokens arrive.
#[inline(always)]
fn token_delays<L: Lanes>(l: L, stream: Stream, ids: L::U) -> L::F {
    let rest = [stream.position, stream.tags[1], stream.draw];
    let words = l.philox(stream.seed, l.shr::<2>(ids), rest);
    let odd = l.equal_u(l.and(ids, l.splat_u(1)), l.splat_u(1));
    let high = l.equal_u(l.and(ids, l.splat_u(2)), l.splat_u(2));
    let low_pair = l.select_u(odd, words[1], words[0]);
    let high_pair = l.select_u(odd, words[3], words[2]);
    num::exp_of_u32(l, l.select_u(high, high_pair, low_pair))
}

/// Which of sixteen tiles may arrive so early that their bound reaches a score, told from the high words of
/// their uniforms alone.
///
/// A bound reaches the score if the first arrival is at most `2^(y - best)`. With `u` the uniform, 256 times
/// that arrival is `-log2(1 - u)`, which is at least `u / ln 2`. So `u <= 256 ln 2 2^(y - best)` is
/// necessary; the power is at most `(1 + f) 2^n` for a whole `n` and a fraction `f`, and 178 instead of
/// `256 ln 2` makes up for all roundings.
#[inline(always)]
fn early<L: Lanes>(l: L, high_words: L::U, y: L::F, best: f32) -> Mask {
    // Capped so that the limit is normal; where y is -inf, the bound is too and is told apart later.
    let exponent = l.min(l.max(l.sub(y, l.splat(best)), l.splat(-100.0)), l.splat(100.0));
    let n = l.round(l.sub(exponent, l.splat(0.5)));
    let power = l.add(l.splat(1.0), l.sub(exponent, n));
    let limit = l.scale(l.mul(l.splat(178.0), power), n);
    let zero = l.splat_u(0);
    l.ge(limit, l.mul(l.float_of_u64(zero, high_words), l.splat(f32::from_bits((127 - 32) << 23))))
}

/// A race of listed tokens.
struct ListRace<'a, W, P> {
    keys: &'a [u64],
    kept: &'a Given,
    weights: W,
    stream: Stream,
    leader: &'a mut P,
}

impl<W: Exponents, P: Lead> Kernel for ListRace<'_, W, P> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u32 {
        let first_value = self.weights.origin(l, l.splat(self.kept.first));
        for keys in self.keys.chunks(WIDTH) {
            let mut z = [f32::NEG_INFINITY; WIDTH];
            let mut ids = [0; WIDTH];
            for (i, key) in keys.iter().enumerate() {
                (z[i], ids[i]) = (key_logit(*key), key_id(*key));
            }
            let log_arrivals = l.call(LogArrivals { ids: &ids, stream: self.stream });
            let y = self.weights.exponent(l, l.load(&z), first_value);
            let mut scores = [0.0; WIDTH];
            l.store(l.sub(y, l.load(&log_arrivals)), &mut scores);
            for i in 0..keys.len() {
                self.leader.meet(scores[i], ids[i]);
            }
        }
        key_id(self.keys[0])
    }
}

/// The logarithms of when sixteen tokens arrive.
struct LogArrivals<'a> {
    ids: &'a [u32; WIDTH],
    stream: Stream,
}

impl Kernel for LogArrivals<'_> {
    type Output = [f32; WIDTH];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [f32; WIDTH] {
        let id = l.load_u(self.ids);
        let (first, place) = tile_arrivals(l, tile_words(l, self.stream, l.shr::<8>(id)));
        let is_first = l.equal_u(l.and(id, l.splat_u(TILE as u32 - 1)), place);
        let delay = l.select(is_first, l.splat(0.0), token_delays(l, self.stream, id));
        let mut logs = [0.0; WIDTH];
        l.store(num::log2(l, l.add(first, delay)), &mut logs);
        logs
    }
}

/// A race of all tokens of a cut.
struct TileRace<'a, W, P> {
    reader: &'a Reader<'a>,
    buffers: &'a mut Buffers,
    kept: &'a Given,
    weights: W,
    stream: Stream,
    leader: &'a mut P,
}

/// Tokens that might still win, not yet scored.
struct Candidates {
    count: usize,
    ids: [u32; 2 * WIDTH],
    y: [f32; 2 * WIDTH],
    first: [f32; 2 * WIDTH],
}

impl<W: Exponents, P: Lead> Kernel for TileRace<'_, W, P> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) -> u32 {
        let mut candidates =
            Candidates { count: 0, ids: [0; 2 * WIDTH], y: [0.0; 2 * WIDTH], first: [0.0; 2 * WIDTH] };
        let mut tiles = Tiles::default();
        self.buffers.open.clear();

        // The tile of the first token is the likeliest to win; its best score closes most of the others. So
        // its group of tiles is opened before the others.
        let first_tile = self.first_tile(l);
        let first_group = first_tile / WIDTH;
        for i in 0..self.reader.maxima.len().div_ceil(WIDTH) {
            let group = match i {
                0 => first_group,
                _ if i <= first_group => i - 1,
                _ => i,
            };
            self.open(l, group, &mut tiles);
            if i == 0 {
                let place = self.buffers.open.iter().position(|open| open.tile as usize == first_tile);
                if let Some(place) = place {
                    let first = self.buffers.open.swap_remove(place);
                    self.collect(l, &first, &mut candidates);
                    self.score(l, &mut candidates);
                }
            }
        }
        for place in 0..self.buffers.open.len() {
            let open = self.buffers.open[place];
            if open.bound >= self.leader.least() {
                self.collect(l, &open, &mut candidates);
            }
        }
        self.score(l, &mut candidates);
        (first_tile * TILE) as u32
    }
}

impl<W: Exponents, P: Lead> TileRace<'_, W, P> {
    /// The tile with the largest maximum, or where filters dropped the first tokens, some tile near it.
    #[inline(always)]
    fn first_tile<L: Lanes>(&self, l: L) -> usize {
        let first = l.splat(self.kept.first);
        let (chunks, rest) = self.reader.maxima.as_chunks::<WIDTH>();
        for (group, chunk) in chunks.iter().enumerate() {
            let reach = l.ge(l.load(chunk), first);
            if reach != 0 {
                return group * WIDTH + reach.trailing_zeros() as usize;
            }
        }
        let in_rest = rest.iter().position(|m| *m >= self.kept.first);
        // Some tile holds it, unless the row was written since its survey: then any will do.
        in_rest.map_or(0, |place| chunks.len() * WIDTH + place)
    }

    /// Adds those of sixteen tiles that may hold the winner, and lets the first arrival of each meet the
    /// leader.
    #[inline(always)]
    fn open<L: Lanes>(&mut self, l: L, group: usize, tiles: &mut Tiles) {
        let maxima = &self.reader.maxima[group * WIDTH..];
        let m = match maxima.first_chunk::<WIDTH>() {
            Some(whole) => l.load(whole),
            None => {
                let mut padded = [f32::NEG_INFINITY; WIDTH];
                padded[..maxima.len()].copy_from_slice(maxima);
                l.load(&padded)
            }
        };
        let inside = l.ge(m, l.splat(self.kept.cut.low()));
        if inside == 0 {
            return;
        }
        // Where filters dropped the first tokens, no kept token has y above 0; nor has one of a row of
        // bounds, by its true logit.
        let first = self.weights.origin(l, l.splat(self.kept.first));
        let y = self.weights.most(l, m, first);
        let mut ys = [0.0; WIDTH];
        l.store(y, &mut ys);
        let best = self.leader.least();
        let from = self.reader.start / TILE as u32 + (group * WIDTH) as u32;
        let bounds = Bounds { from, inside, y: &ys, stream: self.stream, best, tiles };
        let mut reach = l.call(bounds);
        while reach != 0 {
            let open = tiles.of_lane(reach.trailing_zeros() as usize, group);
            reach &= reach - 1;
            self.meet_first(&open);
            self.buffers.open.push(open);
        }
    }

    /// Lets the token that arrives first in a tile meet the leader: its score needs no further arrival.
    #[inline(always)]
    fn meet_first(&mut self, open: &OpenTile) {
        let id = open.tile * TILE as u32 + open.place;
        if (id as usize) < self.reader.view.vocab() {
            let z = self.reader.view.logit(id as usize) + 0.0;
            if z > f32::NEG_INFINITY && self.kept.cut.contains(key(z, id)) {
                let y = self.weights.of_one(z, self.kept.first);
                self.leader.meet(y - open.log_arrival, id + self.reader.start);
            }
        }
    }

    /// Adds the kept tokens of a tile that may still win, except for the first arrival.
    #[inline(always)]
    fn collect<L: Lanes>(&mut self, l: L, open: &OpenTile, candidates: &mut Candidates) {
        let mut scratch = EMPTY_TILE;
        let tile = open.tile as usize;
        let cut = CutLanes::new(l, self.kept.cut);
        let first = self.weights.origin(l, l.splat(self.kept.first));
        let log_arrival = l.splat(open.log_arrival);
        let place = open.place as usize;
        let logits = self.reader.view.tile(l, tile, &mut scratch);
        for (i, chunk) in logits.as_chunks::<WIDTH>().0.iter().enumerate() {
            let z = l.load(chunk);
            let y = self.weights.exponent(l, z, first);
            let mut early = l.ge(l.sub(y, log_arrival), l.splat(self.leader.least()));
            if early == 0 {
                continue;
            }
            let start = (tile * TILE + i * WIDTH) as u32;
            early &= cut.members(l, z, l.add_u(l.iota(), l.splat_u(start)));
            if place / WIDTH == i {
                early &= !(1 << (place % WIDTH));
            }
            let mut ys = [0.0; WIDTH];
            l.store(y, &mut ys);
            while early != 0 {
                let lane = early.trailing_zeros();
                early &= early - 1;
                candidates.ids[candidates.count] = self.reader.start + start + lane;
                candidates.y[candidates.count] = ys[lane as usize];
                candidates.first[candidates.count] = open.arrival;
                candidates.count += 1;
            }
            if candidates.count >= WIDTH {
                self.score(l, candidates);
            }
        }
    }

    /// Scores all candidates.
    #[inline(always)]
    fn score<L: Lanes>(&mut self, l: L, candidates: &mut Candidates) {
        l.call(Score { candidates, leader: &mut *self.leader, stream: self.stream });
    }
}

/// Sixteen tiles in columns: the fields of [`OpenTile`].
#[derive(Default)]
struct Tiles {
    bounds: [f32; WIDTH],
    arrivals: [f32; WIDTH],
    log_arrivals: [f32; WIDTH],
    places: [u32; WIDTH],
}

impl Tiles {
    #[inline(always)]
    fn of_lane(&self, lane: usize, group: usize) -> OpenTile {
        OpenTile {
            tile: (group * WIDTH + lane) as u32,
            bound: self.bounds[lane],
            arrival: self.arrivals[lane],
            log_arrival: self.log_arrivals[lane],
            place: self.places[lane],
        }
    }
}

/// Finds which of sixteen tiles may hold the winner, from the `y` of their maxima; fills the columns if one
/// may.
struct Bounds<'a> {
    /// The first of the tiles, in its row.
    from: u32,
    inside: Mask,
    y: &'a [f32; WIDTH],
    stream: Stream,
    best: f32,
    tiles: &'a mut Tiles,
}

impl Kernel for Bounds<'_> {
    type Output = Mask;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Mask {
        let tiles = l.add_u(l.iota(), l.splat_u(self.from));
        let (words, y) = (tile_words(l, self.stream, tiles), l.load(self.y));
        let reach = self.inside & early(l, words[0], y, self.best);
        if reach == 0 {
            return 0;
        }
        let (arrival, place) = tile_arrivals(l, words);
        let log_arrival = num::log2(l, arrival);
        let bound = l.sub(y, log_arrival);
        l.store(bound, &mut self.tiles.bounds);
        l.store(arrival, &mut self.tiles.arrivals);
        l.store(log_arrival, &mut self.tiles.log_arrivals);
        l.store_u(place, &mut self.tiles.places);
        reach & l.ge(bound, l.splat(self.best)) & l.gt(bound, l.splat(f32::NEG_INFINITY))
    }
}

/// Lets candidates meet the leader, until none is left.
struct Score<'a, P> {
    candidates: &'a mut Candidates,
    leader: &'a mut P,
    stream: Stream,
}

impl<P: Lead> Kernel for Score<'_, P> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { candidates, leader, stream } = self;
        for start in (0..candidates.count).step_by(WIDTH) {
            let ids = candidates.ids[start..].first_chunk().expect("two vectors of room");
            let first = l.load(candidates.first[start..].first_chunk().expect("two vectors of room"));
            let y = l.load(candidates.y[start..].first_chunk().expect("two vectors of room"));
            let arrival = l.add(first, token_delays(l, stream, l.load_u(ids)));
            let mut scores = [0.0; WIDTH];
            l.store(l.sub(y, num::log2(l, arrival)), &mut scores);
            for i in 0..WIDTH.min(candidates.count - start) {
                leader.meet(scores[i], ids[i]);
            }
        }
        candidates.count = 0;
    }
}
