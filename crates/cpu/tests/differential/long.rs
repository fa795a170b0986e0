//! Long rows, which a search profiles and lists nowhere whole: their kept sets are the oracle's.

use gumball_cpu::{History, Level, Prepared, Task, Workspace};
use gumball_spec::{FilterOrder, Kind, Request, Row, SamplingParams, oracle};
use half::bf16;

use crate::Dice;

/// Above the length from which a set is profiled, and no whole number of tiles.
const VOCAB: usize = 20_011;

/// Rows that differ in where their tokens crowd: nowhere, everywhere, in heaps, at either zero.
fn shapes(dice: &mut Dice) -> Vec<(&'static str, Vec<f32>)> {
    let mut of = |f: &mut dyn FnMut(&mut Dice) -> f32| (0..VOCAB).map(|_| f(dice)).collect::<Vec<f32>>();
    let bell = |dice: &mut Dice| (0..6).map(|_| dice.unit()).sum::<f32>() - 3.0;
    vec![
        ("bell", of(&mut |dice| 3.0 * bell(dice))),
        ("steep", of(&mut |dice| 30.0 * bell(dice))),
        ("flat", of(&mut |dice| 1e-3 * bell(dice))),
        ("zipf", of(&mut |dice| -(dice.unit() * VOCAB as f32 + 1.0).ln())),
        ("ties", of(&mut |dice| (24.0 * bell(dice)).round() / 8.0)),
        ("few values", of(&mut |dice| (2.0 * bell(dice)).round())),
        ("zeros of both signs", of(&mut |dice| dice.pick(&[0.0, -0.0, 1.0, -1.0]))),
        ("heap on a bell", of(&mut |dice| if dice.one_in(3) { 1.0 } else { bell(dice) })),
        ("two neighbours", of(&mut |dice| dice.pick(&[1.0, 1.000_000_1]))),
        ("equal", vec![-2.5; VOCAB]),
        ("far from zero", of(&mut |dice| 3e4 + bell(dice))),
        ("holes", of(&mut |dice| if dice.one_in(2) { f32::NEG_INFINITY } else { bell(dice) })),
    ]
}

#[test]
fn long_rows_are_filtered_as_defined() {
    let plain = SamplingParams::default;
    let mut filters = Vec::new();
    for top_p in [0.001, 0.3, 0.5, 0.9, 0.99, 0.9999] {
        filters.push(SamplingParams { top_p, ..plain() });
    }
    for (top_k, top_p) in [(70, 0.9), (1000, 1.0), (9000, 1.0), (9000, 0.8)] {
        filters.push(SamplingParams { top_k, top_p, ..plain() });
        filters.push(SamplingParams { top_k, top_p, order: FilterOrder::Joint, ..plain() });
    }
    let dice = &mut Dice(15, 0);
    let mask: Vec<u32> = (0..VOCAB.div_ceil(32)).map(|_| dice.word() | dice.word()).collect();
    let history = History::new(&[]);
    let mut workspaces = Vec::new();
    for level in Level::available() {
        for limit in [20, 1024] {
            let mut workspace = Workspace::with_list_limit(level, limit).unwrap();
            workspace.collect_kept(true);
            workspaces.push(workspace);
        }
    }
    for (number, (shape, logits)) in shapes(dice).into_iter().enumerate() {
        let narrow: Vec<bf16> = logits.iter().map(|z| bf16::from_f32(*z)).collect();
        let weights: Vec<f32> = logits.iter().map(|z| z.min(30.0).exp2()).collect();
        for (i, params) in filters.iter().enumerate() {
            let (kind, row) = match (number + i) % 4 {
                0 => (Kind::Logits, Row::Bf16(&narrow)),
                1 => (Kind::Probabilities, Row::F32(&weights)),
                _ => (Kind::Logits, Row::F32(&logits)),
            };
            let mut params = params.clone();
            if kind == Kind::Logits && i % 3 == 0 {
                params.temperature = 0.7;
            }
            let mask = (i % 5 == 4).then_some(&mask[..]);
            let prepared = Prepared::new(params.clone(), VOCAB).unwrap();
            let mut request = Request::new(&params, &[], 3);
            (request.kind, request.mask) = (kind, mask);
            let want = oracle::sample(row, &request, None).unwrap();
            let task = Task {
                kind,
                prepared: &prepared,
                history: &history,
                seed: request.seed,
                position: request.position,
                draw: request.draw,
                mu: request.mu,
                mask,
                forced: None,
            };
            for workspace in &mut workspaces {
                let got = workspace.sample(row, &task, None).unwrap();
                let what = format!("{shape}, {kind:?}, {}, {params:?}", workspace.level());
                assert_eq!(workspace.kept(), want.kept_ids(), "kept: {what}");
                assert_eq!(got.token, want.token, "token: {what}");
            }
        }
    }
}
