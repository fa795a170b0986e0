//! How often a step reads a row's logits again after the survey, on the emulator, for rows of many shapes.
#![cfg(feature = "emulator")]

use std::sync::{Arc, Mutex, PoisonError};

use gumball_bench_protocol::generated::{bell, grid, scattered, zipf};
use gumball_bench_protocol::skipped::or_skip;
use gumball_cuda::{
    Assignment, Buffer, Cache, DeviceSlice, DraftCounts, DraftIds, DraftRule, Dtype, Emulator, InitialState,
    IntType, Prepared, Rows, Runtime, StepInput, Workspace, WorkspaceLimits,
};
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{DynamicTemperature, Filter, FilterOrder, Mirostat, SamplingParams, TILE, Widths};

/// The emulator counts the reads of all its callers together, so one test runs at a time.
static COUNTING: Mutex<()> = Mutex::new(());

const TILES: usize = 100;
const VOCAB: usize = TILES * TILE - 100;

/// Rows of a shape.
struct Shape {
    name: &'static str,
    row: fn(usize, u64) -> Vec<f32>,
}

const SHAPES: [Shape; 6] = [
    Shape { name: "model-like", row: |vocab, seed| raised(bell(vocab, 2.0, seed), 20, 10.0) },
    Shape { name: "bell", row: |vocab, seed| bell(vocab, 2.0, seed) },
    Shape { name: "zipf", row: |vocab, seed| zipf(vocab, 1.0, seed) },
    Shape { name: "flat", row: |vocab, seed| bell(vocab, 0.001, seed) },
    Shape { name: "equal", row: |vocab, seed| grid(vocab, 0.0, 1, seed) },
    Shape { name: "two heaps", row: |vocab, seed| raised(bell(vocab, 0.5, seed), 900, 6.0) },
];

/// Returns a row of which `count` tokens, spread over the ids, are raised.
fn raised(mut row: Vec<f32>, count: usize, by: f32) -> Vec<f32> {
    // The stride and the vocabulary have no common factor, so the tokens are different ones.
    (0..count).for_each(|i| row[i * 7919 % VOCAB] += by);
    row
}

/// Requests with bounds of what a step reads of a row after the survey, in hundredths of the row: of a row
/// with many values, and of one whose tokens are all equal, so that each cut falls into a heap.
fn requests() -> Vec<(&'static str, SamplingParams, u64, u64)> {
    let any = SamplingParams::default;
    let top_p = SamplingParams { top_p: 0.95, ..any() };
    let typical = SamplingParams { typical_p: 0.9, ..any() };
    let xtc = SamplingParams { xtc_probability: 1.0, xtc_threshold: 1e-5, ..any() };
    // What no line below has; a bar that compares with the mass alone is the rule.
    let alone = |filter: Filter| match filter {
        Filter::TopK | Filter::TopP | Filter::MinP | Filter::Xtc => None,
        // The first hundred tokens of a hundred tiles: more than a list holds may reach the least of the
        // maxima.
        Filter::TopH => Some((filter.name(), filter.alone(), 340, 305)),
        Filter::PLess => Some((filter.name(), filter.alone(), 300, 325)),
        Filter::TypicalP => Some((filter.name(), filter.alone(), 500, 450)),
        Filter::TopNSigma | Filter::EtaCutoff => Some((filter.name(), filter.alone(), 200, 150)),
        _ => Some((filter.name(), filter.alone(), 200, 225)),
    };
    let mut requests = vec![
        ("greedy", SamplingParams { temperature: 0.0, ..any() }, 0, 0),
        ("plain", any(), 75, 25),
        ("min-p", SamplingParams { min_p: 0.05, ..any() }, 60, 25),
        ("top-k 50", SamplingParams { top_k: 50, ..any() }, 25, 205),
        ("top-k 5000", SamplingParams { top_k: 5000, ..any() }, 225, 150),
        ("top-k 1000", SamplingParams { top_k: 1000, ..any() }, 150, 225),
        ("top-k 20000", SamplingParams { top_k: 20000, ..any() }, 150, 150),
        ("top-p", top_p.clone(), 150, 150),
        ("top-k 5000, top-p", SamplingParams { top_k: 5000, ..top_p.clone() }, 325, 125),
        ("joint", SamplingParams { top_k: 5000, order: FilterOrder::Joint, ..top_p.clone() }, 225, 125),
        ("top-p, xtc", SamplingParams { top_p: 0.95, ..xtc }, 700, 525),
        (
            "mirostat",
            SamplingParams { mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }), ..any() },
            110,
            310,
        ),
        ("typical, top-p", SamplingParams { top_p: 0.95, ..typical }, 1050, 750),
        (
            "dynamic temperature, top-p",
            SamplingParams { dynamic_temperature: Some(DynamicTemperature::new(0.5, 1.5)), ..top_p.clone() },
            250,
            250,
        ),
    ];
    requests.extend(Filter::ALL.into_iter().filter_map(alone));
    requests
}

