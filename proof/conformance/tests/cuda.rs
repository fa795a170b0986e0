//! Every rule, on the CUDA kernels: emulated, and on the GPU where there is one, eagerly and in a graph.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use gumball_bench_protocol::skipped::or_skip;
use gumball_conformance::backend::device;
use gumball_conformance::draft_trees::chains;
use gumball_conformance::draws::Setting;
use gumball_conformance::given_logprobs::{self, Given};
use gumball_conformance::rows::bell;
use gumball_conformance::statistics::FALSE_ALARM;
use gumball_conformance::stream::{self, Extent};
use gumball_conformance::verified_draws::{self, Place, WAYS};
use gumball_conformance::{by_name, few_values, operators, rules, selected_logprobs, softmax};
use gumball_cpu::Level;
use gumball_cuda::{Cache, Emulator, Runtime};
use gumball_engine::{
    Batch, Device, Operators, Outputs, Place as PoolPlace, Pool, PoolConfig, Rows, SamplingParams,
};

macro_rules! backends {
    ($($backend:ident),*) => {
        $(mod $backend {
            gumball_conformance::each_rule!(run);

            fn run(name: &str) {
                super::run(name, stringify!($backend));
            }
        })*
    };
}

backends!(cuda_emulated, cuda_emulated_searching, cuda, cuda_graph, cuda_searching, cuda_without_clusters);

fn run(name: &str, backend: &str) {
    let rule = rules::named(name);
    if backend == "cuda_emulated_searching" && !rule.is_searched() {
        return println!("held on cuda_emulated, and by ci/long on {backend}");
    }
    if let Some(backend) = if_here(backend, by_name(backend)) {
        rule.run(&*backend);
        let is_left = LEFT_TO_THE_ORACLE.contains(&name);
        assert_eq!(backend.lacking() > 0, is_left, "{} rows were left to the oracle", backend.lacking());
    }
}

/// The bodies of which the oracle answers some rows in a device's place: rows with hooks, and in the last two
/// rows that are written after a history or under a bitmask, which operators take nowhere.
const LEFT_TO_THE_ORACLE: [&str; 10] = [
    "a_hook_is_refused",
    "a_row_draws_the_same_in_any_batch",
    "a_row_draws_the_same_twice",
    "any_drafts_are_the_definitions",
    "edits_and_masks_act_within_the_probed_set",
    "the_hook_reads_what_the_edits_before_it_left",
    "the_hook_sees_the_row_after_the_bias_and_before_the_bans",
    "what_the_hook_leaves_is_read_as_input_is",
    "bans_and_bitmask_show_in_what_is_written",
    "whatever_is_written_is_the_definitions",
];

/// The emulated device and the GPU, as far as they are here.
fn devices() -> [Option<Device>; 2] {
    ["cuda_emulated", "cuda"].map(|name| if_here(name, device(name)))
}

/// These with their names.
fn here() -> impl Iterator<Item = (&'static str, Device)> {
    ["cuda_emulated", "cuda"].into_iter().zip(devices()).filter_map(|(name, device)| Some((name, device?)))
}

/// Returns what was found. A test without the emulator is skipped; a GPU that is not here is left to ci/gpu
/// conformance.
fn if_here<T, E: Display>(name: &str, found: Result<T, E>) -> Option<T> {
    if name.contains("emulated") {
        return or_skip(found);
    }
    found.inspect_err(|error| println!("left to ci/gpu conformance: {error}")).ok()
}

/// Races between the blocks of a row show here on a quiet machine: as other tokens, as branches that differ,
/// which end the process, or as blocks that wait for each other for ever.
#[test]
fn blocks_of_a_row_agree_though_they_drift_apart() {
    let Some(emulator) = or_skip(Emulator::new(&Cache::user())) else { return };
    let (alive, signs) = mpsc::channel();
    emulator.set_drift(7).expect("the emulator has the function");
    let work = thread::spawn(move || {
        decode_near_tokens(100, || alive.send(()).expect("somebody waits"));
        let backend = by_name("cuda_emulated").expect("its emulator is there");
        let held = rules::all().filter(|rule| rule.rule.starts_with(['E', 'F', 'S']));
        for rule in held.step_by(8) {
            rule.run(&*backend);
            alive.send(()).expect("somebody waits");
        }
    });
    let wait = || signs.recv_timeout(Duration::from_secs(40));
    let silent = std::iter::from_fn(|| Some(wait())).find_map(Result::err);
    emulator.set_drift(0).expect("as before");
    assert_eq!(silent, Some(RecvTimeoutError::Disconnected), "blocks wait for each other");
    work.join().expect("it is held");
}

