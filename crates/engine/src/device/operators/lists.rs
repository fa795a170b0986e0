//! Values per row for a device: one for all rows, a list that is copied to the device, or a column that lies
//! there.

use std::borrow::Cow;

use bytemuck::Pod;
use gumball_cuda::{Buffer, DeviceIntSlice, DeviceSlice, IntType, PerRow};
use gumball_spec::{Error, Result, SamplingParams};

use crate::device::Device;

/// One value for all rows, or one for each.
#[derive(Clone, Copy, Debug)]
pub enum DevicePerRow<'a, T, C = DeviceSlice<'a>> {
    /// One value for all rows.
    All(T),
    /// One per row, copied to the device. Refused while the host program captures, because a replay would
    /// copy stale values.
    Host(&'a [T]),
    /// One per row, in the device's memory. The host cannot see the values and refuses none.
    Device(C),
}

impl<T, C> From<T> for DevicePerRow<'_, T, C> {
    fn from(value: T) -> Self {
        DevicePerRow::All(value)
    }
}

impl<'a, T, C> From<&'a [T]> for DevicePerRow<'a, T, C> {
    fn from(values: &'a [T]) -> Self {
        DevicePerRow::Host(values)
    }
}

/// The parameters of a batch of rows on a device: filters and temperature, and no history.
///
/// A device column has one number per row of the matrix, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRowParams<'a> {
    /// The parameters of all rows, except those that the fields below replace. Seed and logprobs are not
    /// read; bans and biases are refused.
    pub common: &'a SamplingParams,
    /// The temperature.
    pub temperature: Option<DevicePerRow<'a, f32>>,
    /// `top_k`; a device column is i32 or i64.
    pub top_k: Option<DevicePerRow<'a, i64, DeviceIntSlice<'a>>>,
    /// `top_p`.
    pub top_p: Option<DevicePerRow<'a, f32>>,
    /// `min_p`.
    pub min_p: Option<DevicePerRow<'a, f32>>,
}

impl<'a> DeviceRowParams<'a> {
    /// Takes parameters for all rows.
    #[must_use]
    pub fn new(common: &'a SamplingParams) -> Self {
        Self { common, temperature: None, top_k: None, top_p: None, min_p: None }
    }
}

/// The keys of each output's draw. A device column has one number per output, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDraws<'a> {
    /// The seeds; a device column has 64-bit elements.
    pub seeds: DevicePerRow<'a, u64, DeviceIntSlice<'a>>,
    /// The positions; of 64-bit elements in a device column the low 32 bits count.
    pub positions: DevicePerRow<'a, u32, DeviceIntSlice<'a>>,
    /// The draw indices; of 64-bit elements in a device column the low 32 bits count. `None`: each output's
    /// own index.
    pub draws: Option<DevicePerRow<'a, u32, DeviceIntSlice<'a>>>,
    /// Whether 64-bit positions in a device column are offsets. The low word of an offset is the position.
    /// The high word, as a signed integer times 0x9E37_79B9_7F4A_7C15, is added to the seed. If false, only
    /// the low words count.
    pub offsets: bool,
    /// Whether an output without a token is written as 0 instead of [`NONE`](crate::NONE).
    pub zero_for_none: bool,
}

impl DeviceDraws<'_> {
    /// Takes one seed and one position for all outputs; each output's own index is its draw index.
    #[must_use]
    pub fn new(seed: u64, position: u32) -> Self {
        let (seeds, positions) = (DevicePerRow::All(seed), DevicePerRow::All(position));
        Self { seeds, positions, draws: None, offsets: false, zero_for_none: false }
    }
}

/// Device memory for a copied list; it grows as needed.
#[derive(Debug, Default)]
pub(super) struct List(Option<Buffer>);

