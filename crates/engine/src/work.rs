//! Work in order: the pieces that are enqueued for an assigned batch, and fetched.

use gumball_spec::Error;

use crate::device::{DeviceIntMatrix, DeviceIntMatrixMut, DraftBatch};
use crate::drafts::{Drafts, Ids};
use crate::masks::Masks;
use crate::matrix::Matrix;
use crate::rows::Rows;

/// A piece of work in order, for the batch that was assigned last: see
/// [`Pool::enqueue`](crate::Pool::enqueue), and on devices [`Pool::capture`](crate::Pool::capture).
///
/// Masks are for all rows and lie in the memory of the device, in place of the ones that were assigned; masks
/// of the host are assigned.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Work<'a> {
    /// A step: the next token of each row, appended to the sequence in the row's slot.
    ///
    /// The rows are as many as the slots that were assigned, or as their row indices name; hidden states are
    /// as many as the slots.
    Step(Rows<'a>, Masks<'a>),
    /// A verification of drafts: a row for each request and each draft, as
    /// [`Pool::verify`](crate::Pool::verify) takes them; each request is advanced by its emitted tokens.
    ///
    /// The host does not check drafts in the memory of the device: an id outside the vocabulary is never
    /// accepted, and a request whose parents or links are no tree, or no chain in
    /// [`VerifyMode::Block`](crate::VerifyMode::Block), takes a step, with the status
    /// [`NO_TREE`](crate::Status::NO_TREE). Probabilities of the drafter are f32: a row for each row of the
    /// step, with row indices too.
    Verify(Rows<'a>, Masks<'a>, Drafts<'a>),
    /// Drafts of a batch's rows: the first tokens that arrive in the race of each row's request, as that one
    /// is when the kernels run. No sequence changes.
    ///
    /// Last come the paths in front of the rows: a row of ids, of 32 or 64 bits, for each row of the batch,
    /// of which the first ones are in front of it, as many as are assigned; `None` if none are for any row.
    /// After a path that has an id outside the vocabulary, [`NONE`](crate::NONE) included, there are no
    /// drafts. [`OnDevice::drafts_address`](crate::unstable::OnDevice::drafts_address) says where drafts lie.
    Draft(DraftBatch, Rows<'a>, Masks<'a>, Option<DeviceIntMatrix<'a>>),
    /// A copy of the drafts of a batch: the drafts of row r to row r of the matrix, its siblings to columns
    /// from the given one on.
    ///
    /// So the drafts of a chain come together: each batch's are one column of the paths of the next one, and
    /// a verification reads all of them.
    CopyDrafts(DraftBatch, DeviceIntMatrixMut<'a>, usize),
    /// Taking the last output tokens of the assigned sequences away, as many of each as a number says: one
    /// for each assigned slot, in turn; that of padding is not read. Work after it reads the shorter
    /// sequences: positions, histories, counts and mu.
    ///
    /// A number below 0 or above the number of output tokens takes nothing away, and so does one above 1 with
    /// mirostat or adaptive-p, of whose `mu` a device has the last two;
    /// [`OnDevice::outputs`](crate::unstable::OnDevice::outputs) says where it notes what was taken. The host
    /// does not see numbers in the memory of the device. [`Pool::sequence`](crate::Pool::sequence) reads the
    /// sequence back: whole, if the device keeps its history (`keep_histories` of the
    /// [`Place`](crate::Place), or edits that read it); otherwise by its length, as long as the outputs of
    /// each step are fetched before the next one is enqueued.
    Shorten(Ids<'a>),
}

impl<'a> Work<'a> {
    /// Returns a step of rows without masks of the device.
    #[must_use]
    pub fn step(rows: impl Into<Rows<'a>>) -> Self {
        Self::Step(rows.into(), Masks::None)
    }

    /// Returns a verification of drafts over rows without masks of the device.
    #[must_use]
    pub fn verify(rows: impl Into<Rows<'a>>, drafts: Drafts<'a>) -> Self {
        Self::Verify(rows.into(), Masks::None, drafts)
    }
}

impl Work<'_> {
    /// Returns whether it reads what is assigned to the pool's own rows.
    pub(crate) fn is_of_pool(&self) -> bool {
        self.has_outputs() || matches!(self, Self::Shorten(_))
    }

    /// Returns whether something that it reads lies in the memory of the host.
    pub(crate) fn reads_host(&self) -> bool {
        match self {
            Self::Step(rows, _) | Self::Draft(_, rows, ..) => rows.are_here(),
            Self::Verify(rows, _, Drafts { ids, probs, .. }) => {
                rows.are_here() || matches!(ids, Ids::Host(_)) || matches!(probs, Some(Matrix::Host(_)))
            }
            Self::CopyDrafts(..) => false,
            Self::Shorten(counts) => matches!(counts, Ids::Host(_)),
        }
    }

    /// Returns whether it gives what [`Pool::fetch`](crate::Pool::fetch) copies.
    pub(crate) fn has_outputs(&self) -> bool {
        matches!(self, Self::Step(..) | Self::Verify(..))
    }
}

/// Returns the error of masks of the host that come with work.
pub(crate) fn masks_of_host() -> Error {
    let reason = "a step reads masks of the host from its assignment; assign them";
    Error::Conflict { parameter: "masks", other: "work", reason }
}
