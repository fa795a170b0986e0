//! Verification in every place: which drafts are accepted, the outputs, and the refusals.

use std::sync::atomic::{AtomicUsize, Ordering};

use gumball_engine::{
    Batch, Drafts, Error, Ids, Masks, Matrix, NONE, Outputs, PADDING, Place, Pool, PoolConfig, Route,
    RowHook, Rows, SamplingParams, Slot, Status, Tree, VerifyMode,
};

use crate::cases::{KINDS, VOCAB, config, params, places, pool, pools, row, rows, step};

/// The kind with mirostat.
pub const MIROSTAT: usize = 4;

/// Every mode, thresholds that change the law included.
pub const MODES: [VerifyMode; 5] = [
    VerifyMode::Coupled,
    VerifyMode::Greedy,
    VerifyMode::Rejection,
    VerifyMode::Block,
    VerifyMode::Threshold { single: 0.4, acc: 0.5 },
];

/// A model: rows are a function of the last two ids, and few, so that tokens repeat and penalties bite.
pub fn model(history: &[u32]) -> Vec<f32> {
    let seed = history.iter().rev().take(2).fold(1u64, |hash, id| (hash * 7 + u64::from(*id)) % 11);
    let mut row = row(seed);
    row[seed as usize * 80] += 7.0;
    row
}

#[test]
fn rows_and_tokens_are_those_of_the_path() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let sure = |id: usize| {
        let mut row = vec![0.0; VOCAB];
        row[id] = 9.0;
        row
    };
    // The first request is a chain 5 6 7 of which 7 is wrong, the second a tree.
    let ids = [5, 6, 7, 20, 21, 22, 23];
    let parents = [-1, 0, 1, -1, -1, 1, 1];
    let data = [sure(5), sure(6), sure(8), sure(0), sure(21), sure(1), sure(23), sure(2), sure(3)].concat();
    let counts = &[3, 4];
    let by_parents = Drafts::tree(&ids, &parents);
    let (first_child, next_sibling) = ([1, 2, 3, -1, 1, -1, 3, -1, -1], [-1, -1, -1, -1, -1, 2, -1, 4, -1]);
    let tree = Tree::Links { first_child: (&first_child).into(), next_sibling: (&next_sibling).into() };
    let logits = Rows::logits(&data, 9, VOCAB).unwrap();
    for mut pool in pools() {
        let mut out = Outputs::new();
        let slots = [0, 1].map(|_| pool.admit(greedy.clone(), &[1]).unwrap());
        for drafts in [by_parents, Drafts { tree, ..by_parents }] {
            pool.verify(logits, &Batch { counts, ..Batch::of(&slots) }, &drafts, &mut out).unwrap();
            assert_eq!((out.request(0).tokens, out.request(0).rows), (&[5, 6, 8][..], &[0, 1, 2][..]));
            assert_eq!((out.request(1).tokens, out.request(1).rows), (&[21, 23, 3][..], &[4, 6, 8][..]));
            assert_eq!(out.accepted(), [2, 2]);
            assert_eq!(out.tokens(), [5, 6, 8, NONE, 21, 23, 3, NONE, NONE]);
        }
        assert_eq!(pool.sequence(slots[1]).unwrap().history().output(), [21, 23, 3].repeat(2));

        // Chains need no parents, and rows may be selected.
        let (counts, drafts) = (&[2], Drafts::chain(&[5, 6]));
        let batch = Batch { counts, row_indices: &[0, 1, 2], ..Batch::of(&slots[..1]) };
        pool.verify(logits, &batch, &drafts, &mut out).unwrap();
        assert_eq!((out.request(0).tokens, out.request(0).rows), (&[5, 6, 8][..], &[0, 1, 2][..]));
        // The drafts of padding are not looked at, and a batch may be empty.
        let (batch, odd) = ([PADDING, slots[0]], Drafts::tree(&[1, 2], &[7, i32::MIN]));
        let four = Rows::logits(&data[..4 * VOCAB], 4, VOCAB).unwrap();
        pool.verify(four, &Batch { counts: &[2, 0], ..Batch::of(&batch) }, &odd, &mut out).unwrap();
        let emitted = [0, 1].map(|request| out.request(request).tokens.len());
        assert_eq!((emitted, out.accepted()), ([0, 1], &[0, 0][..]));
        let nothing = Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap();
        pool.verify(nothing, &Batch::default(), &Drafts::default(), &mut out).unwrap();
        assert!(out.accepted().is_empty());
    }
}

