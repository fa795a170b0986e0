//! Addresses: where a rank that is a process listens.

use std::fmt;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use gumball_spec::{Error, Result};

#[cfg(unix)]
use super::unix;

/// Where a rank listens for those above it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket, by its path. Only the user of the rank that listens can connect to it.
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

/// The longest wait for a host that does not answer. Meanwhile this rank greets no other.
const CONNECT_TIME: Duration = Duration::from_secs(1);

/// A connection to a rank. Reads and writes do not wait.
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
    /// Connects to an address. It is an error if no process listens there yet.
    pub(super) fn connect(address: &Address, left: Duration) -> io::Result<Self> {
        match address {
            #[cfg(unix)]
            Address::Unix(path) => Ok(Self::Unix(unix::connect(path)?)),
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            Address::Tcp(place) => {
                let mut last = io::Error::from(io::ErrorKind::NotFound);
                for address in place.to_socket_addrs()? {
                    let longest = left.clamp(Duration::from_millis(1), CONNECT_TIME);
                    match TcpStream::connect_timeout(&address, longest) {
                        Ok(stream) => return Self::of_tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Writes bytes that lie in two places, as many as there is room for. That the peer has gone is an error, and never a signal.
    #[cfg(unix)]
    pub(super) fn send(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

        #[cfg(not(target_vendor = "apple"))]
        let flags = SendFlags::NOSIGNAL;
        #[cfg(target_vendor = "apple")]
        let flags = SendFlags::empty();
        let parts = parts.map(io::IoSlice::new);
        Ok(sendmsg(&*self, &parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Writes bytes that lie in two places, as many as there is room for.
    #[cfg(not(unix))]
    pub(super) fn send(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        let part = if parts[0].is_empty() { parts[1] } else { parts[0] };
        either!(self, |stream| io::Write::write(stream, part))
    }

    /// Returns whether bytes have come, or the connection has ended.
    #[cfg(unix)]
    pub(super) fn has_something(&self) -> bool {
        use rustix::io::Errno;
        use rustix::net::{RecvFlags, recv};

        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        !matches!(recv(self, &mut [0u8; 1], flags), Err(Errno::AGAIN | Errno::INTR))
    }

    /// Returns whether bytes have come, or the connection has ended.
    #[cfg(not(unix))]
    pub(super) fn has_something(&self) -> bool {
        let Stream::Tcp(stream) = self;
        !stream.peek(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self::Tcp(stream))
    }
}

impl io::Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        either!(self, |stream| stream.read(to))
    }
}

impl io::Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.send([from, &[]])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for Stream {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        either!(self, |stream| stream.as_fd())
    }
}

/// What listens at an address.
#[derive(Debug)]
pub(super) enum Listener {
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        /// Removes the socket in the end.
        _place: unix::Place,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Listens at an address. The socket of a process that has ended is replaced; any other file there stays, and is an error.
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            #[cfg(not(unix))]
            Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
            #[cfg(unix)]
            Address::Unix(path) => {
                unix::listen(path).map(|(listener, _place)| Self::Unix { listener, _place })
            }
            Address::Tcp(place) => {
                let listener = TcpListener::bind(place)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    /// Returns the next connection, if somebody has connected.
    pub(super) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            #[cfg(unix)]
            Self::Unix { listener, .. } => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(stream))
            }),
            Self::Tcp(listener) => listener.accept().and_then(|(stream, _)| Stream::of_tcp(stream)),
        };
        match accepted {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                // There is no connection, or its other side has closed it again.
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted => Ok(None),
                io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

#[cfg(unix)]
impl std::os::fd::AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            Self::Unix { listener, .. } => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
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
