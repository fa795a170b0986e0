//! The law that draws of a row follow: each token's probability in f64, and counts held to it.

use gumball_spec::{Kind, SamplingParams};

use crate::case::Case;
use crate::reference::{Reference, xtc_acts};
use crate::statistics::{ChiSquare, chi_square};

/// The probabilities of a row's tokens, where XTC does not act and where it does.
#[derive(Clone, Debug)]
pub struct Law {
    probabilities: [Vec<f64>; 2],
}

/// How often each token was drawn, where XTC did not act and where it did.
#[derive(Clone, Debug)]
pub struct Counts([Vec<u64>; 2]);

impl Law {
    /// Returns the law of a row without history.
    ///
    /// # Panics
    /// If a cut lies so near a token that f64 cannot tell on which side.
    #[must_use]
    pub fn new(row: &[f32], params: &SamplingParams) -> Self {
        Self::of(Kind::Logits, row, params)
    }

    /// Returns the law of a row of either kind, without history.
    ///
    /// # Panics
    /// As [`Law::new`] does.
    #[must_use]
    pub fn of(kind: Kind, row: &[f32], params: &SamplingParams) -> Self {
        let cleaned: Vec<f32> = row.iter().map(|value| kind.clean(*value)).collect();
        let reference = Reference::of(kind, &cleaned);
        let t = reference.temperature(params);
        let law = |acts| {
            let kept = reference.kept(params, t, 0.0, acts).expect("the cut is chosen to be clear");
            let mut p = vec![0.0; row.len()];
            for (place, probability) in kept.clone().zip(reference.probabilities(kept, t)) {
                p[reference.order[place]] = probability;
            }
            p
        };
        Self { probabilities: [law(false), law(true)] }
    }

    /// Returns counts of no draws.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts(self.probabilities.each_ref().map(|p| vec![0; p.len()]))
    }

    /// Tests counts, with XTC and without apart; nothing where there are no draws.
    ///
    /// # Panics
    /// If a token outside the cut was drawn.
    pub fn test(&self, counts: &Counts) -> impl Iterator<Item = ChiSquare> {
        let drawn = |counts: &[u64]| counts.iter().any(|count| *count > 0);
        let both = counts.0.iter().zip(&self.probabilities);
        both.filter(move |(counts, _)| drawn(counts)).map(|(counts, p)| chi_square(counts, p))
    }
}

impl Counts {
    /// Counts the token that was drawn in a case.
    pub fn add(&mut self, case: &Case, token: i32) {
        let acts = xtc_acts(case.params.xtc_probability, case.seed, case.position, case.draw);
        self.0[usize::from(acts)][token as usize] += 1;
    }
}
