//! The draw: an exponential race, so that one seed gives one token everywhere (rules N8, N9, D1
//! to D3).
//!
//! Token i arrives at a time `e_i ~ Exp(1)`, and the kept token with the largest `y_i - log2(e_i)` wins,
//! which is token i with probability proportional to `2^y_i`. Arrivals are defined top-down: a tile
//! draws when the first of its 256 tokens arrives and which one that is; every other token of the tile
//! arrives an independent `Exp(1)` later. Because the exponential law has no memory, all arrivals are
//! independent and `Exp(1)`, and `y_max - log2(first arrival)` bounds every score in the tile.

use crate::adaptive::exponents;
use crate::num::{Tag, exp_of_u32, exp_of_u64, log2, philox4x32_10};
use crate::request::Request;
use crate::row::TILE;
use crate::survey::Given;
use crate::watermark::Words;

/// A tile's first arrival and the place in the tile of the token that makes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileArrival {
    /// When it arrives.
    pub e: f32,
    /// Which token of the tile it is, in 0..256; it may lie beyond the vocabulary.
    pub place: u32,
}

/// The tags of a race's tiles and tokens, as counters hold them (N8).
pub type Tags = [u32; 2];

/// The tags of a draw, unless it is from a residual or of a draft.
pub const TAGS: Tags = [Tag::Tile as u32, Tag::Token as u32];

/// Returns a tile's first arrival.
#[must_use]
pub fn tile_arrival(request: &Request<'_>, tile: u32) -> TileArrival {
    tile_arrival_by(words(request), tile, TAGS[0])
}

fn tile_arrival_by(Words { seed, position, draw }: Words, tile: u32, tag: u32) -> TileArrival {
    let [w0, w1, w2, _] = philox4x32_10(seed, [tile, position, tag, draw]);
    let u = (u64::from(w0) << 32) | u64::from(w1);
    TileArrival { e: exp_of_u64(u) * (1.0 / TILE as f32), place: w2 >> 24 }
}

/// Returns a token's arrival.
#[must_use]
pub fn arrival(request: &Request<'_>, id: u32) -> f32 {
    arrival_by(words(request), id)
}

/// Returns a token's arrival in the race of these words.
#[must_use]
pub fn arrival_by(words: Words, id: u32) -> f32 {
    arrival_with(words, id, TAGS)
}

fn arrival_with(of_race: Words, id: u32, [tile_tag, token_tag]: Tags) -> f32 {
    let first = tile_arrival_by(of_race, id / TILE as u32, tile_tag);
    if id % TILE as u32 == first.place {
        return first.e;
    }
    let Words { seed, position, draw } = of_race;
    let words = philox4x32_10(seed, [id / 4, position, token_tag, draw]);
    first.e + exp_of_u32(words[id as usize % 4])
}

/// Returns what a request's race depends on: the words of its mark, or else seed, position and draw index
/// (W1).
#[must_use]
pub fn words(request: &Request<'_>) -> Words {
    let Request { seed, position, draw, mark, .. } = *request;
    mark.unwrap_or(Words { seed, position, draw })
}

/// Returns a kept token's score.
#[must_use]
pub fn score(request: &Request<'_>, kept: &Given<'_>, id: u32) -> f32 {
    exponents(request.params, request.mu, kept)(id) - log2(arrival(request, id))
}

/// Returns the token with the largest score; of equal scores the smallest id.
#[must_use]
pub fn draw(request: &Request<'_>, kept: &Given<'_>) -> u32 {
    draw_with(request, kept, TAGS)
}

/// Draws as [`draw`] does, with arrivals of other tags.
#[must_use]
pub fn draw_with(request: &Request<'_>, kept: &Given<'_>, tags: Tags) -> u32 {
    let mut ids = kept.members.to_vec();
    ids.sort_unstable();
    let mut best = (f32::NEG_INFINITY, ids[0]);
    let y = exponents(request.params, request.mu, kept);
    for id in ids {
        let score = y(id) - log2(arrival_with(words(request), id, tags));
        if score > best.0 {
            best = (score, id);
        }
    }
    best.1
}

/// Returns the kept tokens with the largest scores, `count` at most, the largest first; of equal scores the
/// smallest id first. None has the score -inf.
#[must_use]
pub fn first_arrivals(request: &Request<'_>, kept: &Given<'_>, tags: Tags, count: usize) -> Vec<u32> {
    let scored = |id: &u32| (kept.y(*id) - log2(arrival_with(words(request), *id, tags)), *id);
    let mut scores: Vec<(f32, u32)> = kept.members.iter().map(scored).collect();
    scores.retain(|(score, _)| *score > f32::NEG_INFINITY);
    scores.sort_unstable_by(|(a, a_id), (b, b_id)| b.total_cmp(a).then(a_id.cmp(b_id)));
    scores.truncate(count);
    scores.into_iter().map(|(_, id)| id).collect()
}
