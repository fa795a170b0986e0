//! Messages between emulated devices, whose ranks are threads of one process.
//!
//! A message that does not come, or has another size than its receiver expects, is waited for until the
//! receiver gives up, as NCCL does.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::driver::runtime::{GROUP_ID_BYTES, GroupId, LOOK, Message};
use crate::error::{Error, Result};

static GROUPS: LazyLock<Mutex<Groups>> = LazyLock::new(Mutex::default);

/// The groups of a process.
#[derive(Default)]
struct Groups {
    /// How many were made.
    made: u64,
    /// Those whose ranks are alive.
    hubs: HashMap<GroupId, Weak<Hub>>,
}

impl Groups {
    fn lock() -> MutexGuard<'static, Self> {
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the ranks of a group share.
#[derive(Debug, Default)]
struct Hub {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    joined: usize,
    /// Messages under way, by the ranks that they come from and go to.
    mail: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    /// The ranks that have given up.
    ended: Vec<usize>,
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank's place in a group of emulated devices.
#[derive(Clone, Debug)]
pub(crate) struct Mailbox {
    hub: Arc<Hub>,
    rank: usize,
}

impl Mailbox {
    /// Returns the id of a new group.
    pub fn new_id() -> GroupId {
        let mut groups = Groups::lock();
        groups.made += 1;
        let mut id = [0; GROUP_ID_BYTES];
        id[..size_of::<u64>()].copy_from_slice(&groups.made.to_le_bytes());
        id
    }

    /// Joins a group, once all its ranks have come.
    ///
    /// # Errors
    /// - [`Error::Call`] if a rank does not come as long as `goes_on` returns true.
    pub fn join(
        id: &GroupId,
        (rank, world): (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self> {
        let hub = {
            let hubs = &mut Groups::lock().hubs;
            hubs.retain(|_, hub| hub.strong_count() > 0);
            let hub = hubs.get(id).and_then(Weak::upgrade).unwrap_or_default();
            hubs.insert(*id, Arc::downgrade(&hub));
            hub
        };
        let mut state = hub.lock();
        state.joined += 1;
        hub.changed.notify_all();
        while state.joined < world {
            state = hub.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if state.joined < world && !goes_on() {
                return Err(Error::call("join_group", "not all ranks came in time"));
            }
        }
        drop(state);
        Ok(Self { hub, rank })
    }

    /// Sends messages, and waits for those that come; returns before they have, once this rank has given up.
    ///
    /// # Safety
    /// The ranges lie in memory of the emulated device, and nobody else uses them meanwhile.
    pub unsafe fn exchange(&self, send: &[Message], receive: &[Message]) {
        let mut state = self.hub.lock();
        if state.ended.contains(&self.rank) {
            return;
        }
        for message in send {
            // SAFETY: the caller guarantees the range.
            let bytes =
                unsafe { std::slice::from_raw_parts(message.address as *const u8, message.bytes) }.to_vec();
            state.mail.entry((self.rank, message.peer)).or_default().push_back(bytes);
        }
        self.hub.changed.notify_all();
        for message in receive {
            let bytes = loop {
                if state.ended.contains(&self.rank) {
                    return;
                }
                let mail = state.mail.entry((message.peer, self.rank)).or_default();
                match mail.front().is_some_and(|bytes| bytes.len() == message.bytes) {
                    true => break mail.pop_front().expect("just seen"),
                    false => state = self.hub.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            // SAFETY: the caller guarantees the range.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.address as *mut u8, bytes.len());
            };
        }
    }

    /// Gives up: nothing is sent or waited for any more.
    pub fn end(&self) {
        self.hub.lock().ended.push(self.rank);
        self.hub.changed.notify_all();
    }
}
