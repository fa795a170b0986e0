//! Windows: the memory of each rank of a group that its peers write.
//!
//! A window begins with a header; the results of a batch follow, then the places where results arrive, the
//! flags of blocks, the places where words about rows arrive that ranks have parts of, and rows of logits.
//! All ranks make windows of the same extent, hand out their handles, and map those of the others, once.

use std::sync::Arc;
use std::time::Duration;

use gumball_spec::layout::{Layout, Widths};
use gumball_spec::{Error, Result, memory};

use crate::abi::dtype::Dtype;
use crate::abi::{
    self, MAX_RANKS, MAX_SURVEYED_RANKS, SEND_ROWS_MOST_BLOCKS, SHARD_WORDS, WindowHeader, exchange_failures,
};
use crate::driver::peer_memory::{MemoryHandle, withdraw};
use crate::driver::runtime::{GroupId, Meeting, Messenger, Runtime};
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::rows::Rows;
use crate::pipeline::messages::{Post, RESULTS_OFFSET};
use crate::pipeline::rank_rows::{ExchangeFailure, ExchangeLayout};
use crate::pipeline::results::WALK_WORDS;
use crate::pipeline::workspace::Workspace;

/// Windows are multiples of this many bytes. The driver may put smaller allocations into one block of memory,
/// and a handle maps all of it.
const GRANULE: usize = 2 << 20;

/// Rows in a window begin at multiples of this many bytes.
const ROW_ALIGNMENT: usize = 128;

/// The bytes of the flags of blocks.
const BLOCK_FLAGS_BYTES: usize = MAX_RANKS * SEND_ROWS_MOST_BLOCKS as usize * size_of::<u64>();

/// The widest element of a row, in bytes.
const WIDEST: usize = size_of::<f32>();

/// The failure that the host writes; kernels tell it from none alone.
const GIVEN_UP: u32 = u32::MAX;

/// By which the host ends the waits of a device for other ranks, while its thread may be waiting for the
/// device itself.
#[derive(Clone, Debug)]
pub struct GivingUp {
    runtime: Arc<dyn Runtime>,
    header: u64,
    messenger: Option<Arc<dyn Messenger>>,
}

impl GivingUp {
    /// Ends all waits in exchanges of this rank, those to come included, because `rank` has gone: they fail
    /// at once. The windows must be alive.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    pub fn give_up(&self, rank: usize) -> Result<()> {
        // First what needs nothing of the device, whose driver another thread may keep as long as messages
        // are waited for.
        self.messenger.iter().for_each(|messenger| messenger.abort());
        let places =
            [std::mem::offset_of!(WindowHeader, failed_rank), std::mem::offset_of!(WindowHeader, failure)];
        let written = places.into_iter().zip([rank as u32, GIVEN_UP]).try_for_each(|(place, word)| {
            // SAFETY: the caller keeps the windows, at whose start the header lies. Kernels load `failure` as
            // a word that others change, and `failed_rank` is read by the host alone.
            unsafe { self.runtime.write_at_once(self.header + place as u64, word) }
        });
        Ok(written?)
    }

    /// Returns whether results travel in messages, which only the host can give up.
    #[must_use]
    pub fn sends_messages(&self) -> bool {
        self.messenger.is_some()
    }

    /// Returns whether messages that were enqueued have yet to travel.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.messenger.as_ref().is_some_and(|messenger| messenger.is_pending())
    }

    /// Returns whether the device's kernels are being compiled.
    #[must_use]
    pub fn is_compiling(&self) -> bool {
        self.runtime.is_compiling()
    }

    /// Returns why messages travel no more, if that is known.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.messenger.as_ref()?.failure()
    }
}

/// The memory of a rank that other ranks may still write. It is freed when this is dropped.
#[derive(Debug)]
pub struct SharedMemory {
    own: Option<Buffer>,
    post: Option<Post>,
}

impl SharedMemory {
    /// Returns whether it is written by messages alone.
    #[must_use]
    pub fn is_of_messages(&self) -> bool {
        self.post.is_some()
    }

    /// Ends messages, and returns whether they have ended within `patience`, so that no rank writes the
    /// memory any more: a graph that holds some keeps them. Of memory that other ranks write themselves it
    /// says nothing, and returns false.
    #[must_use]
    pub fn has_ended(&self, patience: Duration) -> bool {
        self.post.as_ref().is_some_and(|post| {
            post.messenger.abort();
            post.messenger.has_ended(patience)
        })
    }

    /// Keeps the memory until the process ends.
    pub fn keep(mut self) {
        std::mem::forget(self.own.take());
        std::mem::forget(self.post.take());
    }
}

