//! Operators that write rows: softmax, probabilities, renormalised and masked rows, and the logprobs of
//! tokens.

use gumball_engine::{Kind, LogitsMut, Operators, PerRow, Result as Checked, RowsInOut, Status, bf16, f16};
use gumball_spec::memory::filled;
use js_sys::{Array, Float32Array, Uint16Array};
use wasm_bindgen::prelude::*;

use super::arguments::{FILTERS, Filters};
use super::{run, words};
use crate::error::{Result, tag};
use crate::rows::{Dtype, Rows, count, kind};
use crate::values::{Options, integer, integers, object};

/// Which operator writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Softmax,
    Probabilities,
    Masked,
}

/// Names the options of a call: its own, and the options that all calls have.
fn known<'a>(own: &[&'a str]) -> Vec<&'a str> {
    own.iter().copied().chain(["dtype", "return_statuses"]).collect()
}

/// Writes rows into new arrays: probabilities of logits as f32, others as the type of the rows.
fn write(
    operator: Writes,
    (rows, name): (&JsValue, &str),
    vocab: &JsValue,
    kind: Kind,
    options: &Options,
    filters: &Filters,
) -> Result<JsValue> {
    let (given, mut from) = (rows, Rows::default());
    from.copy(given, options, name)?;
    let vocab: usize = integer(vocab, "vocab")?;
    let many = count(from.len(), vocab, name)?;
    let mut statuses = vec![Status::default(); many];
    let own_type = kind == Kind::Probabilities || operator == Writes::Masked;
    let dtype = if own_type { from.dtype() } else { Dtype::F32 };

    let mut wide = filled("memory for rows", 0.0f32, if dtype == Dtype::F32 { from.len() } else { 0 })?;
    let mut narrow = filled("memory for rows", 0u16, if dtype == Dtype::F32 { 0 } else { from.len() })?;
    let to = match dtype {
        Dtype::F32 => LogitsMut::new(&mut wide[..], many, vocab),
        Dtype::Bf16 => LogitsMut::new(bytemuck::cast_slice_mut::<u16, bf16>(&mut narrow), many, vocab),
        Dtype::F16 => LogitsMut::new(bytemuck::cast_slice_mut::<u16, f16>(&mut narrow), many, vocab),
    }?;
    let rows = RowsInOut::from((from.rows(vocab, kind, name)?, to));
    run(|operators: &Operators| -> Checked<()> {
        let statuses = Some((&mut statuses[..]).into());
        match operator {
            Writes::Softmax => operators.softmax(rows, filters.temperature(), statuses),
            Writes::Probabilities => operators.probabilities(rows, &filters.row_params(), statuses),
            Writes::Masked => operators.mask_logits(rows, &filters.row_params(), statuses),
        }
    })?;
    let written = match dtype {
        Dtype::F32 => JsValue::from(Float32Array::new_from_slice(&wide)),
        _ => like(given, Uint16Array::new_from_slice(&narrow)),
    };
    if !options.truth("return_statuses")? {
        return Ok(written);
    }
    Ok(Array::of2(&written, &words(&statuses)).into())
}

/// Returns words as an array of the class of the given one: a Float16Array shows the same memory.
fn like(given: &JsValue, words: Uint16Array) -> JsValue {
    if tag(given) != "Float16Array" {
        return words.into();
    }
    let class = js_sys::Reflect::get(given, &"constructor".into()).ok();
    let class = class.and_then(|class| class.dyn_into::<js_sys::Function>().ok());
    let made = class.and_then(|class| js_sys::Reflect::construct(&class, &Array::of1(&words.buffer())).ok());
    made.unwrap_or_else(|| words.into())
}

/// The softmax of each row; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn softmax(logits: &JsValue, vocab: &JsValue, options: &JsValue) -> Result<JsValue> {
    let options = Options::new(options, &known(&["temperature"]))?;
    let filters = Filters::read(&options)?;
    write(Writes::Softmax, (logits, "logits"), vocab, Kind::Logits, &options, &filters)
}

/// The distribution that each row's token is drawn from; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn probabilities(rows: &JsValue, vocab: &JsValue, options: &JsValue) -> Result<JsValue> {
    let names: Vec<&str> = FILTERS.into_iter().chain(["kind"]).collect();
    let options = Options::new(options, &known(&names))?;
    write(Writes::Probabilities, (rows, "rows"), vocab, kind(&options)?, &options, &Filters::read(&options)?)
}

/// Rows with -Infinity for tokens that filters and bans do not keep; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn mask_logits(logits: &JsValue, vocab: &JsValue, options: &JsValue) -> Result<JsValue> {
    let options = Options::new(options, &known(&FILTERS))?;
    write(Writes::Masked, (logits, "logits"), vocab, Kind::Logits, &options, &Filters::read(&options)?)
}

/// The logprob of one token of each row; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn selected_logprobs(
    logits: &JsValue,
    vocab: &JsValue,
    tokens: &JsValue,
    options: &JsValue,
) -> Result<JsValue> {
    let options = Options::new(options, &["kind", "dtype"])?;
    let mut from = Rows::default();
    from.copy(logits, &options, "logits")?;
    let vocab = integer(vocab, "vocab")?;
    let rows = from.rows(vocab, kind(&options)?, "logits")?;
    let tokens: Vec<i32> = integers(tokens, "tokens")?;
    let (mut logprobs, mut ranks) = (vec![0.0; rows.matrix().rows()], vec![0; rows.matrix().rows()]);
    let mut statuses = vec![Status::default(); rows.matrix().rows()];
    run(|operators| {
        let (logprobs, ranks) = ((&mut logprobs[..]).into(), Some((&mut ranks[..]).into()));
        let statuses = Some((&mut statuses[..]).into());
        operators.selected_logprobs(rows, PerRow::Host(&tokens), logprobs, ranks, statuses)
    })?;
    Ok(object([
        ("logprobs", Float32Array::new_from_slice(&logprobs).into()),
        ("ranks", js_sys::Uint32Array::new_from_slice(&ranks).into()),
        ("statuses", words(&statuses).into()),
    ]))
}
