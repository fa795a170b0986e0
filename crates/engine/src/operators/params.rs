//! The parameters of a batch of rows: values for all rows, and columns with one value per row.

use std::borrow::Cow;

use gumball_cpu::Prepared;
use gumball_spec::{Error, Kind, NONE, Result, SamplingParams, memory};

use super::MEMORY;
use super::arrays::wrong_memory;
use crate::device::DeviceSlice;

/// One value for all rows, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum PerRow<'a, T> {
    /// One value for all rows.
    All(T),
    /// One value per row, in the host's memory. Operators of a device copy the list there; they refuse it
    /// while the host program captures a graph, because a replay would copy stale values.
    Host(&'a [T]),
    /// One value per row, or a single one for all rows, in the device's memory. The host cannot see the
    /// values and refuses none.
    Device(DeviceSlice<'a>),
}

impl<T> From<T> for PerRow<'_, T> {
    fn from(value: T) -> Self {
        PerRow::All(value)
    }
}

impl<'a, T> From<&'a [T]> for PerRow<'a, T> {
    fn from(values: &'a [T]) -> Self {
        PerRow::Host(values)
    }
}

impl<'a, T> From<&'a Vec<T>> for PerRow<'a, T> {
    fn from(values: &'a Vec<T>) -> Self {
        PerRow::Host(values)
    }
}

impl<T: Copy> PerRow<'_, T> {
    /// Checks that the host can read the values, and that a list has `rows` of them.
    pub(super) fn check_host(&self, parameter: &'static str, rows: usize) -> Result<()> {
        match self {
            PerRow::All(_) => Ok(()),
            PerRow::Host(values) => check_length(parameter, values.len(), rows),
            PerRow::Device(_) => Err(wrong_memory(parameter, "a device", "the host")),
        }
    }

    /// Returns the value of a row, after [`PerRow::check_host`].
    pub(super) fn of(&self, row: usize) -> T {
        match self {
            PerRow::All(value) => *value,
            PerRow::Host(values) => values[row],
            PerRow::Device(_) => unreachable!("`check_host` refuses a column on a device"),
        }
    }
}

impl<'a> PerRow<'a, f32> {
    /// Returns a column of the device.
    pub(super) fn column(self, parameter: &'static str) -> Result<DeviceSlice<'a>> {
        match self {
            PerRow::Device(column) => Ok(column),
            PerRow::All(_) | PerRow::Host(_) => Err(wrong_memory(parameter, "the host", "the device")),
        }
    }
}

impl<'a> PerRow<'a, u32> {
    /// Returns the index of the matrix row that each of `outputs` outputs reads, for a list on the host.
    pub(super) fn row_indices(&self, outputs: usize, rows: usize) -> Result<Cow<'a, [u32]>> {
        self.indices("row_indices", outputs, (rows, "a row"))
    }

    /// Returns an index for each of `outputs` outputs or requests, for a list on the host; all must be below
    /// `count`.
    pub(super) fn indices(
        &self,
        parameter: &'static str,
        outputs: usize,
        (count, of): (usize, &'static str),
    ) -> Result<Cow<'a, [u32]>> {
        let indices = match *self {
            PerRow::All(index) => Cow::Owned(memory::filled(MEMORY, index, outputs)?),
            PerRow::Host(indices) => Cow::Borrowed(indices),
            PerRow::Device(_) => return Err(wrong_memory(parameter, "a device", "the host")),
        };
        check_length(parameter, indices.len(), outputs)?;
        match indices.iter().find(|index| **index as usize >= count) {
            Some(index) => Err(Error::out_of_range(parameter, index, format!("{of} in 0..{count}"))),
            None => Ok(indices),
        }
    }
}

/// Checks that a list has a value for each row.
pub(super) fn check_length(parameter: &'static str, length: usize, rows: usize) -> Result<()> {
    if length == rows {
        return Ok(());
    }
    Err(Error::length(parameter, length, format!("one per row, {rows}")))
}

