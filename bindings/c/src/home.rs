//! The engine's pools behind one: of one process, and over ranks on the host or on devices.

use gumball_engine::dist::{Group, Planner, StepKind, StepShape};
use gumball_engine::{
    Batch, Device, DeviceDistPool, DeviceGraph, DistPool, Drafts, Error, HeadCounts, Layout, OnDevice,
    Outputs, Pool, Proposals, Result, Rows, SamplingParams, Scored, Sequence, Slot, State, StepVariant, Work,
};

/// A pool of the engine's.
#[derive(Debug)]
pub(crate) enum Home {
    /// On the host or on a device.
    Alone(Box<Pool>),
    Ranks(Box<DistPool>),
    DeviceRanks(Box<DeviceDistPool>),
}

/// Evaluates an expression with the pool, whose methods have the same names.
macro_rules! every {
    ($home:expr, $pool:ident => $body:expr) => {
        match $home {
            Home::Alone($pool) => $body,
            Home::Ranks($pool) => $body,
            Home::DeviceRanks($pool) => $body,
        }
    };
}

/// Evaluates an expression with a pool that does work in order.
macro_rules! in_order {
    ($home:expr, $pool:ident => $body:expr) => {
        match $home {
            Home::Alone($pool) => $body,
            Home::DeviceRanks($pool) => $body,
            Home::Ranks(_) => {
                unavailable("work in order over ranks of the host", "step and verify there by direct calls")
            }
        }
    };
}

fn unavailable<T>(resource: &'static str, reason: &str) -> Result<T> {
    Err(Error::Unavailable { resource, reason: reason.to_owned() })
}

impl Home {
    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        every!(self, pool => pool.admit(params, prompt))
    }

    pub fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        every!(self, pool => pool.resume(params, state))
    }

    pub fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        every!(self, pool => pool.fork(slot, draw))
    }

    pub fn release(&mut self, slot: Slot) -> Result<()> {
        every!(self, pool => pool.release(slot))
    }

    pub fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        every!(self, pool => pool.push(slot, id))
    }

    pub fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        every!(self, pool => pool.shorten(slots, counts))
    }

    pub fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        every!(self, pool => pool.sequence(slot))
    }

    pub fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        every!(self, pool => pool.step(rows, batch, out))
    }

    pub fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        every!(self, pool => pool.verify(rows, batch, drafts, out))
    }

    pub fn draft(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        self.alone("drafts over ranks")?.draft(rows, batch, paths, out)
    }

    pub fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.alone("scores over ranks")?.score(rows, batch, scored, out)
    }

    pub fn assign(&mut self, batch: &Batch<'_>) -> Result<()> {
        in_order!(self, pool => pool.assign(batch))
    }

    pub fn enqueue(&mut self, work: &[Work<'_>]) -> Result<()> {
        in_order!(self, pool => pool.enqueue(work))
    }

    pub fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        in_order!(self, pool => pool.fetch(out))
    }

    pub fn capture(&mut self, work: &[Work<'static>]) -> Result<DeviceGraph<'static>> {
        self.check_device()?;
        in_order!(self, pool => pool.capture(work))
    }

    pub fn replay(&mut self, graph: &DeviceGraph<'static>) -> Result<()> {
        self.check_device()?;
        in_order!(self, pool => pool.replay(graph))
    }

    /// Takes steps that the program's own graph will do.
    pub fn before_replay(&mut self, steps: usize, variant: StepVariant) -> Result<()> {
        match self {
            Self::DeviceRanks(pool) => pool.reserve_replays(steps),
            home => home.on_device()?.reserve_replays(steps, variant),
        }
    }

    /// Returns the pool of one process, for what ranks do not have.
    pub fn alone(&mut self, resource: &'static str) -> Result<&mut Pool> {
        match self {
            Self::Alone(pool) => Ok(pool),
            Self::Ranks(_) | Self::DeviceRanks(_) => {
                unavailable(resource, "make a pool without ranks for them")
            }
        }
    }

    /// Returns what a pool of one process does on a device.
    pub fn on_device(&mut self) -> Result<OnDevice<'_>> {
        self.check_device()?;
        self.alone("graphs of the program and batches of drafts over ranks")?.on_device()
    }

    fn check_device(&self) -> Result<()> {
        match self.device() {
            Some(_) => Ok(()),
            None => {
                unavailable("device of this pool", "the pool is on the host; name one in gumball_pool_config")
            }
        }
    }

    /// Returns the engine's pool, of ranks this one's own.
    fn own(&self) -> &Pool {
        match self {
            Self::Alone(pool) => pool,
            Self::Ranks(pool) => pool.pool(),
            Self::DeviceRanks(pool) => pool.pool(),
        }
    }

    pub fn device(&self) -> Option<&Device> {
        self.own().device()
    }

    /// Returns the address and the layout of the last outputs on a device, and the addresses of the rows that these
    /// come from and of the numbers of accepted drafts.
    pub fn outputs(&mut self) -> Result<(u64, Layout, [u64; 2])> {
        match self {
            Self::DeviceRanks(pool) => {
                Ok((pool.results_address(), pool.results_layout().0, pool.walks_addresses()))
            }
            home => {
                let there = home.on_device()?;
                Ok((there.outputs_address(), there.outputs_layout(), there.walks_addresses()))
            }
        }
    }

    /// Returns the sequences in flight, the most there can be, and the number of ids.
    pub fn sizes(&self) -> [usize; 3] {
        let pool = self.own();
        [pool.len(), pool.capacity(), pool.vocab()]
    }

    pub fn head_counts(&self) -> HeadCounts {
        self.own().head_counts()
    }

    /// Returns how many steps each variant has served.
    pub fn variant_steps(&mut self) -> [u64; StepVariant::ALL.len()] {
        self.on_device().map_or([0; _], |there| there.variants().map(|(_, steps)| steps))
    }

    /// Returns what decides the layouts of steps over ranks, and the group.
    pub fn ranks(&self) -> Result<(&Planner, &Group)> {
        match self {
            Self::Ranks(pool) => Ok((pool.planner(), pool.group())),
            Self::DeviceRanks(pool) => Ok((pool.planner(), pool.group())),
            Self::Alone(_) => {
                unavailable("ranks of this pool", "it was made without; name them in gumball_pool_config")
            }
        }
    }

    pub fn shape(&self, slots: &[Slot], drafts: usize, kind: StepKind) -> Result<StepShape> {
        match self {
            Self::Ranks(pool) => pool.shape(slots, drafts, kind),
            Self::DeviceRanks(pool) => pool.shape(slots, drafts, kind),
            Self::Alone(_) => self.ranks().map(|_| unreachable!("it has none")),
        }
    }

    /// Returns whether steps of the assigned rows send whole rows to other ranks.
    pub fn sends_rows(&self) -> bool {
        matches!(self, Self::DeviceRanks(pool) if pool.sends_rows())
    }
}
