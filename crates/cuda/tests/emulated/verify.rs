//! The errors of verification, after which nothing has changed, and its columns. `conformance` tests its
//! results.

use std::sync::Arc;

use gumball_cuda::{
    Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, DraftTrees, Draws, IntType,
    Judge, Judged, PerRow, Runtime,
};
use gumball_spec::verify::DraftChain;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Result};

use crate::runtime;

const CHAINS: usize = 3;
const DRAFTS: usize = 2;
const VOCAB: usize = 300;

/// The shapes of the arguments: rows of the drafter and the target, drafts, tokens, and the lengths of
/// columns.
#[derive(Clone, Copy)]
struct Shapes {
    draft: [usize; 3],
    target: [usize; 3],
    drafts: [usize; 2],
    tokens: [usize; 2],
    seeds: usize,
    statuses: usize,
}

const RIGHT: Shapes = Shapes {
    draft: [CHAINS, DRAFTS, VOCAB],
    target: [CHAINS, DRAFTS + 1, VOCAB],
    drafts: [CHAINS, DRAFTS],
    tokens: [CHAINS, DRAFTS + 1],
    seeds: CHAINS,
    statuses: CHAINS,
};

fn probability(place: usize) -> f32 {
    (place * 7919 % 1009) as f32 / 1009.0
}

/// Verifies chains of the given shapes. Returns the result, and the tokens' memory, which holds 7s before.
fn verify(runtime: &Arc<dyn Runtime>, shapes: Shapes) -> (Result<()>, Vec<i32>) {
    let memory = |values: &[f32]| Buffer::of(runtime, values).expect("memory");
    let probabilities = memory(&(0..4 * CHAINS * DRAFTS * VOCAB).map(probability).collect::<Vec<_>>());
    let drafts = Buffer::of(runtime, &[5i32; 4 * CHAINS * DRAFTS]).expect("memory");
    let mut tokens = Buffer::of(runtime, &[7i32; 4 * CHAINS * DRAFTS]).expect("memory");
    let seeds = Buffer::of(runtime, &(0..shapes.seeds as i64).collect::<Vec<_>>()).expect("memory");
    let statuses = Buffer::of(runtime, &vec![7u32; shapes.statuses]).expect("memory");
    let rows =
        |shape: [usize; 3]| DraftTreeRows::of(&probabilities, 0, shape, [shape[1] * shape[2], shape[2]]);
    let asked = || -> Result<()> {
        let [chains, width] = shapes.drafts;
        let asked = DraftTrees {
            draft_probs: Some(rows(shapes.draft)?),
            draft_token_ids: DeviceIntMatrix::of(&drafts, IntType::I32, 0, chains, width, width)?,
            parents: None,
            target_probs: rows(shapes.target)?,
            draws: Draws { seeds: PerRow::Rows(DeviceSlice::of(&seeds, IntType::I64)), ..Draws::new(0, 9) },
        };
        let [chains, width] = shapes.tokens;
        let place = DeviceIntMatrixMut::of(&mut tokens, IntType::I32, 0, chains, width, width)?;
        let place = Judged { statuses: Some(DeviceSlice::of(&statuses, IntType::U32)), ..Judged::new(place) };
        Judge::new(Arc::clone(runtime))?.enqueue(&asked, Judgement::Rejection, &place)
    };
    let mut asked = asked;
    let done = asked();
    let mut after = vec![0; 4 * CHAINS * DRAFTS];
    tokens.read(0, &mut after).expect("memory");
    (done, after)
}

