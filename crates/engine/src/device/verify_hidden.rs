//! Verification from hidden states that the host has, on a device: a head there makes the logits of the rows behind drafts.
//!
//! This is for a model on the host. Where the hidden states lie on the device, [`DevicePool::enqueue_verify_hidden_assigned`] waits for nothing.

use gumball_head::HiddenStates;
use gumball_spec::Result;
use gumball_spec::layout::Layout;

use super::head::DeviceHead;
use super::input::DeviceOptions;
use super::pool::DevicePool;
use crate::hidden_rows::check_states;
use crate::options::BatchOptions;
use crate::pool::Slot;
use crate::verify::{Drafts, Verification, VerifyMode, starts};

impl DevicePool {
    /// Verifies the drafts of each request against the target's hidden states in the host's memory, and appends the emitted tokens to its
    /// sequence.
    ///
    /// The results equal those of [`Pool::verify_hidden`](crate::Pool::verify_hidden), but for a fast head's. The call copies hidden states and drafts
    /// to the device and the outputs back.
    ///
    /// # Shapes and units
    /// `states`: as many hidden states as there are requests and drafts together, of the head's width. The rest: as for [`DevicePool::verify`].
    ///
    /// # Errors
    /// - Those of [`Pool::verify`](crate::Pool::verify), of [`DevicePool::enqueue_verify_hidden_assigned`] and of
    ///   [`DevicePool::fetch_verification`].
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if a row has a hook, which can only run on the host.
    ///
    /// No sequence was changed then, unless the device failed.
    #[expect(clippy::too_many_arguments, reason = "those of `verify`, and a head")]
    pub fn verify_hidden(
        &mut self,
        head: &DeviceHead<'_>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        self.check_head(head)?;
        self.check_host_drafts(slots, drafts, mode)?;
        let rows = starts(drafts.counts).last().copied().unwrap_or(0);
        check_states(states, rows, "one per request and one per draft")?;
        options.check(rows, self.config.vocab)?;
        self.refuse_hooks(options, rows)?;
        // Check and allocate the outputs before the sequences advance; a failure afterwards would lose the tokens.
        self.check_kept(&out.outputs)?;
        out.outputs.reserve(Layout { rows, widths: self.config.widths })?;
        let on_device = DeviceOptions { masks: options.masks, forced: options.forced, row_indices: &[] };
        self.assign_drafts(slots, drafts.counts, mode, &on_device)?;
        if slots.is_empty() {
            self.note(0, head.is_approximate());
        } else {
            let uploaded = self.upload_drafts(drafts)?;
            let enqueued = self.with_copied_states(states, |pool, hidden| {
                let ids = uploaded.ids(drafts, pool.config.vocab)?;
                pool.enqueue_verify_hidden_assigned(head, hidden, &ids)
            });
            self.keep_uploaded(uploaded);
            enqueued?;
        }
        self.fetch_verification(out)
    }
}
