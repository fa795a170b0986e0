//! Steps from hidden states: the same tokens as steps from the logits of the definition, and nothing changed
//! by an error.

use allocation_counter::measure;
use gumball_engine::head::{Certified, Exact, HeadOptions, HostMatrix, Scaling};
use gumball_engine::unstable::head::WholeRow;
use gumball_engine::{
    Batch, Filter, Head, HeadCounts, LogprobsParams, Masks, Outputs, PADDING, Place, Pool, PoolConfig, Route,
    RowHook, Rows, SamplingParams, Section, Status, Widths, bf16,
};
use gumball_spec::num::philox4x32_10;

use crate::cases::{KINDS, VOCAB, back_to, params, pool};

pub const WIDTH: usize = 37;

/// Returns numbers from -1 to 1, rounded to bf16.
pub fn numbers(count: usize, seed: u64, scale: f32) -> Vec<bf16> {
    let number = |i| (philox4x32_10(seed, [i, 0, 5, 0])[0] as i32) as f32 / (1u64 << 31) as f32;
    (0..count as u32).map(|i| bf16::from_f32(number(i) * scale)).collect()
}

/// Returns what follows a product: a scale and a cap.
pub fn scaling() -> Scaling {
    Scaling { logit_scale: 0.75, softcap: 20.0 }
}

/// Requests that a few tokens decide, between requests of all kinds, whose logprobs need the whole row.
pub fn mixture(kind: usize) -> SamplingParams {
    let base = SamplingParams { seed: Some(kind as u64), ..Default::default() };
    match kind % 6 {
        0 => base,
        1 => SamplingParams { temperature: 0.0, repetition_penalty: 1.2, ..base },
        2 => SamplingParams { top_k: 20, top_p: 0.9, frequency_penalty: 0.3, ..base },
        3 => SamplingParams { min_p: 0.1, logit_bias: vec![(5, 2.0), (6, f32::NEG_INFINITY)], ..base },
        4 => SamplingParams { top_p: 0.8, ..base },
        _ => params(kind % KINDS, 4),
    }
}

#[test]
fn a_certified_head_gives_what_the_exact_head_gives() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let exact = || {
        let options = HeadOptions { scaling: scaling(), ..Default::default() };
        Exact::new(&weights, VOCAB, WIDTH, options).unwrap()
    };
    let (exact, certified) = (exact(), Certified::new(exact()).with_most_rows(usize::MAX));
    const ROWS: usize = 18;
    for route in [Route::Race, Route::Oracle, Route::Probabilities] {
        for (threads, with_kept) in [(1, false), (3, false), (1, true)] {
            let widths = Widths { top_n: 3, ids: 2 };
            let config = || PoolConfig {
                place: Place::threads(threads),
                widths,
                kept: with_kept,
                route: route.clone(),
                ..PoolConfig::new(VOCAB)
            };
            let mut pools = [Pool::new(config()).unwrap(), Pool::new(config()).unwrap()];
            // A route that judges probabilities has no use for some parameters.
            let kinds = (0..ROWS).filter(|kind| route != Route::Probabilities || kind % 6 < 5);
            let mut slots: Vec<i32> = Vec::new();
            for kind in kinds {
                let [a, b] = &mut pools;
                slots.push(a.admit(mixture(kind), &[1, 2, 1]).unwrap());
                assert_eq!(b.admit(mixture(kind), &[1, 2, 1]).unwrap(), *slots.last().unwrap());
            }
            slots.insert(3, PADDING);
            let words = [0xFFFF_FFF7; 29].repeat(slots.len());
            let masks = Masks::new(&words, slots.len(), 29, 29).unwrap();
            let options = Batch { masks, ..Batch::default() };
            let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
            for step in 0..6 {
                let mut data = numbers(slots.len() * WIDTH, 100 + step, 3.0);
                // Of one request the hidden state is hostile in one step, and zero in another.
                match step {
                    2 => data[0] = bf16::NAN,
                    3 => data[..WIDTH].fill(bf16::ZERO),
                    _ => {}
                }
                let states = HostMatrix::new(&data, slots.len(), WIDTH).unwrap();
                let [a, b] = &mut pools;
                a.step(Rows::hidden(&exact, states), &Batch { slots: &slots, ..options }, &mut expected)
                    .unwrap();
                b.step(Rows::hidden(&certified, states), &Batch { slots: &slots, ..options }, &mut seen)
                    .unwrap();
                assert_eq!(seen.words(), expected.words(), "{route}, {threads} threads, step {step}");
                assert!(!with_kept || (0..slots.len()).all(|row| seen.kept(row) == expected.kept(row)));
            }
            let counts = pools[1].head_counts();
            let rows = 6 * (slots.len() as u64 - 1);
            assert_eq!(counts.whole_rows + counts.certified_rows, rows);
            assert_eq!(pools[0].head_counts().whole_rows, rows);
            if route == Route::Probabilities {
                assert_eq!(counts.certified_rows, 0);
            } else {
                assert!(counts.certified_rows > if with_kept { 40 } else { 60 }, "{counts:?}");
            }
            assert!(counts.certified_logits <= 40 * counts.certified_rows, "{counts:?}");
            // Which requests take the exact head is known before a step.
            let reasons: Vec<Option<WholeRow>> = slots
                .iter()
                .filter(|slot| **slot != PADDING)
                .map(|slot| pools[1].needs_whole_row(*slot, false).unwrap())
                .collect();
            if route == Route::Race && !with_kept {
                assert_eq!(&reasons[..4], [None; 4]);
                assert_eq!(reasons[4], Some(WholeRow::Filter(Filter::TopP)));
                let slot = pools[1].admit(SamplingParams { min_keep: 2, ..mixture(0) }, &[]).unwrap();
                let unforeseen = Some(WholeRow::Parameter("min_keep"));
                assert_eq!(pools[1].needs_whole_row(slot, false), Ok(unforeseen));
                assert_eq!(pools[1].needs_whole_row(slot, true), Ok(Some(WholeRow::Hook)));
            }
        }
    }
}

