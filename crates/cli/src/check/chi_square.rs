//! Pearson's chi-square test of counts against probabilities.

/// Bins are joined until each expects at least this many draws.
const LEAST_EXPECTED: f64 = 10.0;

/// What the test found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChiSquare {
    /// The sum of squared deviations over expectations.
    pub statistic: f64,
    /// Bins less one.
    pub degrees: usize,
    /// How often a right engine deviates as much or more.
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
    let p_value = if degrees == 0 { 1.0 } else { upper_gamma(degrees as f64 / 2.0, statistic / 2.0) };
    ChiSquare { statistic, degrees, p_value }
}

/// Returns the regularised upper incomplete gamma function `Q(a, x)`.
///
/// A power series below the bend and Lentz's continued fraction above it.
fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    let front = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return (1.0 - front * sum).max(0.0);
    }
    let tiny = 1e-300;
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1.0 / tiny, 1.0 / b);
    let mut h = d;
    for i in 1..100_000 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        let away = |value: f64| if value.abs() < tiny { tiny } else { value };
        d = 1.0 / away(an * d + b);
        c = away(b + an / c);
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * h
}

/// Returns the logarithm of the gamma function: Stirling's series, from 12 up by recurrence.
fn ln_gamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 12.0 {
        shift += x.ln();
        x += 1.0;
    }
    let r = 1.0 / (x * x);
    let series = (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r / 1680.0))) / x;
    (x - 0.5) * x.ln() - x + 0.5 * std::f64::consts::TAU.ln() + series - shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_values_agree_with_tables() {
        // The 5 % and 0.1 % points of the chi-square law, from printed tables.
        for (degrees, point, p) in
            [(1.0, 3.841, 0.05), (10.0, 18.307, 0.05), (100.0, 124.342, 0.05), (1.0, 10.828, 0.001)]
        {
            let found = upper_gamma(degrees / 2.0, point / 2.0);
            assert!((found / p - 1.0).abs() < 2e-3, "{degrees} {point}: {found}");
        }
        assert!((upper_gamma(0.5, 20.0) / 2.539_6e-10 - 1.0).abs() < 1e-3);
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
