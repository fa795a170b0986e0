//! The request table: the requests in the slots, how many more tokens each history can take, and the steps
//! that were run for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gumball_spec::layout::Widths;
use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::{Error, Result, TILE, memory};

use crate::abi::{self, Params, Request, Slot, State, TokenEntry, features};
use crate::driver::runtime::Runtime;
use crate::memory::buffer::{Buffer, SLOTS};
use crate::requests::history_budget::{HistoryBudget, UNBOUNDED};
use crate::requests::logprob_params;
use crate::requests::prepared::Prepared;
use crate::requests::request_buffers::{History, RequestBuffers, RequestBuffersBuilder};
use crate::requests::step_features::{StepFeatures, Variant};
use crate::requests::step_variant::StepVariant;

/// A request's state when it enters a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InitialState<'a> {
    /// The seed in use.
    pub seed: u64,
    /// The draw index.
    pub draw: u32,
    /// The number of tokens before the next one, modulo 2^32.
    pub position: u32,
    /// Mirostat's limit for the next token, in bits, or the mean of adaptive-p.
    pub mu: f32,
    /// The ids of the prompt.
    pub prompt: &'a [u32],
    /// The ids generated so far.
    pub output: &'a [u32],
    /// How many more ids the history must be able to take.
    pub history_growth: usize,
    /// Whether the device keeps the history even if no edit reads it, so that it can be read back.
    pub keep_history: bool,
}

/// A request's state, as read back from the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestState {
    /// The number of tokens before the next one, modulo 2^32.
    pub position: u32,
    /// Mirostat's limit for the next token, in bits, or the mean of adaptive-p.
    pub mu: f32,
    /// The number of ids in the prompt.
    pub prompt_len: usize,
    /// The number of generated ids, including those that the request had when it entered the slot.
    pub output_len: usize,
    /// The ids of the prompt, then those of the output; `None` if the device keeps no history.
    pub history: Option<Vec<u32>>,
}

/// What an empty slot needs, and padding.
const NO_NEEDS: (StepFeatures, StepVariant) = (StepFeatures::NONE, StepVariant::NoFilter);

/// The host's record of a slot.
#[derive(Debug, Default)]
struct SlotEntry {
    /// `None` if the slot is empty.
    request: Option<Prepared>,
    keep_history: bool,
    on_device: Request,
    lists: RequestBuffers,
    /// Whether the device took tokens away since the lists were written: their ids keep entries, so that the
    /// history has room before the table has.
    was_shortened: AtomicBool,
}

impl SlotEntry {
    fn features(&self) -> u32 {
        self.request.as_ref().map_or(0, |request| request.params.features)
    }

    /// Returns a request's parameters with the features that this slot adds.
    fn params_of(&self, request: &Prepared) -> Params {
        self.with_history(request.params)
    }

    /// Returns the parameters of the slot's request at temperature 0.
    fn greedy_params(&self) -> Params {
        self.with_history(self.request.as_ref().map_or_else(Params::default, |request| request.greedy))
    }

    fn with_history(&self, mut params: Params) -> Params {
        params.features |= if self.keep_history { features::KEEP_HISTORY } else { 0 };
        params
    }

    fn has_history(&self) -> bool {
        self.keep_history || self.features() & (features::TOKEN_COUNTS | features::HISTORY_EDITS) != 0
    }
}

/// The requests by slot.
#[derive(Debug)]
pub struct Requests {
    pub(crate) runtime: Arc<dyn Runtime>,
    vocab: usize,
    widths: Widths,
    /// `[slots, widths.ids]`: the ids whose logprobs each slot's request reports.
    logprob_ids: Buffer,
    pub(crate) params: Buffer,
    pub(crate) requests: Buffer,
    pub(crate) states: Buffer,
    slots: Vec<SlotEntry>,
    builder: RequestBuffersBuilder,
    pub(crate) history_budget: HistoryBudget,
    /// What [`Requests::needs_of`] returns of each slot.
    needs: Vec<(StepFeatures, StepVariant)>,
    /// How many steps each finish kernel has run, and each named variant has served.
    run: [AtomicU64; Variant::ALL.len()],
    served: [AtomicU64; StepVariant::ALL.len()],
}

impl Requests {
    pub(crate) fn new(
        runtime: &Arc<dyn Runtime>,
        vocab: usize,
        slots: usize,
        widths: Widths,
    ) -> Result<Self> {
        let alloc = |sizes: &[usize]| Buffer::sized(runtime, SLOTS, sizes);
        Ok(Self {
            logprob_ids: alloc(&[slots, widths.ids, size_of::<u32>()])?,
            params: alloc(&[slots, size_of::<Params>()])?,
            requests: alloc(&[slots, size_of::<Request>()])?,
            states: alloc(&[slots, size_of::<State>()])?,
            slots: memory::collected(SLOTS, (0..slots).map(|_| SlotEntry::default()))?,
            builder: RequestBuffersBuilder::default(),
            history_budget: HistoryBudget::new(slots)?,
            needs: memory::filled(SLOTS, NO_NEEDS, slots)?,
            run: Default::default(),
            served: Default::default(),
            runtime: Arc::clone(runtime),
            vocab,
            widths,
        })
    }

