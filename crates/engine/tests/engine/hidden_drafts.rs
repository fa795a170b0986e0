//! Drafts and scores from hidden states: what comes of the logits of the definition, with either head, and in parts of any size.

use gumball_engine::head::{Certified, Exact, HeadOptions, HiddenStates};
use gumball_engine::{
    Batch, Drafts, Error, Filter, Head, LogprobMode, LogprobsParams, Masks, NONE, Outputs, PADDING, Place,
    Pool, PoolConfig, Proposals, Route, Row, RowHook, Rows, SamplingParams, Scored, Slot, VerifyMode, Widths,
    bf16,
};
use gumball_spec::head::{Scaling, logits};
use gumball_spec::num::philox4x32_10;

use crate::cases::{KINDS, VOCAB, params};
use crate::verify::{MIROSTAT, MODES, Random};

const WIDTH: usize = 24;

/// Returns numbers from -1 to 1, rounded to bf16.
fn numbers(count: usize, seed: u64, scale: f32) -> Vec<bf16> {
    let number = |i| (philox4x32_10(seed, [i, 0, 6, 0])[0] as i32) as f32 / (1u64 << 31) as f32;
    (0..count as u32).map(|i| bf16::from_f32(number(i) * scale)).collect()
}

/// The hidden state behind a history: a function of the last two ids.
fn state(history: &[u32]) -> Vec<bf16> {
    let seed = history.iter().rev().take(2).fold(1u64, |hash, id| (hash * 7 + u64::from(*id)) % 23);
    numbers(WIDTH, 1000 + seed, 6.0)
}

/// Returns the logits of hidden states by the definition.
fn by_definition(weights: &[bf16], states: &[bf16]) -> Vec<f32> {
    let row = |state: &[bf16]| logits(Row::Bf16(weights), Row::Bf16(state), None, &Scaling::default());
    states.chunks(WIDTH).flat_map(row).collect()
}

/// Requests that a part of a row decides, and those of all kinds.
fn request(kind: usize) -> SamplingParams {
    let base = SamplingParams { seed: Some(kind as u64), ..Default::default() };
    match kind {
        0 => base,
        1 => SamplingParams { temperature: 0.0, repetition_penalty: 1.2, ..base },
        2 => SamplingParams { top_k: 20, top_p: 0.9, frequency_penalty: 0.3, ..base },
        3 => SamplingParams { min_p: 0.1, no_repeat_ngram: 3, logit_bias: vec![(5, 2.0)], ..base },
        kind => params((kind - 4) % KINDS, 4),
    }
}

const REQUESTS: usize = 4 + KINDS;

fn pool(threads: usize, route: Route) -> Pool {
    let (place, widths) = (Place::threads(threads), Widths { top_n: 3, ids: 2 });
    Pool::new(PoolConfig { place, widths, route, ..PoolConfig::new(VOCAB) }).unwrap()
}

struct Both<'w> {
    exact: Exact<'w>,
    certified: Certified<'w>,
}

