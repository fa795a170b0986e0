//! The filters that can drop the first token: typical-p and XTC (F3, F4).

use gumball_spec::{Filter, FilterOrder, NONE, SamplingParams};

use crate::case::{Case, UNIT};
use crate::reference::{philox, xtc_acts};
use crate::rules::Check;

rules!(interval_rules:
    F3 typical_p_keeps_the_tokens_nearest_to_the_entropy,
    F3 typical_p_reaches_its_target_exactly,
    F3 typical_p_of_zero_keeps_its_pivot,
    F3 typical_p_keeps_ties_of_distance_together,
    F3 typical_p_of_zero_ends_among_equal_tokens,
    F3 typical_p_can_drop_the_first_token,
    F3 typical_p_of_equal_logits_keeps_all,
    F4 xtc_drops_all_top_choices_but_the_last,
    F4 xtc_on_its_threshold_counts_as_a_top_choice,
    F4 xtc_on_a_tie_keeps_the_higher_id,
    F4 xtc_spares_a_row_of_one_top_choice_or_none,
    F4 xtc_acts_as_its_coin_falls,
    F4 xtc_compares_its_word_exactly,
    F4 xtc_leaves_at_least_one_token,
    F4 xtc_does_nothing_where_it_would_drop_an_exempt_id,
    F4 xtc_looks_for_exempt_ids_in_its_given_set_after_the_edits,
    F4 xtc_finds_an_exempt_id_among_many_equal_tokens,
);

/// Probabilities 1/2, 1/4, 1/8, 1/8 of 1, 2, 3, 3 bits; the entropy is 1.75.
const DYADIC: [f32; 4] = [0.0, -1.0, -2.0, -2.0];

fn typical(p: f32) -> SamplingParams {
    SamplingParams { temperature: UNIT, typical_p: p, ..Default::default() }
}

// Distances of DYADIC: 0.75, 0.25, 1.25, 1.25.

fn typical_p_keeps_the_tokens_nearest_to_the_entropy(check: &Check<'_>) {
    check.keeps(&Case::of(&DYADIC, typical(0.2)), &[1]);
    check.keeps(&Case::of(&DYADIC, typical(0.3)), &[0, 1]);
    check.keeps(&Case::of(&DYADIC, typical(0.7)), &[0, 1]);
    check.keeps(&Case::of(&DYADIC, typical(0.8)), &[0, 1, 2, 3]);
}

fn typical_p_reaches_its_target_exactly(check: &Check<'_>) {
    let above = |p: f32| f32::from_bits(p.to_bits() + 1);
    check.keeps(&Case::of(&DYADIC, typical(0.25)), &[1]);
    check.keeps(&Case::of(&DYADIC, typical(above(0.25))), &[0, 1]);
    check.keeps(&Case::of(&DYADIC, typical(0.75)), &[0, 1]);
    check.keeps(&Case::of(&DYADIC, typical(above(0.75))), &[0, 1, 2, 3]);
}

fn typical_p_of_zero_keeps_its_pivot(check: &Check<'_>) {
    check.keeps(&Case::of(&DYADIC, typical(0.0)), &[1]);
    check.keeps(&Case::of(&[5.0], typical(0.0)), &[0]);
}

/// All tokens may be exactly as far from the entropy as the entropy is from itself: not at all.
fn typical_p_of_zero_ends_among_equal_tokens(check: &Check<'_>) {
    for count in [1, 2, 8, 9, 256, 1000] {
        for (i, value) in [f32::MAX, 0.25, 1e-20].into_iter().enumerate() {
            let params = SamplingParams { typical_p: 0.0, ..Default::default() };
            check.sees(
                &Case::of_probabilities(&vec![value; count], params.clone()).at(count as u64, i as u32),
            );
            check.sees(&Case::of(&vec![value.ln(); count], params).at(count as u64, i as u32));
        }
    }
}

fn typical_p_keeps_ties_of_distance_together(check: &Check<'_>) {
    // A mass of 0.8 is reached with one of the two last tokens; both are as far from the entropy.
    check.keeps(&Case::of(&DYADIC, typical(0.8)), &[0, 1, 2, 3]);
    // Unlike a tie of top-p, which keeps the lower ids.
    let flat = SamplingParams { top_p: 0.5, typical_p: 1.0, ..typical(1.0) };
    check.keeps(&Case::of(&[0.0; 4], typical(0.5)), &[0, 1, 2, 3]);
    check.keeps(&Case::of(&[0.0; 4], flat), &[0, 1]);
}