#[test]
fn a_shortened_sequence_is_as_if_the_tokens_had_never_been() {
    let prompt = [3, 7, 3];
    let kinds: Vec<usize> = (0..KINDS).filter(|kind| *kind != MIROSTAT).collect();
    // What decoding step by step draws.
    let plain: Vec<Vec<u32>> = kinds
        .iter()
        .map(|kind| {
            let mut pool = pool(1);
            let slot = pool.admit(params(*kind, 4), &prompt).unwrap();
            let mut next = |_| {
                let row = model(pool.sequence(slot).unwrap().history().ids());
                step(&mut pool, &row, &[slot]).tokens()[0] as u32
            };
            (0..12).map(&mut next).collect()
        })
        .collect();
    for mut pool in pools() {
        let slots: Vec<_> = kinds.iter().map(|kind| pool.admit(params(*kind, 4), &prompt).unwrap()).collect();
        let mut out = Outputs::new();
        for done in 0..2 {
            let ids: Vec<i32> =
                plain.iter().flat_map(|ids| ids[done..done + 5].iter()).map(|id| *id as i32).collect();
            let behind = |(ids, count): (&Vec<u32>, usize)| model(&[&prompt, &ids[..done + count]].concat());
            let data: Vec<f32> =
                plain.iter().flat_map(|ids| (0..=5).flat_map(move |count| behind((ids, count)))).collect();
            let logits = Rows::logits(&data, data.len() / VOCAB, VOCAB).unwrap();
            let batch = Batch { counts: &vec![5; slots.len()], ..Batch::of(&slots) };
            pool.verify(logits, &batch, &Drafts::chain(&ids), &mut out).unwrap();
            assert_eq!(out.accepted(), vec![5; slots.len()]);
            // All but the first stay away again.
            pool.shorten(&slots, &vec![5; slots.len()]).unwrap();
        }
        for (slot, tokens) in slots.iter().zip(&plain) {
            assert_eq!(pool.sequence(*slot).unwrap().history().output(), &tokens[..2]);
        }
        let next: Vec<f32> = plain.iter().flat_map(|ids| model(&[&prompt, &ids[..2]].concat())).collect();
        let out = step(&mut pool, &next, &slots);
        plain.iter().enumerate().for_each(|(i, tokens)| assert_eq!(out.tokens()[i] as u32, tokens[2]));

        for (slots, counts, message) in [
            (&slots[..2], &[1, 4][..], "counts is 4 of slot 1, but must be in 0..=3, its output tokens"),
            (&slots[..2], &[1], "counts has length 1, but must have one per slot, 2"),
            (
                &[slots[0], slots[0]],
                &[1, 1],
                "slots is 0 in row 1 again, but must be a slot that stands in a step once",
            ),
            (&[slots[0], PADDING], &[1, 0], "slot is -1, but must be an admitted slot"),
        ] {
            assert_eq!(pool.shorten(slots, counts).unwrap_err().to_string(), message);
            let lengths = slots
                .iter()
                .filter(|slot| **slot >= 0)
                .map(|slot| pool.sequence(*slot).unwrap().history().output().len());
            assert!({ lengths }.all(|length| length == 3), "{message}");
        }
    }
}

#[test]
fn hooks_run_for_the_rows_of_the_path_alone() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let mut pool = pool(1);
    let slot = pool.admit(greedy, &[]).unwrap();
    let calls = [0, 1, 2, 3].map(|_| AtomicUsize::new(0));
    let hook = |row: usize| {
        let calls = &calls;
        move |z: &mut [f32]| {
            calls[row].fetch_add(1, Ordering::Relaxed);
            z[[8, 9, 10, 11][row]] = 1e6;
        }
    };
    let hooks = [hook(0), hook(1), hook(2), hook(3)];
    let hooks: Vec<Option<RowHook<'_>>> = hooks.iter().map(|hook| Some(hook as RowHook<'_>)).collect();
    let data = rows([0, 0, 0, 0]);
    let (counts, drafts) = (&[3], Drafts::tree(&[7, 8, 10], &[-1, -1, 1]));
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let options = Batch { hooks: &hooks, ..Default::default() };
    let mut out = Outputs::new();
    pool.verify(logits, &Batch { slots: &[slot], counts, ..options }, &drafts, &mut out).unwrap();
    assert_eq!((out.request(0).tokens, out.request(0).rows), (&[8, 10, 11][..], &[0, 2, 3][..]));
    assert_eq!(calls.map(|calls| calls.into_inner()), [1, 0, 1, 1]);
}

