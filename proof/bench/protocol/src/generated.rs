//! Rows of logits that follow from a seed, for the bench, tests and examples.
//!
//! They are made from integers alone, so that every machine makes the same ones. Real rows are not made here:
//! the bench reads them from the conformance corpus.

use crate::{RowKind, Words};

/// How many tokens of a model-like row are raised.
const PEAKS: usize = 20;
/// How many tokens the first heap of [`two_heaps`] has, or a hundredth of a smaller vocabulary; the second
/// has ten times as many.
const HEAP: usize = 300;

/// Returns a row like a model's: a bell of deviation 2, and twenty peaks raised by 6 to 14.
#[must_use]
pub fn model_like(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let mut row: Vec<f32> = (0..vocab).map(|_| 2.0 * words.bell()).collect();
    for _ in 0..PEAKS {
        let id = words.below(vocab);
        row[id] += 6.0 + 8.0 * words.fraction();
    }
    row
}

/// Returns a bell-shaped row of a deviation.
#[must_use]
pub fn bell(vocab: usize, deviation: f32, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    (0..vocab).map(|_| deviation * words.bell()).collect()
}

/// Returns a bell-shaped row of deviation 0.4 in which one token in a hundred is raised by 5.5: in most tiles
/// several tokens may win.
#[must_use]
pub fn hundredth(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(!seed);
    let raise = |logit: f32| if words.below(100) == 0 { logit + 5.5 } else { logit };
    bell(vocab, 0.4, seed).into_iter().map(raise).collect()
}

/// Returns a row of few distinct values, so that most cuts fall on ties.
#[must_use]
pub fn grid(vocab: usize, step: f32, levels: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    (0..vocab).map(|_| step * words.below(levels) as f32).collect()
}

/// Returns a row that searches find hard, with a temperature and a share of the mass for it: heaps of tokens
/// whose middles, spreads and sizes go over many powers of two, some of them in a part of the tiles only.
#[must_use]
pub fn scattered(vocab: usize, seed: u64) -> (Vec<f32>, f32, f32) {
    let mut words = Words(seed);
    let power = |words: &mut Words, from: i32, to: i32| {
        let exponent = from + words.below((to - from) as usize) as i32;
        f32::from_bits(((127 + exponent) as u32) << 23) * (1.0 + words.fraction())
    };
    let rest = (power(&mut words, 28, 31), power(&mut words, -20, 28));
    let mut row: Vec<f32> = (0..vocab).map(|_| -rest.0 - rest.1 * words.fraction()).collect();
    for _ in 0..1 + words.below(6) {
        let middle = power(&mut words, -20, 27) * if words.below(3) == 0 { 1.0 } else { -1.0 };
        let (spread, size) = (power(&mut words, -40, 26), power(&mut words, 0, 15) as usize);
        let every = 1 + words.below(4);
        for _ in 0..size {
            let id = words.below(vocab);
            if every == 1 || !(id / 256 % 4).is_multiple_of(every) {
                row[id] = middle + spread * words.fraction();
            }
        }
    }
    (row, power(&mut words, -10, 24), [0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999][words.below(8)])
}

/// Returns a Zipf-like row: minus `exponent` times the logarithm of a token's rank, with noise of deviation
/// 0.1. Ranks lie at random over the ids.
#[must_use]
pub fn zipf(vocab: usize, exponent: f32, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let mut log = 0.0;
    let ranked = (1..=vocab).map(|rank| {
        let logit = -exponent * log as f32;
        log += log_of_next(rank);
        logit
    });
    let mut row: Vec<f32> = ranked.map(|logit| logit + 0.1 * words.bell()).collect();
    for last in (1..vocab).rev() {
        row.swap(last, words.below(last + 1));
    }
    row
}

/// Returns `ln(n + 1) - ln(n)` by its series, because other machines may have another logarithm.
fn log_of_next(n: usize) -> f64 {
    let x = 1.0 / (2 * n + 1) as f64;
    let series = (0..12).rev().fold(0.0, |sum, term| sum * x * x + 1.0 / f64::from(2 * term + 1));
    2.0 * x * series
}

/// Returns a bell of deviation 1 with two heaps of tokens: 300 near 8, and 3000 that all are 5. About half of
/// the mass at temperature 1 lies in the first heap, and a quarter in the second.
#[must_use]
pub fn two_heaps(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let mut row: Vec<f32> = (0..vocab).map(|_| words.bell()).collect();
    let heap = HEAP.min(vocab / 100);
    for _ in 0..heap {
        row[words.below(vocab)] = 8.0 + 0.1 * words.bell();
    }
    for _ in 0..10 * heap {
        row[words.below(vocab)] = 5.0;
    }
    row
}

