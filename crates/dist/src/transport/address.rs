//! Addresses: where a rank that is a process listens.

use std::fmt;
use std::path::PathBuf;

use gumball_spec::{Error, Result};

/// Where a rank listens for those above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket, by its path. Only the user of the rank that listens can connect to it.
    Unix(PathBuf),
}

impl Address {
    /// Reads an address: `unix:PATH`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            _ => Err(Error::out_of_range("address", text, "unix:PATH")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Unix(path) = self;
        write!(f, "unix:{}", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        assert_eq!(Address::parse("unix:/tmp/a b").unwrap().to_string(), "unix:/tmp/a b");
        for text in ["", "unix:", "host:80", "tcp:host:80"] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error.to_string(), format!("address is {text}, but must be unix:PATH"));
        }
    }
}
