//! Parameters of a request: an object of the fields that are not neutral, under the names that they have everywhere.
//!
//! The object is read as the engine reads JSON, after the values that JSON does not have: typed arrays, Maps, BigInts and infinite
//! biases. Each field is read alone first, so that an error names it.

use gumball_engine::SamplingParams;
use gumball_spec::error::Error;
use js_sys::{Array, Map};
use serde_json::{Map as Fields, Number, Value};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, entropy, tag};
use crate::values::{elements, field, integer, is_absent, keys};

/// How deep objects and lists of parameters lie in each other.
const DEPTH: usize = 4;

/// Reads parameters; undefined is neutral ones.
///
/// # Errors
/// - `unknown` for a field that there is none of.
/// - `type` for a value that a field cannot have. Ranges are checked where the parameters are used.
pub fn read(params: &JsValue) -> Result<SamplingParams> {
    let mut given = Fields::new();
    if !is_absent(params) {
        let neutral = serde_json::to_value(SamplingParams::default()).expect("numbers and names");
        let known = neutral.as_object().expect("a struct");
        for name in keys(params, "params")? {
            if !known.contains_key(&name) {
                let known: Vec<&str> = known.keys().map(String::as_str).collect();
                return Err(Failure::unknown("params", &name, &known));
            }
            let Some(value) = field(params, &name)? else { continue };
            let read = match &*name {
                "logit_bias" => biases(&value)?,
                "seed" => Value::from(integer::<u64>(&value, "seed")?),
                _ => convert(&value, &name, DEPTH)?,
            };
            let alone = Value::Object(Fields::from_iter([(name.clone(), read.clone())]));
            if let Err(error) = serde_json::from_value::<SamplingParams>(alone) {
                return Err(Failure::unreadable(&name, &value, error));
            }
            given.insert(name, read);
        }
    }
    serde_json::from_value(Value::Object(given)).map_err(|error| {
        let reason = format!("{error}; give the parameters one by one to find the field");
        Error::Unavailable { resource: "parameters", reason }.into()
    })
}

/// Reads parameters, and gives them a fresh seed if they have none.
pub fn seeded(params: &JsValue) -> Result<SamplingParams> {
    let mut params = read(params)?;
    params.seed.get_or_insert_with(entropy);
    Ok(params)
}

/// Turns a value into JSON.
fn convert(value: &JsValue, name: &str, depth: usize) -> Result<Value> {
    if let Some(number) = value.as_f64() {
        return self::number(number, name);
    }
    if let Some(truth) = value.as_bool() {
        return Ok(Value::Bool(truth));
    }
    if let Some(text) = value.as_string() {
        // Strings are names. JSON writes infinite numbers as strings, too, but JavaScript has them as numbers.
        if text.trim().parse::<f64>().is_ok() {
            return Err(Failure::wrong_type(name, value, "a number, not a string of one"));
        }
        return Ok(Value::String(text));
    }
    if value.is_bigint() {
        return integer::<i64>(value, name)
            .map(Value::from)
            .or_else(|_| integer::<u64>(value, name).map(Value::from));
    }
    if depth == 0 || !value.is_object() {
        return Err(Failure::wrong_type(
            name,
            value,
            "a number, a truth value, a string, a list or an object of them",
        ));
    }
    if Array::is_array(value) || js_sys::ArrayBuffer::is_view(value) {
        let all = elements(value, name)?;
        return all
            .iter()
            .map(|value| convert(value, name, depth - 1))
            .collect::<Result<_>>()
            .map(Value::Array);
    }
    let mut fields = Fields::new();
    for key in keys(value, name)? {
        if let Some(value) = field(value, &key)? {
            fields.insert(key.clone(), convert(&value, &format!("{name}.{key}"), depth - 1)?);
        }
    }
    Ok(Value::Object(fields))
}

fn number(number: f64, name: &str) -> Result<Value> {
    const SAFE: f64 = 9_007_199_254_740_991.0;
    if number.fract() == 0.0 && (-SAFE..=SAFE).contains(&number) {
        return Ok(Value::from(number as i64));
    }
    match Number::from_f64(number) {
        Some(number) => Ok(Value::Number(number)),
        None => Err(Failure::out_of_range(name, number, "a finite number")),
    }
}

/// Reads biases: pairs of id and bias, a Map, or an object whose keys are ids.
fn biases(value: &JsValue) -> Result<Value> {
    const NAME: &str = "logit_bias";
    let pair = |id: JsValue, bias: &JsValue| -> Result<Value> {
        let id = match id.as_string().and_then(|text| text.parse::<u32>().ok()) {
            Some(id) => id,
            None => integer(&id, NAME)?,
        };
        let bias = match bias.as_f64() {
            Some(f64::INFINITY) => Value::from("inf"),
            Some(f64::NEG_INFINITY) => Value::from("-inf"),
            Some(bias) => number(bias, NAME)?,
            None => return Err(Failure::wrong_type(NAME, bias, "a number, -Infinity for a ban")),
        };
        Ok(Value::Array(vec![Value::from(id), bias]))
    };
    if tag(value) == "Map" {
        let entries = Array::from(&value.unchecked_ref::<Map>().entries());
        return biases(&entries);
    }
    if Array::is_array(value) {
        let pairs = elements(value, NAME)?.into_iter().map(|entry| match &elements(&entry, NAME)?[..] {
            [id, bias] => pair(id.clone(), bias),
            other => Err(Failure::length(NAME, other.len(), "2 elements: id and bias")),
        });
        return pairs.collect::<Result<_>>().map(Value::Array);
    }
    let pairs = keys(value, NAME)?.into_iter().map(|key| {
        let bias = field(value, &key)?.unwrap_or(JsValue::UNDEFINED);
        pair(JsValue::from(key), &bias)
    });
    pairs.collect::<Result<_>>().map(Value::Array)
}
