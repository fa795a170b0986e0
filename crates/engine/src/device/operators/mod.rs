//! Operators on a device, over rows in its memory, without sequences.
//!
//! Results equal those of [`Operators`](crate::Operators) on the host, bit for bit. A call only launches
//! kernels and waits for nothing. After a call with at least as many rows it allocates nothing either, so it
//! can be captured in a graph. The launches share memory of these operators, in the order of the device's
//! stream. Use separate operators for each stream, and replay graphs captured with the same operators one
//! after the other.

mod chains;
mod draws;
mod lists;
mod write;

use std::sync::Arc;

use gumball_cuda::{DeviceSlice, Rows, RowsOut, Runtime, Softmax, Temperature, Verify};
use gumball_spec::{Error, Kind, Result};

use super::Device;
pub use lists::{DeviceDraws, DevicePerRow, DeviceRowParams};
use lists::{DrawLists, List, ParamLists, check_length};

/// The operators of a device, in the order of its stream. They keep their memory from call to call.
///
/// ```no_run
/// use gumball_engine::{Device, DeviceBuffer, DeviceLogits, DeviceOperators, DeviceRows, Dtype};
///
/// let device = Device::cuda(0)?;
/// let mut operators = DeviceOperators::new(device.clone());
/// let logits = DeviceBuffer::of(device.runtime(), &[0.0f32, 0.0, 2.0, 1.0])?;
/// let mut probabilities = DeviceBuffer::zeroed(device.runtime(), 16)?;
/// let rows = DeviceLogits::of(&logits, Dtype::F32, 0, 2, 2, 2)?;
/// let out = DeviceRows::of(&mut probabilities, Dtype::F32, 0, 2, 2, 2)?;
/// operators.softmax(&rows, 0.7.into(), &out, None)?;
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceOperators {
    device: Device,
    softmax: Option<Softmax>,
    rows: Option<gumball_cuda::Operators>,
    verify: Option<Verify>,
    temperatures: List,
    params: ParamLists,
    draws: DrawLists,
    lines: List,
}

impl DeviceOperators {
    /// Makes the operators of a device. Each operator allocates its memory in its first call.
    #[must_use]
    pub fn new(device: Device) -> Self {
        Self {
            device,
            softmax: None,
            rows: None,
            verify: None,
            temperatures: List::default(),
            params: ParamLists::default(),
            draws: DrawLists::default(),
            lines: List::default(),
        }
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Enqueues the softmax of each row at its temperature, fused:
    /// [`Operators::softmax`](crate::Operators::softmax) on the device.
    ///
    /// # Shapes and units
    /// `logits`: R rows of f32, bf16 or f16. `temperature`: one, or R. In a device column NaN and negative
    /// values count as 0, values above 2^100 as 2^100. `out`: R rows, f32 or of the logits' type. `statuses`:
    /// R of u32, the bits of [`Status`](crate::Status).
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs, or if a temperature on the
    ///   host is neither 0 nor in (0, 2^100].
    /// - [`Error::Conflict`] if the host program captures the stream and a list of the host would have to be
    ///   copied.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// After an error nothing has been written.
    pub fn softmax(
        &mut self,
        logits: &Rows<'_>,
        temperature: DevicePerRow<'_, f32>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        check_logits(logits)?;
        let temperature = given(&self.device, &mut self.temperatures, temperature, logits.rows())?;
        room(&self.device, &mut self.softmax, Softmax::new)?.enqueue(logits, out, temperature, statuses)
    }

    /// Enqueues the softmax of each row, which replaces the row. Each number is rounded to the rows' type.
    ///
    /// # Errors
    /// Those of [`DeviceOperators::softmax`].
    pub fn softmax_in_place(
        &mut self,
        rows: &RowsOut<'_>,
        temperature: DevicePerRow<'_, f32>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        check_logits(rows.rows())?;
        let temperature = given(&self.device, &mut self.temperatures, temperature, rows.rows().rows())?;
        room(&self.device, &mut self.softmax, Softmax::new)?.enqueue_in_place(rows, temperature, statuses)
    }
}

/// Returns an operator; if it does not exist yet, makes it, which allocates its memory.
fn room<'a, T>(
    device: &Device,
    place: &'a mut Option<T>,
    make: impl FnOnce(Arc<dyn Runtime>) -> Result<T>,
) -> Result<&'a mut T> {
    let made = match place.take() {
        Some(made) => made,
        None => make(device.runtime().clone())?,
    };
    Ok(place.insert(made))
}

/// Returns an error if the rows hold probabilities.
fn check_logits(rows: &Rows<'_>) -> Result<()> {
    match rows.kind() {
        Kind::Logits => Ok(()),
        Kind::Probabilities => Err(Error::out_of_range("kind", "probabilities", "logits")),
    }
}

/// Returns an error if the rows hold probabilities and a parameter applies to logits only.
fn check_kind(rows: &Rows<'_>, params: &DeviceRowParams<'_>) -> Result<()> {
    params.common.check_kind(rows.kind(), rows.vocab())?;
    let alike = matches!(params.temperature, None | Some(DevicePerRow::All(_)));
    if rows.kind() == Kind::Probabilities && !alike {
        let allowed = "of no row by itself where rows are probabilities";
        return Err(Error::out_of_range("temperature", "a list", allowed));
    }
    Ok(())
}

/// Returns the temperatures as the device's operator takes them; copies a list of the host.
fn given<'a>(
    device: &Device,
    list: &'a mut List,
    temperature: DevicePerRow<'a, f32>,
    rows: usize,
) -> Result<Temperature<'a>> {
    let values = match temperature {
        DevicePerRow::All(value) => return check_temperature(value).map(Temperature::All),
        DevicePerRow::Device(column) => return Ok(Temperature::PerRow(column)),
        DevicePerRow::Host(values) => values,
    };
    check_length("temperature", values.len(), rows)?;
    values.iter().try_for_each(|value| check_temperature(*value).map(drop))?;
    DeviceSlice::of(list.copy(device, values)?).first(values.len()).map(Temperature::PerRow)
}

/// Checks a temperature against the range of the host's operators.
fn check_temperature(temperature: f32) -> Result<f32> {
    const MOST: f32 = f32::from_bits((127 + 100) << 23);
    if (0.0..=MOST).contains(&temperature) {
        return Ok(temperature);
    }
    Err(Error::out_of_range("temperature", temperature, "0 (greedy) or in (0, 2^100]"))
}
