//! The distribution a row is drawn from, in f64.
//!
//! The kept set is the oracle's, for a cut is exact by definition; the probabilities inside it are textbook
//! softmax in f64, from which the probabilities of adaptive-p follow. XTC acts at random, so its distribution
//! is a mixture of the one with XTC and the one without.

use gumball_spec::edit::edit;
use gumball_spec::filter::fraction_to_u32;
use gumball_spec::{Request, Row, SamplingParams, oracle};

use crate::Result;

/// Tokens that may be drawn, with their probabilities.
#[derive(Clone, Debug)]
pub struct Exact {
    /// The ids, most likely first.
    pub ids: Vec<u32>,
    /// Their probabilities.
    pub p: Vec<f64>,
}

impl Exact {
    /// Computes the distribution of a row at a request's state; the seed does not matter.
    ///
    /// # Errors
    /// The errors of the oracle.
    pub fn of(row: Row<'_>, request: &Request<'_>) -> Result<Self> {
        let params = request.params;
        if params.xtc_probability == 0.0 {
            return Self::without_chance(row, request);
        }
        let acting = fraction_to_u32(params.xtc_probability) as f64 / 4_294_967_296.0;
        let always = SamplingParams { xtc_probability: 1.0, ..params.clone() };
        let never = SamplingParams { xtc_probability: 0.0, ..params.clone() };
        let always = Self::without_chance(row, &Request { params: &always, ..*request })?;
        let mut mixed = Self::without_chance(row, &Request { params: &never, ..*request })?;
        // XTC drops a prefix, so the tokens that it leaves are the last ones of the list without XTC.
        let dropped = mixed.ids.len() - always.ids.len();
        assert_eq!(mixed.ids[dropped..], always.ids, "XTC drops a prefix");
        mixed.p.iter_mut().for_each(|p| *p *= 1.0 - acting);
        mixed.p[dropped..].iter_mut().zip(&always.p).for_each(|(p, with)| *p += acting * with);
        Ok(mixed)
    }

    fn without_chance(row: Row<'_>, request: &Request<'_>) -> Result<Self> {
        let outcome = oracle::sample(row, request, None)?;
        let z = edit(row, request, None).z;
        let ids = outcome.kept_ids().to_vec();
        let Some(first) = ids.first() else { return Ok(Self { ids, p: Vec::new() }) };
        let first = f64::from(z[*first as usize]);
        let temperature = f64::from(outcome.temperature);
        let weight = |id: &u32| match f64::from(z[*id as usize]) - first {
            0.0 => 1.0,
            below => (below / temperature).exp(),
        };
        let mut p = shares(ids.iter().map(weight).collect());
        if request.params.is_adaptive() {
            // D3, in real numbers.
            let goal =
                2.0 * f64::from(request.params.adaptive_target) - f64::from(request.mu).clamp(0.0, 1.0);
            let goal = goal.clamp(0.0, 1.0);
            let distances = p.iter().map(|p| (p - goal).abs() / 0.3);
            p = shares(distances.map(|d| (-10.0 * d * d / (1.0 + d)).exp()).collect());
        }
        Ok(Self { ids, p })
    }
}

/// Returns weights relative to their sum.
fn shares(weights: Vec<f64>) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}
