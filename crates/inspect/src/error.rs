//! The errors of commands: one line that names the mistake and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// A result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A reason to end without success.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter outside its range, or two that exclude each other.
    #[error(transparent)]
    Spec(#[from] gumball_spec::Error),
    /// A model that could not be had, loaded or run.
    #[error(transparent)]
    Model(Box<dyn std::error::Error + Send + Sync>),
    /// A flag or a combination of flags that cannot be meant.
    #[error("{0}")]
    Usage(String),
    /// A file that cannot be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The mistake and the remedy.
        reason: String,
    },
    /// Output that could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
    /// Someone pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// A check that ran and did not hold.
    #[error("{0}")]
    Verdict(String),
}

impl Error {
    /// Makes an [`Error::File`].
    pub fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { path: path.to_owned(), reason: reason.into() }
    }

    /// Makes an [`Error::File`] of a failed read or write.
    pub fn io(path: &Path, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "no such file; check the path".to_owned(),
            _ => error.to_string(),
        };
        Self::file(path, reason)
    }

    /// Returns the exit code of the command: 1 for a verdict, 2 for a mistake, 130 after Ctrl-C.
    ///
    /// A reader that went away (`gumball ... | head`) is no mistake.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Verdict(_) => 1,
            Error::Interrupted => 130,
            Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
            _ => 2,
        }
    }
}
