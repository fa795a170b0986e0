//! Layouts are decided by what was timed: none is taken where another one that was configured took much less
//! time. `decided/NAME.json` has the cells of the bench's record NAME: what decides, and the mean times in
//! microseconds.

use std::fs;

use gumball_dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
use gumball_dist::{Costs, Needs, PlannerConfig, StepKind, StepShape, VocabSplit};
use serde_json::Value;

/// Records of `ci/gpu ranks` and of processes on a host, with the number of their cells, the costs that are
/// fitted to them, and the layouts that serve.
const RECORDS: [(&str, usize, Costs, &[LogitsLayout]); 8] = [
    ("2026-11-26-host-two-processes", 33, Costs::HOST, &[Swap, Survey]),
    ("2026-11-26-h100-two-gpus", 289, Costs::NVLINK, &[Swap, Survey]),
    ("2026-11-26-h100-two-gpus-surveyed-drafts", 112, Costs::NVLINK, &[Swap, Survey]),
    ("2026-11-26-h100-two-gpus-edited", 304, Costs::NVLINK, &[Swap, Survey]),
    ("2026-11-27-h100-two-gpus-lists", 640, Costs::NVLINK, &[Swap, Survey]),
    ("2026-11-26-h100-four-gpus", 256, Costs::NVLINK, &[Swap, Survey]),
    ("2026-11-26-h100-two-gpus-nccl-host-memory", 176, Costs::NCCL, &[Swap]),
    ("2026-11-26-h200-two-gpus-nccl", 28, Costs::NCCL, &[Swap]),
];

/// How much longer than the best layout one may take that is chosen.
const MOST: f64 = 1.10;

/// Returns what rows need, and how many requests a device's survey swaps.
fn asked(name: &str, requests: usize, on_host: bool) -> (Needs, usize) {
    match name.strip_prefix("coupled, ").unwrap_or(name) {
        "mass" if on_host => (Needs::Mass, 0),
        "list" | "edited list" => (Needs::List, 0),
        "mass" | "edited mass" | "logprob" => (Needs::Winner, requests),
        "plain" | "greedy" => (Needs::Winner, 0),
        name if name.contains("edited") || name.contains("masked") => (Needs::Winner, 0),
        _ => match name.strip_prefix("one mass of ") {
            Some(every) => (Needs::List, requests / every.parse::<usize>().unwrap()),
            // Other names are of drafts that are judged.
            None => (Needs::Mass, 0),
        },
    }
}

fn planner(vocab: usize, world: usize, costs: Costs) -> PlannerConfig {
    planner_of(VocabSplit::even(vocab, world).unwrap(), costs)
}

fn planner_of(split: VocabSplit, costs: Costs) -> PlannerConfig {
    PlannerConfig { costs: Some(costs), ..PlannerConfig::new(split) }
}

