//! Ranks that are processes: a connection between each two of them.
//!
//! Of each peer a thread reads, so that what a peer sends is always taken and two ranks that send each other long messages do
//! not wait for each other. A message is its length, 8 bytes, then its bytes.

use std::io::{self, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::address::{Listener, Stream};
use super::{Address, MOST_BYTES, Transport};
use crate::error::{Error, Result};

/// What a connection begins with: a name for what is spoken here, and its version.
const GREETING: [u8; 8] = *b"gumball1";

/// How often a rank that does not listen yet is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// How long somebody who connects may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(2);

/// Messages of a peer that may wait to be taken. Ranks are at most a turn apart.
const WAITING: usize = 4;

/// One rank among processes.
#[derive(Debug)]
pub struct Sockets {
    rank: usize,
    timeout: Duration,
    name: &'static str,
    /// The peers by rank; `None` in this rank's place.
    peers: Vec<Option<Peer>>,
}

#[derive(Debug)]
struct Peer {
    stream: Stream,
    messages: Receiver<io::Result<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Sockets {
    /// Connects a rank with all others, whose addresses stand in `addresses` by rank. Each listens at its own address for the ranks
    /// above it, and connects to those below, which may start later.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if there is no such rank.
    /// - [`Error::Unavailable`] if the rank cannot listen at its address.
    /// - [`Error::TimedOut`] or [`Error::Lost`] if another is not there within the timeout.
    pub fn connect(rank: usize, addresses: &[Address], timeout: Duration) -> Result<Self> {
        let world = addresses.len();
        if rank >= world {
            return Err(gumball_spec::Error::out_of_range("rank", rank, format!("in 0..{world}")).into());
        }
        let since = Instant::now();
        let unavailable = |error: io::Error| Error::Unavailable {
            what: format!("place to listen at {}", addresses[rank]),
            reason: error.to_string(),
        };
        let listener = Listener::bind(&addresses[rank]).map_err(unavailable)?;
        let mut streams: Vec<Option<Stream>> = (0..world).map(|_| None).collect();
        for (peer, address) in addresses.iter().enumerate().take(rank) {
            streams[peer] = Some(call(rank, world, peer, address, since, timeout)?);
        }
        while let Some(missing) = (rank + 1..world).find(|peer| streams[*peer].is_none()) {
            match listener.accept().map_err(unavailable)? {
                Some(stream) => {
                    if let Some((peer, stream)) = answer(rank, world, stream)? {
                        streams[peer].get_or_insert(stream);
                    }
                }
                None if since.elapsed() > timeout => {
                    return Err(Error::TimedOut { rank: missing, waited: timeout });
                }
                None => std::thread::sleep(AGAIN),
            }
        }
        let peers = streams.into_iter().enumerate().map(|(peer, stream)| {
            let lost = |error: io::Error| Error::Lost { rank: peer, reason: error.to_string() };
            stream.map(|stream| Peer::new(stream, timeout).map_err(lost)).transpose()
        });
        let is_unix = addresses.iter().all(|address| matches!(address, Address::Unix(_)));
        let name = if is_unix { "unix" } else { "tcp" };
        Ok(Self { rank, timeout, name, peers: peers.collect::<Result<_>>()? })
    }

    /// Takes the next message of a rank.
    fn receive(&mut self, from: usize, since: Instant) -> Result<Vec<u8>> {
        let peer = self.peers[from].as_ref().expect("another rank");
        let left = self.timeout.saturating_sub(since.elapsed());
        let lost = |reason: String| Error::Lost { rank: from, reason };
        match peer.messages.recv_timeout(left) {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Error::Corrupt { rank: from, what: error.to_string() })
            }
            Ok(Err(error)) => Err(lost(error.to_string())),
            Err(RecvTimeoutError::Timeout) => Err(Error::TimedOut { rank: from, waited: self.timeout }),
            Err(RecvTimeoutError::Disconnected) => Err(lost("its connection ended".to_owned())),
        }
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
        self.name
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>]) -> Result<()> {
        let world = self.world();
        // Each begins with the rank behind it, so that not all send to the same one first.
        for to in (1..world).map(|step| (self.rank + step) % world) {
            let peer = self.peers[to].as_mut().expect("another rank");
            peer.send(send[to]).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    Error::TimedOut { rank: to, waited: self.timeout }
                }
                _ => Error::Lost { rank: to, reason: error.to_string() },
            })?;
        }
        let since = Instant::now();
        for (from, to) in receive.iter_mut().enumerate() {
            if from == self.rank {
                to.clear();
                to.extend_from_slice(send[from]);
            } else {
                *to = self.receive(from, since)?;
            }
        }
        Ok(())
    }
}

impl Peer {
    fn new(stream: Stream, timeout: Duration) -> io::Result<Self> {
        // A read waits for as long as the rank lives, a write for the timeout: the peer's thread takes what is written.
        stream.set_timeouts(None, Some(timeout))?;
        let (sender, messages) = sync_channel(WAITING);
        let from = stream.try_clone()?;
        let reader =
            std::thread::Builder::new().name("gumball-peer".to_owned()).spawn(|| read(from, sender))?;
        Ok(Self { stream, messages, reader: Some(reader) })
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(&(message.len() as u64).to_le_bytes())?;
        self.stream.write_all(message)?;
        self.stream.flush()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.stream.shut_down();
        // The reader may hold a message that nobody takes any more.
        let (_, nothing) = sync_channel(1);
        drop(std::mem::replace(&mut self.messages, nothing));
        if let Some(reader) = self.reader.take() {
            // It has nothing to say.
            let _ = reader.join();
        }
    }
}