/// Decodes rows whose first tokens are near each other, so that the token of a step changes which one is the
/// first; says that each is done.
fn decode_near_tokens(steps: usize, is_done: impl Fn()) {
    const VOCAB: usize = 2_000;
    const ROWS: usize = 4;
    let mut pools =
        [PoolPlace::threads(1), PoolPlace::device(Device::emulated().expect("it is there"), ROWS)].map(
            |place| Pool::new(PoolConfig { place, slots: ROWS, ..PoolConfig::new(VOCAB) }).expect("memory"),
        );
    let slots = pools.each_mut().map(|pool| {
        [0, 1, 2, 3].map(|seed| {
            let (top_n_sigma, min_p) = if seed % 2 == 0 { (0.0, 0.0) } else { (2.0, 0.01) };
            let edits =
                SamplingParams { presence_penalty: 2.0, repetition_penalty: 1.5, ..Default::default() };
            let params = SamplingParams { top_p: 0.9, top_n_sigma, min_p, seed: Some(seed), ..edits };
            pool.admit(params, &[1, 2]).expect("valid parameters")
        })
    });
    for step in 0..steps {
        let row = |row: usize| {
            let mut logits = bell(VOCAB, 0.3, (step * ROWS + row) as u64);
            (0..8).for_each(|near| logits[(step * 7 + near * 251 + row) % VOCAB] += 5.0 + 0.1 * near as f32);
            logits
        };
        let logits = (0..ROWS).flat_map(row).collect::<Vec<f32>>();
        let rows = Rows::logits(&logits, ROWS, VOCAB).expect("rows of the vocabulary");
        let mut outs = [Outputs::new(), Outputs::new()];
        for ((pool, slots), out) in pools.iter_mut().zip(&slots).zip(&mut outs) {
            pool.step(rows, &Batch::of(slots), out).expect("valid rows");
        }
        assert_eq!(outs[0].tokens(), outs[1].tokens(), "step {step}");
        is_done();
    }
}

#[test]
fn rows_of_few_distinct_values_draw_as_the_cpu_does() {
    let extent = few_values::Extent { tiles: 1024, elements: 1 << 19 };
    for (name, device) in here() {
        let (mut held, mut seed) = (0, 1 << 40);
        while held < 5_000 {
            held += few_values::hold(&device, seed, extent).unwrap_or_else(|text| panic!("{name}: {text}"));
            seed += 1;
        }
    }
}

/// The first tokens of 151 tiles, then of a heap in which a search's bin ends: together as many as a list
/// holds, one less, one more, and as many as tiles.
#[test]
fn a_list_that_first_tokens_fill_is_searched() {
    const TILES: usize = 594;
    for firsts in [415, 416, 417, TILES] {
        let mut row = vec![-1.0; 256 * TILES];
        for tile in 0..TILES {
            let heap = 7.926 + 0.003 * ((tile % 7) as f32 - 3.0) / 3.0;
            // Tiles with two tokens of few lie among the others.
            match tile * 5 % TILES {
                0 => row[256 * tile + 9] = 32.0,
                1..=150 => (row[256 * tile + 3], row[256 * tile + 77]) = (8.03, 8.031),
                place if place < firsts => row[256 * tile + 200] = heap,
                _ => {}
            }
        }
        for (name, device) in here() {
            let draw = |place: PoolPlace, top_k: i64| {
                let mut pool =
                    Pool::new(PoolConfig { place, slots: 1, ..PoolConfig::new(row.len()) }).expect("memory");
                let params = SamplingParams { top_k, temperature: 20.0, seed: Some(7), ..Default::default() };
                let slots = [pool.admit(params, &[]).expect("valid parameters")];
                let mut out = Outputs::new();
                let rows = Rows::logits(&row, 1, row.len()).expect("a row of the vocabulary");
                pool.step(rows, &Batch::of(&slots), &mut out).expect("a valid row");
                out.tokens()[0]
            };
            for top_k in [2, 50, 200, 300, 301, 302, 320] {
                let seen = draw(PoolPlace::device(device.clone(), 1), top_k);
                assert_eq!(
                    seen,
                    draw(PoolPlace::threads(1), top_k),
                    "{name}: {firsts} first tokens, top-k {top_k}"
                );
            }
        }
    }
}

#[test]
fn mixed_batches_draw_as_the_cpu_does() {
    use gumball_conformance::batch::{Shape, hold};
    use gumball_cuda::{Dtype, Variant};
    use gumball_spec::Kind;

    for (name, device) in here() {
        let shapes = [
            (60, 60, 257),
            (50, 50, 3_000),
            (3, 3, 70_000),
            // Many draws from few lines, and few draws.
            (60, 24, 3_000),
            (40, 1, 3_000),
            (5, 2, 70_000),
            (5, 2, 300),
        ];
        for (shape, (rows, lines, vocab)) in shapes.into_iter().enumerate() {
            for (place, dtype) in [Dtype::F32, Dtype::Bf16, Dtype::F16].into_iter().enumerate() {
                // The emulator records what is launched as a graph does.
                for (ends, graphs) in Variant::ALL.into_iter().flat_map(|ends| [(ends, false), (ends, true)])
                {
                    for (turn, kind) in [Kind::Logits, Kind::Probabilities].into_iter().enumerate() {
                        if (kind, ends) == (Kind::Probabilities, Variant::SurveyDraw) {
                            continue;
                        }
                        // By turns on the emulator, which takes long: each kind with and without graphs at
                        // some of the shapes.
                        let number = shape + place + ends as usize + turn + usize::from(graphs);
                        if name != "cuda" && !number.is_multiple_of(4) {
                            continue;
                        }
                        let shape = Shape { kind, dtype, rows, lines, vocab, steps: 4, ends };
                        hold(&device, graphs, shape).unwrap_or_else(|text| panic!("{name}: {text}"));
                    }
                }
            }
        }
    }
}

