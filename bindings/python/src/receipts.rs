//! Receipts of sampled texts and their replay, for `gumball.Receipt` and `gumball.verify_receipt`.

use gumball_engine::{Logprobs, Status, TokenLogprob};
use gumball_receipt::{Answer, Receipt as Of, Replay as Replayed};
use pyo3::prelude::*;

use crate::arguments::argument;
use crate::errors::{out_of_range, to_py_err};
use crate::lists::{extract_int, integers, number};
use crate::sampler::host_row;
use crate::turns::Turns;
use crate::{arrays, params};

/// The state after a call that broke off, for the message.
const UNTOUCHED: &str = "no token was added";

/// What is kept of a receipt that grows.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug)]
pub struct ReceiptOf(Turns<Of>);

#[pymethods]
impl ReceiptOf {
    #[new]
    fn new(
        params: &Bound<'_, PyAny>,
        vocab: &Bound<'_, PyAny>,
        prompt: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        draw: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (params, prompt) = (params::read(params)?, integers(prompt, "prompt")?);
        let (seed, draw) = (params::seed(seed)?, extract_int(draw, "draw")?);
        let receipt = Of::new(&params, extract_int(vocab, "vocab")?, seed, draw, &prompt);
        Ok(Self(Turns::new(receipt.map_err(to_py_err)?)))
    }

    /// Adds a token with its status, radius, most likely ids with their logprobs, and bitmask.
    fn push(
        &self,
        py: Python<'_>,
        token: i32,
        status: u32,
        radius: f32,
        top: Vec<(i32, f32)>,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let mask_array = mask.map(|mask| arrays::read(mask, "mask", None)).transpose()?;
        // SAFETY: `mask_array` lives until the call ends; Python's callers do not write it meanwhile.
        let mask = mask_array.as_ref().map(|mask| unsafe { mask.mask_words() }).transpose()?;
        let listed = |(id, logprob)| TokenLogprob { id, logprob, rank: 0 };
        let top: Vec<_> = top.into_iter().map(listed).collect();
        let own = TokenLogprob { id: token, logprob: 0.0, rank: 0 };
        let logprobs = Logprobs { token: own, top, ids: Vec::new(), second: radius };
        self.0
            .with(py, UNTOUCHED, |receipt| receipt.push(token, Status(status), &logprobs, mask))?
            .map_err(to_py_err)
    }

    /// Returns the receipt as canonical JSON.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, UNTOUCHED, |receipt| receipt.to_json())
    }
}

/// Draws the tokens of a receipt again and returns how each agrees: "equal", "within", or what is wrong.
/// `rows` iterates over the logits of each token, `masks` over their bitmasks or None.
#[pyfunction]
pub fn replay_receipt(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] receipt: &str,
    rows: &Bound<'_, PyAny>,
    masks: Option<&Bound<'_, PyAny>>,
    tolerance: &Bound<'_, PyAny>,
) -> PyResult<Vec<&'static str>> {
    let receipt = Of::from_json(receipt).map_err(to_py_err)?;
    let mut replay = Replayed::new(&receipt, number(tolerance, "tolerance")?).map_err(to_py_err)?;
    let steps = receipt.steps().len();
    let (mut rows, mut masks) = (rows.try_iter()?, masks.map(|masks| masks.try_iter()).transpose()?);
    let mut answers = Vec::with_capacity(steps);
    let few = |name| out_of_range(name, "of fewer rows", &format!("{steps} rows, one for each token"));
    for _ in 0..steps {
        let row = rows.next().ok_or_else(|| few("logits"))??;
        let mask = match &mut masks {
            None => None,
            Some(masks) => Some(masks.next().ok_or_else(|| few("masks"))??).filter(|mask| !mask.is_none()),
        };
        let (matrix, _held) = host_row(&row)?;
        // SAFETY: `_held` keeps the array of `matrix` alive; Python's callers do not write it meanwhile.
        let row = unsafe { matrix.row() }.map_err(to_py_err)?;
        let mask = mask.map(|mask| arrays::read(&mask, "masks", None)).transpose()?;
        // SAFETY: `mask` lives until the token was drawn; Python's callers do not write it meanwhile.
        let mask = mask.as_ref().map(|mask| unsafe { mask.mask_words() }).transpose()?;
        let answer = py.detach(|| replay.next(row, mask)).map_err(to_py_err)?;
        answers.push(answer.map_or("equal", Answer::name));
    }
    if rows.next().is_some() {
        return Err(out_of_range("logits", "of more rows", &format!("{steps} rows, one for each token")));
    }
    Ok(answers)
}
