//! Looks for watermarks in ids: the calls under `gumball.detect`.

use gumball_detect::{Evidence, detect_any, find_marked};
use gumball_engine::Watermark;
use pyo3::prelude::*;

use crate::errors::to_py_err;
use crate::lists::{double, extract_int, integers};
use crate::params::{named, part};

/// Tokens that count, tokens that do not, the score and the logarithm of the p-value.
type Row = (usize, usize, f64, f64);

fn row(evidence: &Evidence) -> Row {
    (evidence.tokens, evidence.skipped, evidence.score, evidence.ln_p)
}

fn checked(watermark: &Bound<'_, PyAny>) -> PyResult<Watermark> {
    let watermark: Watermark = part(watermark, "watermark", "a gumball.Watermark")?;
    watermark.validate().map_err(to_py_err)?;
    Ok(watermark)
}

/// Reads a prompt and the ids after it into one list, and how many of its ids are the prompt's.
fn text(ids: &Bound<'_, PyAny>, prompt: &Bound<'_, PyAny>) -> PyResult<(Vec<u32>, usize)> {
    let mut text: Vec<u32> = integers(prompt, "prompt")?;
    let prompt_len = text.len();
    text.extend::<Vec<u32>>(integers(ids, "ids")?);
    Ok((text, prompt_len))
}

/// Returns the number of the key whose mark is likeliest, and its evidence.
#[pyfunction]
pub fn detect_mark(
    py: Python<'_>,
    ids: &Bound<'_, PyAny>,
    prompt: &Bound<'_, PyAny>,
    watermark: &Bound<'_, PyAny>,
    keys: Option<&Bound<'_, PyAny>>,
    scheme: &Bound<'_, PyAny>,
) -> PyResult<(u32, Row)> {
    let (ids, prompt_len) = text(ids, prompt)?;
    let keys: Option<Vec<u32>> = keys.map(|keys| integers(keys, "keys")).transpose()?;
    let (watermark, scheme) = (checked(watermark)?, named(scheme, "scheme")?);
    let keys = keys.unwrap_or_else(|| vec![watermark.key]);
    let found = py.detach(|| detect_any(&ids, prompt_len, scheme, &watermark, &keys));
    let (number, evidence) = found.map_err(to_py_err)?;
    Ok((number, row(&evidence)))
}

/// Returns the marked parts of a text after its prompt: first id, end, evidence.
#[pyfunction]
pub fn marked_parts(
    py: Python<'_>,
    ids: &Bound<'_, PyAny>,
    prompt: &Bound<'_, PyAny>,
    watermark: &Bound<'_, PyAny>,
    length: &Bound<'_, PyAny>,
    alpha: &Bound<'_, PyAny>,
    scheme: &Bound<'_, PyAny>,
) -> PyResult<Vec<(usize, usize, Row)>> {
    let (ids, prompt_len) = text(ids, prompt)?;
    let (length, alpha) = (extract_int(length, "length")?, double(alpha, "alpha")?);
    let (watermark, scheme) = (checked(watermark)?, named(scheme, "scheme")?);
    let found = py.detach(|| find_marked(&ids, prompt_len, scheme, &watermark, length, alpha));
    Ok(found
        .map_err(to_py_err)?
        .iter()
        .map(|part| (part.ids.start, part.ids.end, row(&part.evidence)))
        .collect())
}
