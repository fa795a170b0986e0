//! The play of a script on two pools: each call on both, and what must be alike afterwards.

use std::fmt::Write as _;

use gumball_engine::{Outputs, PADDING, Proposals, RowHook, SamplingParams, Scored, Slot, State};
use gumball_spec::{Error, Result};

use super::batch::{Batch, Made, edit};
use super::call::{Call, Scene, params};
use super::{Counted, Outcome, Setup};
use crate::backend::pools::Pools;
use crate::backend::work::Work;
use crate::bytes::Bytes;

/// A pool, and the outcome of its last step or verification.
struct Played<'p> {
    pool: &'p mut Pools,
    last: Outputs,
}

/// The requests and the assignment of both pools.
struct Known {
    live: Vec<(Slot, SamplingParams)>,
    assigned: Option<Batch>,
    last: Option<Vec<Slot>>,
    /// Whether the last step or verification was enqueued.
    fetchable: bool,
}

/// The bytes that choose a call. Zeros choose none, and leave the calls after them as they are, so that a
/// failing script is made short.
const CALL_BYTES: usize = 12;

/// Plays a script on two pools, of which the first is the reference, and counts what came of its calls.
///
/// # Errors
/// A text that says how they differ, after which calls.
pub fn play(
    bytes: &mut Bytes<'_>,
    setup: Setup,
    one: &mut Pools,
    other: &mut Pools,
) -> std::result::Result<Counted, String> {
    let mut one = Played { pool: one, last: Outputs::new() };
    let mut other = Played { pool: other, last: Outputs::new() };
    let mut known = Known { live: Vec::new(), assigned: None, last: None, fetchable: true };
    let (mut script, mut counted) = (String::new(), Counted::new());
    for (turn, chunk) in bytes.0.chunks(CALL_BYTES).enumerate() {
        let Some(call) = known.choose(&mut Bytes(chunk), setup) else { continue };
        _ = writeln!(script, "  {call:?}");
        let told = |text: String| format!("{text}\nafter the calls\n{script}");
        let before = one.states(&known);
        let seen = other.make(&call, setup);
        let is_lacking = matches!(seen, Err(Error::Unavailable { .. }));
        let wanted = match &call {
            _ if is_lacking => Ok(Results::new()),
            _ => one.make(&call.by_parents(), setup),
        };
        match (&wanted, &seen) {
            _ if is_lacking => {}
            (Ok(wanted), Ok(seen)) => {
                if let Some(text) = difference(wanted, seen) {
                    return Err(told(text));
                }
            }
            // With two mistakes a call may be refused for either.
            (Err(_), Err(_)) => {}
            _ => return Err(told(format!("{seen:?} instead of {wanted:?}"))),
        }
        let outcome = match (&wanted, &seen) {
            _ if is_lacking => Outcome::Unavailable,
            (Ok(_), _) => Outcome::Accepted,
            (Err(wanted), Err(seen)) if wanted != seen => Outcome::RefusedForOther,
            _ => Outcome::Refused,
        };
        *counted.entry((call.name(), outcome)).or_default() += 1;
        if let (Call::Verify(_), Ok(results)) = (&call, &wanted) {
            let accepted = results.iter().filter(|(name, _)| name == ACCEPTED).flat_map(|(_, counts)| counts);
            *counted.entry(("accept a draft", Outcome::Accepted)).or_default() += accepted.sum::<u32>();
        }
        match wanted {
            Ok(results) if !is_lacking => known.note(&call, &results),
            // A refused call may have replaced the assignment.
            _ => (known.assigned, known.last) = (None, None),
        }
        // The turns of a graph before one that is refused have changed sequences.
        let is_refused = outcome != Outcome::Accepted && !matches!(call, Call::Replay(..));
        if is_refused && one.states(&known) != before {
            return Err(told("a refused call changed a sequence".to_owned()));
        }
        // Without a look a device gets ahead of the host's copies, by several steps.
        let looks = turn % 3 > 0 || !setup.keep_histories || known.has_mu();
        if looks || outcome != Outcome::Accepted {
            let (wanted, seen) = (one.states(&known), other.states(&known));
            if wanted != seen {
                return Err(told(format!("sequences are\n{seen:?}\ninstead of\n{wanted:?}")));
            }
        }
    }
    let (wanted, seen) = (one.states(&known), other.states(&known));
    match wanted == seen {
        true => Ok(counted),
        false => Err(format!("sequences are\n{seen:?}\ninstead of\n{wanted:?}\nat the end of\n{script}")),
    }
}

/// The results of a call: lists of words with their names.
type Results = Vec<(String, Vec<u32>)>;

