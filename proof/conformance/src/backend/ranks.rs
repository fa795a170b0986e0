//! The engine's pools over ranks as a backend: three threads, each with a part of every row, on the host or on a device of its own.
//!
//! Rows are surveyed where they are, unless somebody must see them whole: then they are swapped. Borders lie inside tiles.

use std::time::Duration;

#[cfg(feature = "cuda")]
use gumball_engine::Device;
use gumball_engine::dist::{
    LogitsLayout, Plan, PlannerConfig, StepKind, StepShape, Transport, VocabSplit, threads,
};
use gumball_engine::{
    Batch, Drafts, Kind, Logits, Matrix, Outputs, Place, Pool, PoolConfig, Ranks as Over, Rows,
    SamplingParams, Sequence, Slot, State, bf16, f16,
};
use gumball_spec::{Result, Row};

#[cfg(feature = "cuda")]
use super::on_device::{OnDevice, dtype_of};
#[cfg(feature = "cuda")]
use super::verbs::Work;
use super::verbs::{Verbs, read};

/// The pools of all ranks.
#[derive(Debug)]
pub struct Ranks {
    pools: Vec<Pool>,
    split: VocabSplit,
    /// The layouts that steps take in turn, where they can, and how many steps there were.
    layouts: Vec<LogitsLayout>,
    turn: usize,
}

/// The number of ranks.
const WORLD: usize = 3;

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank's numbers, of one type.
enum Numbers {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

/// A rank's part of rows.
struct Part {
    numbers: Numbers,
    rows: usize,
    columns: usize,
    kind: Kind,
}

impl Part {
    fn rows(&self) -> Result<Rows<'_>> {
        let numbers = match &self.numbers {
            Numbers::F32(numbers) => Row::F32(numbers),
            Numbers::Bf16(numbers) => Row::Bf16(numbers),
            Numbers::F16(numbers) => Row::F16(numbers),
        };
        Ok(Rows::of(Matrix::new(numbers, self.rows, self.columns)?, self.kind))
    }
}

impl Ranks {
    /// Makes the pools of all ranks.
    ///
    /// # Errors
    /// Those of [`Pool::over`].
    pub fn new(config: &PoolConfig) -> Result<Self> {
        Self::of(config.vocab, |planner, rank| {
            let config = PoolConfig { place: Place::threads(1), ..config.clone() };
            Pool::over(config, Over { planner, transport: rank, timeout: PATIENCE })
        })
    }
}

#[cfg(feature = "cuda")]
impl Ranks {
    /// Makes the pools of all ranks, each on an emulated device of its own.
    ///
    /// # Errors
    /// The errors of [`Device::emulated`] and [`Pool::over`].
    pub fn on_devices(place: impl Fn(Device) -> PoolConfig + Sync, vocab: usize) -> Result<Self> {
        Self::of(vocab, |planner, rank| {
            Pool::over(place(Device::emulated()?), Over { planner, transport: rank, timeout: PATIENCE })
        })
    }
}

impl Ranks {
    fn of(
        vocab: usize,
        make: impl Fn(PlannerConfig, Box<dyn Transport>) -> Result<Pool> + Sync,
    ) -> Result<Self> {
        let borders = [0, vocab * 37 / 100, vocab * 71 / 100, vocab];
        let sizes: Vec<usize> = borders.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let split = VocabSplit::of_sizes(&sizes)?;
        let planner =
            PlannerConfig { layouts: LogitsLayout::ALL.to_vec(), ..PlannerConfig::new(split.clone()) };
        let make = &make;
        let pools = std::thread::scope(|scope| {
            let ranks = threads(WORLD, PATIENCE).into_iter().map(|rank| {
                let planner = planner.clone();
                scope.spawn(move || make(planner, Box::new(rank)))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks
                .into_iter()
                .map(|rank| of_caller(rank.join().expect("no rank panics")))
                .collect::<Result<_>>()
        })?;
        Ok(Self { pools, split, layouts: vec![LogitsLayout::Survey], turn: 0 })
    }

    /// Lets steps take all layouts in turn.
    #[must_use]
    pub fn in_all_layouts(mut self) -> Self {
        self.layouts = LogitsLayout::ALL.to_vec();
        self
    }

    /// Returns the next layout; for rows that are to be seen whole a survey is none.
    fn next_layout(&mut self, is_whole: bool) -> LogitsLayout {
        self.turn += 1;
        match self.layouts[self.turn % self.layouts.len()] {
            LogitsLayout::Survey if is_whole => LogitsLayout::Swap,
            layout => layout,
        }
    }

    /// Does the same on all ranks, one after the other.
    fn on_each<T: PartialEq + std::fmt::Debug>(
        &mut self,
        work: impl Fn(&mut Pool) -> Result<T>,
    ) -> Result<T> {
        let mut results = self.pools.iter_mut().map(work);
        let first = results.next().expect("a rank");
        results.for_each(|other| assert_eq!(other, first, "all ranks come to the same"));
        of_caller(first)
    }

    /// Does the same on all ranks at once, by their numbers.
    fn at_once<T: Send>(&mut self, work: impl Fn(usize, &mut Pool) -> Result<T> + Sync) -> Result<Vec<T>> {
        let work = &work;
        let results: Vec<Result<T>> = std::thread::scope(|scope| {
            let ranks = self.pools.iter_mut().enumerate();
            let ranks: Vec<_> = ranks.map(|(rank, pool)| scope.spawn(move || work(rank, pool))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        results.into_iter().map(of_caller).collect()
    }
}

impl Drop for Ranks {
    /// Ends all ranks at once: pools on devices wait for each other.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            self.pools.drain(..).for_each(|pool| drop(scope.spawn(move || drop(pool))));
        });
    }
}

/// Returns what one process would have; a group that breaks is no case of a rule.
fn of_caller<T>(result: Result<T>) -> Result<T> {
    result.inspect_err(|error| assert_eq!(error.of_ranks(), None, "a group broke"))
}

/// Holds what ranks computed to be the same on all.
fn same_on_all(all: &[Outputs]) {
    all.iter().for_each(|other| assert_eq!(other.words(), all[0].words(), "all ranks come to the same"));
}

/// Returns how many rows each request has, by the numbers of drafts.
fn rows_of_requests(counts: &[u32]) -> Vec<usize> {
    counts.iter().map(|count| *count as usize + 1).collect()
}

/// Returns a batch whose rows are a rank's part of them.
fn of_part<'a>(batch: &Batch<'a>, plan: Plan) -> Batch<'a> {
    Batch { row_indices: &[], plan: Some(plan), ..*batch }
}

