//! The watch over the ranks of a group on devices. A device may wait for ranks that have gone, and the pool's
//! thread for the device: in a fetch, a launch, a copy, or while a kernel is loaded. So a thread of its own
//! looks after the ranks, and ends the device's waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gumball_cuda::{ExchangeFailure, GivingUp};
use gumball_dist::{Group, Lookout, StepPart, TransportKind, What};
use gumball_spec::{Error, RanksError, Result};

use super::{GpuRanks, is_lost};
use crate::slots::Slots;

/// How often the other ranks are looked after.
const LOOK: Duration = Duration::from_millis(20);

/// How long a device may go on once a rank has gone: a rank that closes its pool has sent all that its own
/// steps send.
const GRACE: Duration = Duration::from_millis(200);

/// How long an emulated device may go on, which a busy host may leave waiting for a processor.
const GRACE_OF_EMULATED: Duration = Duration::from_secs(1);

/// How long the other ranks are waited for at most to say which step they are at, once an exchange between
/// devices has failed: longer than one takes to notice that this rank waits so.
const COMPARED: Duration = Duration::from_secs(3);

/// How many times the watch looks after the last call before it sleeps: to be woken costs the next call more.
const LOOKS_OF_IDLE: u32 = 50;

/// From when on a wait leaves the processor to others.
const LONG: Duration = Duration::from_millis(100);

/// Returns how long a device waits for a rank, of the pool's timeout: the hosts compare their steps in what
/// is left.
pub(super) fn device_wait(timeout: Duration) -> Duration {
    timeout - COMPARED.min(timeout / 4)
}

/// A thread that looks after the ranks while a call of the pool may wait for its device, and while messages
/// may be under way.
#[derive(Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The messages of the pool's thread to the watching thread.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Since when a call may be waiting for the device.
    call: Option<Instant>,
    /// The exchange in which ranks may wait whose devices have done.
    due: Option<What>,
    /// Whether work was enqueued whose end the host has not seen.
    has_work: bool,
    sleeps: bool,
    is_over: bool,
    /// Why the device's waits were ended, if they were.
    told: Option<Error>,
    /// Whether they were: then nothing is looked after any more.
    has_told: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that the watch knows of, until this is dropped.
#[derive(Debug)]
pub(super) struct Watched(Option<Arc<Shared>>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.iter().for_each(|shared| shared.lock().call = None);
    }
}

/// What looks after the ranks.
struct Looking {
    lookout: Lookout,
    rank: usize,
    world: usize,
    giving_up: GivingUp,
    timeout: Duration,
    grace: Duration,
    /// Since when a rank is known to have gone.
    gone: Option<Instant>,
    /// When this rank was last seen to compile: no other one is late by that.
    compiled: Option<Instant>,
    /// Since when messages are under way and no call waits for them: the program may, in one of its own.
    pending: Option<Instant>,
}

impl Looking {
    /// Looks after the other ranks; returns why the device's waits must end, if they must. `call`: since when
    /// a call may be waiting.
    fn look(&mut self, call: Option<Instant>, due: Option<What>) -> Option<Error> {
        // Which rank it is shows when all compare their steps.
        let rank = (self.rank + 1) % self.world;
        let error = match (self.lookout.watch(due), self.giving_up.failure()) {
            (Err(error), _) => error,
            (Ok(()), Some(reason)) => RanksError::Lost { rank, reason }.into(),
            (Ok(()), None) => {
                self.gone = None;
                // Kernels that wait look at a clock themselves; a library's kernels do not.
                if self.giving_up.is_compiling() {
                    self.compiled = Some(Instant::now());
                }
                let wait = device_wait(self.timeout);
                let is_pending = call.is_none() && self.giving_up.is_pending();
                self.pending = is_pending.then(|| *self.pending.get_or_insert_with(Instant::now));
                let since = call.or(self.pending);
                let is_late =
                    since.is_some_and(|since| since.max(self.compiled.unwrap_or(since)).elapsed() >= wait);
                let late = RanksError::Late { rank, waited: self.timeout };
                return (is_late && self.giving_up.sends_messages()).then(|| late.into());
            }
        };
        let gone = *self.gone.get_or_insert_with(Instant::now);
        // Between calls no thread waits, and the device may have other work in front of what it still gets.
        let grace = if call.is_some() { self.grace } else { device_wait(self.timeout) };
        (gone.elapsed() >= grace).then_some(error)
    }