#[test]
fn scores_are_the_logprobs_of_forced_tokens() {
    for (name, device) in here() {
        let held = |seed| {
            gumball_conformance::scores::hold(&device, seed).unwrap_or_else(|text| panic!("{name}: {text}"))
        };
        let seeds = if name == "cuda" { 200 } else { 100 };
        let held = (0..seeds).filter(|seed| held(*seed)).count() as u64;
        assert!(4 * held > 3 * seeds, "{held} of {seeds} sequences had only what kernels can do");
    }
}

/// Holds what each seed stands for, of `on_gpu` seeds on a GPU and of `emulated` ones on the emulator.
fn each_seed(on_gpu: u64, emulated: u64, hold: fn(&Arc<dyn Runtime>, u64) -> Result<(), String>) {
    for (name, device) in here() {
        for seed in 0..if name == "cuda" { on_gpu } else { emulated } {
            hold(device.runtime(), seed).unwrap_or_else(|text| panic!("{name}: {text}"));
        }
    }
}

#[test]
fn softmax_is_the_probabilities_of_the_oracle() {
    each_seed(2_000, 60, softmax::hold);
}

#[test]
fn operators_are_the_oracle() {
    each_seed(2_000, 200, operators::hold);
}

#[test]
fn logprobs_of_tokens_are_those_of_the_oracle() {
    each_seed(3_000, 150, selected_logprobs::hold);
}

#[test]
fn given_logprobs_and_their_gradient_are_the_oracles_at_every_level() {
    for level in Level::available() {
        let operators = Operators::new(Some(level), Some(1)).unwrap();
        for seed in 0..300 {
            given_logprobs::hold_host(&operators, seed).unwrap_or_else(|text| panic!("{level:?}: {text}"));
        }
    }
}

#[test]
fn given_logprobs_and_their_gradient_are_the_oracles_on_devices() {
    each_seed(3_000, 150, given_logprobs::hold);
}

#[test]
fn given_logprobs_and_their_gradient_are_near_real_numbers() {
    let mut worst = [0.0; 3];
    for seed in 0..2_000 {
        let found = Given::new(seed).real();
        worst = std::array::from_fn(|what| f64::max(worst[what], found[what]));
    }
    println!("of their bounds, logprobs, entropies and derivatives: {worst:.3?}");
    assert!(worst.iter().all(|worst| *worst < 1.0), "{worst:?}");
}

#[test]
fn streams_with_drafts_are_those_without() {
    let devices = devices().into_iter().map(|device| device.map(Some));
    for (device, tokens) in devices.chain([Some(None)]).zip([300, 1_000_000, 20_000]) {
        let Some(device) = device else { continue };
        let (requests, steps) = if tokens > 1_000 { (512, 400) } else { (8, 20) };
        for is_trained in [false, true] {
            let extent = Extent { requests, steps, tokens, trained: is_trained, ranks: 1 };
            let counted = stream::hold(device.as_ref(), extent).unwrap_or_else(|text| panic!("{text}"));
            assert_eq!(counted.trained, if is_trained { counted.tokens } else { 0 });
        }
    }
}

#[test]
fn streams_with_drafts_over_ranks_are_those_of_one_pool() {
    let extent = Extent { requests: 16, steps: 40, tokens: 2_000, trained: true, ranks: 3 };
    let counted = stream::hold(None, extent).unwrap_or_else(|text| panic!("{text}"));
    assert_eq!(counted.trained, counted.tokens);
}

#[test]
fn tokens_of_verified_drafts_have_the_law_of_the_target() {
    for (device, draws) in devices().into_iter().zip([256, 65_536]) {
        let Some(device) = device else { continue };
        let is_few = draws < 1_000;
        let (streams, tokens) = if is_few { (8, 8) } else { (1024, 64) };
        let place = Place { device: Some(&device), streams, tokens };
        let settings: Vec<Setting> = verified_draws::small_settings().collect();
        for (way, seed) in WAYS.iter().zip(11..) {
            // A few settings for each way on the emulator, other ones for the next way.
            let step = if is_few { 5 } else { 1 };
            for setting in settings.iter().skip(seed as usize % step).step_by(step) {
                for test in way.run(place, setting, seed, draws).expect("valid parameters") {
                    assert!(test.p_value >= FALSE_ALARM, "{}, {}: {test:?}", way.name, setting.name);
                }
            }
        }
    }
}

#[test]
fn chains_are_those_of_the_oracle() {
    each_seed(3_000, 200, chains::hold);
}