/// Reads messages until the connection ends, which is the last.
fn read(mut from: Stream, to: SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let message = read_one(&mut from);
        let is_last = message.is_err();
        if to.send(message).is_err() || is_last {
            return;
        }
    }
}

fn read_one(from: &mut Stream) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_BYTES as u64 {
        let said = format!("a message of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, said));
    }
    // Memory is taken as bytes come, not as a corrupt length says.
    let mut message = Vec::new();
    from.take(length).read_to_end(&mut message)?;
    if (message.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(message)
}

/// Connects to a rank below this one.
fn call(
    rank: usize,
    world: usize,
    peer: usize,
    address: &Address,
    since: Instant,
    timeout: Duration,
) -> Result<Stream> {
    loop {
        let left = timeout.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(Error::TimedOut { rank: peer, waited: timeout });
        }
        let greeted = Stream::connect(address, left).and_then(|mut stream| {
            stream.set_timeouts(Some(left), Some(left))?;
            stream.write_all(&greeting(rank, world))?;
            let mut theirs = [0; 16];
            stream.read_exact(&mut theirs)?;
            Ok((stream, theirs))
        });
        match greeted {
            Ok((stream, theirs)) if theirs == greeting(peer, world) => return Ok(stream),
            Ok((_, theirs)) => {
                return Err(Error::disagree(peer, "the greeting", hex(&greeting(peer, world)), hex(&theirs)));
            }
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

/// Answers a rank above this one. Who does not greet as a rank does is no rank and is left alone.
fn answer(rank: usize, world: usize, mut stream: Stream) -> Result<Option<(usize, Stream)>> {
    let greeted = stream.set_timeouts(Some(GREETING_TIME), Some(GREETING_TIME)).and_then(|()| {
        let mut theirs = [0; 16];
        stream.read_exact(&mut theirs)?;
        // Whatever it says, it is told who is here.
        stream.write_all(&greeting(rank, world))?;
        Ok(theirs)
    });
    let Ok(theirs) = greeted else { return Ok(None) };
    if theirs[..8] != GREETING {
        return Ok(None);
    }
    let number = |at: usize| u32::from_le_bytes([theirs[at], theirs[at + 1], theirs[at + 2], theirs[at + 3]]);
    let (peer, theirs) = (number(8) as usize, number(12));
    if theirs as usize != world {
        return Err(Error::disagree(peer, "world", world, theirs));
    }
    Ok((rank + 1..world).contains(&peer).then_some((peer, stream)))
}

fn greeting(rank: usize, world: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&GREETING);
    bytes[8..12].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&(world as u32).to_le_bytes());
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(all(test, unix))]
mod tests {
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
        let tcp: Vec<Address> = (0..2).map(|_| free_port()).collect();
        for addresses in [unix(3, "long"), tcp] {
            let world = addresses.len();
            on_each_rank(&addresses, 20_000, |mut transport| {
                let own = transport.rank();
                for turn in 0..3 {
                    let message = vec![(own + turn) as u8; 3_000_000 * turn + 1];
                    let mut receive = vec![Vec::new(); world];
                    transport.all_gather(&message, &mut receive).unwrap();
                    for (from, message) in receive.iter().enumerate() {
                        assert_eq!(message.len(), 3_000_000 * turn + 1);
                        assert!(message.iter().all(|byte| *byte == (from + turn) as u8));
                    }
                }
            });
        }
    }

    /// Returns an address of this machine that was free just now.
    fn free_port() -> Address {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Address::Tcp(format!("127.0.0.1:{port}"))
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
        assert!(matches!(errors[1], Some(Error::Lost { rank: 0, .. })), "{errors:?}");
        assert!(matches!(errors[2], Some(Error::Lost { rank: 0 | 1, .. })), "{errors:?}");

        let since = Instant::now();
        let errors = on_each_rank(&unix(2, "late"), 200, |mut transport| {
            let error = (transport.rank() == 0).then(|| transport.barrier().unwrap_err());
            if transport.rank() == 1 {
                std::thread::sleep(Duration::from_millis(500));
            }
            error
        });
        assert_eq!(errors[0], Some(Error::TimedOut { rank: 1, waited: Duration::from_millis(200) }));
        assert!(since.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_rank_that_never_comes_is_named() {
        let addresses = unix(2, "never");
        let error = Sockets::connect(0, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, Error::TimedOut { rank: 1, waited: Duration::from_millis(50) });
        let error = Sockets::connect(1, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error, Error::TimedOut { rank: 0, waited: Duration::from_millis(50) });
        let error = Sockets::connect(2, &addresses, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.to_string(), "rank is 2, but must be in 0..2");
    }

    #[test]
    fn who_does_not_greet_as_a_rank_is_left_alone() {
        let addresses = unix(2, "stranger");
        let Address::Unix(path) = &addresses[0] else { unreachable!() };
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
