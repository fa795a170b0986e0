//! Parameters of a request: created, set by name, read from JSON and written as JSON. The names are those of
//! JSON and of all errors.

use std::ffi::{CString, c_char};
use std::ptr;

use gumball_engine::unstable::{Field, Parameter};
use gumball_engine::{Error, SamplingParams};

use crate::error::{Code, Failure, Result, words};
use crate::ffi::{call, call_or, end, make, require};

/// How the tokens of a request are chosen; see gumball_params_new.
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
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_new() -> Option<Box<Params>> {
    make(|_| Ok(Params::of(SamplingParams::default())))
}

/// Makes parameters of JSON, an object of the fields that are not neutral: `{"temperature": 0.8, "dry":
/// {"multiplier": 0.8}, "logprobs": {"top_n": 5}}`. The fields with their ranges and meanings stand in the
/// parameters' table of docs/semantics.md.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_from_json(json: *const c_char) -> Option<Box<Params>> {
    make(|c| {
        let json = c.text("json", json)?;
        let read = serde_json::from_str(json);
        Ok(Params::of(read.map_err(|error| Failure::json("json", &error))?))
    })
}

/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_clone(params: Option<&Params>) -> Option<Box<Params>> {
    make(|_| Ok(Params::of(require("params", params)?.inner.clone())))
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_free(params: Option<Box<Params>>) {
    end(params);
}

/// Returns all parameters as JSON, which stays until the next call of this function or the end of the
/// parameters.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_to_json(params: Option<&mut Params>) -> *const c_char {
    call_or(ptr::null(), |_| {
        let params = require("params", params)?;
        let written = serde_json::to_string(&params.inner);
        params.json = words(written.map_err(|error| Failure::json("params", &error))?);
        Ok(params.json.as_ptr())
    })
}

/// Checks all parameters against their ranges for a vocabulary, as all functions that take parameters do.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_validate(params: Option<&Params>, vocab: usize) -> Code {
    call(|_| Ok(require("params", params)?.inner.validate(vocab)?))
}

/// Sets a parameter that is a number, an integer, or 0 or 1, by its name, such as top_p, dry.base and
/// logprobs.top_n; numbers are rounded to float. NaN and values that are infinite as a float are refused at
/// once, other values outside a range when the parameters are taken.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set(
    params: Option<&mut Params>,
    name: *const c_char,
    value: f64,
) -> Code {
    call(|c| {
        let is_number = |field: &Field<'_>| {
            matches!(field, Field::Number(_) | Field::Whole(_) | Field::Count(_) | Field::Flag(_))
        };
        change(require("params", params)?, c.text("name", name)?, is_number, |parameter, field| {
            let allowed = match &field {
                // JSON would write it as null, which is an absent value.
                Field::Number(_) if !(value as f32).is_finite() => {
                    let allowed = parameter.range.map_or("finite", |range| range.words);
                    return Err(Failure::out_of_range(parameter.name, value as f32, allowed));
                }
                Field::Whole(_) => "an integer",
                Field::Count(_) => "an integer in 0..2^32",
                _ => "0 or 1",
            };
            let is_of_type = field.set(value);
            is_of_type.then_some(()).ok_or_else(|| Failure::out_of_range(parameter.name, value, allowed))
        })
    })
}

