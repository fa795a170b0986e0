//! Columns on a device: columns that lie there already, and lists of the host that are copied there.

use bytemuck::Pod;
use gumball_cuda::{self as cuda, Buffer, ColumnType, DeviceSlice, IntType};
use gumball_spec::{Error, Kind, Result, SamplingParams};

use super::arrays::wrong_memory;
use super::draws::Draws;
use super::logprobs::{GivenTokens, check_id};
use super::params::{PerRow, RowParams, check_length, check_token};
use super::pools::PoolSlots;
use crate::Device;
use crate::masks::Masks;

/// Device memory for a copied list; it grows as needed.
#[derive(Debug, Default)]
struct List(Option<Buffer>);

impl List {
    /// Copies a list to the device.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if the host program captures the stream.
    fn copy<T: Pod>(&mut self, device: &Device, values: &[T]) -> Result<&Buffer> {
        if device.runtime().is_capturing()? {
            return Err(Error::Conflict {
                parameter: "a list of the host",
                other: "the capture of a graph",
                reason: "a replay would copy what is stale; hand in a column that lies on the device",
            });
        }
        let bytes = size_of_val(values);
        let mut buffer = match self.0.take().filter(|buffer| buffer.bytes() >= bytes) {
            Some(buffer) => buffer,
            None => Buffer::zeroed(device.runtime(), bytes.next_power_of_two())?,
        };
        buffer.write(0, values)?;
        Ok(self.0.insert(buffer))
    }

    /// Returns a parameter as the kernels' launches take it. A list is checked and copied, as numbers of
    /// `dtype`.
    fn column<'b, T: Pod>(
        &'b mut self,
        device: &Device,
        parameter: &'static str,
        values: PerRow<'b, T>,
        dtype: impl Into<ColumnType>,
        rows: usize,
        check: impl FnMut(T) -> Result<()>,
    ) -> Result<cuda::PerRow<'b, T>> {
        Ok(match values {
            PerRow::All(value) => cuda::PerRow::All(value),
            PerRow::Device(column) => cuda::PerRow::Rows(column),
            PerRow::Host(values) => {
                check_length(parameter, values.len(), rows)?;
                values.iter().copied().try_for_each(check)?;
                cuda::PerRow::Rows(DeviceSlice::of(self.copy(device, values)?, dtype).first(rows)?)
            }
        })
    }
}

impl List {
    /// Copies indices to the device, as a column.
    fn of(&mut self, device: &Device, indices: &[u32]) -> Result<DeviceSlice<'_>> {
        DeviceSlice::of(self.copy(device, indices)?, IntType::U32).first(indices.len())
    }
}

/// Allows any value.
fn unchecked<T>(_: T) -> Result<()> {
    Ok(())
}

/// The memory of one list per parameter of rows.
#[derive(Debug, Default)]
pub(super) struct ParamColumns {
    temperature: List,
    top_k: List,
    top_p: List,
    min_p: List,
}

/// The memory of one list per key of a draw, and of the rows or slots that outputs read.
#[derive(Debug, Default)]
pub(super) struct KeyColumns {
    columns: DrawColumns,
    indices: List,
}

/// The memory of one list per key of a draw.
#[derive(Debug, Default)]
struct DrawColumns {
    seeds: List,
    positions: List,
    draws: List,
}

/// The memory of a list of tokens.
#[derive(Debug, Default)]
pub(super) struct TokenColumn(List);

impl TokenColumn {
    /// Returns the tokens of `rows` rows as the kernels' launches take them; tokens that the host can see are
    /// checked.
    pub fn tokens<'b>(
        &'b mut self,
        device: &Device,
        tokens: PerRow<'b, i32>,
        rows: usize,
        vocab: usize,
    ) -> Result<DeviceSlice<'b>> {
        let listed = match tokens {
            PerRow::Device(column) => return Ok(column),
            PerRow::All(_) => 1,
            PerRow::Host(_) => rows,
        };
        tokens.check_host("tokens", rows)?;
        let tokens: Vec<i32> = (0..listed).map(|row| tokens.of(row)).collect();
        tokens.iter().try_for_each(|token| check_token(*token, vocab))?;
        DeviceSlice::of(self.0.copy(device, &tokens)?, IntType::I32).first(listed)
    }
}

/// The memory of one list each of given ids and temperatures.
#[derive(Debug, Default)]
pub(super) struct GivenColumns {
    ids: List,
    temperature: List,
}

