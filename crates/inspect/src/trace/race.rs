//! The race: arrivals, scores, and which tiles had to be looked at.

use gumball_spec::TILE;
use gumball_spec::adaptive::exponents;
use gumball_spec::draw::{arrival, tile_arrival};
use gumball_spec::num::log2;
use serde::Serialize;

use super::{Path, Token};

/// The race of a kept set.
#[derive(Clone, Debug, Serialize)]
pub struct Race {
    /// The best score.
    pub best: f32,
    /// How many tokens ran.
    pub runners: usize,
    /// How many tiles hold one of them.
    pub tiles: usize,
    /// How many tiles have a bound that reaches the best score, which must be looked at.
    pub open_tiles: usize,
    /// The tokens with the best scores, best first.
    pub leaders: Vec<Token>,
    /// Kept tokens for a plot: the most likely ones and the leaders.
    pub field: Vec<Runner>,
    /// The tiles with a runner, by their bound, highest first.
    pub bounds: Vec<Tile>,
}

/// A kept token at the start.
#[derive(Clone, Debug, Serialize)]
pub struct Runner {
    /// The token.
    pub id: u32,
    /// Its text, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its weight as an exponent of two: relative to the first kept token, or with adaptive-p to the favoured
    /// probability.
    pub y: f32,
    /// When it arrived.
    pub arrival: f32,
    /// Its score: `y - log2(arrival)`.
    pub score: f32,
}

/// A tile with a runner.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tile {
    /// The tile: ids from 256 times this on.
    pub tile: u32,
    /// The largest weight that a token of it may have, as an exponent of two.
    pub y: f32,
    /// When the first of its tokens arrives.
    pub arrival: f32,
    /// No score in the tile is larger.
    pub bound: f32,
}

/// How many leaders are listed.
const LEADERS: usize = 12;
/// How many of the most likely tokens are in the plot.
const FIELD: usize = 500;
/// How many tiles are in the plot.
const BOUNDS: usize = 600;

impl Race {
    pub(super) fn of(path: &Path<'_>, row_mass: u64, kept_mass: u64) -> Self {
        let kept = path.kept();
        let request = path.request;
        let y = exponents(request.params, request.mu, &kept);
        let score = |id| y(id) - log2(arrival(request, id));
        let mut scores: Vec<(f32, u32, usize)> =
            path.kept.clone().map(|place| (score(path.order[place]), path.order[place], place)).collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let best = scores[0].0;

        let mut tops = std::collections::BTreeMap::new();
        for id in kept.members {
            // Under adaptive-p no token weighs more than one of the favoured probability, and each tile may
            // hold such a token.
            let top = if request.params.is_adaptive() { 0.0 } else { kept.y(*id) };
            tops.entry(id / TILE as u32).or_insert(top);
        }
        let bound = |(tile, y): (u32, f32)| {
            let arrival = tile_arrival(request, tile).e;
            Tile { tile, y, arrival, bound: y - log2(arrival) }
        };
        let mut bounds: Vec<Tile> = tops.into_iter().map(bound).collect();
        bounds.sort_by(|a, b| b.bound.total_cmp(&a.bound).then(a.tile.cmp(&b.tile)));
        let (tiles, open_tiles) = (bounds.len(), bounds.iter().filter(|tile| tile.bound >= best).count());
        bounds.truncate(BOUNDS.max(open_tiles));

        let runner = |place: usize| {
            let id = path.order[place];
            Runner { id, text: (path.texts)(id), y: y(id), arrival: arrival(request, id), score: score(id) }
        };
        let seen = path.kept.end.min(path.kept.start + FIELD);
        let behind = scores.iter().take(LEADERS).map(|(.., place)| *place).filter(|place| *place >= seen);
        let field = (path.kept.start..seen).chain(behind).map(runner).collect();
        let leaders =
            scores.iter().take(LEADERS).map(|(.., place)| path.token(*place, row_mass, kept_mass)).collect();
        Self { best, runners: path.kept.len(), tiles, open_tiles, leaders, field, bounds }
    }
}
