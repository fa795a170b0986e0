//! Grouped-query attention over a cache of keys and values.
//!
//! One unit of work is one query head of one row: scores against all keys up to its own position, a
//! softmax, the weighted sum of values. Units are independent and each adds in the order of positions, so
//! the result depends neither on the threads nor on how many rows a pass brings.

use rayon::prelude::*;

use super::config::Config;
use super::weights::dot;

/// The fewest multiplications for which a pass takes more threads than its own.
const WORTH_A_THREAD: usize = 1 << 19;

/// The keys and values of one block, position after position, f32.
#[derive(Debug, Clone, Default)]
pub(super) struct Cache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Cache {
    /// Appends positions.
    pub(super) fn push(&mut self, keys: &[f32], values: &[f32]) {
        self.keys.extend_from_slice(keys);
        self.values.extend_from_slice(values);
    }

    /// Forgets everything from `length` elements on.
    pub(super) fn truncate(&mut self, length: usize) {
        self.keys.truncate(length);
        self.values.truncate(length);
    }
}

/// Attends from rows of rotated queries at positions `start..` to a cache that already holds them.
///
/// `queries` is `[rows, heads * head_dim]`; so is the result.
pub(super) fn attend(config: &Config, cache: &Cache, queries: &[f32], start: usize) -> Vec<f32> {
    let head_dim = config.head_dim;
    let kv_width = config.kv_heads * head_dim;
    let group = config.heads / config.kv_heads;
    let scale = 1.0 / (head_dim as f32).sqrt();

    let unit = |scores: &mut Vec<f32>, (index, (mixed, query)): (usize, (&mut [f32], &[f32]))| {
        let (row, head) = (index / config.heads, index % config.heads);
        let visible = start + row + 1;
        let offset = head / group * head_dim;
        let head_of = |store: &'_ [f32], position: usize| position * kv_width + offset..store.len();

        scores.clear();
        scores.extend((0..visible).map(|position| {
            let key = &cache.keys[head_of(&cache.keys, position)][..head_dim];
            dot(query, key) * scale
        }));
        softmax(scores);
        for (position, &weight) in scores.iter().enumerate() {
            let value = &cache.values[head_of(&cache.values, position)][..head_dim];
            mixed.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
    };

    let mut mixed = vec![0.0; queries.len()];
    let units = queries.len() / head_dim;
    let work = 2 * queries.len() * (start + units / config.heads);
    if work < WORTH_A_THREAD {
        let mut scores = Vec::new();
        let heads = mixed.chunks_exact_mut(head_dim).zip(queries.chunks_exact(head_dim));
        heads.enumerate().for_each(|item| unit(&mut scores, item));
    } else {
        let heads = mixed.par_chunks_exact_mut(head_dim).zip(queries.par_chunks_exact(head_dim));
        heads.enumerate().for_each_init(Vec::new, unit);
    }
    mixed
}

/// Turns scores into weights that sum to one.
fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut mass = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        mass += *score;
    }
    scores.iter_mut().for_each(|score| *score /= mass);
}