impl<'w> Both<'w> {
    fn new(weights: &'w [bf16]) -> Self {
        let exact = Exact::new(weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
        Self { certified: Certified::new(exact.clone()).with_most_rows(usize::MAX), exact }
    }

    fn heads(&self) -> [Head<'_>; 2] {
        [(&self.exact).into(), (&self.certified).into()]
    }
}

/// Holds verification, in some mode, to that from logits, over a few passes.
fn verifies(route: Route, threads: usize, mode: VerifyMode, with_kept: bool) {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let new = || if with_kept { Outputs::with_kept() } else { Outputs::new() };
    for head in both.heads() {
        let mut pools = [pool(threads, route.clone()), pool(threads, route.clone())];
        let kinds: Vec<usize> = (0..REQUESTS).filter(|kind| *kind != 4 + MIROSTAT).collect();
        let mut slots = vec![PADDING];
        for kind in &kinds {
            let [a, b] = &mut pools;
            slots.push(a.admit(request(*kind), &[1, 2, 1]).unwrap());
            assert_eq!(b.admit(request(*kind), &[1, 2, 1]), Ok(slots[slots.len() - 1]));
        }
        let mut random = Random(7);
        let (mut expected, mut seen) = (new(), new());
        for pass in 0..4 {
            let (mut counts, mut ids, mut parents, mut data) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for slot in &slots {
                let count = if mode == VerifyMode::Coupled && *slot == 2 { 0 } else { random.below(5) };
                let history = match slot {
                    &PADDING => vec![],
                    slot => pools[0].sequence(*slot).unwrap().history().ids().to_vec(),
                };
                let mut paths = vec![history.clone()];
                data.extend(state(&history));
                for node in 0..count {
                    let chain = mode == VerifyMode::Block || random.below(2) == 0;
                    let parent = if chain { node } else { random.below(node + 1) };
                    let mut path = paths[parent].clone();
                    // What a request without edits would say there, another token, or none.
                    let z = by_definition(&weights, &state(&path));
                    let best = (0..VOCAB).max_by(|a, b| z[*a].total_cmp(&z[*b])).unwrap() as i32;
                    let draft = [best, best, best, random.below(VOCAB) as i32, NONE][random.below(5)];
                    path.push(draft.max(0) as u32);
                    data.extend(state(&path));
                    paths.push(path);
                    ids.push(draft);
                    parents.push(parent as i32 - 1);
                }
                counts.push(count as u32);
            }
            data[..WIDTH].fill(bf16::NAN);
            let rows = data.len() / WIDTH;
            let words = [0xFFFF_FFF7; 29].repeat(rows);
            let masks = if pass % 2 == 0 { Masks::None } else { Masks::new(&words, rows, 29, 29).unwrap() };
            let mut forced = vec![None; rows];
            let hook = |z: &mut [f32]| z[17] += 0.5;
            let mut hooks: Vec<Option<RowHook<'_>>> = vec![None; rows];
            if pass == 2 {
                hooks[rows - 1] = Some(&hook);
                if mode != VerifyMode::Block {
                    forced[rows / 2] = Some(3);
                }
            }
            let options = Batch { masks, forced: &forced, hooks: &hooks, ..Batch::default() };
            let (counts, drafts) = (&counts, Drafts::tree(&ids, &parents));
            let z = by_definition(&weights, &data);
            let z = Rows::logits(&z, rows, VOCAB).unwrap();
            let states = HiddenStates::new(&data, rows, WIDTH).unwrap();
            let [a, b] = &mut pools;
            a.verify(z, &Batch { slots: &slots, counts, mode, ..options }, &drafts, &mut expected).unwrap();
            b.verify(
                Rows::hidden(head, states),
                &Batch { slots: &slots, counts, mode, ..options },
                &drafts,
                &mut seen,
            )
            .unwrap();
            let context = format!("{route}, {threads} threads, {mode:?}, pass {pass}");
            assert_eq!(seen.words(), expected.words(), "{context}");
            assert_eq!(seen.accepted(), expected.accepted(), "{context}");
            for request in 0..slots.len() {
                assert_eq!(seen.request(request).rows, expected.request(request).rows, "{context}");
            }
            let kept = |of: &Outputs, row| with_kept.then(|| of.kept(row).to_vec());
            assert!((0..rows).all(|row| kept(&seen, row) == kept(&expected, row)), "{context}");
            for slot in &slots[1..] {
                let mut history = |pool: usize| pools[pool].sequence(*slot).unwrap().history().ids().to_vec();
                assert_eq!(history(0), history(1), "{context}");
            }
        }
        let counts = pools[1].head_counts();
        let is_certified = matches!(head, Head::Certified(_));
        let judges = !matches!(mode, VerifyMode::Coupled | VerifyMode::Greedy);
        assert_eq!(counts.certified_rows > if judges { 0 } else { 20 }, is_certified, "{mode:?}: {counts:?}");
    }
}

#[test]
fn drafts_are_verified_as_from_logits() {
    for mode in MODES {
        verifies(Route::Race, 1, mode, false);
    }
    verifies(Route::Race, 3, VerifyMode::Coupled, true);
    verifies(Route::Oracle, 1, VerifyMode::Greedy, false);
}

#[test]
fn a_row_behind_drafts_is_drawn_with_them_as_output() {
    // All rows have one hidden state, so one order of likeliness, and no token may occur twice. So greedy decoding emits the tokens in
    // this order, and each row must skip those that the drafts before it have used.
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let one = numbers(WIDTH, 77, 6.0);
    let z = by_definition(&weights, &one);
    let mut order: Vec<i32> = (0..VOCAB as i32).collect();
    order.sort_by(|a, b| z[*b as usize].total_cmp(&z[*a as usize]));
    let data = one.repeat(5);
    let states = |rows| HiddenStates::new(&data[..rows * WIDTH], rows, WIDTH).unwrap();
    for head in both.heads() {
        let mut pool = pool(1, Route::Race);
        let params = SamplingParams { temperature: 0.0, no_repeat_ngram: 1, ..SamplingParams::default() };
        let slot = pool.admit(params, &[order[0] as u32]).unwrap();
        let (options, mode) = (Batch::default(), VerifyMode::Coupled);
        let mut path = Vec::new();
        for _ in 0..4 {
            let counts = &[path.len() as u32];
            let mut out = Proposals::new(1);
            pool.draft(
                Rows::hidden(head, states(1)),
                &Batch { slots: &[slot], counts, mode, ..options },
                &path,
                &mut out,
            )
            .unwrap();
            path.extend_from_slice(out.ids());
        }
        assert_eq!(path, order[1..5]);
        let (counts, drafts) = (&[4], Drafts::chain(&path));
        let mut out = Outputs::new();
        pool.verify(
            Rows::hidden(head, states(5)),
            &Batch { slots: &[slot], counts, mode, ..options },
            &drafts,
            &mut out,
        )
        .unwrap();
        assert_eq!((out.accepted(), out.request(0).tokens), (&[4][..], &order[1..6]));
        let whole = pool.head_counts().whole_rows;
        assert_eq!(whole, if matches!(head, Head::Certified(_)) { 0 } else { 9 });
        // A tree, whose first draft is none of the likeliest.
        let ids = [order[9], order[6], order[7], order[8]];
        let (counts, drafts) = (&[4], Drafts::tree(&ids, &[-1, -1, 1, 2]));
        pool.verify(
            Rows::hidden(head, states(5)),
            &Batch { slots: &[slot], counts, mode, ..options },
            &drafts,
            &mut out,
        )
        .unwrap();
        assert_eq!((out.request(0).tokens, out.request(0).rows), (&order[6..10], &[0, 2, 3, 4][..]));
    }
}

#[test]
fn drafts_are_drawn_as_from_logits() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    for head in both.heads() {
        let mut pool = pool(3, Route::Race);
        let kinds: Vec<usize> = (0..REQUESTS).filter(|kind| *kind != 4 + MIROSTAT).collect();
        let mut slots: Vec<Slot> =
            kinds.iter().map(|kind| pool.admit(request(*kind), &[4, 4, 5]).unwrap()).collect();
        slots.insert(2, PADDING);
        slots.push(slots[0]);
        let rows = slots.len();
        let counts: Vec<u32> = (0..rows as u32).map(|row| row % 3).collect();
        let ids: Vec<i32> = (0..counts.iter().sum::<u32>() as i32).map(|i| i * 7 % 50).collect();
        let mut data = numbers(rows * WIDTH, 9, 6.0);
        data[2 * WIDTH] = bf16::NAN;
        let z = by_definition(&weights, &data);
        for mode in MODES {
            for (siblings, with_probs) in [(1, false), (3, false), (1, true)] {
                let new =
                    || if with_probs { Proposals::with_probs(siblings) } else { Proposals::new(siblings) };
                let (mut expected, mut seen) = (new(), new());
                let z = Rows::logits(&z, rows, VOCAB).unwrap();
                let states = HiddenStates::new(&data, rows, WIDTH).unwrap();
                let options = Batch::default();
                pool.draft(
                    z,
                    &Batch { slots: &slots, counts: &counts, mode, ..options },
                    &ids,
                    &mut expected,
                )
                .unwrap();
                let before = pool.head_counts();
                pool.draft(
                    Rows::hidden(head, states),
                    &Batch { slots: &slots, counts: &counts, mode, ..options },
                    &ids,
                    &mut seen,
                )
                .unwrap();
                let context = format!("{mode:?}, {siblings} siblings, probabilities: {with_probs}");
                assert_eq!(seen.ids(), expected.ids(), "{context}");
                let bits = |of: &Proposals| of.probs().iter().map(|p| p.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&seen), bits(&expected), "{context}");
                let certified = pool.head_counts().certified_rows - before.certified_rows;
                match head {
                    Head::Certified(_) => assert!(certified >= 4, "{context}: {certified}"),
                    _ => assert_eq!(certified, 0),
                }
            }
        }
    }
}

