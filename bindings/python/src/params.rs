//! Parameters: Python's `SamplingParams` as the engine's.
//!
//! The class itself is a dataclass in `python/gumball/params.py`. This file reads its attributes, once per
//! request.

use gumball_engine::unstable::{Field, Parameters, advice, meant, nearest, quoted};
use gumball_engine::{Error, Filter, FilterOrder, LogprobMode, MAX_VOCAB, Mark, SamplingParams, Watermark};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyString};

use crate::arguments::argument;
use crate::errors::{InvalidValueError, not_a, out_of_range, passes, refuse_class, to_py_err, wrong_type};
use crate::lists::{extract_int, integers, is_truth, iterated, number, truth};

/// Returns the engine's parameters.
///
/// # Errors
/// - `TypeError` if the object is no `SamplingParams`, or an attribute has another type.
/// - `ValueError` if an integer lies outside its type's range. The engine checks the parameters' ranges when
///   it admits the request.
pub fn read(params: &Bound<'_, PyAny>) -> PyResult<SamplingParams> {
    if !are_params(params)? {
        return Err(wrong_type("params", "a gumball.SamplingParams", params));
    }
    part(params, "params", "a gumball.SamplingParams")
}

fn are_params(it: &Bound<'_, PyAny>) -> PyResult<bool> {
    it.hasattr(intern!(it.py(), "repetition_penalty"))
}

/// Reads the size of a vocabulary.
///
/// # Errors
/// - `TypeError` for another type; of parameters in its place it says where each of the two comes.
pub fn vocab(it: &Bound<'_, PyAny>) -> PyResult<usize> {
    match are_params(it)? {
        true => Err(wrong_type("vocab", VOCAB, it)),
        false => extract_int(it, "vocab"),
    }
}

const VOCAB: &str = "an integer: Sampler(params, vocab), but Pool(vocab), whose admit takes params";

/// Reads a structure of parameters from the attributes of their names; one that is `None` is absent.
pub(crate) fn part<T: Parameters>(it: &Bound<'_, PyAny>, name: &str, wanted: &str) -> PyResult<T> {
    refuse_class(it, name, wanted)?;
    let mut read = T::neutral();
    for parameter in T::TABLE {
        let value = it.getattr(PyString::intern(it.py(), parameter.field()));
        let value = value.map_err(|error| match error.is_instance_of::<PyAttributeError>(it.py()) {
            true => wrong_type(name, wanted, it),
            false => error,
        })?;
        if value.is_none() && !parameter.is_required {
            continue;
        }
        let (_, field) = read.field(parameter.field()).expect("the table names fields");
        set(field, &value, parameter.name)?;
    }
    Ok(read)
}

/// Reads a parameter's value into its field.
fn set(field: Field<'_>, it: &Bound<'_, PyAny>, name: &'static str) -> PyResult<()> {
    match field {
        Field::Number(field) => *field = number(it, name)?,
        Field::NumberOrNone(field) => *field = Some(number(it, name)?),
        Field::Whole(field) => *field = extract_int(&whole(it)?, name)?,
        Field::Count(field) => *field = extract_int(&whole(it)?, name)?,
        Field::Flag(field) => *field = truth(it, name)?,
        Field::Seed(field) => *field = Some(seed(&whole(it)?)?),
        Field::Scope(field) => *field = named(it, name)?,
        Field::Modes(field) if it.is_instance_of::<PyString>() => *field = named(it, name)?,
        Field::Modes(field) => {
            let modes =
                iterated(it, name, "a str or a list of two modes", |mode| named::<LogprobMode>(&mode, name))?;
            *field = modes.as_slice().try_into().map_err(to_py_err)?;
        }
        Field::Order(field) => *field = order(it)?,
        Field::Ids(field) => *field = integers(it, name)?,
        Field::IdsOrNone(field) => *field = Some(integers(it, name)?),
        Field::Words(field) => *field = words(it)?,
        Field::Biases(field) => *field = biases(it)?,
        Field::DynamicTemperature(field) => *field = Some(part(it, name, "a gumball.DynamicTemperature")?),
        Field::Mirostat(field) => *field = Some(part(it, name, "a gumball.Mirostat")?),
        Field::Dry(field) => *field = part(it, name, "a gumball.Dry")?,
        Field::Section(field) => *field = Some(part(it, name, "a gumball.Section")?),
        Field::Loops(field) => *field = Some(part(it, name, "a gumball.Loops")?),
        Field::Watermark(field) if is_truth(it) && !it.is_truthy()? => *field = Mark::Off,
        Field::Watermark(field) => *field = Mark::Own(watermark(it)?),
        Field::Logprobs(field) => *field = Some(part(it, name, "a gumball.LogprobsParams")?),
    }
    Ok(())
}