    /// Puts a request into a slot. See [`crate::Workspace::admit`].
    pub(crate) fn admit(&mut self, slot: Slot, request: &Prepared, start: &InitialState<'_>) -> Result<()> {
        let index = self.index(slot)?;
        if request.vocab() != self.vocab {
            return Err(Error::out_of_range(
                "vocab",
                request.vocab(),
                format!("{}, as in the workspace", self.vocab),
            ));
        }
        logprob_params::check_widths(request.params.top_n, request.logprob_ids.len(), self.widths)?;
        self.slots[index].keep_history = start.keep_history;
        let InitialState { seed, draw, prompt, output, history_growth, .. } = *start;
        let params = Params { seed, draw, ..self.slots[index].params_of(request) };
        self.write_lists(index, request, History { prompt, output, growth: history_growth })?;
        let place = request.place(prompt, output);
        let state = State {
            section_length: (prompt.len() + output.len()) as u32,
            section_is_open: u32::from(place.is_some_and(|place| place.is_open)),
            section_start: place.map_or(0, |place| place.start as u32),
            loop_end: place.map_or(0, |place| place.loop_end as u32),
            position: start.position,
            mirostat_mu: start.mu,
            length: (start.prompt.len() + start.output.len()) as u32,
            prompt_length: start.prompt.len() as u32,
            step: 1,
            mu_before: f32::NAN,
            ..State::default()
        };
        self.params.write(index * size_of::<Params>(), &[params])?;
        Ok(self.states.write(index * size_of::<State>(), &[state])?)
    }

    /// Writes a request's lists to the device, and records its features and its history's capacity.
    fn write_lists(&mut self, index: usize, request: &Prepared, history: History<'_>) -> Result<()> {
        let entry = &mut self.slots[index];
        let (params, edits) = (entry.params_of(request), &request.edits);
        entry.on_device =
            entry.lists.write(&self.runtime, &mut self.builder, &params, self.vocab, edits, history)?;
        entry.request = Some(request.clone());
        *entry.was_shortened.get_mut() = false;
        let ids = index * self.widths.ids * size_of::<u32>();
        self.logprob_ids.write(ids, &request.logprob_ids)?;
        entry.on_device.logprob_ids = self.logprob_ids.address() + ids as u64;
        entry.on_device.logprob_id_count = request.logprob_ids.len() as u32;
        let growth = if entry.has_history() { history.growth as u64 } else { UNBOUNDED };
        self.requests.write(index * size_of::<Request>(), &[entry.on_device])?;
        self.history_budget.set([(index, growth)]);
        self.needs[index] = StepVariant::with_features(&params);
        Ok(())
    }

    /// Empties a slot, which the next steps do not advance. See [`crate::Workspace::release`].
    pub(crate) fn release(&mut self, slot: Slot) -> Result<()> {
        let index = self.index(slot)?;
        let entry = &mut self.slots[index];
        *entry = SlotEntry { lists: std::mem::take(&mut entry.lists), ..SlotEntry::default() };
        self.history_budget.set([(index, UNBOUNDED)]);
        self.history_budget.retire(slot);
        self.needs[index] = NO_NEEDS;
        self.params.write(index * size_of::<Params>(), &[Params::default()])?;
        Ok(self.requests.write(index * size_of::<Request>(), &[Request::default()])?)
    }

    /// Enlarges a history's capacity. See [`crate::Workspace::extend`].
    pub(crate) fn extend(&mut self, slot: Slot, history_growth: usize) -> Result<()> {
        let index = self.index(slot)?;
        let Some(request) = self.slots[index].request.clone() else { return Ok(()) };
        let RequestState { prompt_len, history: Some(ids), .. } = self.state(slot)? else { return Ok(()) };
        let (prompt, output) = ids.split_at(prompt_len);
        self.write_lists(index, &request, History { prompt, output, growth: history_growth })
    }

    /// Waits for the steps enqueued before, and returns the state of the request in a slot.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is no such slot.
    /// - [`Error::Unavailable`] if the device fails.
    pub fn state(&self, slot: Slot) -> Result<RequestState> {
        let index = self.index(slot)?;
        let mut state = [State::default()];
        self.states.read(index * size_of::<State>(), &mut state)?;
        let [State { position, mirostat_mu: mu, length, prompt_length, .. }] = state;
        let entry = &self.slots[index];
        let read = || entry.lists.read_history(&entry.on_device, length);
        Ok(RequestState {
            position,
            mu,
            prompt_len: prompt_length as usize,
            output_len: (length - prompt_length) as usize,
            history: entry.has_history().then(read).transpose()?,
        })
    }

