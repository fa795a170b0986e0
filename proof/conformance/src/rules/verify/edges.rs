//! Drafts at the edges of the rules: a share that rounds to 0, a row of which nothing is left, a stop id
//! among the drafts (S3 to S7).

use gumball_spec::num::{Tag, philox4x32_10};
use gumball_spec::verify::by_probabilities::{Judgement, Trial};
use gumball_spec::verify::{DraftChain, DraftTree};
use gumball_spec::{NONE, SamplingParams, Status};

use crate::case::{Case, Dtype, Logits};
use crate::drafted::Drafted;
use crate::reference;
use crate::rules::Check;

rules!(edge_rules:
    S3 a_draft_that_is_a_stop_id_is_emitted_and_not_accepted,
    S3 a_forced_stop_id_ends_the_walk_below_min_tokens_too,
    S4 the_drafters_row_is_spoken_of_where_the_residual_is_0_too,
    S5 the_drafters_row_is_spoken_of_behind_any_refusal,
    S5 odd_numbers_of_the_drafter_show_in_no_status_of_a_pool,
    S5 a_child_whose_share_of_what_is_left_rounds_to_0_is_passed_over,
    S5 where_q_is_used_up_children_are_passed_over,
    S5 a_refusal_that_leaves_nothing_of_p_takes_from_q_all_the_same,
    S7 where_nothing_is_left_the_row_is_drawn_from_by_the_tags_of_a_residual,
);

const INF_AND_NAN: Status = Status(Status::INF.0 | Status::NAN.0);

/// A row of six ids of which one has all the probability.
fn sure(id: usize) -> Logits {
    let mut row = [0.0; 6];
    row[id] = 200.0;
    Logits::new(Dtype::F32, &row)
}

/// Siblings at a root, with four ids; the rows after the siblings do not matter.
fn siblings<'a>(drafts: &'a [i32], q: &'a [f32], p: &'a [f32], seed: u64) -> Trial<'a> {
    const ROOT: [i32; 4] = [-1; 4];
    let tree = DraftTree { drafts, parents: Some(&ROOT[..drafts.len()]) };
    Trial { tree, draft_probs: Some(q), target_probs: p, vocab: 4, seed, position: 3, draw: 0 }
}

/// Word 0 of a counter at the position of the siblings, as a share of 2^32.
fn coin(seed: u64, index: u32, tag: Tag) -> f64 {
    f64::from(philox4x32_10(seed, [index, 3, tag as u32, 0])[0]) / 2f64.powi(32)
}

fn a_draft_that_is_a_stop_id_is_emitted_and_not_accepted(check: &Check<'_>) {
    // Every rule emits 3 from row 0, which ends the walk. Backends check that `accepted` is the number of
    // rows after row 0.
    let root = Case::new(sure(3), SamplingParams { stop_ids: vec![3], ..Default::default() }).at(7, 3);
    let drafted = Drafted::chain(root, [(3, sure(1)), (1, sure(4))]);
    check.walks_to(&drafted, &[0], &[3]);
    for judgement in [Judgement::Rejection, Judgement::Block, Judgement::Threshold { single: 0.5, acc: 0.5 }]
    {
        check.walks_to(&drafted.clone().judged(judgement, None), &[0], &[3]);
    }
}

fn a_forced_stop_id_ends_the_walk_below_min_tokens_too(check: &Check<'_>) {
    let params = SamplingParams { stop_ids: vec![3], min_tokens: 9, ..Default::default() };
    let root = Case { forced: Some(3), ..Case::new(sure(1), params).at(7, 3) };
    let drafted = Drafted::chain(root, [(3, sure(1)), (1, sure(4))]);
    check.walks_to(&drafted, &[0], &[3]);
    check.walks_to(&drafted.judged(Judgement::Rejection, None), &[0], &[3]);
}

fn the_drafters_row_is_spoken_of_where_the_residual_is_0_too(check: &Check<'_>) {
    let chain = DraftChain {
        drafts: &[0],
        draft_probs: &[1.0, f32::INFINITY, f32::NAN],
        target_probs: &[0.0, 0.5, 0.0, 1.0, 0.0, 0.0],
        vocab: 3,
        seed: 7,
        position: 3,
        draw: 0,
    };
    let (tokens, verified) = check.verifies(&chain);
    assert_eq!((&tokens[..], verified.status), (&[1, NONE][..], INF_AND_NAN));
}

fn the_drafters_row_is_spoken_of_behind_any_refusal(check: &Check<'_>) {
    let (q, p) = ([1.0, f32::INFINITY, f32::NAN, 0.0].repeat(2), [0.0, 0.5, 0.0, 0.0].repeat(2));
    let seen = check.judges(&siblings(&[0], &q, &p, 7), Judgement::Rejection).expect("valid");
    assert_eq!((seen.rows, seen.tokens, seen.status), (vec![0], vec![1], INF_AND_NAN));
    // A child that is passed over is no refusal.
    let seen = check.judges(&siblings(&[3], &q, &p, 7), Judgement::Rejection).expect("valid");
    assert_eq!((seen.rows, seen.tokens, seen.status), (vec![0], vec![1], Status::default()));
}