/// Reads a watermark.
pub fn watermark(it: &Bound<'_, PyAny>) -> PyResult<Watermark> {
    part(it, "watermark", "a gumball.Watermark or False")
}

/// Returns a float that is an integer as one; any other object as it is.
fn whole<'py>(it: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match it.cast::<PyFloat>() {
        Ok(number) if number.value().fract() == 0.0 => number.call_method0(intern!(it.py(), "__int__")),
        _ => Ok(it.clone()),
    }
}

/// Returns a value's text for an error: of a long one the first characters, with escapes for characters that
/// a terminal acts on, and nothing of what may be a secret key. parameter: whose value it is.
#[pyfunction]
#[pyo3(signature = (value, parameter = ""))]
pub fn shown_text(value: &Bound<'_, PyAny>, parameter: &str) -> PyResult<String> {
    Ok(gumball_engine::unstable::shown_of(parameter, &value.str()?.to_string_lossy()))
}

/// Checks that a watermark's key is a number, so that no object of Python has a key itself to show.
#[pyfunction]
pub fn check_key_number(key: &Bound<'_, PyAny>) -> PyResult<()> {
    extract_int::<u32>(&whole(key)?, "watermark.key").map(drop)
}

/// Returns the known name that is nearest to one that is not known; with peers also what another engine's
/// word for it is here. None if none is near.
#[pyfunction]
#[pyo3(signature = (name, known, peers = false))]
pub fn nearest_name(name: &Bound<'_, PyString>, known: Vec<String>, peers: bool) -> Option<String> {
    let name = &*name.to_string_lossy();
    let known = known.iter().map(String::as_str);
    if peers { meant(name, known) } else { nearest(name, known) }.map(str::to_owned)
}

/// Returns what to say of a name that is none of the known ones: which was meant, or that it is the caller's
/// part. None if neither is known.
#[pyfunction]
pub fn name_advice(name: &Bound<'_, PyString>, known: Vec<String>) -> Option<String> {
    advice(&name.to_string_lossy(), known.iter().map(String::as_str))
}

/// Checks parameters against their ranges for a vocabulary. Without vocab it skips what depends on the
/// vocabulary.
///
/// Raises ValueError for the first parameter outside its range.
#[pyfunction]
#[pyo3(signature = (params, vocab=None))]
pub fn check_params(params: &Bound<'_, PyAny>, vocab: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let params = read(params)?;
    match vocab {
        Some(vocab) => params.validate(extract_int(vocab, "vocab")?).map_err(to_py_err),
        None => match params.validate(MAX_VOCAB) {
            // Whether a filter is on can depend on the vocabulary, so a conflict cannot be decided here.
            Err(Error::Conflict { .. }) | Ok(()) => Ok(()),
            Err(error) => Err(to_py_err(error)),
        },
    }
}

/// Reads parameters from the JSON of the command, C and Rust; returns the JSON of all of them.
///
/// Raises ValueError for a text that is none, with its place.
#[pyfunction]
pub fn json_of_json(#[pyo3(from_py_with = argument)] text: &str) -> PyResult<String> {
    written(serde_json::from_str(text))
}

/// Returns the JSON of all parameters, as the command, C and Rust read it.
#[pyfunction]
pub fn json_of_params(params: &Bound<'_, PyAny>) -> PyResult<String> {
    written(Ok(read(params)?))
}

fn written(params: serde_json::Result<SamplingParams>) -> PyResult<String> {
    let text = params.and_then(|params| serde_json::to_string(&params));
    text.map_err(|error| {
        let said = quoted(error.to_string().as_bytes(), 1500);
        InvalidValueError::new_err(format!("text cannot be read: {said}"))
    })
}

