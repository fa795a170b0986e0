//! What goes wrong between ranks: mistakes, ranks that differ, end or are late.

use std::time::Duration;

use gumball_engine::dist::LogitsLayout::{self, Gather, Replicated, Survey, Swap};
#[cfg(feature = "emulator")]
use gumball_engine::dist::TransportKind;
use gumball_engine::dist::{PlannerConfig, StepKind, VocabSplit};
use gumball_engine::head::{Exact, HeadOptions, HostMatrix};
use gumball_engine::unstable::dist::StepPart;
use gumball_engine::{
    Batch, Drafts, Error, Mark, Outputs, Place, Pool, PoolConfig, Ranks, RanksError, Rows, SamplingParams,
    Slot, State, VerifyMode, Watermark, Work, add_watermark_key,
};

use crate::batch::with_patience;
use crate::calls::{self, Call, Calls, Given, Taken, Way};

const VOCAB: usize = 600;

fn pool(rank: gumball_engine::dist::Threads, layouts: &[LogitsLayout]) -> (Pool, Slot) {
    let world = gumball_engine::dist::Transport::world(&rank);
    let planner = PlannerConfig {
        layouts: layouts.to_vec(),
        ..PlannerConfig::new(VocabSplit::even(VOCAB, world).unwrap())
    };
    let config = PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::over(config, Ranks::new(planner, Box::new(rank))).unwrap();
    let params = SamplingParams { seed: Some(5), top_p: 0.9, ..Default::default() };
    let slot = pool.admit(params, &[1, 2]).unwrap();
    (pool, slot)
}

/// Takes a step of one row.
fn step(pool: &mut Pool, slot: Slot, layout: LogitsLayout) -> Result<(), Error> {
    let shape = pool.shape(&[slot], 0, StepKind::Decode)?;
    let plan = pool.ranks().unwrap().planner.plan_as(layout, &shape);
    let ids = pool.ranks().unwrap().planner.split().ids(pool.ranks().unwrap().group.rank());
    let columns = if layout == Replicated { 0..VOCAB } else { ids };
    let row: Vec<f32> = columns.map(|id| (id * 37 % 101) as f32 * 0.2).collect();
    let rows =
        if layout == Replicated { plan.shares.of(pool.ranks().unwrap().group.rank()).count() } else { 1 };
    let logits = Rows::logits(&row, rows, row.len())?;
    pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&[slot]) }, &mut Outputs::new())
}

#[test]
fn ranks_have_one_default_mark() {
    let watermark = Watermark { key: 601, context: 1, ..Watermark::default() };
    add_watermark_key(watermark.key, [7; 16]).unwrap();
    for agree in [true, false] {
        with_patience(2, Duration::from_secs(20), |rank| {
            let planner = PlannerConfig::new(VocabSplit::even(VOCAB, 2).unwrap());
            let enforce_all = agree || gumball_engine::dist::Transport::rank(&rank) == 0;
            let of_one = PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB) };
            let config = PoolConfig { watermark: Some(watermark), enforce_all, ..of_one };
            let pool = Pool::over(config, Ranks::new(planner, Box::new(rank)));
            if !agree {
                let error = pool.unwrap_err();
                let told = matches!(error.of_ranks(), Some(RanksError::Disagree { what: "watermark", .. }));
                assert!(told, "{error}");
                return;
            }
            let mut pool = pool.unwrap();
            let params = SamplingParams { seed: Some(5), ..SamplingParams::default() };
            let off = SamplingParams { watermark: Mark::Off, ..params.clone() };
            assert!(matches!(pool.admit(off, &[]), Err(Error::OutOfRange { parameter: "watermark", .. })));
            let slot = pool.admit(params, &[1, 2]).unwrap();
            step(&mut pool, slot, Gather).unwrap();
            assert_eq!(pool.sequence(slot).unwrap().params().watermark, Mark::Own(watermark));
        });
    }
}

