//! Pearson's chi-square test of counts against expected counts.

use statrs::function::gamma::gamma_ur;

/// Bins are joined until each expects at least this many draws.
const LEAST_EXPECTED: f64 = 10.0;

/// The result of the test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChiSquare {
    /// The sum of squared deviations over expectations.
    pub statistic: f64,
    /// Bins less one.
    pub degrees: usize,
    /// How often an engine that is right deviates as much or more.
    pub p_value: f64,
}

/// Tests counts against expected counts; tokens in turn are joined into bins.
///
/// With fewer than two bins there is nothing to test, and the p-value is 1.
#[must_use]
pub fn chi_square(counts: &[u64], expected: &[f64]) -> ChiSquare {
    let mut bins: Vec<(f64, f64)> = Vec::new();
    let mut open = (0.0, 0.0);
    for (count, expected) in counts.iter().zip(expected) {
        open = (open.0 + *count as f64, open.1 + expected);
        if open.1 >= LEAST_EXPECTED {
            bins.push(std::mem::take(&mut open));
        }
    }
    match bins.last_mut() {
        Some(last) => *last = (last.0 + open.0, last.1 + open.1),
        None => bins.push(open),
    }
    let statistic = bins.iter().map(|(count, expected)| (count - expected).powi(2) / expected).sum();
    let degrees = bins.len() - 1;
    ChiSquare { statistic, degrees, p_value: tail(degrees, statistic) }
}

/// Returns how often a chi-square variable of some degrees of freedom is at least a value.
fn tail(degrees: usize, value: f64) -> f64 {
    if degrees == 0 || value <= 0.0 { 1.0 } else { gamma_ur(degrees as f64 / 2.0, value / 2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_that_of_the_tables() {
        // Chi-square with f degrees of freedom: the 5 % and 0.1 % points, to the digits printed in tables.
        for (degrees, value, p) in
            [(1, 3.841, 0.05), (2, 13.816, 0.001), (10, 18.307, 0.05), (7, 24.322, 0.001)]
        {
            assert!((tail(degrees, value) / p - 1.0).abs() < 3e-3, "{degrees}");
        }
        assert!((tail(2, 40.0) / (-20.0f64).exp() - 1.0).abs() < 1e-12);
        // Of many cells, as whole vocabularies have.
        assert!((tail(100_000, 100_736.2) / 0.05 - 1.0).abs() < 3e-2);
    }

    #[test]
    fn counts_as_expected_pass_and_shifted_ones_fail() {
        let expected = [100.0; 20];
        assert_eq!(chi_square(&[100; 20], &expected).p_value, 1.0);
        let mut shifted = [100u64; 20];
        (shifted[0], shifted[1]) = (170, 30);
        assert!(chi_square(&shifted, &expected).p_value < 1e-9);
    }

    #[test]
    fn rare_tokens_are_joined() {
        let test = chi_square(&[50, 3, 2, 4, 1], &[48.0, 3.0, 3.0, 3.0, 3.0]);
        assert_eq!(test.degrees, 1);
    }
}
