//! Addresses: where a rank that is a process listens.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use gumball_spec::{Error, Result};

/// Where a rank listens for those above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket, by its path.
    Unix(PathBuf),
    /// A host and port. Nothing that is sent is encrypted, and no rank proves who it is: for networks that are trusted.
    Tcp(String),
}

impl Address {
    /// Reads an address: `unix:PATH` or `tcp:HOST:PORT`.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for anything else.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            Some(("tcp", place))
                if place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
            {
                Ok(Self::Tcp(place.to_owned()))
            }
            _ => Err(Error::out_of_range("address", text, "unix:PATH or tcp:HOST:PORT")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(place) => write!(f, "tcp:{place}"),
        }
    }
}

/// A connection to a rank.
#[derive(Debug)]
pub(super) enum Stream {
    #[cfg(unix)]
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Does the same with either kind of stream.
macro_rules! either {
    ($stream:expr, |$inner:ident| $body:expr) => {
        match $stream {
            #[cfg(unix)]
            Stream::Unix($inner) => $body,
            Stream::Tcp($inner) => $body,
        }
    };
}

impl Stream {
    /// Connects to an address, which somebody may not listen at yet.
    pub(super) fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        match address {
            #[cfg(unix)]
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path)?)),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            Address::Tcp(place) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in place.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, timeout) {
                        Ok(stream) => {
                            stream.set_nodelay(true)?;
                            return Ok(Self::Tcp(stream));
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    pub(super) fn set_timeouts(&self, read: Option<Duration>, write: Option<Duration>) -> io::Result<()> {
        either!(self, |stream| {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(read)?;
            stream.set_write_timeout(write)
        })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            #[cfg(unix)]
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// Ends the connection for both sides, so that the thread that reads from it ends.
    pub(super) fn shut_down(&self) {
        // It may have ended already.
        let _ = either!(self, |stream| stream.shutdown(std::net::Shutdown::Both));
    }
}

impl io::Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        either!(self, |stream| stream.read(to))
    }
}

impl io::Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        either!(self, |stream| stream.write(from))
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, |stream| stream.flush())
    }
}

/// What listens at an address.
#[derive(Debug)]
pub(super) enum Listener {
    #[cfg(unix)]
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at an address. A socket that a process left behind is replaced.
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        let listener = match address {
            #[cfg(not(unix))]
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
            #[cfg(unix)]
            Address::Unix(path) => {
                if UnixStream::connect(path).is_err() {
                    // Nobody listens there: what lies there, if anything, is of a process that ended.
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Self::Unix(listener, path.clone())
            }
            Address::Tcp(place) => {
                let listener = TcpListener::bind(place)?;
                listener.set_nonblocking(true)?;
                Self::Tcp(listener)
            }
        };
        Ok(listener)
    }

    /// Returns the next connection, if somebody has connected.
    pub(super) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            #[cfg(unix)]
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
            Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(unix)]
impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in ["unix:/tmp/a b", "tcp:localhost:80", "tcp:[::1]:8080"] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "unix:", "tcp:80", "tcp:host:port", "host:80"] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("address is {text}, but must be unix:PATH or tcp:HOST:PORT")
            );
        }
    }
}
