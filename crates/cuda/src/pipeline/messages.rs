//! Exchanges by messages, where devices do not reach each other's memory.
//!
//! A rank's part of the rows of an owner is one message, and so is what it sends of results. The kernels that
//! copy rows into windows gather what a message carries, and put what came into this rank's window; the
//! kernel of the results runs twice, and messages travel between.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use crate::abi::{self, WindowHeader};
use crate::driver::runtime::{Message, Messenger, Runtime, received_while};
use crate::error::Error;
use crate::launch::tuning;
use crate::memory::buffer::Buffer;
use crate::pipeline::workspace::Workspace;

/// Parts of rows, and what is said of results, begin at multiples of this many bytes.
pub(super) const ALIGNMENT: usize = 256;

/// Where results begin in a window, in bytes, and in a message, which a window's header precedes.
pub(super) const RESULTS_OFFSET: usize = size_of::<WindowHeader>().next_multiple_of(ALIGNMENT);

/// The memory in which messages begin and end, and what carries them.
#[derive(Debug)]
pub(crate) struct Post {
    pub(super) messenger: Arc<dyn Messenger>,
    /// First the header of a window that no rank writes; then what this rank sends of results, and what each
    /// rank sends; then parts of rows.
    pub(super) memory: Buffer,
    /// The most bytes of a message of results.
    results_bytes: usize,
}

/// What travels in messages in a step.
#[derive(Clone, Debug)]
pub(crate) struct Mail {
    pub(super) messenger: Arc<dyn Messenger>,
    /// Gathers the parts of rows that are sent, if they do not lie so.
    pub(super) pack: Option<abi::SendRows>,
    pub(super) send_rows: Vec<Message>,
    pub(super) receive_rows: Vec<Message>,
    /// Put own parts of rows, and those that came, into this rank's window.
    pub(super) unpack: Vec<abi::SendRows>,
    pub(super) write_results: abi::SendResults,
    pub(super) send_results: Vec<Message>,
    pub(super) receive_results: Vec<Message>,
    pub(super) collect_results: abi::SendResults,
}

impl Post {
    /// Takes the memory for steps of at most `row_bytes` bytes of rows, and `result_words` words of results.
    pub fn new(
        runtime: &Arc<dyn Runtime>,
        messenger: Arc<dyn Messenger>,
        world: usize,
        (row_bytes, result_words): (usize, usize),
    ) -> crate::Result<Self> {
        let results_bytes = RESULTS_OFFSET + (result_words * size_of::<u64>()).next_multiple_of(ALIGNMENT);
        // Parts of rows and own parts have each as many bytes as whole rows together, at most.
        let bytes = RESULTS_OFFSET + (world + 1) * (results_bytes + ALIGNMENT) + row_bytes;
        Ok(Self { messenger, memory: Buffer::zeroed(runtime, bytes)?, results_bytes })
    }

    /// Sends an empty message to each other rank, by which the library connects them: in a capture it may
    /// not. Waits for the ranks as long as `goes_on` returns true, which is asked again and again.
    ///
    /// # Errors
    /// - [`Error::Call`](crate::Error::Call) if a rank does not come; and those of [`Messenger::exchange`].
    pub fn connected(
        self,
        (rank, world): (usize, usize),
        goes_on: &mut dyn FnMut() -> bool,
    ) -> crate::Result<Self> {
        let bytes = RESULTS_OFFSET;
        let peers = || (0..world).filter(|peer| *peer != rank);
        let send: Vec<_> = peers().map(|peer| Message { peer, address: self.written(), bytes }).collect();
        let receive: Vec<_> =
            peers().map(|peer| Message { peer, address: self.arrived(peer), bytes }).collect();
        let messenger = Arc::clone(&self.messenger);
        let (done, over) = mpsc::channel();
        // The library waits for the ranks in this call, for ever if one does not come: then it has to be
        // ended.
        thread::spawn(move || {
            // SAFETY: the ranges lie in this post's memory, which stays until the call is over; all ranks do
            // this first.
            let _ = done.send(unsafe { messenger.exchange(&send, &receive) });
        });
        if let Some(connected) = received_while(&over, goes_on) {
            return connected.map(|()| self);
        }
        self.messenger.abort();
        thread::spawn(move || {
            let _ = over.recv();
            drop(self);
        });
        Err(Error::call("connecting the ranks", "not all came in time"))
    }

    /// Where this rank writes what it sends of results.
    pub(super) fn written(&self) -> u64 {
        self.memory.address() + RESULTS_OFFSET as u64
    }

    /// Where arrives what a rank sends of results. Parts of rows begin where one more rank's would.
    pub(super) fn arrived(&self, rank: usize) -> u64 {
        self.written() + ((rank + 1) * self.results_bytes) as u64
    }
}

impl Mail {
    /// Enqueues the exchange of rows.
    ///
    /// # Safety
    /// The windows and the post outlive enqueued work, and so does the caller's memory. All ranks enqueue the
    /// same step.
    pub unsafe fn exchange_rows(&self, workspace: &Workspace) -> crate::Result<()> {
        let copy = |rows, after_messages| {
            let launch = tuning::send_rows(&workspace.device, rows, after_messages);
            // SAFETY: the caller guarantees it; `add_rows` kept to the post's memory and the window's rows.
            unsafe { launch.enqueue(&*workspace.runtime, rows) }
        };
        self.pack.as_ref().map_or(Ok(()), |rows| copy(rows, false))?;
        if !(self.send_rows.is_empty() && self.receive_rows.is_empty()) {
            // SAFETY: as above.
            unsafe { self.messenger.exchange(&self.send_rows, &self.receive_rows) }?;
        }
        self.unpack.iter().try_for_each(|rows| copy(rows, true))
    }

    /// Enqueues the exchange of results.
    ///
    /// # Safety
    /// As for [`Mail::exchange_rows`].
    pub unsafe fn exchange_results(&self, workspace: &Workspace) -> crate::Result<()> {
        let runtime = &*workspace.runtime;
        // After messages of rows no kernel may begin early, and this rank may sample none.
        let follows_kernels = self.write_results.step.rows > 0;
        let write = tuning::send_results(&self.write_results, !follows_kernels);
        // SAFETY: the caller guarantees it; the post has a place for each message of the window's results.
        unsafe { write.enqueue(runtime, &self.write_results) }?;
        if !self.send_results.is_empty() {
            // SAFETY: as above.
            unsafe { self.messenger.exchange(&self.send_results, &self.receive_results) }?;
        }
        // SAFETY: as above.
        unsafe { tuning::send_results(&self.collect_results, true).enqueue(runtime, &self.collect_results) }
    }
}
