//! The operators' scratch memory, which grows with the shapes of their calls. Buffers that a graph uses stay.

use std::sync::Arc;

use gumball_spec::Result;

use crate::driver::runtime::Runtime;
use crate::memory::buffer::Buffer;

/// The buffers of the scratch memory. Those whose names begin with `Shared` belong to rows that several
/// outputs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Params,
    States,
    Slots,
    Forced,
    RowIndices,
    Requests,
    Records,
    FilterSums,
    LogprobSums,
    Search,
    Races,
    Outputs,
    Cuts,
    SharedParams,
    SharedStates,
    SharedSlots,
    SharedForced,
    SharedRecords,
    SharedFilterSums,
}

const PIECES: usize = Piece::SharedFilterSums as usize + 1;

/// Larger buffers have a multiple of this many bytes, smaller ones a power of two.
const LARGE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Scratch {
    runtime: Arc<dyn Runtime>,
    pieces: [Option<Buffer>; PIECES],
    /// Whether a captured graph may use the buffers.
    captured: bool,
    /// Buffers that were replaced by larger ones, and that a captured graph may still use.
    former: Vec<Buffer>,
}

impl Scratch {
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, pieces: [const { None }; PIECES], captured: false, former: Vec::new() }
    }

    /// Enlarges each piece to at least the given number of bytes.
    pub fn reserve(&mut self, wanted: &[(Piece, usize)]) -> Result<()> {
        let capturing = self.runtime.is_capturing()?;
        for (piece, bytes) in wanted.iter().copied().filter(|(_, bytes)| *bytes > 0) {
            let buffer = &mut self.pieces[piece as usize];
            if buffer.as_ref().is_some_and(|buffer| buffer.bytes() >= bytes) {
                continue;
            }
            let bytes = match bytes {
                0..LARGE_BYTES => bytes.next_power_of_two(),
                _ => bytes.next_multiple_of(LARGE_BYTES),
            };
            let former = buffer.replace(Buffer::zeroed(&self.runtime, bytes)?);
            // Freeing a buffer waits for the device, so nothing is freed during a capture.
            self.former.extend(former.filter(|_| self.captured || capturing));
        }
        self.captured |= capturing;
        Ok(())
    }

    /// Returns the address of a piece; 0 if it was never reserved.
    pub fn at(&self, piece: Piece) -> u64 {
        self.pieces[piece as usize].as_ref().map_or(0, Buffer::address)
    }
}
