//! Strangers that connect to a group, and a rank that sends bytes that no rank sends: the others end in time,
//! with an error that says so, and with little memory. The tests write the bytes of such a rank themselves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use gumball_engine::dist::{Address, LogitsLayout, PlannerConfig, Sockets, StepKind, Transport, VocabSplit};
use gumball_engine::unstable::dist::HEADER_BYTES;
use gumball_engine::{
    Batch, Error, Outputs, PADDING, Place, Pool, PoolConfig, Ranks, RanksError, Rows, SamplingParams,
};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};

const VOCAB: usize = 600;
const PATIENCE: Duration = Duration::from_secs(20);

/// How long something may take that ends by itself, or after a timeout that is far below: much, as machines
/// may be busy.
const SOON: Duration = Duration::from_secs(10);

/// The addresses of two ranks that no other test has.
fn addresses() -> Vec<Address> {
    static GROUPS: AtomicUsize = AtomicUsize::new(0);
    let (group, process) = (GROUPS.fetch_add(1, Ordering::Relaxed), std::process::id());
    let path = |rank| std::env::temp_dir().join(format!("gumball-hostile-{process}-{group}-{rank}"));
    (0..2).map(|rank| Address::Unix(path(rank))).collect()
}

fn path(address: &Address) -> PathBuf {
    let Address::Unix(path) = address;
    path.clone()
}

/// Connects to rank 0, once it listens.
fn connect(addresses: &[Address]) -> UnixStream {
    let since = Instant::now();
    loop {
        match UnixStream::connect(path(&addresses[0])) {
            Ok(stream) => return stream,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
        sleep(Duration::from_millis(2));
    }
}

fn greeting(rank: u32, world: u32) -> Vec<u8> {
    [&b"gumball2"[..], &rank.to_le_bytes(), &world.to_le_bytes()].concat()
}

/// Joins as rank 0 while `others` does what it does, and returns what came of it, and the time that it took.
fn joined(timeout: Duration, others: impl FnOnce(&[Address])) -> (Result<Sockets, Error>, Duration) {
    let addresses = addresses();
    let own = addresses.clone();
    let rank = spawn(move || {
        let since = Instant::now();
        (Sockets::connect(0, &own, timeout), since.elapsed())
    });
    others(&addresses);
    rank.join().unwrap()
}

#[test]
fn who_says_nothing_or_something_else_keeps_no_rank_from_joining() {
    let (group, _) = joined(PATIENCE, |addresses| {
        let silent: Vec<UnixStream> = (0..100).map(|_| connect(addresses)).collect();
        let mut others: Vec<UnixStream> = (0..3).map(|_| connect(addresses)).collect();
        others[0].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        others[1].write_all(&greeting(1, 3)).unwrap();
        others[2].write_all(&greeting(7, 2)).unwrap();
        Sockets::connect(1, addresses, PATIENCE).unwrap();
        drop(silent);
    });
    assert_eq!(group.unwrap().world(), 2);
}

#[test]
fn the_timeout_bounds_joining_whatever_comes() {
    let timeout = Duration::from_millis(300);
    let late = Error::from(RanksError::Late { rank: 1, waited: timeout });
    let (group, took) = joined(timeout, |addresses| {
        let silent: Vec<UnixStream> = (0..20).map(|_| connect(addresses)).collect();
        let mut slow = connect(addresses);
        // A byte now and then, until the rank has gone.
        while slow.write_all(b"g").is_ok() {
            sleep(Duration::from_millis(20));
        }
        drop(silent);
    });
    assert_eq!(group.unwrap_err(), late);
    assert!(took < SOON, "{took:?}");

    let (group, took) = joined(timeout, |addresses| {
        connect(addresses).write_all(&greeting(1, 3)).unwrap();
    });
    assert_eq!(group.unwrap_err().to_string(), "rank 1 disagrees on world: it has 3, this rank 2");
    assert!(took < SOON, "{took:?}");
}

#[test]
fn who_accepts_no_more_connections_holds_nobody_up() {
    let addresses = addresses();
    let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrUnix::new(path(&addresses[0])).unwrap()).unwrap();
    net::listen(&socket, 0).unwrap();
    let _waiting = UnixStream::connect(path(&addresses[0])).unwrap();
    let (since, timeout) = (Instant::now(), Duration::from_millis(100));
    let error = Sockets::connect(1, &addresses, timeout).unwrap_err();
    assert_eq!(error, RanksError::Late { rank: 0, waited: timeout }.into());
    let error = Sockets::connect(0, &addresses, timeout).unwrap_err();
    assert!(error.to_string().ends_with(": another process has its socket there"), "{error}");
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
    std::fs::remove_file(path(&addresses[0])).unwrap();
}

