//! Logprobs of selected tokens: of one token of each row, whose ids lie in the device's memory.
//!
//! Such a token is a forced one. `select_tokens` makes a request for each row, a step's kernels compute what
//! they say of forced tokens, and `write_selected` copies logprobs, ranks and statuses to the caller's
//! memory.

use gumball_spec::{LogprobMode, LogprobsParams, Result, SamplingParams, TILE};

use super::check_column;
use super::params::{Numbers, PreparedRows};
use super::passes::Passes;
use super::scratch::Piece;
use crate::abi::{self, ParamColumns, SelectedTokens, TileSum, selected_flags};
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

impl Passes {
    /// Writes the logprobs of selected tokens; see
    /// [`Operators::selected_logprobs`](super::Operators::selected_logprobs).
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
        let plan = self.plan(rows, count, &prepared);
        self.reserve(rows, &plan)?;
        let tiles = rows.vocab.div_ceil(TILE);
        self.scratch.reserve(&[(Piece::LogprobSums, plan.rows * tiles * size_of::<TileSum>())])?;
        let step =
            abi::Step { logprob_sums: self.scratch.at(Piece::LogprobSums), ..self.step(rows, &plan, false) };
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
                reserved: [0; 3],
            };
            let step = abi::Step {
                logits: step.logits + (first * rows.stride * rows.dtype.bytes()) as u64,
                rows: count as u32,
                ..step
            };
            let [select, write] = tuning::selected_tokens(count);
            // SAFETY: the scratch memory has an element for each row. The columns' creators guarantee their
            // memory, whose types and lengths were checked.
            unsafe { select.enqueue(&*self.runtime, &selected) }?;
            let step = self.survey(rows, &plan, step)?;
            self.finish(rows, &plan, &step)?;
            // SAFETY: as above. The step has written the outputs, whose layout is that of `count` rows.
            unsafe { write.enqueue(&*self.runtime, &selected) }?;
        }
        Ok(())
    }
}