/// Numbers of drafts, drafts and their parents.
type Given = (&'static [u32], &'static [i32], Tree<'static>);

#[test]
fn a_panic_in_a_hook_leaves_every_sequence_of_a_verification_as_it_was() {
    let mut pool = pool(2);
    let slots = [0, 1].map(|seed| pool.admit(params(3, seed), &[]).unwrap());
    let data = rows(0..4);
    let hook = |_: &mut [f32]| panic!("on purpose");
    let hooks: [Option<RowHook<'_>>; 4] = [None, None, Some(&hook), None];
    let (counts, drafts) = (&[1, 1], Drafts::chain(&[1, 1]));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let logits = Rows::logits(&data, 4, VOCAB).unwrap();
        let options = Batch { hooks: &hooks, ..Default::default() };
        pool.verify(logits, &Batch { slots: &slots, counts, ..options }, &drafts, &mut Outputs::new())
    }));
    assert!(result.is_err());
    assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().position() == 0));
}

#[test]
fn a_refused_verification_leaves_everything_unchanged() {
    // The slots of the first two requests.
    let [a, b] = [0, 1];
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let none = Batch::default();
    let words = [u32::MAX; 90];
    let short = Batch { masks: Masks::new(&words, 3, 29, 29).unwrap(), ..none };
    let forced = Batch { forced: &[None, None, None, Some(900)], ..none };
    let good: Given = (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[-1, 0])));
    let mirostat = "mirostat cannot be combined with drafts: its state moves with every token that is drawn; let the \
        request step without drafts";
    let cases: [(&str, &[Slot], Given, Batch<'_>); 12] = [
        (
            "counts has length 1, but must have one per request, 2",
            &[a, b],
            (&[2], &[1, 2], Tree::Chain),
            none,
        ),
        (
            "drafts.ids has length 1, but must have 2, the sum of the counts",
            &[a, b],
            (&[2, 0], &[1], Tree::Chain),
            none,
        ),
        (
            "drafts.parents has length 0, but must have 2",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[]))),
            none,
        ),
        ("counts is 65 in request 0, but must be in 0..=64", &[a, b], (&[65, 0], &[1], Tree::Chain), none),
        ("logits has length 4, but must have 3 rows", &[a, b], (&[1, 0], &[1], Tree::Chain), none),
        (
            "parents is 1 for node 0 of request 0, but must be in -1..0, a node before it",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[1, 0]))),
            none,
        ),
        (
            "parents is 5 for node 1 of request 0",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[-1, 5]))),
            none,
        ),
        (mirostat, &[a, b], (&[1, 1], &[1, 2], Tree::Chain), none),
        ("slots is 0 in row 1 again", &[a, a], good, none),
        ("slots is 7 in row 1", &[a, 7], good, none),
        ("masks has length 3", &[a, b], good, short),
        ("forced is 900, but must be an id in 0..900", &[a, b], good, forced),
    ];
    for mut pool in pools() {
        assert_eq!(pool.admit(params(3, 1), &[1]), Ok(a));
        assert_eq!(pool.admit(params(MIROSTAT, 2), &[2]), Ok(b));
        let mut out = Outputs::new();
        let (counts, ids, tree) = good;
        let slots = [a, b];
        let whole = Batch { counts, ..Batch::of(&slots) };
        pool.verify(logits, &whole, &Drafts { tree, ..Drafts::chain(ids) }, &mut out).unwrap();
        let state =
            |pool: &mut Pool| [a, b].map(|slot| pool.sequence(slot).unwrap().history().ids().to_vec());
        let (before, words) = (state(&mut pool), out.words().to_vec());
        for (message, slots, (counts, ids, tree), options) in cases {
            let drafts = Drafts { tree, ..Drafts::chain(ids) };
            for mode in [VerifyMode::Coupled, VerifyMode::Greedy] {
                let batch = Batch { slots, counts, mode, ..options };
                let error = pool.verify(logits, &batch, &drafts, &mut out).unwrap_err();
                assert!(error.to_string().starts_with(message), "{error}");
            }
            assert_eq!((state(&mut pool), out.words()), (before.clone(), &words[..]), "{message}");
        }
        if pool.level().is_none() {
            let hook = |_: &mut [f32]| {};
            let hooks: [Option<RowHook<'_>>; 4] = [None, None, Some(&hook), None];
            let drafts = Drafts { tree, ..Drafts::chain(ids) };
            let error =
                pool.verify(logits, &Batch { hooks: &hooks, ..whole }, &drafts, &mut out).unwrap_err();
            assert!(error.to_string().starts_with("no hooks on a device: row 2 has one"), "{error}");
        }
    }
}

