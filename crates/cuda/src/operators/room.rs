//! Room: memory that grows with what operators are asked, and stays where a graph goes by it.

use std::sync::Arc;

use gumball_spec::{Error, Result};

use crate::runtime::{Buffer, Runtime};

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Params,
    States,
    Slots,
    Forced,
    Read,
    Requests,
    Records,
    Sums,
    Scratch,
    Help,
    Outputs,
    Kept,
    LineParams,
    LineStates,
    LineSlots,
    LineForced,
    LineRecords,
    LineSums,
}

const PIECES: usize = Piece::LineSums as usize + 1;

/// Pieces above this size are taken in multiples of it, smaller ones in powers of two.
const LARGE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct WorkspaceLimits {
    machine: Arc<dyn Runtime>,
    pieces: [Option<Buffer>; PIECES],
    /// Whether a graph may go by the pieces.
    captured: bool,
    /// Pieces that others stand in for, and a graph may go by.
    former: Vec<Buffer>,
}

impl WorkspaceLimits {
    pub fn new(machine: Arc<dyn Runtime>) -> Self {
        Self { machine, pieces: [const { None }; PIECES], captured: false, former: Vec::new() }
    }

    /// Checks that memory can be taken.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the host program captures the stream.
    pub fn check_open(&self) -> Result<()> {
        if self.machine.can_alloc()? { Ok(()) } else { Err(captured()) }
    }

    /// Makes sure that there are so many bytes of each piece.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if there is not enough memory, or the host program captures the stream and there is not enough room.
    pub fn reserve(&mut self, wanted: &[(Piece, usize)]) -> Result<()> {
        let capturing = self.machine.is_capturing()?;
        for (piece, bytes) in wanted.iter().copied().filter(|(_, bytes)| *bytes > 0) {
            let place = &mut self.pieces[piece as usize];
            if place.as_ref().is_some_and(|buffer| buffer.bytes() >= bytes) {
                continue;
            }
            if capturing && !self.machine.can_alloc()? {
                return Err(captured());
            }
            let bytes = match bytes {
                0..LARGE_BYTES => bytes.next_power_of_two(),
                _ => bytes.next_multiple_of(LARGE_BYTES),
            };
            let former = place.replace(Buffer::zeroed(&self.machine, bytes)?);
            // To give it back would wait for the device, which no capture allows.
            self.former.extend(former.filter(|_| self.captured || capturing));
        }
        self.captured |= capturing;
        Ok(())
    }

    /// Returns where a piece lies; 0 if it was never wanted.
    pub fn at(&self, piece: Piece) -> u64 {
        self.pieces[piece as usize].as_ref().map_or(0, Buffer::address)
    }
}

fn captured() -> Error {
    let reason = "the stream is being captured; call once before, over as many rows".to_owned();
    Error::Unavailable { resource: "room for the operator", reason }
}