impl GivenColumns {
    /// Returns given tokens as the kernels' launches take them; ids and temperatures that the host can see
    /// are checked.
    pub fn tokens<'b>(
        &'b mut self,
        device: &Device,
        tokens: &GivenTokens<'b>,
        (rows, vocab): (usize, usize),
    ) -> Result<cuda::GivenTokens<'b>> {
        let GivenTokens { ids, width, ignored, temperature, kept } = *tokens;
        let kept = match kept {
            Masks::None => None,
            Masks::Device(kept) => Some(kept),
            Masks::Host(_) => return Err(wrong_memory("masks", "the host", "the device")),
        };
        let ids = match ids {
            PerRow::Device(column) => column,
            PerRow::All(_) if width != 1 => {
                return Err(Error::out_of_range(
                    "ids",
                    "one for all rows",
                    "a list where the width is not 1",
                ));
            }
            ids => {
                let count = if matches!(ids, PerRow::All(_)) { 1 } else { rows * width };
                ids.check_host("ids", count)?;
                let listed: Vec<i32> = (0..count).map(|place| ids.of(place)).collect();
                listed.iter().try_for_each(|id| check_id(*id, ignored, vocab))?;
                DeviceSlice::of(self.ids.copy(device, &listed)?, IntType::I32).first(count)?
            }
        };
        let check = |temperature| SamplingParams { temperature, ..SamplingParams::default() }.validate(vocab);
        let dtype = ColumnType::F32;
        let temperature = self.temperature.column(device, "temperature", temperature, dtype, rows, check)?;
        Ok(cuda::GivenTokens { ids, width, ignored, temperature, kept })
    }
}

/// The keys of draws, and the rows they read, as the kernels' launches take them.
pub(super) type Keys<'b> = (cuda::Draws<'b>, Option<DeviceSlice<'b>>);

impl ParamColumns {
    /// Returns the parameters of rows as the kernels' launches take them; lists have `rows` elements.
    /// `common`: what [`RowParams::common`] returns.
    pub fn params<'b>(
        &'b mut self,
        device: &Device,
        params: &RowParams<'b>,
        common: &'b SamplingParams,
        kind: Kind,
        (rows, vocab): (usize, usize),
    ) -> Result<cuda::RowParams<'b>> {
        common.check_kind(kind)?;
        let varies = !matches!(params.temperature, None | Some(PerRow::All(_)));
        if kind == Kind::Probabilities && varies {
            let allowed = "of no row by itself where rows are probabilities";
            return Err(Error::out_of_range("temperature", "a list", allowed));
        }
        macro_rules! column {
            ($name:ident, $dtype:expr) => {
                match params.$name {
                    None | Some(PerRow::All(_)) => None,
                    Some(values) => {
                        let check = |$name| SamplingParams { $name, ..common.clone() }.validate(vocab);
                        match self.$name.column(device, stringify!($name), values, $dtype, rows, check)? {
                            cuda::PerRow::Rows(column) => Some(column),
                            cuda::PerRow::All(_) => None,
                        }
                    }
                }
            };
        }
        Ok(cuda::RowParams {
            common,
            temperature: column!(temperature, ColumnType::F32),
            top_k: column!(top_k, IntType::I64),
            top_p: column!(top_p, ColumnType::F32),
            min_p: column!(min_p, ColumnType::F32),
        })
    }
}

impl KeyColumns {
    /// Returns the keys of `outputs` draws from `rows` rows, and the rows they read.
    pub fn keys<'b>(
        &'b mut self,
        device: &Device,
        draws: &Draws<'b>,
        row_indices: Option<PerRow<'b, u32>>,
        outputs: usize,
        rows: usize,
    ) -> Result<Keys<'b>> {
        let Self { columns, indices } = self;
        let row_indices = match row_indices {
            None => None,
            Some(PerRow::Device(column)) => Some(column),
            Some(listed) => Some(indices.of(device, &listed.row_indices(outputs, rows)?)?),
        };
        Ok((columns.draws(device, draws, outputs)?, row_indices))
    }

    /// Returns the keys of draws that lie in pools, and the elements of these that `rows` rows read.
    pub fn pooled<'b>(
        &'b mut self,
        device: &Device,
        draws: &Draws<'b>,
        pools: &PoolSlots<'b>,
        rows: usize,
    ) -> Result<(cuda::Draws<'b>, cuda::PoolSlots<'b>)> {
        let PoolSlots { slots, size, rows_per_slot, high_draws } = *pools;
        let Self { columns, indices } = self;
        let slots = match slots {
            PerRow::Device(column) => column,
            _ => indices.of(device, &pools.listed(rows)?)?,
        };
        let draws = columns.draws(device, draws, size)?;
        Ok((draws, cuda::PoolSlots { slots, size, rows_per_slot, high_draws }))
    }
}

impl DrawColumns {
    /// Returns keys as the kernels' launches take them; lists have `count` elements.
    fn draws<'b>(&'b mut self, device: &Device, draws: &Draws<'b>, count: usize) -> Result<cuda::Draws<'b>> {
        if draws.seeds.is_none() && device.runtime().is_capturing()? {
            let allowed = "given in the capture of a graph, as a column on the device, \
                           because each replay would draw by the same entropy";
            return Err(Error::out_of_range("seeds", "absent", allowed));
        }
        let (seeds, positions) = draws.seeds_and_positions()?;
        let Draws { draws, offsets, zero_for_none, .. } = *draws;
        let seeds = self.seeds.column(device, "seeds", seeds, IntType::U64, count, unchecked)?;
        let positions =
            self.positions.column(device, "positions", positions, IntType::U32, count, unchecked)?;
        let draws = draws
            .map(|draws| self.draws.column(device, "draws", draws, IntType::U32, count, unchecked))
            .transpose()?;
        Ok(cuda::Draws { seeds, positions, draws, offsets, zero_for_none })
    }
}
