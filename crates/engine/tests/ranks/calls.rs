//! The calls that ranks make, on one batch whose rows take every kind of exchange: tests of what goes wrong
//! take a call as an argument.

use std::ops::Range;
use std::time::Duration;

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey};
use gumball_engine::dist::{Ownership, PlannerConfig, Transport, TransportKind, VocabSplit};
use gumball_engine::head::{Exact, HeadOptions, HostMatrix};
use gumball_engine::{
    Batch, Drafts, Error, HostMasks, Kind, LogprobMode, LogprobsParams, Masks, Outputs, Place, Pool,
    PoolConfig, Proposals, Ranks, Rows, SamplingParams, Scored, Sequence, Slot, State, VerifyMode, Widths,
};

use crate::batch::{Requests, part, planned};
use crate::cases::Dice;

/// Where the rows of a pool lie, and how those on devices travel.
pub type Way = Option<TransportKind>;

/// A call, and the layout of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Step(LogitsLayout),
    /// A step of a pool that tells kept sets.
    Kept(LogitsLayout),
    /// A step from hidden states, with a head of this rank's ids.
    Hidden(LogitsLayout),
    Verify(LogitsLayout),
    Draft,
    Score,
}

impl Call {
    /// Returns the calls that are served where rows lie there.
    pub fn all(way: Way) -> Vec<Self> {
        let served = |call: &Self| match call {
            Self::Kept(Survey) => way.is_none(),
            Self::Step(Survey) | Self::Hidden(Survey) | Self::Verify(Survey) => {
                way != Some(TransportKind::Nccl)
            }
            _ => true,
        };
        let kinds = [Self::Step, Self::Kept, Self::Hidden, Self::Verify].into_iter();
        let all = kinds.flat_map(|kind| LogitsLayout::ALL.map(kind)).chain([Self::Draft, Self::Score]);
        all.filter(served).collect()
    }

    /// Returns the layout of the rows.
    pub fn layout(self) -> LogitsLayout {
        match self {
            Self::Step(layout) | Self::Kept(layout) | Self::Hidden(layout) | Self::Verify(layout) => layout,
            Self::Draft | Self::Score => Gather,
        }
    }

    /// Returns the call under another layout.
    pub fn under(self, layout: LogitsLayout) -> Self {
        match self {
            Self::Step(_) => Self::Step(layout),
            Self::Kept(_) => Self::Kept(layout),
            Self::Hidden(_) => Self::Hidden(layout),
            Self::Verify(_) => Self::Verify(layout),
            Self::Draft | Self::Score => self,
        }
    }

    /// Returns how many drafts of each request there are, or stand in front of its row.
    fn counts(self) -> &'static [u32] {
        match self {
            Self::Verify(_) => &[1, 0, 2, 0, 1, 0],
            Self::Draft => &[0, 1, 0, 0, 2, 1],
            _ => &[],
        }
    }
}

/// The arguments of a call besides its rows, which all ranks must have alike.
#[derive(Clone, Debug)]
pub struct Given {
    pub call: Call,
    pub slots: Vec<Slot>,
    pub counts: Vec<u32>,
    pub mode: VerifyMode,
    pub masks: Option<Vec<u32>>,
    pub forced: Vec<Option<u32>>,
    /// Drafts, or the paths in front of rows.
    pub drafts: Vec<i32>,
    /// The parents of drafts; `None`: chains.
    pub parents: Option<Vec<i32>>,
    /// The probabilities that drafts came from, of all rows.
    pub probs: Option<Vec<f32>>,
    /// Whether drafts, trees and the drafter's probabilities lie in the memory of the rank's device.
    pub in_device: bool,
    /// There: the first child and the next sibling of each row, instead of `parents`.
    pub links: Option<[Vec<i32>; 2]>,
    /// How many drafts of each row are drawn.
    pub siblings: usize,
    /// Known tokens, how many of them are prompt, and the first that is scored.
    pub known: (Vec<u32>, usize, usize),
    pub scoring: SamplingParams,
}

impl Given {
    pub fn new(call: Call, slots: &[Slot]) -> Self {
        Self {
            call,
            slots: if call == Call::Score { Vec::new() } else { slots.to_vec() },
            counts: call.counts().to_vec(),
            mode: VerifyMode::Coupled,
            masks: None,
            forced: Vec::new(),
            drafts: vec![1, 2, 3, 0],
            parents: None,
            probs: None,
            in_device: false,
            links: None,
            siblings: 2,
            known: ((0..2 + SCORED as u32).map(|place| place * 7 % 5).collect(), 1, 1),
            scoring: SamplingParams { top_p: 0.9, seed: Some(3), ..SamplingParams::default() },
        }
    }

