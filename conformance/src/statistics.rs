//! Chi-square: whether draws have the probabilities they should have.
//!
//! A test states its false-alarm rate, and its seeds are fixed, so it gives the same answer every time: an alarm
//! is looked into, never run again.

use statrs::function::gamma::gamma_ur;

/// How often a right backend fails a test of this crate, over the choice of seeds.
pub const FALSE_ALARM: f64 = 1e-6;

/// What a chi-square test found.
#[derive(Clone, Copy, Debug)]
pub struct ChiSquare {
    /// The statistic.
    pub value: f64,
    /// Its degrees of freedom.
    pub freedom: usize,
    /// How often a right sampler gives as much or more.
    pub p_value: f64,
}

/// Compares counts with the probabilities of the cells.
///
/// Cells with an expectation below 10 are pooled into one, so that the law of the statistic holds.
///
/// # Panics
/// If a cell of probability 0 was hit: that is no matter of chance.
#[must_use]
pub fn chi_square(counts: &[u64], probabilities: &[f64]) -> ChiSquare {
    assert_eq!(counts.len(), probabilities.len());
    let draws: u64 = counts.iter().sum();
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut pool = (0.0, 0.0);
    for (id, (count, p)) in counts.iter().zip(probabilities).enumerate() {
        assert!(*p > 0.0 || *count == 0, "token {id} lies outside the cut and was drawn {count} times");
        let cell = (*count as f64, p * draws as f64);
        if cell.1 >= 10.0 {
            cells.push(cell);
        } else {
            pool = (pool.0 + cell.0, pool.1 + cell.1);
        }
    }
    if pool.1 > 0.0 {
        cells.push(pool);
    }
    let value = cells.iter().map(|(seen, expected)| (seen - expected).powi(2) / expected).sum();
    let freedom = cells.len() - 1;
    ChiSquare { value, freedom, p_value: chi_square_tail(freedom, value) }
}

/// Returns how often a chi-square variable of some degrees of freedom is at least a value.
fn chi_square_tail(freedom: usize, value: f64) -> f64 {
    if freedom == 0 || value <= 0.0 { 1.0 } else { gamma_ur(freedom as f64 / 2.0, value / 2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_that_of_the_tables() {
        // Chi-square with f degrees of freedom: the 5 % and 0.1 % points, to the digits printed in tables.
        for (freedom, value, p) in
            [(1, 3.841, 0.05), (2, 13.816, 0.001), (10, 18.307, 0.05), (7, 24.322, 0.001)]
        {
            assert!((chi_square_tail(freedom, value) / p - 1.0).abs() < 3e-3, "{freedom}");
        }
        assert!((chi_square_tail(2, 40.0) / (-20.0f64).exp() - 1.0).abs() < 1e-12);
        // Of many cells, as whole vocabularies have.
        assert!((chi_square_tail(100_000, 100_736.2) / 0.05 - 1.0).abs() < 3e-2);
    }

    #[test]
    fn a_loaded_die_is_caught_and_a_fair_one_is_not() {
        let fair = [1.0 / 6.0; 6];
        assert!(chi_square(&[1000, 1010, 990, 1005, 995, 1000], &fair).p_value > 0.5);
        assert!(chi_square(&[1250, 950, 950, 950, 950, 950], &fair).p_value < FALSE_ALARM);
    }
}
