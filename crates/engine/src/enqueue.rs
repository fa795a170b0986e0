//! Work in order: assigned, enqueued, captured, fetched.

use gumball_spec::{Error, Result};

use crate::batch::Batch;
use crate::outputs::Outputs;
use crate::pool::Pool;
use crate::work::Work;

impl Pool {
    /// Assigns a batch to the rows of the next work, that of captured graphs included: of steps, or with
    /// `counts` of verifications, or of the batch of drafts that it is `of`. Steps and verifications replace
    /// each other's assignments, and a direct call ends the assignment of the pool's own rows.
    ///
    /// The batch is copied: on the host into memory that is kept; to a device only if it changed, and
    /// without a wait. While the host program captures a graph on the device's stream, only an unchanged
    /// assignment is allowed. A device allocates memory where the rows after drafts need more than ever
    /// before for edits that depend on the history. The first mode that judges drafts by probabilities takes
    /// memory there for these, once: 4 bytes for each id of each of the pool's rows, 40 bytes more for each
    /// row, and 320 KiB.
    ///
    /// ```
    /// # use gumball_engine::*;
    /// let mut pool = Pool::new(PoolConfig::new(3))?;
    /// let slot = pool.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[])?;
    /// pool.assign(&Batch::of(&[slot]))?;
    /// for logits in [[0.0f32, 2.0, 1.0], [0.0, 1.0, 2.0]] {
    ///     pool.enqueue(&[Work::step(Rows::logits(&logits, 1, 3)?)])?;
    /// }
    /// let mut out = Outputs::new();
    /// pool.fetch(&mut out)?;
    /// assert_eq!(out.tokens(), [2]);
    /// assert_eq!(pool.sequence(slot)?.history().output(), [1, 2]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Shapes and units
    /// `batch`: as [`Pool::step`] takes it, or with `counts` as [`Pool::verify`] does; `of` a batch of drafts
    /// as [`Pool::draft`] does.
    ///
    /// # Errors
    /// - The errors of [`Pool::step`] and [`Pool::verify`] that concern `batch`.
    /// - [`Error::Conflict`] for hooks, which do not outlive the call that they are handed to, and for a mode
    ///   without drafts; on the route `probabilities` of a device for masks and row indices.
    /// - On a device [`Error::Length`] for more rows than the place or the batch of drafts allows;
    ///   [`Error::OutOfRange`] for a batch of drafts that the pool does not have, and for masks of the
    ///   device, which come with the work; [`Error::Unavailable`] on the route `probabilities` for a mode
    ///   that judges drafts by probabilities, and if the device fails.
    ///
    /// The assignment before stays then.
    pub fn assign(&mut self, batch: &Batch<'_>) -> Result<()> {
        self.check_plan(batch)?;
        batch.refuse_hooks()?;
        self.at_backend(|backend, slots| backend.assign(slots, batch))?;
        self.is_assigned |= batch.is_of_pool();
        Ok(())
    }

    /// Does work for the batch that was assigned last, in this order; each piece reads what earlier pieces
    /// have written. [`Pool::fetch`] returns the outputs of the last step or verification.
    ///
    /// On the host it is done on return, so the memory that it reads may be written again, and allocates as
    /// little as [`Pool::step`].
    ///
    /// On a device the call launches kernels and returns before they have run. It neither allocates nor
    /// waits, but that histories are moved once in `history_growth` tokens of a sequence, and what lies in
    /// the memory of the host is copied there, into memory as large as it ever had to be. For a graph that
    /// the host program captures on the device's stream see
    /// [`OnDevice::record`](crate::unstable::OnDevice::record).
    ///
    /// # Errors
    /// - [`Error::Conflict`] for the pool's own rows if nothing was assigned to them since the pool was made,
    ///   or since its last direct step or verification.
    /// - [`Error::Conflict`] for a verification unless counts of drafts were assigned, and for a step if they
    ///   were; for probabilities of the drafter in a mode that does not read them; and for masks of the host,
    ///   which are assigned.
    /// - [`Error::Length`] if a shape differs from the assignment's.
    /// - On the host [`Error::OutOfRange`] for what lies in the memory of a device, and
    ///   [`Error::Unavailable`] for batches of drafts.
    /// - On a device [`Error::Conflict`] while the host program captures the stream; [`Error::OutOfRange`]
    ///   for integers or probabilities of another type, a matrix that is too small for paths or drafts, and a
    ///   batch of drafts that the pool does not have; [`Error::Conflict`] on the route `probabilities` for
    ///   masks, and rows that hold probabilities already; [`Error::Unavailable`] for a head of the host, and
    ///   if the device fails.
    /// - The errors of [`Pool::step`] and [`Pool::verify`].
    ///
    /// No sequence was changed then, unless the device failed, or memory, an exchange of ranks or a route of
    /// the caller's own failed after a piece that was done.
    pub fn enqueue(&mut self, work: &[Work<'_>]) -> Result<()> {
        self.check_assigned(work.iter().any(Work::is_of_pool))?;
        self.at_backend(|backend, slots| backend.enqueue(slots, work))?;
        self.was_direct &= !work.iter().any(Work::has_outputs);
        Ok(())
    }

    /// Copies what came out of the last step or verification that was enqueued or replayed; a device is
    /// waited for. Nothing has come out of a new pool.
    ///
    /// # Errors
    /// - [`Error::Conflict`] if a direct call came after it, whose outputs the caller has; and if `out`
    ///   collects kept sets and [`PoolConfig::kept`](crate::PoolConfig::kept) is not set.
    /// - [`Error::Unavailable`] if the system refuses the memory of the outputs, or the device fails.
    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        if self.was_direct {
            let reason = "it wrote its results to the outputs that it was given";
            return Err(Error::Conflict { parameter: "fetch", other: "the direct call before", reason });
        }
        out.collect_kept(self.kept);
        self.at_backend(|backend, slots| backend.fetch(slots, out))
    }

    /// Checks that a batch has a plan over ranks alone.
    pub(crate) fn check_plan(&self, batch: &Batch<'_>) -> Result<()> {
        if self.ranks().is_none() { batch.refuse_plan() } else { Ok(()) }
    }

    /// Checks that a batch is assigned to the pool's own rows, if work `is_of_pool`.
    pub(crate) fn check_assigned(&self, is_of_pool: bool) -> Result<()> {
        if self.is_assigned || !is_of_pool {
            return Ok(());
        }
        let reason = "assign a batch first, and again after a direct call";
        Err(Error::Conflict { parameter: "work", other: "assignment", reason })
    }
}
