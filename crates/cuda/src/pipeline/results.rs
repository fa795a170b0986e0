//! The results of the last step in device memory: outputs, kept sets, walks through drafts; and how many
//! tokens the last call took away.

use std::sync::Arc;

use gumball_spec::Result;
use gumball_spec::layout::Layout;

use crate::abi;
use crate::driver::runtime::Runtime;
use crate::launch::{Launch, tuning};
use crate::memory::buffer::{Buffer, ROWS};
use crate::pipeline::assignment::WorkspaceLimits;
use crate::pipeline::outputs::Outputs;
use crate::pipeline::packed_sets::PackedSets;
use crate::pipeline::row_lists::mask_words;

/// The words after a row's outputs for the walk through drafts: the row of a token, and how many drafts were
/// accepted.
pub(crate) const WALK_WORDS: usize = 2;

/// The results of a workspace's last step. Their addresses never change.
#[derive(Debug)]
pub struct Results {
    runtime: Arc<dyn Runtime>,
    limits: WorkspaceLimits,
    /// Outputs, after them the walks, and after these the packed kept sets.
    outputs: Buffer,
    kept: Buffer,
    /// How many tokens the last call took away of each request, `[rows]`.
    taken: Buffer,
}

impl Results {
    /// Allocates memory for the results of a step.
    pub(crate) fn new(runtime: &Arc<dyn Runtime>, limits: WorkspaceLimits) -> Result<Self> {
        let alloc = |words_per_row: usize| {
            Buffer::sized(runtime, ROWS, &[limits.rows, words_per_row * size_of::<u32>()])
        };
        let (kept, packed) = match limits.kept {
            true => (mask_words(limits.vocab), PackedSets::most_words(limits.vocab)),
            false => (0, 0),
        };
        Ok(Self {
            outputs: alloc(Layout { rows: 1, widths: limits.widths }.words() + WALK_WORDS + packed)?,
            kept: alloc(kept)?,
            taken: alloc(1)?,
            runtime: Arc::clone(runtime),
            limits,
        })
    }

    /// Returns a step that writes these results.
    pub(crate) fn step(&self, step: abi::Step) -> abi::Step {
        abi::Step {
            outputs: self.address(),
            top_n_width: self.limits.widths.top_n as u32,
            ids_width: self.limits.widths.ids as u32,
            kept_bits: self.kept_address().unwrap_or_default().0,
            ..step
        }
    }

    /// Waits for the steps enqueued before, and returns the outputs of the last one, which has `rows` rows.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If the workspace has capacity for fewer rows.
    pub fn outputs(&self, rows: usize) -> Result<Outputs> {
        let mut outputs = self.zeros(rows)?;
        self.read(&mut outputs.words, &mut outputs.kept)?;
        Ok(outputs)
    }

    /// Makes outputs of `rows` rows that are all zeros.
    pub(crate) fn zeros(&self, rows: usize) -> Result<Outputs> {
        Outputs::zeros(Layout { rows, widths: self.limits.widths }, self.limits.kept)
    }

    /// Waits for the steps enqueued before, and reads the outputs of the last one, in the layout of its rows;
    /// appends the kept ids of each row to its list, ascending, if there are lists.
    ///
    /// Of kept sets as many bytes travel as their ids have, or their bitmasks where these have fewer. Short
    /// ones come in the same copy as the outputs, others in one more.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If `words` is longer than the outputs of the workspace; if there are lists, and the workspace does not
    /// record kept sets, has capacity for fewer rows, or `words` are neither empty nor as long as the outputs
    /// of these rows.
    pub fn read(&self, words: &mut [u32], kept: &mut [Vec<u32>]) -> Result<()> {
        if kept.is_empty() {
            return Ok(self.outputs.read(0, words)?);
        }
        assert!(self.limits.kept, "the workspace does not record kept sets");
        let sets = PackedSets::new(kept.len(), self.limits.vocab);
        let rows = if words.is_empty() { self.limits.rows } else { kept.len() };
        // The sets follow the outputs and walks of as many rows.
        let start = self.walk_start(rows) / size_of::<u32>() + WALK_WORDS * rows;
        let from = if words.is_empty() { start } else { 0 };
        self.pack(sets, start)?;
        let at = |word: usize| word * size_of::<u32>();
        let mut read = vec![0; start - from + sets.first_words()];
        self.outputs.read(at(from), &mut read)?;
        words.copy_from_slice(&read[..words.len()]);
        let (first, all) = (sets.first_words(), sets.all_words(&read[start - from..]));
        if all > first {
            read.resize(start - from + all, 0);
            self.outputs.read(at(start + first), &mut read[start - from + first..])?;
        }
        sets.unpack(&read[start - from..], kept);
        Ok(())
    }

