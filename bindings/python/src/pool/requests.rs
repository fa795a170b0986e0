//! Requests of a pool: admission, release, fork, tokens that are taken away, and their state.

use gumball_engine::{Pool as EnginePool, Result};
use pyo3::prelude::*;

use super::Pool;
use crate::lists::{extract_int, integers};
use crate::params;
use crate::state::OwnedState;

impl Pool {
    /// Works with the engine's pool, outside of a capture.
    fn at_once<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut EnginePool) -> Result<R> + Send,
    ) -> PyResult<R> {
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| work(inner.outside_a_capture()?))
    }
}

#[pymethods]
impl Pool {
    /// Admits a request and returns its slot, an int. The call does not wait for the device; captured graphs
    /// stay valid.
    ///
    /// params: SamplingParams. prompt: ids, a list or an integer array.
    ///
    /// Raises ValueError for a parameter outside its range, if all slots are taken, or if the request wants
    /// more logprobs than the pool can report; over ranks without a seed, as ranks that each took one would
    /// draw different tokens.
    #[pyo3(signature = (params, prompt=None), text_signature = "($self, params, prompt=())")]
    fn admit(
        &self,
        py: Python<'_>,
        params: &Bound<'_, PyAny>,
        prompt: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<i32> {
        let params = params::read(params)?;
        let prompt = prompt.map(|prompt| integers(prompt, "prompt")).transpose()?.unwrap_or_default();
        self.at_once(py, |pool| pool.admit(params, &prompt))
    }

    /// Continues a sequence from a state of this or any other pool, and returns its slot.
    ///
    /// The seed is the state's. Raises ValueError as admit does, and if the state's mu is NaN or +inf.
    fn resume(&self, py: Python<'_>, params: &Bound<'_, PyAny>, state: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (params, state) = (params::read(params)?, OwnedState::read(state)?);
        self.at_once(py, |pool| pool.resume(params, state.state()))
    }

    /// Copies a sequence to another slot, with another draw index, and returns that slot.
    ///
    /// For n sequences of one request: admit it, fork it with draw indices 1, 2, .. n - 1, and let all of
    /// them read the same row in the first step (row_indices). Raises ValueError if the slot is vacant, or
    /// all are taken.
    fn fork(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, draw: &Bound<'_, PyAny>) -> PyResult<i32> {
        let (slot, draw) = (extract_int(slot, "slot")?, extract_int(draw, "draw")?);
        self.at_once(py, |pool| pool.fork(slot, draw))
    }

    /// Ends a sequence. Its slot becomes vacant, and rows that are assigned to it become padding.
    ///
    /// Raises ValueError if the slot is vacant already.
    fn release(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<()> {
        let slot = extract_int(slot, "slot")?;
        self.at_once(py, |pool| pool.release(slot))
    }

    /// Takes away the last counts[i] output tokens of the sequence in slots[i], for a caller who stops after
    /// a token that more were emitted after.
    ///
    /// The sequence is then as it was when the remaining tokens had been emitted. slots, counts: lists or
    /// integer arrays of the same length. On a device the states go through the host, which may have to wait;
    /// the work Shorten waits for nothing.
    ///
    /// Raises ValueError for a slot that is vacant or occurs twice, for more tokens than the output has, and
    /// with mirostat or adaptive-p for more than the `mu` that are known. After an error no sequence has
    /// changed.
    fn shorten(&self, py: Python<'_>, slots: &Bound<'_, PyAny>, counts: &Bound<'_, PyAny>) -> PyResult<()> {
        let slots: Vec<i32> = integers(slots, "slots")?;
        let counts: Vec<usize> = integers(counts, "counts")?;
        self.at_once(py, |pool| pool.shorten(&slots, &counts))
    }

    /// Appends a token that the caller chose; `mu` stays.
    ///
    /// Raises ValueError if the slot is vacant.
    fn push(&self, py: Python<'_>, slot: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let (slot, id) = (extract_int(slot, "slot")?, extract_int(id, "id")?);
        self.at_once(py, |pool| pool.push(slot, id))
    }

    /// The state of a slot's sequence, on which its next token depends besides the row and the parameters: a
    /// gumball.State, over ranks the same on all. Its seed is that of the parameters, or the fresh one that
    /// was drawn if they have none.
    ///
    /// A device pool waits for the device if the host does not know the last tokens yet. Raises ValueError if
    /// the slot is vacant, UnavailableError if tokens were neither fetched nor kept on the device.
    fn state<'py>(&self, py: Python<'py>, slot: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let slot = extract_int(slot, "slot")?;
        self.at_once(py, |pool| Ok(OwnedState::new(pool.sequence(slot)?.state())))?.python(py)
    }

    /// The ids that a slot generated, a list of int. Waits and raises as state does.
    fn output(&self, py: Python<'_>, slot: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let slot = extract_int(slot, "slot")?;
        self.at_once(py, |pool| Ok(pool.sequence(slot)?.history().output().to_vec()))
    }
}
