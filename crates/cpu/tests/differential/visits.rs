//! However a row is shaped, it is read a bounded number of times.

use gumball_cpu::{History, Level, Output, Prepared, RowMut, Task, Workspace};
use gumball_spec::{FilterOrder, Kind, Row, SamplingParams};

use crate::Dice;

/// What `Workspace::visits` promises of the rows below.
const MOST: u32 = 50;

/// Rows that searches find hard: steep, flat, in few heaps, with all mass in one token or in none to speak
/// of.
fn shapes(vocab: usize) -> Vec<(&'static str, Vec<f32>)> {
    let dice = &mut Dice(1, 0);
    let mut of = |f: &mut dyn FnMut(usize, &mut Dice) -> f32| (0..vocab).map(|id| f(id, dice)).collect();
    let uniform: Vec<f32> = of(&mut |_, dice| dice.unit() + 1e-9);
    let one = |small: f32| {
        let mut row = vec![small; vocab];
        row[vocab / 3] = 1.0;
        row
    };
    vec![
        ("uniform", uniform),
        ("flat", vec![1.0 / vocab as f32; vocab]),
        ("nearly flat", of(&mut |_, dice| 1.0 + dice.unit() * 1e-6)),
        ("geometric", of(&mut |id, _| 0.999f32.powi(id as i32))),
        ("steep", of(&mut |id, _| 0.5f32.powi((id % 140) as i32))),
        ("every float", of(&mut |_, dice| f32::from_bits(dice.word() >> 1 & 0x7F7F_FFFF))),
        ("two heaps", of(&mut |_, dice| if dice.one_in(2) { 1.0 } else { 1.000_000_1 })),
        ("ten heaps", of(&mut |_, dice| (dice.below(10) as f32 * 3.0).exp2())),
        ("one among nothing", one(1e-38)),
        ("one among equals of its mass", one(1.0 / vocab as f32)),
        ("subnormal", of(&mut |_, dice| f32::from_bits(dice.word() >> 10))),
        ("zipf", of(&mut |id, _| 1.0 / (id + 1) as f32)),
    ]
}

#[test]
fn a_row_is_read_a_bounded_number_of_times() {
    let plain = SamplingParams::default;
    let mut filters = vec![plain()];
    for top_p in [1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 0.999_999] {
        filters.push(SamplingParams { top_p, ..plain() });
    }
    for top_k in [1, 50, 2000, 60_000] {
        filters.push(SamplingParams { top_k, ..plain() });
        filters.push(SamplingParams { top_k, top_p: 0.7, ..plain() });
        filters.push(SamplingParams { top_k, top_p: 0.7, order: FilterOrder::Joint, ..plain() });
    }
    filters.push(SamplingParams { min_p: 0.1, ..plain() });
    let (vocab, mut most) = (128_256, (0, String::new()));
    let mut workspace = Workspace::new(Level::detect().unwrap()).unwrap();
    let history = History::new(&[]);
    let mut out = vec![0.0f32; vocab];
    for (shape, row) in shapes(vocab) {
        let logits: Vec<f32> = row.iter().map(|p| p.log2()).collect();
        for (kind, row) in [(Kind::Probabilities, &row), (Kind::Logits, &logits)] {
            for params in &filters {
                let prepared = Prepared::new(params.clone(), vocab).unwrap();
                let task = Task {
                    kind,
                    prepared: &prepared,
                    history: &history,
                    seed: 1,
                    position: 2,
                    draw: 0,
                    mu: 0.0,
                    mask: None,
                    forced: None,
                };
                workspace.sample(Row::F32(row), &task, None).unwrap();
                let drawn = workspace.visits();
                let to = RowMut::F32(&mut out);
                workspace.write(Row::F32(row), &task, None, Output::Probabilities, to).unwrap();
                let visits = drawn.max(workspace.visits());
                if visits > most.0 {
                    most = (visits, format!("{kind:?} {shape} {params:?}"));
                }
            }
        }
    }
    println!("at most {} visits: {}", most.0, most.1);
    assert!(most.0 < MOST, "{} visits: {}", most.0, most.1);
}