    /// Returns the first row of each request, and the number of rows.
    fn starts(&self) -> Vec<usize> {
        match self.call {
            Call::Score => (0..=SCORED).collect(),
            Call::Verify(_) => {
                (0..=REQUESTS).map(|i| i + self.counts[..i].iter().sum::<u32>() as usize).collect()
            }
            _ => (0..=REQUESTS).collect(),
        }
    }

    /// Returns how many rows it has.
    pub fn rows(&self) -> usize {
        self.starts()[self.starts().len() - 1]
    }
}

/// The outputs of a call; the likeliest tokens of its rows are among the tokens.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    pub tokens: Vec<i32>,
    pub words: Vec<u32>,
    pub kept: Vec<Vec<u32>>,
}

/// A sequence as it goes on elsewhere.
pub type Saved = (SamplingParams, Vec<u32>, Vec<u32>, (u64, u32, u32, u32));

pub const VOCAB: usize = 1500;
const REQUESTS: usize = 6;
/// More than the rows that a device exchanges at a time.
const SCORED: usize = 14;
const DEVICE_ROWS: usize = 10;
const WIDTH: usize = 8;

/// Requests of every kind, and rows for all calls.
pub struct Calls {
    pub batch: Requests,
    whole: Vec<Vec<f32>>,
    weights: Vec<f32>,
    states: Vec<f32>,
}

impl Calls {
    pub fn new(world: usize) -> Self {
        let plain = || SamplingParams { temperature: 0.9, ..Default::default() };
        let logprobs =
            |mode: LogprobMode| Some(LogprobsParams { mode: mode.into(), top_n: 5, ids: vec![3, 700] });
        let all: [SamplingParams; REQUESTS] = [
            plain(),
            SamplingParams { temperature: 0.0, ..plain() },
            SamplingParams { top_k: 20, top_p: 0.9, ..plain() },
            SamplingParams { top_p: 0.8, logprobs: logprobs(LogprobMode::Processed), ..plain() },
            SamplingParams { typical_p: 0.5, top_n_sigma: 1.0, ..plain() },
            SamplingParams { presence_penalty: 0.5, logprobs: logprobs(LogprobMode::Raw), ..plain() },
        ];
        let seeded = all.into_iter().enumerate();
        let requests =
            seeded.map(|(i, it)| (SamplingParams { seed: Some(i as u64), ..it }, vec![1, 2, 3])).collect();
        let mut sizes = vec![400; world];
        sizes[world - 1] = VOCAB - 400 * (world - 1);
        let batch = Requests {
            vocab: VOCAB,
            split: VocabSplit::of_sizes(&sizes).unwrap(),
            ownership: Ownership::Blocks,
            dtype: 0,
            kind: Kind::Logits,
            kept: false,
            requests,
        };
        let mut dice = Dice(12, 0);
        let whole = batch.rows(&mut dice, SCORED);
        let mut numbers = |count| (0..count).map(|_| dice.unit() * 4.0 - 2.0).collect::<Vec<f32>>();
        let (weights, states) = (numbers(VOCAB * WIDTH), numbers(REQUESTS * WIDTH));
        Self { batch, whole, weights, states }
    }

    /// Makes an empty pool for a call, over ranks if there is a transport.
    pub fn pool(
        &self,
        call: Call,
        (way, timeout): (Way, Duration),
        transport: Option<Box<dyn Transport>>,
        place: Option<Place>,
    ) -> Result<Pool, Error> {
        let config = PoolConfig {
            slots: 16,
            widths: Widths { top_n: 5, ids: 2 },
            kept: matches!(call, Call::Kept(_)),
            place: place.unwrap_or_else(|| place_of(way)),
            ..PoolConfig::new(VOCAB)
        };
        let Some(transport) = transport else { return Pool::new(config) };
        let layouts = LogitsLayout::ALL.into_iter();
        let layouts = layouts.filter(|it| Call::all(way).contains(&Call::Step(*it))).collect();
        let planner = PlannerConfig { layouts, ..self.batch.planner() };
        let devices = way.unwrap_or(TransportKind::Auto);
        Pool::over(config, Ranks { devices, timeout, ..Ranks::new(planner, transport) })
    }

    /// Admits the requests, each with a token of output.
    pub fn admit(&self, pool: &mut Pool) -> Vec<Slot> {
        let requests = self.batch.requests.iter();
        let slots = requests.map(|(params, prompt)| pool.admit(params.clone(), prompt).unwrap());
        let slots: Vec<Slot> = slots.collect();
        slots.iter().for_each(|slot| pool.push(*slot, 4).unwrap());
        slots
    }

