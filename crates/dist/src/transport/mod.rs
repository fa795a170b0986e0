//! Transports: how bytes get from rank to rank.
//!
//! A transport moves bytes and knows nothing of rows. All ranks call the same operations in the same turn, so that one that
//! writes into its peers' memory, or a library of collectives, can stand behind the same trait.

mod address;
mod choice;
mod sockets;
mod threads;

use std::fmt;
use std::time::Duration;

pub use address::Address;
pub use choice::{Chosen, TransportKind, choose};
pub use sockets::Sockets;
pub use threads::{Threads, threads};

use crate::error::Result;

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

    /// Sends `send[r]` to each rank r, and receives what each rank r sends here into `receive[r]`, whose contents are replaced.
    /// What a rank has for itself is copied. Messages may be empty, and may have another length for each peer, which the receiver
    /// need not know.
    ///
    /// # Errors
    /// - [`Error::TimedOut`](crate::Error::TimedOut) if a rank sends nothing within the timeout of the transport.
    /// - [`Error::Lost`](crate::Error::Lost) if a rank ended.
    /// - [`Error::Corrupt`](crate::Error::Corrupt) for a message that no rank sends.
    fn all_to_all(&mut self, send: &[&[u8]], receive: &mut [Vec<u8>]) -> Result<()>;

    /// Sends the same bytes to all ranks, and receives what each sends.
    ///
    /// # Errors
    /// Those of [`Transport::all_to_all`].
    fn all_gather(&mut self, send: &[u8], receive: &mut [Vec<u8>]) -> Result<()> {
        let to_all = vec![send; self.world()];
        self.all_to_all(&to_all, receive)
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// Those of [`Transport::all_to_all`].
    fn barrier(&mut self) -> Result<()> {
        let mut receive = vec![Vec::new(); self.world()];
        self.all_gather(&[], &mut receive)
    }
}

/// How long a rank is waited for unless said otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest message: no step of 2^20 logits in as many rows as fit a host's memory has a longer one.
pub const MOST_BYTES: usize = if usize::BITS > 36 { (1u64 << 36) as usize } else { usize::MAX };