/// Returns the first list that differs from the wanted one, and where.
fn difference(wanted: &Results, seen: &Results) -> Option<String> {
    assert_eq!(seen.len(), wanted.len(), "a call has the same kinds of results in both pools");
    let ((name, wanted), (_, seen)) = wanted.iter().zip(seen).find(|(wanted, seen)| wanted != seen)?;
    let place = wanted.iter().zip(seen).position(|(wanted, seen)| wanted != seen);
    let place = place.unwrap_or(wanted.len().min(seen.len()));
    let near = |words: &[u32]| {
        format!(
            "{} words, from {place} on {:x?}",
            words.len(),
            words[place..].iter().take(4).collect::<Vec<_>>()
        )
    };
    Some(format!("{name}: {} instead of {}", near(seen), near(wanted)))
}

/// Returns a result of one number.
fn one_word(name: &str, word: u32) -> Results {
    vec![(name.to_owned(), vec![word])]
}

impl Known {
    /// Returns the requests in flight with mirostat or adaptive-p: they have no drafts.
    fn with_mu(&self) -> Vec<Slot> {
        self.live.iter().filter(|(_, params)| params.steered_by().is_some()).map(|(slot, _)| *slot).collect()
    }

    /// Returns whether a request's limit moves, which several steps that are not looked at would make a
    /// device forget.
    fn has_mu(&self) -> bool {
        !self.with_mu().is_empty()
    }

    fn choose(&self, bytes: &mut Bytes<'_>, setup: Setup) -> Option<Call> {
        let live: Vec<Slot> = self.live.iter().map(|(slot, _)| *slot).collect();
        let scene = Scene {
            live: &live,
            with_mu: &self.with_mu(),
            assigned: self.assigned.as_ref(),
            last: self.last.as_deref(),
            fetchable: self.fetchable,
            unseen: setup.keep_histories,
        };
        Call::choose(bytes, &scene)
    }

    /// Notes what a call that both pools accepted has changed.
    fn note(&mut self, call: &Call, results: &Results) {
        let new_slot = || results[0].1[0] as Slot;
        match call {
            Call::Admit { params: number, .. } | Call::Resume { params: number, .. } => {
                self.live.push((new_slot(), params(*number)));
            }
            Call::Fork { slot, .. } => {
                let (_, params) =
                    self.live.iter().find(|(live, _)| live == slot).expect("it was forked").clone();
                self.live.push((new_slot(), params));
            }
            Call::Release(slot) => {
                self.live.retain(|(live, _)| live != slot);
                let assigned = self.assigned.iter_mut().map(|batch| &mut batch.slots);
                let lists = assigned.chain(self.last.as_mut());
                lists.flatten().filter(|known| *known == slot).for_each(|known| *known = PADDING);
            }
            Call::Step(_) | Call::Verify(_) => {
                (self.assigned, self.last, self.fetchable) = (None, None, false)
            }
            Call::Enqueue(batch) => {
                self.assigned = Some(batch.clone());
                (self.last, self.fetchable) = (Some(batch.slots.clone()), true);
            }
            Call::Assign(batch) => {
                (self.assigned, self.last) = (Some(batch.clone()), Some(batch.slots.clone()))
            }
            Call::EnqueueAssigned(batch) => (self.last, self.fetchable) = (Some(batch.slots.clone()), true),
            Call::Replay(batch, turns) => {
                let slots = turns.last().expect("a turn").clone();
                (self.last, self.fetchable) = (Some(slots.clone()), true);
                self.assigned = Some(Batch { slots, ..batch.clone() });
            }
            Call::Push(..)
            | Call::Shorten(..)
            | Call::Draft { .. }
            | Call::Score { .. }
            | Call::EnqueueShorten(..)
            | Call::Fetch => {}
        }
    }
}

/// A sequence as plain numbers: prompt, output, seed, position, draw index, and the bits of `mu`.
type Sequence = (Vec<u32>, Vec<u32>, u64, u32, u32, u32);

