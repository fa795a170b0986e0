//! Columns on a device: those that lie there already, and lists of the host that are copied there.

use bytemuck::Pod;
use gumball_cuda::{self as cuda, Buffer, DeviceIntSlice, DeviceSlice, IntType};
use gumball_spec::{Error, Kind, Result, SamplingParams};

use super::draws::Draws;
use super::params::{PerRow, RowParams, check_length};
use crate::Device;

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

    /// Returns a column of f32; `None` for a value for all rows. A list is checked and copied.
    fn floats<'b>(
        &'b mut self,
        device: &Device,
        parameter: &'static str,
        values: Option<PerRow<'b, f32>>,
        rows: usize,
        check: impl FnMut(f32) -> Result<()>,
    ) -> Result<Option<DeviceSlice<'b>>> {
        match values {
            None | Some(PerRow::All(_)) => Ok(None),
            Some(PerRow::Device(column)) => column.words(parameter).map(Some),
            Some(PerRow::Host(values)) => {
                check_length(parameter, values.len(), rows)?;
                values.iter().copied().try_for_each(check)?;
                DeviceSlice::of(self.copy(device, values)?).first(rows).map(Some)
            }
        }
    }

    /// Returns integers as the kernels' launches take them. A list is copied, as integers of `dtype`.
    fn integers<'b, T: Pod>(
        &'b mut self,
        device: &Device,
        parameter: &'static str,
        values: PerRow<'b, T>,
        dtype: IntType,
        rows: usize,
    ) -> Result<cuda::PerRow<'b, T>> {
        Ok(match values {
            PerRow::All(value) => cuda::PerRow::All(value),
            PerRow::Device(column) => cuda::PerRow::Rows(column.integers(parameter)?),
            PerRow::Host(values) => {
                check_length(parameter, values.len(), rows)?;
                let column = DeviceIntSlice::of(self.copy(device, values)?, dtype);
                cuda::PerRow::Rows(column.first(rows)?)
            }
        })
    }
}

/// The memory of one list per parameter of rows.
#[derive(Debug, Default)]
pub(super) struct ParamColumns {
    temperature: List,
    top_k: List,
    top_p: List,
    min_p: List,
}

/// The memory of one list per key of a draw, and of the rows that outputs read.
#[derive(Debug, Default)]
pub(super) struct KeyColumns {
    seeds: List,
    positions: List,
    draws: List,
    row_indices: List,
}

/// The keys of draws, and the rows they read, as the kernels' launches take them.
pub(super) type Keys<'b> = (cuda::Draws<'b>, Option<DeviceIntSlice<'b>>);

impl ParamColumns {
    /// Returns the parameters of `rows` rows as the kernels' launches take them. `common`: what
    /// [`RowParams::common`] returns.
    pub fn params<'b>(
        &'b mut self,
        device: &Device,
        params: &RowParams<'b>,
        common: &'b SamplingParams,
        kind: Kind,
        (rows, vocab): (usize, usize),
    ) -> Result<cuda::RowParams<'b>> {
        common.check_kind(kind, vocab)?;
        let varies = !matches!(params.temperature, None | Some(PerRow::All(_)));
        if kind == Kind::Probabilities && varies {
            let allowed = "of no row by itself where rows are probabilities";
            return Err(Error::out_of_range("temperature", "a list", allowed));
        }
        let Self { temperature, top_k, top_p, min_p } = self;
        macro_rules! check {
            ($name:ident) => {
                |$name| SamplingParams { $name, ..common.clone() }.validate(vocab)
            };
        }
        macro_rules! floats {
            ($name:ident) => {
                $name.floats(device, stringify!($name), params.$name, rows, check!($name))?
            };
        }
        if let Some(PerRow::Host(values)) = params.top_k {
            values.iter().copied().try_for_each(check!(top_k))?;
        }
        let top_k = params.top_k.map(|values| top_k.integers(device, "top_k", values, IntType::I64, rows));
        Ok(cuda::RowParams {
            common,
            temperature: floats!(temperature),
            top_k: match top_k.transpose()? {
                Some(cuda::PerRow::Rows(column)) => Some(column),
                None | Some(cuda::PerRow::All(_)) => None,
            },
            top_p: floats!(top_p),
            min_p: floats!(min_p),
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
        let Draws { seeds, positions, draws, offsets, zero_for_none } = *draws;
        let Self { seeds: seed_list, positions: position_list, draws: draw_list, row_indices: index_list } =
            self;
        let seeds = seed_list.integers(device, "seeds", seeds, IntType::U64, outputs)?;
        let positions = position_list.integers(device, "positions", positions, IntType::U32, outputs)?;
        let draws = match draws {
            Some(draws) => Some(draw_list.integers(device, "draws", draws, IntType::U32, outputs)?),
            None => None,
        };
        let row_indices = match row_indices {
            None => None,
            Some(PerRow::Device(column)) => Some(column.integers("row_indices")?),
            Some(listed) => {
                let indices = listed.row_indices(outputs, rows)?;
                Some(DeviceIntSlice::of(index_list.copy(device, &indices)?, IntType::U32).first(outputs)?)
            }
        };
        Ok((cuda::Draws { seeds, positions, draws, offsets, zero_for_none }, row_indices))
    }
}
