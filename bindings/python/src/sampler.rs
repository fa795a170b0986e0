//! The sampler: draws the tokens of one sequence and keeps its state.

use gumball_engine::{Kind, Sampler as EngineSampler, StepOptions, Token};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::arguments::argument;
use crate::arrays::{self, Array, FLOATS, Location, Matrix};
use crate::errors::{out_of_range, to_py_err};
use crate::hooks::{Hook, caught};
use crate::lists::{extract_int, integers};
use crate::params;
use crate::state::OwnedState;
use crate::turns::Turns;
use crate::values::Probabilities;

/// The state after a call that broke off, for the message.
const UNTOUCHED: &str = "the sequence has not moved";

/// Chooses the tokens of one sequence, on the host, and keeps its history.
///
/// ::
///
///     sampler = Sampler(SamplingParams(temperature=0.8, top_p=0.9, seed=7), vocab=32000, prompt=[1, 2])
///     token = sampler.sample(logits)
///
/// params: SamplingParams. vocab: the number of logits in a row. prompt: ids. draw: the draw index; sequences
/// with the same seed and history but different draw indices draw independently. route: "race", the default;
/// "oracle", the slow definition to check it against; or "probabilities", which computes a row of
/// probabilities first. The latter's tokens may differ where two scores lie within a rounding of the
/// probabilities. level: the SIMD level, "scalar", "avx2", "avx512" or "neon"; None takes the processor's
/// best. The tokens do not depend on it.
///
/// Raises ValueError for a parameter outside its range, TypeError for one of the wrong type.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct Sampler {
    inner: Turns<Inner>,
}

#[derive(Debug)]
struct Inner {
    sampler: EngineSampler,
    last: Option<Token>,
}

impl Sampler {
    fn of(sampler: EngineSampler) -> Self {
        Self { inner: Turns::new(Inner { sampler, last: None }) }
    }

    /// Runs `work` on the sampler without the GIL; calls from several threads take turns.
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Inner) -> R + Send) -> PyResult<R> {
        self.inner.with(py, UNTOUCHED, work)
    }
}

/// Reads an array on the host that has one row. The caller keeps the returned array alive while it reads the
/// row.
pub fn host_row<'py>(logits: &Bound<'py, PyAny>) -> PyResult<(Matrix, Array<'py>)> {
    let array = arrays::read(logits, "logits", None)?;
    if array.location != Location::Host {
        let text = "on the host; use Pool(device=..) for rows of a device";
        return Err(out_of_range("logits", format!("on {}", array.location), text));
    }
    let matrix = array.matrix("logits")?;
    matrix.check_float_of("logits", FLOATS)?;
    Ok((matrix, array))
}

