//! What becomes of samples: their median, and how far the fast and the slow ones are from it.

/// The order statistics of a handful of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The smallest sample: the time where nothing disturbs the machine.
    pub min: f64,
    /// The middle sample, or the mean of the middle two.
    pub median: f64,
    /// The smallest sample that at least 95 % of them do not exceed.
    pub p95: f64,
}

/// Summarises samples; none for no samples.
pub fn summary(samples: &[f64]) -> Option<Summary> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    let median = (sorted.get(n / 2)? + sorted[(n - 1) / 2]) / 2.0;
    let p95 = sorted[(n * 95).div_ceil(100) - 1];
    Some(Summary { min: sorted[0], median, p95 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle() {
        assert_eq!(summary(&[4.0, 1.0, 3.0, 2.0]), Some(Summary { min: 1.0, median: 2.5, p95: 4.0 }));
        assert_eq!(summary(&[3.0, 1.0, 2.0]), Some(Summary { min: 1.0, median: 2.0, p95: 3.0 }));
    }

    #[test]
    fn the_95th_percentile_leaves_one_of_twenty_above() {
        let samples: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(summary(&samples).unwrap().p95, 19.0);
        assert_eq!(summary(&samples[..10]).unwrap().p95, 10.0);
    }

    #[test]
    fn one_sample_is_its_own_summary_and_none_has_none() {
        assert_eq!(summary(&[7.0]), Some(Summary { min: 7.0, median: 7.0, p95: 7.0 }));
        assert_eq!(summary(&[]), None);
    }
}
