//! Requests of a pool: admission, release, fork, truncation, and their state.

use pyo3::prelude::*;

use super::Pool;
use crate::lists::{extract_int, integers};
use crate::params;
use crate::state::OwnedState;

#[pymethods]
impl Pool {
    /// Admits a request and returns its slot, an int. The call does not wait for the device; captured graphs
    /// stay valid.
    ///
    /// params: SamplingParams. prompt: ids, a list or an integer array.
    ///
    /// Raises ValueError for a parameter outside its range, if all slots are taken, or if the request wants
    /// more logprobs than the pool can report.
    #[pyo3(signature = (params, prompt=None), text_signature = "($self, params, prompt=())")]
    fn admit(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        prompt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i32> {
        let params = params::read(params)?;
        let prompt = prompt.map(|prompt| integers(prompt, "prompt")).transpose()?.unwrap_or_default();
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.admit(params, &prompt))
    }

    /// Continues a sequence from a state of this or any other pool, and returns its slot.
    ///
    /// The seed is the state's. Raises ValueError as admit does, and if the state's mu is NaN or +inf.
    fn resume(&self, py: Python<'_>, params: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (params, state) = (params::read(params)?, OwnedState::read(state)?);
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.resume(params, state.state()))
    }

    /// Copies a sequence to another slot, with another draw index, and returns that slot.
    ///
    /// For n sequences of one request: admit it, fork it with draw indices 1, 2, .. n - 1, and let all of
    /// them read the same row in the first step (row_indices). Raises ValueError if the slot is vacant, or
    /// all are taken.
    fn fork(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, draw: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (slot, draw) = (extract_int(slot, "slot")?, extract_int(draw, "draw")?);
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.fork(slot, draw))
    }

    /// Ends a sequence. Its slot becomes vacant, and rows that are assigned to it become padding.
    ///
    /// Raises ValueError if the slot is vacant already.
    fn release(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<()> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.release(slot))
    }

    /// Restores a sequence's state after output_len output tokens, mirostat's limit included.
    ///
    /// Raises ValueError if the slot is vacant or the output has fewer tokens.
    fn truncate(
        &self,
        py: Python<'_>,
        slot: &Bound<'_, PyAny>,
        output_len: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (slot, output_len) = (extract_int(slot, "slot")?, extract_int(output_len, "output_len")?);
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.truncate(slot, output_len))
    }

    /// Appends a token that the caller chose; mirostat's limit stays.
    ///
    /// Raises ValueError if the slot is vacant.
    fn push(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (slot, id) = (extract_int(slot, "slot")?, extract_int(id, "id")?);
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| inner.outside_a_capture()?.push(slot, id))
    }

    /// What the next token of a slot depends on besides its row and the parameters: a gumball.State.
    ///
    /// A device pool waits for the device if the host does not know the last tokens yet. Raises ValueError if
    /// the slot is vacant, UnavailableError if tokens were neither fetched nor kept on the device.
    fn state<'py>(&self, py: Python<'py>, slot: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| {
            Ok(OwnedState::new(inner.outside_a_capture()?.sequence(slot)?.state()))
        })?
        .python(py)
    }

    /// The ids of a slot's prompt and output, a list of int. Waits and raises as state does.
    fn history(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| Ok(inner.outside_a_capture()?.sequence(slot)?.history().ids().to_vec()))
    }

    /// The ids that a slot generated, a list of int. Waits and raises as state does.
    fn output(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| {
            Ok(inner.outside_a_capture()?.sequence(slot)?.history().output().to_vec())
        })
    }

    /// The number of tokens before a slot's next one, modulo 2**32. Waits and raises as state does.
    fn position(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<u32> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| Ok(inner.outside_a_capture()?.sequence(slot)?.position()))
    }

    /// The seed of a slot: that of its parameters, or the fresh one that was drawn if they have none. Raises
    /// ValueError if the slot is vacant.
    fn seed(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<u64> {
        let slot = extract_int(slot, "slot")?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| Ok(inner.outside_a_capture()?.sequence(slot)?.seed()))
    }
}
