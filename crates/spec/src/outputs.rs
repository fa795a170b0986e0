//! Outputs: the kept set as a row: its probabilities, or the row with all else dropped (rule
//! P4).

use crate::oracle::Outcome;
use crate::survey::{Given, Measure, in_first_weights};

impl Outcome {
    /// Returns the distribution that the token is drawn from; all 0 for an empty row.
    ///
    /// Of logits it is the softmax after edits, temperature and filters; of probabilities what is kept of
    /// them, renormalised. At temperature 0 the winner has 1. A narrower output type rounds these numbers
    /// once.
    #[must_use]
    pub fn probabilities(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.z.len()];
        match self.filtered_ids() {
            [] => {}
            [winner, ..] if self.temperature == 0.0 => out[*winner as usize] = 1.0,
            members => {
                let measure = Measure::new(self.kind, self.temperature);
                let kept = Given::new(&self.z, members, measure);
                let sum = in_first_weights(kept.total());
                for id in members {
                    out[*id as usize] = measure.ratio(kept.value(*id), kept.first()) / sum;
                }
            }
        }
        out
    }

    /// Returns the row after its edits with only the kept tokens left: other logits are -inf, other
    /// probabilities 0.
    #[must_use]
    pub fn masked(&self) -> Vec<f32> {
        let mut out = vec![self.kind.dropped(); self.z.len()];
        for id in self.filtered_ids() {
            out[*id as usize] = self.z[*id as usize];
        }
        out
    }
}
