//! Is a GGUF header fit to be taken into memory? Asked before candle reads it, element by element.
//!
//! Candle holds each element of an array in 32 bytes and divides by the alignment that the file names. So the
//! metadata is walked here first, values skipped, with a count of elements and bytes. What does not parse is
//! left to candle, whose words for it are better.

use std::io::{self, Read, Seek};

/// The most elements in all arrays together; the largest vocabularies have two million, with scores, types
/// and merges.
const MOST_ELEMENTS: u64 = 1 << 23;
/// The most bytes of metadata; the largest vocabularies take twenty million.
const MOST_BYTES: u64 = 1 << 28;
/// The largest alignment of tensors; files have 32.
const LARGEST_ALIGNMENT: u64 = 1 << 20;

/// The type of a value, by GGUF's numbers.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Returns the reason why a header is unfit, from the position after the magic.
pub(super) fn unfit(file: &mut (impl Read + Seek)) -> Option<String> {
    let mut walk = Walk { file, wide: true, elements: 0, bytes: 0 };
    match walk.metadata() {
        Err(Stop::Unfit(reason)) => Some(reason),
        Ok(()) | Err(Stop::Candle) => None,
    }
}

/// Why a walk ends early.
enum Stop {
    /// The header is unfit.
    Unfit(String),
    /// It does not parse.
    Candle,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Self {
        Stop::Candle
    }
}

struct Walk<'a, R> {
    file: &'a mut R,
    /// Lengths have 64 bits: all versions but the first.
    wide: bool,
    elements: u64,
    bytes: u64,
}

impl<R: Read + Seek> Walk<'_, R> {
    fn metadata(&mut self) -> Result<(), Stop> {
        self.wide = self.word()? > 1;
        let _tensors = self.length()?;
        for _ in 0..self.length()? {
            let key = self.key()?;
            let kind = self.word()?;
            if key == b"general.alignment" {
                self.alignment(kind)?;
            } else {
                self.value(kind, &key)?;
            }
        }
        Ok(())
    }

    /// Reads a key; of a long one, which is not looked for, it returns no bytes.
    fn key(&mut self) -> Result<Vec<u8>, Stop> {
        let length = self.length()?;
        if length > 256 {
            self.skip(length)?;
            return Ok(Vec::new());
        }
        self.count_bytes(length)?;
        let mut key = vec![0; length as usize];
        self.file.read_exact(&mut key)?;
        Ok(key)
    }

    fn alignment(&mut self, kind: u32) -> Result<(), Stop> {
        let Some(width) = width(kind) else { return self.value(kind, b"general.alignment") };
        let mut bytes = [0; 8];
        self.file.read_exact(&mut bytes[..width as usize])?;
        let alignment = u64::from_le_bytes(bytes);
        if (1..=LARGEST_ALIGNMENT).contains(&alignment) {
            return Ok(());
        }
        Err(Stop::Unfit(format!("metadata `general.alignment` is {alignment}, but must be in 1..=2^20")))
    }

    /// Skips a value; arrays in arrays to a depth that the count of elements bounds.
    fn value(&mut self, kind: u32, key: &[u8]) -> Result<(), Stop> {
        // Arrays that were begun: the type of their elements, and how many are left.
        let mut open: Vec<(u32, u64)> = vec![(kind, 1)];
        while let Some((kind, left)) = open.last_mut() {
            if *left == 0 {
                open.pop();
                continue;
            }
            match (*kind, width(*kind)) {
                (STRING, _) => {
                    *left -= 1;
                    let length = self.length()?;
                    self.skip(length)?;
                }
                (ARRAY, _) => {
                    *left -= 1;
                    let (kind, length) = (self.word()?, self.length()?);
                    self.count_elements(length, key)?;
                    open.push((kind, length));
                }
                (_, Some(width)) => {
                    let bytes = left.saturating_mul(width);
                    *left = 0;
                    self.skip(bytes)?;
                }
                (_, None) => return Err(Stop::Candle),
            }
        }
        Ok(())
    }

    fn count_elements(&mut self, more: u64, key: &[u8]) -> Result<(), Stop> {
        self.elements = self.elements.saturating_add(more);
        if self.elements <= MOST_ELEMENTS {
            return Ok(());
        }
        let key = String::from_utf8_lossy(key);
        Err(Stop::Unfit(format!(
            "its metadata has {} elements up to `{key}`, more than the {MOST_ELEMENTS} that are read",
            self.elements
        )))
    }

    fn count_bytes(&mut self, more: u64) -> Result<(), Stop> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes <= MOST_BYTES {
            return Ok(());
        }
        Err(Stop::Unfit(format!("its metadata has more than the {MOST_BYTES} bytes that are read")))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), Stop> {
        self.count_bytes(bytes)?;
        // It may end up beyond the end, where the next read stops the walk.
        Ok(self.file.seek_relative(bytes as i64)?)
    }

    fn length(&mut self) -> Result<u64, Stop> {
        if !self.wide {
            return Ok(u64::from(self.word()?));
        }
        let mut bytes = [0; 8];
        self.file.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn word(&mut self) -> Result<u32, Stop> {
        let mut bytes = [0; 4];
        self.file.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }
}

/// Returns the bytes of a value of a type of fixed width.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
