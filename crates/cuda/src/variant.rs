//! Variants of a step: kernels for rows that ask for little, and for rows that ask for more.
//!
//! Which one a step takes, and whether its survey makes sums, is a pure function of what the requests of its rows ask
//! for, settled when rows change: so a captured step, which holds all of them, never serves rows that ask for more than
//! its kernels do.

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

/// What the requests of a step's rows need of its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The least variant that serves all of them.
    pub variant: Variant,
    /// Whether any of them reads sums of weights, which the survey then makes.
    pub sums: bool,
}

impl Needs {
    /// What rows without a request need.
    pub const NOTHING: Self = Self { variant: Variant::Lean, sums: false };

    /// What serves whatever rows there are.
    pub const EVERYTHING: Self = Self { variant: Variant::Searching, sums: true };

    /// Returns what a request needs.
    pub fn of(params: &Params) -> Self {
        Self { variant: Variant::of(params), sums: params.asks & (asks::SUMS | asks::TOLD) != 0 }
    }

    /// Returns all that there are, each in the place that `place` says.
    pub fn all() -> impl Iterator<Item = Self> {
        Variant::ALL.into_iter().flat_map(|variant| [false, true].map(|sums| Self { variant, sums }))
    }

    pub fn place(self) -> usize {
        2 * self.variant as usize + usize::from(self.sums)
    }

    /// Returns what serves both.
    pub fn and(self, other: Self) -> Self {
        Self { variant: self.variant.max(other.variant), sums: self.sums || other.sums }
    }

    /// Returns the same, but a variant that serves at least as much as another.
    pub fn at_least(self, variant: Variant) -> Self {
        Self { variant: self.variant.max(variant), ..self }
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
    fn needs_have_places_and_add_up() {
        assert!(Needs::all().map(Needs::place).eq(0..10));
        let needs = |params| Needs::of(&Prepared::new(&params, 1000).unwrap().params());
        let top_p = needs(SamplingParams { top_p: 0.9, ..Default::default() });
        let top_k = needs(SamplingParams { top_k: 50, top_p: 0.9, ..Default::default() });
        assert!(top_p.sums && !top_k.sums);
        let told = needs(SamplingParams { logprobs: Some(LogprobsParams::default()), ..Default::default() });
        assert_eq!(told, Needs { variant: Variant::Unedited, sums: true });
        let edited = needs(SamplingParams { repetition_penalty: 1.5, ..Default::default() });
        assert_eq!(top_p.and(edited), Needs { variant: Variant::Edited, sums: true });
        assert_eq!(Needs::NOTHING.and(top_k), top_k);
        assert!(Needs::all().all(|needs| needs.and(Needs::EVERYTHING) == Needs::EVERYTHING));
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