#[test]
fn mistakes_are_named_and_nothing_is_changed() {
    let Some(runtime) = runtime() else { return };
    for (shapes, says) in [
        (
            Shapes { draft: [CHAINS, DRAFTS + 2, VOCAB], ..RIGHT },
            "draft_probs is [3, 4, 300], but must be [3, 2 or 3, 300], as target_probs",
        ),
        (
            Shapes { draft: [CHAINS, DRAFTS, VOCAB - 1], ..RIGHT },
            "draft_probs is [3, 2, 299], but must be [3, 2 or 3, 300], as target_probs",
        ),
        (
            Shapes { draft: [CHAINS - 1, DRAFTS, VOCAB], ..RIGHT },
            "draft_probs is [2, 2, 300], but must be [3, 2 or 3, 300], as target_probs",
        ),
        (Shapes { target: [CHAINS, 0, VOCAB], ..RIGHT }, "target_probs has length 0"),
        (Shapes { drafts: [CHAINS, DRAFTS - 1], ..RIGHT }, "draft_token_ids has length 1"),
        (Shapes { drafts: [CHAINS + 1, DRAFTS], ..RIGHT }, "draft_token_ids has length 4"),
        (Shapes { tokens: [CHAINS, DRAFTS], ..RIGHT }, "tokens has length 2"),
        (
            Shapes { seeds: CHAINS - 1, ..RIGHT },
            "seeds has length 2, but must have one for each of 3 trees, or for all",
        ),
        (
            Shapes { statuses: CHAINS + 1, ..RIGHT },
            "statuses has length 4, but must have one for each of 3 trees",
        ),
        (Shapes { target: [CHAINS, DRAFTS + 1, 0], ..RIGHT }, "vocab is 0, but must be in 1..=2^20"),
        (Shapes { target: [40 * CHAINS, DRAFTS + 1, VOCAB], ..RIGHT }, "probabilities has length 7200"),
    ] {
        let (done, after) = verify(&runtime, shapes);
        match done {
            Err(error @ (Error::OutOfRange { .. } | Error::Length { .. })) => {
                let text = error.to_string();
                assert!(text.starts_with(says), "{text}");
            }
            other => panic!("{says}: {other:?}"),
        }
        assert!(after.iter().all(|token| *token == 7), "{says}");
    }
}

#[test]
fn rows_that_overlap_are_refused() {
    let Some(runtime) = runtime() else { return };
    let buffer = Buffer::zeroed(&runtime, 1 << 16).expect("memory");
    for (shape, strides) in [
        ([1, 2, 300], [600, 299]),
        ([2, 2, 300], [599, 300]),
        ([2, 1, 300], [299, 300]),
        ([1, 1, 1 << 21], [0, 0]),
    ] {
        let refused = DraftTreeRows::of(&buffer, 0, shape, strides);
        assert!(
            matches!(refused, Err(Error::OutOfRange { .. } | Error::Length { .. })),
            "{shape:?} {strides:?}"
        );
    }
    // Without rows any strides are valid.
    DraftTreeRows::of(&buffer, 0, [2, 0, 300], [0, 0]).expect("no rows");
    assert!(DeviceIntMatrix::of(&buffer, IntType::I64, 0, 2, 3, 2).is_err());
}

#[test]
fn a_chains_own_number_is_its_draw_index() {
    let Some(runtime) = runtime() else { return };
    let (done, after) = verify(&runtime, RIGHT);
    done.expect("right");
    let all: Vec<f32> = (0..4 * CHAINS * DRAFTS * VOCAB).map(probability).collect();
    for chain in 0..CHAINS {
        let wanted = DraftChain {
            drafts: &[5; DRAFTS],
            draft_probs: &all[chain * DRAFTS * VOCAB..][..DRAFTS * VOCAB],
            target_probs: &all[chain * (DRAFTS + 1) * VOCAB..][..(DRAFTS + 1) * VOCAB],
            vocab: VOCAB,
            seed: chain as u64,
            position: 9,
            draw: chain as u32,
        };
        let (tokens, _) = wanted.verify().expect("right");
        assert_eq!(after[chain * (DRAFTS + 1)..][..DRAFTS + 1], tokens);
    }
}

