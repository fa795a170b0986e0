//! Logprobs of selected tokens: of one token of each row, whose ids lie in the device's memory.
//!
//! Such a token is a forced one. `select_tokens` makes a request for each row, a step's kernels compute what
//! they say of forced tokens, and `write_selected` copies logprobs, ranks and statuses to the caller's
//! memory.

use gumball_spec::{LogprobMode, LogprobsParams, Result, SamplingParams};

use super::params::{Numbers, PreparedRows};
use super::{Operators, check_column};
use crate::abi::{self, ParamColumns, SelectedTokens, selected_flags};
use crate::launch::tuning;
use crate::memory::columns::{DeviceSlice, FLOATS, SIGNED, WORDS};
use crate::memory::rows::Rows;
use crate::requests::prepared::Prepared;
use crate::requests::step_features::StepFeatures;

/// The columns that receive what is said of the tokens.
#[derive(Clone, Copy, Debug)]
pub struct SelectedLogprobs<'b> {
    /// The natural logarithms of the tokens' probabilities, f32.
    pub logprobs: DeviceSlice<'b>,
    /// The tokens' ranks, words.
    pub ranks: Option<DeviceSlice<'b>>,
    /// The [`gumball_spec::Status`] bits, words.
    pub statuses: Option<DeviceSlice<'b>>,
}

/// Returns the parameters of a request that draws nothing and asks for the raw logprob of its token.
fn params() -> SamplingParams {
    let logprobs = LogprobsParams { mode: LogprobMode::Raw.into(), ..LogprobsParams::default() };
    SamplingParams { temperature: 0.0, logprobs: Some(logprobs), ..SamplingParams::default() }
}

impl Operators {
    /// Writes the raw logprob and the rank of one token of each row, as steps report them of forced tokens.
    ///
    /// # Shapes and units
    /// `rows`: R rows of either kind. `tokens`: R integers, or one for all rows, of i32 or i64. `out`:
    /// columns of length R. A token of -1, and one that is no id of the vocabulary, has the logprob -inf and
    /// the rank 0; the latter also the status [`NO_ID`](gumball_spec::Status::NO_ID). Rows of such tokens are
    /// not read.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    ///
    /// If an error is returned, nothing was enqueued, unless the device failed.
    pub fn selected_logprobs(
        &mut self,
        rows: &Rows<'_>,
        tokens: &DeviceSlice<'_>,
        out: &SelectedLogprobs<'_>,
    ) -> Result<()> {
        let count = rows.rows;
        let request = Prepared::new(&params(), rows.vocab)?;
        let ids = Numbers::of("tokens", tokens, SIGNED, (count, "rows"))?;
        check_column("logprobs", Some(&out.logprobs), FLOATS, count)?;
        check_column("ranks", out.ranks.as_ref(), WORDS, count)?;
        check_column("statuses", out.statuses.as_ref(), WORDS, count)?;
        if count == 0 {
            return Ok(());
        }
        let base = request.params;
        let prepared = PreparedRows { columns: ParamColumns::default(), needs: StepFeatures::of(&base) };
        let passes = &mut self.passes;
        let plan = passes.plan(rows, count, &prepared);
        passes.reserve(rows, &plan)?;
        let step = passes.step_with_logprob_sums(rows, &plan)?;
        let flags = if ids.is_64_bit { selected_flags::TOKENS_I64 } else { 0 }
            | if ids.per_row { 0 } else { selected_flags::ONE_TOKEN };
        for first in (0..count).step_by(plan.rows) {
            let count = plan.rows.min(count - first);
            let at = |column: Option<DeviceSlice<'_>>| column.map_or(0, |column| column.at(first));
            let selected = SelectedTokens {
                base,
                tokens: ids.from(first),
                params: step.params,
                states: step.states,
                slots: step.slots,
                forced: step.forced,
                outputs: step.outputs,
                logprobs: out.logprobs.at(first),
                ranks: at(out.ranks),
                statuses: at(out.statuses),
                rows: count as u32,
                vocab: rows.vocab as u32,
                flags,
                ..SelectedTokens::default()
            };
            let step = abi::Step {
                logits: step.logits + (first * rows.stride * rows.dtype.bytes()) as u64,
                rows: count as u32,
                ..step
            };
            let [select, write] = tuning::selected_tokens(count);
            // SAFETY: the scratch memory has an element for each row. The columns' creators guarantee their
            // memory, whose types and lengths were checked.
            unsafe { select.enqueue(&*passes.runtime, &selected) }?;
            let step = passes.survey(rows, &plan, step)?;
            passes.finish(rows, &plan, &step)?;
            // SAFETY: as above. The step has written the outputs, whose layout is that of `count` rows.
            unsafe { write.enqueue(&*passes.runtime, &selected) }?;
        }
        Ok(())
    }
}
