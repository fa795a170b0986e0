//! The finished part of a build: a file beside the artefact, under its name with `.part`, until the artefact
//! is whole.
//!
//! Its first line says that a build left it, and which. A file that no build left is neither taken up nor
//! written over.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

use gumball_cpu::files::{self, Links};

use super::{Kind, Source};
use crate::exact::Exact;

/// How such a file begins, whichever build left it.
const OURS: &[u8] = b"gumball head build: ";

/// Returns where it lies for an artefact at a path.
pub(super) fn place(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Returns the first line, which names the build. `of`: the kind and size of its pieces.
pub(super) fn line(of: &str, source: &Source, exact: &Exact<'_>, kind: Kind) -> Vec<u8> {
    let fields = source.fields(exact, kind);
    let fields: Vec<String> = fields.iter().map(|(field, text)| format!("{field}={text:?}")).collect();
    [OURS, format!("{of}; {}\n", fields.join("; ")).as_bytes()].concat()
}

/// Opens it, at the end of its first line; `None` if there is none, or if another build left it.
///
/// # Errors
/// - The errors of [`files::open_plain`].
/// - [`ErrorKind::InvalidInput`] if no build left it.
pub(super) fn open(place: &Path, line: &[u8]) -> Result<Option<File>> {
    let mut options = OpenOptions::new();
    let mut file = match files::open_plain(options.read(true).write(true), place, Links::Refused) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut found = Vec::new();
    Read::by_ref(&mut file).take(line.len() as u64).read_to_end(&mut found)?;
    if !found.starts_with(OURS) {
        let reason = "no build of a head left this file; move it away, or name another artefact";
        return Err(Error::new(ErrorKind::InvalidInput, reason));
    }
    Ok((found == line).then_some(file))
}

/// Checks that nothing lies there but what a build left.
///
/// # Errors
/// The errors of [`open`].
pub(super) fn check(place: &Path) -> Result<()> {
    open(place, OURS).map(drop)
}