/// Changes a field that a setter sets. Naming a field of `section`, `loops`, `watermark` or `logprobs` makes
/// that part, so a copy is changed: a refused value must leave `params` unchanged.
fn change(
    params: &mut Params,
    name: &str,
    sets: fn(&Field<'_>) -> bool,
    set: impl FnOnce(&'static Parameter, Field<'_>) -> Result<()>,
) -> Result<()> {
    let mut changed = params.inner.clone();
    match changed.parameter(name) {
        Some((parameter, field)) if sets(&field) => set(parameter, field)?,
        _ => {
            let all = SamplingParams::parameters();
            let mut is_set = |name| changed.parameter(name).is_some_and(|(_, field)| sets(&field));
            let known: Vec<_> = all.map(|of| of.name).filter(|name| is_set(name)).collect();
            return Err(Error::unknown("name", name, known.join(", ")).into());
        }
    }
    params.inner = changed;
    Ok(())
}

/// Sets a parameter that is a list of ids, by its name: allowed_ids, of which an empty list bans every id,
/// banned_ids, stop_ids, dry.breakers, section.open, section.close, section.end, loops.end,
/// logprobs.ids.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_ids(
    params: Option<&mut Params>,
    name: *const c_char,
    ids: *const u32,
    ids_len: usize,
) -> Code {
    call(|c| {
        let (params, name) = (require("params", params)?, c.text("name", name)?);
        let ids = c.slice("ids", ids, ids_len)?.to_vec();
        let is_ids = |field: &Field<'_>| matches!(field, Field::Ids(_) | Field::IdsOrNone(_));
        change(params, name, is_ids, |_, field| {
            match field {
                Field::Ids(field) => *field = ids,
                Field::IdsOrNone(field) => *field = Some(ids),
                other => unreachable!("{other:?} holds no ids"),
            }
            Ok(())
        })
    })
}

/// Sets any one parameter from JSON, by its name as gumball_params_from_json reads it: `order`,
/// `"top_k,top_p"`; `mirostat`, `{"tau": 5, "eta": 0.1}`. NULL makes it neutral again.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_params_set_json(
    params: Option<&mut Params>,
    name: *const c_char,
    json: *const c_char,
) -> Code {
    call(|c| {
        let (params, name) = (require("params", params)?, c.text("name", name)?);
        let fields = |params: &SamplingParams| {
            serde_json::to_value(params).map_err(|error| Failure::json("params", &error))
        };
        let value = match c.optional_text("json", json)? {
            Some(json) => serde_json::from_str(json).map_err(|error| Failure::json(name, &error))?,
            None => fields(&SamplingParams::default())?[name].clone(),
        };
        let mut all = fields(&params.inner)?;
        let known = all.as_object_mut().expect("a struct");
        let Some(field) = known.get_mut(name) else {
            let known = known.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(Error::unknown("name", name, known).into());
        };
        *field = value;
        params.inner = serde_json::from_value(all).map_err(|error| Failure::json(name, &error))?;
        Ok(())
    })
}

/// Sets the seed of all draws. Without one, each request draws a fresh one, which its state tells.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_params_set_seed(params: Option<&mut Params>, seed: u64) -> Code {
    call(|_| {
        require("params", params)?.inner.seed = Some(seed);
        Ok(())
    })
}

/// Returns the seed of the requests that sample one prompt in one turn of a run (rule N10): run is the seed
/// of the run, prompt the prompt's number in it, turn how many answers of the conversation came before. The
/// samples of a group share the seed, and sample j has the draw index j.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_prompt_seed(run: u64, prompt: u64, turn: u32) -> u64 {
    gumball_engine::prompt_seed(run, prompt, turn)
}

/// Returns the seed of one sample of a group whose seed is given, for engines that make a request of each
/// sample, with draw index 0.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sample_seed(seed: u64, sample: u32) -> u64 {
    gumball_engine::sample_seed(seed, sample)
}

/// Makes keys of watermarks known to the process: a number and a key of 32 hexadecimal digits in each line of
/// text, such as that of a file; empty lines and lines that begin with # say nothing. The parameter
/// watermark.key names a key by its number, which keeps its key. Nothing shows a key, errors neither.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_add_watermark_keys(text: *const c_char) -> Code {
    call(|c| {
        gumball_engine::add_watermark_keys(c.text("text", text)?)?;
        Ok(())
    })
}

/// Sets what is added to the logits of ids; -INFINITY is a ban. An empty list takes it back.
///
/// Cost: copy.
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
