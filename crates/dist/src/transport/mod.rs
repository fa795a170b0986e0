//! Transports: how bytes get from rank to rank.
//!
//! A transport moves bytes and knows nothing of rows. All ranks call the same operations in the same turn, so
//! that one that writes into its peers' memory, or a library of collectives, can implement the same trait.

mod address;
mod choice;
#[cfg(unix)]
mod joining;
#[cfg_attr(not(unix), expect(dead_code, reason = "only sockets wait so"))]
mod patience;
#[cfg(unix)]
mod ready;
#[cfg(unix)]
mod sockets;
mod threads;
#[cfg(unix)]
mod unix;

use std::fmt;
use std::time::Duration;

pub use address::Address;
pub use choice::{TransportKind, choose};
pub use patience::Patience;
#[cfg(unix)]
pub use sockets::Sockets;
pub use threads::{Threads, threads};

use gumball_spec::{Error, RanksError, Result};

/// Moves bytes between the ranks of a group.
///
/// Ranks call in the same turn. An error leaves the transport broken: ranks may be at different turns then.
pub trait Transport: fmt::Debug + Send {
    /// Returns this rank.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world(&self) -> usize;

    /// Returns the name that arguments and the environment know it by.
    fn name(&self) -> &'static str;

    /// Returns how long a rank is waited for.
    fn timeout(&self) -> Duration;

    /// Sends `send[r]` to each rank r, and receives what each rank r sends here into `receive[r]`, whose
    /// contents are replaced. A rank's message to itself is copied. Messages may be empty, and may have
    /// another length for each peer, which the receiver need not know. After an error `receive[r]` holds what
    /// came of the message of the rank that the error names.
    ///
    /// # Errors
    /// - [`RanksError::Late`] if a rank sends nothing in time.
    /// - [`RanksError::Lost`] if a rank ended.
    /// - [`RanksError::Corrupt`] for a message that no rank sends, such as one that is longer than its bound.
    /// - [`RanksError::Interrupted`] if the program wants to wait no longer.
    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>], bounds: Bounds<'_>) -> Result<()>;

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// The errors of [`Transport::all_to_all`].
    fn barrier(&mut self) -> Result<()> {
        let (world, patience) = (self.world(), self.timeout());
        let bounds = Bounds { patience, most_bytes: &vec![0; world] };
        self.all_to_all(&vec![&[][..]; world], &mut vec![Vec::new(); world], bounds)
    }

    /// Looks after the other ranks between exchanges, on any thread, without a wait. `is_due`: whether a
    /// message that has come may wait here, by its first [`HEADER_BYTES`](crate::HEADER_BYTES) or as many as
    /// there are.
    ///
    /// # Errors
    /// - [`RanksError::Lost`] if a rank has ended, or begun an exchange that is not due.
    fn watch(&mut self, is_due: &dyn Fn(&[u8]) -> bool) -> Result<()>;

    /// Asks the program whether it wants to wait on.
    ///
    /// # Errors
    /// - [`RanksError::Interrupted`] if it does not.
    fn ask(&mut self) -> Result<()> {
        Ok(())
    }

    /// Says to the other ranks that this one exchanges nothing any more and writes no memory of theirs,
    /// without a wait. Returns whether each of them has said so, too, or has ended; `None` if the transport
    /// cannot tell.
    fn leave(&mut self) -> Option<bool> {
        None
    }
}

/// What bounds an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// How long the ranks are waited for, all together.
    pub patience: Duration,
    /// The most bytes that the message of each rank may have.
    pub most_bytes: &'a [usize],
}

/// Returns the error of a rank that has ended, or begun an exchange that is not due.
fn left(rank: usize) -> Error {
    let reason = "it has ended, closed its pool, or given this step up".to_owned();
    RanksError::Lost { rank, reason }.into()
}

/// Returns the error of a message that is longer than its bound.
fn too_long(rank: usize, bytes: u64, most: usize) -> Error {
    let what = format!("a message of {bytes} bytes where at most {most} were due");
    RanksError::Corrupt { rank, what }.into()
}

/// How long a rank is waited for unless said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
