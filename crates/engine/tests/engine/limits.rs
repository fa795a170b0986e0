//! Sizes that callers name: what lies outside a range is refused when it is named, and memory that the system
//! refuses is an error.

use gumball_engine::{
    Batch, DraftTreeCounts, DraftTrees, Draws, Error, HostDraftTrees, Judgement, Operators, Outputs, PADDING,
    Place, Pool, PoolConfig, Rows, SamplingParams, Widths,
};

use crate::cases::{VOCAB, row, step};

/// Returns why a pool is not made.
fn refused(config: PoolConfig) -> String {
    Pool::new(config).map(drop).unwrap_err().to_string()
}

#[test]
fn a_size_outside_its_range_is_refused_when_the_pool_is_made() {
    let config = || PoolConfig::new(VOCAB);
    let wide = |top_n, ids| PoolConfig { widths: Widths { top_n, ids }, ..config() };
    let threads = |threads| PoolConfig { place: Place::threads(threads), ..config() };
    for (config, message) in [
        (PoolConfig { slots: 1 << 31, ..config() }, "slots is 2147483648, but must be in 1..2^31"),
        (threads(0), "threads is 0, but must be in 1..=1024"),
        (threads(1025), "threads is 1025, but must be in 1..=1024"),
        (threads(1 << 40), "threads is 1099511627776, but must be in 1..=1024"),
        (wide((1 << 20) + 1, 0), "top_n is 1048577, but must be in 0..=2^20"),
        (wide(i32::MAX as usize, 0), "top_n is 2147483647, but must be in 0..=2^20"),
        (wide(usize::MAX, 0), "top_n is 18446744073709551615, but must be in 0..=2^20"),
        (wide(0, 1 << 62), "ids is 4611686018427387904, but must be in 0..=2^20"),
    ] {
        assert_eq!(refused(config), message);
    }
    let error = Operators::new(None, Some(20_000)).unwrap_err();
    assert_eq!(error.to_string(), "threads is 20000, but must be in 1..=1024");
    let mut widest = Pool::new(wide(1 << 20, 1 << 20)).unwrap();
    let slot = widest.admit(SamplingParams { temperature: 0.0, ..Default::default() }, &[]).unwrap();
    assert_eq!(step(&mut widest, &row(1), &[slot]).top_ids(0).len(), 1 << 20);
}

#[test]
fn more_slots_than_there_is_memory_for_are_unavailable_or_never_touched() {
    let most = i32::MAX as usize;
    match Pool::new(PoolConfig { slots: most, place: Place::threads(1), ..PoolConfig::new(VOCAB) }) {
        Err(error) => {
            assert!(error.to_string().starts_with("no memory for slots: the system refused"), "{error}")
        }
        // A system that lends memory until it is touched: then unused slots cost nothing.
        Ok(mut pool) => {
            assert_eq!((pool.capacity(), pool.len()), (most, 0));
            assert_eq!(pool.admit(SamplingParams::default(), &[]), Ok(0));
        }
    }
}

#[test]
fn slots_are_used_in_the_same_order_as_ever() {
    let mut pool =
        Pool::new(PoolConfig { slots: 4, place: Place::threads(1), ..PoolConfig::new(VOCAB) }).unwrap();
    let admit = |pool: &mut Pool| pool.admit(SamplingParams::default(), &[]);
    assert_eq!([(); 3].map(|()| admit(&mut pool).unwrap()), [0, 1, 2]);
    pool.release(0).unwrap();
    pool.release(1).unwrap();
    assert_eq!([(); 3].map(|()| admit(&mut pool).unwrap()), [1, 0, 3]);
    assert!(admit(&mut pool).is_err());
    assert_eq!((pool.len(), pool.capacity()), (4, 4));
    // A slot that was never used is vacant as any other.
    let mut fresh =
        Pool::new(PoolConfig { slots: 4, place: Place::threads(1), ..PoolConfig::new(VOCAB) }).unwrap();
    assert!(fresh.release(3).is_err() && fresh.sequence(0).is_err() && fresh.is_empty());
}

#[test]
fn outputs_that_fit_no_memory_are_refused_and_nothing_moves() {
    let widths = Widths { top_n: 1 << 20, ids: 0 };
    let mut pool = Pool::new(PoolConfig { widths, place: Place::threads(1), ..PoolConfig::new(2) }).unwrap();
    let slot = pool.admit(SamplingParams::default(), &[]).unwrap();
    // Two megawords a row: 2^48 bytes in all, more than any process can address.
    let count = 1 << 25;
    let (mut slots, lines) = (vec![PADDING; count], vec![0; count]);
    slots[0] = slot;
    let logits = Rows::logits(&[1.0f32, 2.0], 1, 2).unwrap();
    let mut out = Outputs::new();
    let error = pool.step(logits, &Batch { row_indices: &lines, ..Batch::of(&slots) }, &mut out).unwrap_err();
    assert!(matches!(error, Error::Unavailable { resource: "memory for outputs", .. }), "{error}");
    assert_eq!((out.layout().rows, pool.sequence(slot).unwrap().position()), (0, 0));
    let one = Rows::logits(&[1.0f32, 2.0], 1, 2).unwrap();
    pool.step(one, &Batch::of(&[slot]), &mut out).unwrap();
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
}

#[test]
fn chains_whose_products_wrap_are_refused() {
    let operators = Operators::new(None, Some(1)).unwrap();
    let chains = |trees, drafts, vocab| HostDraftTrees {
        trees,
        drafts,
        vocab,
        draft_probs: Some(&[]),
        draft_token_ids: &[],
        parents: None,
        target_probs: &[],
    };
    let verify = |trees: HostDraftTrees<'_>| {
        let trees = DraftTrees::Host { trees, tokens: &mut [], rows: None };
        operators.judge(trees, Judgement::Rejection, &Draws::new(1, 0), DraftTreeCounts::default())
    };
    assert_eq!(verify(chains(0, usize::MAX, 5)), Ok(()));
    assert!(matches!(verify(chains(1 << 63, 1, 2)), Err(Error::Length { .. })));
    assert!(matches!(verify(chains(1, usize::MAX, 2)), Err(Error::Length { .. })));
    let error = verify(chains(1 << 40, 1, 0)).unwrap_err();
    assert_eq!(error.to_string(), "vocab is 0, but must be in 1..=2^20");
}
