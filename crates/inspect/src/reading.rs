//! Files that are read whole: none longer than there is use for, whatever the file is.
//!
//! A device or a pipe may never end, so what is read is bounded, and not by what the file says of itself.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::machine::size;
use crate::{Error, Result};

/// The longest text: grammars and parameters.
const LONGEST_TEXT_BYTES: u64 = 64 << 20;
/// The longest file of numbers where the system does not know its length: a device, or a pipe.
const LONGEST_STREAM_BYTES: u64 = 1 << 30;

/// Reads a file of text.
///
/// # Errors
/// - [`Error::File`] if it cannot be read, is longer than 64 MiB, or is no UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let bytes = bounded(path, open(path)?, LONGEST_TEXT_BYTES)?;
    String::from_utf8(bytes).map_err(|_| Error::file(path, "no text in UTF-8"))
}

/// Reads a file of numbers.
///
/// # Errors
/// - [`Error::File`] if it cannot be read, or is no regular file and longer than 1 GiB.
pub fn numbers(path: &Path) -> Result<Vec<u8>> {
    let file = open(path)?;
    let known = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    bounded(path, file, known.unwrap_or(0).max(LONGEST_STREAM_BYTES))
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| Error::io(path, &error))
}

fn bounded(path: &Path, file: File, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| Error::io(path, &error))?;
    if bytes.len() as u64 > most {
        return Err(Error::file(path, format!("longer than {}, which is more than is of use", size(most))));
    }
    Ok(bytes)
}
