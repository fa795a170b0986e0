//! Batches of requests at random, and ranks that are threads.

use std::time::Duration;

use gumball_engine::dist::{
    LogitsLayout, Ownership, Plan, PlannerConfig, StepKind, Threads, Transport, VocabSplit, threads,
};
use gumball_engine::{
    Error, Kind, Matrix, Place, Pool, PoolConfig, Ranks, Row, Rows, SamplingParams, Sequence, Slot, Widths,
    bf16, f16,
};

use crate::cases::{self, Dice};

/// How long ranks wait for each other in tests that are to succeed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The widths of outputs: so large that a device sends the results of a few rows by several blocks.
pub const WIDTHS: Widths = Widths { top_n: 512, ids: 3 };

/// Numbers of one of the three types.
#[derive(Clone, Debug)]
pub enum Numbers {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Numbers {
    /// Makes a type's nearest numbers: 0 is f32, 1 bf16, 2 f16.
    pub fn new(kind: usize, values: &[f32]) -> Self {
        match kind {
            0 => Self::F32(values.to_vec()),
            1 => Self::Bf16(values.iter().map(|z| bf16::from_f32(*z)).collect()),
            _ => Self::F16(values.iter().map(|z| f16::from_f32(*z)).collect()),
        }
    }

    pub fn as_row(&self) -> Row<'_> {
        match self {
            Self::F32(numbers) => Row::F32(numbers),
            Self::Bf16(numbers) => Row::Bf16(numbers),
            Self::F16(numbers) => Row::F16(numbers),
        }
    }

    pub fn logits(&self, rows: usize, columns: usize, kind: Kind) -> Rows<'_> {
        Rows::of(Matrix::new(self.as_row(), rows, columns).unwrap(), kind)
    }
}

/// Plans a step under a layout, or a verification if there are drafts: at most that many for each request.
pub fn planned(pool: &Pool, slots: &[Slot], layout: LogitsLayout, drafts: usize) -> Plan {
    let kind = if drafts > 0 { StepKind::Verify } else { StepKind::Decode };
    let shape = pool.shape(slots, drafts, kind).unwrap();
    pool.ranks().unwrap().planner.plan_as(layout, &shape)
}

/// The rows that a rank is handed: numbers, how many rows, how many columns.
pub struct Part {
    pub numbers: Numbers,
    pub rows: usize,
    pub columns: usize,
}

/// Takes a rank's part of whole rows under a layout; `own` are the rows of its share. Padding is NaN, so that
/// reading it shows.
pub fn part(
    layout: LogitsLayout,
    split: &VocabSplit,
    rank: usize,
    dtype: usize,
    whole: &[Vec<f32>],
    own: &[usize],
) -> Part {
    if layout == LogitsLayout::Replicated {
        let values: Vec<f32> = own.iter().flat_map(|row| whole[*row].clone()).collect();
        return Part { numbers: Numbers::new(dtype, &values), rows: own.len(), columns: split.vocab() };
    }
    let ids = split.ids(rank);
    // A rank without ids has padding alone; of others some have it.
    let is_padded = ids.is_empty() || whole.len() % 3 == 1;
    let columns = if is_padded { split.width() } else { ids.len() };
    let padding = vec![f32::NAN; columns - ids.len()];
    let values: Vec<f32> = whole.iter().flat_map(|row| [&row[ids.clone()], &padding].concat()).collect();
    Part { numbers: Numbers::new(dtype, &values), rows: whole.len(), columns }
}

/// Requests, and how they are split up.
#[derive(Debug)]
pub struct Requests {
    pub vocab: usize,
    pub split: VocabSplit,
    pub ownership: Ownership,
    pub dtype: usize,
    pub kind: Kind,
    /// Whether pools of the host keep the kept sets.
    pub kept: bool,
    pub requests: Vec<(SamplingParams, Vec<u32>)>,
}

impl Requests {
    pub fn new(dice: &mut Dice, world: usize, most: usize) -> Self {
        let vocab = dice.pick(&[1, 5, 255, 256, 257, 700, 1000, 1500, 3000]);
        Self::of_vocab(dice, world, most, vocab)
    }

    pub fn of_vocab(dice: &mut Dice, world: usize, most: usize, vocab: usize) -> Self {
        let kind = if dice.one_in(6) { Kind::Probabilities } else { Kind::Logits };
        let requests = (0..dice.below(most + 1))
            .map(|i| {
                let mut params = cases::params(dice, vocab);
                if dice.one_in(4) {
                    // Servers see these most.
                    params =
                        SamplingParams { temperature: 0.8, logprobs: params.logprobs, ..Default::default() };
                    params.min_p = dice.pick(&[0.0, 0.0, 0.1]);
                }
                if kind == Kind::Probabilities {
                    speak_of_probabilities(&mut params);
                }
                params.seed = Some(u64::from(dice.word()) << 20 | i as u64);
                (params, dice.ids(12, vocab.min(9) + 1))
            })
            .collect();
        let ownership = dice.pick(&[Ownership::Blocks, Ownership::Modulo]);
        let split = split(dice, vocab, world);
        Self { vocab, split, ownership, dtype: dice.below(3), kind, kept: dice.one_in(4), requests }
    }

