//! Transports that fail: a rank that ends, is late, or sends other bytes, at any exchange of any call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gumball_engine::dist::LogitsLayout::{Survey, Swap};
use gumball_engine::dist::TransportKind::{Nccl, OneSided};
use gumball_engine::dist::{Bounds, Threads, Transport};
use gumball_engine::unstable::dist::HEADER_BYTES;
use gumball_engine::{Error, RanksError};

use crate::batch::{PATIENCE, on_ranks, with_patience};
use crate::calls::{Call, Calls, Given, Saved, Taken, VOCAB, Way, all_saved};
use crate::cases::Dice;

/// The fault of a rank at some exchange.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Ends,
    /// Waits until the others have done with the step.
    IsLate,
    /// Changes what it sends after the header, by words of this seed.
    Garbles(u64),
}

/// A transport with a fault.
#[derive(Debug)]
struct Faulty {
    inner: Option<Threads>,
    fault: Fault,
    /// How many exchanges go well before.
    before: usize,
    /// How many ranks have done with the step.
    done: Arc<AtomicUsize>,
}

impl Transport for Faulty {
    fn rank(&self) -> usize {
        self.inner.as_ref().map_or(0, Transport::rank)
    }

    fn world(&self) -> usize {
        self.inner.as_ref().map_or(1, Transport::world)
    }

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn timeout(&self) -> Duration {
        self.inner.as_ref().map_or(PATIENCE, Transport::timeout)
    }

