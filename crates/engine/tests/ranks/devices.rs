//! Devices as ranks: emulated ones, each on a thread of its own, give what a pool of one process gives.

use std::ops::Range;
use std::time::Duration;

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_engine::dist::TransportKind::{self, Nccl, OneSided};
use gumball_engine::dist::{Ownership, PlannerConfig, Threads, Transport, VocabSplit};
use gumball_engine::head::{Certified, Exact, HeadOptions, HostMatrix, Scaling};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceHead, DeviceMasks, DeviceMatrix, Drafts, Dtype, Filter, Head,
    HostMasks, Kind, Outputs, PADDING, Place, Pool, PoolConfig, Ranks, Rows, SamplingParams, Scored, Slot,
    VerifyMode, Work,
};

use crate::batch::{
    Numbers, PATIENCE, Part, Requests, WIDTHS, on_ranks, part, planned, state, with_patience,
};
use crate::cases::Dice;
use crate::steps::Extras;

/// Seeds from here on are of batches over 9 to 16 ranks.
const MANY: u64 = 1 << 20;

/// Returns the layouts that ranks can take whose rows travel in a given way.
pub fn layouts_of(devices: TransportKind) -> &'static [LogitsLayout] {
    if devices == Nccl { &[Gather, Swap, Replicated] } else { &LogitsLayout::ALL }
}

/// Returns the ways in which rows travel, each with each layout that it serves.
pub fn ways() -> impl Iterator<Item = (TransportKind, LogitsLayout)> {
    [OneSided, Nccl].into_iter().flat_map(|devices| layouts_of(devices).iter().map(move |of| (devices, *of)))
}

/// Returns a rank's pool on a device of its own, and the slots of the requests.
pub fn pool(batch: &Requests, rank: Threads, of: (TransportKind, Duration)) -> (Pool, Vec<Slot>) {
    pool_of_growth(batch, rank, of, 4096)
}

/// Returns the same, of histories that grow by so many tokens.
pub fn pool_of_growth(
    batch: &Requests,
    rank: Threads,
    (devices, timeout): (TransportKind, Duration),
    history_growth: usize,
) -> (Pool, Vec<Slot>) {
    let device = Device::emulated().expect("a C++ compiler");
    let place = Place::Device { device, rows: 64, history_growth, keep_histories: false };
    let config = PoolConfig { slots: 16, widths: WIDTHS, place, ..PoolConfig::new(batch.vocab) };
    let planner = PlannerConfig { layouts: layouts_of(devices).to_vec(), ..batch.planner() };
    let ranks = Ranks { devices, timeout, ..Ranks::new(planner, Box::new(rank)) };
    let mut pool = Pool::over(config, ranks).unwrap();
    assert_eq!(pool.ranks().unwrap().transport, devices.name());
    let slots = batch.requests.iter().map(|(params, prompt)| pool.admit(params.clone(), prompt).unwrap());
    let slots = slots.collect();
    (pool, slots)
}

/// This rank's part of rows of f32, in the memory of its device.
pub struct There {
    memory: DeviceBuffer,
    rows: usize,
    columns: usize,
    kind: Kind,
}

impl There {
    /// Copies it; `own` are the rows of its share.
    pub fn of(
        pool: &Pool,
        batch: &Requests,
        layout: LogitsLayout,
        whole: &[Vec<f32>],
        own: impl Iterator<Item = usize>,
    ) -> Self {
        let (rank, own) = (pool.ranks().unwrap().group.rank(), own.collect::<Vec<_>>());
        let Part { numbers, rows, columns } = part(layout, &batch.split, rank, 0, whole, &own);
        let Numbers::F32(numbers) = &numbers else { unreachable!("0 is f32") };
        let memory = DeviceBuffer::of(pool.device().unwrap().runtime(), numbers).unwrap();
        Self { memory, rows, columns, kind: batch.kind }
    }

    pub fn rows(&self) -> Rows<'_> {
        let Self { memory, rows, columns, kind } = self;
        DeviceMatrix::of(memory, Dtype::F32, 0, *rows, *columns, *columns).unwrap().with_kind(*kind).into()
    }
}

/// The drafts of a batch, which the requests' own draws judge.
struct Given {
    counts: Vec<u32>,
    ids: Vec<i32>,
    parents: Vec<i32>,
    mode: VerifyMode,
}