    /// Watches until it is over.
    fn run(mut self, shared: &Shared) {
        let mut idle = 0;
        let mut state = shared.lock();
        while !state.is_over {
            let is_wanted = state.call.is_some() || state.has_work && self.giving_up.sends_messages();
            idle = if is_wanted { 0 } else { idle + 1 };
            state.sleeps = state.has_told || idle > LOOKS_OF_IDLE;
            state = match state.sleeps {
                true => shared.woken.wait(state).unwrap_or_else(PoisonError::into_inner),
                false => shared.woken.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0,
            };
            if state.sleeps {
                (state.sleeps, idle) = (false, 0);
                continue;
            }
            if state.is_over || state.has_told || !is_wanted {
                continue;
            }
            let (call, due) = (state.call, state.due);
            drop(state);
            let error = self.look(call, due);
            state = shared.lock();
            if let Some(error) = error {
                // Before the waits end, so that the thread that waited finds it.
                state.told.get_or_insert_with(|| error.clone());
                state.has_told = true;
                drop(state);
                give_up(&self.giving_up, self.rank, &error);
                state = shared.lock();
            }
        }
    }
}

/// Ends the waits of the device of a rank.
fn give_up(giving_up: &GivingUp, own: usize, error: &Error) {
    let rank = error.of_ranks().and_then(RanksError::rank).unwrap_or(own);
    // A device that has failed ends its waits, and returns its own error.
    let _ = giving_up.give_up(rank);
}

impl Watch {
    /// A watch over nothing, before the devices are connected.
    pub fn none() -> Self {
        Self { shared: Arc::default(), thread: None }
    }

    /// Begins to look after the ranks of a group.
    pub fn begin(group: &Group, giving_up: GivingUp, timeout: Duration, is_emulated: bool) -> Self {
        let shared = Arc::new(Shared::default());
        let looking = Looking {
            lookout: group.lookout(),
            rank: group.rank(),
            world: group.world(),
            giving_up,
            timeout,
            grace: if is_emulated { GRACE_OF_EMULATED } else { GRACE },
            gone: None,
            compiled: None,
            pending: None,
        };
        let own = Arc::clone(&shared);
        let thread = (group.world() > 1).then(|| thread::spawn(move || looking.run(&own)));
        Self { shared, thread }
    }

    /// Notes that a call may wait for the device from now on, unless an outer one does already. `due`: the
    /// exchange in which ranks may wait whose devices have done.
    pub fn call(&self, due: Option<What>) -> Watched {
        let mut state = self.shared.lock();
        state.due = due;
        if state.call.is_some() {
            return Watched(None);
        }
        state.call = Some(Instant::now());
        if state.sleeps {
            self.shared.woken.notify_one();
        }
        Watched(Some(Arc::clone(&self.shared)))
    }

    /// Notes that messages may be under way from now on, or that the host has seen the end of all.
    pub fn set_work(&self, has_work: bool) {
        let mut state = self.shared.lock();
        state.has_work = has_work;
        if has_work && state.sleeps {
            self.shared.woken.notify_one();
        }
    }

    /// Returns why the device's waits were ended, once.
    pub fn take(&self) -> Option<Error> {
        self.shared.lock().told.take()
    }

    fn tell(&self, error: Error) {
        let mut state = self.shared.lock();
        (state.told, state.has_told) = (Some(error), true);
    }

    fn has_told(&self) -> bool {
        self.shared.lock().has_told
    }