/// Checks a token that the host can see.
pub(super) fn check_token(token: i32, vocab: usize) -> Result<()> {
    if token == NONE || usize::try_from(token).is_ok_and(|id| id < vocab) {
        return Ok(());
    }
    Err(Error::out_of_range("tokens", token, format!("an id in 0..{vocab}, or -1")))
}

/// The parameters of a batch of rows: filters, bans and temperature, and no history.
///
/// ```
/// use gumball_engine::{RowParams, SamplingParams};
/// let common = SamplingParams { top_k: 50, ..Default::default() };
/// let params = RowParams { top_p: Some([0.9, 0.5][..].into()), ..RowParams::new(&common) };
/// # let _ = params;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'a> {
    /// The parameters of all rows, except the parameters that the fields below replace. Rules that read a
    /// history find it empty; seed and logprobs are not read. Operators of a device refuse bans and biases.
    pub common: &'a SamplingParams,
    /// The temperature of each matrix row.
    pub temperature: Option<PerRow<'a, f32>>,
    /// The `top_k` of each matrix row; a column on a device is i32 or i64.
    pub top_k: Option<PerRow<'a, i64>>,
    /// The `top_p` of each matrix row.
    pub top_p: Option<PerRow<'a, f32>>,
    /// The `min_p` of each matrix row.
    pub min_p: Option<PerRow<'a, f32>>,
}

impl<'a> RowParams<'a> {
    /// Takes parameters for all rows.
    #[must_use]
    pub fn new(common: &'a SamplingParams) -> Self {
        Self { common, temperature: None, top_k: None, top_p: None, min_p: None }
    }

    /// Returns the common parameters with the values that the fields give for all rows.
    pub(super) fn common(&self) -> Cow<'a, SamplingParams> {
        let mut common = Cow::Borrowed(self.common);
        macro_rules! replace {
            ($($name:ident),*) => {
                $(if let Some(PerRow::All(value)) = self.$name {
                    common.to_mut().$name = value;
                })*
            };
        }
        replace!(temperature, top_k, top_p, min_p);
        common
    }

    /// Validates the parameters of `rows` matrix rows of a kind, whose columns lie on the host.
    pub(super) fn prepare(&self, kind: Kind, rows: usize, vocab: usize) -> Result<PreparedRows> {
        let mut varies = false;
        macro_rules! check {
            ($($name:ident),*) => {
                $(if let Some(value) = &self.$name {
                    value.check_host(stringify!($name), rows)?;
                    varies |= !matches!(value, PerRow::All(_));
                })*
            };
        }
        check!(temperature, top_k, top_p, min_p);
        let prepare = |params: SamplingParams| {
            params.check_kind(kind)?;
            Prepared::new(params, vocab)
        };
        let common = self.common();
        if !varies {
            return Ok(PreparedRows::Alike(Box::new(prepare(common.into_owned())?)));
        }
        let of = |row: usize| {
            let mut params = SamplingParams::clone(&common);
            params.temperature = self.temperature.map_or(params.temperature, |column| column.of(row));
            params.top_k = self.top_k.map_or(params.top_k, |column| column.of(row));
            params.top_p = self.top_p.map_or(params.top_p, |column| column.of(row));
            params.min_p = self.min_p.map_or(params.min_p, |column| column.of(row));
            prepare(params)
        };
        let mut each = memory::with_capacity(MEMORY, rows)?;
        (0..rows).try_for_each(|row| of(row).map(|prepared| each.push(prepared)))?;
        Ok(PreparedRows::Each(each))
    }
}

/// The validated parameters of each matrix row.
pub(super) enum PreparedRows {
    Alike(Box<Prepared>),
    Each(Vec<Prepared>),
}

impl PreparedRows {
    /// Returns the parameters of a matrix row.
    pub(super) fn of(&self, row: usize) -> &Prepared {
        match self {
            PreparedRows::Alike(prepared) => prepared,
            PreparedRows::Each(prepared) => &prepared[row],
        }
    }
}
