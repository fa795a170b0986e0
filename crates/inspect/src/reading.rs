//! Files: texts, which are read whole, and numbers, of which a header is read first and then what is asked
//! for. None is read further than there is use for, whatever it is.
//!
//! A file is a plain one; `-`, standard input; or what the shell hands over under `/dev/fd`, as
//! `<(zcat rows.json.gz)` does. A pipe or a device elsewhere is an error at once. A stream without a length
//! may never end, so all reads are bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gumball_engine::unstable::files::{Links, open_plain};

use crate::machine::size;
use crate::{Error, Result};

/// The longest text: grammars and parameters.
const LONGEST_TEXT_BYTES: u64 = 64 << 20;
/// The longest stream of numbers.
const LONGEST_STREAM_BYTES: u64 = 1 << 30;
/// What editors write before a text in UTF-8.
pub const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Reads a file of text; a byte order mark before it is left out.
///
/// # Errors
/// - [`Error::File`] if it cannot be read, is longer than 64 MiB, or is no UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let mut source = Bounded { source: open(path)?, left: LONGEST_TEXT_BYTES, most: LONGEST_TEXT_BYTES };
    source.read_to_end(&mut bytes).map_err(|error| Error::io(name(path), &error))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let is_wide = matches!(error.as_bytes(), [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..]);
        let of_it =
            if is_wide { ": it is UTF-16, as its byte order mark says; save it as UTF-8" } else { "" };
        Error::file(name(path), format!("no text in UTF-8{of_it}"))
    })?;
    Ok(text.strip_prefix(BYTE_ORDER_MARK).map(str::to_owned).unwrap_or(text))
}

/// A file of numbers, of which parts are read.
pub struct Numbers {
    source: Source,
    /// None of a stream.
    bytes: Option<u64>,
}

/// What [`Numbers`] are read from.
enum Source {
    File(File),
    /// The part that was read is kept.
    Stream(Bounded<Box<dyn Read>>, Vec<u8>),
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Numbers").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Numbers {
    /// Opens a file and reads nothing.
    ///
    /// # Errors
    /// - [`Error::File`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(match open(path)? {
            Opened::File(file) => {
                let found = file.metadata().map_err(|error| Error::io(path, &error))?;
                Self { source: Source::File(file), bytes: Some(found.len()) }
            }
            Opened::Stream(source) => {
                let source = Bounded { source, left: LONGEST_STREAM_BYTES, most: LONGEST_STREAM_BYTES };
                Self { source: Source::Stream(source, Vec::new()), bytes: None }
            }
        })
    }

    /// Returns how many bytes there are, if that is known of it without reading.
    #[must_use]
    pub fn known_bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns how many bytes there are; a stream is read to its end.
    ///
    /// # Errors
    /// What reading gives, as a sentence; a stream that is longer than 1 GiB.
    pub fn bytes(&mut self) -> Result<u64, String> {
        match self.bytes {
            Some(bytes) => Ok(bytes),
            None => self.fetch(u64::MAX).map(|read| read.len() as u64).map_err(said),
        }
    }

    /// Returns the first `length` bytes, or all bytes if there are fewer.
    ///
    /// # Errors
    /// The errors of [`Self::bytes`].
    pub fn head(&mut self, length: u64) -> Result<Vec<u8>, String> {
        let mut head = Vec::new();
        self.read(0, length, &mut head)?;
        Ok(head)
    }

    /// Adds `length` bytes from `start` on, or fewer if the file ends before.
    ///
    /// # Errors
    /// The errors of [`Self::bytes`].
    pub fn read(&mut self, start: u64, length: u64, to: &mut Vec<u8>) -> Result<(), String> {
        if let Source::File(file) = &mut self.source {
            file.seek(SeekFrom::Start(start)).map_err(said)?;
            return file.take(length).read_to_end(to).map(drop).map_err(said);
        }
        let read = self.fetch(start.saturating_add(length)).map_err(said)?;
        let place = |at: u64| at.min(read.len() as u64) as usize;
        to.extend_from_slice(&read[place(start)..place(start.saturating_add(length))]);
        Ok(())
    }

    /// Returns a reader of all of it, from its begin.
    ///
    /// # Errors
    /// The errors of [`Self::bytes`].
    pub fn reader(self) -> Result<Box<dyn Read>, String> {
        Ok(match self.source {
            Source::File(mut file) => {
                file.seek(SeekFrom::Start(0)).map_err(said)?;
                Box::new(file)
            }
            Source::Stream(stream, read) => Box::new(Cursor::new(read).chain(stream)),
        })
    }

    /// Reads a stream up to a place, if it goes so far, and returns what was read of it.
    fn fetch(&mut self, end: u64) -> io::Result<&[u8]> {
        let Source::Stream(stream, read) = &mut self.source else { return Ok(&[]) };
        stream.take(end.saturating_sub(read.len() as u64)).read_to_end(read)?;
        Ok(read)
    }
}

/// Returns what a file is called in a message.
#[must_use]
pub fn name(path: &Path) -> &Path {
    if is_stdin(path) { Path::new("standard input") } else { path }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-") || path == Path::new("/dev/stdin")
}

fn said(error: io::Error) -> String {
    error.to_string()
}

/// A file that was opened: one with a length and places, or a stream.
enum Opened {
    File(File),
    Stream(Box<dyn Read>),
}

impl Read for Opened {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Opened::File(file) => file.read(to),
            Opened::Stream(stream) => stream.read(to),
        }
    }
}

fn open(path: &Path) -> Result<Opened> {
    static STDIN_IS_READ: AtomicBool = AtomicBool::new(false);
    if is_stdin(path) {
        if STDIN_IS_READ.swap(true, Ordering::Relaxed) {
            return Err(Error::file(name(path), "it was read for another file; name it once"));
        }
        return Ok(Opened::Stream(Box::new(io::stdin().lock())));
    }
    let is_handed_over = path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    let opened = match is_handed_over {
        true => File::open(path),
        false => open_plain(OpenOptions::new().read(true), path, Links::Followed),
    };
    let file = opened.map_err(|error| Error::io(path, &error))?;
    let is_file = file.metadata().is_ok_and(|found| found.is_file());
    Ok(if is_file { Opened::File(file) } else { Opened::Stream(Box::new(file)) })
}

/// A source that ends with an error where it is longer than there is use for.
struct Bounded<R> {
    source: R,
    left: u64,
    most: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let room =
            to.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)).max(usize::from(!to.is_empty()));
        let read = self.source.read(&mut to[..room])?;
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => {
                let most = size(self.most);
                return Err(io::Error::other(format!("longer than {most}, which is more than is of use")));
            }
        }
        Ok(read)
    }
}
