//! Rows that are written: softmax, renormalised probabilities, masked rows.

use gumball_cpu::{History, Output, Prepared, Task};
use gumball_spec::{Error, Kind, Result, SamplingParams, Status};

use super::params::{PerRow, RowParams};
use super::{LogitsMut, Operators};
use crate::logits::Logits;

impl Operators {
    /// Writes the softmax of each row at its temperature: fused, three visits to a row and nothing beside it.
    ///
    /// The maximum is subtracted before the temperature divides, so logits of +-1e6 at 0.01 stay finite; equal logits have
    /// equal probabilities, bit for bit. At temperature 0 the first of the largest logits has 1. Returns what each row had
    /// to say; a row without a logit above -inf is all 0 and says `EMPTY`.
    ///
    /// # Shapes and units
    /// `logits`: R rows of f32, bf16 or f16. `temperature`: one, or one per line of the matrix, which without
    /// [`Logits::select`] is one per row. `out`: R rows of any of the types; each number is rounded to it once.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape is not so.
    /// - [`Error::OutOfRange`] for a temperature outside 0 and (0, 2^100], or rows of probabilities.
    /// - [`Error::Unavailable`] if the system refuses the memory to list the rows.
    ///
    /// Nothing was written then.
    pub fn softmax(
        &self,
        logits: Logits<'_>,
        temperature: PerRow<'_, f32>,
        out: LogitsMut<'_>,
    ) -> Result<Vec<Status>> {
        check_logits(logits.kind())?;
        let (common, temperature) = tempered(temperature, logits.lines())?;
        let params = RowParams { temperature, ..RowParams::new(&common) };
        self.probabilities(logits, &params, out)
    }

    /// Writes the softmax of each row in its place, each number rounded to the rows' type.
    ///
    /// # Errors
    /// Those of [`Operators::softmax`].
    pub fn softmax_in_place(
        &self,
        logits: LogitsMut<'_>,
        temperature: PerRow<'_, f32>,
    ) -> Result<Vec<Status>> {
        check_logits(logits.kind())?;
        let (common, temperature) = tempered(temperature, logits.rows())?;
        let params = RowParams { temperature, ..RowParams::new(&common) };
        self.probabilities_in_place(logits, &params)
    }

    /// Writes the distribution that each row's token is drawn from: of logits the softmax after temperature, bans and
    /// filters, of probabilities what is kept of them, renormalised (rule P4).
    ///
    /// Filters are those of the parameters: `top_k`, `top_p`, `min_p`, each alone, one after the other or joint, and all
    /// others. Returns what each row had to say. XTC acts by draw 0 of seed 0 at position 0.
    ///
    /// # Shapes and units
    /// `rows`: R rows of either kind. `params`: columns of one per line of the matrix, which without
    /// [`Logits::select`] is one per row. `out`: R rows of any of the types.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape is not so.
    /// - Those of [`SamplingParams::validate_for`].
    /// - [`Error::Unavailable`] if the system refuses the memory to list the rows.
    ///
    /// Nothing was written then.
    pub fn probabilities(
        &self,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        out: LogitsMut<'_>,
    ) -> Result<Vec<Status>> {
        self.write(Output::Probabilities, rows, params, out)
    }

    /// Writes the distribution that each row's token is drawn from in the row's place.
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn probabilities_in_place(&self, rows: LogitsMut<'_>, params: &RowParams<'_>) -> Result<Vec<Status>> {
        self.write_in_place(Output::Probabilities, rows, params)
    }

    /// Writes each row with only the tokens that its filters and bans keep: other logits are -inf, other probabilities 0.
    ///
    /// Rows of only -inf stay as they are. What is kept counts as input does: -0.0 as +0.0, +inf as `f32::MAX`, which bf16 and
    /// f16 round to +inf again.
    ///
    /// # Shapes and units
    /// Those of [`Operators::probabilities`].
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn mask_logits(
        &self,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        out: LogitsMut<'_>,
    ) -> Result<Vec<Status>> {
        self.write(Output::Masked, rows, params, out)
    }

    /// Masks each row in its place.
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn mask_logits_in_place(&self, rows: LogitsMut<'_>, params: &RowParams<'_>) -> Result<Vec<Status>> {
        self.write_in_place(Output::Masked, rows, params)
    }

    fn write(
        &self,
        output: Output,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        out: LogitsMut<'_>,
    ) -> Result<Vec<Status>> {
        if out.rows() != rows.rows() {
            return Err(Error::length("out", out.rows(), format!("a row for each of {}", rows.rows())));
        }
        if out.vocab() != rows.vocab() {
            return Err(Error::out_of_range("out.vocab", out.vocab(), format!("{}", rows.vocab())));
        }
        let lines = params.prepare(rows.kind(), rows.lines(), rows.vocab())?;
        let history = History::new(&[]);
        self.over(out.into_rows()?, |workspace, (row, out)| {
            let task = task(rows.kind(), lines.of(rows.line(row)), &history);
            Ok(workspace.write(rows.row(row), &task, None, output, out)?.status)
        })
    }

    fn write_in_place(
        &self,
        output: Output,
        rows: LogitsMut<'_>,
        params: &RowParams<'_>,
    ) -> Result<Vec<Status>> {
        let kind = rows.kind();
        let lines = params.prepare(kind, rows.rows(), rows.vocab())?;
        let history = History::new(&[]);
        self.over(rows.into_rows()?, |workspace, (row, data)| {
            let task = task(kind, lines.of(row), &history);
            Ok(workspace.write_in_place(data, &task, output)?.status)
        })
    }
}

/// Refuses rows of probabilities where logits are asked for.
fn check_logits(kind: Kind) -> Result<()> {
    match kind {
        Kind::Logits => Ok(()),
        Kind::Probabilities => Err(Error::out_of_range("kind", "probabilities", "logits")),
    }
}

/// Returns parameters of one temperature and nothing else, or with the column of several beside them.
fn tempered(temperature: PerRow<'_, f32>, lines: usize) -> Result<(SamplingParams, &[f32])> {
    temperature.check("temperature", lines)?;
    let params = SamplingParams::default();
    Ok(match temperature {
        PerRow::All(temperature) => (SamplingParams { temperature, ..params }, &[]),
        PerRow::Rows(column) => (params, column),
    })
}

/// A task without a sequence.
pub(super) fn task<'a>(kind: Kind, prepared: &'a Prepared, history: &'a History) -> Task<'a> {
    let mu = prepared.params().initial_mu();
    Task { kind, prepared, history, seed: 0, position: 0, draw: 0, mu, mask: None, forced: None }
}