fn typical_p_can_drop_the_first_token(check: &Check<'_>) {
    // 0.4 and twelve of 0.05: 1.32 and 4.32 bits beside an entropy of 3.12.
    let mut row = vec![-3.0; 600];
    row[13..].fill(f32::NEG_INFINITY);
    row[5] = 0.0;
    let others: Vec<u32> = (0..13).filter(|id| *id != 5).collect();
    check.keeps(&Case::of(&row, typical(0.59)), &others);
    let all: Vec<u32> = [5].into_iter().chain(others).collect();
    check.keeps(&Case::of(&row, typical(0.61)), &all);
}

fn typical_p_of_equal_logits_keeps_all(check: &Check<'_>) {
    for vocab in [1, 255, 256, 257, 1030] {
        check.keeps_first(&Case::of(&vec![2.0; vocab], typical(0.01)), vocab as u32);
    }
}

fn xtc(probability: f32, threshold: f32) -> SamplingParams {
    SamplingParams {
        temperature: UNIT,
        xtc_probability: probability,
        xtc_threshold: threshold,
        ..Default::default()
    }
}

fn xtc_drops_all_top_choices_but_the_last(check: &Check<'_>) {
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.2)), &[1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.1)), &[3]);
}

fn xtc_on_its_threshold_counts_as_a_top_choice(check: &Check<'_>) {
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.25)), &[1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.250_01)), &[0, 1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.125)), &[3]);
}

fn xtc_on_a_tie_keeps_the_higher_id(check: &Check<'_>) {
    check.keeps(&Case::of(&[1.0, 0.0, 1.0, 0.0, 1.0], xtc(1.0, 0.2)), &[4, 1, 3]);
}

fn xtc_spares_a_row_of_one_top_choice_or_none(check: &Check<'_>) {
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.3)), &[0, 1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 0.6)), &[0, 1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, xtc(1.0, 1.0)), &[0, 1, 2, 3]);
}

fn xtc_acts_as_its_coin_falls(check: &Check<'_>) {
    let mut acted = 0;
    for position in 0..400 {
        for (seed, draw) in [(7, 0), (7, 1), (0xFFFF_FFFF_0000_0001, 3)] {
            let case = Case { draw, ..Case::of(&DYADIC, xtc(0.5, 0.2)).at(seed, position) };
            let acts = xtc_acts(0.5, seed, position, draw);
            acted += u32::from(acts);
            check.keeps(&case, if acts { &[1, 2, 3] } else { &[0, 1, 2, 3] });
        }
    }
    // 600 of 1200; 100 away is 5.8 deviations.
    assert!((500..700).contains(&acted), "{acted}");
}

fn xtc_compares_its_word_exactly(check: &Check<'_>) {
    // A word below 2^24, so that word 2^-32 and its successor are f32 values.
    let word = |position| philox(9, [0, position, 2, 0])[0];
    let position = (0..).find(|position| word(*position) < 1 << 22).expect("there is one");
    let probability = |word: u32| word as f32 * f32::from_bits((127 - 32) << 23);
    let kept = |word, ids: &[u32]| {
        check.keeps(&Case::of(&DYADIC, xtc(probability(word), 0.2)).at(9, position), ids);
    };
    kept(word(position), &[0, 1, 2, 3]);
    kept(word(position) + 1, &[1, 2, 3]);
    // Half a word more is rounded up, to a word more.
    let half = (2 * word(position) + 1) as f32 * f32::from_bits((127 - 33) << 23);
    check.keeps(&Case::of(&DYADIC, xtc(half, 0.2)).at(9, position), &[1, 2, 3]);
}

fn xtc_leaves_at_least_one_token(check: &Check<'_>) {
    for vocab in [1u32, 256, 257] {
        check.keeps(&Case::of(&vec![0.0; vocab as usize], xtc(1.0, 1e-9)), &[vocab - 1]);
    }
    let none = Case::of(&[f32::NEG_INFINITY; 3], xtc(1.0, 1e-9));
    assert_eq!(check.sees(&none).token, NONE);
}

