//! Files mapped into memory, to be read: pages come from the disk when they are first touched, and all
//! processes that map a file share them.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use memmap2::Mmap;

use crate::files::{Links, open_plain};

/// A file's bytes, mapped.
///
/// While it is mapped no process may write the file or cut it off: a read then returns neither the old nor
/// the new bytes, and a read after the new end ends the process. To replace a file, write another and rename
/// it.
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// The errors of [`open_plain`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_plain(OpenOptions::new().read(true), path, Links::Followed)?;
        // SAFETY: the map is only read, and any bytes are a valid `[u8]`. The type's documentation forbids
        // callers to write or shorten the file while it is mapped.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(map))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.0.len())
    }
}
