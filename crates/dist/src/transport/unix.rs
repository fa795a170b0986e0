//! Unix sockets at paths: made, and removed again, without a wait and without harm to what others have there;
//! and connections.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix};
use rustix::net::{SocketFlags, SocketType};

use super::Address;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 128;

/// A connection to a rank. Reads and writes do not wait.
#[derive(Debug)]
pub(super) struct Stream(UnixStream);

impl Stream {
    /// Connects to an address, or fails at once if no process listens there or the queue of the one that
    /// listens is full.
    pub fn connect(address: &Address) -> io::Result<Self> {
        let Address::Unix(path) = address;
        connect(path).map(Self)
    }

    /// Writes bytes that lie in two places, as many as there is room for. That the peer has gone is an error,
    /// and never a signal.
    pub fn send(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        #[cfg(not(target_vendor = "apple"))]
        let flags = SendFlags::NOSIGNAL;
        #[cfg(target_vendor = "apple")]
        let flags = SendFlags::empty();
        let parts = parts.map(io::IoSlice::new);
        Ok(net::sendmsg(&self.0, &parts, &mut SendAncillaryBuffer::default(), flags)?)
    }

    /// Reads bytes that have come, and leaves them there; none have come if the connection has ended.
    pub fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
        let (come, _) = net::recv(&self.0, to, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
        Ok(come)
    }

    /// Ends this side's sending; the bytes that the other side has sent can still be read.
    pub fn end(&self) {
        // The other side may have gone.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

impl io::Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
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

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What listens at an address, for processes of the same user.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    /// Removes the socket in the end.
    _place: Place,
}

impl Listener {
    /// Listens at an address. The socket of a process that has ended is replaced; any other file there stays,
    /// and is an error.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let Address::Unix(path) = address;
        listen(path).map(|(listener, _place)| Self { listener, _place })
    }

    /// Returns the next connection, if somebody has connected.
    pub fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = self.listener.accept().and_then(|(stream, _)| {
            stream.set_nonblocking(true)?;
            Ok(Stream(stream))
        });
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

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// A socket that was made at a path, and is removed from there in the end.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// The numbers of the device and of the socket on it, by which it is told from what others put there
    /// later.
    made: Option<(u64, u64)>,
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::from(socket()?);
    stream.set_nonblocking(true)?;
    net::connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

fn listen(path: &Path) -> io::Result<(UnixListener, Place)> {
    let (socket, address) = (socket()?, SocketAddrUnix::new(path)?);
    match net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_left(path)?;
            net::bind(&socket, &address)?;
        }
        bound => bound?,
    }
    let place = Place { path: path.to_owned(), made: numbers(path) };
    // Before `listen`, as no process can connect until then.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    net::listen(&socket, BACKLOG)?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok((listener, place))
}

fn socket() -> io::Result<OwnedFd> {
    #[cfg(not(target_vendor = "apple"))]
    let flags = SocketFlags::CLOEXEC;
    #[cfg(target_vendor = "apple")]
    let flags = SocketFlags::empty();
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a socket at which no process listens any more, as one that ended has left it.
fn remove_left(path: &Path) -> io::Result<()> {
    let taken = |what: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        return taken("there is a file that is no socket");
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => taken("another process has its socket there"),
    }
}

fn numbers(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|there| (there.dev(), there.ino()))
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made.is_some() && numbers(&self.path) == self.made {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// Makes a folder of its own, whose name is short enough for a socket.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gumball-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn what_is_no_socket_of_a_process_that_ended_stays_where_it_is() {
        let folder = folder("stays");
        let (file, link, dangling) = (folder.join("file"), folder.join("link"), folder.join("dangling"));
        fs::write(&file, "weights").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink(folder.join("nothing"), &dangling).unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        for path in [&file, &link, &dangling, &folder.join("folder")] {
            let error = listen(path).unwrap_err();
            assert_eq!(error.to_string(), "there is a file that is no socket", "{}", path.display());
            fs::symlink_metadata(path).unwrap();
        }
        assert_eq!(fs::read_to_string(&link).unwrap(), "weights");

        let (datagram, living) = (folder.join("datagram"), folder.join("living"));
        let _datagram = UnixDatagram::bind(&datagram).unwrap();
        let _living = UnixListener::bind(&living).unwrap();
        for path in [&datagram, &living] {
            let error = listen(path).unwrap_err();
            assert_eq!(error.to_string(), "another process has its socket there", "{}", path.display());
            fs::symlink_metadata(path).unwrap();
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_the_own_one_goes_in_the_end() {
        let folder = folder("left");
        let path = folder.join("socket");
        drop(UnixListener::bind(&path).unwrap());
        let (listener, place) = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        connect(&path).unwrap();
        drop((listener, place));
        assert!(!path.exists());

        // What others have put there meanwhile stays.
        let (_listener, place) = listen(&path).unwrap();
        fs::rename(&path, folder.join("moved")).unwrap();
        fs::write(&path, "theirs").unwrap();
        drop(place);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::remove_dir_all(folder).unwrap();
    }
}
