//! Joining: how ranks that are processes find each other.
//!
//! A rank listens at its own address for those above it, and connects to those below, all side by side and
//! within one deadline. A rank that connects sends a greeting of 16 bytes with its number, and gets one back.
//! Connections that send other bytes, or none, delay nothing.

use std::io::{self, Read, Write};
use std::time::Instant;

use super::patience::{LOOK, Patience};
use super::ready::{Wanted, wait};
use super::unix::{Listener, Stream};
use super::{Address, Duration};
use gumball_spec::hex::hex;
use gumball_spec::{Error, RanksError, Result};

/// The first bytes of a greeting: the name of the protocol, and its version.
const GREETING: [u8; 8] = *b"gumball2";

/// How often a rank that does not listen yet is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(5);

/// How many may have connected without having said who they are; the one that came first has to go if more
/// come.
const MOST_SILENT: usize = 64;

/// A connection whose other side has not said all of its greeting yet.
#[derive(Debug)]
struct Greeted {
    stream: Stream,
    theirs: [u8; 16],
    read: usize,
}

impl Greeted {
    fn new(stream: Stream) -> Self {
        Self { stream, theirs: [0; 16], read: 0 }
    }

    /// Reads what has come; returns whether that is all.
    fn read(&mut self) -> io::Result<bool> {
        while self.read < self.theirs.len() {
            match self.stream.read(&mut self.theirs[self.read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// A group that comes together.
#[derive(Debug)]
struct Joining<'a> {
    rank: usize,
    addresses: &'a [Address],
    /// The connections to ranks that have greeted.
    streams: Vec<Option<Stream>>,
    /// Of each rank below this one the connection that was made, and what failed last.
    calls: Vec<(Option<Greeted>, Option<io::Error>)>,
    /// Who connected and has not greeted yet, the first one first.
    silent: Vec<Greeted>,
    /// A rank of another group has come by.
    stray: Option<Error>,
    tried: Option<Instant>,
}

/// Connects a rank with all others; returns the connections by rank, none in this rank's place.
pub(super) fn join(rank: usize, addresses: &[Address], patience: &Patience) -> Result<Vec<Option<Stream>>> {
    let world = addresses.len();
    let unavailable = |error: io::Error| RanksError::Unavailable {
        what: format!("place to listen at {}", addresses[rank]),
        reason: error.to_string(),
    };
    let listener = Listener::bind(&addresses[rank]).map_err(unavailable)?;
    let mut joining = Joining {
        rank,
        addresses,
        streams: (0..world).map(|_| None).collect(),
        calls: (0..rank).map(|_| (None, None)).collect(),
        silent: Vec::new(),
        stray: None,
        tried: None,
    };
    let mut waiting = patience.begin();
    loop {
        let left = waiting.left(patience.timeout());
        joining.call()?;
        // A number of connections at a time, so that a flood of them does not keep this rank from looking at
        // the clock.
        for _ in 0..MOST_SILENT {
            let Some(stream) = listener.accept().map_err(unavailable)? else { break };
            if joining.silent.len() == MOST_SILENT {
                joining.silent.remove(0);
            }
            joining.silent.push(Greeted::new(stream));
            joining.answer();
        }
        joining.answer();
        let Some(missing) = joining.missing() else { return Ok(joining.streams) };
        if left.is_zero() {
            return Err(joining.failed(missing, patience.timeout()));
        }
        waiting.look()?;
        let calls_again = joining.calls.iter().zip(&joining.streams);
        let calls_again = calls_again.filter(|((call, _), stream)| call.is_none() && stream.is_none());
        let longest = if calls_again.count() > 0 { AGAIN } else { LOOK };
        let greeted = joining.silent.iter().chain(joining.calls.iter().filter_map(|(call, _)| call.as_ref()));
        let mut wanted: Vec<Wanted<'_>> = greeted.map(|greeted| Wanted::Bytes(&greeted.stream)).collect();
        wanted.push(Wanted::Connection(&listener));
        wait(&wanted, longest.min(left)).map_err(unavailable)?;
    }
}

impl Joining<'_> {
    /// Returns the first rank that there is no connection to.
    fn missing(&self) -> Option<usize> {
        (0..self.streams.len()).find(|peer| *peer != self.rank && self.streams[*peer].is_none())
    }

    /// Connects to the ranks below that have not greeted, and reads what they say.
    fn call(&mut self) -> Result<()> {
        let is_again = self.tried.is_none_or(|tried| tried.elapsed() >= AGAIN);
        if is_again {
            self.tried = Some(Instant::now());
        }
        for peer in (0..self.rank).filter(|peer| self.streams[*peer].is_none()).collect::<Vec<_>>() {
            let (call, failed) = &mut self.calls[peer];
            if call.is_none() && is_again {
                let greeting = greeting(self.rank, self.streams.len());
                let connected = Stream::connect(&self.addresses[peer]).and_then(|mut stream| {
                    // A connection that was just made has room for it.
                    stream.write_all(&greeting)?;
                    Ok(stream)
                });
                match connected {
                    Ok(stream) => *call = Some(Greeted::new(stream)),
                    Err(error) => *failed = Some(error),
                }
            }
            let is_read = match call.as_mut().map_or(Ok(false), Greeted::read) {
                Ok(is_read) => is_read,
                Err(error) => {
                    (*call, *failed) = (None, Some(error));
                    false
                }
            };
            if let Some(greeted) = call.take_if(|_| is_read) {
                let ours = greeting(peer, self.streams.len());
                if greeted.theirs != ours {
                    return Err(
                        RanksError::disagree(peer, "the greeting", hex(&ours), hex(&greeted.theirs)).into()
                    );
                }
                self.streams[peer] = Some(greeted.stream);
            }
        }
        Ok(())
    }

    /// Reads what those say who have connected, and takes in the ranks among them. All others are left alone.
    fn answer(&mut self) {
        let mut place = 0;
        while place < self.silent.len() {
            match self.silent[place].read() {
                Ok(false) => place += 1,
                Ok(true) => {
                    let Greeted { mut stream, theirs, .. } = self.silent.remove(place);
                    // Every greeting is answered, so that a rank of another world can name the difference.
                    let is_told = stream.write_all(&greeting(self.rank, self.streams.len())).is_ok();
                    if let Some(peer) = self.rank_of(&theirs).filter(|_| is_told) {
                        self.streams[peer].get_or_insert(stream);
                    }
                }
                Err(_) => drop(self.silent.remove(place)),
            }
        }
    }

    /// Returns the rank above this one that a greeting is of.
    fn rank_of(&mut self, theirs: &[u8; 16]) -> Option<usize> {
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| theirs[at + i])) as usize;
        let (world, peer, their_world) = (self.streams.len(), number(8), number(12));
        if theirs[..8] != GREETING {
            return None;
        }
        if their_world != world {
            self.stray.get_or_insert_with(|| RanksError::disagree(peer, "world", world, their_world).into());
            return None;
        }
        (self.rank + 1..world).contains(&peer).then_some(peer)
    }

    /// Returns why a rank is missing: a rank of another group that came by may be it.
    fn failed(mut self, missing: usize, waited: Duration) -> Error {
        if let Some(stray) = self.stray.take_if(|_| missing > self.rank) {
            return stray;
        }
        let failed = self.calls.get_mut(missing).and_then(|(_, failed)| failed.take());
        match failed.filter(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            Some(error) => RanksError::Lost { rank: missing, reason: error.to_string() },
            None => RanksError::Late { rank: missing, waited },
        }
        .into()
    }
}

fn greeting(rank: usize, world: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&GREETING);
    bytes[8..12].copy_from_slice(&(rank as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&(world as u32).to_le_bytes());
    bytes
}