    pub fn rows(&self, dice: &mut Dice, count: usize) -> Vec<Vec<f32>> {
        let one = |dice: &mut Dice| match self.kind {
            Kind::Logits => cases::row(dice, self.vocab),
            Kind::Probabilities => cases::probabilities(dice, self.vocab),
        };
        (0..count).map(|_| one(dice)).collect()
    }

    fn config(&self) -> PoolConfig {
        PoolConfig {
            slots: 16,
            place: Place::threads(1 + self.dtype % 2),
            widths: WIDTHS,
            kept: self.kept,
            ..PoolConfig::new(self.vocab)
        }
    }

    /// Returns a pool of one process, and the slots of the requests.
    pub fn pool(&self) -> (Pool, Vec<Slot>) {
        let mut pool = Pool::new(self.config()).unwrap();
        let slots = self.requests.iter().map(|(params, prompt)| pool.admit(params.clone(), prompt).unwrap());
        let slots = slots.collect();
        (pool, slots)
    }

    /// Returns a rank's pool, and the slots of the requests.
    pub fn dist_pool(&self, rank: Threads) -> (Pool, Vec<Slot>) {
        self.try_dist_pool(Box::new(rank), self.planner()).unwrap()
    }

    /// Returns the configuration of a planner under which every layout may be taken.
    pub fn planner(&self) -> PlannerConfig {
        PlannerConfig {
            ownership: self.ownership,
            layouts: LogitsLayout::ALL.to_vec(),
            ..PlannerConfig::new(self.split.clone())
        }
    }

    /// Makes such a pool over any transport, with any planner.
    pub fn try_dist_pool(
        &self,
        rank: Box<dyn Transport>,
        planner: PlannerConfig,
    ) -> Result<(Pool, Vec<Slot>), Error> {
        let mut pool = Pool::over(self.config(), Ranks::new(planner, rank))?;
        let slots = self.requests.iter().map(|(params, prompt)| pool.admit(params.clone(), prompt).unwrap());
        let slots = slots.collect();
        Ok((pool, slots))
    }
}

/// Splits a vocabulary somehow: evenly, at tiles, or anywhere; ranks may have nothing.
pub fn split(dice: &mut Dice, vocab: usize, world: usize) -> VocabSplit {
    let step = match dice.below(4) {
        0 => return VocabSplit::even(vocab, world).unwrap(),
        1 => 256,
        _ => 1,
    };
    let mut borders: Vec<usize> = (1..world).map(|_| dice.below(vocab + 1) / step * step).collect();
    borders.sort_unstable();
    let ends = borders.iter().copied().chain([vocab]);
    let sizes: Vec<usize> = ends.scan(0, |start, end| Some(end - std::mem::replace(start, end))).collect();
    VocabSplit::of_sizes(&sizes).unwrap()
}

/// Switches off what speaks of logits.
pub fn speak_of_probabilities(params: &mut SamplingParams) {
    let plain = SamplingParams::default();
    params.temperature = if SamplingParams::is_greedy(params.temperature) { 0.0 } else { 1.0 };
    (params.dynamic_temperature, params.top_n_sigma, params.p_less) = (None, plain.top_n_sigma, false);
    (params.repetition_penalty, params.dry) = (plain.repetition_penalty, plain.dry);
    (params.frequency_penalty, params.presence_penalty) = (plain.frequency_penalty, plain.presence_penalty);
    params.logit_bias.iter_mut().for_each(|(_, bias)| *bias = f32::NEG_INFINITY);
}

/// Runs ranks as threads, and returns the result of each.
pub fn on_ranks<T: Send>(world: usize, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
    with_patience(world, PATIENCE, work)
}

/// Does so with ranks that wait for each other no longer than told.
pub fn with_patience<T: Send>(
    world: usize,
    patience: Duration,
    work: impl Fn(Threads) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = threads(world, patience).into_iter().map(|rank| scope.spawn(move || work(rank)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    })
}

/// Returns position, ids and mirostat's limit of a sequence.
pub fn state(sequence: &Sequence) -> (u32, Vec<u32>, u32) {
    (sequence.position(), sequence.history().ids().to_vec(), sequence.mu().to_bits())
}
