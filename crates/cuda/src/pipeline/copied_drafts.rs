//! Copies of a batch's drafts in columns of a matrix, which the paths of the next batch and the drafts of a
//! verification are read from.

use std::marker::PhantomData;

use gumball_spec::{Error, Result};

use crate::abi::dtype::IntType;
use crate::abi::{DraftCopy, copy_flags};
use crate::launch::tuning;
use crate::memory::int_matrix::DeviceIntMatrixMut;
use crate::pipeline::assignment::DraftBatchId;
use crate::pipeline::workspace::Workspace;

/// A copy of the drafts of a batch whose launch is fixed, for as many rows as were assigned; the matrix lives
/// as long as `'b`.
#[derive(Clone, Debug)]
pub struct DraftCopyLaunch<'b> {
    pub(crate) batch: DraftBatchId,
    pub(crate) argument: DraftCopy,
    memory: PhantomData<&'b ()>,
}

impl<'b> DraftCopyLaunch<'b> {
    /// Fixes the launch that copies the drafts of the assigned rows of a batch to as many rows of a matrix:
    /// siblings to columns from `column` on.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the matrix has too few rows or columns, or ids without a sign; and if the
    ///   workspace has no such batch.
    pub fn new(
        workspace: &Workspace,
        batch: DraftBatchId,
        to: &DeviceIntMatrixMut<'b>,
        column: usize,
    ) -> Result<Self> {
        let (rows, proposals) = (workspace.batch(Some(batch))?.shape.rows, workspace.proposals(batch)?);
        let (to, siblings) = (to.ids(), proposals.limits.siblings);
        if to.rows < rows || column.checked_add(siblings).is_none_or(|end| end > to.width) {
            let allowed = format!("at least [{rows}, {column} + {siblings}]");
            return Err(Error::out_of_range("to", format!("[{}, {}]", to.rows, to.width), allowed));
        }
        let flags = match to.dtype {
            IntType::I32 => 0,
            IntType::I64 => copy_flags::IDS_I64,
            unsigned => return Err(Error::out_of_range("to", format!("{unsigned:?}"), "i32 or i64")),
        };
        let argument = DraftCopy {
            drafts: proposals.address(),
            to: to.address + (column * to.dtype.bytes()) as u64,
            stride: to.stride as u64,
            rows: rows as u32,
            siblings: siblings as u32,
            flags,
            reserved: 0,
        };
        Ok(Self { batch, argument, memory: PhantomData })
    }

    pub(crate) fn launch(&self, workspace: &Workspace) -> crate::Result<()> {
        if self.argument.rows == 0 {
            return Ok(());
        }
        let drafts = self.argument.rows as usize * self.argument.siblings as usize;
        // SAFETY: the batch belongs to this workspace, and has memory for the drafts of its rows. The creator
        // of the matrix guarantees that of the rows and columns that `new` compared.
        unsafe { tuning::copy_drafts(drafts).enqueue(&*workspace.runtime, &self.argument) }
    }
}