    /// Makes a call, over ranks or alone.
    pub fn take(&self, pool: &mut Pool, given: &Given) -> Result<Taken, Error> {
        let Given { call, slots, counts, mode, forced, drafts, .. } = given;
        let (starts, count, split) = (given.starts(), given.rows(), &self.batch.split);
        let own = pool.ranks().map(|ranks| ranks.group.rank());
        let is_planned = own.is_some() && !matches!(call, Call::Draft | Call::Score);
        let most = counts.iter().max().map_or(0, |most| *most as usize);
        let plan = is_planned.then(|| planned(pool, slots, call.layout(), most));
        let rows: Vec<usize> = plan.zip(own).map_or_else(
            || (0..count).collect(),
            |(plan, own)| {
                plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]).collect()
            },
        );
        let (layout, rank) = (own.map_or(Replicated, |_| call.layout()), own.unwrap_or(0));
        let part = part(layout, split, rank, 0, &self.whole[..count], &rows);
        let logits = part.numbers.logits(part.rows, part.columns, Kind::Logits);
        let words = VOCAB.div_ceil(32);
        let masks = given.masks.as_ref();
        let masks =
            masks.map_or(Masks::None, |masks| HostMasks::new(masks, count, words, words).unwrap().into());
        let batch = Batch { slots, counts, mode: *mode, masks, forced, plan, ..Batch::default() };
        let (mut out, mut proposals) = (Outputs::new(), Proposals::new(given.siblings));
        match call {
            Call::Step(_) | Call::Kept(_) => pool.step(logits, &batch, &mut out)?,
            Call::Hidden(_) => {
                let whole = layout == Replicated;
                let ids = if whole { 0..VOCAB } else { split.ids(rank) };
                let rows = if whole { rows } else { (0..count).collect() };
                self.step_from_hidden(pool, (ids, &rows), &batch, &mut out)?;
            }
            Call::Verify(_) => {
                let chains = Drafts::chain(drafts);
                let trees = given.parents.as_ref().map_or(chains, |parents| Drafts::tree(drafts, parents));
                let probs = given.probs.as_ref();
                let probs = probs.map(|probs| HostMatrix::new(probs, count, VOCAB).unwrap().into());
                let drafts = Drafts { probs, ..trees };
                #[cfg(feature = "emulator")]
                let uploaded = given.in_device.then(|| Uploaded::new(pool.device().unwrap(), given));
                #[cfg(feature = "emulator")]
                let drafts = uploaded.as_ref().map_or(drafts, |uploaded| uploaded.drafts(count));
                pool.verify(logits, &batch, &drafts, &mut out)?;
            }
            Call::Draft => {
                pool.draft(logits, &batch, drafts, &mut proposals)?;
                return Ok(Taken { tokens: proposals.ids().to_vec(), words: Vec::new(), kept: Vec::new() });
            }
            Call::Score => {
                let (ids, prompt_len, start) = (&given.known.0, given.known.1, given.known.2);
                let params = &given.scoring;
                let scored = Scored { params, ids, prompt_len, start, chunk_rows: None };
                pool.score(logits, &batch, &scored, &mut out)?;
            }
        }
        let kept = if matches!(call, Call::Kept(_)) { 0..count } else { 0..0 };
        let kept = kept.map(|row| out.kept(row).to_vec()).collect();
        let top_ids = (0..count).flat_map(|row| out.top_ids(row)).copied();
        let tokens = out.tokens().iter().copied().chain(top_ids).collect();
        Ok(Taken { tokens, words: out.words().to_vec(), kept })
    }

    fn step_from_hidden(
        &self,
        pool: &mut Pool,
        (ids, rows): (Range<usize>, &[usize]),
        batch: &Batch<'_>,
        out: &mut Outputs,
    ) -> Result<(), Error> {
        let weights = &self.weights[ids.start * WIDTH..ids.end * WIDTH];
        let head = Exact::new(weights, ids.len(), WIDTH, HeadOptions::default()).unwrap();
        let states: Vec<f32> =
            rows.iter().flat_map(|row| &self.states[row * WIDTH..][..WIDTH]).copied().collect();
        let states = HostMatrix::new(&states, rows.len(), WIDTH).unwrap();
        #[cfg(feature = "emulator")]
        if let Some(device) = pool.device() {
            let there = gumball_engine::DeviceHead::new(device, &head, REQUESTS)?;
            return pool.step(Rows::hidden(&there, states), batch, out);
        }
        pool.step(Rows::hidden(&head, states), batch, out)
    }

    /// Returns what one process gets.
    pub fn want(&self, call: Call) -> Taken {
        let mut pool = self.pool(call, (None, Duration::ZERO), None, None).unwrap();
        let slots = self.admit(&mut pool);
        self.take(&mut pool, &Given::new(call, &slots)).unwrap()
    }

    /// Resumes sequences in a pool, makes a call there, and holds the outputs to one process's.
    pub fn go_on(&self, call: Call, mut pool: Pool, saved: &[Saved]) {
        let resumed = saved.iter().map(|(params, prompt, output, (seed, position, draw, mu))| {
            let (seed, position, draw, mu) = (*seed, *position, *draw, f32::from_bits(*mu));
            let state = State { prompt, output, seed, position, draw, mu };
            pool.resume(params.clone(), state).unwrap()
        });
        let slots: Vec<Slot> = resumed.collect();
        assert_eq!(self.take(&mut pool, &Given::new(call, &slots)).unwrap(), self.want(call), "{call:?}");
    }
}