#[test]
fn a_program_that_wants_to_wait_no_longer_does_not() {
    let patience = gumball_engine::dist::Patience::from(Duration::from_secs(3600)).unless(|| true);
    let error = Sockets::connect(0, &addresses(), patience.clone()).unwrap_err();
    assert_eq!(error, RanksError::Interrupted.into());

    let addresses = addresses();
    let own = addresses.clone();
    let rank = spawn(move || Sockets::connect(0, &own, patience).unwrap().barrier());
    let peer = Sockets::connect(1, &addresses, PATIENCE).unwrap();
    assert_eq!(rank.join().unwrap(), Err(RanksError::Interrupted.into()));
    drop(peer);
}

/// A rank 1 whose bytes the test writes.
struct Peer(UnixStream);

impl Peer {
    fn join(addresses: &[Address]) -> Self {
        let mut stream = connect(addresses);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&greeting(1, 2)).unwrap();
        let mut theirs = [0; 16];
        stream.read_exact(&mut theirs).unwrap();
        assert_eq!(theirs[..], greeting(0, 2));
        Self(stream)
    }

    /// Returns the header and the rest of the next message; `None` once rank 0 has gone.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut length = [0; 8];
        self.0.read_exact(&mut length).ok()?;
        let mut message = vec![0; u64::from_le_bytes(length) as usize];
        self.0.read_exact(&mut message).ok()?;
        let rest = message.split_off(HEADER_BYTES);
        Some((message, rest))
    }

    /// Sends `header` and `rest`, as a message that claims to have `length` bytes after the header.
    fn send(&mut self, length: usize, header: &[u8], rest: &[u8]) {
        // Rank 0 may have gone.
        let length = (header.len() + length) as u64;
        let _ = self.0.write_all(&[&length.to_le_bytes(), header, rest].concat());
    }

    fn send_words(&mut self, header: &[u8], words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send(bytes.len(), header, &bytes);
    }
}

/// Makes a pool of rank 0 and takes a step by a survey, of a row that rank 1 owns, while `peer` does what it
/// does as rank 1 once it has joined. Returns what became of it.
fn stepped(timeout: Duration, peer: impl FnOnce(&mut Peer)) -> Error {
    let addresses = addresses();
    let own = addresses.clone();
    let rank = spawn(move || -> Result<(), Error> {
        let layouts = vec![LogitsLayout::Survey];
        let planner = PlannerConfig { layouts, ..PlannerConfig::new(VocabSplit::even(VOCAB, 2)?) };
        let config = PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB) };
        let mut pool =
            Pool::over(config, Ranks::new(planner, Box::new(Sockets::connect(0, &own, timeout)?)))?;
        let params = SamplingParams { seed: Some(5), top_p: 0.9, ..Default::default() };
        let slots = [PADDING, pool.admit(params, &[1, 2])?];
        let plan = pool
            .ranks()
            .unwrap()
            .planner
            .plan_as(LogitsLayout::Survey, &pool.shape(&slots, 0, StepKind::Decode)?);
        let rows = [0.5; VOCAB];
        let logits = Rows::logits(&rows[..], 2, VOCAB / 2)?;
        let stepped =
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut Outputs::new());
        assert_eq!(pool.sequence(slots[1])?.position(), 2);
        stepped
    });
    let since = Instant::now();
    peer(&mut Peer::join(&addresses));
    let error = rank.join().unwrap().unwrap_err();
    assert!(since.elapsed() < SOON, "{:?}, {error}", since.elapsed());
    error
}

/// Answers what ranks compare at start, and the exchange of tile maxima, of which rank 0 needs none.
fn begin(peer: &mut Peer) {
    let (header, parameters) = peer.next().unwrap();
    peer.send(parameters.len(), &header, &parameters);
    let (header, _) = peer.next().unwrap();
    peer.send_words(&header, &[]);
}

