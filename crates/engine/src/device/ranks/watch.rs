//! The wait of a host for its device, which may be waiting for ranks that have gone: these are noticed by their connections.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use gumball_cuda::{ExchangeFailure, GivingUp, Windows};
use gumball_dist::{Error as DistError, Group};

use super::DeviceDistPool;

/// How often the other ranks are looked after.
const LOOK: Duration = Duration::from_millis(20);

/// How long a device may go on once a rank has gone: a rank that closes its pool has sent all that its own steps send.
const GRACE: Duration = Duration::from_millis(200);

/// How long the other ranks are waited for to say which step they are at, once an exchange between devices has failed.
const COMPARED: Duration = Duration::from_secs(1);

/// From when on a wait leaves the processor to others.
const LONG: Duration = Duration::from_millis(100);

/// Looks after the other ranks until `is_over`, which waits a moment, says so. If one has gone, or the program wants to wait no longer, the
/// device's waits are ended; returns why.
fn watch(group: &mut Group, giving_up: &GivingUp, mut is_over: impl FnMut() -> bool) -> Option<DistError> {
    let (mut looked, mut gone) = (Instant::now(), None);
    while !is_over() {
        if looked.elapsed() < LOOK {
            continue;
        }
        looked = Instant::now();
        let Err(error) = group.watch() else { continue };
        let since = *gone.get_or_insert(looked);
        if error == DistError::Interrupted || since.elapsed() >= GRACE {
            // A device that has failed ends its waits, and tells its own error.
            let _ = giving_up.give_up(error.rank().unwrap_or(group.rank()));
            return Some(error);
        }
    }
    None
}

/// Does work that enqueues. An emulated device runs what is enqueued at once, so another thread looks after the ranks meanwhile. Returns
/// also why the device's waits were ended, if they were.
pub(super) fn beside<T>(
    group: &mut Group,
    windows: &Windows,
    is_emulated: bool,
    work: impl FnOnce() -> T,
) -> (T, Option<DistError>) {
    if !is_emulated {
        return (work(), None);
    }
    let (working, over) = mpsc::channel::<()>();
    let giving_up = windows.giving_up();
    std::thread::scope(|scope| {
        let is_over = move || over.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout);
        let watcher = scope.spawn(move || watch(group, &giving_up, is_over));
        let done = work();
        drop(working);
        (done, watcher.join().expect("a watch does not panic"))
    })
}

impl DeviceDistPool {
    /// Waits until the device has done what is enqueued, and no longer for ranks that have gone.
    pub(super) fn await_device(&mut self) {
        let (giving_up, windows, since) = (self.windows.giving_up(), &self.windows, Instant::now());
        let is_over = || {
            let is_idle = windows.is_idle().unwrap_or(true);
            match since.elapsed() > LONG {
                _ if is_idle => {}
                true => std::thread::sleep(LONG / 1000),
                false => std::thread::yield_now(),
            }
            is_idle
        };
        let gone = watch(&mut self.group, &giving_up, is_over);
        self.gone = self.gone.take().or(gone);
    }

    /// Returns the error of an exchange between devices that failed.
    pub(super) fn failed(&mut self, failure: ExchangeFailure) -> DistError {
        let told = match (failure, self.gone.take()) {
            (_, Some(DistError::Interrupted)) => return DistError::Interrupted,
            (ExchangeFailure::Corrupt { rank }, _) => {
                return DistError::Corrupt { rank, what: "results that no rank sends".to_owned() };
            }
            (ExchangeFailure::TimedOut { rank }, None) => {
                return DistError::TimedOut { rank, waited: self.timeout };
            }
            (ExchangeFailure::OtherStep { rank, ours, theirs }, _) => {
                let told = |digest: u32| format!("digest {digest:08x}");
                let what = "the type or kind of the rows";
                DistError::Disagree { rank, what, ours: told(ours), theirs: told(theirs) }
            }
            (_, Some(gone)) => gone,
            (ExchangeFailure::GivenUp { rank }, None) => {
                DistError::Lost { rank, reason: "it went before".to_owned() }
            }
        };
        // All ranks that notice tell each other which step they are at.
        match self.group.compare(self.assigned.digest, COMPARED.min(self.timeout)) {
            Err(error @ DistError::Disagree { .. }) => error,
            Err(error @ DistError::Lost { .. }) if !matches!(told, DistError::Disagree { .. }) => error,
            _ => told,
        }
    }
}
