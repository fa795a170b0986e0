//! Ranks that are threads of one process: messages are handed over in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Bounds, Transport, left, too_long};
use gumball_spec::{RanksError, Result};

/// The memory that the ranks share.
#[derive(Debug)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Messages under way, `from * world + to`.
    mail: Vec<VecDeque<Vec<u8>>>,
    /// Which ranks have ended.
    gone: Vec<bool>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank among the threads of a process.
#[derive(Debug)]
pub struct Threads {
    hub: Arc<Hub>,
    rank: usize,
    world: usize,
    timeout: Duration,
}

/// Makes a group of ranks, each to be given to a thread. A rank that is dropped has ended for the others.
#[must_use]
pub fn threads(world: usize, timeout: Duration) -> Vec<Threads> {
    let state = State { mail: vec![VecDeque::new(); world * world], gone: vec![false; world] };
    let hub = Arc::new(Hub { state: Mutex::new(state), changed: Condvar::new() });
    (0..world).map(|rank| Threads { hub: Arc::clone(&hub), rank, world, timeout }).collect()
}

impl Threads {
    /// Takes the next message of a rank, which is waited for until `patience` has passed since `since`.
    fn receive(&self, from: usize, (since, patience): (Instant, Duration)) -> Result<Vec<u8>> {
        let place = from * self.world + self.rank;
        let mut state = self.hub.lock();
        loop {
            if let Some(message) = state.mail[place].pop_front() {
                return Ok(message);
            }
            if state.gone[from] {
                let reason = "its thread gave up its place in the group".to_owned();
                return Err(RanksError::Lost { rank: from, reason }.into());
            }
            let Some(left) = patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(RanksError::Late { rank: from, waited: self.timeout }.into());
            };
            let woken = self.hub.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Transport for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn name(&self) -> &'static str {
        "threads"
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn watch(&mut self, is_due: &dyn Fn(&[u8]) -> bool) -> Result<()> {
        let state = self.hub.lock();
        let has_gone = |from: &usize| match state.mail[from * self.world + self.rank].front() {
            Some(message) => !is_due(message),
            None => state.gone[*from],
        };
        match (0..self.world).filter(|from| *from != self.rank).find(has_gone) {
            None => Ok(()),
            Some(rank) => Err(left(rank)),
        }
    }

    fn leave(&mut self) -> Option<bool> {
        let mut state = self.hub.lock();
        state.gone[self.rank] = true;
        self.hub.changed.notify_all();
        Some(state.gone.iter().all(|gone| *gone))
    }

    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>], bounds: Bounds<'_>) -> Result<()> {
        let mut messages: Vec<Vec<u8>> = send.iter().map(|message| message.to_vec()).collect();
        let mut state = self.hub.lock();
        for (to, message) in messages.iter_mut().enumerate().filter(|(to, _)| *to != self.rank) {
            state.mail[self.rank * self.world + to].push_back(std::mem::take(message));
        }
        drop(state);
        self.hub.changed.notify_all();
        let since = Instant::now();
        for (from, to) in receive.iter_mut().enumerate() {
            if from == self.rank {
                *to = std::mem::take(&mut messages[from]);
                continue;
            }
            *to = self.receive(from, (since, bounds.patience))?;
            let (bytes, most) = (to.len(), bounds.most_bytes[from]);
            if bytes > most {
                return Err(too_long(from, bytes as u64, most));
            }
        }
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.hub.lock().gone[self.rank] = true;
        self.hub.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_gets_what_each_sent_it() {
        let ranks = threads(4, Duration::from_secs(20));
        std::thread::scope(|scope| {
            for mut rank in ranks {
                scope.spawn(move || {
                    let own = rank.rank();
                    for turn in 0..50 {
                        let messages: Vec<Vec<u8>> =
                            (0..4).map(|to| vec![(10 * own + to + turn) as u8; to + own]).collect();
                        let send: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
                        let mut receive = vec![Vec::new(); 4];
                        let bounds = Bounds { patience: rank.timeout(), most_bytes: &[9; 4] };
                        rank.all_to_all(&send, &mut receive, bounds).unwrap();
                        for (from, message) in receive.iter().enumerate() {
                            assert_eq!(*message, vec![(10 * from + own + turn) as u8; from + own]);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_late_rank_is_named_and_so_is_one_that_ended() {
        let mut ranks = threads(3, Duration::from_millis(30));
        let (mut last, mut second) = (ranks.pop().unwrap(), ranks.pop().unwrap());
        let error = second.barrier().unwrap_err();
        assert_eq!(error, RanksError::Late { rank: 0, waited: Duration::from_millis(30) }.into());
        drop(ranks);
        let since = Instant::now();
        let error = last.barrier().unwrap_err();
        assert!(matches!(error.of_ranks(), Some(RanksError::Lost { rank: 0, .. })));
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}
