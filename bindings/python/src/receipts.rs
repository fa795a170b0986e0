//! Receipts of sampled texts and their replay.

use gumball_engine::{Logprobs, NONE, Status};
use gumball_receipt::{Answer, Receipt as Of, Replay};
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::arguments::argument;
use crate::arrays;
use crate::errors::{not_a, out_of_range, to_py_err};
use crate::lists::{extract_int, integers, iterated, number};
use crate::outputs::{Outputs, listed};
use crate::params;
use crate::sampler::host_row;
use crate::turns::Turns;

/// The state after a call that broke off, for the message.
const UNTOUCHED: &str = "no token was added";

/// The receipt of one request, to which each step adds its token (R1 of docs/semantics.md).
///
/// ::
///
///     receipt = Receipt(params, 32000, prompt=[1, 2])
///     receipt.push(pool.step(logits, [slot]))
///     text = receipt.to_json()
///
/// params: the request's SamplingParams. The receipt holds digests of the list that their logprobs ask for (a
/// top_n of at least 1, in their mode), and radii if the second mode is "radius". vocab: the number of logits
/// in a row. prompt: ids. seed: the seed in use; None takes the seed of params. draw: the draw index.
///
/// Raises ValueError for parameters outside their ranges or without a seed, or whose logprobs are others.
#[pyclass(frozen, module = "gumball", name = "Receipt")]
#[derive(Debug)]
pub struct Receipt(Turns<Of>);

impl Receipt {
    fn add(
        &self,
        py: Python<'_>,
        token: i32,
        status: Status,
        logprobs: &Logprobs,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let array = mask.map(|mask| arrays::read(mask, "mask", None)).transpose()?;
        // SAFETY: `array` lives until the call ends; Python's callers do not write it meanwhile.
        let mask = array.as_ref().map(|mask| unsafe { mask.mask_words() }).transpose()?;
        let work = |receipt: &mut Of| receipt.push(token, status, logprobs, mask);
        self.0.with(py, UNTOUCHED, work)?.map_err(to_py_err)
    }
}

#[pymethods]
impl Receipt {
    #[new]
    #[pyo3(signature = (params, vocab, *, prompt=None, seed=None, draw=None),
        text_signature = "(params, vocab, *, prompt=(), seed=None, draw=0)")]
    fn new(
        params: &Bound<'_, PyAny>,
        vocab: &Bound<'_, PyAny>,
        prompt: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        draw: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let params = params::read(params)?;
        let prompt: Vec<u32> = prompt.map_or(Ok(Vec::new()), |prompt| integers(prompt, "prompt"))?;
        let draw = draw.map_or(Ok(0), |draw| extract_int(draw, "draw"))?;
        let seed = seed.map_or(Ok(params.seed), |seed| params::seed(seed).map(Some))?;
        let seed = seed.ok_or_else(|| out_of_range("seed", "None", "the request's: a receipt names it"))?;
        let vocab: u32 = extract_int(vocab, "vocab")?;
        let receipt = Of::new(&params, vocab as usize, seed, draw, &prompt);
        Ok(Self(Turns::new(receipt.map_err(to_py_err)?)))
    }

    /// Adds the token of a row of a step's or a verification's outputs, in the order of the text.
    ///
    /// mask: the bitmask of the row, [words] int32 or uint32 on the host, if it had one. A row that a hook
    /// changed has no receipt, and is not to be added.
    ///
    /// Raises ValueError for a row without a token, and for outputs of a clustered head, which computes some
    /// logits alone.
    #[pyo3(signature = (outputs, row=None, *, mask=None), text_signature = "($self, outputs, row=0, *, mask=None)")]
    fn push(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = argument)] outputs: Bound<'_, Outputs>,
        row: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let row: u32 = row.map_or(Ok(0), |row| extract_int(row, "row"))?;
        let outputs = outputs.get();
        let rows = outputs.rows();
        if row as usize >= rows {
            return Err(out_of_range("row", row, format!("in 0..{rows}")));
        }
        if outputs.is_approximate() {
            return Err(out_of_range("outputs", "approximate", "of rows of which all logits were computed"));
        }
        let (token, status, logprobs) = outputs.reported(row as usize);
        self.add(py, token, status, &logprobs, mask)
    }

    /// Adds a token that an engine reported with its most likely ids and their logprobs, pairs, the likeliest
    /// first; fewer than top_n where there were no more.
    ///
    /// radius: the token's radius, which a receipt with radii needs. forced: whether the caller of the engine
    /// forced the token. mask: as for push.
    ///
    /// Raises ValueError for a token or a pair that is none, and for a radius that is absent or below 0.
    #[pyo3(signature = (token, top, *, radius=None, forced=false, mask=None),
        text_signature = "($self, token, top, *, radius=None, forced=False, mask=None)")]
    fn push_listed(
        &self,
        py: Python<'_>,
        token: &Bound<'_, PyAny>,
        top: &Bound<'_, PyAny>,
        radius: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] forced: bool,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let pair = |pair: Bound<'_, PyAny>| {
            let read = pair.extract::<(i32, f32)>();
            read.map(|(id, logprob)| listed(id, logprob)).map_err(|error| not_a(error, "top", PAIRS, &pair))
        };
        let mut top = iterated(top, "top", PAIRS, pair)?;
        let (has_radii, top_n) = self.0.with(py, UNTOUCHED, |of| (of.has_radii(), of.top_n()))?;
        top.resize(top.len().max(top_n), listed(NONE, f32::NEG_INFINITY));
        let second = match radius {
            Some(radius) => number(radius, "radius")?,
            None if has_radii => return Err(out_of_range("radius", "None", "given: the receipt has radii")),
            None => 0.0,
        };
        let status = if forced { Status::FORCED } else { Status::default() };
        let logprobs = Logprobs { token: listed(NONE, f32::NEG_INFINITY), top, ids: Vec::new(), second };
        self.add(py, extract_int(token, "token")?, status, &logprobs, mask)
    }

    /// Returns the receipt as canonical JSON (RFC 8785): one receipt is one sequence of characters, as a
    /// signature wants it.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        self.0.with(py, UNTOUCHED, |receipt| receipt.to_json())
    }
}