impl Given {
    fn new(dice: &mut Dice, batch: &Requests) -> Self {
        // A request with mirostat has none.
        let most = |params: &SamplingParams| if params.mirostat.is_some() { 1 } else { 5 };
        let requests = batch.requests.iter();
        let counts: Vec<u32> = requests.map(|(params, _)| dice.below(most(params)) as u32).collect();
        let drafts = counts.iter().sum::<u32>() as usize;
        let id = |dice: &mut Dice| dice.below(batch.vocab.min(4) + 1) as i32 - i32::from(dice.one_in(20));
        let ids = (0..drafts).map(|_| id(dice)).collect();
        let tree = dice.one_in(2);
        let parent = |dice: &mut Dice, draft| if tree { dice.below(draft + 1) } else { draft };
        let of_request = |count: &u32| (0..*count as usize).map(|of| parent(dice, of) as i32 - 1).collect();
        let parents = counts.iter().map(of_request).collect::<Vec<Vec<i32>>>().concat();
        Self { ids, parents, mode: dice.pick(&[VerifyMode::Coupled, VerifyMode::Greedy]), counts }
    }
}

/// Takes a step, or verifies drafts.
fn take(pool: &mut Pool, rows: Rows<'_>, batch: &Batch<'_>, given: Option<&Given>) -> Outputs {
    let mut out = Outputs::new();
    match given {
        None => pool.step(rows, batch, &mut out),
        Some(Given { counts, ids, parents, mode }) => {
            let batch = Batch { counts, mode: *mode, ..*batch };
            pool.verify(rows, &batch, &Drafts::tree(ids, parents), &mut out)
        }
    }
    .unwrap();
    out
}

/// Takes steps and verifications with random batches under random layouts, and holds all ranks to one
/// process. If `decided`, all rows are such that a survey alone serves them.
fn steps_equal_one_process(
    devices: TransportKind,
    seeds: Range<u64>,
    layouts: &[LogitsLayout],
    decided: bool,
) {
    for seed in seeds {
        let mut dice = Dice(seed, 0);
        let world = match seed {
            MANY.. => 9 + seed as usize % 8,
            _ => 1 + seed as usize % if decided { 8 } else { 4 },
        };
        let mut batch = Requests::new(&mut dice, world, 7);
        if decided {
            decide_in_shards(&mut dice, &mut batch);
        }
        let (mut one, slots) = batch.pool();
        let mut steps = Vec::new();
        for _ in 0..4 {
            let layout = dice.pick(layouts);
            let given = dice.one_in(2).then(|| Given::new(&mut dice, &batch));
            let mut starts = vec![0];
            for request in 0..slots.len() {
                let drafts = given.as_ref().map_or(0, |given| given.counts[request] as usize);
                starts.push(starts[request] + drafts + 1);
            }
            let count = starts[slots.len()];
            // Few ids are likely where there are drafts, so that some are accepted.
            let mut whole = batch.rows(&mut dice, count);
            for row in whole.iter_mut().filter(|_| given.is_some() && dice.one_in(2)) {
                row.iter_mut().skip(4).for_each(|z| *z = z.min(0.0));
            }
            let extras = Extras::new(&mut dice, &batch, count, false);
            let slots: Vec<Slot> =
                slots.iter().map(|slot| if dice.one_in(8) { PADDING } else { *slot }).collect();
            let values: Vec<f32> = whole.iter().flatten().copied().collect();
            let numbers = Numbers::new(batch.dtype, &values);
            let mut out = Outputs::new();
            extras.with(&batch, |options| {
                let logits = numbers.logits(count, batch.vocab, batch.kind);
                out = take(&mut one, logits, &Batch { slots: &slots, ..*options }, given.as_ref());
            });
            let states: Vec<_> = slots.iter().map(|slot| one.sequence(*slot).ok().map(state)).collect();
            steps.push((layout, (whole, starts), extras, (slots, given), out, states));
        }
        on_ranks(world, |rank| {
            let own = rank.rank();
            let (mut pool, _) = pool(&batch, rank, (devices, PATIENCE));
            for (step, (layout, (whole, starts), extras, (slots, given), want, states)) in
                steps.iter().enumerate()
            {
                let plan = planned(&pool, slots, *layout, if given.is_some() { 4 } else { 0 });
                let rows = plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]);
                let part =
                    part(*layout, &batch.split, own, batch.dtype, whole, &rows.collect::<Vec<usize>>());
                let mut out = Outputs::new();
                extras.with(&batch, |options| {
                    let logits = part.numbers.logits(part.rows, part.columns, batch.kind);
                    let of = Batch { slots, plan: Some(plan), ..*options };
                    out = take(&mut pool, logits, &of, given.as_ref());
                });
                let told =
                    || format!("seed {seed}, rank {own} of {world}, step {step}, {layout:?}, {batch:?}");
                if decided {
                    assert_eq!(pool.ranks().unwrap().sends_rows, *layout == Swap, "{}", told());
                }
                assert_eq!(out.tokens(), want.tokens(), "{}", told());
                assert_eq!(out.words(), want.words(), "{}", told());
                assert_eq!((out.accepted(), out.path()), (want.accepted(), want.path()), "{}", told());
                for (row, slot) in slots.iter().enumerate() {
                    assert_eq!(pool.sequence(*slot).ok().map(state), states[row], "{}", told());
                }
            }
        });
    }
}

