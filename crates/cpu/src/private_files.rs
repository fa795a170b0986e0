//! Reads and writes the files of a cache, which only the user can have written.
//!
//! A program takes a cached file without making it again: it runs machine code in the user's GPU context, and
//! writes the user's text by a model. So it reads a file only if the file and its folder belong to the user
//! or to root, and other users cannot write to them. It follows no symbolic links. It gives new files the
//! mode 0600 and new folders 0700, or 0644 and 0755 where others may read. It reads a folder that belongs to
//! the program itself without these checks. Systems other than Unix have no such modes; there the user's
//! folder is as private as the system makes it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use crate::files::{Links, NewFile, open_plain};

/// The largest file that is read, so that a damaged folder cannot exhaust the memory.
const LONGEST_BYTES: u64 = 1 << 30;

/// Returns why a path cannot be trusted as a folder; `None` if it does not exist, or only the user can write
/// to it.
#[must_use]
pub fn trouble(folder: &Path) -> Option<String> {
    let metadata = fs::metadata(folder).ok()?;
    if !metadata.is_dir() {
        return Some("it is no folder; remove it".to_owned());
    }
    foreign(&metadata)
}

/// Who else may read new files and folders. Nobody else may write to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Nobody but the user.
    User,
    /// Everybody.
    All,
}

/// Creates a folder, with its parents, to which only the user can write. An existing folder stays as it is.
///
/// # Errors
/// The system's error, or `PermissionDenied` if only the user is to read the folder, and others may write to
/// it.
pub fn make_folder(folder: &Path, readers: Readers) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, if readers == Readers::All { 0o755 } else { 0o700 });
    builder.create(folder)?;
    let trouble = if readers == Readers::User { trouble(folder) } else { None };
    trouble.map_or(Ok(()), |reason| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)))
}

/// Reads a file that only the user can have written.
///
/// # Errors
/// The errors of [`open_plain`], also for a symbolic link; `PermissionDenied` if it is longer than
/// `LONGEST_BYTES`, or others may write to it.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open(OpenOptions::new().read(true), path)?)
}

/// Opens a file that only the user can have written, as `options` say.
///
/// # Errors
/// The errors of [`open_plain`], also for a symbolic link; `PermissionDenied` if others may write to it.
pub fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = open_plain(options, path, Links::Refused)?;
    match foreign(&file.metadata()?) {
        Some(reason) => Err(io::Error::new(io::ErrorKind::PermissionDenied, reason)),
        None => Ok(file),
    }
}

/// Reads a file from a folder that is trusted, with symbolic links, as package managers make them.
///
/// # Errors
/// The errors of [`open_plain`]; `PermissionDenied` if it is longer than `LONGEST_BYTES`.
pub fn read_trusted(path: &Path) -> io::Result<Vec<u8>> {
    read_all(open_plain(OpenOptions::new().read(true), path, Links::Followed)?)
}

fn read_all(file: File) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > LONGEST_BYTES {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns options that give a new file the rights of one that only the user can write.
#[must_use]
pub fn options(readers: Readers) -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(
        &mut options,
        if readers == Readers::All { 0o644 } else { 0o600 },
    );
    // Elsewhere a file gets the rights that its folder hands down.
    #[cfg(not(unix))]
    let _ = readers;
    options
}

/// Writes a file that only the user can write, and that appears when it is whole.
///
/// # Errors
/// The errors of [`NewFile`].
pub fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut file = NewFile::opened(options(readers), path)?;
    file.write_all(bytes)?;
    file.keep()
}

/// What to do about a file or folder of others.
#[cfg(unix)]
const REMEDY: &str = "make it yours alone (chmod -R go-w) or remove it";

/// Returns why users other than this one and root may have written to a file or folder; `None` if they
/// cannot.
#[cfg(unix)]
fn foreign(metadata: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Some(format!("it belongs to another user, {owner}; {REMEDY}"));
    }
    (mode & 0o022 != 0).then(|| format!("others can write to it (mode {mode:o}); {REMEDY}"))
}

#[cfg(not(unix))]
fn foreign(_: &Metadata) -> Option<String> {
    None
}
