//! Every parameter of a request, as data: for pages that show them.

use gumball_engine::SamplingParams;
use gumball_inspect::trace::filter_words;
use gumball_spec::{Field, Parameter};
use js_sys::JSON;
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;

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