#[test]
fn devices_of_ranks_sample_as_one_process() {
    steps_equal_one_process(OneSided, 0..60, &LogitsLayout::ALL, false);
}

#[test]
fn devices_that_send_messages_sample_as_one_process() {
    steps_equal_one_process(Nccl, 0..60, layouts_of(Nccl), false);
}

#[test]
fn more_devices_than_survey_rows_sample_as_one_process() {
    for devices in [OneSided, Nccl] {
        steps_equal_one_process(devices, MANY..MANY + 8, layouts_of(Nccl), false);
    }
}

#[test]
fn devices_that_swap_some_rows_of_a_survey_sample_as_one_process() {
    steps_equal_one_process(OneSided, 1000..1060, &[Survey, Survey, Swap], false);
}

/// Returns parameters with the edits of others, or with edits that leave one rank's ids or take them away.
fn edits_of(dice: &mut Dice, of: &SamplingParams, to: SamplingParams, split: &VocabSplit) -> SamplingParams {
    let ids = split.ids(dice.below(split.world()));
    let ids = || ids.clone().map(|id| id as u32).collect::<Vec<u32>>();
    let of = of.clone();
    let edited = SamplingParams {
        repetition_penalty: of.repetition_penalty,
        repetition_scope: of.repetition_scope,
        frequency_penalty: of.frequency_penalty,
        presence_penalty: of.presence_penalty,
        penalty_scope: of.penalty_scope,
        dry: of.dry,
        no_repeat_ngram: of.no_repeat_ngram,
        logit_bias: of.logit_bias,
        bias_first: of.bias_first,
        allowed_ids: of.allowed_ids,
        banned_ids: of.banned_ids,
        bad_words: of.bad_words,
        min_tokens: of.min_tokens,
        stop_ids: of.stop_ids,
        ..to
    };
    match dice.below(8) {
        0 => SamplingParams { allowed_ids: Some(ids()), ..edited },
        1 => SamplingParams { banned_ids: ids(), ..edited },
        2 => SamplingParams { logit_bias: ids().into_iter().map(|id| (id, -2.5)).collect(), ..edited },
        _ => edited,
    }
}

/// Makes all requests such that a winner or a list of each rank decides their rows.
fn decide_in_shards(dice: &mut Dice, batch: &mut Requests) {
    batch.kind = Kind::Logits;
    for (params, _) in &mut batch.requests {
        let plain = SamplingParams { seed: params.seed, ..Default::default() };
        let plain = if dice.one_in(2) { edits_of(dice, params, plain, &batch.split) } else { plain };
        let temperature = dice.pick(&[0.0f32, 0.3, 1.0, 1.5, 30.0]);
        let temperature_last = dice.one_in(5);
        let top_k = dice.pick(&[1, 2, 7, 50, 256]);
        // Top-k is off if it is not below the vocabulary.
        let is_listed = (top_k as usize) < batch.vocab;
        *params = match dice.below(if is_listed { 4 } else { 2 }) {
            0 => SamplingParams { temperature, ..plain },
            1 => SamplingParams { temperature, min_p: dice.pick(&[1e-6, 0.05, 0.7, 1.0]), ..plain },
            _ => {
                let top_p = dice.pick(&[1.0, 1.0, 0.9, 0.3]);
                let plain = SamplingParams {
                    temperature,
                    temperature_last,
                    top_k,
                    top_p,
                    xtc_threshold: 0.05,
                    ..plain
                };
                let others = Filter::ALL
                    .into_iter()
                    .filter(|filter| filter.kind().listed && !plain.is_on(*filter, usize::MAX));
                let others: Vec<Filter> =
                    others.filter(|filter| *filter != Filter::TopP && dice.one_in(3)).collect();
                others
                    .into_iter()
                    .fold(plain, |params, filter| params.with_filter(filter, filter.parameter().usual))
            }
        };
    }
}