#[test]
fn a_mistake_is_an_error_before_anything_is_sent() {
    with_patience(2, Duration::from_secs(20), |rank| {
        let (mut pool, slot) = pool(rank, &[Swap]);
        let said = |error: Error| error.to_string();
        assert_eq!(
            said(step(&mut pool, slot, Replicated).unwrap_err()),
            "layout is replicated, but must be one that was configured: gather, swap"
        );
        let params = SamplingParams::default();
        assert_eq!(
            said(pool.admit(params, &[]).unwrap_err()),
            "seed is absent, but must be given, so that all ranks have the same"
        );
        let shape = pool.shape(&[slot], 0, StepKind::Decode).unwrap();
        let plan = pool.plan(&shape).unwrap();
        let row = [0.0f32; 299];
        let mut out = Outputs::new();
        let logits = Rows::logits(&row, 1, 299).unwrap();
        let error =
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&[slot]) }, &mut out).unwrap_err();
        assert_eq!(
            said(error),
            "logits has length 299, but must have 300 elements in a row, this rank's ids, or 300 with padding"
        );
        let row = [0.0f32; 300];
        let logits = Rows::logits(&row, 1, 300).unwrap();
        let error =
            pool.step(logits, &Batch { plan: Some(plan), ..Batch::of(&[slot, slot]) }, &mut out).unwrap_err();
        assert_eq!(said(error), "slots has length 2, but must have 1, as many as were planned for");
        // Of work that is enqueued, all pieces are looked at before one is done.
        let head = Exact::new(&[1.0; 300], 300, 1, HeadOptions::default()).unwrap();
        let states = HostMatrix::new(&[1.0; 1], 1, 1).unwrap();
        pool.assign(&Batch { plan: Some(plan), ..Batch::of(&[slot]) }).unwrap();
        let short = Rows::logits(&row[1..], 1, 299).unwrap();
        for first in [logits, Rows::hidden(&head, states)] {
            let error = pool.enqueue(&[Work::step(first), Work::step(short)]).unwrap_err();
            assert!(said(error).starts_with("logits has length 299"));
            assert_eq!(pool.sequence(slot).unwrap().position(), 2);
        }
        // Nothing was sent, so the group goes on.
        step(&mut pool, slot, Swap).unwrap();
        assert_eq!(pool.sequence(slot).unwrap().position(), 3);
    });
}

#[test]
fn pools_that_differ_are_told_so_at_start() {
    let differing: [(&str, [&str; 2]); 2] = [("slots", ["8", "7"]), ("kept", ["false", "true"])];
    for (name, [ours, theirs]) in differing {
        let errors = with_patience(3, Duration::from_secs(20), |rank| {
            let mut config = PoolConfig { slots: 8, place: Place::threads(1), ..PoolConfig::new(VOCAB) };
            match (name, gumball_engine::dist::Transport::rank(&rank)) {
                ("slots", 2) => config.slots = 7,
                ("kept", 2) => config.kept = true,
                _ => {}
            }
            let planner = PlannerConfig::new(VocabSplit::even(VOCAB, 3).unwrap());
            Pool::over(config, Ranks::new(planner, Box::new(rank))).unwrap_err().to_string()
        });
        let first = format!("rank 2 disagrees on {name}: it has {theirs}, this rank {ours}");
        let last = format!("rank 0 disagrees on {name}: it has {ours}, this rank {theirs}");
        assert_eq!(errors, [first.clone(), first, last]);
    }
}

