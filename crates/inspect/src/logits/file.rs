//! Logits from a file: `.npy`, `.safetensors`, `.json`, or raw elements under the name of their type; without
//! a name, as its content tells.
//!
//! The header of a file is read first, then the chosen rows, and no others.

use std::path::Path;

use super::chosen::{Chosen, Layout, MOST_BYTES, check_vocab, too_many};
use super::npy::{Header, LOGITS};
use super::{Data, Logits, Selection, json, tensors};
use crate::output::without_middle;
use crate::reading::Numbers;
use crate::{Error, Result, reading};

/// Reads the rows of a file that are meant; without a selection all of them.
///
/// # Errors
/// - [`Error::File`] that names the defect and the remedy.
pub fn read(
    path: &Path,
    tensor: Option<&str>,
    vocab: Option<usize>,
    meant: Option<&Selection>,
) -> Result<Chosen> {
    let file = Numbers::open(path)?;
    parse(path, file, tensor, vocab, meant).map_err(|reason| Error::file(reading::name(path), reason))
}

fn parse(
    path: &Path,
    mut file: Numbers,
    tensor: Option<&str>,
    vocab: Option<usize>,
    meant: Option<&Selection>,
) -> Result<Chosen, String> {
    let kind = match path.extension() {
        Some(kind) => kind.to_str().unwrap_or_default(),
        None => kind_of(&file.head(16)?),
    };
    let layout = match kind {
        "npy" => Header::read(&mut file, LOGITS)?.layout()?,
        "safetensors" => tensors::find(&mut file, tensor)?,
        "json" => return json::read(file.reader()?, vocab, meant),
        "f32" | "bf16" | "f16" => {
            let vocab = vocab.ok_or("a raw file does not say how long its rows are; add --vocab N")?;
            raw(kind, &mut file, vocab)?
        }
        _ => {
            return Err(
                "the name must end in .npy, .safetensors, .json, or .f32, .bf16, .f16 if raw; without an ending the first three are told by their content"
                    .to_owned(),
            );
        }
    };
    let (rows, found) = match layout.shape[..] {
        [found] => (1, found),
        [rows, found] => (rows, found),
        _ => {
            return Err(format!(
                "shape {} has no rows of logits; [vocab] or [rows, vocab] has",
                without_middle(&format!("{:?}", layout.shape), 80)
            ));
        }
    };
    check_vocab(found, vocab)?;
    if rows == 0 {
        return Err("it has no rows".to_owned());
    }
    load(&mut file, layout, rows, found, meant)
}

/// Reads the rows that are meant, of `rows` that there are, piece by piece.
fn load(
    file: &mut Numbers,
    Layout { mut data, start, .. }: Layout,
    rows: usize,
    vocab: usize,
    meant: Option<&Selection>,
) -> Result<Chosen, String> {
    let row_bytes = (vocab * data.element_bytes()) as u64;
    let count = meant.map_or(rows, |meant| meant.len().min(rows)) as u64;
    let bytes = count.saturating_mul(row_bytes);
    if bytes > MOST_BYTES {
        return Err(too_many(bytes));
    }
    let (numbers, rows) = Selection::chosen(meant, rows)?;
    data.reserve(numbers.len() * vocab).map_err(|error| format!("no memory for its rows: {error}"))?;
    let mut piece = Vec::new();
    for number in &numbers {
        piece.clear();
        file.read(start.saturating_add((*number as u64).saturating_mul(row_bytes)), row_bytes, &mut piece)?;
        if piece.len() as u64 != row_bytes {
            return Err(format!("the file is cut short inside row {number}; save it again"));
        }
        data.extend(&piece);
    }
    Ok(Chosen { logits: Logits::new(data, vocab)?, numbers, rows })
}

/// Returns the kind of a file without one in its name, such as standard input, as its first bytes tell it;
/// nothing if they do not.
fn kind_of(bytes: &[u8]) -> &'static str {
    if bytes.starts_with(b"\x93NUMPY") {
        return "npy";
    }
    // After the length of its header.
    if bytes.get(8) == Some(&b'{') {
        return "safetensors";
    }
    let text = bytes.strip_prefix(reading::BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes);
    if text.trim_ascii_start().starts_with(b"[") { "json" } else { "" }
}

/// Returns how raw elements lie, of the type a file is named after.
fn raw(kind: &str, file: &mut Numbers, vocab: usize) -> Result<Layout, String> {
    check_vocab(vocab, None)?;
    let data = match kind {
        "f32" => Data::F32(Vec::new()),
        "bf16" => Data::Bf16(Vec::new()),
        _ => Data::F16(Vec::new()),
    };
    let (bytes, width) = (file.bytes()?, data.element_bytes() as u64);
    if !bytes.is_multiple_of(width) {
        return Err(format!("{bytes} bytes are no whole number of {kind} elements; is the file cut short?"));
    }
    let logits = bytes / width;
    if !logits.is_multiple_of(vocab as u64) || logits == 0 {
        return Err(format!("{logits} logits are no whole number of rows of {vocab}"));
    }
    let rows = usize::try_from(logits / vocab as u64).unwrap_or(usize::MAX);
    Ok(Layout { data, shape: vec![rows, vocab], start: 0 })
}
