//! Logprobs of selected tokens: of one token of each row, which is there already.
//!
//! Such a token is a known one, as in [`Pool::score`](crate::Pool::score): a row is carried through the
//! stages, and its logprob is, bit for bit, the `raw` one that a step would report.

use gumball_cpu::{History, Prepared};
use gumball_spec::{Forced, LogprobMode, LogprobsParams, Result, SamplingParams, Status};

use super::arrays::{PerRowMut, host_column};
use super::host::{Host, task};
use super::params::{PerRow, check_token};
use crate::logits::Logits;

/// The tokens that an operator is asked about, and the columns that it writes about them.
#[derive(Debug)]
pub(super) struct Selected<'a> {
    pub tokens: PerRow<'a, i32>,
    pub logprobs: PerRowMut<'a, f32>,
    pub ranks: Option<PerRowMut<'a, u32>>,
    pub statuses: Option<PerRowMut<'a, Status>>,
}

/// Returns the parameters of a request that draws nothing and asks for the raw logprob of its token.
fn params() -> SamplingParams {
    let logprobs = LogprobsParams { mode: LogprobMode::Raw.into(), ..LogprobsParams::default() };
    SamplingParams { temperature: 0.0, logprobs: Some(logprobs), ..SamplingParams::default() }
}

impl Host {
    /// Writes the logprobs of tokens; see
    /// [`Operators::selected_logprobs`](super::Operators::selected_logprobs).
    pub(super) fn selected_logprobs(&self, rows: Logits<'_>, selected: Selected<'_>) -> Result<()> {
        let (count, tokens) = (rows.rows(), selected.tokens);
        tokens.check_host("tokens", count)?;
        (0..count).try_for_each(|row| check_token(tokens.of(row), rows.vocab()))?;
        let logprobs = host_column("logprobs", Some(selected.logprobs), count)?.expect("it is there");
        let ranks = host_column("ranks", selected.ranks, count)?;
        let statuses = host_column("statuses", selected.statuses, count)?;
        let (kind, prepared) = (rows.kind(), Prepared::new(params(), rows.vocab())?);
        let history = History::new(&[]);
        let found = self.over((0..count).collect(), |workspace, row| {
            let Ok(token) = u32::try_from(tokens.of(row)) else {
                return Ok((f32::NEG_INFINITY, 0, Status::default()));
            };
            let task =
                gumball_cpu::Task { forced: Some(Forced::known(token)), ..task(kind, &prepared, &history) };
            let status = workspace.sample(rows.row(row), &task, None)?.status;
            let of = workspace.logprobs().expect("the parameters ask for them").token;
            Ok((of.logprob, of.rank, status))
        })?;
        let written = |(to, found): (&mut f32, &(f32, u32, Status))| *to = found.0;
        logprobs.iter_mut().zip(&found).for_each(written);
        let ranks = ranks.into_iter().flatten().zip(&found);
        ranks.for_each(|(to, found)| *to = found.1);
        let statuses = statuses.into_iter().flatten().zip(&found);
        statuses.for_each(|(to, found)| *to = found.2);
        Ok(())
    }
}
