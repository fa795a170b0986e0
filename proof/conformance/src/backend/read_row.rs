//! Reads a row of the engine's outputs.

use gumball_engine::Outputs;
use gumball_spec::NONE;
use gumball_spec::logprobs::{Logprobs, TokenLogprob};

use crate::case::Case;
use crate::observed::Observed;

/// Reads a row's answer to a case.
pub fn read_row(case: &Case, out: &Outputs, row: usize) -> Observed {
    let logprobs = case.params.logprobs.as_ref().map(|asked| {
        let top = out.top_ids(row).iter().zip(out.top_logprobs(row)).take(asked.top_n as usize);
        let ids = asked.ids.iter().zip(out.id_logprobs(row)).zip(out.id_ranks(row));
        Logprobs {
            token: TokenLogprob {
                id: out.tokens()[row],
                logprob: out.logprobs()[row],
                rank: out.ranks()[row],
            },
            top: top
                .zip(1..)
                .map(|((id, logprob), rank)| TokenLogprob {
                    id: *id,
                    logprob: *logprob,
                    rank: if *id == NONE { 0 } else { rank },
                })
                .collect(),
            ids: ids
                .map(|((id, logprob), rank)| TokenLogprob { id: *id as i32, logprob: *logprob, rank: *rank })
                .collect(),
        }
    });
    Observed {
        token: out.tokens()[row],
        status: out.status(row),
        temperature: out.temperatures()[row],
        mu: out.mirostat_mu()[row],
        kept: Some(case.in_order(out.kept(row).to_vec())),
        logprobs,
    }
}
