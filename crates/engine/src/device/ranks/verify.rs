//! A verification over the devices of ranks: the rows of a request's drafts stay with one owner, and its walk comes back to all.

use gumball_spec::Result;
use gumball_spec::layout::Layout;

use super::super::view::gpu_of;
use super::DeviceDistPool;
use super::step::refuse_kept;
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, Ids};
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::work::Work;

impl DeviceDistPool {
    /// Verifies the drafts of each request, as [`DistPool::verify`](crate::DistPool::verify) does. The call copies rows and drafts of the host to the
    /// device, reads those of the device where they lie, and copies the results back.
    ///
    /// # Errors
    /// - Those of [`DeviceDistPool::assign`], [`DeviceDistPool::enqueue`] and [`DeviceDistPool::fetch`].
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if a row has a hook, which can only run on the host.
    pub fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        rows.check_of_rank(batch)?;
        refuse_kept(out)?;
        self.check_broken()?;
        let (_, gpu) = self.pool.gpu_parts();
        gpu.refuse_hooks(batch)?;
        if let Ids::Host(_) = drafts.ids {
            gpu.read_drafts(batch.slots, &Drafted::of(batch), drafts)?;
        }
        self.assign_batch(batch, true)?;
        self.enqueue(&[Work::Verify(rows, Masks::None, *drafts)])?;
        self.fetch(out)
    }

    /// Returns the addresses, in the device's memory, of the last verification's walks: as of
    /// [`OnDevice::walks_addresses`](crate::OnDevice::walks_addresses), behind the results of the whole batch.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let layout: Layout = gpu_of(&self.pool).outputs_layout();
        let path = self.results_address() + (layout.words() * size_of::<u32>()) as u64;
        [path, path + (layout.rows * size_of::<u32>()) as u64]
    }
}
