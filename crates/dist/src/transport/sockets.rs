//! Ranks that are processes of one host: a connection between each two of them.
//!
//! A message is its length, 8 bytes, then its bytes. In an exchange a rank writes to all peers and reads from
//! all, whichever is ready, so two ranks that send each other long messages do not wait for each other.

use std::io::{self, ErrorKind, Read};

use super::joining::join;
use super::patience::{LOOK, Patience};
use super::ready::{Wanted, wait};
use super::unix::Stream;
use super::{Address, Bounds, Duration, Transport, left, too_long};
use crate::digest::HEADER_BYTES;
use gumball_spec::{Error, RanksError, Result};

/// One rank among processes of one host.
#[derive(Debug)]
pub struct Sockets {
    rank: usize,
    patience: Patience,
    /// The peers by rank; `None` in this rank's place.
    peers: Vec<Option<Stream>>,
}

impl Sockets {
    /// Connects a rank with all others, whose addresses stand in `addresses` by rank. Each listens at its own
    /// address for the ranks above it, and connects to those below, which may start later. All of this takes
    /// no longer than the timeout.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such rank.
    /// - [`RanksError::Unavailable`] if the rank cannot listen at its address: something lies there that is
    ///   no socket of a process that ended, say.
    /// - [`RanksError::Late`] or [`RanksError::Lost`] if another is not there within the timeout,
    ///   [`RanksError::Disagree`] if one of another world is.
    /// - [`RanksError::Interrupted`] if the program wants to wait no longer.
    pub fn connect(rank: usize, addresses: &[Address], patience: impl Into<Patience>) -> Result<Self> {
        let (world, patience) = (addresses.len(), patience.into());
        if rank >= world {
            return Err(Error::out_of_range("rank", rank, format!("in 0..{world}")));
        }
        let peers = join(rank, addresses, &patience)?;
        Ok(Self { rank, patience, peers })
    }
}

impl Transport for Sockets {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    fn name(&self) -> &'static str {
        "unix"
    }

    fn timeout(&self) -> Duration {
        self.patience.timeout()
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>], bounds: Bounds<'_>) -> Result<()> {
        let (own, world) = (self.rank, self.world());
        receive.iter_mut().for_each(Vec::clear);
        receive[own].extend_from_slice(send[own]);
        let mut transfers: Vec<Transfer> = send.iter().map(|message| Transfer::new(message.len())).collect();
        let mut waiting = self.patience.begin();
        loop {
            let mut has_moved = false;
            // Each rank begins with the next one, so that not all send to the same one first.
            for peer in (1..world).map(|step| (own + step) % world) {
                let (stream, transfer) =
                    (self.peers[peer].as_mut().expect("another rank"), &mut transfers[peer]);
                has_moved |= transfer.receive(peer, stream, &mut receive[peer], bounds.most_bytes[peer])?;
                if let Err(error) = transfer.send(stream, send[peer], &mut has_moved) {
                    // It may have said why before it went.
                    transfer.receive(peer, stream, &mut receive[peer], bounds.most_bytes[peer])?;
                    return Err(lost(peer, &error));
                }
            }
            let is_late = |peer: &usize| *peer != own && !transfers[*peer].is_done();
            let Some(late) = (0..world).find(is_late) else { return Ok(()) };
            let left = waiting.left(bounds.patience);
            if left.is_zero() {
                return Err(RanksError::Late { rank: late, waited: self.patience.timeout() }.into());
            }
            waiting.look()?;
            if !has_moved {
                let streams =
                    self.peers.iter().zip(&transfers).filter_map(|(stream, it)| Some((stream.as_ref()?, it)));
                let wanted: Vec<Wanted<'_>> = streams.filter_map(|(stream, it)| it.wanted(stream)).collect();
                wait(&wanted, left.min(LOOK)).map_err(|error| lost(late, &error))?;
            }
        }
    }

    fn watch(&mut self, is_due: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        let has_gone = |stream: &Stream| {
            let mut bytes = [0; size_of::<u64>() + HEADER_BYTES];
            match stream.peek(&mut bytes) {
                Ok(0) => true,
                Ok(come) => !is_due(bytes[..come].get(size_of::<u64>()..).unwrap_or(&[])),
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        };
        match self.peers.iter().position(|peer| peer.as_ref().is_some_and(has_gone)) {
            None => Ok(()),
            Some(rank) => Err(left(rank)),
        }
    }

    fn ask(&mut self) -> Result<()> {
        self.patience.ask()
    }

    fn leave(&mut self) -> Option<bool> {
        let has_left = |stream: &mut Stream| {
            stream.end();
            // The bytes that it still sent are not read; after them its side of the connection ends.
            match io::copy(stream, &mut io::sink()) {
                Ok(_) => true,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            }
        };
        // All are told, even if the first of them fails.
        Some(self.peers.iter_mut().flatten().map(has_left).fold(true, |all, left| all & left))
    }
}