    /// Ends the watch: its thread looks at the group and the windows no more.
    pub fn end(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.woken.notify_one();
        if let Some(thread) = self.thread.take() {
            // A watch does not panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl GpuRanks {
    /// Waits until the device has done what is enqueued, and no longer for ranks that have gone; reads the
    /// results of the last step into `words`. Returns the exchange that failed, and how long the host waited.
    pub(super) fn read_results(&mut self, words: &mut [u32]) -> Result<Option<(ExchangeFailure, Duration)>> {
        let watched = self.watch.call(self.due());
        let (group, giving_up, watch) = (&mut self.common.group, self.windows.giving_up(), &self.watch);
        let since = Instant::now();
        let mut asked = since;
        let read = self.windows.read_results(words, &mut || {
            if asked.elapsed() >= LOOK && !watch.has_told() {
                asked = Instant::now();
                if let Err(error) = group.ask() {
                    watch.tell(error.clone());
                    give_up(&giving_up, group.rank(), &error);
                }
            }
            if since.elapsed() > LONG {
                thread::sleep(LONG / 1000);
            } else {
                thread::yield_now();
            }
        });
        let waited = since.elapsed();
        drop(watched);
        self.watch.set_work(false);
        self.state.note(self.watch.take());
        Ok(read?.map(|failure| (failure, waited)))
    }

    /// Returns the error of an exchange between devices that failed, for which the host `waited`.
    pub(super) fn failed(&mut self, slots: &Slots, (failure, waited): (ExchangeFailure, Duration)) -> Error {
        let gone = self.state.take_gone();
        let told = match (failure, gone) {
            (_, Some(gone)) if gone.of_ranks() == Some(&RanksError::Interrupted) => return gone,
            (ExchangeFailure::Corrupt { rank }, _) => {
                return RanksError::Corrupt { rank, what: "results that no rank sends".to_owned() }.into();
            }
            (ExchangeFailure::TimedOut { rank }, None) if self.transport == TransportKind::Nccl => {
                // Its message came, and says nothing.
                RanksError::Lost { rank, reason: "it has given the step up".to_owned() }.into()
            }
            (ExchangeFailure::TimedOut { rank }, None) => {
                RanksError::Late { rank, waited: self.timeout }.into()
            }
            (ExchangeFailure::OtherStep { rank, ours, theirs }, _) => {
                // Until the other host tells its call, if it does in time, this rank knows its own.
                let own = self.common.alike.tell(slots, StepPart::Shape).join("; ");
                let what = "the call, or the type or kind of its rows";
                let (ours, theirs) =
                    (format!("{own} (digest {ours:08x})"), format!("another (digest {theirs:08x})"));
                RanksError::Disagree { rank, what, ours, theirs }.into()
            }
            (_, Some(gone)) => gone,
            (ExchangeFailure::GivenUp { rank }, None) => {
                RanksError::Lost { rank, reason: "it went before".to_owned() }.into()
            }
        };
        // All ranks that notice tell each other which step they are at.
        let mut digest = self.turn.digest;
        if let Some((dtype, kind)) = self.turn.rows {
            // Devices that send other rows, or none, come never to where they would compare their digests.
            self.common.alike.add_rows(&mut digest, (dtype.name(), kind));
        }
        let patience = match told.of_ranks() {
            // To end the messages of NCCL takes a part of the time that is left.
            Some(RanksError::Late { .. }) => {
                self.timeout.saturating_sub(waited.max(device_wait(self.timeout)))
            }
            _ => COMPARED.min(self.timeout),
        };
        let compared = self.common.group.compare(digest, patience);
        let disagrees = |error: &Error| matches!(error.of_ranks(), Some(RanksError::Disagree { .. }));
        let late = |error: &Error| match error.of_ranks() {
            Some(RanksError::Late { rank, .. }) => Some(*rank),
            _ => None,
        };
        match compared {
            Ok(())
                if let (true, ExchangeFailure::OtherStep { rank, ours, theirs }) =
                    (self.turn.rows.is_some(), failure) =>
            {
                // The hosts have compared all that they know.
                let digest = |word| format!("digest {word:08x}");
                RanksError::disagree(rank, "drafts in device memory", digest(ours), digest(theirs)).into()
            }
            Err(error) if disagrees(&error) => self.common.explain(slots, error),
            Err(error) if is_lost(&error) && !disagrees(&told) => error,
            Err(error)
                if late(&told).is_some()
                    && let Some(rank) = late(&error) =>
            {
                RanksError::Late { rank, waited: self.timeout }.into()
            }
            _ => told,
        }
    }
}
