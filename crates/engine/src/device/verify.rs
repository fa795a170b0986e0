//! Verification on a device: which drafts of each request are accepted, and the token after them (rules S3
//! and S5 to S7).
//!
//! All rows of a request are drawn from at once, or made probabilities, each after the drafts on the path to
//! it. Then the device walks through them, and advances the requests by the emitted tokens; nothing waits for
//! the host. See `drafts.cu` and `judge_requests.cu` in `gumball-cuda`.

use gumball_spec::Result;
use gumball_spec::verify::by_probabilities::Judgement;

use super::on_gpu::OnGpu;
use crate::batch::Batch;
use crate::drafts::{Drafted, Drafts, Ids, ReadDrafts, in_request, starts};
use crate::matrix::Matrix;
use crate::outputs::Outputs;
use crate::rows::Rows;
use crate::slot::{PADDING, Slot};
use crate::slots::Slots;
use crate::work::Work;

impl OnGpu {
    /// Verifies drafts, once host's rows and drafts are copied to the device.
    pub fn verify(
        &mut self,
        slots: &mut Slots,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.refuse_hooks(batch)?;
        let total = match drafts.ids {
            Ids::Host(_) => self.read_drafts(batch.slots, &Drafted::of(batch), drafts)?.rows(),
            Ids::Device(_) => starts(batch.counts).last().copied().unwrap_or(0),
        };
        rows.check(batch, self.vocab)?;
        rows.check_drafted(batch, total)?;
        let (batch, masks) = batch.without_device_masks();
        let batch = self.check_verification(&batch)?;
        self.run(slots, Work::Verify(rows, masks, *drafts), &batch, out)
    }

    /// Reads drafts of the host for requests in `slots`; of the drafter's probabilities the rows of the host,
    /// as devices check theirs.
    pub(super) fn read_drafts<'a>(
        &self,
        slots: &[Slot],
        drafted: &Drafted<'_>,
        drafts: &Drafts<'a>,
    ) -> Result<ReadDrafts<'a>> {
        let probs = drafts.probs.filter(|probs| matches!(probs, Matrix::Host(_)));
        let drafts = Drafts { probs, ..*drafts }.read(drafted, self.vocab)?;
        for request in (0..slots.len()).filter(|request| slots[*request] != PADDING) {
            let (tree, is_block) = (drafts.tree(request), drafted.judgement == Some(Judgement::Block));
            let check = if is_block { tree.check_chain() } else { tree.check() };
            check.map_err(|error| in_request(error, request))?;
        }
        Ok(drafts)
    }
}
