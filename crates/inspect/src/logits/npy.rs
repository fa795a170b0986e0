//! Arrays from `.npy` files (NumPy's format, versions 1 to 3), read by hand: magic, header, data.
//!
//! The header is the text of a Python dictionary with the type, the memory order and the shape. bfloat16
//! has no NumPy type: `ml_dtypes` writes it as `V2`, and arrays of `uint16` are taken as its bits.

use half::{bf16, f16};

use super::elements;
use crate::output::without_middle;

/// What to save where an array is to hold logits.
pub const LOGITS: &str = "save float32, float16 or bfloat16 (x.astype(numpy.float32))";

/// What an array's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// `<f4`.
    F32,
    /// `<f2`.
    F16,
    /// `V2` or `<u2`: bfloat16.
    Bf16,
    /// `<u4` or `<i4`: words of a bitmask.
    Word,
    /// `|b1`: one truth value an id.
    Bool,
}

/// An array as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The type of the elements.
    pub element: Element,
    /// The shape, in C order.
    pub shape: Vec<usize>,
    /// The elements, little-endian.
    pub bytes: Vec<u8>,
}

impl Array {
    /// Reads the bytes of an `.npy` file; `wanted` says what to save instead where its elements are of no use.
    ///
    /// # Errors
    /// A sentence on what is wrong and what to do.
    pub fn parse(file: &[u8], wanted: &str) -> Result<Self, String> {
        let (header, data) = split(file)?;
        match word(field(header, "fortran_order")?) {
            "False" => {}
            "True" => return Err("the array is in Fortran order; save numpy.ascontiguousarray(x)".to_owned()),
            other => {
                let reason = "is neither True nor False; save the file again with numpy.save";
                return Err(format!("the header's 'fortran_order', {}, {reason}", without_middle(other, 40)));
            }
        }
        let element = element(field(header, "descr")?, wanted)?;
        let shape = shape(field(header, "shape")?)?;
        let count = shape.iter().try_fold(1usize, |count, length| count.checked_mul(*length));
        let expected = count.and_then(|count| count.checked_mul(element.bytes()));
        match expected {
            Some(expected) if data.len() >= expected => {
                Ok(Self { element, shape, bytes: data[..expected].to_vec() })
            }
            _ => Err(format!(
                "the file is cut short: the header promises shape {shape:?} but only {} bytes of data follow; save it again",
                data.len()
            )),
        }
    }

    /// Returns the elements as logits.
    ///
    /// # Errors
    /// A sentence, if they are none.
    pub fn logits(&self) -> Result<super::Data, String> {
        match self.element {
            Element::F32 => Ok(super::Data::F32(elements(&self.bytes))),
            Element::F16 => Ok(super::Data::F16(elements::<f16>(&self.bytes))),
            Element::Bf16 => Ok(super::Data::Bf16(elements::<bf16>(&self.bytes))),
            Element::Word | Element::Bool => Err(format!("the array holds no logits; {LOGITS}")),
        }
    }
}

impl Element {
    fn bytes(self) -> usize {
        match self {
            Element::F32 | Element::Word => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::Bool => 1,
        }
    }
}

/// Splits a file into the text of its header and its data.
fn split(file: &[u8]) -> Result<(&str, &[u8]), String> {
    let cut = || "the file is cut short inside its header; save it again".to_owned();
    let rest = file.strip_prefix(b"\x93NUMPY").ok_or_else(|| {
        "no .npy file: it does not start with NumPy's magic; save it with numpy.save".to_owned()
    })?;
    let (length, rest) = match rest.first().ok_or_else(cut)? {
        1 => (usize::from(u16::from_le_bytes(array(rest, 2).ok_or_else(cut)?)), rest.get(4..)),
        2 | 3 => (u32::from_le_bytes(array(rest, 2).ok_or_else(cut)?) as usize, rest.get(6..)),
        version => return Err(format!("version {version} of the .npy format is not known; 1, 2 and 3 are")),
    };
    let rest = rest.filter(|rest| rest.len() >= length).ok_or_else(cut)?;
    let (header, data) = rest.split_at(length);
    Ok((
        std::str::from_utf8(header).map_err(|_| "the header is no text; save the file again".to_owned())?,
        data,
    ))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Returns what follows a key in the header.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str, String> {
    header
        .split_once(&format!("'{key}'"))
        .and_then(|(_, rest)| rest.trim_start().strip_prefix(':'))
        .map(str::trim_start)
        .ok_or_else(|| format!("the header has no '{key}'; save the file again with numpy.save"))
}

/// Returns the word that a text begins with.
fn word(text: &str) -> &str {
    text.split([',', '}']).next().unwrap_or_default().trim()
}

fn element(text: &str, wanted: &str) -> Result<Element, String> {
    let quoted = text.strip_prefix('\'').and_then(|text| text.split('\'').next());
    match quoted {
        Some("<f4") => Ok(Element::F32),
        Some("<f2") => Ok(Element::F16),
        Some("<V2" | "|V2" | "<u2") => Ok(Element::Bf16),
        Some("<u4" | "<i4") => Ok(Element::Word),
        Some("|b1") => Ok(Element::Bool),
        other => Err(format!(
            "elements of type {} are not taken; {wanted}",
            without_middle(other.unwrap_or("record"), 40)
        )),
    }
}

fn shape(text: &str) -> Result<Vec<usize>, String> {
    let bad = || "the header's shape cannot be read; save the file again with numpy.save".to_owned();
    let inside = text.strip_prefix('(').and_then(|text| text.split(')').next()).ok_or_else(bad)?;
    inside
        .split(',')
        .map(str::trim)
        .filter(|length| !length.is_empty())
        .map(|length| length.parse().map_err(|_| bad()))
        .collect()
}