#[test]
fn devices_that_exchange_what_decides_sample_as_one_process() {
    steps_equal_one_process(OneSided, 0..150, &[Survey, Survey, Swap], true);
}

/// A batch of three requests over 700 ids of f32.
pub fn small_batch(world: usize) -> Requests {
    let mut dice = Dice(7, 0);
    loop {
        let batch = Requests::of_vocab(&mut dice, world, 3, 700);
        if batch.requests.len() == 3 && batch.dtype == 0 {
            return batch;
        }
    }
}

#[test]
fn more_tokens_are_scored_than_a_step_has_rows() {
    let batch = Requests { kind: Kind::Logits, ..small_batch(2) };
    let mut dice = Dice(23, 0);
    // The pools have 64 rows.
    let (count, whole) = (70, batch.rows(&mut dice, 70));
    let ids: Vec<u32> = (0..=count as u32).map(|place| place * 7 % 5).collect();
    let params = SamplingParams::default();
    let (mut one, _) = batch.pool();
    let numbers = Numbers::new(0, &whole.concat());
    let scored = Scored { params: &params, ids: &ids, prompt_len: 2, start: 1, chunk_rows: None };
    let mut want = Outputs::new();
    let rows = numbers.logits(count, batch.vocab, batch.kind);
    one.score(rows, &Batch::default(), &scored, &mut want).unwrap();
    for devices in [OneSided, Nccl] {
        with_patience(2, PATIENCE, |rank| {
            let own = rank.rank();
            let (mut pool, _) = pool(&batch, rank, (devices, PATIENCE));
            let part = part(Gather, &batch.split, own, 0, &whole, &[]);
            let rows = part.numbers.logits(part.rows, part.columns, batch.kind);
            let mut found = Outputs::new();
            pool.score(rows, &Batch::default(), &scored, &mut found).unwrap();
            assert_eq!(found.words(), want.words(), "{devices:?}");
        });
    }
}

#[test]
fn a_head_whose_ids_are_split_over_ranks_gives_what_the_whole_head_gives() {
    let batch = Requests { ownership: Ownership::Blocks, kind: Kind::Logits, ..small_batch(2) };
    let (width, vocab, mut dice) = (24, batch.vocab, Dice(22, 0));
    let mut numbers = |count: usize| (0..count).map(|_| dice.unit() * 4.0 - 2.0).collect::<Vec<f32>>();
    let (weights, bias, hidden) = (numbers(vocab * width), numbers(vocab), numbers(5 * width));
    let head = |ids: Range<usize>| {
        let scaling = Scaling { softcap: 6.0, ..Scaling::default() };
        let options = HeadOptions { bias: Some(bias[ids.clone()].into()), scaling, level: None };
        Exact::new(&weights[ids.start * width..ids.end * width], ids.len(), width, options).unwrap()
    };
    let of_rows = |rows: &[usize]| -> Vec<f32> {
        rows.iter().flat_map(|row| &hidden[row * width..][..width]).copied().collect()
    };
    // A step of three rows, and a verification of two drafts of the first request.
    let (mut one, slots) = batch.pool();
    let (whole, mut step, mut verified) = (head(0..vocab), Outputs::new(), Outputs::new());
    let states = |rows| HostMatrix::new(&hidden[..rows * width], rows, width).unwrap();
    let counts = if batch.requests[0].0.mirostat.is_some() { [0, 2, 0] } else { [2, 0, 0] };
    let drafted = Batch { counts: &counts, ..Batch::of(&slots) };
    one.step(Rows::hidden(&whole, states(3)), &Batch::of(&slots), &mut step).unwrap();
    let drafts = Drafts::chain(&[1, 2]);
    one.verify(Rows::hidden(&whole, states(5)), &drafted, &drafts, &mut verified).unwrap();
    let starts = if counts[0] == 2 { [0, 3, 4, 5] } else { [0, 1, 4, 5] };
    let on_host = LogitsLayout::ALL.iter().map(|layout| (None, *layout));
    for (devices, layout) in ways().map(|(devices, layout)| (Some(devices), layout)).chain(on_host) {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = match devices {
                Some(devices) => pool(&batch, rank, (devices, PATIENCE)),
                None => batch.dist_pool(rank),
            };
            let ids = if layout == Replicated { 0..vocab } else { batch.split.ids(own) };
            assert!(!ids.is_empty(), "{batch:?}");
            let (part, certified) = (head(ids.clone()), Certified::new(head(ids)));
            let there = pool.device().map(|device| DeviceHead::new(device, &certified, 5).unwrap());
            let own_head: Head<'_> = there.as_ref().map_or((&part).into(), Head::from);
            let mut take = |starts: &[usize], drafts: Option<&Drafts<'_>>, want: &Outputs| {
                let plan = planned(&pool, &slots, layout, if drafts.is_some() { 2 } else { 0 });
                let rows: Vec<usize> = match layout {
                    Replicated => {
                        plan.shares.of(own).flat_map(|request| starts[request]..starts[request + 1]).collect()
                    }
                    _ => (0..starts[3]).collect(),
                };
                let hidden = of_rows(&rows);
                let rows = Rows::hidden(own_head, HostMatrix::new(&hidden, rows.len(), width).unwrap());
                let mut found = Outputs::new();
                let of = Batch { plan: Some(plan), ..Batch::of(&slots) };
                match drafts {
                    None => pool.step(rows, &of, &mut found).unwrap(),
                    Some(drafts) => {
                        pool.verify(rows, &Batch { counts: &counts, ..of }, drafts, &mut found).unwrap();
                    }
                }
                assert_eq!(found.words(), want.words(), "{devices:?}, {layout:?}");
            };
            take(&[0, 1, 2, 3], None, &step);
            take(&starts, Some(&drafts), &verified);
        });
    }
}