/// A rank's window, and those of its peers as they are mapped here.
#[derive(Debug)]
pub struct Windows {
    runtime: Arc<dyn Runtime>,
    /// `None` once the memory was left to peers that may still write it.
    own: Option<Buffer>,
    /// The rows of the batch in the order in which they are assigned, if that is another one.
    batch_rows: Buffer,
    has_batch_rows: bool,
    /// The slots of rows that are swapped under `Survey`.
    pub(super) swap_slots: Buffer,
    pub(super) peers: abi::Peers,
    mapped: Vec<(MemoryHandle, u64)>,
    /// What carries messages, if the ranks do not write each other's windows.
    pub(super) post: Option<Post>,
    /// Those of steps that the windows have places for.
    layouts: Vec<ExchangeLayout>,
    digest: u32,
    rows: usize,
    vocab: usize,
    widths: Widths,
    /// The bytes of a batch's results.
    results_bytes: usize,
    /// The bytes of each of the two places for words about the rows of a batch; 0 without these.
    words_bytes: usize,
    pub(super) rows_offset: usize,
    /// What the host reads: the header, and results.
    words: Vec<u32>,
}

impl Windows {
    /// Allocates the window of a rank, for steps of a workspace under these layouts: under all but
    /// [`Replicated`](ExchangeLayout::Replicated) it has a place for each row, of f32, and under
    /// [`Survey`](ExchangeLayout::Survey) 8 KB more for each row and rank.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for more than 16 ranks, under `Survey` for more than 8.
    /// - [`Error::Unavailable`] if the device has not enough memory.
    ///
    /// # Panics
    /// If `rank` is not below `world`.
    pub fn new(workspace: &Workspace, rank: usize, world: usize, layouts: &[ExchangeLayout]) -> Result<Self> {
        assert!(rank < world, "rank {rank} of {world}");
        let surveys = layouts.contains(&ExchangeLayout::Survey);
        let most = if surveys { MAX_SURVEYED_RANKS } else { MAX_RANKS };
        if world > most {
            return Err(Error::out_of_range("world", world, format!("in 1..={most} on devices")));
        }
        let (runtime, limits) = (Arc::clone(&workspace.runtime), workspace.limits());
        let (rows, vocab, widths) = (limits.rows, limits.vocab, limits.widths);
        // After the outputs of a verification lie its walks.
        let words = Layout { rows, widths }.checked_words().unwrap_or(usize::MAX / 64) + WALK_WORDS * rows;
        if i32::try_from(words).is_err() {
            let allowed = "fewer, so that 31 bits number the words of a step's results";
            return Err(Error::out_of_range("rows", rows, allowed));
        }
        let results_bytes = (words * size_of::<u32>()).next_multiple_of(ROW_ALIGNMENT);
        // A word of results arrives in 64 bits, in two places.
        let words_per_row = if surveys { world * SHARD_WORDS as usize * size_of::<u64>() } else { 0 };
        let words_bytes = memory::product(ROWS, &[rows, words_per_row])?.next_multiple_of(ROW_ALIGNMENT);
        let rows_offset = RESULTS_OFFSET + 5 * results_bytes + BLOCK_FLAGS_BYTES + 2 * words_bytes;
        let placed_rows = if has_rows(layouts) { rows } else { 0 };
        let bytes = memory::product(ROWS, &[placed_rows, (vocab * WIDEST).next_multiple_of(ROW_ALIGNMENT)])?;
        let own = Buffer::zeroed(&runtime, (rows_offset + bytes).next_multiple_of(GRANULE))?;
        let batch_rows = Buffer::sized(&runtime, ROWS, &[rows, size_of::<u32>()])?;
        let swap_slots = Buffer::sized(&runtime, ROWS, &[rows, size_of::<i32>()])?;
        let mut windows = [0; MAX_RANKS];
        windows[rank] = own.address();
        let peers = abi::Peers { windows, world: world as u32, rank: rank as u32, timeout_ns: 0 };
        Ok(Self {
            runtime,
            own: Some(own),
            batch_rows,
            has_batch_rows: false,
            swap_slots,
            peers,
            mapped: Vec::new(),
            post: None,
            layouts: layouts.to_vec(),
            digest: 0,
            rows,
            vocab,
            widths,
            results_bytes,
            words_bytes,
            rows_offset,
            words: Vec::new(),
        })
    }

    /// Returns the handle by which the other ranks map this rank's window.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device cannot share its memory.
    pub fn handle(&self) -> Result<MemoryHandle> {
        Ok(self.runtime.export(self.own().address(), self.bytes())?)
    }

