//! The certified head: the bounds hold, and every row has the token of the exact head, on ordinary and on
//! hostile sets.

use gumball_cpu::{Chosen, History, Level, Prepared, Task, Workspace};
use gumball_head::{Bounds, Certified, Exact, HeadOptions, HostMatrix, Scaling, Spread, Widened};
use gumball_spec::logprobs::Logprobs;
use gumball_spec::num::philox4x32_10;
use gumball_spec::{Dry, Filter, FilterOrder, Kind, LogprobMode, LogprobsParams, Row, SamplingParams, Scope};
use half::bf16;

const VOCAB: usize = 2100;
const WIDTH: usize = 72;

/// Returns numbers of a bell's rough shape.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let number = |i| {
        let words = philox4x32_10(seed, [i, 0, 9, 0]);
        words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 1.7
    };
    (0..count as u32).map(number).collect()
}

/// Weights of one kind, with their name.
fn weights() -> Vec<(&'static str, Vec<f32>)> {
    let random = numbers(VOCAB * WIDTH, 1);
    // A few directions that all rows share, of falling size, and a row in common.
    let (sides, common) = (numbers(VOCAB * 6, 2), numbers(WIDTH, 3));
    let directions = numbers(6 * WIDTH, 4);
    let structured: Vec<f32> = (0..VOCAB * WIDTH)
        .map(|place| {
            let (id, i) = (place / WIDTH, place % WIDTH);
            let sum: f32 =
                (0..6).map(|d| sides[id * 6 + d] * directions[d * WIDTH + i] / (1 << d) as f32).sum();
            2.0 * common[i] + sum + 0.05 * random[place]
        })
        .collect();
    let repeated: Vec<f32> = (0..VOCAB * WIDTH).map(|place| random[place % (40 * WIDTH)]).collect();
    let mut sparse = random.clone();
    sparse.iter_mut().enumerate().for_each(|(i, w)| *w *= f32::from((i / WIDTH).is_multiple_of(7)));
    let mut uneven = random.clone();
    for (id, row) in uneven.chunks_mut(WIDTH).enumerate() {
        row.iter_mut().for_each(|w| *w *= 2f32.powi((id % 61) as i32 - 30) * 0.01);
        row[id % WIDTH] *= 50.0;
    }
    let mut huge = random.clone();
    huge[5 * WIDTH..6 * WIDTH].fill(1e30);
    huge[900 * WIDTH..901 * WIDTH].fill(-1e38);
    huge[1300 * WIDTH] = f32::MAX;
    let mut odd = random.clone();
    odd[7 * WIDTH] = f32::NAN;
    odd[300 * WIDTH + 5] = f32::INFINITY;
    odd[301 * WIDTH + 5] = f32::NEG_INFINITY;
    let mut tiny = random.clone();
    tiny.iter_mut().for_each(|w| *w *= 1e-38);
    let mostly_odd: Vec<f32> = random
        .iter()
        .enumerate()
        .map(|(i, w)| if i % (2 * WIDTH) == 0 { f32::INFINITY } else { *w })
        .collect();
    vec![
        ("random", random),
        ("structured", structured),
        ("repeated", repeated),
        ("sparse", sparse),
        ("uneven", uneven),
        ("huge", huge),
        ("odd", odd),
        ("tiny", tiny),
        ("mostly odd", mostly_odd),
    ]
}

/// Hidden states, some of them odd.
fn states() -> Vec<Vec<f32>> {
    let mut states: Vec<Vec<f32>> = (0..6).map(|i| numbers(WIDTH, 100 + i)).collect();
    let scaled = |state: &[f32], by: f32| state.iter().map(|h| h * by).collect::<Vec<f32>>();
    states.push(scaled(&states[0], 5.0));
    states.push(scaled(&states[1], 1e-30));
    states.push(scaled(&states[2], 1e-43));
    states.push(scaled(&states[3], 1e14));
    states.push(scaled(&states[4], 1e33));
    states.push(vec![0.0; WIDTH]);
    let mut spike = states[5].clone();
    spike[3] = 4000.0;
    states.push(spike);
    for hostile in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut state = states[1].clone();
        state[70] = hostile;
        states.push(state);
    }
    states
}

