//! Candle's choice of samplings, in our parameters.

use gumball_engine::{Error, FilterOrder, Result, SamplingParams};

/// How to choose a token, as in candle.
#[derive(Clone, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token.
    ArgMax,
    /// Any token.
    All {
        /// Divides the logits; 0 is greedy.
        temperature: f64,
    },
    /// One of the most likely.
    TopK {
        /// How many to keep; at least 1.
        k: usize,
        /// Divides the logits; 0 is greedy.
        temperature: f64,
    },
    /// One of the shortest prefix of some mass.
    TopP {
        /// The mass to keep; at most 1, off if 1 or not above 0.
        p: f64,
        /// Divides the logits; 0 is greedy.
        temperature: f64,
    },
    /// One that both keep; the mass is a fraction of the whole row's, as in candle.
    TopKThenTopP {
        /// How many to keep; at least 1.
        k: usize,
        /// The mass to keep; at most 1, off if 1 or not above 0.
        p: f64,
        /// Divides the logits; 0 is greedy.
        temperature: f64,
    },
    /// Any token: the same distribution as `All`.
    GumbelSoftmax {
        /// Divides the logits; 0 is greedy.
        temperature: f64,
    },
}

impl Sampling {
    /// Returns the parameters that say the same.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `k` is 0, which would keep nothing.
    pub fn to_params(&self, seed: u64) -> Result<SamplingParams> {
        let (temperature, k, p) = match *self {
            Sampling::ArgMax => (0.0, None, 1.0),
            Sampling::All { temperature } | Sampling::GumbelSoftmax { temperature } => {
                (temperature, None, 1.0)
            }
            Sampling::TopK { k, temperature } => (temperature, Some(k), 1.0),
            Sampling::TopP { p, temperature } => (temperature, None, p),
            Sampling::TopKThenTopP { k, p, temperature } => (temperature, Some(k), p),
        };
        if k == Some(0) {
            return Err(Error::out_of_range("k", 0, "at least 1"));
        }
        Ok(SamplingParams {
            temperature: temperature as f32,
            top_k: k.map_or(0, |k| i64::try_from(k).unwrap_or(i64::MAX)),
            top_p: if p <= 0.0 { 1.0 } else { p as f32 },
            // Candle does not renormalise between the two, which is what `Joint` means.
            order: FilterOrder::Joint,
            seed: Some(seed),
            ..Default::default()
        })
    }

    /// Returns whether candle lets `sample_f` see the probabilities.
    pub(crate) fn shows_probabilities(&self) -> bool {
        !matches!(self, Sampling::ArgMax | Sampling::GumbelSoftmax { .. })
    }
}
