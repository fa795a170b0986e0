//! The engine's pool over ranks as a backend: three threads, each with a part of every row.
//!
//! Rows are surveyed where they are, unless somebody must see them whole: then they are swapped. Borders lie inside tiles.

use std::time::Duration;

use gumball_engine::dist::{
    self, LogitsLayout, PlannerConfig, StepKind, Threads, Transport, VocabSplit, threads,
};
use gumball_engine::{
    BatchOptions, DistPool, Drafts, Kind, Logits, Outputs, PoolConfig, SamplingParams, Sequence, Slot, State,
    Verification, VerifyMode, bf16, f16,
};
use gumball_spec::{Result, Row};

use super::verbs::Verbs;

/// The pools of all ranks.
#[derive(Debug)]
pub struct Ranks {
    pools: Vec<DistPool>,
}

/// The number of ranks.
const WORLD: usize = 3;

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// Numbers of one type.
enum Numbers {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Ranks {
    /// Makes the pools of all ranks.
    ///
    /// # Errors
    /// Those of [`DistPool::new`].
    pub fn new(config: &PoolConfig) -> Result<Self> {
        let vocab = config.vocab;
        let borders = [0, vocab * 37 / 100, vocab * 71 / 100, vocab];
        let sizes: Vec<usize> = borders.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let planner = PlannerConfig::new(VocabSplit::of_sizes(&sizes)?);
        let make = |rank: Threads| {
            let config = PoolConfig { threads: Some(1), ..config.clone() };
            DistPool::new(config, planner.clone(), Box::new(rank) as Box<dyn Transport>)
        };
        let pools = std::thread::scope(|scope| {
            let ranks = threads(WORLD, PATIENCE).into_iter().map(|rank| scope.spawn(move || make(rank)));
            let ranks: Vec<_> = ranks.collect();
            ranks
                .into_iter()
                .map(|rank| of_caller(rank.join().expect("no rank panics")))
                .collect::<Result<_>>()
        })?;
        Ok(Self { pools })
    }

    /// Does the same on all ranks, one after the other.
    fn on_each<T: PartialEq + std::fmt::Debug>(
        &mut self,
        work: impl Fn(&mut DistPool) -> dist::Result<T>,
    ) -> Result<T> {
        let mut results = self.pools.iter_mut().map(work);
        let first = results.next().expect("a rank");
        results.for_each(|other| assert_eq!(other, first, "all ranks come to the same"));
        of_caller(first)
    }

    /// Does the same on all ranks at once, each with its part of some rows.
    fn with_parts<T: Send>(
        &mut self,
        logits: Logits<'_>,
        work: impl Fn(&mut DistPool, Logits<'_>) -> dist::Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let work = &work;
        let results: Vec<dist::Result<T>> = std::thread::scope(|scope| {
            let ranks = self.pools.iter_mut().map(|pool| {
                scope.spawn(move || {
                    let split = pool.planner().split();
                    let ids = split.ids(pool.group().rank());
                    // A rank without ids has padding alone.
                    let columns = if ids.is_empty() { split.width() } else { ids.len() };
                    let numbers = part(logits, ids, columns);
                    let row = match &numbers {
                        Numbers::F32(numbers) => Row::F32(numbers),
                        Numbers::Bf16(numbers) => Row::Bf16(numbers),
                        Numbers::F16(numbers) => Row::F16(numbers),
                    };
                    let part = Logits::new(row, logits.rows(), columns)?.with_kind(logits.kind());
                    work(pool, part)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        });
        results.into_iter().map(of_caller).collect()
    }
}

/// Returns the error that one process would have; a group that breaks is no case of a rule.
fn of_caller<T>(result: dist::Result<T>) -> Result<T> {
    result.map_err(|error| match error {
        dist::Error::Call(error) => error,
        error => panic!("a group broke: {error}"),
    })
}

/// Takes some ids of all rows; what is missing of the columns is NaN.
fn part(logits: Logits<'_>, ids: std::ops::Range<usize>, columns: usize) -> Numbers {
    macro_rules! take {
        ($dtype:ident, $padding:expr) => {{
            let mut numbers = Vec::with_capacity(logits.rows() * columns);
            for row in 0..logits.rows() {
                let Row::$dtype(row) = logits.row(row) else { unreachable!("one type a step") };
                numbers.extend_from_slice(&row[ids.clone()]);
                numbers.resize(numbers.len() + columns - ids.len(), $padding);
            }
            Numbers::$dtype(numbers)
        }};
    }
    let first = if logits.rows() == 0 { Row::F32(&[]) } else { logits.row(0) };
    match first {
        Row::F32(_) => take!(F32, f32::NAN),
        Row::Bf16(_) => take!(Bf16, bf16::NAN),
        Row::F16(_) => take!(F16, f16::NAN),
    }
}

impl Verbs for Ranks {
    const HOOKS: bool = true;
    const SLOWNESS: u32 = 100;

    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.on_each(|pool| pool.resume(params.clone(), state))
    }

    fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        of_caller(self.pools[0].sequence(slot))
    }

    /// Steps twice, without the kept sets and with them, for which other rows are asked other things.
    fn step(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        options: &BatchOptions<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let is_whole = logits.kind() == Kind::Probabilities || options.hooks.iter().any(Option::is_some);
        let layout = if is_whole { LogitsLayout::Swap } else { LogitsLayout::Survey };
        let step = |pool: &mut DistPool, part: Logits<'_>, mut out: Outputs| {
            let shape = pool.shape(slots, 0, StepKind::Decode)?;
            let plan = pool.planner().plan_as(layout, &shape);
            pool.step(&plan, part, slots, options, &mut out)?;
            Ok(out)
        };
        let admitted: Vec<Slot> = slots.iter().copied().filter(|slot| *slot >= 0).collect();
        let lengths: Vec<usize> = admitted
            .iter()
            .map(|slot| Ok(self.sequence(*slot)?.history().output().len()))
            .collect::<Result<_>>()?;
        let without = self.with_parts(logits, |pool, part| step(pool, part, Outputs::new()))?;
        for (slot, length) in admitted.iter().zip(lengths) {
            self.on_each(|pool| pool.truncate(*slot, length))?;
        }
        let with = self.with_parts(logits, |pool, part| step(pool, part, Outputs::with_kept()))?;
        for out in without.iter().chain(&with) {
            assert_eq!(
                out.words(),
                with[0].words(),
                "all ranks come to the same, with kept sets and without"
            );
        }
        out.clone_from(&with[0]);
        Ok(())
    }

    fn release(&mut self, slot: Slot) -> Result<()> {
        self.on_each(|pool| pool.release(slot))
    }

    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        self.on_each(|pool| pool.fork(slot, draw))
    }

    fn verify(
        &mut self,
        logits: Logits<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        let all = self.with_parts(logits, |pool, part| {
            let shape = pool.shape(slots, 0, StepKind::Verify)?;
            let plan = pool.planner().plan_as(LogitsLayout::Swap, &shape);
            let mut out = Verification::with_kept();
            pool.verify(&plan, part, slots, drafts, mode, options, &mut out)?;
            Ok(out)
        })?;
        let words = |verification: &Verification| verification.outputs().words().to_vec();
        all.iter().for_each(|other| assert_eq!(words(other), words(&all[0]), "all ranks come to the same"));
        out.clone_from(&all[0]);
        Ok(())
    }
}
