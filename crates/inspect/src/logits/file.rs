//! Logits from a file: `.npy`, `.safetensors`, `.json`, or raw elements under the name of their type; without a name, as its content tells.

use std::path::Path;

use half::{bf16, f16};

use super::npy::{Array, LOGITS};
use super::{Data, Logits, elements, json, tensors};
use crate::output::without_middle;
use crate::{Error, Result, reading};

/// Reads the rows of a file.
///
/// # Errors
/// - [`Error::File`] that says what is wrong with it and what to do.
pub fn read(path: &Path, tensor: Option<&str>, vocab: Option<usize>) -> Result<Logits> {
    let bytes = reading::numbers(path)?;
    parse(path, &bytes, tensor, vocab).map_err(|reason| Error::file(reading::name(path), reason))
}

fn parse(path: &Path, bytes: &[u8], tensor: Option<&str>, vocab: Option<usize>) -> Result<Logits, String> {
    let kind = match path.extension() {
        Some(kind) => kind.to_str().unwrap_or_default(),
        None => kind_of(bytes),
    };
    let (data, shape) = match kind {
        "npy" => {
            let array = Array::parse(bytes, LOGITS)?;
            (array.logits()?, array.shape)
        }
        "safetensors" => tensors::read(bytes, tensor)?,
        "json" => {
            let (logits, vocab) = json::read(bytes)?;
            (Data::F32(logits), vec![vocab])
        }
        "f32" | "bf16" | "f16" => {
            let vocab = vocab.ok_or("a raw file does not say how long its rows are; add --vocab N")?;
            return Logits::new(raw(kind, bytes)?, vocab);
        }
        _ => {
            return Err(
                "the name must end in .npy, .safetensors, .json, or .f32, .bf16, .f16 if raw; without an ending the first three are told by their content"
                    .to_owned(),
            );
        }
    };
    let found = match shape[..] {
        [found] | [_, found] => found,
        _ => {
            return Err(format!(
                "shape {} has no rows of logits; [vocab] or [rows, vocab] has",
                without_middle(&format!("{shape:?}"), 80)
            ));
        }
    };
    match vocab {
        Some(vocab) if vocab != found => Err(format!("its rows have {found} logits, but --vocab is {vocab}")),
        _ => Logits::new(data, found),
    }
}

/// Returns the kind of a file without one in its name, such as standard input, as its first bytes tell it; nothing if they do not.
fn kind_of(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\x93NUMPY") {
        return "npy";
    }
    // Behind the length of its header.
    if bytes.get(8) == Some(&b'{') {
        return "safetensors";
    }
    if bytes.trim_ascii_start().starts_with(b"[") { "json" } else { "" }
}

/// Reads raw elements of the type a file is named after.
fn raw(kind: &str, bytes: &[u8]) -> Result<Data, String> {
    let width = if kind == "f32" { 4 } else { 2 };
    if !bytes.len().is_multiple_of(width) {
        return Err(format!(
            "{} bytes are no whole number of {kind} elements; is the file cut short?",
            bytes.len()
        ));
    }
    Ok(match kind {
        "f32" => Data::F32(elements(bytes)),
        "bf16" => Data::Bf16(elements::<bf16>(bytes)),
        _ => Data::F16(elements::<f16>(bytes)),
    })
}