    /// Enqueues the kernels that pack the kept sets of the first rows, from a word of the outputs on.
    fn pack(&self, sets: PackedSets, start: usize) -> crate::Result<()> {
        let lengths = self.address() + (start * size_of::<u32>()) as u64;
        let argument = abi::PackKept {
            bits: self.kept.address(),
            lengths,
            packed: lengths + (sets.rows * size_of::<u32>()) as u64,
            stride: mask_words(self.limits.vocab) as u32,
            words: sets.words as u32,
        };
        assert!(sets.rows <= self.limits.rows, "{} rows of {}", sets.rows, self.limits.rows);
        // SAFETY: the buffers are these results' own, and have room for the packed sets of all rows after the
        // outputs and walks; a step enqueued before has written the bits.
        let enqueue = |launch: Launch<_>| unsafe { launch.enqueue(&*self.runtime, &argument) };
        tuning::pack_kept(sets.rows).into_iter().try_for_each(enqueue)
    }

    /// Returns the device address of the kept sets of the last step, a bit for each id, and the words of a
    /// row; `None` unless the workspace records them.
    #[must_use]
    pub fn kept_address(&self) -> Option<(u64, usize)> {
        self.limits.kept.then(|| (self.kept.address(), mask_words(self.limits.vocab)))
    }

    /// Waits for the steps enqueued before, and reads the walks of the last one, which had drafts: for each
    /// row that a token was emitted from, in the order of its request's walk and from the request's first row
    /// on, the row of the logits; `u32::MAX` at the others. Then for each request how many drafts were
    /// accepted.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or failed in a step.
    ///
    /// # Panics
    /// If `path` is longer than the capacity, or `accepted` than `path`.
    pub fn read_walks(&self, path: &mut [u32], accepted: &mut [u32]) -> Result<()> {
        assert!(accepted.len() <= path.len(), "a request has a row at least");
        let mut words = vec![0; path.len() + accepted.len()];
        self.outputs.read(self.walk_start(path.len()), &mut words)?;
        let (rows, counts) = words.split_at(path.len());
        path.copy_from_slice(rows);
        accepted.copy_from_slice(counts);
        Ok(())
    }

    /// Returns where the kernels write the walks of a step, behind its outputs: the path, and the numbers of
    /// accepted drafts.
    pub(crate) fn walks(&self, step: &abi::Step) -> [u64; 2] {
        let rows = step.rows as usize;
        let path = step.outputs + self.walk_start(rows) as u64;
        [path, path + (rows * size_of::<u32>()) as u64]
    }

    /// Returns the byte of the outputs from which the walks of a step of `rows` rows lie.
    fn walk_start(&self, rows: usize) -> usize {
        Layout { rows, widths: self.limits.widths }.words() * size_of::<u32>()
    }

    /// Returns the device address of the last step's outputs, in the layout of its rows.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.outputs.address()
    }

    /// Waits for the work enqueued before, and reads how many tokens the last
    /// [`ShortenLaunch`](crate::ShortenLaunch) took away of each request.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unavailable`] if the device fails, or failed before.
    ///
    /// # Panics
    /// If there are more than the workspace has rows.
    pub fn read_taken(&self, taken: &mut [u32]) -> Result<()> {
        Ok(self.taken.read(0, taken)?)
    }

    /// Returns the address, in the device's memory, of these numbers.
    #[must_use]
    pub fn taken_address(&self) -> u64 {
        self.taken.address()
    }
}
