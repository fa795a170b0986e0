//! Operators that draw tokens from rows, and tell how far a row is from another token.

use gumball_engine::{Kind, PerRow, Status};
use gumball_spec::memory::{filled, product, with_capacity};
use js_sys::{Array, Float32Array, Int32Array};
use wasm_bindgen::prelude::*;

use super::arguments::{FILTERS, Filters, KEYS, Keys};
use super::{run, words};
use crate::error::{Failure, Result};
use crate::rows::{Rows, kind};
use crate::values::{Options, integer};

/// The name in errors of the memory for outputs.
const MEMORY: &str = "memory for outputs";

/// Draws a token for each output from rows; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn sample(rows: &JsValue, vocab: &JsValue, options: &JsValue) -> Result<JsValue> {
    let own = ["indices", "n", "kind", "dtype", "return_statuses"];
    let names: Vec<&str> = FILTERS.into_iter().chain(KEYS).chain(own).collect();
    let options = Options::new(options, &names)?;
    let mut from = Rows::default();
    from.copy(rows, &options, "rows")?;
    let rows = from.rows(integer(vocab, "vocab")?, kind(&options)?, "rows")?;
    let n: Option<usize> = options.integer("n")?;
    let indices: Option<Vec<u32>> = match (options.get("indices")?, n) {
        (Some(_), Some(n)) => {
            return Err(Failure::out_of_range("n", n, "left out, since indices name each output"));
        }
        (Some(_), None) => Some(options.ids("indices")?),
        (None, Some(n)) => {
            product(MEMORY, &[rows.matrix().rows(), n, size_of::<u32>()])?;
            let mut indices = with_capacity(MEMORY, rows.matrix().rows() * n)?;
            indices.extend((0..rows.matrix().rows() as u32).flat_map(|row| std::iter::repeat_n(row, n)));
            Some(indices)
        }
        (None, None) => None,
    };
    let (filters, keys) = (Filters::read(&options)?, Keys::read(&options, n.unwrap_or(1))?);
    let outputs = indices.as_ref().map_or(rows.matrix().rows(), Vec::len);
    let mut tokens = filled(MEMORY, 0, outputs)?;
    let mut statuses = filled(MEMORY, Status::default(), outputs)?;
    run(|operators| {
        let indices = indices.as_deref().map(PerRow::Host);
        let (tokens, statuses) = ((&mut tokens[..]).into(), Some((&mut statuses[..]).into()));
        operators.sample(rows, indices, &filters.row_params(), &keys.draws(), tokens, statuses)
    })?;
    let tokens = JsValue::from(Int32Array::new_from_slice(&tokens));
    if !options.truth("return_statuses")? {
        return Ok(tokens);
    }
    Ok(Array::of2(&tokens, &words(&statuses)).into())
}

/// How far the logits of each row may move while `sample` draws the same token; see `whole.ts`.
#[wasm_bindgen(skip_typescript)]
pub fn radii(rows: &JsValue, vocab: &JsValue, options: &JsValue) -> Result<JsValue> {
    let names: Vec<&str> = FILTERS.into_iter().chain(KEYS).chain(["dtype"]).collect();
    let options = Options::new(options, &names)?;
    let mut from = Rows::default();
    from.copy(rows, &options, "rows")?;
    let rows = from.rows(integer(vocab, "vocab")?, Kind::Logits, "rows")?;
    if options.get("seed")?.is_none() {
        return Err(Failure::out_of_range("seed", "left out", "that of the draw, with its position"));
    }
    let (filters, keys) = (Filters::read(&options)?, Keys::read(&options, 1)?);
    let mut radii = filled(MEMORY, 0.0, rows.matrix().rows())?;
    run(|operators| operators.radii(rows, &filters.row_params(), &keys.draws(), (&mut radii[..]).into()))?;
    Ok(Float32Array::new_from_slice(&radii).into())
}
