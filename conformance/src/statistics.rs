//! Chi-square: whether draws have the probabilities they should have.
//!
//! A test states its false-alarm rate, and its seeds are fixed, so it gives the same answer every time: an alarm
//! is looked into, never run again.

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
    ChiSquare { value, freedom, p_value: upper_gamma(freedom as f64 / 2.0, value / 2.0) }
}

/// Returns the regularised upper incomplete gamma function Q(a, x).
#[must_use]
pub fn upper_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 || a <= 0.0 {
        return 1.0;
    }
    let scale = (a * x.ln() - x - ln_gamma(a)).exp();
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - sum * scale;
    }
    // Lentz's continued fraction.
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1e300, 1.0 / b);
    let mut h = d;
    for i in 1..10_000 {
        let an = -f64::from(i) * (f64::from(i) - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        h *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    scale * h
}

/// Returns ln of the gamma function of a half-integer or integer, by its recurrence.
fn ln_gamma(a: f64) -> f64 {
    let (mut sum, mut x) = (0.0, a);
    while x > 1.25 {
        x -= 1.0;
        sum += x.ln();
    }
    // Gamma(1/2) is the square root of pi, Gamma(1) is 1.
    sum + if x < 0.75 { 0.5 * std::f64::consts::PI.ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_that_of_the_tables() {
        // Chi-square with f degrees of freedom: the 5 % and 0.1 % points, to the digits printed in tables.
        for (freedom, value, p) in
            [(1.0, 3.841, 0.05), (2.0, 13.816, 0.001), (10.0, 18.307, 0.05), (7.0, 24.322, 0.001)]
        {
            assert!((upper_gamma(freedom / 2.0, value / 2.0) / p - 1.0).abs() < 3e-3, "{freedom}");
        }
        assert!((upper_gamma(1.0, 20.0) / (-20.0f64).exp() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_loaded_die_is_caught_and_a_fair_one_is_not() {
        let fair = [1.0 / 6.0; 6];
        assert!(chi_square(&[1000, 1010, 990, 1005, 995, 1000], &fair).p_value > 0.5);
        assert!(chi_square(&[1250, 950, 950, 950, 950, 950], &fair).p_value < FALSE_ALARM);
    }
}
