//! Parameters: Python's `SamplingParams` as the engine's.
//!
//! The class itself is a dataclass in `python/gumball/params.py`. This file reads its attributes, once per
//! request.

use gumball_engine::{
    Dry, DynamicTemperature, Error, Filter, FilterOrder, LogprobMode, LogprobsParams, MAX_VOCAB, Mirostat,
    SamplingParams, Scope,
};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::errors::{not_a, out_of_range, passes, to_py_err, wrong_type};
use crate::lists::{extract_int, integers, iterated, number};

/// Reads an attribute whose name is also the parameter's.
macro_rules! attribute {
    ($object:ident . $name:ident) => {
        $object.getattr(intern!($object.py(), stringify!($name)))?
    };
    (whole $object:ident . $name:ident) => {
        extract_int(&attribute!($object.$name), stringify!($name))?
    };
    (number $object:ident . $name:ident) => {
        number(&attribute!($object.$name), stringify!($name))?
    };
    (ids $object:ident . $name:ident) => {
        integers(&attribute!($object.$name), stringify!($name))?
    };
}

/// Returns the engine's parameters.
///
/// # Errors
/// - `TypeError` if the object is no `SamplingParams`, or an attribute has another type.
/// - `ValueError` if an integer lies outside its type's range. The engine checks the parameters' ranges when
///   it admits the request.
pub fn read(params: &Bound<'_, PyAny>) -> PyResult<SamplingParams> {
    if !params.hasattr(intern!(params.py(), "repetition_penalty"))? {
        return Err(wrong_type("params", "a gumball.SamplingParams", params));
    }
    read_all(params).map_err(|error| not_one(error, "params", "a gumball.SamplingParams", params))
}

