//! A tile: its numbers, and what tokens of it sum to (rules M3 to M5).

use gumball_spec::TILE;
use gumball_spec::survey::{log_mass, mean_distance};

/// The logits of one tile; -inf beyond the vocabulary.
pub type Tile = [f32; TILE];

/// A tile of nothing.
pub const EMPTY_TILE: Tile = [f32::NEG_INFINITY; TILE];

/// A tile's sums over some part of a given set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileSum {
    /// The sum of the weights.
    pub q: u64,
    /// The sum of the weights times their distance below the tile's maximum; 0 unless entropy was asked for.
    pub r: u64,
    /// How many tokens there are.
    pub count: u32,
}

/// The mass and the number of the tokens in a part of a given set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Its mass, in units of 2^-43 of the weight of the given set's first token.
    pub mass: u64,
    /// How many tokens it has.
    pub count: usize,
}

/// Returns a distance in units of 2^-20, capped at 32 (M5).
pub fn fixed_distance(d: f32) -> u64 {
    (1_048_576.0 * d.min(32.0)).round_ties_even() as u64
}

/// Returns the entropy of a set of the given mass whose weighted distances sum to `sum` (M5).
pub fn entropy_of(mass: u64, sum: u64) -> f32 {
    log_mass(mass) + mean_distance(mass, sum)
}
