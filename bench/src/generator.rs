//! Rows of logits out of a seed.
//!
//! Each row has a stream of its own, so a file of more rows begins with the same rows as a shorter
//! one. Real rows are not made here: `staging` reads them from the conformance corpus.

use gumball_bench_protocol::{RowKind, SplitMix64};

/// How many tokens of a model-like row stand out.
const PEAKS: usize = 20;

/// Row number `row` of a kind.
///
/// # Panics
/// For [`RowKind::Real`], which nobody can make.
pub fn row(kind: RowKind, vocab: usize, seed: u64, row: usize) -> Vec<f32> {
    let mut words = SplitMix64::new(seed.wrapping_add(SplitMix64::new(row as u64).word()));
    match kind {
        RowKind::Model => model(&mut words, vocab),
        RowKind::Flat => normal(&mut words, vocab, 1e-3),
        RowKind::Equal => vec![0.5 + row as f32; vocab],
        RowKind::Real => panic!("real rows are recorded, not made"),
    }
}

fn model(words: &mut SplitMix64, vocab: usize) -> Vec<f32> {
    let mut logits = normal(words, vocab, 2.0);
    for _ in 0..PEAKS {
        logits[words.below(vocab)] += (6.0 + 8.0 * words.uniform()) as f32;
    }
    logits
}

fn normal(words: &mut SplitMix64, vocab: usize, sigma: f64) -> Vec<f32> {
    let mut logits = Vec::with_capacity(vocab + 1);
    while logits.len() < vocab {
        logits.extend(words.normals().map(|normal| (sigma * normal) as f32));
    }
    logits.truncate(vocab);
    logits
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
