//! Draws on a device: any number of tokens from any lines.

use std::borrow::Cow;

use gumball_cuda::{DeviceIntSlice, DeviceSlice, IntType, Rows};
use gumball_spec::{Error, Result};

use super::lists::check_length;
use super::{DeviceDraws, DeviceOperators, DevicePerRow, DeviceRowParams, check_kind, room};

impl DeviceOperators {
    /// Enqueues a draw for each output, from the line that it reads, after temperature and filters:
    /// [`Operators::sample_logits`](crate::Operators::sample_logits), or by the rows' kind `sample_probabilities`, on the device.
    ///
    /// An output without a token has [`NONE`](crate::NONE): of a row without a logit above -inf, or of an entry of a column of lines that is
    /// no line. In columns, what is outside its range counts as the nearest value inside, and NaN as off.
    ///
    /// # Shapes and units
    /// `rows`: L lines. `params`: columns of L, or of one for all. `lines`: the line that each of R outputs reads; without it R is L.
    /// `draws`: columns of R, or of one for all. `tokens`: R of i32 or i64, which are written. `statuses`: R of u32, the bits of
    /// [`Status`](crate::Status) for each output.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape, a type or a line of the host's is not so.
    /// - Those of [`SamplingParams::validate`](crate::SamplingParams::validate) for what the host sees.
    /// - [`Error::Conflict`] if the host program captures the stream, and a list were to be copied.
    /// - [`Error::Unavailable`] for bans and biases; if the device fails; or if the host program captures the stream and there is
    ///   not enough room.
    ///
    /// Nothing was drawn then.
    pub fn sample(
        &mut self,
        rows: &Rows<'_>,
        params: &DeviceRowParams<'_>,
        draws: &DeviceDraws<'_>,
        lines: Option<DevicePerRow<'_, u32, DeviceIntSlice<'_>>>,
        tokens: &DeviceIntSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let (device, outputs) = (&self.device, tokens.rows());
        check_kind(rows, params)?;
        let mut common = Cow::Borrowed(params.common);
        let params = self.params.lower(device, params, &mut common, rows.rows(), rows.vocab())?;
        let draws = self.draws.lower(device, draws, outputs)?;
        let all;
        let lines = match lines {
            None => None,
            Some(DevicePerRow::Device(column)) => Some(column),
            Some(listed) => {
                let values = match listed {
                    DevicePerRow::Host(values) => values,
                    DevicePerRow::All(line) => {
                        all = vec![line; outputs];
                        &all[..]
                    }
                    DevicePerRow::Device(_) => unreachable!("seen above"),
                };
                check_length("lines", values.len(), outputs)?;
                if let Some(line) = values.iter().find(|line| **line as usize >= rows.rows()) {
                    return Err(Error::out_of_range("lines", line, format!("a row in 0..{}", rows.rows())));
                }
                Some(DeviceIntSlice::of(self.lines.copy(device, values)?, IntType::U32).first(outputs)?)
            }
        };
        let operators = room(device, &mut self.rows, gumball_cuda::Operators::new)?;
        operators.sample(rows, &params, &draws, lines.as_ref(), tokens, statuses)
    }
}