impl List {
    /// Copies a list to the device.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if the host program captures the stream.
    pub fn copy<T: Pod>(&mut self, device: &Device, values: &[T]) -> Result<&Buffer> {
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
}

/// The memory of one list per row parameter.
#[derive(Debug, Default)]
pub(super) struct ParamLists {
    temperature: List,
    top_k: List,
    top_p: List,
    min_p: List,
}

impl ParamLists {
    /// Copies the host's lists for `lines` rows to the device. Values for all rows go into `common`.
    pub fn lower<'b>(
        &'b mut self,
        device: &Device,
        params: &DeviceRowParams<'b>,
        common: &'b mut Cow<'b, SamplingParams>,
        lines: usize,
        vocab: usize,
    ) -> Result<gumball_cuda::RowParams<'b>> {
        macro_rules! value {
            ($name:ident) => {
                if let Some(DevicePerRow::All(value)) = params.$name {
                    common.to_mut().$name = value;
                }
            };
        }
        value!(temperature);
        value!(top_k);
        value!(top_p);
        value!(min_p);
        let common: &'b SamplingParams = common;
        macro_rules! numbers {
            ($name:ident, $column:expr) => {
                match params.$name {
                    None | Some(DevicePerRow::All(_)) => None,
                    Some(DevicePerRow::Device(column)) => Some(column),
                    Some(DevicePerRow::Host(values)) => {
                        check_length(stringify!($name), values.len(), lines)?;
                        let mut probe = common.clone();
                        values.iter().try_for_each(|value| {
                            probe.$name = *value;
                            probe.validate(vocab)
                        })?;
                        let buffer = self.$name.copy(device, values)?;
                        Some($column(buffer).first(values.len())?)
                    }
                }
            };
        }
        Ok(gumball_cuda::RowParams {
            common,
            temperature: numbers!(temperature, DeviceSlice::of),
            top_k: numbers!(top_k, |buffer| DeviceIntSlice::of(buffer, IntType::I64)),
            top_p: numbers!(top_p, DeviceSlice::of),
            min_p: numbers!(min_p, DeviceSlice::of),
        })
    }
}

/// Checks that a list has a value for each row.
pub(super) fn check_length(parameter: &'static str, length: usize, rows: usize) -> Result<()> {
    if length == rows {
        return Ok(());
    }
    Err(Error::length(parameter, length, format!("one per row, {rows}")))
}

/// The memory of one list per key of a draw.
#[derive(Debug, Default)]
pub(super) struct DrawLists {
    seeds: List,
    positions: List,
    draws: List,
}

impl DrawLists {
    /// Copies the host's lists of keys for `outputs` draws to the device.
    pub fn lower<'b>(
        &'b mut self,
        device: &Device,
        draws: &DeviceDraws<'b>,
        outputs: usize,
    ) -> Result<gumball_cuda::Draws<'b>> {
        let seeds = integers(&mut self.seeds, device, "seeds", draws.seeds, IntType::U64, outputs)?;
        let positions =
            integers(&mut self.positions, device, "positions", draws.positions, IntType::U32, outputs)?;
        let DeviceDraws { offsets, zero_for_none, .. } = *draws;
        let draws =
            draws.draws.map(|draws| integers(&mut self.draws, device, "draws", draws, IntType::U32, outputs));
        Ok(gumball_cuda::Draws { seeds, positions, draws: draws.transpose()?, offsets, zero_for_none })
    }
}

/// Copies a list of integers to the device, if it lies on the host.
fn integers<'b, T: Pod>(
    list: &'b mut List,
    device: &Device,
    name: &'static str,
    each: DevicePerRow<'b, T, DeviceIntSlice<'b>>,
    dtype: IntType,
    outputs: usize,
) -> Result<PerRow<'b, T>> {
    Ok(match each {
        DevicePerRow::All(value) => PerRow::All(value),
        DevicePerRow::Device(column) => PerRow::Rows(column),
        DevicePerRow::Host(values) => {
            check_length(name, values.len(), outputs)?;
            PerRow::Rows(DeviceIntSlice::of(list.copy(device, values)?, dtype).first(values.len())?)
        }
    })
}