/// Returns how often a request's steps read rows after the survey, in hundredths of each row.
fn reads_of(emulator: &Arc<Emulator>, params: &SamplingParams, rows: &[Buffer]) -> Vec<u64> {
    let limits = WorkspaceLimits { vocab: VOCAB, slots: 1, rows: 1, widths: Widths::default(), kept: false };
    let mut workspace = Workspace::new(Arc::clone(emulator) as _, limits).unwrap();
    let prepared = Prepared::new(params, VOCAB).unwrap();
    let start = InitialState { seed: 3, prompt: &[1, 2, 3, 1], history_growth: 50, ..Default::default() };
    workspace.admit(0, &prepared, &start).unwrap();
    workspace.assign(&Assignment { slots: &[0], ..Assignment::default() }).unwrap();
    let mut step = |logits: &Buffer| {
        let rows = Rows::of(logits, Dtype::F32, 0, 1, VOCAB, VOCAB).unwrap();
        emulator.take_tile_reads().unwrap();
        workspace.enqueue(&workspace.fix(&StepInput::of(&rows)).unwrap()).unwrap();
        emulator.take_tile_reads().unwrap() * 100 / TILES as u64
    };
    rows.iter().map(&mut step).collect()
}

#[test]
fn a_step_reads_a_row_as_often_as_its_filters_need() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(emulator) = or_skip(Emulator::new(&Cache::user())).map(Arc::new) else { return };
    let runtime: Arc<dyn Runtime> = Arc::clone(&emulator) as _;
    let rows: Vec<Buffer> =
        SHAPES.iter().map(|shape| Buffer::of(&runtime, &(shape.row)(VOCAB, 7)).unwrap()).collect();
    let mut failures = Vec::new();
    for (name, params, bound, bound_of_equal) in requests() {
        let mut line = String::new();
        for (shape, reads) in SHAPES.iter().zip(reads_of(&emulator, &params, &rows)) {
            line += &format!(" {reads:>5}");
            let bound = if shape.name == "equal" { bound_of_equal } else { bound };
            if reads > bound {
                failures.push(format!("{name}, {}: {reads} hundredths of the row", shape.name));
            }
        }
        println!("{name:<28}{line}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn rows_without_edits_are_judged_by_a_softmax_or_by_the_lists_of_their_survey() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    const ROWS: usize = 4;
    let Some(emulator) = or_skip(Emulator::new(&Cache::user())).map(Arc::new) else { return };
    let runtime: Arc<dyn Runtime> = Arc::clone(&emulator) as _;
    let limits =
        WorkspaceLimits { vocab: VOCAB, slots: 1, rows: ROWS, widths: Widths::default(), kept: false };
    let logits: Vec<f32> = (0..ROWS as u64).flat_map(|seed| (SHAPES[0].row)(VOCAB, seed)).collect();
    let logits = Buffer::of(&runtime, &logits).unwrap();
    let ids = Buffer::of(&runtime, &[5i32; ROWS - 1]).unwrap();
    let any = SamplingParams::default;
    // The most reads of a row after its survey, in hundredths: with edits they are read to be edited, and for
    // their mass.
    let requests = [
        ("plain", any(), 0),
        ("top-k 50, top-p", SamplingParams { top_k: 50, top_p: 0.9, ..any() }, 50),
        ("a bias", SamplingParams { logit_bias: vec![(3, 1.0)], ..any() }, 240),
    ];
    for (name, params, bound) in requests {
        let mut workspace = Workspace::new(Arc::clone(&runtime), limits).unwrap();
        let prepared = Prepared::new(&params, VOCAB).unwrap();
        workspace
            .admit(0, &prepared, &InitialState { seed: 3, history_growth: 50, ..Default::default() })
            .unwrap();
        let rule = DraftRule::Judged(Judgement::Rejection);
        let counts = DraftCounts { counts: &[ROWS as u32 - 1], rule, batch_requests: &[] };
        workspace.assign(&Assignment { slots: &[0], drafts: Some(counts), ..Assignment::default() }).unwrap();
        let rows = Rows::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        let drafts =
            DraftIds { ids: DeviceSlice::of(&ids, IntType::I32), parents: None, links: None, probs: None };
        emulator.take_tile_reads().unwrap();
        workspace
            .enqueue(&workspace.fix(&StepInput { drafts: Some(drafts), ..StepInput::of(&rows) }).unwrap())
            .unwrap();
        let reads = emulator.take_tile_reads().unwrap() * 100 / (ROWS * TILES) as u64;
        println!("{name:<28}{reads:>5}");
        assert!(reads <= bound && (bound == 0 || reads > 0), "{name}: {reads} hundredths of a row");
    }
}

#[test]
fn a_search_reads_any_row_a_bounded_number_of_times() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(emulator) = or_skip(Emulator::new(&Cache::user())).map(Arc::new) else { return };
    let runtime: Arc<dyn Runtime> = Arc::clone(&emulator) as _;
    // The last ones are the worst of 600.
    for seed in (0..30).chain([31, 46, 51, 331, 337, 499]) {
        let (row, temperature, p) = scattered(VOCAB, seed);
        let rows = [Buffer::of(&runtime, &row).unwrap()];
        let any = || SamplingParams { temperature, ..SamplingParams::default() };
        let top_k = 300 + (p * (VOCAB - 300) as f32) as i64;
        // What docs/stages/filter.md derives for the search, in reads of the row.
        let asked = [
            (SamplingParams { top_k, ..any() }, 9),
            (SamplingParams { top_p: p, ..any() }, 41),
            (SamplingParams { typical_p: p, ..any() }, 46),
        ];
        let mut line = String::new();
        for (params, of_search) in asked {
            let reads = reads_of(&emulator, &params, &rows)[0];
            line += &format!(" {reads:>5}");
            // The mass and the entropy before the search, and the race behind it, are a read each.
            assert!(reads <= 100 * (of_search + 3), "seed {seed}, {params:?}: {reads} hundredths of the row");
        }
        println!("{seed:<28}{line}");
    }
}