/// The words of errors for a list of the most likely tokens.
const PAIRS: &str = "a list of pairs of an id and its logprob";

/// Draws the tokens of a receipt again, and returns how each agrees (R3 of docs/semantics.md): "equal";
/// "within", if logits that differ from these by at most tolerance may have given it; "forced", if one of
/// these holds of a token that the caller forced; or what cannot be: "token", "radius", "mask", and "digest"
/// where the tolerance is 0. A receipt without tokens has no answers.
///
/// receipt: the JSON. logits: of each token the row that it was drawn from, on the host: [tokens, vocab], or
/// an iterable of rows. masks: of each token the bitmask, or None. tolerance: by how much a logit may differ
/// from the one of the draw; 0 for the same logits, to the bit.
///
/// Raises ValueError for a text that is no receipt, for rows and masks that do not match it, and for a
/// tolerance above 0 with parameters of which no radius is known (L7).
#[pyfunction]
#[pyo3(signature = (receipt, logits, *, masks=None, tolerance=None),
    text_signature = "(receipt, logits, *, masks=None, tolerance=0.0)")]
pub fn verify_receipt(
    py: Python<'_>,
    #[pyo3(from_py_with = argument)] receipt: &str,
    logits: &Bound<'_, PyAny>,
    masks: Option<&Bound<'_, PyAny>>,
    tolerance: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<&'static str>> {
    let receipt = Of::from_json(receipt).map_err(to_py_err)?;
    let tolerance = tolerance.map_or(Ok(0.0), |tolerance| number(tolerance, "tolerance"))?;
    let mut replay = Replay::new(&receipt, tolerance).map_err(to_py_err)?;
    let steps = receipt.steps().len();
    let mut logits = each(logits, "logits", "rows of logits")?;
    let mut masks = masks.map(|masks| each(masks, "masks", "bitmasks")).transpose()?;
    let wanted = format!("as many as the receipt has tokens, {steps}");
    let mut answers = Vec::with_capacity(steps);
    for step in 0..steps {
        let few = |name| out_of_range(name, format!("{step} rows"), &wanted);
        let row = logits.next().ok_or_else(|| few("logits"))??;
        let mask = match &mut masks {
            None => None,
            Some(masks) => Some(masks.next().ok_or_else(|| few("masks"))??).filter(|mask| !mask.is_none()),
        };
        let (matrix, _held) = host_row(&row)?;
        // SAFETY: `_held` keeps the array of `matrix` alive; Python's callers do not write it meanwhile.
        let row = unsafe { matrix.row() }.map_err(to_py_err)?;
        let array = mask.map(|mask| arrays::read(&mask, "masks", None)).transpose()?;
        // SAFETY: `array` lives until the token was drawn; Python's callers do not write it meanwhile.
        let mask = array.as_ref().map(|mask| unsafe { mask.mask_words() }).transpose()?;
        let answer = py.detach(|| replay.next(row, mask)).map_err(to_py_err)?;
        answers.push(answer.map_or("equal", Answer::name));
        py.check_signals()?;
    }
    match logits.next() {
        None => Ok(answers),
        Some(_) => Err(out_of_range("logits", format!("more than {steps} rows"), &wanted)),
    }
}

fn each<'py>(it: &Bound<'py, PyAny>, name: &str, wanted: &str) -> PyResult<Bound<'py, PyIterator>> {
    it.try_iter().map_err(|error| not_a(error, name, wanted, it))
}