/// Each thing in which the ranks differ, what errors call it, and what these say that each rank has, up to
/// digests.
const DIFFERENCES: [(&str, StepPart, [&str; 2]); 24] = [
    ("slots", StepPart::Slots, ["slot 0 in request 0", "slot 1 in request 0"]),
    ("draw", StepPart::Seeds, ["seed 0, draw 0 in request 0", "seed 0, draw 1 in request 0"]),
    ("seed", StepPart::Parameters, ["seed: Some(0) in request 0", "seed: Some(1) in request 0"]),
    ("position", StepPart::Positions, ["length 0, digest "; 2]),
    ("mu", StepPart::Positions, ["length 0, digest "; 2]),
    ("shortened", StepPart::Positions, ["length 2, digest ", "length 1, digest "]),
    ("pushed", StepPart::Positions, ["length 3, digest "; 2]),
    ("prompt", StepPart::Prompts, ["length 3, digest "; 2]),
    ("length", StepPart::Prompts, ["length 2, digest ", "length 3, digest "]),
    ("parameters", StepPart::Parameters, ["top_p: 0.8 in request 0", "top_p: 0.9 in request 0"]),
    ("masks", StepPart::Masks, ["a mask of digest "; 2]),
    ("forced", StepPart::Forced, ["token 0 in row 0", "token 1 in row 0"]),
    ("drafts", StepPart::Drafts, ["token 1 as draft 0", "token 2 as draft 0"]),
    ("parents", StepPart::Drafts, ["parent 0 of draft 2", "parent -1 of draft 2"]),
    ("probabilities", StepPart::Drafts, ["probabilities of digest "; 2]),
    ("siblings", StepPart::Shape, [""; 2]),
    ("counts", StepPart::Drafts, ["count ", "count "]),
    ("mode", StepPart::Shape, [""; 2]),
    ("layout", StepPart::Shape, [""; 2]),
    ("call", StepPart::Shape, [""; 2]),
    ("known", StepPart::Prompts, ["digest "; 2]),
    ("prompt_len", StepPart::Positions, ["digest "; 2]),
    ("start", StepPart::Positions, ["digest "; 2]),
    ("scoring", StepPart::Parameters, ["digest "; 2]),
];

/// Returns whether ranks can differ so in a call.
fn is_part(differs: &str, call: Call) -> bool {
    match differs {
        "masks" | "call" => true,
        "known" | "prompt_len" | "start" | "scoring" => call == Call::Score,
        "parents" => matches!(call, Call::Verify(_)),
        "probabilities" => matches!(call, Call::Verify(layout) if layout != Survey),
        "siblings" => call == Call::Draft,
        "drafts" | "counts" | "mode" => matches!(call, Call::Verify(_) | Call::Draft),
        "layout" => !matches!(call, Call::Draft | Call::Score),
        "forced" => !matches!(call, Call::Draft | Call::Score),
        _ => call != Call::Score,
    }
}

