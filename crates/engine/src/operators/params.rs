//! The parameters of a batch of rows: common ones, and columns with one value per row.

use gumball_cpu::Prepared;
use gumball_spec::{Error, Kind, Result, SamplingParams, memory};

use super::ROOM;

/// One value for all rows, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum PerRow<'a, T> {
    /// One value for all rows.
    All(T),
    /// One per row.
    Rows(&'a [T]),
}

impl<T> From<T> for PerRow<'_, T> {
    fn from(value: T) -> Self {
        PerRow::All(value)
    }
}

impl<'a, T> From<&'a [T]> for PerRow<'a, T> {
    fn from(values: &'a [T]) -> Self {
        PerRow::Rows(values)
    }
}

impl<'a, T> From<&'a Vec<T>> for PerRow<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        PerRow::Rows(values)
    }
}

impl<T: Copy> PerRow<'_, T> {
    /// Checks that a list has `rows` values.
    pub(super) fn check(&self, parameter: &'static str, rows: usize) -> Result<()> {
        match self {
            PerRow::Rows(values) if values.len() != rows => {
                Err(Error::length(parameter, values.len(), format!("one per row, {rows}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the value of a row.
    pub(super) fn of(&self, row: usize) -> T {
        match self {
            PerRow::All(value) => *value,
            PerRow::Rows(values) => values[row],
        }
    }
}

/// The parameters of a batch of rows: filters, bans and temperature, and no history.
///
/// An empty column leaves its parameter at the common value.
///
/// ```
/// use gumball_engine::{RowParams, SamplingParams};
/// let common = SamplingParams { top_k: 50, ..Default::default() };
/// let params = RowParams { top_p: &[0.9, 0.5], ..RowParams::new(&common) };
/// # let _ = params;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'a> {
    /// The parameters of all rows. Rules that read a history find it empty; seed and logprobs are not read.
    pub common: &'a SamplingParams,
    /// The temperature of each matrix row.
    pub temperature: &'a [f32],
    /// The `top_k` of each matrix row.
    pub top_k: &'a [i64],
    /// The `top_p` of each matrix row.
    pub top_p: &'a [f32],
    /// The `min_p` of each matrix row.
    pub min_p: &'a [f32],
}

impl<'a> RowParams<'a> {
    /// Takes parameters for all rows.
    #[must_use]
    pub fn new(common: &'a SamplingParams) -> Self {
        Self { common, temperature: &[], top_k: &[], top_p: &[], min_p: &[] }
    }

    /// Validates the parameters of `lines` matrix rows of a kind.
    pub(super) fn prepare(&self, kind: Kind, lines: usize, vocab: usize) -> Result<Lines> {
        let columns = [
            ("temperature", self.temperature.len()),
            ("top_k", self.top_k.len()),
            ("top_p", self.top_p.len()),
            ("min_p", self.min_p.len()),
        ];
        for (name, length) in columns {
            if length != 0 && length != lines {
                return Err(Error::length(name, length, format!("one per row, {lines}, or 0")));
            }
        }
        let prepare = |params: SamplingParams| {
            params.check_kind(kind, vocab)?;
            Prepared::new(params, vocab)
        };
        if columns.iter().all(|(_, length)| *length == 0) {
            return Ok(Lines::Alike(Box::new(prepare(self.common.clone())?)));
        }
        let of = |line: usize| {
            let mut params = self.common.clone();
            params.temperature = self.temperature.get(line).copied().unwrap_or(params.temperature);
            params.top_k = self.top_k.get(line).copied().unwrap_or(params.top_k);
            params.top_p = self.top_p.get(line).copied().unwrap_or(params.top_p);
            params.min_p = self.min_p.get(line).copied().unwrap_or(params.min_p);
            prepare(params)
        };
        let mut each = memory::room(ROOM, lines)?;
        (0..lines).try_for_each(|line| of(line).map(|prepared| each.push(prepared)))?;
        Ok(Lines::PerRow(each))
    }
}

/// The validated parameters of each matrix row.
pub(super) enum Lines {
    Alike(Box<Prepared>),
    PerRow(Vec<Prepared>),
}

impl Lines {
    /// Returns the parameters of a matrix row.
    pub(super) fn of(&self, line: usize) -> &Prepared {
        match self {
            Lines::Alike(prepared) => prepared,
            Lines::PerRow(prepared) => &prepared[line],
        }
    }
}