    /// Maps the windows of all ranks, by their handles in the order of ranks. Exchanges wait for a rank for
    /// `timeout`.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one handle for each rank.
    /// - [`Error::Unavailable`] if the device cannot reach the memory of a peer, or a handle is of memory
    ///   that is no other rank's window: a rank may send any bytes, and kernels write no further than
    ///   windows.
    ///
    /// Owners keep their windows until this rank has called [`Windows::unmap`] or its process has ended.
    pub fn map(&mut self, handles: &[MemoryHandle], timeout: Duration) -> Result<()> {
        if handles.len() != self.peers.world as usize {
            let allowed = format!("{}, one for each rank", self.peers.world);
            return Err(Error::length("handles", handles.len(), allowed));
        }
        self.peers.timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        for (rank, handle) in handles.iter().enumerate().filter(|(rank, _)| *rank != self.peers.rank as usize)
        {
            let address = self.runtime.map(handle, self.bytes())?;
            if self.peers.windows.contains(&address) {
                let reason = format!("rank {rank} sent the handle of a window that another rank has");
                return Err(crate::error::Error::call("map", reason).into());
            }
            self.mapped.push((*handle, address));
            self.peers.windows[rank] = address;
        }
        Ok(())
    }

    /// Returns the id of a group whose ranks send each other messages, on rank 0, and zeros on the others.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the library is missing or fails that carries messages.
    pub fn new_group(&self) -> Result<GroupId> {
        Ok(self.runtime.new_group(self.peers.rank == 0)?)
    }

    /// Joins a group, in place of windows that are mapped: what travels does so in messages then. All ranks
    /// call this at once; it waits for them as long as `goes_on` returns true, which is asked again and
    /// again. The first messages are enqueued, and come once all ranks have joined. Steps under
    /// [`ExchangeLayout::Survey`](crate::ExchangeLayout::Survey) cannot be served then.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if a rank does not come, the ranks cannot be connected, or the device has not
    ///   enough memory.
    pub fn join_group(&mut self, by: &Meeting, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.unmap();
        let (rank, world) = (self.peers.rank as usize, self.peers.world as usize);
        let messenger = self.runtime.join_group(by, (rank, world), goes_on)?;
        let placed_rows = if has_rows(&self.layouts) { self.rows } else { 0 };
        let row_bytes = memory::product(ROWS, &[placed_rows, self.vocab * WIDEST])?;
        let words = self.results_bytes / size_of::<u32>();
        let post = Post::new(&self.runtime, messenger, world, (row_bytes, words))?;
        self.post = Some(if world > 1 { post.connected((rank, world), goes_on)? } else { post });
        Ok(())
    }

    /// Returns by which the host ends the waits of this rank's device.
    #[must_use]
    pub fn giving_up(&self) -> GivingUp {
        let messenger = self.post.as_ref().map(|post| Arc::clone(&post.messenger));
        GivingUp { runtime: Arc::clone(&self.runtime), header: self.own().address(), messenger }
    }

    /// Gives the other ranks' windows back, once this rank's work is complete. No step may be enqueued
    /// afterwards.
    pub fn unmap(&mut self) {
        for (handle, address) in self.mapped.drain(..) {
            // SAFETY: `map` mapped the memory, and steps of this rank are enqueued no more.
            unsafe { self.runtime.unmap(&handle, address) };
        }
    }

    /// Takes the memory that other ranks may still write: this rank's window, and that of messages. No step
    /// may be enqueued afterwards.
    pub fn take_shared(&mut self) -> SharedMemory {
        self.own.iter().for_each(|own| withdraw(own.address()));
        SharedMemory { own: self.own.take(), post: self.post.take() }
    }