/// Returns the seed of the requests that sample one prompt in one turn of a run (N10 of docs/semantics.md).
///
/// run: the seed of the run. prompt: the prompt's number in it; where a prompt comes again, in a later epoch,
/// it has a new number. turn: how many answers of the conversation came before. The samples of a group share
/// the seed, and sample j has the draw index j.
///
/// Raises TypeError for what is no integer, ValueError outside 0..2^64, or 0..2^32 for turn.
#[pyfunction]
#[pyo3(signature = (run, prompt, turn=None), text_signature = "(run, prompt, turn=0)")]
pub fn prompt_seed(
    run: &Bound<'_, PyAny>,
    prompt: &Bound<'_, PyAny>,
    turn: Option<&Bound<'_, PyAny>>,
) -> PyResult<u64> {
    let turn = turn.map_or(Ok(0), |turn| extract_int(turn, "turn"))?;
    Ok(gumball_engine::prompt_seed(word(run, "run")?, word(prompt, "prompt")?, turn))
}

/// Makes keys of watermarks known to the process, and returns how many.
///
/// text: in each line a number and a key of 32 hexadecimal digits, or of 0x and up to 16 (another engine's,
/// for `detect`), as a file may have them; empty lines and lines that begin with # say nothing.
/// `Watermark.key` names a key by its number, which keeps its key. Each process of a group needs the keys.
/// Nothing shows a key: no parameters, pickles or errors.
///
/// Raises ValueError for a line that is none of these, and for a number that has another key.
#[pyfunction]
pub fn add_watermark_keys(text: &Bound<'_, PyAny>) -> PyResult<usize> {
    let keys: String = text.extract().map_err(|error| not_a(error, "text", "a text", text))?;
    gumball_engine::add_watermark_keys(&keys).map_err(to_py_err)
}

/// Returns the seed of one sample of a group, for engines that make a request of each sample, with draw
/// index 0. The text is another than that of the group's seed with the draw index `sample`.
///
/// seed: the group's. sample: the sample's number in it.
///
/// Raises TypeError for what is no integer, ValueError outside 0..2^64, or 0..2^32 for sample.
#[pyfunction]
pub fn sample_seed(seed: &Bound<'_, PyAny>, sample: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(gumball_engine::sample_seed(word(seed, "seed")?, extract_int(sample, "sample")?))
}

/// Reads a seed in 0..2^64.
pub fn seed(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    word(object, "seed")
}

/// Reads an integer in 0..2^64.
pub fn word(object: &Bound<'_, PyAny>, name: &str) -> PyResult<u64> {
    if is_truth(object) {
        return Err(wrong_type(name, "an integer", object));
    }
    object.extract::<u64>().map_err(|error| {
        if passes(object.py(), &error) {
            return error;
        }
        match extract_int::<i64>(object, name) {
            Err(error) if passes(object.py(), &error) || error.is_instance_of::<PyTypeError>(object.py()) => {
                error
            }
            _ => out_of_range(name, object, "in 0..2^64"),
        }
    })
}

pub fn named<T: std::str::FromStr<Err = Error>>(
    object: &Bound<'_, PyAny>,
    name: &'static str,
) -> PyResult<T> {
    let text = object.cast::<PyString>().map_err(|_| wrong_type(name, "a str", object))?;
    let text =
        text.to_cow().map_err(|error| InvalidValueError::new_err(format!("{name} is no text: {error}")))?;
    text.parse().map_err(|error: Error| to_py_err(error.with_parameter(|_| name)))
}

fn biases(it: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
    let pair = |id: &Bound<'_, PyAny>, bias: &Bound<'_, PyAny>| {
        if is_truth(bias) {
            return Err(wrong_type("logit_bias", "of numbers, a ban -inf", bias));
        }
        Ok((extract_int(id, "logit_bias")?, number(bias, "logit_bias")?))
    };
    if let Ok(dict) = it.cast::<PyDict>() {
        return dict.iter().map(|(id, bias)| pair(&id, &bias)).collect();
    }
    iterated(it, "logit_bias", "a dict or pairs of id and bias", |item| {
        let of = |place| {
            let wanted = "pairs of id and bias";
            item.get_item(place).map_err(|error| not_a(error, "logit_bias", wanted, &item))
        };
        pair(&of(0)?, &of(1)?)
    })
}

fn words(it: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u32>>> {
    iterated(it, "bad_words", "lists of ids", |word| integers(&word, "bad_words"))
}

/// Reads an order of filters: a name, or a list of filter names.
pub fn order(it: &Bound<'_, PyAny>) -> PyResult<FilterOrder> {
    if it.is_instance_of::<PyString>() {
        return named(it, "order");
    }
    let wanted = "a str or a list of filters";
    iterated(it, "order", wanted, |name| named::<Filter>(&name, "order")).map(FilterOrder::List)
}