#[test]
fn a_graph_over_ranks_reads_bitmasks_of_the_device_where_they_are() {
    let batch = Requests { ownership: Ownership::Blocks, ..small_batch(2) };
    let mut dice = Dice(21, 0);
    let (whole, words) = (batch.rows(&mut dice, 3), batch.vocab.div_ceil(32));
    let masks: Vec<Vec<u32>> =
        (0..4).map(|_| (0..3 * words).map(|_| dice.word() & dice.word()).collect()).collect();
    let (mut one, slots) = batch.pool();
    let numbers = Numbers::new(batch.dtype, &whole.concat());
    let step = |one: &mut Pool, masks: &Vec<u32>| {
        let masks = HostMasks::new(masks, 3, words, words).unwrap().into();
        let mut out = Outputs::new();
        let logits = numbers.logits(3, batch.vocab, batch.kind);
        one.step(logits, &Batch { masks, ..Batch::of(&slots) }, &mut out).unwrap();
        out
    };
    let want: Vec<Outputs> = masks.iter().map(|masks| step(&mut one, masks)).collect();
    for (devices, layout) in ways() {
        on_ranks(2, |rank| {
            let own = rank.rank();
            let (mut pool, slots) = pool(&batch, rank, (devices, PATIENCE));
            let runtime = pool.device().unwrap().runtime().clone();
            let plan = planned(&pool, &slots, layout, 0);
            let part = There::of(&pool, &batch, layout, &whole, plan.shares.of(own));
            let (mut found, rows) = (Outputs::new(), part.rows());
            let mut there = DeviceBuffer::of(&runtime, &masks[0]).unwrap();
            let address = there.address();
            // SAFETY: the buffer lives until the ranks have ended, and is written between replays.
            let masked = unsafe { DeviceMasks::new(address, 3, words, words) }.unwrap();
            let of = Batch { plan: Some(plan), ..Batch::of(&slots) };
            pool.step(rows, &Batch { masks: masked.into(), ..of }, &mut found).unwrap();
            assert_eq!(found.words(), want[0].words(), "{devices:?}, {layout:?}");
            pool.assign(&of).unwrap();
            let graph = pool.capture(&[Work::Step(rows, masked.into())]).unwrap();
            for (turn, want) in want.iter().enumerate().skip(1) {
                there.write(0, &masks[turn]).unwrap();
                pool.replay(&graph).unwrap();
                pool.fetch(&mut found).unwrap();
                assert_eq!(found.words(), want.words(), "{devices:?}, {layout:?}, turn {turn}");
            }
        });
    }
}