#[test]
fn what_a_mode_cannot_judge_is_refused() {
    let data = rows(0..3);
    let logits = Rows::logits(&data, 3, VOCAB).unwrap();
    let probs = |rows| Some(Matrix::new(&data[..rows * VOCAB], rows, VOCAB).unwrap());
    let chain = Drafts::chain(&[1, 2]);
    let tree = Drafts { tree: Tree::Parents(Ids::Host(&[-1, -1])), ..chain };
    let (with, short) = (Drafts { probs: probs(3), ..chain }, Drafts { probs: probs(2), ..chain });
    let thresholds = |single, acc| VerifyMode::Threshold { single, acc };
    let (none, forced) = (&[][..], &[None, Some(3), None][..]);
    let unread = "drafts.probs cannot be combined with mode: only rejection and block read the drafter's probabilities";
    let cases = [
        (chain, thresholds(1.5, 1.0), none, "threshold_single is 1.5, but must be in 0..=1"),
        (chain, thresholds(1.0, f32::NAN), none, "threshold_acc is NaN, but must be in 0..=1"),
        (tree, VerifyMode::Block, none, "parents is -1 for node 1 of request 0, but must be 0 in a chain"),
        (chain, VerifyMode::Block, forced, "forced cannot be combined with block"),
        (short, VerifyMode::Rejection, none, "drafts.probs has length 1800, but must have 2700"),
        (with, VerifyMode::Coupled, none, unread),
        (with, VerifyMode::Greedy, none, unread),
        (with, thresholds(0.6, 0.5), none, unread),
    ];
    for mut pool in pools() {
        let slots = [pool.admit(params(0, 1), &[1]).unwrap()];
        for (drafts, mode, forced, message) in &cases {
            let batch = Batch { counts: &[2], mode: *mode, forced, ..Batch::of(&slots) };
            let error = pool.verify(logits, &batch, drafts, &mut Outputs::new()).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(pool.sequence(slots[0]).unwrap().position(), 1);
        }
    }
}

#[test]
fn every_route_verifies_in_the_modes_that_it_can_judge() {
    // The rows of a request whose first draft is wrong, and of one that ends at its stop id; NaN shows in the
    // status of its row.
    let sure = |id: usize| {
        let mut row = row(id as u64);
        (row[id], row[11]) = (60.0, f32::NAN);
        row
    };
    let data = [sure(5), sure(6), sure(7), sure(8), sure(6), sure(5)].concat();
    let (counts, drafts) = (&[3, 1], Drafts::tree(&[4, 5, 6, 6], &[-1, -1, 1, -1]));
    let logits = Rows::logits(&data, 6, VOCAB).unwrap();
    let sampled = SamplingParams { seed: Some(3), temperature: 0.7, top_p: 0.9, ..Default::default() };
    let stopped = SamplingParams { stop_ids: vec![6], ..sampled.clone() };
    for (place, route) in
        places().into_iter().flat_map(|place| Route::ALL.map(|route| (place.clone(), route)))
    {
        let is_host = matches!(place, Place::Host { .. });
        let mut pool = match Pool::new(PoolConfig { route: route.clone(), ..config(place) }) {
            Ok(pool) => pool,
            Err(error) => {
                assert!(matches!(error, Error::Unavailable { resource: "route on a device", .. }), "{error}");
                assert!(!is_host && route == Route::Oracle);
                continue;
            }
        };
        let mut out = Outputs::new();
        for mode in MODES {
            let slots = [&sampled, &stopped].map(|params| pool.admit(params.clone(), &[1]).unwrap());
            let mut verify = |mode, drafts: &Drafts<'_>| {
                pool.verify(logits, &Batch { counts, mode, ..Batch::of(&slots) }, drafts, &mut out)
            };
            let judges = !matches!(mode, VerifyMode::Coupled | VerifyMode::Greedy);
            if judges && route == Route::Probabilities {
                let error = verify(mode, &Drafts { tree: Tree::Chain, ..drafts }).unwrap_err().to_string();
                assert!(error.starts_with("no probabilities of rows on this route"), "{error}");
            } else if mode != VerifyMode::Block {
                verify(mode, &drafts).unwrap();
                assert_eq!(
                    (out.request(0).tokens, out.request(0).rows),
                    (&[5, 7][..], &[0, 2][..]),
                    "{route}, {mode:?}"
                );
                assert_eq!((out.request(1).tokens, out.status(0)), (&[6][..], Status::NAN));
            }
            slots.into_iter().for_each(|slot| pool.release(slot).unwrap());
        }
    }
}
