//! Reads a row of the engine's outputs.

use gumball_engine::Outputs;

use crate::case::Case;
use crate::observed::Observed;

/// Reads a row's answer to a case.
pub fn read_row(case: &Case, out: &Outputs, row: usize) -> Observed {
    Observed {
        token: out.tokens()[row],
        status: out.status(row),
        temperature: out.temperatures()[row],
        mu: out.mirostat_mu()[row],
        kept: Some(case.in_order(out.kept(row).to_vec())),
        logprobs: case.params.logprobs.as_ref().map(|asked| out.logprobs_of(row, asked)),
    }
}