#[test]
fn a_step_from_hidden_states_allocates_nothing_after_warm_up() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let exact = Exact::new(&weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
    let certified = Certified::new(exact.clone()).with_most_rows(KINDS);
    for head in [Head::from(&exact), Head::from(&certified)] {
        allocates_nothing_after_warm_up(head);
    }
}

fn allocates_nothing_after_warm_up(head: Head<'_>) {
    let mut pool = pool(1);
    let kinds = |kind| if kind < 5 { mixture(kind) } else { params(kind, 3) };
    let slots: Vec<_> = (0..KINDS).map(|kind| pool.admit(kinds(kind), &[1, 2]).unwrap()).collect();
    let data: Vec<_> = (0..8).map(|step| numbers(KINDS * WIDTH, step % 3, 3.0)).collect();
    let mut out = Outputs::new();
    let mut run = |pool: &mut Pool| {
        for data in &data {
            let states = HostMatrix::new(data, KINDS, WIDTH).unwrap();
            pool.step(Rows::hidden(head, states), &Batch::of(&slots), &mut out).unwrap();
        }
    };
    run(&mut pool);
    back_to(&mut pool, &slots, 0);
    assert_eq!(measure(|| run(&mut pool)).count_total, 0);
}

#[test]
fn the_rows_of_forced_tokens_need_no_product() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let exact = Exact::new(&weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
    let certified = Certified::new(exact.clone());
    let mut data = numbers(3 * WIDTH, 7, 3.0);
    data[0] = bf16::NAN;
    let section = Section { close: vec![9], budget: 0, ..Section::default() };
    let spent = SamplingParams { section: Some(section), top_p: 0.9, ..SamplingParams::default() };
    let plain = SamplingParams { top_k: 20, ..SamplingParams::default() };
    let told = SamplingParams { logprobs: Some(LogprobsParams::default()), ..plain.clone() };
    for head in [Head::from(&exact), Head::from(&certified)] {
        for (route, params, hooked, products) in [
            (Route::Race, &plain, false, 0),
            (Route::Oracle, &plain, false, 0),
            (Route::Race, &plain, true, 1),
            (Route::Race, &told, false, 3),
            (Route::Probabilities, &plain, false, 3),
        ] {
            let place = Place::threads(2);
            let mut pool =
                Pool::new(PoolConfig { place, route: route.clone(), ..PoolConfig::new(VOCAB) }).unwrap();
            let logprobs = params.logprobs.clone();
            let own = SamplingParams { logprobs, ..spent.clone() };
            let slots = [params, params, &own].map(|params| pool.admit(params.clone(), &[]).unwrap());
            let hook = |_: &mut [f32]| {};
            let hooks: [Option<RowHook<'_>>; 3] = [None, hooked.then_some(&hook), None];
            let hooks = if hooked { &hooks[..] } else { &[] };
            let batch = Batch { forced: &[Some(5), Some(6), None], hooks, ..Batch::of(&slots) };
            let states = HostMatrix::new(&data, 3, WIDTH).unwrap();
            let mut out = Outputs::new();
            pool.step(Rows::hidden(head, states), &batch, &mut out).unwrap();
            assert_eq!(out.tokens(), [5, 6, 9]);
            let odd = if params.logprobs.is_some() { Status::NAN.0 | Status::EMPTY.0 } else { 0 };
            let first = Status(Status::FORCED.0 | odd);
            assert_eq!([0, 1, 2].map(|row| out.status(row)), [first, Status::FORCED, Status::SECTION]);
            let HeadCounts { whole_rows, certified_rows, .. } = pool.head_counts();
            assert_eq!(whole_rows + certified_rows, products, "{route}, {params:?}");
        }
    }
}

#[test]
fn a_step_of_more_rows_than_are_screened_takes_the_exact_head() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let exact = Exact::new(&weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
    let certified = Certified::new(exact.clone()).with_most_rows(3);
    assert_eq!((certified.most_rows(), Certified::new(exact.clone()).most_rows()), (3, 8));
    for (rows, of_screen) in [(2, 2), (3, 3), (4, 0)] {
        let mut pools = [pool(1), pool(1)];
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let slots: Vec<_> = (0..rows).map(|_| pools[0].admit(greedy.clone(), &[]).unwrap()).collect();
        slots.iter().for_each(|slot| assert_eq!(pools[1].admit(greedy.clone(), &[]), Ok(*slot)));
        let data = numbers(rows * WIDTH, 7, 3.0);
        let tokens = [(0, Head::from(&certified)), (1, Head::from(&exact))].map(|(pool, head)| {
            let states = HostMatrix::new(&data, rows, WIDTH).unwrap();
            let mut out = Outputs::new();
            pools[pool].step(Rows::hidden(head, states), &Batch::of(&slots), &mut out).unwrap();
            out.tokens().to_vec()
        });
        assert_eq!(tokens[0], tokens[1]);
        assert_eq!(pools[0].head_counts().certified_rows, of_screen);
    }
}

#[test]
fn a_head_of_another_shape_is_refused_and_changes_nothing() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let head = Exact::new(&weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
    let smaller = Exact::new(&weights[WIDTH..], VOCAB - 1, WIDTH, HeadOptions::default()).unwrap();
    let mut pool = Pool::new(PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB) }).unwrap();
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let data = numbers(2 * WIDTH, 1, 1.0);
    let states = HostMatrix::new(&data, 1, WIDTH).unwrap();
    let options = Batch::default();
    let mut out = Outputs::new();
    let mut message = |head: &Exact<'_>, states: HostMatrix<'_>, slots: &[i32]| {
        pool.step(Rows::hidden(head, states), &Batch { slots, ..options }, &mut out).unwrap_err().to_string()
    };
    assert!(message(&smaller, states, &[slot]).starts_with("logits has length 899, but must have 900"));
    assert_eq!(
        message(&head, states, &[slot, PADDING]),
        "slots has length 2, but must have one per hidden state, 1"
    );
    assert_eq!(
        message(&head, states, &[7]),
        "slots is 7 in row 0, but must be an admitted slot, or -1 for padding"
    );
    let narrow = HostMatrix::strided(&data, 1, WIDTH - 1, WIDTH).unwrap();
    assert_eq!(
        message(&head, narrow, &[slot]),
        "hidden has length 36, but must have 37 elements each, as a row of weights"
    );
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
}
