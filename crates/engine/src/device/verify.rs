//! Verification on a device: which drafts of each request are accepted, and the token after them (rules S3 and S5 to S7).
//!
//! All rows of a request are drawn from at once, or made probabilities, each behind the drafts on the path to it. Then the device
//! walks through them, and advances the requests by what it emits; nothing waits for the host. See `drafts.cu` and
//! `judge_requests.cu` in `gumball-cuda`.

use gumball_spec::Result;
use gumball_spec::layout::Layout;
use gumball_spec::verify::by_probabilities::Judgement;

use super::pool::DevicePool;
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, Ids, ReadDrafts, in_request, starts};
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::work::Work;

impl DevicePool {
    /// Verifies the drafts of each request against the target's rows, and appends the emitted tokens to its sequence.
    ///
    /// The results equal those of [`Pool::verify`](crate::Pool::verify), but for a fast head's. The call copies rows and drafts of the host to
    /// the device, reads those of the device where they lie, and copies the outputs back. Drafts of the device are as of [`Work::Verify`].
    ///
    /// # Errors
    /// - Those of [`Pool::verify`](crate::Pool::verify), of [`DevicePool::assign`], [`DevicePool::enqueue`] and [`DevicePool::fetch`].
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if a row has a hook, which can only run on the host, and for a head of the host.
    ///
    /// No sequence was changed then, unless the device failed.
    pub fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        batch.refuse_plan()?;
        self.refuse_hooks(batch)?;
        let total = match drafts.ids {
            Ids::Host(_) => self.read_drafts(batch.slots, &Drafted::of(batch), drafts)?.rows(),
            Ids::Device(_) => starts(batch.counts).last().copied().unwrap_or(0),
        };
        rows.check(batch, self.config.vocab)?;
        rows.check_drafted(batch, total)?;
        let (batch, masks) = batch.without_device_masks();
        batch.check(total, self.config.vocab)?;
        self.run(Work::Verify(rows, masks, *drafts), &batch, total, out)
    }

    /// Reads drafts of the host for requests in `slots`.
    pub(super) fn read_drafts<'a>(
        &self,
        slots: &[Slot],
        drafted: &Drafted<'_>,
        drafts: &Drafts<'a>,
    ) -> Result<ReadDrafts<'a>> {
        let drafts = drafts.read(drafted, self.config.vocab)?;
        for request in (0..slots.len()).filter(|request| slots[*request] != PADDING) {
            let (tree, is_block) = (drafts.tree(request), drafted.judgement == Some(Judgement::Block));
            let check = if is_block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
        }
        Ok(drafts)
    }

    /// Returns the addresses, in the device's memory, of the walks of the last verification: for each row of the outputs a u32,
    /// the row of logits that it comes from, [`u32::MAX`] where it has no emitted token; and for each request a u32, how many drafts were accepted.
    ///
    /// They lie behind the outputs, so they move with the number of rows, and with nothing else.
    #[must_use]
    pub fn walks_addresses(&self) -> [u64; 2] {
        let Layout { rows, .. } = self.outputs_layout();
        let path = self.outputs_address() + (self.outputs_layout().words() * size_of::<u32>()) as u64;
        [path, path + (rows * size_of::<u32>()) as u64]
    }
}
