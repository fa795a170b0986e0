//! Waiting until one of several connections can be read or written.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::unix::{Listener, Stream};

/// An event on a connection.
#[derive(Debug)]
pub(super) enum Wanted<'a> {
    Connection(&'a Listener),
    Bytes(&'a Stream),
    Room(&'a Stream),
    BytesOrRoom(&'a Stream),
}

/// Waits until something wanted is there, or the time is over. It may end earlier.
pub(super) fn wait(wanted: &[Wanted<'_>], longest: Duration) -> io::Result<()> {
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
