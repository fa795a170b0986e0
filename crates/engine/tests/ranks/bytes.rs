//! How many bytes a step exchanges, counted.

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_engine::dist::{PlannerConfig, Transport, VocabSplit};
use gumball_engine::unstable::dist::What;
use gumball_engine::{
    Batch, Kind, LogprobMode, LogprobsParams, Outputs, Place, Pool, PoolConfig, Ranks, SamplingParams,
};

use crate::batch::{Numbers, on_ranks, part, planned};
use crate::cases::Dice;

const VOCAB: usize = 151_936;

/// Rows as models have them: normal with a deviation of 2, and 20 peaks raised by 6 to 14.
fn model_like(dice: &mut Dice, rows: usize) -> Vec<Vec<f32>> {
    let normal = |dice: &mut Dice| (0..12).map(|_| dice.unit()).sum::<f32>() - 6.0;
    (0..rows)
        .map(|_| {
            let mut row: Vec<f32> = (0..VOCAB).map(|_| 2.0 * normal(dice)).collect();
            (0..20).for_each(|_| row[dice.below(VOCAB)] += 6.0 + 8.0 * dice.unit());
            row
        })
        .collect()
}

/// Takes a step of alike requests on each rank, holds it to one process, and returns for each purpose the
/// bytes that rank 0 received from all others, of one row.
fn received(
    world: usize,
    layout: LogitsLayout,
    params: &SamplingParams,
    rows: &[Vec<f32>],
    dtype: usize,
) -> Vec<(What, usize)> {
    let config = || PoolConfig { slots: 64, place: Place::threads(1), ..PoolConfig::new(VOCAB) };
    let params = |i: usize| SamplingParams { seed: Some(i as u64), ..params.clone() };
    let mut alone = Pool::new(config()).unwrap();
    let slots: Vec<_> = (0..rows.len()).map(|i| alone.admit(params(i), &[1]).unwrap()).collect();
    let values: Vec<f32> = rows.iter().flatten().copied().collect();
    let numbers = Numbers::new(dtype, &values);
    let mut want = Outputs::new();
    let logits = numbers.logits(rows.len(), VOCAB, Kind::Logits);
    alone.step(logits, &Batch::of(&slots), &mut want).unwrap();
    let split = VocabSplit::even(VOCAB, world).unwrap();
    let traffic = on_ranks(world, |rank| {
        let own = rank.rank();
        let planner =
            PlannerConfig { layouts: LogitsLayout::ALL.to_vec(), ..PlannerConfig::new(split.clone()) };
        let mut pool = Pool::over(config(), Ranks::new(planner, Box::new(rank))).unwrap();
        let admitted: Vec<_> = (0..rows.len()).map(|i| pool.admit(params(i), &[1]).unwrap()).collect();
        assert_eq!(admitted, slots);
        let plan = planned(&pool, &slots, layout, 0);
        let share: Vec<usize> = plan.shares.of(own).collect();
        let part = part(layout, &split, own, dtype, rows, &share);
        let logits = part.numbers.logits(part.rows, part.columns, Kind::Logits);
        let mut out = Outputs::new();
        pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&slots) }, &mut out).unwrap();
        assert_eq!(out.words(), want.words());
        pool.ranks()
            .unwrap()
            .group
            .traffic()
            .iter()
            .filter(|(what, _)| **what != What::Parameters)
            .map(|(what, it)| (*what, it.received_bytes as usize))
            .collect::<Vec<_>>()
    });
    traffic[0].iter().map(|(what, bytes)| (*what, bytes / rows.len())).collect()
}

#[test]
fn a_survey_exchanges_what_decides_and_no_more() {
    let plain = SamplingParams { temperature: 0.8, ..Default::default() };
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let min_p = SamplingParams { min_p: 0.05, ..plain.clone() };
    let top_k = SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() };
    let top_p = SamplingParams { top_p: 0.9, ..plain.clone() };
    let logprobs = SamplingParams {
        logprobs: Some(LogprobsParams { mode: LogprobMode::Raw.into(), ..Default::default() }),
        ..plain.clone()
    };
    let flat = SamplingParams { top_p: 0.95, temperature: 1.0, ..Default::default() };
    let rows = model_like(&mut Dice(1, 0), 8);
    let flat_rows = vec![vec![0.1; VOCAB]; 2];
    println!("bytes that a rank receives from each other rank, a row, of {VOCAB} ids");
    for (name, params, rows, most) in [
        ("greedy", &greedy, &rows, 8),
        ("plain", &plain, &rows, 12),
        ("min-p 0.05", &min_p, &rows, 12),
        ("top-k 50, top-p 0.9", &top_k, &rows, 404),
        ("plain, raw logprob", &logprobs, &rows, 4096),
        ("top-p 0.9", &top_p, &rows, 4096),
        ("top-p 0.95, all alike", &flat, &flat_rows, 4 * VOCAB),
    ] {
        for world in [2, 4] {
            let traffic = received(world, Survey, params, rows, 0);
            let decides: usize =
                traffic.iter().filter(|(what, _)| *what != What::Outputs).map(|(_, bytes)| bytes).sum();
            println!("{name}, {world} ranks: {} = {traffic:?}", decides / (world - 1));
            // Of rows with owners a rank receives what it owns.
            assert!(decides <= most * (world - 1), "{name}, {world} ranks: {traffic:?}");
        }
    }
}

#[test]
fn whole_rows_travel_once() {
    let plain = SamplingParams { temperature: 0.8, ..Default::default() };
    let rows = model_like(&mut Dice(2, 0), 8);
    for (dtype, size) in [(0, 4), (1, 2)] {
        for (layout, bytes) in [(Gather, VOCAB / 2 * size), (Swap, VOCAB / 4 * size), (Replicated, 0)] {
            let traffic = received(2, layout, &plain, &rows, dtype);
            let logits =
                traffic.iter().find(|(what, _)| *what == What::Logits).map_or(0, |(_, bytes)| *bytes);
            assert_eq!(logits, bytes, "{layout:?}: {traffic:?}");
            let outputs =
                traffic.iter().find(|(what, _)| *what == What::Outputs).map_or(0, |(_, bytes)| *bytes);
            // Seven words, of the half of the rows that lie elsewhere.
            assert_eq!(outputs, if layout == Gather { 0 } else { 14 }, "{layout:?}: {traffic:?}");
        }
    }
}
