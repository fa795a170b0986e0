//! Parameters of a request: created, set by name, read from JSON and written as JSON.

use std::ffi::{CString, c_char};
use std::ptr;

use gumball_engine::{Error, SamplingParams};
use serde_json::Value;

use crate::error::{Code, Failure, Result, words};
use crate::ffi::{call, call_or, end, make, require};
use crate::names::{set_ids, set_number, set_text};

/// What a request asks of the way its tokens are chosen; see gumball_params_new.
#[derive(Debug)]
pub struct Params {
    pub(crate) inner: SamplingParams,
    /// The JSON that was written last; C holds a pointer to it.
    json: CString,
}

impl Params {
    pub(crate) fn of(inner: SamplingParams) -> Self {
        Self { inner, json: CString::default() }
    }
}

/// Makes neutral parameters: rows are drawn from as they are, at temperature 1.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_new() -> Option<Box<Params>> {
    make(|_| Ok(Params::of(SamplingParams::default())))
}

/// Makes parameters of JSON: an object of the fields that are not neutral. A name that is not known is an error.
///
/// The fields, their ranges and what they mean stand in the parameters' table of docs/semantics.md, as `{"temperature": 0.8, "top_p": 0.9, "dry":
/// {"multiplier": 0.8}, "logprobs": {"top_n": 5}}`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_from_json(json: *const c_char) -> Option<Box<Params>> {
    make(|c| {
        let json = c.text("json", json)?;
        let read = serde_json::from_str(json);
        Ok(Params::of(read.map_err(|error| Failure::json("json", &error))?))
    })
}

/// Makes a copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_clone(params: Option<&Params>) -> Option<Box<Params>> {
    make(|_| Ok(Params::of(require("params", params)?.inner.clone())))
}

/// Ends parameters. Who was given them keeps a copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_free(params: Option<Box<Params>>) {
    end(params);
}

/// Returns all parameters as JSON, which stays until the next call of this function or the end of the parameters.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_to_json(params: Option<&mut Params>) -> *const c_char {
    call_or(ptr::null(), |_| {
        let params = require("params", params)?;
        let written = serde_json::to_string(&params.inner);
        params.json = words(written.map_err(|error| Failure::json("params", &error))?);
        Ok(params.json.as_ptr())
    })
}

/// Checks all parameters against their ranges for a vocabulary. Whoever takes parameters does so as well.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_validate(params: Option<&Params>, vocab: usize) -> Code {
    call(|_| Ok(require("params", params)?.inner.validate(vocab)?))
}

/// Sets a parameter that is a number, an integer, or 0 or 1, by its name; numbers are rounded to float.
///
/// The table of docs/semantics.md has the names, such as top_p, dry.base and logprobs.top_n; the error for an unknown name lists them.
/// NaN and values that are infinite as a float are refused at once, other values outside a range when the parameters are taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set(
    params: Option<&mut Params>,
    name: *const c_char,
    value: f64,
) -> Code {
    call(|c| {
        let name = c.text("name", name)?;
        set_number(&mut require("params", params)?.inner, name, value)
    })
}

/// Sets a parameter that is a list of ids, by its name: allowed_ids, banned_ids, stop_ids, dry.breakers, logprobs.ids.
///
/// Empty allowed_ids ban every id; gumball_params_reset takes them back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_ids(
    params: Option<&mut Params>,
    name: *const c_char,
    ids: *const u32,
    ids_len: usize,
) -> Code {
    call(|c| {
        let name = c.text("name", name)?;
        let ids = c.slice("ids", ids, ids_len)?;
        set_ids(&mut require("params", params)?.inner, name, ids)
    })
}

/// Sets a parameter that is a name, by its own: repetition_scope and penalty_scope (prompt, output, both), order (default,
/// joint, none, or filters separated by commas), logprobs.mode (raw, edited, tempered, processed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_text(
    params: Option<&mut Params>,
    name: *const c_char,
    value: *const c_char,
) -> Code {
    call(|c| {
        let name = c.text("name", name)?;
        let value = c.text("value", value)?;
        set_text(&mut require("params", params)?.inner, name, value)
    })
}

/// Sets any one parameter from JSON, by its name as gumball_params_from_json reads it: `bad_words`, `[[1, 2]]`; `mirostat`, `{"tau": 5, "eta": 0.1}`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_json(
    params: Option<&mut Params>,
    name: *const c_char,
    json: *const c_char,
) -> Code {
    call(|c| {
        let name = c.text("name", name)?;
        let json = c.text("json", json)?;
        let value = serde_json::from_str(json).map_err(|error| Failure::json(name, &error))?;
        replace(require("params", params)?, name, value)
    })
}

/// Makes one parameter neutral again, by its name; `dry`, `logprobs` and the like as a whole. All of them if the name is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_reset(params: Option<&mut Params>, name: *const c_char) -> Code {
    call(|c| {
        let params = require("params", params)?;
        let Some(name) = (c.optional_text("name", name))? else {
            params.inner = SamplingParams::default();
            return Ok(());
        };
        let neutral = fields(&SamplingParams::default())?;
        replace(params, name, neutral[name].clone())
    })
}

fn fields(params: &SamplingParams) -> Result<Value> {
    serde_json::to_value(params).map_err(|error| Failure::json("params", &error))
}

/// Replaces the value of one field.
fn replace(params: &mut Params, name: &str, value: Value) -> Result<()> {
    let mut all = fields(&params.inner)?;
    let known = all.as_object_mut().expect("a struct");
    let Some(field) = known.get_mut(name) else {
        let known = known.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(Error::Unknown { parameter: "name", name: name.to_owned(), known }.into());
    };
    *field = value;
    params.inner = serde_json::from_value(all).map_err(|error| Failure::json(name, &error))?;
    Ok(())
}

/// Sets the seed of all draws. Without one, each request draws a fresh one, which its state tells.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_set_seed(params: Option<&mut Params>, seed: u64) -> Code {
    call(|_| {
        require("params", params)?.inner.seed = Some(seed);
        Ok(())
    })
}

/// Sets what is added to the logits of ids; -INFINITY is a ban. An empty list takes it back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_logit_bias(
    params: Option<&mut Params>,
    ids: *const u32,
    biases: *const f32,
    len: usize,
) -> Code {
    call(|c| {
        let ids = c.slice("ids", ids, len)?;
        let biases = c.slice("biases", biases, len)?;
        let pairs = ids.iter().copied().zip(biases.iter().copied());
        require("params", params)?.inner.logit_bias = pairs.collect();
        Ok(())
    })
}
