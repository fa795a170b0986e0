//! Rows that are written on a device: probabilities of what filters keep, masked rows.

use std::borrow::Cow;

use gumball_cuda::{DeviceSlice, RowParams, Rows, RowsOut};
use gumball_spec::Result;

use super::{DeviceOperators, DeviceRowParams, check_kind, room};

impl DeviceOperators {
    /// Enqueues the distribution that each row's token is drawn from, after temperature and filters:
    /// [`Operators::probabilities`](crate::Operators::probabilities) on the device.
    ///
    /// Rows of probabilities, which need not sum to 1, come out renormalised; a row without a token is all 0.
    ///
    /// # Shapes and units
    /// `rows`: R rows of f32, bf16 or f16. `params`: columns of R, or of one for all; in them what is outside its range counts as the
    /// nearest value inside, and NaN as off; for rows of probabilities without one of temperatures. `out`: R rows, f32 or of the rows' type. `statuses`: R of u32, the bits of
    /// [`Status`](crate::Status).
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) or [`Error::OutOfRange`](crate::Error::OutOfRange) if a shape or a type is not so.
    /// - Those of [`SamplingParams::validate`](crate::SamplingParams::validate) for what the host sees, and of
    ///   [`SamplingParams::check_kind`](crate::SamplingParams::check_kind).
    /// - [`Error::Conflict`](crate::Error::Conflict) if the host program captures the stream, and a list were to be copied.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) for bans and biases; if the device fails; or if the host program captures the
    ///   stream and there is not enough room.
    ///
    /// Nothing was written then.
    pub fn probabilities(
        &mut self,
        rows: &Rows<'_>,
        params: &DeviceRowParams<'_>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(rows, params, |operators, params| operators.probabilities(rows, params, out, statuses))
    }

    /// Enqueues the same in the rows' place, each number rounded to their type.
    ///
    /// # Errors
    /// Those of [`DeviceOperators::probabilities`].
    pub fn probabilities_in_place(
        &mut self,
        rows: &RowsOut<'_>,
        params: &DeviceRowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(rows.rows(), params, |operators, params| {
            operators.probabilities_in_place(rows, params, statuses)
        })
    }

    /// Enqueues each row with only the tokens that its filters keep, other logits being -inf and other probabilities 0:
    /// [`Operators::mask_logits`](crate::Operators::mask_logits) on the device.
    ///
    /// # Shapes and units
    /// Those of [`DeviceOperators::probabilities`].
    ///
    /// # Errors
    /// Those of [`DeviceOperators::probabilities`].
    pub fn mask_logits(
        &mut self,
        rows: &Rows<'_>,
        params: &DeviceRowParams<'_>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(rows, params, |operators, params| operators.mask(rows, params, out, statuses))
    }

    /// Enqueues the same in the rows' place.
    ///
    /// # Errors
    /// Those of [`DeviceOperators::probabilities`].
    pub fn mask_logits_in_place(
        &mut self,
        rows: &RowsOut<'_>,
        params: &DeviceRowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(rows.rows(), params, |operators, params| operators.mask_in_place(rows, params, statuses))
    }

    /// Checks the parameters, brings them to where the device finds them, and enqueues an operator of these rows.
    fn write(
        &mut self,
        rows: &Rows<'_>,
        params: &DeviceRowParams<'_>,
        enqueue: impl FnOnce(&mut gumball_cuda::Operators, &RowParams<'_>) -> Result<()>,
    ) -> Result<()> {
        check_kind(rows, params)?;
        let mut common = Cow::Borrowed(params.common);
        let params = self.params.lower(&self.device, params, &mut common, rows.rows(), rows.vocab())?;
        let operators = room(&self.device, &mut self.rows, gumball_cuda::Operators::new)?;
        enqueue(operators, &params)
    }
}
