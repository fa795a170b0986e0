//! Waiting until one of several connections can be read or written.

use std::io;
use std::time::Duration;

use super::address::{Listener, Stream};

/// An event on a connection.
#[derive(Debug)]
#[cfg_attr(not(unix), expect(dead_code, reason = "only Unix looks at the connections"))]
pub(super) enum Wanted<'a> {
    Connection(&'a Listener),
    Bytes(&'a Stream),
    Room(&'a Stream),
    BytesOrRoom(&'a Stream),
}

/// Waits until something wanted is there, or the time is over. It may end earlier.
#[cfg(unix)]
pub(super) fn wait(wanted: &[Wanted<'_>], longest: Duration) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn poll_of<'w>(wanted: &Wanted<'w>) -> PollFd<'w> {
        match wanted {
            Wanted::Connection(listener) => PollFd::new(*listener, PollFlags::IN),
            Wanted::Bytes(stream) => PollFd::new(*stream, PollFlags::IN),
            Wanted::Room(stream) => PollFd::new(*stream, PollFlags::OUT),
            Wanted::BytesOrRoom(stream) => PollFd::new(*stream, PollFlags::IN | PollFlags::OUT),
        }
    }

    let mut polled: Vec<PollFd<'_>> = wanted.iter().map(poll_of).collect();
    let longest = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    match poll(&mut polled, Some(&longest)) {
        // A signal: the caller asks the program whether it wants to wait on.
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Waits a moment.
#[cfg(not(unix))]
pub(super) fn wait(_wanted: &[Wanted<'_>], longest: Duration) -> io::Result<()> {
    std::thread::sleep(longest.min(Duration::from_millis(1)));
    Ok(())
}
