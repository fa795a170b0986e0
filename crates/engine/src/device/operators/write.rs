//! Operators that write rows on a device: probabilities of the kept tokens, masked rows.

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
    /// `rows`: R rows of f32, bf16 or f16. `params`: columns of R, or of one value for all. In device columns
    /// a value outside its range counts as the nearest value inside, and NaN turns the parameter off. Rows of
    /// probabilities take no column of temperatures. `out`: R rows, f32 or of the rows' type. `statuses`: R
    /// of u32, the bits of [`Status`](crate::Status).
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) or [`Error::OutOfRange`](crate::Error::OutOfRange) if a
    ///   shape or a type differs.
    /// - Those of [`SamplingParams::validate`](crate::SamplingParams::validate), for values that lie on the
    ///   host, and of [`SamplingParams::check_kind`](crate::SamplingParams::check_kind).
    /// - [`Error::Conflict`](crate::Error::Conflict) if the host program captures the stream and a list of
    ///   the host would have to be copied.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) for bans and biases; if the device fails; or if
    ///   the host program captures the stream and the operator would have to allocate memory.
    ///
    /// After an error nothing has been written.
    pub fn probabilities(
        &mut self,
        rows: &Rows<'_>,
        params: &DeviceRowParams<'_>,
        out: &RowsOut<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        self.write(rows, params, |operators, params| operators.probabilities(rows, params, out, statuses))
    }

    /// Enqueues the distribution that each row's token is drawn from; it replaces the row, rounded to the
    /// rows' type.
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

    /// Enqueues a copy of each row in which only the tokens that its filters keep remain:
    /// [`Operators::mask_logits`](crate::Operators::mask_logits) on the device. Other logits become -inf,
    /// other probabilities 0.
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

    /// Enqueues the masking of each row in place, as [`DeviceOperators::mask_logits`] does into other memory.
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

    /// Checks the parameters, copies lists of the host to the device, and enqueues an operator.
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
