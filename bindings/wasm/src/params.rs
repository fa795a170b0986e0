//! Parameters of a request: an object of the fields that are not neutral, under the names that they have everywhere.
//!
//! The object is read as the engine reads JSON, after the values that JSON does not have: typed arrays, Maps, BigInts and infinite
//! biases. Each field is read alone first, so that an error names it.

use gumball_engine::SamplingParams;
use gumball_inspect::trace::filter_words;
use gumball_spec::error::Error;
use gumball_spec::{Field, Parameter};
use js_sys::{Array, JSON, Map};
use serde_json::{Map as Fields, Number, Value, json};
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

/// Returns every parameter, as the table of docs/semantics.md has them; the fields of `dry` and `logprobs` follow these.
#[wasm_bindgen(unchecked_return_type = "Parameter[]")]
pub fn parameters() -> JsValue {
    let neutral = serde_json::to_string(&SamplingParams::default()).expect("plain data");
    let neutral: Value = serde_json::from_str(&neutral).expect("JSON of our own");
    let all: Vec<Value> =
        SamplingParams::parameters().map(|parameter| described(parameter, &neutral)).collect();
    JSON::parse(&Value::from(all).to_string()).expect("JSON of our own")
}

fn described(parameter: &Parameter, neutral: &Value) -> Value {
    let mut params = SamplingParams::default();
    let (_, field) = params.parameter(parameter.name).expect("the table names fields");
    let holds = match field {
        Field::Number(_) | Field::NumberOrNone(_) => "number",
        Field::Whole(_) | Field::Count(_) | Field::Seed(_) => "integer",
        Field::Flag(_) => "boolean",
        Field::Scope(_) | Field::Mode(_) | Field::Order(_) => "name",
        Field::Ids(_) | Field::IdsOrNone(_) | Field::Words(_) | Field::Biases(_) => "list",
        Field::DynamicTemperature(_) | Field::Mirostat(_) | Field::Dry(_) | Field::Logprobs(_) => "object",
    };
    let neutral = neutral.pointer(&format!("/{}", parameter.name.replace('.', "/")));
    let mut described = json!({
        "name": parameter.name,
        "holds": holds,
        "about": parameter.about,
        "neutral": neutral,
        "stage": format!("{:?}", parameter.stage).to_lowercase(),
    });
    if let Some(range) = parameter.range {
        described["range"] = json!([range.least, range.most]);
        described["is_open"] = range.is_open.into();
    }
    if parameter.filter.is_some() || parameter.name == "mirostat" {
        let name = parameter.filter.map_or(parameter.name, |filter| filter.name());
        let (title, purpose) = filter_words(name);
        described["filter"] = json!({ "name": name, "title": title, "purpose": purpose });
    }
    if parameter.filter.is_some() {
        described["usual"] = parameter.usual.into();
    }
    described
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