/// Parameters of every kind that few tokens decide, and the mask that comes with each.
fn requests() -> Vec<(SamplingParams, bool)> {
    let base = SamplingParams { seed: Some(11), ..Default::default() };
    let logprobs =
        |mode: LogprobMode, top_n| Some(LogprobsParams { mode: mode.into(), top_n, ids: vec![5, 2000] });
    vec![
        (SamplingParams { temperature: 0.0, ..base.clone() }, false),
        (
            SamplingParams {
                temperature: 0.0,
                repetition_penalty: 1.4,
                logprobs: logprobs(LogprobMode::Tempered, 2),
                ..base.clone()
            },
            true,
        ),
        (base.clone(), false),
        (base.clone(), true),
        (SamplingParams { temperature: 0.2, frequency_penalty: 0.9, ..base.clone() }, false),
        (SamplingParams { temperature: 4.0, presence_penalty: -3.0, ..base.clone() }, false),
        (
            SamplingParams {
                logit_bias: vec![(4, 6.0), (17, f32::NEG_INFINITY), (900, -3.0)],
                banned_ids: vec![0, 1, 2],
                dry: Dry { multiplier: 1.5, allowed_length: 1, ..Default::default() },
                repetition_penalty: 0.7,
                repetition_scope: Scope::Prompt,
                ..base.clone()
            },
            false,
        ),
        (SamplingParams { allowed_ids: Some(vec![3, 7, 300, 301, 900, 2099]), ..base.clone() }, false),
        (SamplingParams { allowed_ids: Some(vec![]), ..base.clone() }, false),
        (SamplingParams { min_p: 0.1, ..base.clone() }, false),
        (SamplingParams { min_p: 1.0, ..base.clone() }, true),
        (SamplingParams { min_p: 0.02, temperature: 1.7, temperature_last: true, ..base.clone() }, false),
        (
            SamplingParams { min_p: 0.05, logprobs: logprobs(LogprobMode::Processed, 4), ..base.clone() },
            false,
        ),
        (
            SamplingParams {
                min_p: 0.03,
                top_p: 0.8,
                typical_p: 0.9,
                order: FilterOrder::List(vec![Filter::MinP, Filter::TypicalP, Filter::TopP]),
                ..base.clone()
            },
            false,
        ),
        (SamplingParams { top_k: 1, ..base.clone() }, false),
        (SamplingParams { top_k: 50, ..base.clone() }, false),
        (
            SamplingParams {
                top_k: 50,
                top_p: 0.9,
                min_p: 0.01,
                xtc_probability: 0.5,
                repetition_penalty: 1.2,
                logprobs: logprobs(LogprobMode::Processed, 10),
                ..base.clone()
            },
            true,
        ),
        (SamplingParams { top_k: 500, temperature: 2.0, ..base }, false),
    ]
}

/// The result of a row.
type Outcome = (Chosen, Option<Logprobs>);

fn sample(workspace: &mut Workspace, row: &[f32], task: &Task<'_>) -> Outcome {
    let chosen = workspace.sample(Row::F32(row), task, None).unwrap();
    (chosen, workspace.logprobs().cloned())
}

