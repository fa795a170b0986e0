//! Radii of rows: a step that draws each row's token and reports how far its logits may move, and a copy of
//! that from the step's outputs.

use gumball_spec::layout::Layout;
use gumball_spec::{Result, Widths};

use super::params::{Draws, RowParams};
use super::{Operators, check_column};
use crate::abi::{self, SelectedTokens};
use crate::launch::tuning;
use crate::memory::columns::{DeviceSlice, FLOATS};
use crate::memory::rows::Rows;

impl Operators {
    /// Writes for each row the radius (L7) of the token that [`Operators::sample`] draws from it.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `params`, `draws`: columns of length R or 1; a radius must be known of the
    /// parameters. `size`: that of edits. `radii`: R numbers, f32.
    ///
    /// # Errors
    /// The errors of [`Operators::sample`].
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn radii(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        size: f32,
        radii: &DeviceSlice<'_>,
    ) -> Result<()> {
        let of = (rows.rows, "rows");
        let mut prepared = params.prepare(rows.kind, of, rows.vocab)?;
        prepared.ask_for_radii(params.common.repetition_penalty, size);
        draws.prepare(of, &mut prepared.columns)?;
        check_column("radii", Some(radii), FLOATS, rows.rows)?;
        if rows.rows == 0 {
            return Ok(());
        }
        let passes = &mut self.passes;
        let plan = passes.plan(rows, rows.rows, &prepared);
        passes.reserve(rows, &plan)?;
        let step = passes.step_with_logprob_sums(rows, &plan)?;
        for first in (0..rows.rows).step_by(plan.rows) {
            let count = plan.rows.min(rows.rows - first);
            let step = abi::Step {
                logits: step.logits + (first * rows.stride * rows.dtype.bytes()) as u64,
                rows: count as u32,
                ..step
            };
            passes.prepare(&prepared.columns, first, count)?;
            let step = passes.survey(rows, &plan, step)?;
            passes.finish(rows, &plan, &step)?;
            let layout = Layout { rows: count, widths: Widths::default() };
            let section = |start: usize| step.outputs + (start * size_of::<u32>()) as u64;
            // The kernel copies the section `logprobs`; so the outputs begin earlier for it by the sections
            // between that one and the radii.
            let selected = SelectedTokens {
                tokens: section(layout.tokens().start),
                outputs: section(layout.second_logprobs().start - layout.logprobs().start),
                logprobs: radii.at(first),
                rows: count as u32,
                vocab: rows.vocab as u32,
                ..SelectedTokens::default()
            };
            let [_, write] = tuning::selected_tokens(count);
            // SAFETY: `write_selected` reads only the outputs that the step has written for `count` rows. It
            // writes `radii` alone: its creator guarantees the memory, its type and length were checked.
            unsafe { write.enqueue(&*passes.runtime, &selected) }?;
        }
        Ok(())
    }
}
