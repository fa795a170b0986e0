//! Files at paths that callers name: opened where they are plain files, written beside their place and
//! renamed.
//!
//! Of what lies at such a path only a plain file is ever replaced, as a whole. Nothing is written through a
//! link, and a pipe, a device or a folder is an error at once instead of a wait. Bytes go to a new file in
//! the same folder, which replaces the old one once it is whole: a process that reads or maps the old one
//! keeps it.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether symbolic links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Its target is opened.
    Followed,
    /// It is an error.
    Refused,
}

/// Opens a plain file as `options` say, without waiting for anybody.
///
/// # Errors
/// - The system's error.
/// - [`io::ErrorKind::InvalidInput`] for anything but a plain file; the text says what it is.
pub fn open_plain(options: &OpenOptions, path: &Path, links: Links) -> io::Result<File> {
    let found = if links == Links::Followed { fs::metadata(path) } else { fs::symlink_metadata(path) };
    match found {
        // Opening a device may do something by itself.
        Ok(found) => check_plain(found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    #[cfg(unix)]
    let options = {
        use rustix::fs::OFlags;
        // A link or a pipe may have come there meanwhile.
        let refused = if links == Links::Followed { OFlags::empty() } else { OFlags::NOFOLLOW };
        let mut options = options.clone();
        std::os::unix::fs::OpenOptionsExt::custom_flags(
            &mut options,
            (refused | OFlags::NONBLOCK).bits() as i32,
        );
        options
    };
    let file = options.open(path)?;
    check_plain(file.metadata()?.file_type())?;
    Ok(file)
}

/// Checks that a file can be written at a path: only a plain file or nothing lies there, and its folder takes
/// new files.
///
/// # Errors
/// The errors of [`NewFile::beside`].
pub fn check_place(path: &Path) -> io::Result<()> {
    NewFile::beside(path).map(drop)
}

/// Writes a file that appears at its path when it is whole.
///
/// # Errors
/// The errors of [`NewFile`].
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = NewFile::beside(path)?;
    file.write_all(bytes)?;
    file.keep()
}

/// Renames a file that is whole to a path in the same file system, where only a plain file or nothing lies.
///
/// # Errors
/// The errors of [`NewFile::keep`].
pub fn replace(whole: &Path, path: &Path) -> io::Result<()> {
    check_replaceable(path)?;
    fs::rename(whole, path)
}

/// Makes a folder among the system's temporary ones, which no other user may enter; the caller removes it.
///
/// # Errors
/// The system's error.
pub fn temporary_folder(name: &str) -> io::Result<PathBuf> {
    let builder = fs::DirBuilder::new();
    #[cfg(unix)]
    let builder = {
        let mut builder = builder;
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
    };
    let place = |serial: u32| std::env::temp_dir().join(format!("{name}-{}-{serial}", std::process::id()));
    unused(place, |path| builder.create(path)).map(|(path, ())| path)
}

/// Makes something at the first of some paths where nothing is.
fn unused<T>(
    place: impl Fn(u32) -> PathBuf,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    loop {
        let path = place(SERIAL.fetch_add(1, Ordering::Relaxed));
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|made| (path, made)),
        }
    }
}

/// A new file in the folder of a path, where [`NewFile::keep`] puts it. Dropped before, it is removed.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    aside: PathBuf,
    path: PathBuf,
    is_kept: bool,
}

impl NewFile {
    /// Makes an empty file beside a path, of a name that nothing has.
    ///
    /// # Errors
    /// - The system's error.
    /// - [`io::ErrorKind::InvalidInput`] if something lies at the path that is no plain file; the text says
    ///   what it is.
    pub fn beside(path: &Path) -> io::Result<Self> {
        Self::opened(OpenOptions::new(), path)
    }

    /// Makes one with what `options` say of the rights to a new file.
    ///
    /// # Errors
    /// The errors of [`NewFile::beside`].
    pub fn opened(mut options: OpenOptions, path: &Path) -> io::Result<Self> {
        check_replaceable(path)?;
        options.write(true).create_new(true);
        let place = |serial: u32| path.with_file_name(format!(".gumball-{}-{serial}", std::process::id()));
        let (aside, file) = unused(place, |aside| options.open(aside))?;
        Ok(Self { file, aside, path: path.to_owned(), is_kept: false })
    }

    /// Renames it to its path.
    ///
    /// # Errors
    /// The errors of [`NewFile::beside`]. The file is removed then.
    pub fn keep(mut self) -> io::Result<()> {
        replace(&self.aside, &self.path)?;
        self.is_kept = true;
        Ok(())
    }

    /// Waits until the disk has what was written.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // What cannot be removed does no harm.
            let _ = fs::remove_file(&self.aside);
        }
    }
}

/// Checks that a path names a plain file, or nothing that a file could not be.
fn check_replaceable(path: &Path) -> io::Result<()> {
    let is_folder = path.as_os_str().as_encoded_bytes().ends_with(std::path::MAIN_SEPARATOR_STR.as_bytes());
    if is_folder || path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no name of a file"));
    }
    match fs::symlink_metadata(path) {
        Ok(found) => check_plain(found.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn check_plain(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}, not a file", name(found))))
}

fn name(found: FileType) -> &'static str {
    if found.is_dir() {
        return "a folder";
    }
    if found.is_symlink() {
        return "a link";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a pipe";
        }
        if found.is_socket() {
            return "a socket";
        }
    }
    "a device"
}
