//! Outputs of a step or a verification, as objects of typed arrays that later steps leave alone.

use gumball_engine::Outputs;
use js_sys::{Array, Float32Array, Int32Array, Uint32Array};
use wasm_bindgen::prelude::*;

use crate::values::object;

/// Returns the outputs of a step; `kept` says whether its kept sets were collected.
pub fn outputs(out: &Outputs, kept: bool) -> JsValue {
    let rows = out.tokens().len();
    let ints = |list: &[i32]| JsValue::from(Int32Array::new_from_slice(list));
    let words = |list: &[u32]| JsValue::from(Uint32Array::new_from_slice(list));
    let floats = |list: &[f32]| JsValue::from(Float32Array::new_from_slice(list));
    let each = |row: &dyn Fn(usize) -> JsValue| JsValue::from((0..rows).map(row).collect::<Array>());
    object([
        ("tokens", ints(out.tokens())),
        ("statuses", words(out.statuses())),
        ("logprobs", floats(out.logprobs())),
        ("ranks", words(out.ranks())),
        ("temperatures", floats(out.temperatures())),
        ("mirostat_mu", floats(out.mirostat_mu())),
        ("second_logprobs", floats(out.second_logprobs())),
        ("top_ids", each(&|row| ints(out.top_ids(row)))),
        ("top_logprobs", each(&|row| floats(out.top_logprobs(row)))),
        ("id_logprobs", each(&|row| floats(out.id_logprobs(row)))),
        ("id_ranks", each(&|row| words(out.id_ranks(row)))),
        ("kept", if kept { each(&|row| words(out.kept(row))) } else { JsValue::UNDEFINED }),
    ])
}

/// Returns what a verification says of `requests` requests.
pub fn verification(out: &Outputs, requests: usize, kept: bool) -> JsValue {
    let tokens =
        (0..requests).map(|request| JsValue::from(Int32Array::new_from_slice(out.request(request).tokens)));
    let rows =
        (0..requests).map(|request| JsValue::from(Uint32Array::new_from_slice(out.request(request).rows)));
    let places = (0..requests).map(|request| {
        let places = out.request(request).places;
        object([("start", places.start.into()), ("end", places.end.into())])
    });
    object([
        ("tokens", tokens.collect::<Array>().into()),
        ("rows", rows.collect::<Array>().into()),
        ("places", places.collect::<Array>().into()),
        ("accepted", Uint32Array::new_from_slice(out.accepted()).into()),
        ("outputs", outputs(out, kept)),
    ])
}
