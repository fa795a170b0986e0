//! Steps from hidden states on a device: a head there makes the logits, and the kernels of a step go on as ever.

use gumball_cuda::{DraftIds, StepInput};
use gumball_head::{Certified, WholeRow};
use gumball_spec::{Error, Kind, Result};

use super::head::DeviceHead;
use super::input::{DeviceInput, DeviceOptions};
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use crate::slot::Slot;

impl DevicePool {
    /// Enqueues a step from hidden states: the next token of each, appended to the sequence in the row's slot.
    ///
    /// What comes out is, bit for bit, what [`DevicePool::enqueue`] makes of the logits that rules H1 and H2 give. The call allocates
    /// nothing on the device and waits for nothing, as [`DevicePool::enqueue`].
    ///
    /// # Shapes and units
    /// `input`: R hidden states of the head's width, in place of logits; f32, bf16 or f16, strided. `slots` and `options`: as for
    /// [`DevicePool::enqueue`], without `row_indices`.
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue`].
    /// - [`Error::Length`] if the head's vocabulary is not the pool's, hidden states have another width than the head, or there are
    ///   more than its capacity.
    /// - [`Error::Conflict`] for `row_indices`.
    ///
    /// After an error no sequence has changed.
    pub fn enqueue_hidden<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
        slots: &[Slot],
        options: &DeviceOptions<'_>,
    ) -> Result<()> {
        self.check_head(head)?;
        self.assign(slots, options)?;
        self.enqueue_hidden_assigned(head, input)
    }

    /// Enqueues a step from hidden states for the rows that were assigned last; it only launches kernels. If the host program is capturing
    /// the device's stream in a graph of its own, the step becomes part of it, as [`DevicePool::enqueue_assigned`] says; the head must then
    /// stay as it is, in the same place, as long as that graph is replayed.
    ///
    /// # Errors
    /// Those of [`DevicePool::enqueue_hidden`] that concern head and input.
    pub fn enqueue_hidden_assigned<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
    ) -> Result<()> {
        self.check_head(head)?;
        let input = input.into();
        self.enqueue_step(&StepInput { head: Some(&head.head), ..input.of_step() }, None)?;
        Ok(())
    }

    /// Enqueues the verification of drafts from hidden states, one for each row, for the requests that
    /// [`DevicePool::assign_drafts`] named last. See [`DevicePool::enqueue_verify_assigned`].
    ///
    /// # Errors
    /// - Those of [`DevicePool::enqueue_verify_assigned`].
    /// - Those of [`DevicePool::enqueue_hidden`] that concern head and input.
    pub fn enqueue_verify_hidden_assigned<'b>(
        &mut self,
        head: &'b DeviceHead<'_>,
        input: impl Into<DeviceInput<'b>>,
        drafts: &DraftIds<'b>,
    ) -> Result<()> {
        self.check_head(head)?;
        let input = input.into();
        let (head, drafts) = (Some(&head.head), Some(*drafts));
        self.enqueue_step(&StepInput { head, drafts, ..input.of_step() }, None)?;
        Ok(())
    }

    /// Returns why a certified head must compute every logit of a request's rows, whatever hidden state they have, or `None` if there is
    /// no such reason. See [`Pool::needs_whole_row`](crate::Pool::needs_whole_row).
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn needs_whole_row(&self, slot: Slot) -> Result<Option<WholeRow>> {
        let sequence = self.slots.sequence(slot)?;
        if self.config.route == PoolRoute::Probabilities {
            return Ok(Some(WholeRow::Route));
        }
        Ok(Certified::decisive(&sequence.task(Kind::Logits, None, None), false, self.config.kept).err())
    }

    pub(super) fn check_head(&self, head: &DeviceHead<'_>) -> Result<()> {
        if head.vocab() != self.config.vocab {
            let allowed = format!("{} ids, the pool's vocabulary", self.config.vocab);
            return Err(Error::length("head", head.vocab(), allowed));
        }
        Ok(())
    }
}
