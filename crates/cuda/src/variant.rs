//! Variants of a step: kernels for rows that ask for little, and for rows that ask for more.
//!
//! Which one a step takes is a pure function of what the requests of its rows ask for, evaluated when it is enqueued or
//! replayed: so a captured step, which holds all of them, never serves rows that ask for more than its kernels do.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Params, asks};
use crate::filter;

/// The kernels of a step. Each variant serves all that the ones before it serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Greedy rows, and races over whole rows or what min-p keeps.
    Lean,
    /// The same, and rows whose filters are tried on a list.
    Listed,
    /// Rows without edits and masks.
    Unedited,
    /// Rows whose edits do not hang on how the history ends.
    Edited,
    /// All rows.
    Searching,
}

impl Variant {
    /// All of them, in their order.
    pub const ALL: [Self; 5] = [Self::Lean, Self::Listed, Self::Unedited, Self::Edited, Self::Searching];

    /// Returns the least variant for a request.
    pub(crate) fn of(params: &Params) -> Self {
        const LEAN: u32 = asks::GREEDY | asks::JOINT | asks::TEMPERATURE_LAST;
        if params.asks & asks::SEARCH != 0 {
            Self::Searching
        } else if params.asks & (asks::EDITS | asks::ALLOWED) != 0 {
            Self::Edited
        } else if params.asks & !LEAN == 0 && (params.chain == 0 || params.chain == filter::MIN_P) {
            Self::Lean
        } else if params.asks & !(LEAN | asks::LIST | asks::SUMS) == 0 && params.asks & asks::LIST != 0 {
            Self::Listed
        } else {
            Self::Unedited
        }
    }
}

/// How many steps each variant served.
#[derive(Debug, Default)]
pub(crate) struct Served([AtomicU64; Variant::ALL.len()]);

impl Served {
    pub fn count(&self, variant: Variant, steps: u64) {
        self.0[variant as usize].fetch_add(steps, Ordering::Relaxed);
    }

    pub fn steps(&self, variant: Variant) -> u64 {
        self.0[variant as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use gumball_spec::{LogprobsParams, SamplingParams};

    use super::*;
    use crate::Prepared;

    fn variant(params: SamplingParams) -> Variant {
        Variant::of(&Prepared::new(&params, 1000).unwrap().params())
    }

    #[test]
    fn requests_take_the_least_variant() {
        let plain = SamplingParams::default;
        assert_eq!(variant(plain()), Variant::Lean);
        assert_eq!(variant(SamplingParams { temperature: 0.0, ..plain() }), Variant::Lean);
        assert_eq!(variant(SamplingParams { min_p: 0.1, temperature_last: true, ..plain() }), Variant::Lean);
        assert_eq!(
            variant(SamplingParams { min_p: 0.1, xtc_probability: 0.5, ..plain() }),
            Variant::Unedited
        );
        assert_eq!(
            variant(SamplingParams { logprobs: Some(LogprobsParams::default()), ..plain() }),
            Variant::Unedited
        );
        let listed = SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.05, ..plain() };
        assert_eq!(variant(listed.clone()), Variant::Listed);
        assert_eq!(variant(SamplingParams { top_p: 0.9, ..plain() }), Variant::Listed);
        assert_eq!(variant(SamplingParams { top_k: 900, ..plain() }), Variant::Unedited);
        assert_eq!(variant(SamplingParams { typical_p: 0.9, ..listed }), Variant::Unedited);
        assert_eq!(variant(SamplingParams { repetition_penalty: 1.5, ..plain() }), Variant::Edited);
        assert_eq!(variant(SamplingParams { no_repeat_ngram: 3, ..plain() }), Variant::Searching);
    }
}