impl Played<'_> {
    /// Returns the sequences of the requests in flight.
    fn states(&mut self, known: &Known) -> Vec<Result<Sequence>> {
        let state = |(slot, _): &(Slot, SamplingParams)| {
            let State { prompt, output, seed, position, draw, mu } = self.pool.sequence(*slot)?.state();
            Ok((prompt.to_vec(), output.to_vec(), seed, position, draw, mu.to_bits()))
        };
        known.live.iter().map(state).collect()
    }

    /// Makes a call, and returns its results.
    fn make(&mut self, call: &Call, setup: Setup) -> Result<Results> {
        let Self { pool, last } = self;
        let nothing = Results::new();
        match call {
            Call::Admit { params: number, prompt } => {
                Ok(one_word("slot", pool.each(|pool| pool.admit(params(*number), prompt))? as u32))
            }
            Call::Resume { params: number, output, position, mu } => {
                let (seed, prompt, position) = (u64::from(*number), &[2, 0, 2][..], *position);
                let state = State { prompt, output, seed, position, draw: 5, mu: *mu };
                Ok(one_word("slot", pool.each(|pool| pool.resume(params(*number), state))? as u32))
            }
            Call::Fork { slot, draw } => {
                Ok(one_word("slot", pool.each(|pool| pool.fork(*slot, *draw))? as u32))
            }
            Call::Release(slot) => pool.each(|pool| pool.release(*slot)).map(|()| nothing),
            Call::Push(slot, id) => pool.each(|pool| pool.push(*slot, *id)).map(|()| nothing),
            Call::Shorten(slots, counts) => pool.each(|pool| pool.shorten(slots, counts)).map(|()| nothing),
            Call::Step(batch) | Call::Verify(batch) => {
                let made = batch.make();
                let mut done = Outputs::new();
                with_work(batch, &made, batch.hook, |work| pool.call(work, &mut done))?;
                *last = done;
                Ok(results_of(last, setup.kept))
            }
            Call::Draft { batch, siblings, probs } => {
                let made = batch.make_drafter();
                let mut out =
                    if *probs { Proposals::with_probs(*siblings) } else { Proposals::new(*siblings) };
                let draft =
                    |work: &Work<'_>| pool.draft(&Work { drafts: None, ..*work }, made.paths(), &mut out);
                with_work(batch, &made, batch.hook, draft)?;
                let probs = written_probs(&out, &batch.slots).collect();
                let ids = out.ids().iter().map(|id| *id as u32).collect();
                Ok(vec![("drafts".to_owned(), ids), ("probabilities".to_owned(), probs)])
            }
            Call::Score { batch, params: number, prompt } => {
                let made = batch.make();
                let ids: Vec<u32> = (0..=batch.rows() as u32 + 1).map(|place| place * 7 % 5).collect();
                let params = params(*number);
                let scored =
                    Scored { params: &params, ids: &ids, prompt_len: *prompt, start: 1, chunk_rows: None };
                let mut out = Outputs::new();
                with_work(batch, &made, batch.hook, |work| {
                    let batch = gumball_engine::Batch { slots: &[], ..work.batch };
                    pool.score(&Work { batch, ..*work }, &scored, &mut out)
                })?;
                Ok(results_of(&out, setup.kept))
            }
            Call::Enqueue(batch) => {
                let made = batch.make();
                with_work(batch, &made, false, |work| pool.enqueue(work)).map(|()| nothing)
            }
            Call::Assign(batch) => {
                let made = batch.make();
                with_work(batch, &made, false, |work| pool.assign(work)).map(|()| nothing)
            }
            Call::EnqueueAssigned(batch) => {
                let made = batch.make();
                with_work(batch, &made, false, |work| pool.enqueue_assigned(work)).map(|()| nothing)
            }
            Call::EnqueueShorten(counts) => pool.enqueue_shorten(counts).map(|()| nothing),
            Call::Fetch => {
                pool.fetch(last)?;
                Ok(results_of(last, setup.kept))
            }
            Call::Replay(batch, turns) => {
                let made = batch.make();
                with_work(batch, &made, false, |work| pool.replay(work, turns)).map(|()| nothing)
            }
        }
    }
}

/// Lends the work that a batch stands for.
fn with_work<T>(
    batch: &Batch,
    made: &Made,
    hook: bool,
    work: impl FnOnce(&Work<'_>) -> Result<T>,
) -> Result<T> {
    let hooks = hooks(hook, batch.rows());
    work(&Work {
        rows: made.rows(batch)?,
        dtype: batch.dtype,
        batch: made.batch(batch, &hooks)?,
        drafts: made.drafts(batch),
    })
}

/// Returns the caller's edits of rows: one of the first, or none.
fn hooks(is_there: bool, rows: usize) -> Vec<Option<RowHook<'static>>> {
    let mut hooks: Vec<Option<RowHook<'static>>> = vec![None; if is_there { rows } else { 0 }];
    hooks.first_mut().into_iter().for_each(|hook| *hook = Some(&edit));
    hooks
}

/// Returns the bits of the probabilities of rows that have a request.
fn written_probs<'a>(out: &'a Proposals, slots: &'a [Slot]) -> impl Iterator<Item = u32> + 'a {
    let rows = (0..slots.len()).filter(|row| slots[*row] != PADDING);
    rows.flat_map(|row| out.row_probs(row)).map(|p| p.to_bits())
}

/// Returns the results of a step or a verification, with kept sets or without.
fn results_of(out: &Outputs, kept: bool) -> Results {
    let mut results = vec![(ACCEPTED.to_owned(), out.accepted().to_vec())];
    for request in 0..out.accepted().len() {
        let emitted = out.request(request);
        let tokens = emitted.tokens.iter().map(|id| *id as u32).collect();
        results.push((format!("tokens of request {request}"), tokens));
        results.push((format!("rows of request {request}"), emitted.rows.to_vec()));
    }
    results.push(("outputs".to_owned(), out.words().to_vec()));
    let rows = 0..if kept { out.layout().rows } else { 0 };
    results.extend(rows.map(|row| (format!("kept ids of row {row}"), out.kept(row).to_vec())));
    results
}

/// The name of the numbers of accepted drafts.
const ACCEPTED: &str = "accepted drafts";
