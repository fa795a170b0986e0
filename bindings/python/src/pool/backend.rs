//! A pool on the host or on a device, behind the same methods.

use gumball_engine::{
    Batch, CudaThreadState, Device, Error, Gpu, HostMasks, Masks, Outputs, PADDING, Pool, PoolConfig, Result,
    RowHook, Rows, SamplingParams, Scored, Sequence, Slot, State, StepVariant, Work,
};

use crate::devices;

/// A pool and where it runs.
#[derive(Debug)]
pub enum Backend {
    /// On the host, with its assignment.
    Host(Box<HostPool>),
    /// On a device.
    Device(Box<Pool>),
}

/// A host pool that also has `assign`, so that a program is the same for pools on the host and on devices.
#[derive(Debug)]
pub struct HostPool {
    pub pool: Pool,
    slots: Vec<Slot>,
    forced: Vec<Option<u32>>,
    row_indices: Vec<u32>,
    masks: Vec<u32>,
    /// The number of rows and of words per row; `None` if no masks are assigned.
    masks_shape: Option<(usize, usize)>,
    present: Vec<bool>,
    /// The smallest variant that serves each slot's request, and how many steps each variant has served.
    needed: Vec<StepVariant>,
    pub served: [u64; StepVariant::ALL.len()],
}

impl HostPool {
    pub fn new(pool: Pool) -> Self {
        let (slots, forced, row_indices, masks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (masks_shape, present, needed) = (None, Vec::new(), Vec::new());
        let served = [0; StepVariant::ALL.len()];
        Self { pool, slots, forced, row_indices, masks, masks_shape, present, needed, served }
    }

    /// Checks an assignment.
    pub fn check(&mut self, slots: &[Slot], forced: &[Option<u32>], row_indices: &[u32]) -> Result<()> {
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            self.pool.sequence(*slot)?;
        }
        for (parameter, length) in [("forced", forced.len()), ("row_indices", row_indices.len())] {
            if length != 0 && length != slots.len() {
                return Err(Error::length(parameter, length, format!("one per row, {}, or 0", slots.len())));
            }
        }
        Ok(())
    }

    /// Assigns slots, forced tokens and row indices to the rows of the next steps; `step` checks them.
    pub fn assign(&mut self, slots: &[Slot], forced: &[Option<u32>], row_indices: &[u32]) {
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        self.forced.clear();
        self.forced.extend_from_slice(forced);
        self.row_indices.clear();
        self.row_indices.extend_from_slice(row_indices);
        self.masks.clear();
        self.masks_shape = None;
    }

    /// Assigns masks to the rows of the next steps; copies their words.
    pub fn assign_masks(
        &mut self,
        words: impl Iterator<Item = u32>,
        shape: (usize, usize),
        present: &[bool],
    ) {
        self.masks.extend(words);
        self.masks_shape = Some(shape);
        self.present.clear();
        self.present.extend_from_slice(present);
    }

    /// Records which variant the request needs that a slot was just given to.
    fn admitted(&mut self, slot: Slot) -> Result<Slot> {
        let vocab = self.pool.vocab();
        let needed = StepVariant::of(self.pool.sequence(slot)?.params(), vocab)?;
        let place = slot as usize;
        self.needed.resize(self.needed.len().max(place + 1), StepVariant::NoFilter);
        self.needed[place] = needed;
        Ok(slot)
    }

    /// Returns the variant that the request in a row's slot needs; padding needs the smallest.
    fn needed_in(&self, slot: Slot) -> StepVariant {
        let needed = usize::try_from(slot).ok().and_then(|slot| self.needed.get(slot));
        needed.copied().unwrap_or(StepVariant::NoFilter)
    }

    /// Returns the smallest variant that serves the assigned rows.
    pub fn needed_variant(&self) -> StepVariant {
        let needed = self.slots.iter().map(|slot| self.needed_in(*slot));
        needed.max().unwrap_or(StepVariant::NoFilter)
    }

    /// Checks that a variant serves the assigned rows.
    pub fn check_variant(&self, variant: StepVariant) -> Result<()> {
        let mut rows = self.slots.iter().enumerate();
        rows.try_for_each(|(row, slot)| variant.check(self.needed_in(*slot), row, *slot))
    }

