//! The JSON of a drawn token's logprob.

use gumball_spec::logprobs::TokenLogprob;
use serde::Serialize;

/// A token's logprob.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LogprobRecord {
    /// The token.
    pub id: i32,
    /// Its natural log probability.
    pub logprob: f32,
    /// Its place in the order of the mode, from 1; 0 if it has none.
    pub rank: u32,
    /// Of a drawn token its natural log probability in the second mode, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub second: Option<f32>,
}

impl LogprobRecord {
    /// Returns its logprobs in one mode or two, with some decimals.
    #[must_use]
    pub fn shown(&self, decimals: usize) -> String {
        let all = [self.logprob].into_iter().chain(self.second);
        all.map(|logprob| format!("{logprob:.decimals$}")).collect::<Vec<_>>().join(", ")
    }
}

impl From<&TokenLogprob> for LogprobRecord {
    fn from(token: &TokenLogprob) -> Self {
        Self { id: token.id, logprob: token.logprob, rank: token.rank, second: None }
    }
}