    /// Returns a step over the requests in the slots.
    pub(crate) fn step(&self, step: abi::Step) -> abi::Step {
        abi::Step {
            params: self.params.address(),
            requests: self.requests.address(),
            states: self.states.address(),
            ..step
        }
    }

    /// Returns the request of a slot, unless the slot is empty or padding.
    pub(crate) fn prepared(&self, slot: Slot) -> Option<&Prepared> {
        self.entry(slot).and_then(|entry| entry.request.as_ref())
    }

    /// Returns the parameters of a slot's request at temperature 0, without seed and draw index; padding has
    /// default ones.
    pub(crate) fn greedy_params(&self, slot: Slot) -> Params {
        self.entry(slot).map_or_else(Params::default, SlotEntry::greedy_params)
    }

    /// Returns how many bytes a row after drafts needs for those lists of a slot's request that emitted
    /// tokens change: the twin of `share_entries` and `copy_lists` in `drafts.cu`.
    pub(crate) fn list_bytes(&self, slot: Slot) -> usize {
        let Some(entry) = self.entry(slot) else { return 0 };
        let has = |bit: u32| entry.features() & bit != 0;
        let unit = size_of::<TokenEntry>();
        let touched = if has(features::TOKEN_COUNTS) { self.vocab.div_ceil(TILE) * TILE / 8 } else { 0 };
        if has(features::HISTORY_EDITS) {
            let history = entry.on_device.history_capacity as usize * size_of::<u32>();
            (entry.on_device.entries_mask as usize + 1) * unit + touched + history.next_multiple_of(unit)
        } else if has(features::TOKEN_COUNTS) {
            touched + MAX_DRAFTS * size_of::<u32>()
        } else {
            0
        }
    }

    fn entry(&self, slot: Slot) -> Option<&SlotEntry> {
        usize::try_from(slot).ok().and_then(|slot| self.slots.get(slot))
    }

    /// Returns the features that a slot's request needs, and the smallest named variant that serves it; if
    /// `greedy`, at temperature 0.
    pub(crate) fn needs_of(&self, slot: Slot, greedy: bool) -> (StepFeatures, StepVariant) {
        match usize::try_from(slot) {
            Err(_) => NO_NEEDS,
            Ok(slot) if greedy => StepVariant::with_features(&self.slots[slot].greedy_params()),
            Ok(slot) => self.needs[slot],
        }
    }

    /// Returns whether a slot's history can take `ids` more ids; so can padding.
    #[must_use]
    pub fn has_room(&self, slot: Slot, ids: u64) -> bool {
        usize::try_from(slot).map_or(slot == -1, |slot| self.history_budget.left_of(slot) >= ids)
    }

    /// Counts a step that a finish kernel runs, and a named variant serves.
    pub(crate) fn count(&self, run: Variant, served: StepVariant) {
        self.run[run as usize].fetch_add(1, Ordering::Relaxed);
        self.served[served as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many steps a variant has run: those enqueued or replayed in this workspace.
    #[must_use]
    pub fn steps_run(&self, variant: Variant) -> u64 {
        self.run[variant as usize].load(Ordering::Relaxed)
    }

    /// Returns how many steps a named variant has served: those reserved for replays of a host program's
    /// graph under the variant that was named, and all others under the smallest one that serves their rows.
    #[must_use]
    pub fn steps_served(&self, variant: StepVariant) -> u64 {
        self.served[variant as usize].load(Ordering::Relaxed)
    }

    /// Records that the device may take tokens away from the requests in these slots.
    pub(crate) fn note_shortened(&self, slots: &[Slot]) {
        for entry in slots.iter().filter_map(|slot| self.entry(*slot)) {
            entry.was_shortened.store(true, Ordering::Relaxed);
        }
    }

    /// Records the lengths of histories: those of slots of which no step is enqueued that the lengths do not
    /// count. Where tokens were taken away, a length tells nothing of the table's room.
    pub(crate) fn note_lengths(&mut self, lengths: impl IntoIterator<Item = (Slot, usize)>) {
        let slots = &self.slots;
        let growths = lengths.into_iter().filter_map(|(slot, length)| {
            let slot = usize::try_from(slot).ok()?;
            let bounds =
                |entry: &&SlotEntry| entry.has_history() && !entry.was_shortened.load(Ordering::Relaxed);
            let entry = slots.get(slot).filter(bounds)?;
            let capacity = entry.on_device.history_capacity as usize;
            Some((slot, capacity.saturating_sub(length) as u64))
        });
        self.history_budget.set(growths);
    }

    fn index(&self, slot: Slot) -> Result<usize> {
        let slots = self.slots.len();
        let index = usize::try_from(slot).ok().filter(|index| *index < slots);
        index.ok_or_else(|| Error::out_of_range("slot", slot, format!("in 0..{slots}")))
    }
}
