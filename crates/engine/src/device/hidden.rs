//! Steps from hidden states on a device: a head there makes the logits, and the kernels of a step go on as ever.

use gumball_head::{Certified, WholeRow};
use gumball_spec::{Error, Kind, Result};

use super::head::DeviceHead;
use super::pool::DevicePool;
use super::pool_route::PoolRoute;
use crate::slot::Slot;

impl DevicePool {
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

    /// Returns a head, once it is checked that it is of the pool's vocabulary.
    pub(super) fn check_head<'h>(&self, head: &'h DeviceHead<'h>) -> Result<&'h DeviceHead<'h>> {
        if head.vocab() != self.config.vocab {
            let allowed = format!("{} ids, the pool's vocabulary", self.config.vocab);
            return Err(Error::length("head", head.vocab(), allowed));
        }
        Ok(head)
    }
}
