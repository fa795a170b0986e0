//! Files that are read whole: none longer than there is use for, whatever the file is.
//!
//! A file is a plain one; `-`, standard input; or what the shell hands over under `/dev/fd`, as `<(zcat rows.json.gz)` does. A pipe
//! or a device elsewhere is an error at once. A stream without a length may never end, so all reads are bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gumball_engine::files::{Links, open_plain};

use crate::machine::size;
use crate::{Error, Result};

/// The longest text: grammars and parameters.
const LONGEST_TEXT_BYTES: u64 = 64 << 20;
/// The longest file of numbers where the system does not know its length.
const LONGEST_STREAM_BYTES: u64 = 1 << 30;

/// Reads a file of text.
///
/// # Errors
/// - [`Error::File`] if it cannot be read, is longer than 64 MiB, or is no UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let bytes = bounded(path, open(path)?.0, LONGEST_TEXT_BYTES)?;
    String::from_utf8(bytes).map_err(|_| Error::file(name(path), "no text in UTF-8"))
}

/// Reads a file of numbers.
///
/// # Errors
/// - [`Error::File`] if it cannot be read, or has no length of its own and is longer than 1 GiB.
pub fn numbers(path: &Path) -> Result<Vec<u8>> {
    let (source, known) = open(path)?;
    bounded(path, source, known.max(LONGEST_STREAM_BYTES))
}

/// Returns what a file is called in a message.
#[must_use]
pub fn name(path: &Path) -> &Path {
    if is_stdin(path) { Path::new("standard input") } else { path }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdin")
}

/// Opens a file, and says how long it is as far as the system knows.
fn open(path: &Path) -> Result<(Box<dyn Read>, u64)> {
    static STDIN_IS_READ: AtomicBool = AtomicBool::new(false);
    if is_stdin(path) {
        if STDIN_IS_READ.swap(true, Ordering::Relaxed) {
            return Err(Error::file(name(path), "it was read for another file; name it once"));
        }
        return Ok((Box::new(io::stdin().lock()), 0));
    }
    let is_handed_over = path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    let opened = match is_handed_over {
        true => File::open(path),
        false => open_plain(OpenOptions::new().read(true), path, Links::Followed),
    };
    let file = opened.map_err(|error| Error::io(path, &error))?;
    let known = file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(0, |file| file.len());
    Ok((Box::new(file), known))
}

fn bounded(path: &Path, source: impl Read, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(|error| Error::io(name(path), &error))?;
    if bytes.len() as u64 > most {
        let reason = format!("longer than {}, which is more than is of use", size(most));
        return Err(Error::file(name(path), reason));
    }
    Ok(bytes)
}
