//! Drafts of a draft model are the tokens that the request would draw there, and drawing them changes
//! nothing.

use gumball_engine::{
    Batch, Drafts, Error, Matrix, Outputs, Pool, PoolConfig, Proposals, Route, Rows, SamplingParams, Slot,
    VerifyMode,
};

use crate::cases::{KINDS, VOCAB, params, pool, pools, row};
use crate::verify::{MIROSTAT, MODES, model};

/// Drafts a chain for a request by a model, a call for each draft.
fn chain(
    pool: &mut Pool,
    slot: Slot,
    mode: VerifyMode,
    count: usize,
    out: &mut Proposals,
) -> (Vec<i32>, Vec<f32>) {
    let history = pool.sequence(slot).unwrap().history().ids().to_vec();
    let (mut path, mut probs) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let ids: Vec<u32> = history.iter().copied().chain(path.iter().map(|id| *id as u32)).collect();
        let row = model(&ids);
        let logits = Rows::logits(&row, 1, VOCAB).unwrap();
        let (slots, counts) = ([slot], [path.len() as u32]);
        let batch = Batch { counts: &counts, mode, ..Batch::of(&slots) };
        pool.draft(logits, &batch, &path, out).unwrap();
        path.extend(out.row(0));
        probs.extend_from_slice(out.row_probs(0));
    }
    (path, probs)
}

#[test]
fn a_draft_model_that_is_the_target_is_always_right() {
    for mode in MODES {
        for kind in (0..KINDS).filter(|kind| *kind != MIROSTAT) {
            let mut pool = pool(1);
            let slot = pool.admit(params(kind, 40 + kind as u64), &[3, 7]).unwrap();
            for _ in 0..4 {
                let (ids, mut probs) = chain(&mut pool, slot, mode, 4, &mut Proposals::with_probs(1));
                let history = pool.sequence(slot).unwrap().history().ids().to_vec();
                let behind = |n: usize| ids[..n].iter().map(|id| *id as u32);
                let data: Vec<f32> = (0..=4)
                    .flat_map(|n| model(&history.iter().copied().chain(behind(n)).collect::<Vec<_>>()))
                    .collect();
                probs.resize(5 * VOCAB, f32::NAN);
                let reads_probs = matches!(mode, VerifyMode::Rejection | VerifyMode::Block);
                let probs = reads_probs.then_some(Matrix::new(&probs, 5, VOCAB).unwrap());
                let (counts, drafts) = (&[4], Drafts { probs, ..Drafts::chain(&ids) });
                let (logits, options) = (Rows::logits(&data, 5, VOCAB).unwrap(), Batch::default());
                let mut out = Outputs::new();
                pool.verify(logits, &Batch { slots: &[slot], counts, mode, ..options }, &drafts, &mut out)
                    .unwrap();
                // A threshold of 0.5 refuses some drafts of the target's own.
                if !matches!(mode, VerifyMode::Threshold { .. }) {
                    assert_eq!(out.accepted(), [4], "{mode:?}, kind {kind}");
                }
            }
        }
    }
}

#[test]
fn bans_at_the_end_of_a_history_do_not_hold_behind_a_draft_from_there() {
    // 5 is banned right after 7, and 9 as the first token of the output.
    let bad = SamplingParams { bad_words: vec![vec![7, 5]], temperature: 0.0, ..Default::default() };
    let early = SamplingParams { min_tokens: 1, stop_ids: vec![9], temperature: 0.0, ..Default::default() };
    let mut row = vec![0.0; VOCAB];
    (row[9], row[5], row[3]) = (3.0, 4.0, 1.0);
    let data = row.repeat(4);
    let logits = Rows::logits(&data[..2 * VOCAB], 2, VOCAB).unwrap();
    for mut pool in pools() {
        let slots = [&bad, &early].map(|params| pool.admit(params.clone(), &[7]).unwrap());
        let (mut first, mut second, mut out) = (Proposals::new(1), Proposals::new(1), Outputs::new());
        pool.draft(logits, &Batch::of(&slots), &[], &mut first).unwrap();
        assert_eq!(first.ids(), [9, 5]);
        let behind = Batch { counts: &[1, 1], ..Batch::of(&slots) };
        pool.draft(logits, &behind, first.ids(), &mut second).unwrap();
        assert_eq!(second.ids(), [5, 5]);
        let all = Rows::logits(&data, 4, VOCAB).unwrap();
        pool.verify(all, &behind, &Drafts::chain(first.ids()), &mut out).unwrap();
        assert_eq!([0, 1].map(|request| out.request(request).tokens), [&[9, 5], &[5, 5]]);
    }
}