fn odd_numbers_of_the_drafter_show_in_no_status_of_a_pool(check: &Check<'_>) {
    let drafted = Drafted::chain(Case::new(sure(3), SamplingParams::default()).at(7, 3), [(0, sure(1))]);
    let probs = [1.0, f32::NAN, f32::INFINITY, 0.0, -1.0, 0.0].repeat(2);
    for judgement in [Judgement::Rejection, Judgement::Block] {
        let walked = check.walks(&drafted.clone().judged(judgement, Some(probs.clone())));
        let seen: Vec<_> = walked.iter().map(|(row, seen)| (*row, seen.token, seen.status)).collect();
        assert_eq!(seen, [(0, 3, Status::default())], "{judgement:?}");
    }
}

fn a_child_whose_share_of_what_is_left_rounds_to_0_is_passed_over(check: &Check<'_>) {
    // Draft 0 is refused, which leaves q with 0, 4, q_2, 0. A quarter of the least float is 0, of seven times
    // it 2.
    let p = [0.0, 0.0, 0.5, 0.5].repeat(3);
    for (least, rows) in [(1, &[0][..]), (7, &[0, 2])] {
        let q = [4.0, 4.0, f32::from_bits(least), 0.0].repeat(3);
        for seed in 0..20 {
            let seen = check.judges(&siblings(&[0, 2], &q, &p, seed), Judgement::Rejection).expect("valid");
            assert_eq!(seen.rows, rows, "q_2 of {least}");
            assert!(seen.tokens[0] >= 2);
        }
    }
}

fn where_q_is_used_up_children_are_passed_over(check: &Check<'_>) {
    // Draft 0 is refused, which leaves q with nothing; 1, which is sure, would be accepted by any comparison.
    let (q, p) = ([1.0, 0.0, 0.0, 0.0].repeat(4), [0.0, 1.0, 0.0, 0.0].repeat(4));
    let seen = check.judges(&siblings(&[0, 1, 0], &q, &p, 7), Judgement::Rejection).expect("valid");
    assert_eq!((seen.rows, seen.tokens[0]), (vec![0], 1));
}

fn a_refusal_that_leaves_nothing_of_p_takes_from_q_all_the_same(check: &Check<'_>) {
    // Draft 0 is refused, and q has more of everything, so p stays. Then q is 0, 0.75, 0.5, 0.5 with a sum of
    // 1.75: draft 1 is accepted with probability 0.25 / (0.75 / 1.75). Once that is refused, q has nothing of
    // it left.
    let (q, p) = ([1.0, 0.75, 0.5, 0.5].repeat(4), [0.0, 0.25, 0.0, 0.25].repeat(4));
    for seed in 0..200 {
        let seen = check.judges(&siblings(&[0, 1, 1], &q, &p, seed), Judgement::Rejection).expect("valid");
        let is_accepted = coin(seed, 1, Tag::Accept) * (0.75 / 1.75) < 0.25;
        assert_eq!(seen.rows, if is_accepted { vec![0, 2] } else { vec![0] }, "seed {seed}");
        assert!([1, 3].contains(&seen.tokens[0]), "seed {seed}");
    }
}

fn where_nothing_is_left_the_row_is_drawn_from_by_the_tags_of_a_residual(check: &Check<'_>) {
    // The row sums to a half, so a coin above it refuses both drafts, which are all that the row has.
    let p = [0.25, 0.25, 0.0, 0.0].repeat(3);
    let thresholds = Judgement::Threshold { single: 1.0, acc: 1.0 };
    let (mut refused, mut otherwise) = (0, 0);
    for seed in 0..100 {
        let trial = Trial { draft_probs: None, ..siblings(&[0, 1], &[], &p, seed) };
        let seen = check.judges(&trial, thresholds).expect("valid");
        let coin = coin(seed, 0, Tag::Threshold);
        if coin < 0.5 {
            assert_eq!(seen.rows, [0, if coin < 0.25 { 1 } else { 2 }], "seed {seed}");
            continue;
        }
        let first = |[tile, token]: [Tag; 2]| {
            let at = |id| reference::arrival_by([tile as u32, token as u32], seed, 3, 0, id);
            i32::from(at(1) < at(0))
        };
        assert_eq!((seen.rows, seen.tokens), (vec![0], vec![first([Tag::ResidualTile, Tag::ResidualToken])]));
        refused += 1;
        otherwise +=
            i32::from(first([Tag::Tile, Tag::Token]) != first([Tag::ResidualTile, Tag::ResidualToken]));
    }
    assert!(refused > 30 && otherwise > 5, "{refused} refused, {otherwise} of them other than plainly");
}