    fn watch(&mut self, is_due: &dyn Fn(&[u8]) -> bool) -> Result<(), Error> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.watch(is_due))
    }

    fn all_to_all(
        &mut self,
        send: &[&[u8]],
        receive: &mut [Vec<u8>],
        bounds: Bounds<'_>,
    ) -> Result<(), Error> {
        let ended = || Error::from(RanksError::Lost { rank: 0, reason: "it ended itself".to_owned() });
        let is_faulty = self.before == 0;
        self.before = self.before.wrapping_sub(1);
        let inner = self.inner.as_mut().ok_or_else(ended)?;
        match self.fault {
            Fault::Ends if is_faulty => {
                self.inner = None;
                return Err(ended());
            }
            Fault::IsLate if is_faulty => {
                let since = Instant::now();
                while self.done.load(Ordering::Acquire) < inner.world() - 1 && since.elapsed() < PATIENCE {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Fault::Garbles(seed) if is_faulty => {
                let mut dice = Dice(seed, 0);
                let mut garble = |message: &&[u8]| {
                    let mut message = message.to_vec();
                    if message.len() > HEADER_BYTES && dice.one_in(4) {
                        message.truncate(HEADER_BYTES + dice.below(message.len() - HEADER_BYTES));
                    }
                    if dice.one_in(6) {
                        message.extend([dice.word() as u8; 4]);
                    }
                    let length = message.len() - HEADER_BYTES;
                    for _ in 0..if length == 0 { 0 } else { 1 + dice.below(8) } {
                        message[HEADER_BYTES + dice.below(length)] =
                            dice.pick(&[0, 1, 0x7F, 0x80, 0xC0, 0xFF]);
                    }
                    message
                };
                let garbled: Vec<Vec<u8>> = send.iter().map(&mut garble).collect();
                let garbled: Vec<&[u8]> = garbled.iter().map(Vec::as_slice).collect();
                return inner.all_to_all(&garbled, receive, bounds);
            }
            _ => {}
        }
        inner.all_to_all(send, receive, bounds)
    }
}

const SOON: Duration = Duration::from_secs(20);

/// The result of a rank's call, whether its sequences stayed, and what they go on from.
type Ended = (Result<Taken, Error>, bool, Vec<Saved>);

/// Makes a call on two ranks and one that is faulty at an exchange.
fn call_with(
    calls: &Calls,
    call: Call,
    way: Way,
    (fault, before): (Fault, usize),
    patience: Duration,
) -> Vec<Ended> {
    let done = Arc::new(AtomicUsize::new(0));
    with_patience(calls.batch.split.world(), patience, |rank| {
        let is_faulty = rank.rank() == 1;
        let before = if is_faulty { before } else { usize::MAX };
        let rank = Faulty { inner: Some(rank), fault, before, done: Arc::clone(&done) };
        let is_done = || done.fetch_add(usize::from(!is_faulty), Ordering::Release);
        let mut pool = match calls.pool(call, (way, patience), Some(Box::new(rank)), None) {
            Ok(pool) => pool,
            Err(error) => {
                is_done();
                return (Err(error), true, Vec::new());
            }
        };
        let slots = calls.admit(&mut pool);
        let was = all_saved(&mut pool, &slots);
        let taken = calls.take(&mut pool, &Given::new(call, &slots));
        is_done();
        let saved = all_saved(&mut pool, &slots);
        (taken, saved == was, saved)
    })
}

/// Returns the calls whose exchanges are between hosts: all where rows lie in host memory, and on devices
/// the calls of pools that tell kept sets.
fn cases() -> Vec<(Way, Call)> {
    let mut cases: Vec<(Way, Call)> = Call::all(None).into_iter().map(|call| (None, call)).collect();
    if cfg!(feature = "emulator") {
        let ways = [OneSided, Nccl].map(Some);
        cases.extend(ways.map(|way| (way, Call::Kept(Swap))));
    }
    cases
}

/// Returns how many exchanges a call takes, the exchange at the start included.
fn exchanges(calls: &Calls, call: Call, way: Way) -> usize {
    let goes_well = |before| {
        let ranks = call_with(calls, call, way, (Fault::Ends, before), SOON);
        ranks.iter().all(|(taken, ..)| taken.is_ok())
    };
    (0..60).find(|before| goes_well(*before)).expect("a call ends")
}

/// Makes a call in a new group, from the sequences that one rank was left with, and holds what comes out to
/// what one process gets.
pub fn go_on(call: Call, way: Way, saved: &[Saved]) {
    let calls = Calls::new(2);
    on_ranks(2, |rank| {
        let pool = calls.pool(call, (way, PATIENCE), Some(Box::new(rank)), None).unwrap();
        calls.go_on(call, pool, saved);
    });
}

#[test]
fn a_rank_that_ends_at_any_exchange_is_lost_to_the_others_which_go_on_in_a_new_group() {
    let calls = Calls::new(3);
    for (way, call) in cases() {
        let count = exchanges(&calls, call, way);
        assert!(count >= if call.layout() == Survey { 6 } else { 2 }, "{call:?} took {count}");
        for before in 0..count {
            let ended = call_with(&calls, call, way, (Fault::Ends, before), SOON);
            for (taken, is_unchanged, _) in &ended {
                let error = taken.as_ref().unwrap_err();
                let is_lost = matches!(error.of_ranks(), Some(RanksError::Lost { .. }));
                assert!(is_lost && *is_unchanged, "{call:?} at {before}: {error}");
            }
            if let Some((.., saved)) = ended.iter().find(|(.., saved)| !saved.is_empty()) {
                go_on(call, way, saved);
            }
        }
    }
}

#[test]
fn a_rank_that_is_late_at_any_exchange_is_waited_for_no_longer_than_said() {
    let calls = Calls::new(3);
    for (way, call) in cases() {
        let count = exchanges(&calls, call, way);
        let (first, patience) = if way.is_none() { (0, 50) } else { (count - 1, 1000) };
        for before in first..count {
            let patience = Duration::from_millis(patience);
            let mut ranks = call_with(&calls, call, way, (Fault::IsLate, before), patience);
            // The late rank itself has received the others' messages, and may have completed the step.
            drop(ranks.remove(1));
            for (taken, is_unchanged, _) in ranks {
                let error = taken.unwrap_err();
                let told = error.of_ranks();
                let is_told = matches!(told, Some(RanksError::Lost { .. } | RanksError::Late { .. }));
                assert!(is_told && is_unchanged, "{call:?} at {before}: {error}");
            }
        }
    }
}

/// Checks that with any bytes at the exchanges of a call nothing panics, nothing hangs, and no token
/// lies outside the vocabulary.
fn hold_garbled(calls: &Calls, (way, call): (Way, Call), exchanges: usize) {
    let (first, patience) = if way.is_none() { (1, 300) } else { (exchanges - 1, 1000) };
    for (before, seed) in (first..exchanges).flat_map(|before| (0..40).map(move |seed| (before, seed))) {
        let fault = (Fault::Garbles(seed), before);
        for (taken, is_unchanged, _) in call_with(calls, call, way, fault, Duration::from_millis(patience)) {
            match taken {
                Ok(Taken { tokens, kept, .. }) => {
                    assert!(tokens.iter().all(|token| (-1..VOCAB as i32).contains(token)), "{call:?}");
                    assert!(kept.iter().flatten().all(|id| (*id as usize) < VOCAB), "{call:?}");
                }
                Err(error) => {
                    let is_told = matches!(
                        error.of_ranks(),
                        Some(
                            RanksError::Corrupt { .. }
                                | RanksError::Lost { .. }
                                | RanksError::Late { .. }
                                | RanksError::Disagree { .. }
                        )
                    );
                    assert!(is_told && is_unchanged, "{call:?} at {before}, {seed}: {error}");
                }
            }
        }
    }
}

#[test]
fn other_bytes_are_an_error_or_stay_in_their_rows() {
    let calls = Calls::new(3);
    for (way, call) in cases() {
        hold_garbled(&calls, (way, call), exchanges(&calls, call, way));
    }
}