/// A query about a row.
fn query(row: u32) -> [u32; 3] {
    // Tag 2 asks for deviations; 3 is the row's largest logit.
    [row, 2 << 1, 3.0f32.to_bits()]
}

#[test]
fn parameters_that_are_none_are_shown_as_text_that_does_no_harm() {
    let error = stepped(PATIENCE, |peer| {
        let (header, parameters) = peer.next().unwrap();
        let text = String::from_utf8(parameters).unwrap();
        let garbled = text.replace("race", &format!("race\0\x1b[2J{}", "x".repeat(20_000)));
        peer.send(garbled.len(), &header, garbled.as_bytes());
    });
    let Some(RanksError::Disagree { rank: 1, what: "route", theirs, .. }) = error.of_ranks() else {
        panic!("{error}")
    };
    assert!(theirs.starts_with("race\\u{0}\\u{1b}[2Jxx"), "{error}");
    assert!(error.to_string().len() < 200 && !error.to_string().contains('\x1b'), "{error}");

    let error = stepped(PATIENCE, |peer| {
        let (header, _) = peer.next().unwrap();
        peer.send(3, &header, &[0xFF, 0, b'\n']);
    });
    assert!(
        matches!(error.of_ranks(), Some(RanksError::Disagree { rank: 1, what: "definition", .. })),
        "{error}"
    );
}

#[test]
fn a_message_that_is_longer_than_what_is_due_is_an_error_before_memory_is_taken_for_it() {
    let is_too_long = |error: &Error| matches!(error.of_ranks(), Some(RanksError::Corrupt { rank: 1, what }) if what.contains("at most"));
    for length in [1 << 20, 1 << 36, usize::MAX >> 1] {
        let error = stepped(PATIENCE, |peer| {
            let (header, _) = peer.next().unwrap();
            peer.send(length, &header, &vec![0; 1 << 20]);
        });
        assert!(is_too_long(&error), "{error}");
    }
    // As many queries as an honest rank would have answered with 45 MB.
    let error = stepped(PATIENCE, |peer| {
        begin(peer);
        let (header, _) = peer.next().unwrap();
        peer.send_words(&header, &query(0).repeat(20_000));
    });
    assert!(is_too_long(&error), "{error}");
}

#[test]
fn a_row_is_asked_about_once_in_a_round_and_not_once_it_is_done() {
    let is_no_query = |error: &Error| matches!(error.of_ranks(), Some(RanksError::Corrupt { rank: 1, what }) if what == "a query that is none");
    for queries in [[query(0), query(0)].concat(), query(1).to_vec(), query(0)[..2].to_vec(), vec![0, 77, 0]]
    {
        let error = stepped(PATIENCE, |peer| {
            begin(peer);
            let (header, _) = peer.next().unwrap();
            peer.send_words(&header, &queries);
        });
        assert!(is_no_query(&error), "{queries:?}: {error}");
    }
}

#[test]
fn queries_have_an_end_by_their_number_and_by_the_clock() {
    let endless = |pause: Duration| {
        move |peer: &mut Peer| {
            begin(peer);
            // A round is an exchange of queries and one of responses; rank 0 has no query.
            while let Some((header, _)) = peer.next() {
                sleep(pause);
                peer.send_words(&header, &query(0));
                let Some((header, _)) = peer.next() else { return };
                peer.send_words(&header, &[]);
            }
        }
    };
    let error = stepped(PATIENCE, endless(Duration::ZERO));
    assert_eq!(error.to_string(), "rank 1 sent more queries than a row has");
    let timeout = Duration::from_millis(300);
    let error = stepped(timeout, endless(Duration::from_millis(60)));
    assert_eq!(error, RanksError::Late { rank: 1, waited: timeout }.into());
}

#[test]
fn a_rank_that_goes_is_lost_at_once_wherever_it_goes() {
    for exchanges in 0..4 {
        let error = stepped(PATIENCE, |peer| {
            for exchange in 0..exchanges {
                let (header, message) = peer.next().unwrap();
                let message = if exchange == 0 { message } else { Vec::new() };
                peer.send(message.len(), &header, &message);
            }
        });
        assert!(matches!(error.of_ranks(), Some(RanksError::Lost { rank: 1, .. })), "{exchanges}: {error}");
    }
}