/// Holds cases, four at a time, as they wait most of the time.
#[cfg(feature = "emulator")]
pub fn hold_each<T>(cases: impl Iterator<Item = T> + Send, hold: impl Fn(T) + Sync) {
    let cases = std::sync::Mutex::new(cases);
    let next = || cases.lock().unwrap().next();
    let work = || std::iter::from_fn(next).for_each(&hold);
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
}

/// By which a rank that comes to no call stays until the other one has given up, or panicked, which drops
/// what it holds of it.
#[cfg(feature = "emulator")]
#[derive(Default)]
pub struct Stay(std::sync::atomic::AtomicBool);

#[cfg(feature = "emulator")]
impl Stay {
    /// Waits until `Stay::end` is dropped.
    pub fn wait(&self) {
        while !self.0.load(std::sync::atomic::Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn end(&self) -> impl Drop + '_ {
        struct End<'a>(&'a Stay);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.0.store(true, std::sync::atomic::Ordering::Release);
            }
        }
        End(self)
    }
}

/// Returns where the rows of a pool lie.
fn place_of(way: Way) -> Place {
    match way {
        None => Place::threads(1),
        #[cfg(feature = "emulator")]
        Some(_) => device_place(gumball_engine::Device::emulated().expect("a C++ compiler")),
        #[cfg(not(feature = "emulator"))]
        Some(_) => unreachable!("no device is emulated"),
    }
}

/// Returns a device as the place of a pool's rows.
#[cfg(feature = "emulator")]
pub fn device_place(device: gumball_engine::Device) -> Place {
    Place::device(device, DEVICE_ROWS)
}

/// Returns what a sequence goes on from.
pub fn saved(sequence: &Sequence) -> Saved {
    let State { prompt, output, seed, position, draw, mu } = sequence.state();
    let bits = mu.to_bits();
    (sequence.params().clone(), prompt.to_vec(), output.to_vec(), (seed, position, draw, bits))
}

/// Returns the states of all sequences in slots.
pub fn all_saved(pool: &mut Pool, slots: &[Slot]) -> Vec<Saved> {
    slots.iter().map(|slot| saved(pool.sequence(*slot).unwrap())).collect()
}

/// Drafts in the memory of a device.
#[cfg(feature = "emulator")]
struct Uploaded {
    /// Ids, then parents or links.
    lists: Vec<gumball_engine::DeviceBuffer>,
    probs: Option<gumball_engine::DeviceBuffer>,
}

#[cfg(feature = "emulator")]
impl Uploaded {
    fn new(device: &gumball_engine::Device, given: &Given) -> Self {
        let lists = [&given.drafts].into_iter().chain(&given.parents).chain(given.links.iter().flatten());
        let upload = |list: &[u32]| gumball_engine::DeviceBuffer::of(device.runtime(), list).unwrap();
        let probs = given.probs.as_ref().map(|probs| upload(bytemuck::cast_slice(probs)));
        Self { lists: lists.map(|list| upload(bytemuck::cast_slice(list))).collect(), probs }
    }

    fn drafts(&self, rows: usize) -> Drafts<'_> {
        use gumball_engine::{DeviceMatrix, DeviceSlice, Dtype, Ids, IntType, Tree};
        let count = rows - REQUESTS;
        let column = |list: usize, length| {
            Ids::Device(DeviceSlice::of(&self.lists[list], IntType::I32).first(length).unwrap())
        };
        let tree = match self.lists.len() {
            1 => Tree::Chain,
            2 => Tree::Parents(column(1, count)),
            _ => Tree::Links { first_child: column(1, rows), next_sibling: column(2, rows) },
        };
        let matrix = |probs| DeviceMatrix::of(probs, Dtype::F32, 0, rows, VOCAB, VOCAB).unwrap().into();
        Drafts { ids: column(0, count), tree, probs: self.probs.as_ref().map(matrix) }
    }
}
