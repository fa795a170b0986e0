//! Drafts of a draft model are what the request would draw there, and drawing them changes nothing.

use gumball_engine::{
    BatchOptions, Drafts, Error, Logits, NONE, ORACLE, PADDING, PROBABILITIES, Paths, Pool, PoolConfig,
    Proposals, RACE, SamplingParams, Slot, Verification, VerifyMode,
};

use crate::cases::{KINDS, VOCAB, params, pool, row, rows};
use crate::verify::{MIROSTAT, model};

/// Every mode, thresholds that change the law included.
pub const MODES: [VerifyMode; 5] = [
    VerifyMode::Coupled,
    VerifyMode::Greedy,
    VerifyMode::Rejection,
    VerifyMode::Block,
    VerifyMode::Threshold { single: 0.4, acc: 0.5 },
];

/// Drafts a chain for a request by a model, a call for each draft.
fn chain(
    pool: &Pool,
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
        let logits = Logits::new(&row, 1, VOCAB).unwrap();
        let paths = Paths { counts: &[path.len() as u32], ids: &path };
        pool.draft(logits, &[slot], &paths, mode, &BatchOptions::default(), out).unwrap();
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
                let (ids, mut probs) = chain(&pool, slot, mode, 4, &mut Proposals::with_probs(1));
                let history = pool.sequence(slot).unwrap().history().ids().to_vec();
                let behind = |n: usize| ids[..n].iter().map(|id| *id as u32);
                let data: Vec<f32> = (0..=4)
                    .flat_map(|n| model(&history.iter().copied().chain(behind(n)).collect::<Vec<_>>()))
                    .collect();
                probs.resize(5 * VOCAB, f32::NAN);
                let reads_probs = matches!(mode, VerifyMode::Rejection | VerifyMode::Block);
                let probs = reads_probs.then_some(&probs[..]);
                let drafts = Drafts { counts: &[4], ids: &ids, parents: None, probs };
                let (logits, options) = (Logits::new(&data, 5, VOCAB).unwrap(), BatchOptions::default());
                let mut out = Verification::new();
                pool.verify(logits, &[slot], &drafts, mode, &options, &mut out).unwrap();
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
    let pools = [(1, RACE), (3, RACE), (1, ORACLE)].map(|(threads, route)| {
        let config = PoolConfig { threads: Some(threads), route, ..PoolConfig::new(VOCAB) };
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
    let logits = Logits::new(&data, slots.len(), VOCAB).unwrap();
    for mode in MODES {
        let drafted = pools.each_ref().map(|(pool, _)| {
            let mut out = Proposals::with_probs(5);
            let paths = Paths { counts: &counts, ids: &ids };
            pool.draft(logits, &slots, &paths, mode, &BatchOptions::default(), &mut out).unwrap();
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
    let drafted = MODES.map(|mode| chain(&pool, slot, mode, 12, &mut Proposals::new(1)).0);
    assert_eq!(drafted[0], drafted[2]);
    assert_eq!(drafted[0], drafted[4]);
    assert_ne!(drafted[0], drafted[1], "greedily");
    assert_ne!(drafted[0], drafted[3], "of a block");
    assert_eq!(pool.sequence(slot).unwrap().history().ids(), [1], "nothing has changed");
}

#[test]
fn what_cannot_be_drafted_is_refused() {
    let mut pool = pool(1);
    let a = pool.admit(params(0, 1), &[1]).unwrap();
    let b = pool.admit(params(MIROSTAT, 1), &[1]).unwrap();
    let data = row(1);
    let logits = Logits::new(&data, 1, VOCAB).unwrap();
    let none = BatchOptions::default();
    let refused = |slots: &[Slot], paths: Paths<'_>, options: &BatchOptions<'_>| {
        let out = &mut Proposals::new(1);
        pool.draft(logits, slots, &paths, VerifyMode::Coupled, options, out).unwrap_err().to_string()
    };
    let path = |counts, ids| Paths { counts, ids };
    let long = [3; 64];
    for (message, slots, paths) in [
        ("slots has length 2, but must have one per row, 1", &[a, a][..], Paths::default()),
        ("paths.counts has length 2, but must have one per row, 1, or 0", &[a], path(&[1, 1], &[1, 1])),
        ("paths.ids has length 1, but must have 2, the sum of the counts", &[a], path(&[2], &[1])),
        ("paths.ids is 900, but must be an id in 0..900", &[a], path(&[2], &[1, 900])),
        ("paths.ids is -1, but must be an id in 0..900", &[a], path(&[1], &[-1])),
        ("the length of a path is 64, but must be in 0..64", &[a], path(&[64], &long)),
        ("slot is 7, but must be an admitted slot", &[7], Paths::default()),
        ("mirostat cannot be combined with drafts", &[b], Paths::default()),
    ] {
        let error = refused(slots, paths, &none);
        assert!(error.starts_with(message), "{error}");
    }
    let forced = BatchOptions { forced: &[Some(900)], ..none };
    assert!(refused(&[a], Paths::default(), &forced).starts_with("forced is 900"));
}

#[test]
fn a_row_has_no_more_siblings_than_a_verification_takes() {
    let mut pool = Pool::new(PoolConfig::new(VOCAB)).unwrap();
    let slot = pool.admit(SamplingParams { seed: Some(3), ..Default::default() }, &[1]).unwrap();
    let data = row(1);
    let logits = Logits::new(&data, 1, VOCAB).unwrap();
    for (siblings, is_refused) in [(64, false), (65, true), (1 << 31, true), (usize::MAX, true)] {
        let mut out = Proposals::new(siblings);
        let (paths, options) = (Paths::default(), BatchOptions::default());
        let drafted = pool.draft(logits, &[slot], &paths, VerifyMode::Coupled, &options, &mut out);
        assert_eq!(drafted.is_err(), is_refused, "{siblings}");
        if let Err(error) = drafted {
            assert_eq!(error.to_string(), format!("siblings is {siblings}, but must be in 0..=64"));
        }
    }
}

#[test]
fn routes_without_siblings_say_so() {
    let config = PoolConfig { route: PROBABILITIES, ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::new(config).unwrap();
    let slot = pool.admit(SamplingParams { seed: Some(3), top_p: 0.8, ..Default::default() }, &[1]).unwrap();
    let data = row(1);
    let logits = Logits::new(&data, 1, VOCAB).unwrap();
    let draft = |mode, out: &mut Proposals| {
        pool.draft(logits, &[slot], &Paths::default(), mode, &BatchOptions::default(), out)
    };
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
