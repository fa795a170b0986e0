//! A caller's mistake is an error that names it, and it changes nothing.

use gumball_engine::dist::{Planner, PlannerConfig, StepShape, VocabSplit};
use gumball_engine::head::{Exact, HeadOptions};
use gumball_engine::{
    Batch, Drafts, Error, HostMasks, HostMatrix, LogprobsParams, Mark, Masks, Outputs, PADDING, Place, Pool,
    PoolConfig, Proposals, Row, RowHook, Rows, Sampler, SamplingParams, Scored, State, Status, StepOptions,
    VerifyMode, Watermark, add_watermark_key,
};

use crate::cases::{VOCAB, params, places, pool, pools, row, rows, step};

#[test]
fn a_refused_step_leaves_everything_unchanged() {
    // The slots of the first three requests, of which the last has ended.
    let ([a, b, gone], data) = ([0, 1, 2], rows([0, 1]));
    let good = Rows::logits(&data, 2, VOCAB).unwrap();
    let short = Rows::Logits(HostMatrix::strided(&data, 2, VOCAB - 1, VOCAB).unwrap().into());
    let none = Batch::default();
    let words = [u32::MAX; 1800];
    let hook: Option<RowHook<'_>> = None;
    let cases: [(&str, Rows<'_>, &[i32], Batch<'_>); 10] = [
        ("logits has length 899", short, &[a, b], none),
        ("slots has length 1", good, &[a], none),
        ("slots is 0 in row 1 again", good, &[a, a], none),
        ("slots is 2 in row 1, but must be an admitted slot, or -1", good, &[a, gone], none),
        ("slots is -2 in row 0", good, &[-2, b], none),
        ("slots is 99 in row 0", good, &[99, b], none),
        (
            "masks has length 3",
            good,
            &[a, b],
            Batch { masks: Masks::new(&words, 3, 29, 29).unwrap(), ..none },
        ),
        (
            "masks.width is 900, but must be less than 900: a bit for each of 900 ids, not a word",
            good,
            &[a, b],
            Batch { masks: Masks::new(&words, 2, 900, 900).unwrap(), ..none },
        ),
        (
            "forced is 900, but must be an id in 0..900",
            good,
            &[a, b],
            Batch { forced: &[None, Some(900)], ..none },
        ),
        ("hooks has length 1", good, &[a, b], Batch { hooks: &[hook], ..none }),
    ];
    for mut pool in pools() {
        for (kind, slot) in [(4, a), (3, b), (3, gone)] {
            assert_eq!(pool.admit(params(kind, 1), &[1]), Ok(slot));
        }
        pool.release(gone).unwrap();
        let out = step(&mut pool, &data, &[a, b]);
        let state = |pool: &mut Pool| {
            [a, b].map(|slot| {
                let sequence = pool.sequence(slot).unwrap();
                (sequence.history().ids().to_vec(), sequence.mu(), sequence.position())
            })
        };
        let before = state(&mut pool);
        for (message, logits, slots, options) in cases {
            let mut touched = out.clone();
            let error = pool.step(logits, &Batch { slots, ..options }, &mut touched).unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
            assert_eq!(touched.words(), out.words(), "{message}");
            assert_eq!(state(&mut pool), before, "{message}");
        }
        if pool.level().is_none() {
            let (hook, slots) = (|_: &mut [f32]| {}, [a, b]);
            let hooked = Batch { hooks: &[None, Some(&hook)], ..Batch::of(&slots) };
            let error = pool.step(good, &hooked, &mut Outputs::new()).unwrap_err().to_string();
            assert!(error.starts_with("no hooks on a device: row 1 has one"), "{error}");
        }
        // A refused step does not count as one in which the slots were seen.
        step(&mut pool, &data, &[b, a]);
        assert_eq!(state(&mut pool)[0].2, 3);
    }
}

#[test]
fn a_panic_in_a_hook_leaves_every_sequence_as_it_was() {
    let mut pool = pool(2);
    let slots = [0, 1, 2].map(|seed| pool.admit(params(3, seed), &[]).unwrap());
    let data = rows(0..3);
    let hook = |_: &mut [f32]| panic!("on purpose");
    let hooks: [Option<RowHook<'_>>; 3] = [None, Some(&hook), None];
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let logits = Rows::logits(&data, 3, VOCAB).unwrap();
        let options = Batch { hooks: &hooks, ..Default::default() };
        pool.step(logits, &Batch { slots: &slots, ..options }, &mut Outputs::new())
    }));
    assert!(result.is_err());
    assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().position() == 0));
    step(&mut pool, &data, &slots);
}

