//! Whether draws have the probabilities they should have.
//!
//! A test states its false-alarm rate, and its seeds are fixed, so it gives the same answer every time: an
//! alarm is looked into, never run again.

pub use gumball_bench_protocol::ChiSquare;

/// How often a right backend fails a test of this crate, over the choice of seeds.
pub const FALSE_ALARM: f64 = 1e-6;

/// The least expectation of a cell by itself; the others are pooled into one.
const LEAST_EXPECTED: f64 = 10.0;

/// Compares counts with the probabilities of the cells.
///
/// # Panics
/// If a cell of probability 0 was hit: that is no matter of chance.
#[must_use]
pub fn chi_square(counts: &[u64], probabilities: &[f64]) -> ChiSquare {
    assert_eq!(counts.len(), probabilities.len());
    let draws: u64 = counts.iter().sum();
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    let mut pool = (0, 0.0);
    for (id, (&count, p)) in counts.iter().zip(probabilities).enumerate() {
        assert!(*p > 0.0 || count == 0, "token {id} lies outside the cut and was drawn {count} times");
        let expectation = p * draws as f64;
        if expectation >= LEAST_EXPECTED {
            seen.push(count);
            expected.push(expectation);
        } else {
            pool = (pool.0 + count, pool.1 + expectation);
        }
    }
    seen.push(pool.0);
    expected.push(pool.1);
    gumball_bench_protocol::chi_square(&seen, &expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_die_is_caught_and_a_fair_one_is_not() {
        let fair = [1.0 / 6.0; 6];
        assert!(chi_square(&[1000, 1010, 990, 1005, 995, 1000], &fair).p_value > 0.5);
        assert!(chi_square(&[1250, 950, 950, 950, 950, 950], &fair).p_value < FALSE_ALARM);
    }

    #[test]
    fn rare_cells_are_one() {
        let counts = [900, 40, 30, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3];
        let probabilities =
            [0.9, 0.04, 0.03, 0.003, 0.003, 0.003, 0.003, 0.003, 0.003, 0.003, 0.003, 0.003, 0.003];
        assert_eq!(chi_square(&counts, &probabilities).degrees, 3);
    }
}
