//! How drafts are judged.

use gumball_dist::StepKind;
use gumball_spec::verify::by_probabilities::Judgement;

/// How drafts are judged. All but the first two draw other tokens than decoding without drafts does, and ask
/// a route for the probabilities of rows; a request without drafts takes a step in any mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum VerifyMode {
    /// A draft is accepted if it is the token that the request would have drawn: the output is the output of
    /// decoding without drafts (S3).
    #[default]
    Coupled,
    /// As `Coupled`, with temperature 0 in every row.
    Greedy,
    /// By the ratio of the target's and the drafter's probability, sibling after sibling; emitted tokens have
    /// the target's distribution (S5). With `probs`, siblings must have been drawn one after the other
    /// without replacement.
    Rejection,
    /// A chain as a whole, which accepts more than `Rejection` and has the same distribution (S6). With
    /// `probs`, drafts must not come from the race of their positions.
    Block,
    /// Accepts more than the target's distribution warrants (S7).
    Threshold {
        /// A draft of at least this probability is accepted; in 0..=1.
        single: f32,
        /// A draft is also accepted if a coin times this is below the probability of it and the siblings
        /// before it; in 0..=1. 1 for both is the target's distribution.
        acc: f32,
    },
}

impl VerifyMode {
    /// Returns the mode as numbers, which ranks compare.
    pub(crate) fn words(self) -> [u64; 3] {
        match self {
            VerifyMode::Coupled => [1, 0, 0],
            VerifyMode::Greedy => [2, 0, 0],
            VerifyMode::Rejection => [3, 0, 0],
            VerifyMode::Block => [4, 0, 0],
            VerifyMode::Threshold { single, acc } => [5, single.to_bits().into(), acc.to_bits().into()],
        }
    }

    /// Returns what a verification of this mode is where [layouts](gumball_dist::LogitsLayout) are decided.
    #[must_use]
    pub fn step_kind(self) -> StepKind {
        if self.judgement().is_some() { StepKind::Judge } else { StepKind::Verify }
    }

    /// Returns how drafts are judged by probabilities, if they are.
    pub(crate) fn judgement(self) -> Option<Judgement> {
        match self {
            VerifyMode::Coupled | VerifyMode::Greedy => None,
            VerifyMode::Rejection => Some(Judgement::Rejection),
            VerifyMode::Block => Some(Judgement::Block),
            VerifyMode::Threshold { single, acc } => Some(Judgement::Threshold { single, acc }),
        }
    }
}