fn exempt(threshold: f32, ids: &[u32]) -> SamplingParams {
    SamplingParams { xtc_exempt_ids: ids.to_vec(), ..xtc(1.0, threshold) }
}

fn xtc_does_nothing_where_it_would_drop_an_exempt_id(check: &Check<'_>) {
    // At 0.2 the tokens 0 and 1 are top choices, at 0.1 all four.
    for (threshold, ids, kept) in [
        (0.2, &[0][..], &[0, 1, 2, 3][..]),
        (0.2, &[3, 2, 3, 0, 0], &[0, 1, 2, 3]),
        (0.2, &[1], &[1, 2, 3]),
        (0.2, &[1, 2, 3], &[1, 2, 3]),
        (0.1, &[0], &[0, 1, 2, 3]),
        (0.1, &[1], &[0, 1, 2, 3]),
        (0.1, &[2], &[0, 1, 2, 3]),
        (0.1, &[3], &[3]),
        (0.3, &[0], &[0, 1, 2, 3]),
    ] {
        check.keeps(&Case::of(&DYADIC, exempt(threshold, ids)), kept);
    }
    // Many ids, of which the last is dropped.
    let many: Vec<u32> = (0..2000).map(|i| if i < 1999 { 3 } else { 0 }).collect();
    check.keeps(&Case::of(&DYADIC, exempt(0.1, &many)), &[0, 1, 2, 3]);
    check.keeps(&Case::of(&DYADIC, exempt(0.1, &many[..1999])), &[3]);
    // Where the coin says no, and at temperature 0, they change nothing.
    check.keeps(
        &Case::of(&DYADIC, SamplingParams { xtc_probability: 0.0, ..exempt(0.1, &[0]) }),
        &[0, 1, 2, 3],
    );
    check.keeps(&Case::of(&DYADIC, SamplingParams { temperature: 0.0, ..exempt(0.1, &[0]) }), &[0]);
}

fn xtc_looks_for_exempt_ids_in_its_given_set_after_the_edits(check: &Check<'_>) {
    // Top-k leaves 0 and 1, of 2/3 and 1/3.
    for (ids, kept) in [(&[0][..], &[0, 1][..]), (&[1, 2, 3], &[1])] {
        check.keeps(&Case::of(&DYADIC, SamplingParams { top_k: 2, ..exempt(0.3, ids) }), kept);
    }
    // Behind XTC, top-k gets all tokens or the last one; jointly, no token is left without the exempt one.
    let last = FilterOrder::List(vec![Filter::Xtc, Filter::TopK]);
    for (order, ids, kept) in [
        (last.clone(), &[2][..], &[0, 1][..]),
        (last, &[3], &[3]),
        (FilterOrder::Joint, &[2], &[0, 1]),
        (FilterOrder::Joint, &[3], &[0]),
    ] {
        check.keeps(&Case::of(&DYADIC, SamplingParams { top_k: 2, order, ..exempt(0.1, ids) }), kept);
    }
    // A banned id is no token, and a bias may make one of an exempt id.
    let banned = SamplingParams { banned_ids: vec![0], ..exempt(0.2, &[0]) };
    check.keeps(&Case::of(&DYADIC, banned), &[3]);
    for (ids, kept) in [(&[3][..], &[3, 0, 1, 2][..]), (&[1], &[1, 2])] {
        let raised = SamplingParams { logit_bias: vec![(3, 4.0)], ..exempt(0.2, ids) };
        check.keeps(&Case::of(&[0.0, 0.0, -9.0, -3.0], raised), kept);
    }
}

fn xtc_finds_an_exempt_id_among_many_equal_tokens(check: &Check<'_>) {
    let row: Vec<f32> = (0..3000).map(|id| if id % 3 == 0 { 0.0 } else { -9.0 }).collect();
    let mut order: Vec<u32> = (0..3000).collect();
    order.sort_by_key(|id| id % 3 != 0);
    for (id, dropped) in [(0, 0), (3, 0), (1500, 0), (2994, 0), (2997, 999), (1, 999), (2999, 999)] {
        check.keeps(&Case::of(&row, exempt(1e-4, &[id])), &order[dropped..]);
    }
}