    /// Sets what all ranks must have alike in the next steps. While the host program captures a graph, it may
    /// not change.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    pub fn set_digest(&mut self, digest: u32) -> Result<()> {
        if self.digest != digest {
            let place = std::mem::offset_of!(WindowHeader, digest);
            self.own.as_mut().expect("not abandoned").write(place, &[digest])?;
            self.digest = digest;
        }
        Ok(())
    }

    /// Sets which row of the batch each assigned row is, for steps whose rows are assigned in another order;
    /// empty if they are not.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If there are more rows than the windows have room for.
    pub fn set_batch_rows(&mut self, batch_rows: &[u32]) -> Result<()> {
        self.has_batch_rows = !batch_rows.is_empty();
        Ok(self.batch_rows.write(0, batch_rows)?)
    }

    /// Returns the device address of the last step's results, in the layout of its batch. It never changes.
    #[must_use]
    pub fn results_address(&self) -> u64 {
        self.own().address() + RESULTS_OFFSET as u64
    }

    /// Waits for the steps enqueued before, and reads the results of the last one, in the layout of its
    /// batch; of a verification also the row of each place and the number of accepted drafts of each request,
    /// as [`Results::read_walks`](crate::Results::read_walks) does. Returns why an exchange failed, if one
    /// did; the results say nothing then. Calls `meanwhile` again and again during the wait.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// # Panics
    /// If `results` is longer than the room for results.
    pub fn read_results(
        &mut self,
        results: &mut [u32],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Option<ExchangeFailure>> {
        let header = RESULTS_OFFSET / size_of::<u32>();
        let mut words = std::mem::take(&mut self.words);
        words.resize(header + results.len(), 0);
        let read = self.own().read_meanwhile(0, &mut words, meanwhile);
        results.copy_from_slice(&words[header..]);
        let of_window: WindowHeader = bytemuck::pod_read_unaligned(bytemuck::cast_slice(
            &words[..size_of::<WindowHeader>() / size_of::<u32>()],
        ));
        self.words = words;
        read?;
        let rank = of_window.failed_rank as usize;
        Ok(match of_window.failure {
            0 => None,
            exchange_failures::OTHER_STEP => {
                let (ours, theirs) = (of_window.own_digest, of_window.failed_digest);
                Some(ExchangeFailure::OtherStep { rank, ours, theirs })
            }
            exchange_failures::CORRUPT => Some(ExchangeFailure::Corrupt { rank }),
            GIVEN_UP => Some(ExchangeFailure::GivenUp { rank }),
            _ => Some(ExchangeFailure::TimedOut { rank }),
        })
    }

    /// Returns as many rows of this rank's window, of the type and kind of given parts.
    pub(crate) fn window_rows(&self, parts: &Rows<'_>, rows: usize) -> Result<Rows<'static>> {
        let dtype = parts.dtype;
        let address = self.rows_address();
        // SAFETY: `new` made room for that many rows of the widest type. Only steps of this rank read them,
        // after the exchange that waits for their writers.
        let whole =
            unsafe { Rows::new(address, dtype, rows, self.vocab, self.row_bytes(dtype) / dtype.bytes()) };
        Ok(whole?.with_kind(parts.kind))
    }

    /// Returns how far apart rows of a type lie.
    pub(crate) fn row_bytes(&self, dtype: Dtype) -> usize {
        (self.vocab * dtype.bytes()).next_multiple_of(ROW_ALIGNMENT)
    }

    /// Checks that the windows were made for steps of a workspace, and for a layout.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if they have no places for that layout.
    ///
    /// # Panics
    /// If they were made for another workspace.
    pub(crate) fn check(&self, workspace: &Workspace, layout: ExchangeLayout) -> Result<()> {
        let limits = workspace.limits();
        let same = (limits.rows, limits.vocab, limits.widths) == (self.rows, self.vocab, self.widths);
        assert!(same, "windows serve workspaces of the limits that they were made for");
        if !self.layouts.contains(&layout) {
            let reason = "the windows were made without places for what the layout exchanges";
            return Err(Error::Conflict { parameter: "layout", other: "windows", reason });
        }
        Ok(())
    }

    /// Returns how many bytes of the device this rank's window takes, which its peers write.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.own().bytes()
    }

    /// Returns where the rows of this rank's window begin.
    pub(crate) fn rows_address(&self) -> u64 {
        self.own().address() + self.rows_offset as u64
    }

    /// Returns where results arrive, and how many bytes each of the two places has.
    pub(crate) fn arrivals_offset(&self) -> u64 {
        (RESULTS_OFFSET + self.results_bytes) as u64
    }

    pub(crate) fn arrivals_bytes(&self) -> u64 {
        2 * self.results_bytes as u64
    }

    pub(crate) fn block_flags_offset(&self) -> u64 {
        self.arrivals_offset() + 2 * self.arrivals_bytes()
    }

    /// Returns where words about rows arrive, and how many bytes each of the two places has; `None` where
    /// messages travel.
    pub(crate) fn words(&self) -> Option<(u64, u64)> {
        let offset = self.block_flags_offset() + BLOCK_FLAGS_BYTES as u64;
        self.post.is_none().then_some((offset, self.words_bytes as u64))
    }

    /// Returns the address of the batch's rows in the order in which they are assigned, 0 if that is the
    /// batch's own.
    pub(crate) fn batch_rows(&self) -> u64 {
        if self.has_batch_rows { self.batch_rows.address() } else { 0 }
    }

    fn own(&self) -> &Buffer {
        self.own.as_ref().expect("not abandoned")
    }
}

/// Returns whether rows of logits travel under one of these layouts.
fn has_rows(layouts: &[ExchangeLayout]) -> bool {
    layouts.iter().any(|layout| *layout != ExchangeLayout::Replicated)
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.unmap();
        self.own.iter().for_each(|own| withdraw(own.address()));
    }
}