/// Returns a bell of deviation 2, rounded to eighths as bf16 rows are: many tokens have each value.
#[must_use]
pub fn ties(vocab: usize, seed: u64) -> Vec<f32> {
    bell(vocab, 2.0, seed).into_iter().map(|logit| (8.0 * logit).round() / 8.0).collect()
}

/// Returns row number `row` of a kind that the bench measures. Each row has a stream of its own, so a file of
/// more rows begins with the rows of a shorter one.
///
/// # Panics
/// For [`RowKind::Real`], whose rows are recorded.
#[must_use]
pub fn row(kind: RowKind, vocab: usize, seed: u64, row: usize) -> Vec<f32> {
    let seed = seed.wrapping_add(Words(row as u64).word());
    match kind {
        RowKind::Model => model_like(vocab, seed),
        RowKind::Flat => bell(vocab, 1e-3, seed),
        RowKind::Equal => vec![0.5 + row as f32; vocab],
        RowKind::Bell => bell(vocab, 2.0, seed),
        RowKind::Zipf1 => zipf(vocab, 1.0, seed),
        RowKind::Zipf15 => zipf(vocab, 1.5, seed),
        RowKind::Heaps => two_heaps(vocab, seed),
        RowKind::Ties => ties(vocab, seed),
        RowKind::Real => panic!("real rows are recorded, not made"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_function_of_kind_seed_and_number() {
        for kind in RowKind::ALL.into_iter().filter(|kind| *kind != RowKind::Real) {
            assert_eq!(row(kind, 301, 5, 2), row(kind, 301, 5, 2));
            assert_ne!(row(kind, 301, 5, 2), row(kind, 301, 5, 3));
        }
        assert_ne!(row(RowKind::Model, 301, 5, 2), row(RowKind::Model, 301, 6, 2));
    }

    #[test]
    fn a_model_like_row_has_sigma_2_and_some_peaks() {
        let logits = row(RowKind::Model, 50_000, 1, 0);
        let n = logits.len() as f64;
        let sigma = (logits.iter().map(|&z| f64::from(z).powi(2)).sum::<f64>() / n).sqrt();
        assert!((2.0..2.1).contains(&sigma), "{sigma}");
        let high = logits.iter().filter(|&&z| z > 9.0).count();
        assert!((5..=PEAKS).contains(&high), "{high}");
        assert!(logits.iter().all(|&z| z.abs() < 26.0));
    }

    #[test]
    fn flat_rows_are_nearly_equal_and_equal_rows_are() {
        let flat = row(RowKind::Flat, 10_000, 1, 0);
        assert!(flat.iter().all(|z| z.abs() < 0.01));
        assert!(flat.iter().any(|z| *z != flat[0]));
        let equal = row(RowKind::Equal, 10_000, 1, 0);
        assert!(equal.iter().all(|z| *z == equal[0]));
    }

    #[test]
    fn zipf_like_rows_fall_by_the_logarithm_of_the_rank() {
        let mut row = zipf(20_000, 1.5, 3);
        let first = row.iter().position(|&z| z > -0.5);
        assert_ne!(first, Some(0));
        row.sort_by(|a, b| b.total_cmp(a));
        for (rank, logit) in
            [(20, -1.5 * 20f32.ln()), (2000, -1.5 * 2000f32.ln()), (20_000, -1.5 * 20_000f32.ln())]
        {
            assert!((row[rank - 1] - logit).abs() < 0.5, "{rank}: {} for {logit}", row[rank - 1]);
        }
        let log: f64 = (1..1000).map(log_of_next).sum();
        assert!((log - 1000f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn heaps_stand_above_a_bell() {
        let row = two_heaps(100_000, 3);
        let first = row.iter().filter(|z| **z > 7.0).count();
        let second = row.iter().filter(|z| **z == 5.0).count();
        assert!((280..=HEAP).contains(&first) && (2800..=10 * HEAP).contains(&second), "{first}, {second}");
    }

    #[test]
    fn odd_and_tiny_vocabularies_are_filled() {
        for vocab in [1, 2, 3, 77] {
            assert_eq!(row(RowKind::Model, vocab, 9, 4).len(), vocab);
            assert_eq!(zipf(vocab, 1.0, 9).len(), vocab);
            assert_eq!(two_heaps(vocab, 9).len(), vocab);
        }
    }
}