#[test]
fn a_pool_refuses_what_it_has_no_room_for() {
    let config = PoolConfig { slots: 1, ..PoolConfig::new(VOCAB) };
    let asks = |top_n, ids: &[u32]| SamplingParams {
        logprobs: Some(LogprobsParams { top_n, ids: ids.to_vec(), ..Default::default() }),
        ..Default::default()
    };
    for place in places() {
        let mut pool = Pool::new(PoolConfig { place, ..config.clone() }).unwrap();
        let error = pool.admit(asks(1, &[]), &[]).unwrap_err().to_string();
        assert_eq!(error, "logprobs.top_n is 1, but must be in 0..=0, the pool's top_n");
        let error = pool.admit(asks(0, &[7]), &[]).unwrap_err().to_string();
        assert_eq!(error, "logprobs.ids has length 1, but must have at most 0 ids, the pool's ids");
        let error = pool.admit(SamplingParams { top_p: -1.0, ..Default::default() }, &[]).unwrap_err();
        assert!(error.to_string().starts_with("top_p is -1"));
        assert!(pool.is_empty(), "nothing was admitted");

        let slot = pool.admit(asks(0, &[]), &[]).unwrap();
        for error in [pool.admit(asks(0, &[]), &[]), pool.fork(slot, 1)].map(Result::unwrap_err) {
            assert_eq!(error.to_string(), "slots is 2, but must be at most 1, all taken; release one first");
        }
        for error in [
            pool.release(PADDING).unwrap_err(),
            pool.fork(1, 1).unwrap_err(),
            pool.shorten(&[7], &[0]).unwrap_err(),
            pool.sequence(-5).map(|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::OutOfRange { parameter: "slot", .. }), "{error}");
        }
        let mut out = Outputs::new();
        pool.step(Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap(), &Batch::of(&[]), &mut out).unwrap();
        assert!(out.tokens().is_empty());
        pool.release(slot).unwrap();
        assert!(pool.is_empty() && pool.admit(asks(0, &[]), &[]) == Ok(slot));
    }
    for config in [
        PoolConfig { slots: 0, ..config.clone() },
        PoolConfig { place: Place::threads(0), ..config.clone() },
        PoolConfig::new(0),
        PoolConfig::new((1 << 20) + 1),
    ] {
        assert!(matches!(Pool::new(config), Err(Error::OutOfRange { .. })));
    }
}

