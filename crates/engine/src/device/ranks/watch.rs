//! The wait of a host for its device, which may be waiting for ranks that have gone: these are noticed by their connections.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use gumball_cuda::{ExchangeFailure, GivingUp, Windows};
use gumball_dist::{Group, StepPart, TransportKind, What};
use gumball_spec::{Error, RanksError, Result};

use super::{GpuRanks, is_lost};
use crate::slots::Slots;

/// How often the other ranks are looked after.
const LOOK: Duration = Duration::from_millis(20);

/// How long a device may go on once a rank has gone: a rank that closes its pool has sent all that its own steps send.
const GRACE: Duration = Duration::from_millis(200);

/// The same for an emulated device, which a busy host may leave waiting for a processor.
const GRACE_OF_EMULATED: Duration = Duration::from_secs(1);

/// How long the other ranks are waited for at most to say which step they are at, once an exchange between devices has failed: longer than one
/// takes to notice that this rank waits so.
const COMPARED: Duration = Duration::from_secs(3);

/// Returns how long a device waits for a rank, of the pool's timeout: the hosts compare their steps in what is left.
pub(super) fn device_wait(timeout: Duration) -> Duration {
    timeout - COMPARED.min(timeout / 4)
}

/// From when on a wait leaves the processor to others.
const LONG: Duration = Duration::from_millis(100);

/// A wait of the host for its device.
struct Watch<'a> {
    group: &'a mut Group,
    /// The exchange in which ranks may wait whose devices have done.
    due: Option<What>,
    giving_up: GivingUp,
    /// How long the device may wait; kernels see to it themselves, but those of a library do not.
    timeout: Duration,
    grace: Duration,
    since: Instant,
    looked: Instant,
    gone: Option<Instant>,
    /// Why the device's waits were ended, if they were.
    told: Option<Error>,
}

impl<'a> Watch<'a> {
    fn new(group: &'a mut Group, (windows, timeout, due): Waits<'_>, grace: Duration) -> Self {
        let (now, giving_up) = (Instant::now(), windows.giving_up());
        Self { group, due, giving_up, timeout, grace, since: now, looked: now, gone: None, told: None }
    }

    /// Looks after the other ranks, if that was not done just now. If one has gone, or the program wants to wait no longer, the device's waits
    /// are ended.
    fn look(&mut self) {
        if self.told.is_some() || self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        // Which rank it is shows when all compare their steps.
        let rank = (self.group.rank() + 1) % self.group.world();
        let error = match (self.group.watch(self.due), self.giving_up.failure()) {
            (Err(error), _) => error,
            (Ok(()), Some(reason)) => RanksError::Lost { rank, reason }.into(),
            (Ok(()), None)
                if self.giving_up.sends_messages() && self.since.elapsed() >= device_wait(self.timeout) =>
            {
                return self.give_up(RanksError::TimedOut { rank, waited: self.timeout }.into());
            }
            (Ok(()), None) => return,
        };
        let since = *self.gone.get_or_insert(self.looked);
        if error.of_ranks() == Some(&RanksError::Interrupted) || since.elapsed() >= self.grace {
            self.give_up(error);
        }
    }

    /// Ends the device's waits.
    fn give_up(&mut self, error: Error) {
        let rank = error.of_ranks().and_then(RanksError::rank).unwrap_or(self.group.rank());
        // A device that has failed ends its waits, and returns its own error.
        let _ = self.giving_up.give_up(rank);
        self.told = Some(error);
    }

    /// Looks after the other ranks, and leaves the processor to others for a moment.
    fn wait(&mut self) {
        self.look();
        if self.since.elapsed() > LONG {
            std::thread::sleep(LONG / 1000);
        } else {
            std::thread::yield_now();
        }
    }
}

/// The windows through which a device waits, for how long, and the exchange in which ranks may wait whose devices have done.
pub(super) type Waits<'a> = (&'a Windows, Duration, Option<What>);

/// Does work that enqueues. An emulated device runs what is enqueued at once, so another thread looks after the ranks meanwhile. Returns
/// also why the device's waits were ended, if they were.
pub(super) fn beside<T>(
    group: &mut Group,
    waits: Waits<'_>,
    is_emulated: bool,
    work: impl FnOnce() -> T,
) -> (T, Option<Error>) {
    if !is_emulated {
        return (work(), None);
    }
    let (working, over) = mpsc::channel::<()>();
    let mut watch = Watch::new(group, waits, GRACE_OF_EMULATED);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                watch.look();
            }
            watch.told
        });
        let done = work();
        drop(working);
        (done, watcher.join().expect("a watch does not panic"))
    })
}

impl GpuRanks {
    /// Waits until the device has done what is enqueued, and no longer for ranks that have gone; reads the results of the last step into `words`.
    pub(super) fn read_results(&mut self, words: &mut [u32]) -> Result<Option<ExchangeFailure>> {
        let waits = (&self.windows, self.timeout, self.due());
        let mut watch = Watch::new(&mut self.common.group, waits, GRACE);
        let read = self.windows.read_results(words, &mut || watch.wait());
        self.waited = watch.since.elapsed();
        self.gone = self.gone.take().or(watch.told);
        read
    }

    /// Returns the error of an exchange between devices that failed.
    pub(super) fn failed(&mut self, slots: &Slots, failure: ExchangeFailure) -> Error {
        let gone = self.gone.take();
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
                RanksError::TimedOut { rank, waited: self.timeout }.into()
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
        let mut digest = self.digest;
        if let Some((dtype, kind)) = self.row_type {
            // Devices that send other rows, or none, come never to where they would compare their digests.
            self.common.alike.add_rows(&mut digest, (dtype.name(), kind));
        }
        let patience = match told.of_ranks() {
            // To end the messages of NCCL takes a part of what is left.
            Some(RanksError::TimedOut { .. }) => {
                self.timeout.saturating_sub(self.waited.max(device_wait(self.timeout)))
            }
            _ => COMPARED.min(self.timeout),
        };
        let compared = self.common.group.compare(digest, patience);
        let disagrees = |error: &Error| matches!(error.of_ranks(), Some(RanksError::Disagree { .. }));
        let late = |error: &Error| match error.of_ranks() {
            Some(RanksError::TimedOut { rank, .. }) => Some(*rank),
            _ => None,
        };
        match compared {
            Err(error) if disagrees(&error) => self.common.explain(slots, error),
            Err(error) if is_lost(&error) && !disagrees(&told) => error,
            Err(error)
                if late(&told).is_some()
                    && let Some(rank) = late(&error) =>
            {
                RanksError::TimedOut { rank, waited: self.timeout }.into()
            }
            _ => told,
        }
    }
}
