//! Radii: how far all logits of each row may move without another token being drawn (rule L7).
//!
//! A row is drawn once more, and its radius is, bit for bit, the one that a [`Pool`](crate::Pool) reports.

use gumball_cpu::{Draw, History, Task};
use gumball_spec::radius::Edits;
use gumball_spec::{Error, Kind, LogprobMode, LogprobModes, LogprobsParams, Result, SamplingParams};

use super::draws::Draws;
use super::host::{Host, task};
use super::params::{PerRow, RowParams};
use crate::logits::Logits;

/// Returns what a radius makes of edits, for rows of a kind and parameters of which one is known.
pub(super) fn edits(params: &RowParams<'_>, kind: Kind, vocab: usize) -> Result<Edits> {
    let refused = |other, reason| Err(Error::Conflict { parameter: "radii", other, reason });
    if kind == Kind::Probabilities {
        return refused("probabilities", "only logits have one; pass logits");
    }
    let mut all = params.common().into_owned();
    // A column may switch its parameter on in any row.
    let varies = |column: &Option<PerRow<'_, f32>>| !matches!(column, None | Some(PerRow::All(_)));
    if varies(&params.temperature) {
        all.temperature = 1.0;
    }
    if varies(&params.top_p) {
        all.top_p = 0.5;
    }
    if varies(&params.min_p) {
        all.min_p = 0.5;
    }
    if !matches!(params.top_k, None | Some(PerRow::All(_))) {
        all.top_k = 1;
    }
    let known = Edits::of(&all, all.temperature, vocab);
    known.map_or_else(|| refused("other filters", "L7 names the parameters of which one is known"), Ok)
}

impl Host {
    /// Writes the radius of each row; see [`Operators::radii`](super::Operators::radii).
    pub(super) fn radii(
        &self,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        radii: &mut [f32],
    ) -> Result<()> {
        let mode = LogprobModes { first: LogprobMode::Edited, second: Some(LogprobMode::Radius) };
        let logprobs = Some(LogprobsParams { mode, ..LogprobsParams::default() });
        let common = SamplingParams { logprobs, ..params.common.clone() };
        let keys = draws.on_host(rows.rows())?;
        let prepared =
            RowParams { common: &common, ..*params }.prepare(rows.kind(), rows.rows(), rows.vocab())?;
        let history = History::new(&[]);
        let found = self.over((0..rows.rows()).collect(), |workspace, row| {
            let Draw { seed, position, draw } = keys.of(row);
            let task = Task { seed, position, draw, ..task(rows.kind(), prepared.of(row), &history) };
            workspace.sample(rows.row(row), &task, None)?;
            Ok(workspace.logprobs().expect("the parameters ask for them").second)
        })?;
        radii.copy_from_slice(&found);
        Ok(())
    }
}