/// Takes a rank's part of rows. `counts`: how many rows each request has. Columns without a number hold NaN.
fn part(logits: Logits<'_>, split: &VocabSplit, rank: usize, plan: &Plan, counts: &[usize]) -> Part {
    let first_row = |request: usize| counts[..request].iter().sum::<usize>();
    let (rows, ids, columns): (Vec<usize>, _, _) = match plan.layout {
        LogitsLayout::Replicated => {
            let own = plan.shares.of(rank).flat_map(|request| first_row(request)..first_row(request + 1));
            (own.collect(), 0..split.vocab(), split.vocab())
        }
        _ => {
            let ids = split.ids(rank);
            // A rank without ids has padding alone.
            let columns = if ids.is_empty() { split.width() } else { ids.len() };
            ((0..logits.rows()).collect(), ids, columns)
        }
    };
    macro_rules! take {
        ($dtype:ident, $padding:expr) => {{
            let mut numbers = Vec::with_capacity(rows.len() * columns);
            for row in &rows {
                let Row::$dtype(row) = logits.row(*row) else { unreachable!("one type a step") };
                numbers.extend_from_slice(&row[ids.clone()]);
                numbers.resize(numbers.len() + columns - ids.len(), $padding);
            }
            Numbers::$dtype(numbers)
        }};
    }
    let numbers = match (logits.rows() > 0).then(|| logits.row(0)) {
        None | Some(Row::F32(_)) => take!(F32, f32::NAN),
        Some(Row::Bf16(_)) => take!(Bf16, bf16::NAN),
        Some(Row::F16(_)) => take!(F16, f16::NAN),
    };
    Part { numbers, rows: rows.len(), columns, kind: logits.kind() }
}

/// Plans a step; of slots that are not admitted, so that the step itself refuses them.
macro_rules! plan {
    ($pool:ident, $slots:ident, $layout:ident, $kind:expr) => {{
        let shape = $pool.shape($slots, 0, $kind).or_else(|_| $pool.shape(&[], 0, $kind))?;
        $pool
            .ranks()
            .expect("it has ranks")
            .planner
            .plan_as($layout, &StepShape { requests: $slots.len(), ..shape })
    }};
}

impl Verbs for Ranks {
    const SLOWNESS: u32 = 100;

    fn hooks(&self) -> bool {
        self.pools[0].level().is_some()
    }

    fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        self.on_each(|pool| pool.admit(params.clone(), prompt))
    }

    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.on_each(|pool| pool.resume(params.clone(), state))
    }

    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        self.on_each(|pool| pool.fork(slot, draw))
    }

    fn release(&mut self, slot: Slot) -> Result<()> {
        self.on_each(|pool| pool.release(slot))
    }

    fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.on_each(|pool| pool.push(slot, id))
    }

    fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.on_each(|pool| pool.shorten(slots, counts))
    }

    fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        // Devices are waited for, which all ranks must do alike.
        self.on_each(|pool| pool.sequence(slot).map(|sequence| format!("{:?}", sequence.state())))?;
        of_caller(self.pools[0].sequence(slot))
    }

    /// Steps twice where kept sets are reported, without them and with them, for which other rows are asked other things.
    fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        let (logits, slots, kept) = (read(rows, batch)?, batch.slots, self.hooks());
        let is_hooked = batch.hooks.iter().any(Option::is_some);
        let layout = self.next_layout(logits.kind() == Kind::Probabilities || is_hooked);
        let split = self.split.clone();
        let step = |rank: usize, pool: &mut Pool, mut out: Outputs| {
            let plan = plan!(pool, slots, layout, StepKind::Decode);
            let part = part(logits, &split, rank, &plan, &vec![1; slots.len()]);
            pool.step(part.rows()?, &of_part(batch, plan), &mut out)?;
            Ok(out)
        };
        let admitted: Vec<Slot> = slots.iter().copied().filter(|slot| *slot >= 0).collect();
        let length = |slot: &Slot| Ok(self.sequence(*slot)?.history().output().len());
        let lengths: Result<Vec<usize>> = admitted.iter().map(length).collect();
        let mut all = self.at_once(|rank, pool| step(rank, pool, Outputs::new()))?;
        if kept {
            for (slot, length) in admitted.iter().zip(lengths?) {
                let behind = self.sequence(*slot)?.tokens_behind(length)?;
                self.shorten(&[*slot], &[behind])?;
            }
            let with = self.at_once(|rank, pool| step(rank, pool, Outputs::with_kept()))?;
            all.splice(0..0, with);
        }
        // With kept sets and without.
        same_on_all(&all);
        out.clone_from(&all[0]);
        Ok(())
    }

    fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let (logits, slots, kept) = (read(rows, batch)?, batch.slots, self.hooks());
        let layout = self.next_layout(true);
        let split = self.split.clone();
        let rows = rows_of_requests(batch.counts);
        let all = self.at_once(|rank, pool| {
            let plan = plan!(pool, slots, layout, StepKind::Verify);
            let part = part(logits, &split, rank, &plan, &rows);
            let mut out = if kept { Outputs::with_kept() } else { Outputs::new() };
            pool.verify(part.rows()?, &of_part(batch, plan), drafts, &mut out)?;
            Ok(out)
        })?;
        same_on_all(&all);
        out.clone_from(&all[0]);
        Ok(())
    }

    // Pools on the host take direct calls in place of work, which has no masks of devices.
    fn enqueue(&mut self, work: &Work<'_>, out: &mut Outputs) -> Result<()> {
        if self.hooks() {
            return work.call(self, out);
        }
        #[cfg(feature = "cuda")]
        self.on_devices_of(work, |pool, plan, on_device| {
            pool.assign(&of_part(&work.batch, *plan))?;
            pool.enqueue(&[on_device.work_with_host_drafts()?])
        })?;
        Ok(())
    }

    fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        if self.hooks() {
            return Ok(());
        }
        let all = self.at_once(|_, pool| {
            let mut out = out.clone();
            pool.fetch(&mut out)?;
            Ok(out)
        })?;
        same_on_all(&all);
        out.clone_from(&all[0]);
        Ok(())
    }

    fn replay(&mut self, work: &Work<'_>, turns: &[Vec<Slot>], out: &mut Outputs) -> Result<()> {
        if self.hooks() {
            return turns.iter().try_for_each(|slots| self.enqueue(&work.of_slots(slots), out));
        }
        let Some(first) = turns.first() else { return Ok(()) };
        self.on_devices_of(work, |pool, plan, on_device| {
            let batch = of_part(&work.batch, *plan);
            let assign = |pool: &mut Pool, slots: &[Slot]| pool.assign(&Batch { slots, ..batch });
            assign(pool, first)?;
            let graph = pool.capture(&[on_device.work()?])?;
            for slots in turns {
                assign(pool, slots)?;
                pool.replay(&graph)?;
            }
            Ok(())
        })
    }
}

#[cfg(feature = "cuda")]
impl Ranks {
    /// Does work on all ranks at once, each with its part of the rows and the drafts in its device's memory.
    fn on_devices_of(
        &mut self,
        work: &Work<'_>,
        call: impl Fn(&mut Pool, &Plan, &OnDevice<'_>) -> Result<()> + Sync,
    ) -> Result<()> {
        let Work { rows, batch, drafts } = *work;
        let (logits, slots) = (read(rows, &batch)?, batch.slots);
        let layout = self.next_layout(logits.kind() == Kind::Probabilities || drafts.is_some());
        let split = self.split.clone();
        let counts: Vec<usize> = match &drafts {
            None => vec![1; slots.len()],
            Some(_) => rows_of_requests(batch.counts),
        };
        let kind = if drafts.is_some() { StepKind::Verify } else { StepKind::Decode };
        self.at_once(|rank, pool| {
            let plan = plan!(pool, slots, layout, kind);
            let part = part(logits, &split, rank, &plan, &counts);
            let on_device = OnDevice::new(
                pool.device().expect("it is on a device"),
                (read(part.rows()?, &Batch::default())?, dtype_of(logits)),
                (slots.len(), drafts),
                split.vocab(),
            )?;
            call(pool, &plan, &on_device)
        })?;
        Ok(())
    }
}
