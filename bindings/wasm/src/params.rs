//! Parameters of a request: an object of the fields that are not neutral, under the names that they have
//! everywhere, read by the table.

use gumball_engine::unstable::{Field, Parameter, Parameters};
use gumball_engine::{Error, FilterOrder, LogprobsParams, Mark, SamplingParams};
use js_sys::{Array, Map};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, entropy, tag};
use crate::values::{elements, field, integer, integers, is_absent, keys, number, text, truth};

/// Reads parameters; undefined is neutral ones.
///
/// # Errors
/// - `unknown` for a field that there is none of.
/// - `type` for a value that a field cannot have. Ranges are checked where the parameters are used.
pub fn read(params: &JsValue) -> Result<SamplingParams> {
    if is_absent(params) { Ok(SamplingParams::default()) } else { part(params, "params") }
}

/// Reads parameters, and gives them a fresh seed if they have none.
pub fn seeded(params: &JsValue) -> Result<SamplingParams> {
    let mut params = read(params)?;
    params.seed.get_or_insert_with(entropy);
    Ok(params)
}

/// Reads a structure of parameters from an object.
pub fn part<T: Parameters>(it: &JsValue, name: &'static str) -> Result<T> {
    let mut read = T::neutral();
    let field_of = |parameter: &'static Parameter| parameter.field();
    let mut lacking: Vec<&str> =
        T::TABLE.iter().filter(|parameter| parameter.is_required).map(field_of).collect();
    for key in keys(it, name)? {
        let Some((parameter, into)) = read.field(&key) else {
            let known: Vec<&str> = T::TABLE.iter().map(field_of).collect();
            return Err(Failure::unknown(name, &key, &known));
        };
        if let Some(value) = field(it, &key)? {
            set(into, &value, parameter.name)?;
            lacking.retain(|field| *field != key);
        }
    }
    if lacking.is_empty() { Ok(read) } else { Err(Failure::wrong_type(name, it, T::WHAT)) }
}

/// Reads a parameter's value into its field.
fn set(field: Field<'_>, it: &JsValue, name: &'static str) -> Result<()> {
    match field {
        Field::Number(field) => *field = number(it, name)?,
        Field::NumberOrNone(field) => *field = Some(number(it, name)?),
        Field::Whole(field) => *field = integer(it, name)?,
        Field::Count(field) => *field = integer(it, name)?,
        Field::Flag(field) => *field = truth(it, name)?,
        Field::Seed(field) => *field = Some(integer(it, name)?),
        Field::Scope(field) => *field = named(it, name)?,
        Field::Modes(field) if it.is_string() => *field = named(it, name)?,
        Field::Modes(field) => *field = list_of_names(it, name)?.as_slice().try_into()?,
        Field::Order(field) if it.is_string() => *field = named(it, name)?,
        Field::Order(field) => *field = FilterOrder::List(list_of_names(it, name)?),
        Field::Ids(field) => *field = integers(it, name)?,
        Field::IdsOrNone(field) => *field = Some(integers(it, name)?),
        Field::Words(field) => {
            *field = elements(it, name)?.iter().map(|it| integers(it, name)).collect::<Result<_>>()?;
        }
        Field::Biases(field) => *field = biases(it)?,
        Field::DynamicTemperature(field) => *field = Some(part(it, name)?),
        Field::Mirostat(field) => *field = Some(part(it, name)?),
        Field::Dry(field) => *field = part(it, name)?,
        Field::Section(field) => *field = Some(part(it, name)?),
        Field::Loops(field) => *field = Some(part(it, name)?),
        Field::Watermark(field) if *it == JsValue::FALSE => *field = Mark::Off,
        Field::Watermark(field) => *field = Mark::Own(part(it, name)?),
        Field::Logprobs(field) if it.as_f64().is_some() => {
            *field = Some(LogprobsParams { top_n: integer(it, name)?, ..Default::default() });
        }
        Field::Logprobs(field) => *field = Some(part(it, name)?),
    }
    Ok(())
}

/// Reads a value by its name.
fn named<T: std::str::FromStr<Err = Error>>(it: &JsValue, name: &str) -> Result<T> {
    Ok(text(it, name)?.parse()?)
}

/// Reads a list of names.
fn list_of_names<T: std::str::FromStr<Err = Error>>(it: &JsValue, name: &str) -> Result<Vec<T>> {
    elements(it, name)?.iter().map(|it| named(it, name)).collect()
}

/// Reads biases: pairs of id and bias, a Map, or an object whose keys are ids.
fn biases(value: &JsValue) -> Result<Vec<(u32, f32)>> {
    const NAME: &str = "logit_bias";
    let pair = |id: JsValue, bias: &JsValue| -> Result<(u32, f32)> {
        let id = match id.as_string().and_then(|text| text.parse::<u32>().ok()) {
            Some(id) => id,
            None => integer(&id, NAME)?,
        };
        let wrong = || Failure::wrong_type(NAME, bias, "a number, -Infinity for a ban");
        Ok((id, bias.as_f64().ok_or_else(wrong)? as f32))
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
        return pairs.collect();
    }
    let pairs = keys(value, NAME)?.into_iter().map(|key| {
        let bias = field(value, &key)?.unwrap_or(JsValue::UNDEFINED);
        pair(JsValue::from(key), &bias)
    });
    pairs.collect()
}

/// Makes keys of watermarks known, and returns how many: a number and a key of 32 hexadecimal digits in each
/// line of `text`. `watermark.key` names a key by its number, which keeps its key. Nothing shows a key.
#[wasm_bindgen]
pub fn add_watermark_keys(text: &str) -> Result<usize> {
    Ok(gumball_engine::add_watermark_keys(text)?)
}
