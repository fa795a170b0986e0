//! Uploads: arguments in the memory of the host, copied to where the device reads it.

use std::sync::Arc;

use gumball_cuda::{Buffer, DeviceSlice, IntType, Rows as DeviceMatrix, Runtime};
use gumball_spec::Result;

use super::copy_up::{copy_row_up, copy_up};
use crate::drafts::{Drafts, Ids, ReadDrafts, Tree};
use crate::matrix::Matrix;
use crate::rows::Rows;
use crate::work::Work;

/// Buffers of a device for the host's arguments, each as large as it ever had to be. Work that reads one
/// may still run when the next is copied there: copies wait for it, in the order of the stream.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    rows: Option<Buffer>,
    ids: Option<Buffer>,
    parents: Option<Buffer>,
    probs: Option<Buffer>,
    counts: Option<Buffer>,
}

impl Uploads {
    /// Returns work whose rows, drafts and counts lie in the memory of the device. `read` checks drafts of
    /// the host.
    pub fn place<'a>(
        &'a mut self,
        runtime: &Arc<dyn Runtime>,
        work: Work<'a>,
        read: impl FnOnce(&Drafts<'a>) -> Result<ReadDrafts<'a>>,
    ) -> Result<Work<'a>> {
        Ok(match work {
            Work::Step(rows, masks) => Work::Step(self.rows(runtime, rows)?, masks),
            Work::Draft(batch, rows, masks, paths) => {
                Work::Draft(batch, self.rows(runtime, rows)?, masks, paths)
            }
            Work::Verify(rows, masks, drafts) => {
                let Self { rows: row_memory, ids, parents, probs, .. } = self;
                let (rows, given) = (there(runtime, row_memory, rows)?, drafts.probs);
                let drafts = match drafts.ids {
                    Ids::Device(_) => drafts,
                    Ids::Host(_) => {
                        let read = read(&drafts)?;
                        let tree = match &read.parents {
                            None => Tree::Chain,
                            Some(list) => Tree::Parents(column(runtime, parents, list)?),
                        };
                        Drafts { ids: column(runtime, ids, read.ids)?, tree, probs: None }
                    }
                };
                let probs = given.map(|given| matrix(runtime, probs, given)).transpose()?;
                Work::Verify(rows, masks, Drafts { probs, ..drafts })
            }
            Work::Shorten(Ids::Host(counts)) => Work::Shorten(column(runtime, &mut self.counts, counts)?),
            Work::Shorten(Ids::Device(_)) | Work::CopyDrafts(..) => work,
        })
    }

    /// Returns rows in the memory of the device.
    pub fn rows<'a>(&'a mut self, runtime: &Arc<dyn Runtime>, rows: Rows<'a>) -> Result<Rows<'a>> {
        there(runtime, &mut self.rows, rows)
    }
}

fn there<'a>(runtime: &Arc<dyn Runtime>, memory: &'a mut Option<Buffer>, rows: Rows<'a>) -> Result<Rows<'a>> {
    Ok(rows.with_matrix(matrix(runtime, memory, rows.matrix())?))
}

fn matrix<'a>(
    runtime: &Arc<dyn Runtime>,
    memory: &'a mut Option<Buffer>,
    matrix: Matrix<'a>,
) -> Result<Matrix<'a>> {
    let Matrix::Host(matrix) = matrix else { return Ok(matrix) };
    let (data, stride) = matrix.data();
    let (buffer, dtype) = copy_row_up(runtime, memory, data)?;
    Ok(DeviceMatrix::of(buffer, dtype, 0, matrix.rows(), matrix.width(), stride)?.into())
}

fn column<'a>(
    runtime: &Arc<dyn Runtime>,
    memory: &'a mut Option<Buffer>,
    numbers: &[i32],
) -> Result<Ids<'a>> {
    let buffer = copy_up(runtime, memory, bytemuck::cast_slice(numbers))?;
    Ok(DeviceSlice::of(buffer, IntType::I32).first(numbers.len())?.into())
}
