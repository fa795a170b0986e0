//! Rows of logits out of a seed: those of the bench, of tests and of examples.
//!
//! They are made from integers alone, so that every machine makes the same ones. Real rows are not made here: the bench
//! reads them from the conformance corpus.

use crate::{RowKind, Words};

/// How many tokens of a model-like row are raised.
const PEAKS: usize = 20;

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

/// Returns a row of few distinct values, so that most cuts fall on ties.
#[must_use]
pub fn grid(vocab: usize, step: f32, levels: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    (0..vocab).map(|_| step * words.below(levels) as f32).collect()
}

/// Returns row number `row` of a kind that the bench measures. Each row has a stream of its own, so a file of more rows
/// begins with the rows of a shorter one.
///
/// # Panics
/// For [`RowKind::Real`], which nobody can make.
#[must_use]
pub fn row(kind: RowKind, vocab: usize, seed: u64, row: usize) -> Vec<f32> {
    let seed = seed.wrapping_add(Words(row as u64).word());
    match kind {
        RowKind::Model => model_like(vocab, seed),
        RowKind::Flat => bell(vocab, 1e-3, seed),
        RowKind::Equal => vec![0.5 + row as f32; vocab],
        RowKind::Real => panic!("real rows are recorded, not made"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_function_of_kind_seed_and_number() {
        for kind in [RowKind::Model, RowKind::Flat, RowKind::Equal] {
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
    fn odd_and_tiny_vocabularies_are_filled() {
        for vocab in [1, 2, 3, 77] {
            assert_eq!(row(RowKind::Model, vocab, 9, 4).len(), vocab);
        }
    }
}
