//! Rows: typed arrays of JavaScript, copied into the module's memory.
//!
//! A Float32Array holds f32, a Float16Array f16. A Uint16Array holds the bits of bf16 or f16, and the option
//! `dtype` says which. A caller that hands rows over again and again keeps a buffer, so that nothing is
//! allocated.

use gumball_engine::{HostMatrix, Kind, Row, bf16, f16};
use js_sys::{Array, Float32Array, Uint16Array};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, tag};
use crate::values::Options;

/// The kind of the numbers of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dtype {
    /// f32, in a Float32Array.
    #[default]
    F32,
    /// bf16, in a Uint16Array.
    Bf16,
    /// f16, in a Uint16Array or a Float16Array.
    F16,
}

/// Rows in the module's memory.
#[derive(Debug, Default)]
pub struct Rows {
    dtype: Dtype,
    wide: Vec<f32>,
    narrow: Vec<u16>,
}

/// Returns the error for rows of another class, with the line that makes rows of numbers.
pub fn wrong_rows(name: &str, rows: &JsValue, allowed: &str) -> Failure {
    let rounds = match &*tag(rows) {
        "Array" | "Float64Array" if rows.is_object() => format!("; new Float32Array({name}) rounds one"),
        _ => String::new(),
    };
    Failure::wrong_type(name, rows, &format!("{allowed}{rounds}"))
}

impl Rows {
    /// Copies rows into the buffer, which holds as many numbers then.
    pub fn copy(&mut self, rows: &JsValue, options: &Options, name: &str) -> Result<()> {
        let named = options.text("dtype")?;
        let tag = if rows.is_object() { tag(rows) } else { String::new() };
        let dtype = match (&*tag, named.as_deref()) {
            ("Float32Array", None | Some("float32")) => Dtype::F32,
            ("Float16Array", None | Some("float16")) | ("Uint16Array", Some("float16")) => Dtype::F16,
            ("Uint16Array", Some("bfloat16")) => Dtype::Bf16,
            ("Float32Array" | "Float16Array" | "Uint16Array", other) => {
                let allowed = match &*tag {
                    "Uint16Array" => "\"bfloat16\" or \"float16\", since the rows are a Uint16Array",
                    "Float16Array" => "\"float16\" or left out, since the rows are a Float16Array",
                    _ => "\"float32\" or left out, since the rows are a Float32Array",
                };
                return Err(Failure::out_of_range("dtype", other.unwrap_or("left out"), allowed));
            }
            _ => {
                return Err(wrong_rows(
                    name,
                    rows,
                    "a Float32Array, a Float16Array, or a Uint16Array with the option dtype",
                ));
            }
        };
        self.dtype = dtype;
        match &*tag {
            "Float32Array" => {
                let rows: &Float32Array = rows.unchecked_ref();
                resize(&mut self.wide, rows.length())?;
                rows.copy_to(&mut self.wide);
            }
            "Uint16Array" => self.copy_words(rows.unchecked_ref())?,
            _ => {
                // A Uint16Array over the same memory. JavaScript makes it, since its offset may be beyond
                // 2^32.
                let get = |of: &JsValue, name: &str| js_sys::Reflect::get(of, &name.into());
                let made = get(&js_sys::global(), "Uint16Array").and_then(|class| {
                    let part =
                        Array::of3(&get(rows, "buffer")?, &get(rows, "byteOffset")?, &get(rows, "length")?);
                    js_sys::Reflect::construct(class.unchecked_ref::<js_sys::Function>(), &part)
                });
                let words: Uint16Array = made.map_err(Failure::Thrown)?.unchecked_into();
                self.copy_words(&words)?;
            }
        }
        Ok(())
    }

    fn copy_words(&mut self, words: &Uint16Array) -> Result<()> {
        resize(&mut self.narrow, words.length())?;
        words.copy_to(&mut self.narrow);
        Ok(())
    }

    /// Returns what the numbers are.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns how many numbers there are.
    pub fn len(&self) -> usize {
        if self.dtype == Dtype::F32 { self.wide.len() } else { self.narrow.len() }
    }

    /// Returns all numbers as one row.
    pub fn row(&self) -> Row<'_> {
        match self.dtype {
            Dtype::F32 => Row::F32(&self.wide),
            Dtype::Bf16 => Row::Bf16(bytemuck::cast_slice::<u16, bf16>(&self.narrow)),
            Dtype::F16 => Row::F16(bytemuck::cast_slice::<u16, f16>(&self.narrow)),
        }
    }

    /// Returns the numbers as rows of a vocabulary.
    ///
    /// # Errors
    /// `length` if they are no whole number of rows.
    pub fn rows(&self, vocab: usize, kind: Kind, name: &str) -> Result<gumball_engine::Rows<'_>> {
        let rows = count(self.len(), vocab, name)?;
        Ok(gumball_engine::Rows::of(HostMatrix::of_vocab(self.row(), rows, vocab, vocab)?, kind))
    }
}

/// Returns how many rows of `vocab` there are.
pub fn count(length: usize, vocab: usize, name: &str) -> Result<usize> {
    if vocab == 0 || !length.is_multiple_of(vocab) {
        let allowed = format!("a whole number of rows of {vocab}, the vocabulary");
        return Err(Failure::length(name, length, allowed));
    }
    Ok(length / vocab)
}

/// Reads what the numbers of rows mean: `logits`, unless the option `kind` says `probabilities`.
pub fn kind(options: &Options) -> Result<Kind> {
    match options.text("kind")?.as_deref() {
        None | Some("logits") => Ok(Kind::Logits),
        Some("probabilities") => Ok(Kind::Probabilities),
        Some(other) => Err(Failure::unknown("kind", other, &["logits", "probabilities"])),
    }
}

fn resize<T: Copy + Default>(to: &mut Vec<T>, length: u32) -> Result<()> {
    gumball_spec::memory::reserve("memory for rows", to, length as usize)?;
    to.resize(length as usize, T::default());
    Ok(())
}