    /// Takes a step over rows with the current assignment. The host runs the same code for every
    /// variant; one that is named must serve the rows.
    pub fn step(
        &mut self,
        rows: Rows<'_>,
        hooks: &[Option<RowHook<'_>>],
        variant: Option<StepVariant>,
        out: &mut Outputs,
    ) -> Result<()> {
        variant.map_or(Ok(()), |variant| self.check_variant(variant))?;
        let mut masks = Masks::None;
        if let Some((rows, width)) = self.masks_shape {
            let words = HostMasks::new(&self.masks, rows, width, width)?;
            masks = if self.present.is_empty() { words } else { words.with_present(&self.present)? }.into();
        }
        let (slots, forced, row_indices) = (&self.slots, &self.forced, &self.row_indices);
        let batch = Batch { masks, forced, row_indices, hooks, ..Batch::of(slots) };
        self.pool.step(rows, &batch, out)?;
        self.served[variant.unwrap_or(self.needed_variant()) as usize] += 1;
        Ok(())
    }
}

impl Backend {
    /// Returns the GPU that the pool works on, if it is on one.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Backend::Host(_) => None,
            Backend::Device(pool) => pool.device().and_then(Device::gpu),
        }
    }

    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        match self {
            Backend::Host(host) => {
                let slot = host.pool.admit(params, prompt)?;
                host.admitted(slot)
            }
            Backend::Device(pool) => pool.admit(params, prompt),
        }
    }

    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        match self {
            Backend::Host(host) => {
                let slot = host.pool.resume(params, state)?;
                host.admitted(slot)
            }
            Backend::Device(pool) => pool.resume(params, state),
        }
    }

    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        match self {
            Backend::Host(host) => {
                let slot = host.pool.fork(slot, draw)?;
                host.admitted(slot)
            }
            Backend::Device(pool) => pool.fork(slot, draw),
        }
    }

    pub fn release(&mut self, slot: Slot) -> Result<()> {
        match self {
            Backend::Host(host) => {
                host.pool.release(slot)?;
                host.slots.iter_mut().filter(|known| **known == slot).for_each(|known| *known = PADDING);
                Ok(())
            }
            Backend::Device(pool) => pool.release(slot),
        }
    }

    pub fn truncate(&mut self, slot: Slot, output_len: usize) -> Result<()> {
        let behind = self.sequence(slot)?.tokens_behind(output_len)?;
        self.shorten(&[slot], &[behind])
    }

    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        match self {
            Backend::Host(host) => host.pool.shorten(slots, counts),
            Backend::Device(pool) => pool.shorten(slots, counts),
        }
    }

    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        match self {
            Backend::Host(host) => host.pool.push(slot, id),
            Backend::Device(pool) => pool.push(slot, id),
        }
    }

    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        match self {
            Backend::Host(host) => host.pool.sequence(slot),
            Backend::Device(pool) => pool.sequence(slot),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Backend::Host(host) => host.pool.len(),
            Backend::Device(pool) => pool.len(),
        }
    }

    pub fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        match self {
            Backend::Host(host) => host.pool.score(rows, batch, scored, out),
            Backend::Device(pool) => pool.score(rows, batch, scored, out),
        }
    }
}

/// Opens a pool on a device; on a GPU it has a stream of its own.
pub fn open(name: &str, config: impl FnOnce(Device) -> PoolConfig) -> Result<Pool> {
    let Some(ordinal) = devices::ordinal(name) else {
        // An emulated device, or an unknown name.
        return Pool::new(config(Device::open(name)?));
    };
    let _state = CudaThreadState::save();
    Pool::new(config(Device::from(devices::gpu(ordinal)?.on_new_stream()?)))
}

/// Enqueues work of a device's pool, with a new assignment if there is one, and the kernels of a variant if one is named.
pub fn enqueue(
    pool: &mut Pool,
    work: Work<'_>,
    batch: Option<&Batch<'_>>,
    variant: Option<StepVariant>,
) -> Result<()> {
    if let Some(batch) = batch {
        pool.assign(batch)?;
    }
    match variant {
        Some(variant) => pool.on_device()?.enqueue_variant(&[work], variant),
        None => pool.enqueue(&[work]),
    }
}