#[test]
fn a_pool_marks_requests_that_name_no_mark() {
    add_watermark_key(501, [5; 16]).unwrap();
    add_watermark_key(502, [9; 16]).unwrap();
    let [of_pool, own] = [501, 502].map(|key| Watermark { key, context: 1, ..Watermark::default() });
    let params = |watermark| SamplingParams { watermark, seed: Some(3), ..SamplingParams::default() };
    for place in places() {
        let make = |watermark, enforce_all| {
            Pool::new(PoolConfig { place: place.clone(), watermark, enforce_all, ..PoolConfig::new(VOCAB) })
        };
        for (default, enforce_all, given, same) in [
            (None, false, Mark::Default, Mark::Off),
            (Some(of_pool), false, Mark::Default, Mark::Own(of_pool)),
            (Some(of_pool), true, Mark::Default, Mark::Own(of_pool)),
            (Some(of_pool), true, Mark::Own(own), Mark::Own(own)),
            (Some(of_pool), false, Mark::Off, Mark::Off),
        ] {
            let [mut pool, mut plain] = [make(default, enforce_all), make(None, false)].map(Result::unwrap);
            let slot = pool.admit(params(given), &[1]).unwrap();
            assert_eq!(plain.admit(params(same), &[1]), Ok(slot));
            for turn in 0..6 {
                let data = rows([turn]);
                let [out, expected] = [&mut pool, &mut plain].map(|pool| step(pool, &data, &[slot]));
                assert_eq!(out.words(), expected.words(), "{default:?}, {given:?}");
                assert_eq!(out.status(0).contains(Status::MARKED), turn > 0 && same.own().is_some());
            }
            let asked = pool.sequence(slot).unwrap().params().watermark;
            assert_eq!(asked, if default.is_some() { same } else { given });
            let left = pool.resume(params(given), State::new(&[], &[4], 0)).unwrap();
            assert_eq!(pool.sequence(left).unwrap().params().watermark, asked);
        }
        let mut pool = make(Some(of_pool), true).unwrap();
        for error in
            [pool.admit(params(Mark::Off), &[]), pool.resume(params(Mark::Off), State::new(&[], &[], 0))]
        {
            let allowed = "a mark or left out: the pool marks all texts (enforce_all)";
            assert_eq!(error.unwrap_err().to_string(), format!("watermark is false, but must be {allowed}"));
        }
        assert!(pool.is_empty(), "nothing was admitted");
        for (watermark, enforce_all, said) in [
            (None, true, "enforce_all is true, but must be false in a pool without a watermark"),
            (
                Some(Watermark { context: 0, ..of_pool }),
                false,
                "watermark.context is 0, but must be in 1..=64",
            ),
            (
                Some(Watermark { key: 503, ..of_pool }),
                false,
                "watermark.key is 503, but must be the number of",
            ),
        ] {
            let error = make(watermark, enforce_all).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }
}

#[test]
fn a_sampler_refuses_and_stays_as_it_was() {
    let mut sampler = Sampler::new(params(4, 1), VOCAB).unwrap().with_prompt(&[1]);
    let error = sampler.sample(&row(0)[1..]).unwrap_err();
    assert_eq!(error.to_string(), "logits has length 899, but must have 900 elements, the vocabulary");
    let options = StepOptions { forced: Some(900), ..Default::default() };
    let error = sampler.sample_with(&row(0), options).unwrap_err();
    assert_eq!(error.to_string(), "forced is 900, but must be an id in 0..900");
    assert!(sampler.sample_n(Row::F32(&[]), 3).is_err());
    assert_eq!((sampler.position(), sampler.sequence().mu()), (1, 6.0));

    let empty = sampler.sample(&vec![f32::NAN; VOCAB]).unwrap();
    assert_eq!((empty.id, sampler.position(), sampler.sequence().mu()), (None, 1, 6.0));
}

#[test]
fn matrices_are_checked_where_they_are_made() {
    let words = [0; 10];
    let messages = [
        Masks::new(&words, 4, 3, 3).unwrap_err(),
        Masks::new(&words, 2, 4, 3).unwrap_err(),
        HostMasks::new(&words, 2, 5, 5).unwrap().with_present(&[true]).unwrap_err(),
        Rows::logits(&[0.0f32; 4], 1, 0).unwrap_err(),
    ]
    .map(|error| error.to_string());
    assert_eq!(
        messages,
        [
            "masks has length 10, but must have at least 4 rows of 3 elements, 3 apart",
            "stride is 3, but must be at least the width of a row, 4",
            "masks.present has length 1, but must have one per row, 2",
            "vocab is 0, but must be in 1..=2^20",
        ]
    );
}

#[test]
fn what_a_call_does_not_read_is_refused() {
    let mut pool = pool(1);
    let slot = pool.admit(SamplingParams::default(), &[]).unwrap();
    let data = row(1);
    let (rows, good) = (Rows::logits(&data, 1, VOCAB).unwrap(), Batch { slots: &[slot], ..Batch::default() });
    let planner = Planner::new(PlannerConfig::new(VocabSplit::even(VOCAB, 1).unwrap())).unwrap();
    let plan = Some(planner.plan(&StepShape { requests: 1, ..StepShape::default() }).unwrap());
    let (counts, mode) = (&[0][..], VerifyMode::Greedy);
    let head = Exact::new(&data[..], VOCAB, 1, HeadOptions::default()).unwrap();
    let hidden = Rows::hidden(&head, HostMatrix::new(&[1.0f32], 1, 1).unwrap());
    let mut out = Outputs::new();
    for (rows, batch, said) in [
        (rows, Batch { counts, ..good }, "counts cannot be combined with step"),
        (rows, Batch { mode, ..good }, "mode cannot be combined with step"),
        (rows, Batch { plan, ..good }, "plan cannot be combined with pool"),
        (hidden, Batch { row_indices: &[0], ..good }, "row_indices cannot be combined with hidden"),
    ] {
        let error = pool.step(rows, &batch, &mut out).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
    let batch = Batch { counts, plan, ..good };
    let error = pool.verify(rows, &batch, &Drafts::default(), &mut Outputs::new()).unwrap_err();
    assert!(error.to_string().starts_with("plan cannot be combined with pool"), "{error}");
    let error = pool.draft(rows, &Batch { plan, ..good }, &[], &mut Proposals::new(1)).unwrap_err();
    assert!(error.to_string().starts_with("plan cannot be combined with pool"), "{error}");
    let none = Batch::default();
    let known =
        Scored { params: &SamplingParams::default(), ids: &[1], prompt_len: 1, start: 0, chunk_rows: None };
    for (batch, scored, said) in [
        (good, known, "slots cannot be combined with score"),
        (Batch { forced: &[None], ..none }, known, "forced cannot be combined with score"),
        (Batch { counts, ..none }, known, "counts cannot be combined with score"),
        (Batch { mode, ..none }, known, "mode cannot be combined with score"),
        (Batch { plan, ..none }, known, "plan cannot be combined with pool"),
        (none, Scored { chunk_rows: Some(1), ..known }, "chunk_rows cannot be combined with logits"),
    ] {
        let error = pool.score(rows, &batch, &scored, &mut out).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
    assert_eq!(pool.sequence(slot).unwrap().position(), 0);
}