/// Makes a task of parameters, and hands it on.
fn with_task<T>(
    params: &SamplingParams,
    mask: Option<&[u32]>,
    seed: u64,
    f: impl FnOnce(&Task<'_>) -> T,
) -> T {
    let prepared = Prepared::new(params.clone(), VOCAB).unwrap();
    let mut history = History::new(&[5, 4, 900, 5, 4]);
    [1300, 5, 4].iter().for_each(|id| history.push(*id));
    let (prepared, history) = (&prepared, &history);
    let (kind, mu, forced) = (Kind::Logits, 0.0, None);
    f(&Task { kind, prepared, history, seed, position: 8, draw: 0, mu, mask, forced })
}

/// Holds every row of a head to the exact head; returns how many were settled, and how many logits that took.
fn hold(name: &str, exact: &Exact<'_>, certified: &Certified<'_>, states: &[Vec<f32>]) -> (usize, usize) {
    let level = exact.level();
    let data = states.concat();
    let all = HostMatrix::new(&data, states.len(), WIDTH).unwrap();
    let screened: Vec<usize> = (0..states.len()).filter(|row| certified.can_screen(all, *row)).collect();
    let mut widened = Widened::default();
    widened.fill_rows(all, screened.iter().copied());
    let (mut bounds, mut row) = (Bounds::default(), vec![0.0; VOCAB]);
    let mut logits = vec![0.0; screened.len() * VOCAB];
    exact.logits(&widened, Spread::Rayon, &mut logits).unwrap();
    certified.bound(&widened, Spread::Rayon, &mut bounds).unwrap();
    let over_threads = bounds.rows().to_vec();
    certified.bound(&widened, Spread::Caller, &mut bounds).unwrap();
    let bits = |z: &[f32]| z.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
    assert!(bits(bounds.rows()) == bits(&over_threads), "{name}, {level}: threads change bounds");
    for (place, (bound, z)) in over_threads.iter().zip(&logits).enumerate() {
        let id = (place % VOCAB) as u32;
        let is_odd = certified.unscreened().contains(&id);
        assert!(
            bound >= z || is_odd,
            "{name}, {level}: id {id} of state {}: {z} above {bound}",
            place / VOCAB
        );
    }
    let (_, of_states) = bounds.parts_mut();
    let mask: Vec<u32> = (0..VOCAB.div_ceil(32) as u32).map(|word| 0xF7FF_3FFF ^ (word % 5)).collect();
    let (mut contest, mut workspace) = (certified.contest().unwrap(), Workspace::new(level).unwrap());
    let (mut settled, mut computed) = (0, 0);
    for state in 0..screened.len() {
        for (i, (params, is_masked)) in requests().iter().enumerate() {
            let mask = is_masked.then_some(&mask[..]);
            with_task(params, mask, 11 + state as u64, |task| {
                let reading = task.prepared.reading_with(false, false);
                let expected = sample(&mut workspace, &logits[state * VOCAB..][..VOCAB], task);
                let mut bounds = over_threads[state * VOCAB..][..VOCAB].to_vec();
                let place = (&widened, state);
                let few = certified
                    .settle(place, &mut bounds, of_states, reading, task, &mut contest, &mut row)
                    .unwrap();
                if let Some(few) = few {
                    let seen = sample(&mut workspace, &row, task);
                    assert_eq!(seen, expected, "{name}, {level}: request {i} of state {state}");
                    (settled, computed) = (settled + 1, computed + few);
                }
            });
        }
    }
    (settled, computed)
}

#[test]
fn the_certified_head_is_the_exact_head() {
    let states = states();
    for level in Level::available() {
        for (name, weights) in weights() {
            let options = HeadOptions { level: Some(level), ..Default::default() };
            let exact = Exact::new(&weights, VOCAB, WIDTH, options).unwrap();
            let (settled, computed) = hold(name, &exact, &Certified::new(exact.clone()), &states);
            println!("{level} {name}: {settled} settled, {computed} logits");
            if ["random", "structured"].contains(&name) {
                let is_small = settled > 150 && computed / settled < 60;
                assert!(is_small, "{name}: {settled} settled, {computed} logits");
            }
        }
    }
}

#[test]
fn bias_scale_cap_and_narrow_weights_are_bounded_too() {
    let weights: Vec<bf16> = numbers(VOCAB * WIDTH, 1).into_iter().map(bf16::from_f32).collect();
    let mut bias = numbers(VOCAB, 8);
    (bias[3], bias[900], bias[4]) = (f32::INFINITY, f32::NAN, 1e31);
    for softcap in [0.0, 2.0, 30.0] {
        for level in Level::available() {
            let scaling = Scaling { logit_scale: 0.25, softcap };
            let options = HeadOptions { bias: Some((&bias[..]).into()), scaling, level: Some(level) };
            let exact = Exact::new(&weights, VOCAB, WIDTH, options).unwrap();
            let certified = Certified::new(exact.clone());
            assert_eq!(certified.unscreened(), [3, 4, 900]);
            let (settled, _) = hold("scaled", &exact, &certified, &states()[..9]);
            assert!(settled > 0);
        }
    }
}

#[test]
fn every_race_has_the_winner_of_the_whole_row() {
    // Short hidden states make flat rows, where tokens whose bounds overlap win in turn.
    let weights = numbers(VOCAB * WIDTH, 1);
    let exact = Exact::new(&weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
    let certified = Certified::new(exact.clone());
    let (mut contest, mut workspace) =
        (certified.contest().unwrap(), Workspace::new(certified.level()).unwrap());
    let (mut bounds, mut row) = (Bounds::default(), vec![0.0; VOCAB]);
    let mut changed = 0;
    for (seed, min_p, temperature) in [(1, 0.0, 0.05), (2, 0.0, 0.02), (3, 0.05, 0.04), (4, 0.0, 1.0)] {
        let state: Vec<f32> = numbers(WIDTH, 40 + seed).iter().map(|h| h * 0.1).collect();
        let states = Widened::of(HostMatrix::new(&state, 1, WIDTH).unwrap());
        let mut logits = vec![0.0; VOCAB];
        exact.logits(&states, Spread::Caller, &mut logits).unwrap();
        certified.bound(&states, Spread::Caller, &mut bounds).unwrap();
        let of_row = bounds.rows().to_vec();
        let (_, of_states) = bounds.parts_mut();
        let params = SamplingParams { min_p, temperature, seed: Some(seed), ..Default::default() };
        with_task(&params, None, seed, |task| {
            for position in 0..1500 {
                let task = Task { position, ..*task };
                let reading = task.prepared.reading_with(false, false);
                let (expected, _) = sample(&mut workspace, &logits, &task);
                let mut of_row = of_row.clone();
                let bounds = &mut of_row;
                let place = (&states, 0);
                let settled =
                    certified.settle(place, bounds, of_states, reading, &task, &mut contest, &mut row);
                let Some(few) = settled.unwrap() else { continue };
                assert_eq!(sample(&mut workspace, &row, &task).0, expected, "{params:?} at {position}");
                // The race over the bounds themselves has another winner now and then.
                let (of_bounds, _) = sample(&mut workspace, &of_row, &task);
                changed += u32::from(of_bounds.token != expected.token && few < VOCAB / 8);
            }
        });
    }
    assert!(changed > 50, "bounds alone would do, but for {changed} draws");
}
