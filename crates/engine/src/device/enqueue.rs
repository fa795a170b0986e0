//! Enqueued, captured and replayed work of a pool on a device.
//!
//! A graph of ours holds launches of this crate alone. A program that has kernels of its own between them captures the device's stream
//! itself, and enqueues the same work.

use gumball_cuda::{
    DraftCopyLaunch, Graph, RankRows, ShortenLaunch, Step, StepInput, StepVariant, Windows, Work as Fixed,
};
use gumball_spec::Result;

use super::ahead::Ahead;
use super::draft_batch::DraftBatch;
use super::pool::DevicePool;
use crate::masks::Masks;
use crate::rows::Rows;
use crate::slot::Slot;
use crate::work::{Work, masks_of_host};

impl DevicePool {
    /// Enqueues work for what was assigned last, in this order, and returns before the device has finished.
    ///
    /// It launches kernels, and neither allocates nor waits, but that histories are moved once in
    /// [`history_growth`](super::DevicePoolConfig::history_growth) tokens of a sequence, and what lies in the memory of the host is copied to
    /// the device, into memory as large as it ever had to be. Each piece reads what those before it have written.
    /// [`DevicePool::fetch`] waits for what came out.
    ///
    /// If the host program is capturing the device's stream in a graph of its own, the work becomes part of it, with the kernels of
    /// [`StepVariant::Full`]; see [`DevicePool::enqueue_variant`]. A replay reads what lies in the device's memory then. The first call loads
    /// kernels, so make it before the capture; a head must stay as it is as long as the graph is replayed.
    ///
    /// # Errors
    /// - [`Error::Length`](crate::Error::Length) if a shape is not that of the assignment.
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) for a row index beyond the rows, integers or probabilities of another type, a matrix that is too small for
    ///   paths or drafts, and a batch of drafts that this pool does not have; for drafts of the host those of
    ///   [`Pool::verify`](crate::Pool::verify).
    /// - [`Error::Conflict`](crate::Error::Conflict) for a verification unless counts of drafts were assigned, and for a step if they were; for probabilities of
    ///   the drafter in a mode that does not read them; for masks of the host; and on the route `probabilities` for masks, and rows that hold
    ///   probabilities already.
    /// - Those of [`gumball_spec::SamplingParams::check_kind`], if the rows hold probabilities.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) for a head of the host, or if the device fails.
    ///
    /// After an error no sequence has changed, unless the device failed.
    pub fn enqueue(&mut self, work: &[Work<'_>]) -> Result<()> {
        self.enqueue_all(work, None)
    }

    /// Enqueues work with the kernels of a named variant.
    ///
    /// The host program may capture the work in a graph of its own on the device's stream. It does not run then, and the graph serves later
    /// assignments that the variant serves. Call the method once before the capture, with padding for instance, so that the kernels are
    /// loaded, and [`DevicePool::reserve_replays`] before replays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) if the variant does not serve an assigned row; it names the row, its slot and
    ///   the variants that do.
    /// - Those of [`DevicePool::enqueue`].
    pub fn enqueue_variant(&mut self, work: &[Work<'_>], variant: StepVariant) -> Result<()> {
        self.enqueue_all(work, Some(variant))
    }

    fn enqueue_all(&mut self, work: &[Work<'_>], variant: Option<StepVariant>) -> Result<()> {
        // A single piece is checked where it is enqueued.
        for work in work.iter().filter(|_| work.len() > 1) {
            self.with_placed(work, |pool, work| pool.fix(work, None).map(drop))?;
        }
        let enqueue = |pool: &mut Self, work: &Work<'_>| pool.enqueue_placed(work, variant);
        work.iter().try_for_each(|work| self.with_placed(work, enqueue))
    }

    /// Copies what lies in the memory of the host to the device, and does something with the work.
    fn with_placed<T>(
        &mut self,
        work: &Work<'_>,
        then: impl FnOnce(&mut Self, &Work<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut uploads = std::mem::take(&mut self.uploads);
        let placed = uploads.place(self.device.runtime(), *work, |drafts| {
            self.read_drafts(&self.assigned.slots, &self.assigned.drafted()?, drafts)
        });
        let done = placed.and_then(|work| then(self, &work));
        self.uploads = uploads;
        done
    }

    /// Enqueues work that lies in the memory of the device.
    fn enqueue_placed(&mut self, work: &Work<'_>, variant: Option<StepVariant>) -> Result<()> {
        match *work {
            Work::Step(..) | Work::Verify(..) => {
                self.enqueue_step(&self.step_input(work)?, variant)?;
            }
            Work::Draft(batch, ..) => {
                let input = self.step_input(work)?;
                self.grow_paths(batch)?;
                let drafts = variant.into_iter().fold(self.workspace.fix(&input)?, Step::with_variant);
                self.workspace.enqueue(&drafts)?;
            }
            Work::CopyDrafts(batch, to, column) => {
                DraftCopyLaunch::new(&self.workspace, batch.id, &to, column)?.enqueue(&self.workspace)?;
            }
            Work::Shorten(counts) => {
                let shorten = ShortenLaunch::new(&self.workspace, &counts.on_device("counts")?)?;
                match shorten.enqueue(&self.workspace)? {
                    true => self.note_shorten(),
                    false => self.captured_shorten = true,
                }
            }
        }
        Ok(())
    }

    /// Enqueues a step. Returns whether it runs: one that the host program captures in a graph of its own does not.
    pub(super) fn enqueue_step(
        &mut self,
        input: &StepInput<'_, '_>,
        variant: Option<StepVariant>,
    ) -> Result<bool> {
        variant.map_or(Ok(()), |variant| self.workspace.rows().check_variant(variant))?;
        self.grow_histories(1)?;
        let step = self.workspace.fix(input)?;
        let step = variant.into_iter().fold(step, Step::with_variant);
        let runs = self.workspace.enqueue(&step)?;
        if runs {
            self.note(1, step.is_approximate());
        } else {
            self.captured_approximate |= step.is_approximate();
        }
        Ok(runs)
    }

    /// Returns what a step, a verification or drafts read, all of which must lie in the memory of the device.
    pub(super) fn step_input<'a, 'b>(&self, work: &Work<'b>) -> Result<StepInput<'a, 'b>> {
        let (of, rows, masks, drafts, paths) = match *work {
            Work::Step(rows, masks) => (None, rows, masks, None, None),
            Work::Verify(rows, masks, drafts) => (None, rows, masks, Some(drafts.on_device()?), None),
            Work::Draft(batch, rows, masks, paths) => (Some(batch.id), rows, masks, None, paths),
            Work::CopyDrafts(..) | Work::Shorten(_) => unreachable!("{work:?} reads no rows"),
        };
        let head = match rows {
            Rows::Hidden(head, _) => Some(&self.check_head(head.on_device()?)?.head),
            _ => None,
        };
        let masks = match masks {
            Masks::None => None,
            Masks::Device(masks) => Some(masks),
            Masks::Host(_) => return Err(masks_of_host()),
        };
        self.check_route(rows.kind(), masks.is_some())?;
        let there = rows.matrix().on_device("logits")?.with_kind(rows.kind());
        Ok(StepInput { of, head, masks, drafts, paths, ..StepInput::of(&there) })
    }

    /// Captures work, to be replayed in this order by [`DevicePool::replay`]. Nothing runs yet.
    ///
    /// Each piece reads what the ones before it have written, and requests as these have left them, so a replay drafts, verifies
    /// and advances without the host. What [`DevicePool::assign`] says at the time of a replay counts: requests may be admitted, released
    /// and assigned in between. The numbers of requests and rows, the modes, and whether row indices and masks exist, must stay the
    /// same, for each batch of drafts too; how many drafts each request has may change. A graph has steps or verifications, not both.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`](crate::Error::OutOfRange) for what lies in the memory of the host.
    /// - Those of [`DevicePool::enqueue`].
    pub fn capture<'b>(&self, work: &[Work<'b>]) -> Result<Graph<'b>> {
        let fixed = work.iter().map(|work| self.fix(work, None)).collect::<Result<_>>()?;
        self.workspace.capture_work(fixed)
    }

    /// Fixes the launches of work; over ranks, how its rows are spread.
    pub(super) fn fix<'b>(
        &self,
        work: &Work<'b>,
        ranks: Option<(&Windows, &RankRows<'_>)>,
    ) -> Result<Fixed<'b>> {
        let workspace = &self.workspace;
        Ok(match *work {
            Work::Step(..) | Work::Verify(..) | Work::Draft(..) => {
                let input = StepInput { ranks, ..self.step_input(work)? };
                Fixed::Step(Box::new(workspace.fix(&input)?))
            }
            Work::CopyDrafts(batch, to, column) => {
                Fixed::CopyDrafts(DraftCopyLaunch::new(workspace, batch.id, &to, column)?)
            }
            Work::Shorten(counts) => {
                Fixed::Shorten(ShortenLaunch::new(workspace, &counts.on_device("counts")?)?)
            }
        })
    }

    /// Enqueues the work of a graph: one call, however much it is.
    ///
    /// # Errors
    /// - [`Error::Length`](gumball_spec::Error::Length), [`Error::Conflict`](gumball_spec::Error::Conflict) or
    ///   [`Error::OutOfRange`](gumball_spec::Error::OutOfRange) if an assignment's shape differs from that of the capture, a row index
    ///   lies beyond the captured logits, or a path is longer than the rows of paths.
    /// - [`Error::OutOfRange`](gumball_spec::Error::OutOfRange) if a batch of drafts was removed.
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if the device fails.
    ///
    /// # Panics
    /// If another pool captured the graph.
    pub fn replay(&mut self, graph: &Graph<'_>) -> Result<()> {
        let advances = graph.steps() > 0;
        if advances {
            self.grow_histories(graph.steps())?;
        }
        for (slot, ids) in self.workspace.lacking_paths(graph)? {
            self.workspace.extend(slot, self.config.history_growth.max(ids as usize))?;
        }
        self.workspace.replay(graph)?;
        for work in graph.work() {
            match work {
                Fixed::Step(step) if step.draft_batch().is_none() => self.note(1, step.is_approximate()),
                Fixed::Shorten(_) => self.note_shorten(),
                Fixed::Step(_) | Fixed::CopyDrafts(_) => {}
            }
        }
        Ok(())
    }

    /// Makes sure that histories can take the paths in front of the rows of a batch of drafts.
    fn grow_paths(&mut self, batch: DraftBatch) -> Result<()> {
        // A captured batch does not run yet, and waiting would invalidate the capture.
        if self.device.runtime().is_capturing()? {
            return Ok(());
        }
        let rows: Vec<(Slot, u32)> = self.workspace.batch(Some(batch.id))?.paths().collect();
        for (slot, count) in rows {
            if !self.workspace.requests().has_room(slot, count.into()) {
                self.workspace.extend(slot, self.config.history_growth.max(count as usize))?;
            }
        }
        Ok(())
    }

    /// Records that tokens of the assigned sequences are taken away behind the steps that were noted.
    fn note_shorten(&mut self) {
        self.slots.each_ahead(&self.assigned.slots, Ahead::note_shorten);
    }
}