#[test]
fn high_words_of_offsets_move_the_seed_and_a_chain_without_a_last_token_ends_with_0() {
    let Some(runtime) = runtime() else { return };
    let mut all: Vec<f32> = (0..2 * VOCAB).map(probability).collect();
    let memory = |values: &[f32]| Buffer::of(&runtime, values).expect("memory");
    let seeds = Buffer::of(&runtime, &[3u64]).expect("memory");
    let judge = Judge::new(Arc::clone(&runtime)).expect("memory");
    for (offset, empty) in [(9i64, false), (9 + (5 << 32), false), (-2, false), (9, true)] {
        if empty {
            all[VOCAB..].fill(0.0);
        }
        // A draft outside the vocabulary ends its chain.
        let drafts = Buffer::of(&runtime, &[-1i32]).expect("memory");
        let mut tokens = Buffer::of(&runtime, &[7i32; 2]).expect("memory");
        let positions = Buffer::of(&runtime, &[offset]).expect("memory");
        let (q, p) = (memory(&all[..VOCAB]), memory(&all.repeat(2)[VOCAB..][..2 * VOCAB]));
        let asked = DraftTrees {
            draft_probs: Some(DraftTreeRows::of(&q, 0, [1, 1, VOCAB], [VOCAB, VOCAB]).expect("rows")),
            draft_token_ids: DeviceIntMatrix::of(&drafts, IntType::I32, 0, 1, 1, 1).expect("ids"),
            parents: None,
            target_probs: DraftTreeRows::of(&p, 0, [1, 2, VOCAB], [2 * VOCAB, VOCAB]).expect("rows"),
            draws: Draws {
                seeds: PerRow::Rows(DeviceSlice::of(&seeds, IntType::U64)),
                positions: PerRow::Rows(DeviceSlice::of(&positions, IntType::I64)),
                draws: None,
                offsets: true,
                zero_for_none: true,
            },
        };
        let place = DeviceIntMatrixMut::of(&mut tokens, IntType::I32, 0, 1, 2, 2).expect("place");
        judge.enqueue(&asked, Judgement::Rejection, &Judged::new(place)).expect("right");
        let mut after = [7i32; 2];
        tokens.read(0, &mut after).expect("memory");
        let moved = ((offset >> 32) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let target = all.repeat(2)[VOCAB..][..2 * VOCAB].to_vec();
        let chain = DraftChain {
            drafts: &[-1],
            draft_probs: &all[..VOCAB],
            target_probs: &target,
            vocab: VOCAB,
            seed: 3u64.wrapping_add(moved),
            position: offset as u32,
            draw: 0,
        };
        let (wanted, _) = chain.verify().expect("right");
        assert_eq!(after.map(|token| token.max(0)).to_vec(), [wanted[0].max(0), 0], "offset {offset}");
        assert_eq!((after[0] == 0, after[1]), (empty || wanted[0] == 0, -1), "offset {offset}");
    }
}

#[test]
fn a_captured_verification_reads_what_is_there_when_it_is_replayed() {
    let Some(runtime) = runtime() else { return };
    let all: Vec<f32> = (0..(2 * DRAFTS + 1) * VOCAB).map(probability).collect();
    let (q, p) = all.split_at(DRAFTS * VOCAB);
    let [draft_probs, target_probs] = [q, p].map(|values| Buffer::of(&runtime, values).expect("memory"));
    let mut drafts = Buffer::of(&runtime, &[0i64; DRAFTS]).expect("memory");
    let mut positions = Buffer::of(&runtime, &[0u32]).expect("memory");
    let mut tokens = Buffer::of(&runtime, &[0i64; DRAFTS + 1]).expect("memory");
    let accepted = Buffer::of(&runtime, &[0u32]).expect("memory");
    let judge = Judge::new(Arc::clone(&runtime)).expect("memory");
    let captured = runtime
        .capture(&mut || {
            let asked = DraftTrees {
                draft_probs: Some(
                    DraftTreeRows::of(&draft_probs, 0, [1, DRAFTS, VOCAB], [0, VOCAB]).expect("rows"),
                ),
                draft_token_ids: DeviceIntMatrix::of(&drafts, IntType::I64, 0, 1, DRAFTS, DRAFTS)
                    .expect("ids"),
                parents: None,
                target_probs: DraftTreeRows::of(&target_probs, 0, [1, DRAFTS + 1, VOCAB], [0, VOCAB])
                    .expect("rows"),
                draws: Draws {
                    positions: PerRow::Rows(DeviceSlice::of(&positions, IntType::U32)),
                    draws: Some(PerRow::All(2)),
                    ..Draws::new(7, 0)
                },
            };
            let place = DeviceIntMatrixMut::of(&mut tokens, IntType::I64, 0, 1, DRAFTS + 1, DRAFTS + 1)
                .expect("place");
            let place = Judged {
                accepted: Some(DeviceSlice::of(&accepted, IntType::U32)),
                adds: true,
                ..Judged::new(place)
            };
            judge.enqueue(&asked, Judgement::Rejection, &place).expect("right");
            Ok(())
        })
        .expect("a capture");
    let mut sum = 0;
    for position in 0..20 {
        let ids = [position as i32 * 13 % VOCAB as i32, position as i32 * 29 % VOCAB as i32];
        drafts.write(0, &ids.map(i64::from)).expect("memory");
        positions.write(0, &[position]).expect("memory");
        // SAFETY: the buffers and the verification's memory are alive.
        unsafe { captured.replay() }.expect("a replay");
        let chain = DraftChain {
            drafts: &ids,
            draft_probs: q,
            target_probs: p,
            vocab: VOCAB,
            seed: 7,
            position,
            draw: 2,
        };
        let (wanted, verified) = chain.verify().expect("right");
        sum += verified.accepted;
        let (mut seen, mut count) = ([0i64; DRAFTS + 1], [0u32]);
        tokens.read(0, &mut seen).expect("memory");
        accepted.read(0, &mut count).expect("memory");
        assert_eq!((seen.map(|token| token as i32).to_vec(), count), (wanted, [sum]), "position {position}");
    }
}