/// Makes a read-only attribute of each thing that a sampler says of itself.
macro_rules! attributes {
    ($($(#[$about:meta])* $name:ident: $of:ty = |$inner:ident| $says:expr;)*) => {
        #[pymethods]
        impl Sampler {
            $($(#[$about])*
            #[getter]
            fn $name(&self, py: Python<'_>) -> PyResult<$of> {
                self.with(py, |$inner| $says)
            })*
        }
    };
}

attributes! {
    /// The ids of prompt and output, a list of int.
    history: Vec<u32> = |inner| inner.sampler.history().ids().to_vec();

    /// The ids generated so far, a list of int.
    output: Vec<u32> = |inner| inner.sampler.history().output().to_vec();

    /// The number of tokens before the next one, prompt and output, modulo 2**32.
    position: u32 = |inner| inner.sampler.position();

    /// The seed in use: the parameters', or the fresh one that was drawn if they have none.
    seed: u64 = |inner| inner.sampler.seed();

    /// The number of logits in a row.
    vocab: usize = |inner| inner.sampler.sequence().vocab();

    /// The SIMD level in use.
    level: &'static str = |inner| inner.sampler.level().name();

    /// The status of the last row: bits of gumball.Status; 0 before the first row.
    status: u32 = |inner| inner.last.map_or(0, |token| token.status.0);

    /// The temperature at which the last row was drawn; 0 if greedy, or before the first row.
    temperature: f32 = |inner| inner.last.map_or(0.0, |token| token.temperature);

    /// Mirostat's limit for the next token, in bits, or the mean of adaptive-p; 0 without both.
    mu: f32 = |inner| inner.sampler.sequence().mu();

    /// The ids that the filters kept of the last row, in the order of tokens, a list of int. Empty unless
    /// collect_kept turned this on.
    kept: Vec<u32> = |inner| inner.sampler.kept().to_vec();
}

#[pymethods]
impl Sampler {
    #[new]
    #[pyo3(
        signature = (params, vocab, *, prompt=None, draw=None, route=None, level=None),
        text_signature = "(params, vocab, *, prompt=(), draw=0, route='race', level=None)"
    )]
    fn new(
        params: &Bound<'_, PyAny>,
        vocab: &Bound<'_, PyAny>,
        prompt: Option<&Bound<'_, PyAny>>,
        draw: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] route: Option<&str>,
        #[pyo3(from_py_with = argument)] level: Option<&str>,
    ) -> PyResult<Self> {
        let prompt = prompt.map(|prompt| integers(prompt, "prompt")).transpose()?.unwrap_or_default();
        let draw = draw.map(|draw| extract_int(draw, "draw")).transpose()?.unwrap_or(0);
        let (vocab, params) = (params::vocab(vocab)?, params::read(params)?);
        let make = || {
            let mut sampler = EngineSampler::new(params, vocab)?.with_prompt(&prompt).with_draw(draw);
            if let Some(route) = route {
                sampler = sampler.with_route(route.parse()?)?;
            }
            match level {
                Some(level) => sampler.with_level(level.parse()?),
                None => Ok(sampler),
            }
        };
        caught("no sampler was made", make)?.map(Self::of).map_err(to_py_err)
    }

    /// Continues a sequence from the state of another sampler or pool. The seed is the state's.
    ///
    /// Raises ValueError as the constructor does, and if the state's mu is NaN or +inf.
    #[staticmethod]
    #[pyo3(
        signature = (params, vocab, state, *, route=None, level=None),
        text_signature = "(params, vocab, state, *, route='race', level=None)"
    )]
    fn resume(
        params: &Bound<'_, PyAny>,
        vocab: &Bound<'_, PyAny>,
        state: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument)] route: Option<&str>,
        #[pyo3(from_py_with = argument)] level: Option<&str>,
    ) -> PyResult<Self> {
        let state = OwnedState::read(state)?;
        let made = Self::new(params, vocab, None, None, route, level)?;
        let Inner { sampler, .. } = made.inner.into_inner();
        sampler.with_state(state.state()).map(Self::of).map_err(to_py_err)
    }

    /// Draws the next token and appends it. Returns None if no token of the row is above -inf.
    ///
    /// logits: [vocab] or [1, vocab], float32, bfloat16 or float16, on the host; or Probabilities of such a
    /// row. mask: [words] int32 or uint32; bit id % 32 of word id // 32 allows an id, missing words forbid.
    /// forced: the id to emit in place of the drawn one. hook: a callable that edits the row after penalties
    /// and biases and before the bans. It gets a copy of the row, a numpy float32 array [vocab], changes it
    /// in place and returns None. In that array -inf bans an id, and NaN is read as -inf. A hook must not use
    /// this sampler.
    ///
    /// Raises ValueError or TypeError for another shape, type or device, ValueError for a forced id outside
    /// the vocabulary, for parameters that apply to logits only if the row holds probabilities, and the
    /// hook's exceptions. After an error the sequence has not changed.
    #[pyo3(signature = (logits, *, mask=None, forced=None, hook=None))]
    fn sample(
        &self,
        py: Python<'_>,
        logits: &Bound<'_, PyAny>,
        mask: Option<&Bound<'_, PyAny>>,
        forced: Option<&Bound<'_, PyAny>>,
        hook: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u32>> {
        let (row, kind) = match logits.cast::<Probabilities>() {
            Ok(value) => (value.get().rows.bind(py), Kind::Probabilities),
            Err(_) => (logits, Kind::Logits),
        };
        let (matrix, _held) = host_row(row)?;
        // SAFETY: `_held` keeps the array of `matrix` alive during this call; Python's callers do not write
        // it meanwhile.
        let row = unsafe { matrix.row() }.map_err(to_py_err)?;
        let mask_array = mask.map(|mask| arrays::read(mask, "mask", None)).transpose()?;
        // SAFETY: `mask_array` lives until the call ends; Python's callers do not write it meanwhile.
        let mask = mask_array.as_ref().map(|mask| unsafe { mask.mask_words() }).transpose()?;
        let forced = forced.map(|forced| extract_int(forced, "forced")).transpose()?;
        let hook = hook.map(|hook| Hook::read(hook, "hook")).transpose()?;
        let hook = hook.map(|hook| (hook, self.inner.caller()));
        self.with(py, |inner| {
            let mut run = hook.as_ref().map(|(hook, caller)| move |row: &mut [f32]| hook.run(caller, row));
            let options = StepOptions { mask, forced, kind, hook: run.as_mut().map(|run| run as _) };
            let token = inner.sampler.sample_with(row, options)?;
            inner.last = Some(token);
            Ok(token.id)
        })?
        .map_err(to_py_err)
    }

    /// Appends a token that the caller chose.
    fn push(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = extract_int(id, "id")?;
        self.with(py, |inner| inner.sampler.push(id))
    }

    /// Takes back the last count output tokens.
    ///
    /// Raises ValueError if the output has fewer tokens.
    fn shorten(&self, py: Python<'_>, count: &Bound<'_, PyAny>) -> PyResult<()> {
        let count = extract_int(count, "count")?;
        self.with(py, |inner| inner.sampler.shorten(count))?.map_err(to_py_err)
    }

    /// Starts a new sequence after a prompt, with the same parameters, seed and draw index.
    #[pyo3(signature = (prompt=None), text_signature = "($self, prompt=())")]
    fn reset(&self, py: Python<'_>, prompt: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let prompt = prompt.map(|prompt| integers(prompt, "prompt")).transpose()?.unwrap_or_default();
        self.with(py, |inner| inner.sampler.reset(&prompt))
    }

    /// Returns a sampler with the same state and another draw index.
    fn fork(&self, py: Python<'_>, draw: &Bound<'_, PyAny>) -> PyResult<Self> {
        let draw = extract_int(draw, "draw")?;
        self.with(py, |inner| inner.sampler.fork(draw))?.map(Self::of).map_err(to_py_err)
    }

    /// The state of the sequence, on which the next token depends besides the row and the parameters: a
    /// gumball.State.
    #[getter]
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.with(py, |inner| OwnedState::new(inner.sampler.sequence().state()))?.python(py)
    }

    /// The logprobs of the last row, a gumball.Logprobs; None if the parameters request none.
    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        static LOGPROBS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        static ONE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let Some(found) = self.with(py, |inner| inner.sampler.logprobs().cloned())? else { return Ok(None) };
        let one = ONE.import(py, "gumball.params", "TokenLogprob")?;
        let python = |it: &gumball_engine::TokenLogprob| one.call1((it.id, it.logprob, it.rank));
        let all =
            |list: &[gumball_engine::TokenLogprob]| list.iter().map(python).collect::<PyResult<Vec<_>>>();
        let class = LOGPROBS.import(py, "gumball.params", "Logprobs")?;
        class.call1((python(&found.token)?, all(&found.top)?, all(&found.ids)?, found.second)).map(Some)
    }

    /// Turns the reporting of kept sets on or off for the following rows; it costs a sort of each set.
    fn collect_kept(&self, py: Python<'_>, #[pyo3(from_py_with = argument)] on: bool) -> PyResult<()> {
        self.with(py, |inner| inner.sampler.collect_kept(on))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |inner| {
            let sampler = &inner.sampler;
            let vocab = sampler.sequence().vocab();
            format!("Sampler(vocab={vocab}, seed={}, position={})", sampler.seed(), sampler.position())
        })
    }
}