fn read_all(params: &Bound<'_, PyAny>) -> PyResult<SamplingParams> {
    Ok(SamplingParams {
        temperature: attribute!(number params.temperature),
        dynamic_temperature: optional(attribute!(params.dynamic_temperature))
            .map(|it| part(&it, "dynamic_temperature", "a gumball.DynamicTemperature", dynamic_temperature))
            .transpose()?,
        top_k: attribute!(whole params.top_k),
        top_p: attribute!(number params.top_p),
        typical_p: attribute!(number params.typical_p),
        min_p: attribute!(number params.min_p),
        top_n_sigma: attribute!(number params.top_n_sigma),
        top_a: attribute!(number params.top_a),
        p_less: attribute!(params.p_less).is_truthy()?,
        epsilon_cutoff: attribute!(number params.epsilon_cutoff),
        eta_cutoff: attribute!(number params.eta_cutoff),
        xtc_probability: attribute!(number params.xtc_probability),
        xtc_threshold: attribute!(number params.xtc_threshold),
        mirostat: optional(attribute!(params.mirostat))
            .map(|it| part(&it, "mirostat", "a gumball.Mirostat", mirostat))
            .transpose()?,
        repetition_penalty: attribute!(number params.repetition_penalty),
        repetition_scope: named::<Scope>(&attribute!(params.repetition_scope), "repetition_scope")?,
        frequency_penalty: attribute!(number params.frequency_penalty),
        presence_penalty: attribute!(number params.presence_penalty),
        penalty_scope: named::<Scope>(&attribute!(params.penalty_scope), "penalty_scope")?,
        dry: part(&attribute!(params.dry), "dry", "a gumball.Dry", dry)?,
        no_repeat_ngram: attribute!(whole params.no_repeat_ngram),
        logit_bias: biases(&attribute!(params.logit_bias))?,
        allowed_ids: optional(attribute!(params.allowed_ids))
            .map(|ids| integers(&ids, "allowed_ids"))
            .transpose()?,
        banned_ids: attribute!(ids params.banned_ids),
        bad_words: words(&attribute!(params.bad_words))?,
        min_tokens: attribute!(whole params.min_tokens),
        stop_ids: attribute!(ids params.stop_ids),
        seed: optional(attribute!(params.seed)).map(|it| seed(&it)).transpose()?,
        logprobs: optional(attribute!(params.logprobs))
            .map(|it| part(&it, "logprobs", "a gumball.LogprobsParams", logprobs))
            .transpose()?,
        order: order(&attribute!(params.order))?,
        temperature_last: attribute!(params.temperature_last).is_truthy()?,
    })
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

/// Returns the value unless it is `None`.
fn optional(object: Bound<'_, PyAny>) -> Option<Bound<'_, PyAny>> {
    Some(object).filter(|object| !object.is_none())
}

/// Reads a parameter that is an object with attributes of its own.
fn part<T>(
    it: &Bound<'_, PyAny>,
    name: &str,
    wanted: &str,
    read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<T> {
    read(it).map_err(|error| not_one(error, name, wanted, it))
}

/// Returns a `TypeError` for an object that lacks an expected attribute; other errors stay unchanged.
fn not_one(error: PyErr, name: &str, wanted: &str, it: &Bound<'_, PyAny>) -> PyErr {
    if error.is_instance_of::<PyAttributeError>(it.py()) { wrong_type(name, wanted, it) } else { error }
}

/// Reads a seed in 0..2^64.
pub fn seed(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    object.extract::<u64>().map_err(|error| {
        if passes(object.py(), &error) {
            return error;
        }
        match extract_int::<i64>(object, "seed") {
            Err(error) if passes(object.py(), &error) || error.is_instance_of::<PyTypeError>(object.py()) => {
                error
            }
            _ => out_of_range("seed", object, "in 0..2^64"),
        }
    })
}

fn named<T: std::str::FromStr<Err = Error>>(object: &Bound<'_, PyAny>, name: &str) -> PyResult<T> {
    let text = object.cast::<PyString>().map_err(|_| wrong_type(name, "a str", object))?;
    text.to_cow()?.parse().map_err(to_py_err)
}

fn dynamic_temperature(it: &Bound<'_, PyAny>) -> PyResult<DynamicTemperature> {
    Ok(DynamicTemperature {
        min: number(&attribute!(it.min), "dynamic_temperature.min")?,
        max: number(&attribute!(it.max), "dynamic_temperature.max")?,
        exponent: number(&attribute!(it.exponent), "dynamic_temperature.exponent")?,
    })
}

fn mirostat(it: &Bound<'_, PyAny>) -> PyResult<Mirostat> {
    let mu = attribute!(it.mu);
    Ok(Mirostat {
        tau: number(&attribute!(it.tau), "mirostat.tau")?,
        eta: number(&attribute!(it.eta), "mirostat.eta")?,
        mu: if mu.is_none() { None } else { Some(number(&mu, "mirostat.mu")?) },
    })
}

fn dry(it: &Bound<'_, PyAny>) -> PyResult<Dry> {
    Ok(Dry {
        multiplier: number(&attribute!(it.multiplier), "dry.multiplier")?,
        base: number(&attribute!(it.base), "dry.base")?,
        allowed_length: extract_int(&attribute!(it.allowed_length), "dry.allowed_length")?,
        breakers: integers(&attribute!(it.breakers), "dry.breakers")?,
    })
}

fn logprobs(it: &Bound<'_, PyAny>) -> PyResult<LogprobsParams> {
    Ok(LogprobsParams {
        mode: named::<LogprobMode>(&attribute!(it.mode), "logprobs.mode")?,
        top_n: extract_int(&attribute!(it.top_n), "logprobs.top_n")?,
        ids: integers(&attribute!(it.ids), "logprobs.ids")?,
    })
}

fn biases(it: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
    let pair = |id: &Bound<'_, PyAny>, bias: &Bound<'_, PyAny>| {
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
    if let Ok(text) = it.cast::<PyString>() {
        return text.to_cow()?.parse().map_err(to_py_err);
    }
    let wanted = "a str or a list of filters";
    iterated(it, "order", wanted, |name| named::<Filter>(&name, "order")).map(FilterOrder::List)
}