/// Returns the error of a connection that broke.
fn lost(rank: usize, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "its connection ended".to_owned()
        }
        _ => error.to_string(),
    };
    RanksError::Lost { rank, reason }.into()
}

/// A message to a peer and one from it, under way.
#[derive(Debug)]
struct Transfer {
    /// The length of the message that is sent.
    length: [u8; 8],
    sent: usize,
    /// All bytes that are sent.
    to_send: usize,
    /// The length of the message that is received, and how many bytes of that are there.
    their_length: [u8; 8],
    length_read: usize,
    is_received: bool,
}

impl Transfer {
    fn new(length: usize) -> Self {
        let to_send = length + size_of::<u64>();
        let length = (length as u64).to_le_bytes();
        Self { length, sent: 0, to_send, their_length: [0; 8], length_read: 0, is_received: false }
    }

    fn is_done(&self) -> bool {
        self.is_received && self.sent == self.to_send
    }

    fn wanted<'s>(&self, stream: &'s Stream) -> Option<Wanted<'s>> {
        match (self.is_received, self.sent == self.to_send) {
            (false, false) => Some(Wanted::BytesOrRoom(stream)),
            (false, true) => Some(Wanted::Bytes(stream)),
            (true, false) => Some(Wanted::Room(stream)),
            (true, true) => None,
        }
    }

    /// Writes as much as there is room for.
    fn send(&mut self, stream: &mut Stream, message: &[u8], has_moved: &mut bool) -> io::Result<()> {
        while self.sent < self.to_send {
            let rest = match self.sent.checked_sub(self.length.len()) {
                None => [&self.length[self.sent..], message],
                Some(sent) => [&message[sent..], &[]],
            };
            match stream.send(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.sent += count;
                    *has_moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what has come of a message of at most `most` bytes; returns whether anything has. Of one that is
    /// longer the first bytes are read, and then it is an error.
    fn receive(&mut self, rank: usize, stream: &mut Stream, to: &mut Vec<u8>, most: usize) -> Result<bool> {
        let before = self.length_read + to.len();
        while !self.is_received {
            let read = if self.length_read < self.their_length.len() {
                stream
                    .read(&mut self.their_length[self.length_read..])
                    .inspect(|count| self.length_read += count)
            } else {
                let length = u64::from_le_bytes(self.their_length);
                let wanted = usize::try_from(length).map_or(most, |length| length.min(most));
                if to.capacity() < wanted && to.try_reserve_exact(wanted).is_err() {
                    let reason = format!("a message of {length} bytes does not fit");
                    return Err(Error::Unavailable { resource: "memory for an exchange", reason });
                }
                let left = (wanted - to.len()) as u64;
                // Bytes that have arrived are in `to` even if it returns an error.
                let read = if left == 0 { Ok(0) } else { Read::by_ref(stream).take(left).read_to_end(to) };
                if to.len() == wanted {
                    self.is_received = true;
                    return if length > wanted as u64 { Err(too_long(rank, length, most)) } else { Ok(true) };
                }
                read
            };
            match read {
                Ok(0) => return Err(lost(rank, &io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(rank, &error)),
            }
        }
        Ok(self.length_read + to.len() > before)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use super::super::joining::AGAIN;
    use super::*;

    fn on_each_rank<T: Send>(
        addresses: &[Address],
        timeout: u64,
        work: impl Fn(Sockets) -> T + Sync,
    ) -> Vec<T> {
        let (work, timeout) = (&work, Duration::from_millis(timeout));
        std::thread::scope(|scope| {
            let ranks = (0..addresses.len())
                .map(|rank| scope.spawn(move || work(Sockets::connect(rank, addresses, timeout).unwrap())));
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn unix(world: usize, name: &str) -> Vec<Address> {
        let folder = std::env::temp_dir();
        let path = |rank| folder.join(format!("gumball-{}-{name}-{rank}", std::process::id()));
        (0..world).map(|rank| Address::Unix(path(rank))).collect()
    }

    #[test]
    fn long_messages_pass_each_other() {
        let world = 3;
        on_each_rank(&unix(world, "long"), 20_000, |mut transport| {
            let own = transport.rank();
            for turn in 0..3 {
                let message = vec![(own + turn) as u8; 3_000_000 * turn + 1];
                let mut receive = vec![Vec::new(); world];
                let bounds =
                    Bounds { patience: transport.timeout(), most_bytes: &vec![message.len(); world] };
                transport.all_to_all(&vec![&message[..]; world], &mut receive, bounds).unwrap();
                for (from, message) in receive.iter().enumerate() {
                    assert_eq!(message.len(), 3_000_000 * turn + 1);
                    assert!(message.iter().all(|byte| *byte == (from + turn) as u8));
                }
            }
        });
    }

    #[test]
    fn a_rank_that_ends_is_lost_and_one_that_is_late_is_waited_for_no_longer_than_said() {
        let errors = on_each_rank(&unix(3, "ends"), 600, |mut transport| match transport.rank() {
            0 => None,
            1 => transport.barrier().err(),
            _ => {
                std::thread::sleep(Duration::from_millis(100));
                transport.barrier().err()
            }
        });
        let told = |rank: usize| errors[rank].as_ref().and_then(Error::of_ranks);
        assert!(matches!(told(1), Some(RanksError::Lost { rank: 0, .. })), "{errors:?}");
        assert!(matches!(told(2), Some(RanksError::Lost { rank: 0 | 1, .. })), "{errors:?}");

        let since = Instant::now();
        let errors = on_each_rank(&unix(2, "late"), 200, |mut transport| {
            let error = (transport.rank() == 0).then(|| transport.barrier().unwrap_err());
            if transport.rank() == 1 {
                std::thread::sleep(Duration::from_millis(500));
            }
            error
        });
        assert_eq!(errors[0], Some(RanksError::Late { rank: 1, waited: Duration::from_millis(200) }.into()));
        assert!(since.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_rank_that_ends_or_goes_on_without_this_one_is_seen_without_a_wait() {
        for ends in [true, false] {
            let here = std::sync::Barrier::new(2);
            on_each_rank(&unix(2, "watched"), 20_000, |mut transport| {
                if transport.rank() == 0 {
                    assert_eq!(transport.watch(&|_| false), Ok(()));
                    here.wait();
                    let since = Instant::now();
                    while transport.watch(&|_| false).is_ok() && since.elapsed() < Duration::from_secs(20) {
                        std::thread::sleep(AGAIN);
                    }
                    let error = transport.watch(&|_| false).unwrap_err();
                    assert!(matches!(error.of_ranks(), Some(RanksError::Lost { rank: 1, .. })));
                } else {
                    here.wait();
                }
                if !ends {
                    transport.barrier().unwrap();
                }
            });
        }
    }

    #[test]
    fn a_rank_that_never_comes_is_named() {
        let addresses = unix(2, "never");
        let error = Sockets::connect(0, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, RanksError::Late { rank: 1, waited: Duration::from_millis(50) }.into());
        let error = Sockets::connect(1, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, RanksError::Late { rank: 0, waited: Duration::from_millis(50) }.into());
        let error = Sockets::connect(2, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "rank is 2, but must be in 0..2");
    }

    #[test]
    fn who_does_not_greet_as_a_rank_is_left_alone() {
        let addresses = unix(2, "stranger");
        let Address::Unix(path) = &addresses[0];
        std::thread::scope(|scope| {
            let first = scope.spawn(|| Sockets::connect(0, &addresses, Duration::from_secs(20)));
            let mut stranger = loop {
                match std::os::unix::net::UnixStream::connect(path) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::sleep(AGAIN),
                }
            };
            stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let second = scope.spawn(|| Sockets::connect(1, &addresses, Duration::from_secs(20)));
            let (mut first, mut second) = (first.join().unwrap().unwrap(), second.join().unwrap().unwrap());
            let first = scope.spawn(move || first.barrier());
            second.barrier().unwrap();
            first.join().unwrap().unwrap();
        });
    }
}
