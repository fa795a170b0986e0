//! Operators that write rows: softmax, renormalised probabilities, masked rows.

use gumball_cpu::{History, Output, Prepared, Task};
use gumball_spec::{Error, Kind, Result, SamplingParams, Status};

use super::params::{PerRow, RowParams};
use super::{LogitsMut, Operators};
use crate::logits::Logits;

impl Operators {
    /// Writes the softmax of each row at its temperature, fused: it visits a row three times and uses no
    /// scratch memory.
    ///
    /// The maximum is subtracted before the division by the temperature, so logits of +-1e6 at 0.01 stay
    /// finite. Equal logits get equal probabilities, bit for bit. At temperature 0 the first of the largest
    /// logits gets 1. Returns each row's status. A row without a logit above -inf becomes all 0 and has the
    /// status `EMPTY`.
    ///
    /// # Shapes and units
    /// `logits`: R rows of f32, bf16 or f16. `temperature`: one, or one per matrix row, which is one per row
    /// unless [`Logits::select`] was used. `out`: R rows of any of these types; each number is rounded to it
    /// once.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape differs.
    /// - [`Error::OutOfRange`] for a temperature other than 0 and outside (0, 2^100], or for rows of
    ///   probabilities.
    /// - [`Error::Unavailable`] if the system refuses the memory to list the rows.
    ///
    /// After an error nothing has been written.
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

    /// Replaces each row by its softmax, each number rounded to the rows' type.
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

    /// Writes the distribution that each row's token is drawn from (rule P4). For logits it is the softmax
    /// after temperature, bans and filters. For probabilities it is the kept ones, renormalised.
    ///
    /// All filters of the parameters apply, alone, as a chain or joint; `top_k`, `top_p` and `min_p` may
    /// differ from row to row. XTC uses its random words for seed 0, position 0 and draw index 0. Returns
    /// each row's status.
    ///
    /// # Shapes and units
    /// `rows`: R rows of either kind. `params`: columns of one per matrix row, which is one per row unless
    /// [`Logits::select`] was used. `out`: R rows of f32, bf16 or f16.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape differs.
    /// - Those of [`SamplingParams::validate_for`].
    /// - [`Error::Unavailable`] if the system refuses the memory to list the rows.
    ///
    /// After an error nothing has been written.
    pub fn probabilities(
        &self,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        out: LogitsMut<'_>,
    ) -> Result<Vec<Status>> {
        self.write(Output::Probabilities, rows, params, out)
    }

    /// Replaces each row by the distribution that its token is drawn from, each number rounded to the rows'
    /// type.
    ///
    /// # Errors
    /// Those of [`Operators::probabilities`].
    pub fn probabilities_in_place(&self, rows: LogitsMut<'_>, params: &RowParams<'_>) -> Result<Vec<Status>> {
        self.write_in_place(Output::Probabilities, rows, params)
    }

    /// Writes each row with only the tokens that its filters and bans keep. Other logits become -inf, other
    /// probabilities 0.
    ///
    /// Rows of only -inf stay as they are. Kept numbers are written as the stages read them: -0.0 as +0.0,
    /// and +inf as `f32::MAX`, which bf16 and f16 round to +inf again.
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

    /// Masks each row in place: [`Operators::mask_logits`] with the rows themselves as output.
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

/// Returns an error if the rows hold probabilities.
fn check_logits(kind: Kind) -> Result<()> {
    match kind {
        Kind::Logits => Ok(()),
        Kind::Probabilities => Err(Error::out_of_range("kind", "probabilities", "logits")),
    }
}

/// Returns parameters with only a temperature set, and the column of temperatures if they differ.
fn tempered(temperature: PerRow<'_, f32>, lines: usize) -> Result<(SamplingParams, &[f32])> {
    temperature.check("temperature", lines)?;
    let params = SamplingParams::default();
    Ok(match temperature {
        PerRow::All(temperature) => (SamplingParams { temperature, ..params }, &[]),
        PerRow::Rows(column) => (params, column),
    })
}

/// Returns a task for a row without a sequence: no history, and seed, position and draw index 0.
pub(super) fn task<'a>(kind: Kind, prepared: &'a Prepared, history: &'a History) -> Task<'a> {
    let mu = prepared.params().initial_mu();
    Task { kind, prepared, history, seed: 0, position: 0, draw: 0, mu, mask: None, forced: None }
}