#[test]
fn no_layout_is_taken_where_another_took_much_less_time() {
    for (name, count, costs, all) in RECORDS {
        let path = format!("{}/tests/decided/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let cells: Vec<Value> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(cells.len(), count);
        cells.iter().for_each(|cell| hold(cell, costs, all));
    }
}

fn hold(cell: &Value, costs: Costs, all: &[LogitsLayout]) {
    let number = |name: &str| cell[name].as_u64().unwrap() as usize;
    let (drafts, requests) = (number("drafts"), number("rows") / (number("drafts") + 1));
    let (needs, swapped) = asked(cell["asked"].as_str().unwrap(), requests, costs == Costs::HOST);
    let kind = match cell["asked"].as_str().unwrap() {
        _ if drafts == 0 => StepKind::Decode,
        asked if asked.contains("rejection") => StepKind::Judge,
        _ => StepKind::Verify,
    };
    let edits =
        ["edited", "masked", "biases"].iter().any(|edit| cell["asked"].as_str().unwrap().contains(edit));
    // The lists of the first records have 50 tokens; later records name the length.
    let listed = cell["listed"].as_u64().unwrap_or(50) as usize;
    let needs = match cell["needs"].as_str() {
        Some("Winner") => Needs::Winner,
        Some("List") => Needs::List,
        _ => needs,
    };
    let swapped = cell["swapped"].as_u64().map_or(swapped, |swapped| swapped as usize);
    let shape = StepShape { requests, drafts, kind, needs, listed, edits, swapped, ..StepShape::default() };
    let us = |layout: LogitsLayout| cell["us"][layout.name()].as_f64();
    let logit_bytes = if cell["dtype"] == "f32" { 4 } else { 2 };
    // Neither drafts nor edited rows were surveyed yet when some records were made: a survey swapped these.
    let surveys_edits = cell["part"].as_str().is_some_and(|part| part.starts_with("edited"));
    let is_swapped = cell["asked"] == "edited" && !surveys_edits;
    let is_timed = |layout: &&LogitsLayout| us(**layout).is_some() && !(is_swapped && **layout == Survey);
    let all: Vec<LogitsLayout> = all.iter().filter(is_timed).copied().collect();
    for layouts in [&all[..], &all[..1], &all[1..], &[]] {
        let best = [Gather].iter().chain(layouts).filter_map(|layout| us(*layout));
        let best = best.fold(f64::INFINITY, f64::min);
        // Of two ranks with all layouts also by default, without the size of logits.
        let is_untold = layouts == all && number("world") == 2 && cell["sizes"].is_null();
        for logit_bytes in [logit_bytes, if is_untold { 4 } else { logit_bytes }] {
            let split = match cell["sizes"].as_array() {
                Some(sizes) => {
                    let sizes: Vec<_> = sizes.iter().map(|size| size.as_u64().unwrap() as usize).collect();
                    VocabSplit::of_sizes(&sizes)
                }
                None => VocabSplit::even(number("vocab"), number("world")),
            };
            let config = planner_of(split.unwrap(), costs);
            let config = PlannerConfig { layouts: layouts.to_vec(), logit_bytes, ..config };
            let taken = config.decide(&shape).unwrap();
            assert!(us(taken).unwrap() <= MOST * best, "{taken:?} of {layouts:?}, {logit_bytes}: {cell}");
        }
    }
    // Where each rank has whole rows of its own, nothing is gathered or swapped.
    let replicated = us(Replicated).unwrap_or(0.0);
    assert!([Gather, Swap].into_iter().filter_map(us).all(|other| replicated <= other), "{cell}");
}

#[test]
fn bytes_of_rows_decide_and_not_requests() {
    let of = |requests, drafts, vocab, world, logit_bytes| {
        let kind = if drafts > 0 { StepKind::Verify } else { StepKind::Decode };
        let shape = StepShape { requests, drafts, kind, swapped: requests, ..StepShape::default() };
        PlannerConfig { logit_bytes, ..planner(vocab, world, Costs::NVLINK) }.decide(&shape).unwrap()
    };
    assert_eq!([1, 2, 16].map(|requests| of(requests, 5, 151_936, 2, 4)), [Gather, Swap, Swap]);
    assert_eq!([4, 8, 12].map(|requests| of(requests, 0, 151_936, 2, 4)), [Gather, Swap, Swap]);
    assert_eq!([8, 12, 16].map(|requests| of(requests, 0, 151_936, 2, 2)), [Gather, Gather, Swap]);
    assert_eq!([16, 32].map(|requests| of(requests, 0, 32_000, 2, 4)), [Gather, Swap]);
    // Of more ranks each gets a smaller share of swapped rows, and all of gathered ones; but an exchange
    // takes longer.
    assert_eq!([4, 8].map(|requests| of(requests, 0, 151_936, 8, 4)), [Gather, Swap]);
}

#[test]
fn drafts_are_surveyed_where_their_own_draws_judge_them() {
    let of = |kind, swapped| {
        let shape = StepShape { requests: 40, drafts: 5, kind, swapped, ..StepShape::default() };
        planner(163_840, 2, Costs::NVLINK).decide(&shape).unwrap()
    };
    assert_eq!([StepKind::Verify, StepKind::Judge].map(|kind| of(kind, 0)), [Survey, Swap]);
    assert_eq!([10, 40].map(|swapped| of(StepKind::Verify, swapped)), [Survey, Swap]);
}

#[test]
fn messages_between_hosts_are_dearer_than_what_a_survey_takes() {
    let of = |requests, needs, costs| {
        let shape = StepShape { requests, needs, ..StepShape::default() };
        planner(151_936, 2, costs).decide(&shape).unwrap()
    };
    assert_eq!(of(1, Needs::Whole, Costs::HOST), Gather);
    assert_eq!([Needs::Winner, Needs::Mass, Needs::Whole].map(|needs| of(64, needs, Costs::HOST)), [Swap; 3]);
    assert_eq!([Needs::Winner, Needs::List].map(|needs| of(64, needs, Costs::NETWORK)), [Survey; 2]);
    assert_eq!(of(64, Needs::Whole, Costs::NETWORK), Swap);
}
