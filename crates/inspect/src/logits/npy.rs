//! Arrays from `.npy` files (NumPy's format, versions 1 to 3), read by hand: magic, header, data.
//!
//! The header is the text of a Python dictionary with the type, the memory order and the shape. bfloat16
//! has no NumPy type: `ml_dtypes` writes it as `V2`, and arrays of `uint16` are taken as its bits.

use super::Data;
use super::chosen::Layout;
use crate::output::without_middle;
use crate::reading::Numbers;

/// The longest header; headers of arrays have some hundred bytes.
const LONGEST_HEADER_BYTES: u64 = 1 << 20;

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

/// The type and shape of a file's array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type of the elements.
    pub element: Element,
    /// The shape, in C order.
    pub shape: Vec<usize>,
    /// Where the elements begin, little-endian.
    pub start: u64,
    /// How many bytes they have.
    pub bytes: u64,
}

impl Header {
    /// Reads the header of an `.npy` file; `wanted` says what to save instead where its elements are of no
    /// use.
    ///
    /// # Errors
    /// A sentence on the defect and the remedy.
    pub fn read(file: &mut Numbers, wanted: &str) -> Result<Self, String> {
        let (start, header) = text(file)?;
        let header = &*header;
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
        let count = shape.iter().try_fold(1u64, |count, length| count.checked_mul(*length as u64));
        let bytes = count.and_then(|count| count.checked_mul(element.bytes()));
        let there = file.known_bytes().map(|bytes| bytes.saturating_sub(start));
        match bytes {
            Some(bytes) if there.is_none_or(|there| there >= bytes) => {
                Ok(Self { element, shape, start, bytes })
            }
            _ => {
                let there = there.map_or("fewer".to_owned(), |there| there.to_string());
                let shape = without_middle(&format!("{shape:?}"), 80);
                Err(format!(
                    "the file is cut short: the header promises shape {shape} but only {there} bytes of data follow; save it again"
                ))
            }
        }
    }

    /// Returns how rows of logits lie.
    pub(super) fn layout(self) -> Result<Layout, String> {
        let data = match self.element {
            Element::F32 => Data::F32(Vec::new()),
            Element::F16 => Data::F16(Vec::new()),
            Element::Bf16 => Data::Bf16(Vec::new()),
            Element::Word | Element::Bool => return Err(format!("the array holds no logits; {LOGITS}")),
        };
        Ok(Layout { data, shape: self.shape, start: self.start })
    }
}

impl Element {
    fn bytes(self) -> u64 {
        match self {
            Element::F32 | Element::Word => 4,
            Element::F16 | Element::Bf16 => 2,
            Element::Bool => 1,
        }
    }
}

/// Returns the text of a file's header, and where its data begin.
fn text(file: &mut Numbers) -> Result<(u64, String), String> {
    let cut = || "the file is cut short inside its header; save it again".to_owned();
    let start = file.head(12)?;
    let rest = start.strip_prefix(b"\x93NUMPY").ok_or_else(|| {
        "no .npy file: it does not start with NumPy's magic; save it with numpy.save".to_owned()
    })?;
    let (length, start) = match rest.first().ok_or_else(cut)? {
        1 => (u64::from(u16::from_le_bytes(array(rest, 2).ok_or_else(cut)?)), 10),
        2 | 3 => (u64::from(u32::from_le_bytes(array(rest, 2).ok_or_else(cut)?)), 12),
        version => return Err(format!("version {version} of the .npy format is not known; 1, 2 and 3 are")),
    };
    if length > LONGEST_HEADER_BYTES {
        return Err(format!(
            "its header is to have {length} bytes, more than the {LONGEST_HEADER_BYTES} that are read"
        ));
    }
    let mut header = Vec::new();
    file.read(start, length, &mut header)?;
    if header.len() as u64 != length {
        return Err(cut());
    }
    let header =
        String::from_utf8(header).map_err(|_| "the header is no text; save the file again".to_owned())?;
    Ok((start + length, header))
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