/// Parameters that ask for logprobs of a mode.
fn asks(mode: LogprobMode, params: SamplingParams) -> SamplingParams {
    SamplingParams { logprobs: Some(LogprobsParams { mode, top_n: 2, ids: vec![3, 9] }), ..params }
}

#[test]
fn scores_are_those_from_logits_in_chunks_of_any_size() {
    const ROWS: usize = 21;
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let data = numbers(ROWS * WIDTH, 5, 6.0);
    let z = by_definition(&weights, &data);
    let ids: Vec<u32> = (0..ROWS as u32 + 4).map(|i| i * 5 % 13).collect();
    let base = SamplingParams { seed: Some(3), ..Default::default() };
    let top = SamplingParams { top_k: 40, top_p: 0.9, presence_penalty: 0.2, ..base.clone() };
    let min_p = SamplingParams { min_p: 0.02, temperature: 1.3, ..base.clone() };
    let greedy = SamplingParams { temperature: 0.0, repetition_penalty: 1.1, ..base.clone() };
    let requests = [
        (base.clone(), false),
        (asks(LogprobMode::Raw, top.clone()), false),
        (asks(LogprobMode::Processed, top), true),
        (asks(LogprobMode::Processed, min_p), true),
        (asks(LogprobMode::Tempered, greedy), true),
        (asks(LogprobMode::Processed, SamplingParams { top_p: 0.8, ..base }), false),
    ];
    for (params, in_part) in &requests {
        let scored = Scored { params, ids: &ids, prompt_len: 9, start: 4, chunk_rows: None };
        for head in both.heads() {
            for (threads, with_kept) in [(1, false), (3, true)] {
                let mut pool = pool(threads, Route::Race);
                let new = || if with_kept { Outputs::with_kept() } else { Outputs::new() };
                let words = [0xFFFF_FFFD; 29].repeat(ROWS);
                let masks = Masks::new(&words, ROWS, 29, 29).unwrap();
                let options = Batch { masks, ..Batch::default() };
                let (mut expected, mut seen) = (new(), new());
                let z = Rows::logits(&z, ROWS, VOCAB).unwrap();
                pool.score(z, &options, &scored, &mut expected).unwrap();
                for chunk_rows in [1, 2, 7, 8, ROWS, 1000] {
                    let before = pool.head_counts();
                    let states = HiddenStates::new(&data, ROWS, WIDTH).unwrap();
                    pool.score(
                        Rows::hidden(head, states),
                        &options,
                        &Scored { chunk_rows: Some(chunk_rows), ..scored },
                        &mut seen,
                    )
                    .unwrap();
                    assert_eq!(seen.words(), expected.words(), "{params:?} by {chunk_rows}");
                    assert!(!with_kept || (0..ROWS).all(|row| seen.kept(row) == expected.kept(row)));
                    let counts = pool.head_counts();
                    let certified = counts.certified_rows - before.certified_rows;
                    let is_certified = *in_part && matches!(head, Head::Certified(_));
                    assert_eq!(certified, if is_certified { ROWS as u64 } else { 0 }, "{params:?}");
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let mut pool = pool(1, Route::Race);
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let data = numbers(3 * WIDTH, 5, 6.0);
    let states = HiddenStates::new(&data, 3, WIDTH).unwrap();
    let narrow = HiddenStates::new(&data, 3, WIDTH - 1).unwrap();
    let (options, mode) = (Batch::default(), VerifyMode::Coupled);
    let mut out = Outputs::new();
    let mut verify = |states: HiddenStates<'_>, counts: &[u32], ids: &[i32]| {
        pool.verify(
            Rows::hidden(&both.exact, states),
            &Batch { slots: &[slot], counts, mode, ..options },
            &Drafts::chain(ids),
            &mut out,
        )
        .unwrap_err()
    };
    assert_eq!(
        verify(states, &[1], &[4]).to_string(),
        "hidden has length 3, but must have 2 hidden states, one per request and one per draft"
    );
    assert!(matches!(verify(narrow, &[2], &[4, 5]), Error::Length { parameter: "hidden", .. }));
    let params = SamplingParams::default();
    let scored = Scored { params: &params, ids: &[1, 2, 3, 4], prompt_len: 0, start: 1, chunk_rows: None };
    let mut outputs = Outputs::new();
    let mut score = |chunk_rows, scored| {
        pool.score(
            Rows::hidden(&both.certified, states),
            &options,
            &Scored { chunk_rows: Some(chunk_rows), ..scored },
            &mut outputs,
        )
        .unwrap_err()
    };
    assert_eq!(score(0, scored).to_string(), "chunk_rows is 0, but must be 1 or more");
    assert!(matches!(score(2, Scored { start: 2, ..scored }), Error::Length { parameter: "ids", .. }));
    let xtc = SamplingParams { xtc_probability: 0.5, ..asks(LogprobMode::Processed, params.clone()) };
    assert!(xtc.is_on(Filter::Xtc, VOCAB) && xtc.seed.is_none());
    assert!(matches!(score(2, Scored { params: &xtc, ..scored }), Error::Conflict { parameter: "xtc", .. }));
    let mut proposals = Proposals::new(1);
    let drafted = pool.draft(
        Rows::hidden(&both.exact, states),
        &Batch { slots: &[slot], mode, ..options },
        &[],
        &mut proposals,
    );
    assert!(matches!(drafted, Err(Error::Length { parameter: "slots", .. })));
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
}