/// Names the parts of a request, a batch and drafts that can differ, for each field: who adds one decides
/// here how ranks are told.
fn differences_of(state: &State<'_>, batch: &Batch<'_>, drafts: &Drafts<'_>) -> Vec<&'static str> {
    let State { prompt: _, output: _, seed: _, position: _, draw: _, mu: _ } = state;
    let of_state = ["prompt", "length", "pushed", "shortened", "seed", "position", "draw", "mu"];
    // `row_indices`, which name rows of a rank's own matrix, and `hooks`, which are functions, are not
    // compared. A batch of drafts (`of`) is compared by its slots.
    #[rustfmt::skip]
    let Batch {
        slots: _, counts: _, mode: _, masks: _, forced: _, row_indices: _, hooks: _, plan: _,
        #[cfg(feature = "cuda")]
        of: _,
    } = batch;
    let of_batch = ["slots", "counts", "mode", "masks", "forced", "layout"];
    let Drafts { ids: _, tree: _, probs: _ } = drafts;
    [&of_state[..], &of_batch, &["drafts", "parents", "probabilities"]].concat()
}

#[test]
fn each_field_in_which_ranks_can_differ_is_tried() {
    for name in differences_of(&State::new(&[], &[], 0), &Batch::default(), &Drafts::default()) {
        assert!(DIFFERENCES.iter().any(|(tried, ..)| *tried == name), "{name}");
    }
}

/// Makes a call on a rank that differs in something from the other.
fn differ(calls: &Calls, pool: &mut Pool, (call, differs): (Call, &str)) -> Result<Taken, Error> {
    let (own, mut slots) = (pool.ranks().unwrap().group.rank(), calls.admit(pool));
    let mut admit = |top_p, prompt: &[u32]| {
        pool.release(slots[0]).unwrap();
        slots[0] = pool.admit(SamplingParams { seed: Some(0), top_p, ..Default::default() }, prompt).unwrap();
    };
    match differs {
        "prompt" => admit(1.0, &[own as u32, 2, 3]),
        "length" => admit(1.0, &[1, 2, 3][..2 + own]),
        "parameters" => admit([0.8, 0.9][own], &[1]),
        "slots" => slots.swap(0, own),
        "draw" => slots[0] = pool.fork(slots[0], own as u32).unwrap(),
        "seed" | "position" | "mu" => {
            let own = own as u32;
            let state = match differs {
                "seed" => State { seed: own.into(), ..State::new(&[], &[], 0) },
                "position" => State { position: 5 + own, ..State::new(&[], &[], 0) },
                _ => State { mu: 2.0 + own as f32, ..State::new(&[], &[], 0) },
            };
            pool.release(slots[0]).unwrap();
            slots[0] = pool.resume(SamplingParams::default(), state).unwrap();
        }
        "shortened" => {
            (0..2).for_each(|_| pool.push(slots[0], 9).unwrap());
            pool.shorten(&[slots[0]], &[1 + own]).unwrap();
        }
        "pushed" => [own as u32, 9].into_iter().for_each(|id| pool.push(slots[0], id).unwrap()),
        _ => {}
    }
    let mut given = Given::new(call, &slots);
    let other = match (differs, own, call.layout()) {
        ("layout", 1, Gather) => Swap,
        ("layout", 1, _) => Gather,
        (.., layout) => layout,
    };
    match (differs, own) {
        ("masks", _) => {
            given.masks = Some(vec![u32::MAX - own as u32; given.rows() * calls::VOCAB.div_ceil(32)])
        }
        ("forced", _) => {
            given.forced = vec![None; given.rows()];
            given.forced[0] = Some(own as u32);
        }
        ("drafts", 1) => given.drafts[0] = 2,
        ("parents", _) => given.parents = Some(vec![-1, -1, [0, -1][own], -1]),
        ("probabilities", _) => {
            (given.mode, given.probs) = (VerifyMode::Rejection, Some(vec![0.0; given.rows() * calls::VOCAB]));
            // Of the last row that a draft comes after; the row after the draft is not read.
            let last = given.rows() - 3;
            given.probs.iter_mut().for_each(|probs| {
                probs[last * calls::VOCAB + 1] = [0.5, 0.25][own];
                probs[(last + 1) * calls::VOCAB] = f32::NAN;
            });
        }
        ("siblings", 1) => given.siblings = 1,
        ("counts", 1) => given.counts.swap(0, 1),
        ("mode", 1) => given.mode = VerifyMode::Greedy,
        ("layout", 1) => given.call = call.under(other),
        ("call", 1) => {
            given = Given::new(if call == Call::Score { Call::Draft } else { Call::Score }, &slots)
        }
        ("known", 1) => given.known.0[2] = 3,
        ("prompt_len", 1) => given.known.1 = 0,
        ("start", 1) => given.known.2 = 2,
        ("scoring", 1) => given.scoring.top_p = 0.8,
        _ => {}
    }
    calls.take(pool, &given)
}

/// Holds the errors of calls on ranks that differ.
fn hold_told(way: Way, timeout: Duration, is_held: impl Fn(&str, Call) -> bool) {
    let calls = Calls::new(2);
    let all = Call::all(way).into_iter().flat_map(|call| DIFFERENCES.map(|differs| (call, differs)));
    let all = all.filter(|(call, (differs, ..))| is_part(differs, *call) && is_held(differs, *call));
    for (call, (differs, part, told)) in all {
        with_patience(2, Duration::from_secs(20), |rank| {
            let mut pool = calls.pool(call, (way, timeout), Some(Box::new(rank)), None).unwrap();
            let (own, taken) =
                (pool.ranks().unwrap().group.rank(), differ(&calls, &mut pool, (call, differs)));
            let error = taken.unwrap_err();
            let case = format!("{way:?}, {call:?}, {differs}, rank {own}: {error}");
            let Some(RanksError::Disagree { what, ours, theirs, .. }) = error.of_ranks() else {
                panic!("{case}")
            };
            // Of scores devices compare digests; of the parents of drafts, one digest of all drafts.
            let is_whole = way.is_some() && call == Call::Draft;
            assert_eq!(*what, if is_whole { StepPart::Drafts } else { part }.name(), "{case}");
            let told = if way.is_some() && call == Call::Score { ["digest "; 2] } else { told };
            assert!(ours.starts_with(told[own]) && theirs.starts_with(told[1 - own]), "{case}");
            assert_ne!(ours, theirs, "{case}");
            let again = calls.take(&mut pool, &Given::new(Call::Score, &[])).unwrap_err();
            assert!(matches!(again.of_ranks(), Some(RanksError::Broken(_))), "{case}, then {again}");
        });
    }
}

#[test]
fn a_rank_with_another_request_or_call_is_told_what_differs() {
    hold_told(None, Duration::ZERO, |_, _| true);
}

#[cfg(feature = "emulator")]
#[test]
fn devices_of_ranks_with_other_requests_or_calls_are_told_what_differs() {
    for way in [TransportKind::OneSided, TransportKind::Nccl] {
        // Rows that are expected and not sent take the whole timeout.
        hold_told(Some(way), Duration::from_secs(8), |differs, call| match (differs, call) {
            ("layout" | "call", Call::Step(layout)) => [Swap, Replicated].contains(&layout),
            ("layout" | "call", _) => false,
            (_, call) => !matches!(call, Call::Kept(_) | Call::Hidden(_)),
        });
    }
}

#[cfg(feature = "emulator")]
#[test]
fn devices_compare_the_drafts_that_lie_in_their_memory() {
    let [onesided, nccl] = [TransportKind::OneSided, TransportKind::Nccl];
    // Each layout compares digests at a place of its own; the digest of the drafts is the same under all.
    let all = [
        (onesided, "ids", &[Gather, Swap, Replicated, Survey][..]),
        (nccl, "ids", &[Gather, Swap]),
        (onesided, "parents", &[Gather]),
        (onesided, "links", &[Survey]),
        (onesided, "probabilities", &[Gather, Swap]),
        (onesided, "unread", &[Gather]),
        (onesided, "", &[Survey, Swap]),
    ];
    let all = all.into_iter().flat_map(|(way, differs, layouts)| {
        layouts.iter().map(move |layout| (way, Call::Verify(*layout), differs))
    });
    let made = Calls::new(2);
    for (way, call, differs) in all {
        let case = format!("{way:?}, {call:?}, {differs}");
        let taken = with_patience(2, Duration::from_secs(20), |rank| {
            let mut pool =
                made.pool(call, (Some(way), Duration::from_secs(8)), Some(Box::new(rank)), None).unwrap();
            let (own, slots) = (pool.ranks().unwrap().group.rank(), made.admit(&mut pool));
            let mut given = Given { in_device: true, ..Given::new(call, &slots) };
            match differs {
                "ids" => given.drafts[3] = own as i32,
                "parents" => given.parents = Some(vec![-1, -1, [0, -1][own], -1]),
                "links" => {
                    let (children, siblings) = ([[1, 2, -1], [1, -1, -1]][own], [[-1; 3], [-1, 2, -1]][own]);
                    let of_rows = |own: [i32; 3], other: i32| {
                        let [root, second, third] = own;
                        vec![other, -1, -1, root, second, third, -1, other, -1, -1]
                    };
                    given.links = Some([of_rows(children, 1), of_rows(siblings, -1)]);
                }
                "unread" | "probabilities" => {
                    let mut probs = vec![0.25; given.rows() * calls::VOCAB];
                    // The second row has no draft after it; the row in front of the last draft has one.
                    let row = if differs == "unread" { 1 } else { 7 };
                    probs[row * calls::VOCAB..][..calls::VOCAB].fill([0.25, 0.5][own]);
                    (given.mode, given.probs) = (VerifyMode::Rejection, Some(probs));
                }
                _ => {}
            }
            made.take(&mut pool, &given).map_err(|error| error.to_string())
        });
        if ["", "unread"].contains(&differs) {
            assert!(taken[0].is_ok() && taken[0] == taken[1], "{case}: {taken:?}");
        } else {
            for (own, error) in taken.into_iter().enumerate() {
                let error = error.expect_err(&case);
                let wanted = format!("rank {} disagrees on drafts in device memory", 1 - own);
                assert!(error.contains(&wanted), "{case}: {error}");
            }
        }
    }
}