/// What an error says, and the slots, the numbers of drafts and the paths that it is about.
type Refused<'a> = (&'a str, &'a [Slot], &'a [u32], &'a [i32]);

#[test]
fn what_cannot_be_drafted_is_refused() {
    let (data, long, [a, b]) = (row(1), [3; 64], [0, 1]);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let cases: [Refused<'_>; 8] = [
        ("slots has length 2, but must have one per row, 1", &[a, a], &[], &[]),
        ("counts has length 2, but must have one per row, 1, or 0", &[a], &[1, 1], &[1, 1]),
        ("paths has length 1, but must have 2, the sum of the counts", &[a], &[2], &[1]),
        ("paths is 900, but must be an id in 0..900", &[a], &[2], &[1, 900]),
        ("paths is -1, but must be an id in 0..900", &[a], &[1], &[-1]),
        ("paths is of 64 ids, but must be of 0..64", &[a], &[64], &long),
        ("slot is 7, but must be an admitted slot", &[7], &[], &[]),
        ("mirostat cannot be combined with drafts", &[b], &[], &[]),
    ];
    for mut pool in pools() {
        assert_eq!(pool.admit(params(0, 1), &[1]), Ok(a));
        assert_eq!(pool.admit(params(MIROSTAT, 1), &[1]), Ok(b));
        let mut refused = |batch: &Batch<'_>, paths: &[i32], siblings| {
            pool.draft(logits, batch, paths, &mut Proposals::new(siblings)).unwrap_err().to_string()
        };
        for (message, slots, counts, paths) in cases {
            let error = refused(&Batch { counts, ..Batch::of(slots) }, paths, 1);
            assert!(error.starts_with(message), "{error}");
        }
        let slots = [a];
        let forced = Batch { forced: &[Some(900)], ..Batch::of(&slots) };
        assert!(refused(&forced, &[], 1).starts_with("forced is 900"));
        for siblings in [65, 1 << 31, usize::MAX] {
            let text = format!("siblings is {siblings}, but must be in 0..=64");
            assert_eq!(refused(&Batch::of(&slots), &[], siblings), text);
        }
        pool.draft(logits, &Batch::of(&slots), &[], &mut Proposals::new(64)).unwrap();
    }
}

#[test]
fn routes_without_siblings_say_so() {
    let config = PoolConfig { route: Route::Probabilities, ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::new(config).unwrap();
    let slot = pool.admit(SamplingParams { seed: Some(3), top_p: 0.8, ..Default::default() }, &[1]).unwrap();
    let data = row(1);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let mut draft =
        |mode, out: &mut Proposals| pool.draft(logits, &Batch { mode, ..Batch::of(&[slot]) }, &[], out);
    let mut out = Proposals::new(1);
    draft(VerifyMode::Coupled, &mut out).unwrap();
    assert!(out.row(0)[0] >= 0);
    for (mode, mut out) in [
        (VerifyMode::Coupled, Proposals::new(2)),
        (VerifyMode::Block, Proposals::new(1)),
        (VerifyMode::Coupled, Proposals::with_probs(1)),
    ] {
        assert!(matches!(draft(mode, &mut out), Err(Error::Unavailable { .. })), "{mode:?}");
    }
}
