//! Draws on a device: any number of tokens from any rows.

use std::borrow::Cow;

use gumball_cuda::{DeviceIntSlice, DeviceSlice, IntType, Rows};
use gumball_spec::{Error, Result};

use super::lists::check_length;
use super::{DeviceDraws, DeviceOperators, DevicePerRow, DeviceRowParams, check_kind, room};

impl DeviceOperators {
    /// Enqueues a draw for each output from the row that it reads, after temperature and filters.
    ///
    /// The results are those of [`Operators::sample_logits`](crate::Operators::sample_logits), or for rows of
    /// probabilities of [`Operators::sample_probabilities`](crate::Operators::sample_probabilities). An
    /// output gets [`NONE`](crate::NONE) if its row has no logit above -inf, or if its index in a device
    /// column of `lines` is not a row. In device columns a value outside its range counts as the nearest
    /// value inside, and NaN turns the parameter off.
    ///
    /// # Shapes and units
    /// `rows`: L rows. `params`: columns of L, or of one value for all. `lines`: the index of the row that
    /// each of R outputs reads; if `None`, R is L. `draws`: columns of R, or of one value for all. `tokens`:
    /// R of i32 or i64, written. `statuses`: R of u32, written: the bits of [`Status`](crate::Status) for
    /// each output.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs, or if a row index of the host
    ///   is outside 0..L.
    /// - Those of [`SamplingParams::validate`](crate::SamplingParams::validate), for values that lie on the
    ///   host.
    /// - [`Error::Conflict`] if the host program captures the stream and a list of the host would have to be
    ///   copied.
    /// - [`Error::Unavailable`] for bans and biases, or if the device fails.
    ///
    /// After an error nothing has been drawn.
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
