//! Transports that fail: a rank that ends, is late, or sends other bytes, at any exchange of a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_engine::dist::{Bounds, HEADER_BYTES, Threads, Transport};
use gumball_engine::{Batch, Error, LogprobMode, LogprobsParams, Outputs, RanksError, SamplingParams, Slot};

use crate::batch::{PATIENCE, Requests, part, planned, state, with_patience};
use crate::cases::Dice;

/// What a rank does at some exchange.
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

    fn watch(&mut self) -> Result<(), Error> {
        self.inner.as_mut().map_or(Ok(()), Transport::watch)
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

/// A batch of every kind of row, which takes every kind of exchange.
fn batch(world: usize) -> Requests {
    let mut batch = Requests::of_vocab(&mut Dice(11, 0), world, 0, 1500);
    (batch.kind, batch.dtype) = (gumball_engine::Kind::Logits, 0);
    let plain = || SamplingParams { temperature: 0.9, ..Default::default() };
    let logprobs = |mode| Some(LogprobsParams { mode, top_n: 5, ids: vec![3, 700] });
    let all = [
        plain(),
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { top_k: 20, top_p: 0.9, ..plain() },
        SamplingParams { top_p: 0.8, logprobs: logprobs(LogprobMode::Processed), ..plain() },
        SamplingParams { typical_p: 0.5, top_n_sigma: 1.0, ..plain() },
        SamplingParams { presence_penalty: 0.5, logprobs: logprobs(LogprobMode::Raw), ..plain() },
    ];
    let seeded = all.into_iter().enumerate();
    batch.requests =
        seeded.map(|(i, it)| (SamplingParams { seed: Some(i as u64), ..it }, vec![1, 2, 3])).collect();
    batch
}

const LAYOUTS: [LogitsLayout; 4] = [Gather, Swap, Survey, Replicated];

/// Takes a step on two ranks and one that is faulty; returns for each what became of it, and of its sequences.
fn step_with(
    fault: Fault,
    before: usize,
    layout: LogitsLayout,
    patience: Duration,
) -> Vec<(Result<Outputs, Error>, bool)> {
    let world = 3;
    let batch = batch(world);
    let whole = batch.rows(&mut Dice(12, 0), batch.requests.len());
    let done = Arc::new(AtomicUsize::new(0));
    with_patience(world, patience, |rank| {
        let own = rank.rank();
        let is_faulty = own == 1;
        let before = if is_faulty { before } else { usize::MAX };
        let rank = Faulty { inner: Some(rank), fault, before, done: Arc::clone(&done) };
        let is_done = || done.fetch_add(usize::from(!is_faulty), Ordering::Release);
        let (mut pool, slots): (_, Vec<Slot>) = match batch.try_dist_pool(Box::new(rank), batch.planner()) {
            Ok(made) => made,
            Err(error) => {
                is_done();
                return (Err(error), true);
            }
        };
        let states = |pool: &mut gumball_engine::Pool| -> Vec<_> {
            slots.iter().map(|slot| state(pool.sequence(*slot).unwrap())).collect()
        };
        let was = states(&mut pool);
        let plan = planned(&pool, &slots, layout, 0);
        let rows: Vec<usize> = plan.shares.of(own).collect();
        let part = part(layout, &batch.split, own, batch.dtype, &whole, &rows);
        let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
        let mut out = Outputs::new();
        let result = pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out);
        is_done();
        (result.map(|()| out), states(&mut pool) == was)
    })
}

/// Returns how many exchanges a step takes, that of the start included.
fn exchanges(layout: LogitsLayout) -> usize {
    let goes_well = |before| {
        let ranks = step_with(Fault::Ends, before, layout, Duration::from_secs(20));
        ranks.iter().all(|(result, _)| result.is_ok())
    };
    (0..60).find(|before| goes_well(*before)).expect("a step ends")
}

#[test]
fn a_rank_that_ends_at_any_exchange_is_lost_to_the_others() {
    for layout in LAYOUTS {
        let count = exchanges(layout);
        assert!(count >= if layout == Survey { 6 } else { 2 }, "{layout:?} took {count}");
        for before in 0..count {
            for (result, is_unchanged) in step_with(Fault::Ends, before, layout, Duration::from_secs(20)) {
                let error = result.unwrap_err();
                assert!(
                    matches!(error.of_ranks(), Some(RanksError::Lost { .. })),
                    "{layout:?} at {before}: {error}"
                );
                assert!(is_unchanged, "{layout:?} at {before}");
            }
        }
    }
}

#[test]
fn a_rank_that_is_late_at_any_exchange_is_waited_for_no_longer_than_said() {
    let patience = Duration::from_millis(50);
    for layout in LAYOUTS {
        for before in 0..exchanges(layout) {
            let mut ranks = step_with(Fault::IsLate, before, layout, patience);
            // The late rank itself has received the others' messages, and may have completed the step.
            drop(ranks.remove(1));
            for (result, is_unchanged) in ranks {
                let error = result.unwrap_err();
                let told = error.of_ranks();
                let is_told = matches!(told, Some(RanksError::Lost { .. } | RanksError::TimedOut { .. }));
                assert!(is_told && is_unchanged, "{layout:?} at {before}: {error}");
            }
        }
    }
}

#[test]
fn other_bytes_are_an_error_or_stay_in_their_rows() {
    for layout in LAYOUTS {
        let count = exchanges(layout);
        for before in 1..count {
            for seed in 0..40 {
                // Whatever comes out, nothing panics, nothing hangs, and no token lies outside the vocabulary.
                for (result, is_unchanged) in
                    step_with(Fault::Garbles(seed), before, layout, Duration::from_millis(300))
                {
                    match result {
                        Ok(out) => assert!(out.tokens().iter().all(|token| (-1..1500).contains(token))),
                        Err(error) => {
                            let is_told = matches!(
                                error.of_ranks(),
                                Some(
                                    RanksError::Corrupt { .. }
                                        | RanksError::Lost { .. }
                                        | RanksError::TimedOut { .. }
                                        | RanksError::Disagree { .. }
                                )
                            );
                            assert!(is_told && is_unchanged, "{layout:?} at {before}, {seed}: {error}");
                        }
                    }
                }
            }
        }
    }
}
