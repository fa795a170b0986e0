//! Drafts of a draft model are what the request would draw there, and drawing them changes nothing.

use gumball_engine::{
    Batch, Drafts, Error, Matrix, NONE, Outputs, PADDING, Place, Pool, PoolConfig, Proposals, Route, Rows,
    SamplingParams, Slot, VerifyMode,
};

use crate::cases::{KINDS, VOCAB, params, pool, row, rows};
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
fn siblings_and_probabilities_are_the_definitions_on_any_number_of_threads() {
    let mut pools = [(1, Route::Race), (3, Route::Race), (1, Route::Oracle)].map(|(threads, route)| {
        let config = PoolConfig { place: Place::threads(threads), route, ..PoolConfig::new(VOCAB) };
        let mut pool = Pool::new(config).unwrap();
        let kinds = (0..KINDS).filter(|kind| *kind != MIROSTAT);
        let params = kinds.map(|kind| SamplingParams { logprobs: None, ..params(kind, 9) });
        let slots: Vec<Slot> = params.map(|params| pool.admit(params, &[3, 7, 9]).unwrap()).collect();
        (pool, slots)
    });
    // Two rows of each request, behind paths of different lengths, and padding between.
    let slots: Vec<Slot> = pools[0].1.iter().flat_map(|slot| [*slot, PADDING, *slot]).collect();
    let counts: Vec<u32> = (0..slots.len() as u32).map(|row| row % 3).collect();
    let ids: Vec<i32> = (0..counts.iter().sum()).map(|id: u32| id as i32 * 31 % 17).collect();
    let data = rows(0..slots.len() as u64);
    let logits = Rows::logits(&data, slots.len(), VOCAB).unwrap();
    for mode in MODES {
        let drafted = pools.each_mut().map(|(pool, _)| {
            let mut out = Proposals::with_probs(5);
            let batch = Batch { counts: &counts, mode, ..Batch::of(&slots) };
            pool.draft(logits, &batch, &ids, &mut out).unwrap();
            out
        });
        for (row, slot) in slots.iter().enumerate() {
            for other in &drafted[1..] {
                assert_eq!(drafted[0].row(row), other.row(row), "{mode:?}, row {row}");
                assert_eq!(drafted[0].row_probs(row), other.row_probs(row), "{mode:?}, row {row}");
            }
            let is_padding = *slot == PADDING;
            assert_eq!(drafted[0].row(row)[0] == NONE, is_padding);
            assert_eq!(drafted[0].row_probs(row).iter().all(|q| *q == 0.0), is_padding);
        }
    }
}

#[test]
fn the_words_are_those_of_the_mode() {
    let mut pool = pool(1);
    let slot = pool.admit(SamplingParams { seed: Some(3), ..Default::default() }, &[1]).unwrap();
    let drafted = MODES.map(|mode| chain(&mut pool, slot, mode, 12, &mut Proposals::new(1)).0);
    assert_eq!(drafted[0], drafted[2]);
    assert_eq!(drafted[0], drafted[4]);
    assert_ne!(drafted[0], drafted[1], "greedily");
    assert_ne!(drafted[0], drafted[3], "of a block");
    assert_eq!(pool.sequence(slot).unwrap().history().ids(), [1], "nothing has changed");
}

/// What an error says, and the slots, the numbers of drafts and the paths that it is about.
pub type Refused<'a> = (&'a str, &'a [Slot], &'a [u32], &'a [i32]);

#[test]
fn what_cannot_be_drafted_is_refused() {
    let mut pool = pool(1);
    let a = pool.admit(params(0, 1), &[1]).unwrap();
    let b = pool.admit(params(MIROSTAT, 1), &[1]).unwrap();
    let data = row(1);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let mut refused = |batch: &Batch<'_>, paths: &[i32]| {
        pool.draft(logits, batch, paths, &mut Proposals::new(1)).unwrap_err().to_string()
    };
    let long = [3; 64];
    let cases: [Refused<'_>; 8] = [
        ("slots has length 2, but must have one per row, 1", &[a, a], &[], &[]),
        ("paths.counts has length 2, but must have one per row, 1, or 0", &[a], &[1, 1], &[1, 1]),
        ("paths.ids has length 1, but must have 2, the sum of the counts", &[a], &[2], &[1]),
        ("paths.ids is 900, but must be an id in 0..900", &[a], &[2], &[1, 900]),
        ("paths.ids is -1, but must be an id in 0..900", &[a], &[1], &[-1]),
        ("the length of a path is 64, but must be in 0..64", &[a], &[64], &long),
        ("slot is 7, but must be an admitted slot", &[7], &[], &[]),
        ("mirostat cannot be combined with drafts", &[b], &[], &[]),
    ];
    for (message, slots, counts, paths) in cases {
        let error = refused(&Batch { counts, ..Batch::of(slots) }, paths);
        assert!(error.starts_with(message), "{error}");
    }
    assert!(refused(&Batch { forced: &[Some(900)], ..Batch::of(&[a]) }, &[]).starts_with("forced is 900"));
}

#[test]
fn a_row_has_no_more_siblings_than_a_verification_takes() {
    let mut pool = Pool::new(PoolConfig::new(VOCAB)).unwrap();
    let slot = pool.admit(SamplingParams { seed: Some(3), ..Default::default() }, &[1]).unwrap();
    let data = row(1);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    for (siblings, is_refused) in [(64, false), (65, true), (1 << 31, true), (usize::MAX, true)] {
        let mut out = Proposals::new(siblings);
        let drafted = pool.draft(logits, &Batch::of(&[slot]), &[], &mut out);
        assert_eq!(drafted.is_err(), is_refused, "{siblings}");
        if let Err(error) = drafted {
            assert_eq!(error.to_string(), format!("siblings is {siblings}, but must be in 0..=64"));
        }
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
