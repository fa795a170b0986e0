//! Every parameter of a request, as data: for pages that show them, and as JSON; seeds of rollouts.

use gumball_engine::SamplingParams;
use gumball_inspect::trace::filter_words;
use gumball_spec::{Field, Parameter};
use js_sys::{Array, JSON, Reflect};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result};
use crate::params;
use crate::values::{GivenParams, integer};

/// Returns every parameter, as the table of docs/semantics.md has them; the fields of `dry`, `section`,
/// `loops`, `watermark` and `logprobs` follow these.
#[wasm_bindgen(unchecked_return_type = "Parameter[]")]
pub fn parameters() -> JsValue {
    let neutral = serde_json::to_string(&SamplingParams::default()).expect("plain data");
    let neutral: Value = serde_json::from_str(&neutral).expect("JSON of our own");
    let all: Vec<Value> =
        SamplingParams::parameters().map(|parameter| described(parameter, &neutral)).collect();
    JSON::parse(&Value::from(all).to_string()).expect("JSON of our own")
}

/// Reads parameters from the JSON that the command, C, Python and Rust read and write; all of them are in the
/// object.
#[wasm_bindgen(unchecked_return_type = "SamplingParams")]
pub fn params_from_json(text: &str) -> Result<JsValue> {
    let params: SamplingParams = serde_json::from_str(text).map_err(|error| Failure::json("text", &error))?;
    let object = JSON::parse(&written(&params)?).expect("JSON of our own");
    // What JSON of JavaScript would round, or has no number for.
    let biases = params.logit_bias.iter().map(|(id, bias)| Array::of2(&(*id).into(), &(*bias).into()));
    let seed = params.seed.map_or(JsValue::NULL, JsValue::from);
    for (name, value) in [("seed", seed), ("logit_bias", biases.collect::<Array>().into())] {
        Reflect::set(&object, &name.into(), &value).expect("an object of our own");
    }
    Ok(object)
}

/// Returns all parameters as JSON, which the command, C, Python and Rust read.
#[wasm_bindgen]
pub fn params_to_json(params: &GivenParams) -> Result<String> {
    written(&params::read(params)?)
}

fn written(params: &SamplingParams) -> Result<String> {
    serde_json::to_string(params).map_err(|error| Failure::json("params", &error))
}

/// Returns the seed of the requests that sample one prompt in one turn of a run: `run` is the seed of the
/// run, `prompt` the prompt's number in it, `turn` how many answers of the conversation came before (0). The
/// samples of a group share the seed, and sample j has the draw index j.
#[wasm_bindgen]
pub fn prompt_seed(
    #[wasm_bindgen(unchecked_param_type = "number | bigint")] run: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "number | bigint")] prompt: &JsValue,
    #[wasm_bindgen(unchecked_optional_param_type = "number")] turn: &JsValue,
) -> Result<u64> {
    let turn = if turn.is_undefined() { 0 } else { integer(turn, "turn")? };
    Ok(gumball_engine::prompt_seed(integer(run, "run")?, integer(prompt, "prompt")?, turn))
}

/// Returns the seed of one sample of a group whose seed is given, for engines that make a request of each
/// sample, with draw index 0.
#[wasm_bindgen]
pub fn sample_seed(
    #[wasm_bindgen(unchecked_param_type = "number | bigint")] seed: &JsValue,
    #[wasm_bindgen(unchecked_param_type = "number")] sample: &JsValue,
) -> Result<u64> {
    Ok(gumball_engine::sample_seed(integer(seed, "seed")?, integer(sample, "sample")?))
}

fn described(parameter: &Parameter, neutral: &Value) -> Value {
    let mut params = SamplingParams::default();
    let (_, field) = params.parameter(parameter.name).expect("the table names fields");
    let holds = match field {
        Field::Number(_) | Field::NumberOrNone(_) => "number",
        Field::Whole(_) | Field::Count(_) | Field::Seed(_) => "integer",
        Field::Flag(_) => "boolean",
        Field::Scope(_) | Field::Modes(_) | Field::Order(_) => "name",
        Field::Ids(_) | Field::IdsOrNone(_) | Field::Words(_) | Field::Biases(_) => "list",
        Field::DynamicTemperature(_)
        | Field::Mirostat(_)
        | Field::Dry(_)
        | Field::Section(_)
        | Field::Loops(_)
        | Field::Watermark(_)
        | Field::Logprobs(_) => "object",
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
    if parameter.filter.is_some() || ["mirostat", "adaptive_target"].contains(&parameter.name) {
        let name = parameter.filter.map_or(parameter.name, |filter| filter.name());
        let (title, purpose) = filter_words(name);
        described["filter"] = json!({ "name": name, "title": title, "purpose": purpose });
    }
    if parameter.filter.is_some() {
        described["usual"] = parameter.usual.into();
    }
    described
}
