//! Bans (E4), the grammar bitmask, and the status bits of the logits that they allow (E7).

use gumball_spec::{NONE, SamplingParams, Status};

use crate::case::Case;
use crate::rules::Check;

rules!(ban_rules:
    E4 allowed_ids_ban_all_others,
    E4 an_empty_allowed_list_bans_all,
    E4 banned_ids_win_over_allowed_ids,
    E4 a_bad_word_bans_the_id_that_would_complete_it,
    E4 a_bad_word_may_begin_in_the_prompt,
    E4 an_ngram_is_not_completed_twice,
    E4 an_ngram_size_of_one_bans_the_whole_history,
    E4 an_ngram_longer_than_the_history_bans_nothing,
    E4 stop_ids_wait_for_min_tokens_of_output,
    E4 a_set_bit_allows_and_a_missing_word_forbids,
    E4 bits_beyond_the_vocabulary_mean_nothing,
    E4 a_mask_that_leaves_one_token_decides_the_draw,
    E4 an_empty_mask_forbids_all,
    E4 mask_and_bans_both_forbid,
    E7 status_reports_only_what_is_allowed,
    E7 an_empty_row_yields_none,
    E7 minus_zero_sets_no_bit,
);

fn neutral() -> SamplingParams {
    SamplingParams::default()
}

/// Returns a case of five equal tokens.
fn five(params: SamplingParams) -> Case {
    Case::of(&[1.0; 5], params)
}

fn allowed_ids_ban_all_others(check: &Check<'_>) {
    check.keeps(&five(SamplingParams { allowed_ids: Some(vec![3, 1, 3]), ..neutral() }), &[1, 3]);
    let greedy = SamplingParams { allowed_ids: Some(vec![2]), temperature: 0.0, ..neutral() };
    check.draws(&Case::of(&[9.0, 8.0, -7.0], greedy), 2);
}

fn an_empty_allowed_list_bans_all(check: &Check<'_>) {
    let case = five(SamplingParams { allowed_ids: Some(vec![]), ..neutral() });
    check.keeps(&case, &[]);
    let seen = check.sees(&case);
    assert_eq!((seen.token, seen.status), (NONE, Status::EMPTY));
}

fn banned_ids_win_over_allowed_ids(check: &Check<'_>) {
    check.keeps(&five(SamplingParams { banned_ids: vec![4, 0, 4], ..neutral() }), &[1, 2, 3]);
    let both = SamplingParams { allowed_ids: Some(vec![0, 1, 2]), banned_ids: vec![1, 3], ..neutral() };
    check.keeps(&five(both), &[0, 2]);
}

fn a_bad_word_bans_the_id_that_would_complete_it(check: &Check<'_>) {
    let words = |words: &[&[u32]]| SamplingParams {
        bad_words: words.iter().map(|word| word.to_vec()).collect(),
        ..neutral()
    };
    check.keeps(&five(words(&[&[2]])), &[0, 1, 3, 4]);
    let params = words(&[&[7, 8, 2], &[8, 3], &[7, 4], &[9, 7, 8, 0]]);
    check.keeps(&five(params.clone()).after(&[], &[7, 8]), &[0, 1, 4]);
    check.keeps(&five(params.clone()).after(&[], &[9, 7, 8]), &[1, 4]);
    check.keeps(&five(params.clone()).after(&[], &[7, 8, 7]), &[0, 1, 2, 3]);
    check.keeps(&five(params).after(&[], &[8, 7]), &[0, 1, 2, 3]);
}

fn a_bad_word_may_begin_in_the_prompt(check: &Check<'_>) {
    let params = SamplingParams { bad_words: vec![vec![7, 8, 2]], ..neutral() };
    for (prompt, output) in [(&[7, 8][..], &[][..]), (&[7], &[8]), (&[], &[7, 8])] {
        check.keeps(&five(params.clone()).after(prompt, output), &[0, 1, 3, 4]);
    }
}

fn an_ngram_is_not_completed_twice(check: &Check<'_>) {
    let size = |no_repeat_ngram| SamplingParams { no_repeat_ngram, ..neutral() };
    // 3 follows 9 in one place, 1 in another.
    check.keeps(&five(size(2)).after(&[], &[9, 3, 9, 1, 0, 9]), &[0, 2, 4]);
    check.keeps(&five(size(3)).after(&[], &[8, 9, 3, 9, 1, 8, 9]), &[0, 1, 2, 4]);
    // The last bigram of the history counts too: after 1 1, 1 would repeat it.
    check.keeps(&five(size(2)).after(&[], &[1, 1]), &[0, 2, 3, 4]);
}

fn an_ngram_size_of_one_bans_the_whole_history(check: &Check<'_>) {
    let params = SamplingParams { no_repeat_ngram: 1, ..neutral() };
    check.keeps(&five(params.clone()).after(&[0, 77], &[3, 3]), &[1, 2, 4]);
    check.keeps(&five(params), &[0, 1, 2, 3, 4]);
}

fn an_ngram_longer_than_the_history_bans_nothing(check: &Check<'_>) {
    for (size, history) in [(3, &[1, 1][..]), (2, &[1]), (u32::MAX, &[1, 1, 1]), (2, &[])] {
        let params = SamplingParams { no_repeat_ngram: size, ..neutral() };
        check.keeps(&five(params).after(&[], history), &[0, 1, 2, 3, 4]);
    }
}

fn stop_ids_wait_for_min_tokens_of_output(check: &Check<'_>) {
    let params = SamplingParams { min_tokens: 2, stop_ids: vec![4, 0, 100], ..neutral() };
    check.keeps(&five(params.clone()).after(&[5, 6, 7], &[]), &[1, 2, 3]);
    check.keeps(&five(params.clone()).after(&[5, 6, 7], &[8]), &[1, 2, 3]);
    check.keeps(&five(params.clone()).after(&[5, 6, 7], &[8, 9]), &[0, 1, 2, 3, 4]);
    check.keeps(&five(SamplingParams { min_tokens: 0, ..params }), &[0, 1, 2, 3, 4]);
}

/// Returns a case of equal tokens with a mask.
fn masked(vocab: usize, mask: &[u32]) -> Case {
    Case { mask: Some(mask.to_vec()), ..Case::of(&vec![0.5; vocab], neutral()) }
}

fn a_set_bit_allows_and_a_missing_word_forbids(check: &Check<'_>) {
    check.keeps(&masked(70, &[1 << 31 | 1, 0b10, 0b100]), &[0, 31, 33, 66]);
    check.keeps(&masked(70, &[1 << 31 | 1]), &[0, 31]);
    check.keeps(&masked(600, &[0, 0, 0, 0, 0, 0, 0, 1 << 31, 1]), &[255, 256]);
    let mask: Vec<u32> = vec![u32::MAX; 16];
    check.keeps(&masked(600, &mask), &(0..512).collect::<Vec<_>>());
}

fn bits_beyond_the_vocabulary_mean_nothing(check: &Check<'_>) {
    check.keeps(&masked(33, &[0, u32::MAX, u32::MAX, u32::MAX]), &[32]);
    for vocab in [1, 31, 32, 33, 255, 256, 257] {
        check.keeps(&masked(vocab, &[u32::MAX; 40]), &(0..vocab as u32).collect::<Vec<_>>());
    }
}

fn a_mask_that_leaves_one_token_decides_the_draw(check: &Check<'_>) {
    for vocab in [1usize, 32, 255, 257, 1030] {
        for id in [0, vocab / 2, vocab - 1] {
            let mut mask = vec![0; vocab.div_ceil(32)];
            mask[id / 32] = 1 << (id % 32);
            let mut case = masked(vocab, &mask);
            check.draws(&case, id as i32);
            case.params.top_p = 0.1;
            case.params.min_p = 0.5;
            case.params.typical_p = 0.2;
            case.params.xtc_probability = 1.0;
            check.keeps(&case, &[id as u32]);
            case.params.temperature = 0.0;
            check.draws(&case, id as i32);
        }
    }
}

fn an_empty_mask_forbids_all(check: &Check<'_>) {
    for mask in [&[][..], &[0, 0]] {
        let seen = check.sees(&masked(40, mask));
        assert_eq!((seen.token, seen.status), (NONE, Status::EMPTY));
    }
}

fn mask_and_bans_both_forbid(check: &Check<'_>) {
    let mut case = masked(5, &[0b01111]);
    case.params.banned_ids = vec![0];
    case.params.allowed_ids = Some(vec![0, 1, 2, 4]);
    case.params.bad_words = vec![vec![2]];
    check.keeps(&case, &[1]);
}

fn status_reports_only_what_is_allowed(check: &Check<'_>) {
    let row = [1.0, f32::NAN, f32::INFINITY, 2.0];
    let status = |case: Case| check.sees(&case).status.0;
    let bits = |bits: &[Status]| bits.iter().map(|bit| bit.0).sum::<u32>();
    assert_eq!(status(Case::of(&row, neutral())), bits(&[Status::NAN, Status::INF]));
    let ban = |ids: &[u32]| SamplingParams { banned_ids: ids.to_vec(), ..neutral() };
    assert_eq!(status(Case::of(&row, ban(&[1]))), bits(&[Status::INF]));
    assert_eq!(status(Case::of(&row, ban(&[2]))), bits(&[Status::NAN]));
    assert_eq!(status(Case::of(&row, ban(&[1, 2]))), 0);
    assert_eq!(status(Case { mask: Some(vec![0b1001]), ..Case::of(&row, neutral()) }), 0);
    assert_eq!(
        status(Case { mask: Some(vec![0b0010]), ..Case::of(&row, neutral()) }),
        bits(&[Status::NAN, Status::EMPTY])
    );
    let bias = SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY), (2, -5.0)], ..neutral() };
    assert_eq!(status(Case::of(&row, bias)), bits(&[Status::INF]));
    // Greedy and filtered rows report the whole row, not what was kept.
    let filtered = SamplingParams { temperature: 0.0, top_k: 1, ..neutral() };
    assert_eq!(status(Case::of(&row, filtered)), bits(&[Status::NAN, Status::INF]));
}

fn an_empty_row_yields_none(check: &Check<'_>) {
    for vocab in [1, 255, 256, 257, 1030] {
        for (z, status) in [(f32::NEG_INFINITY, Status::EMPTY.0), (f32::NAN, Status::EMPTY.0 | Status::NAN.0)]
        {
            for temperature in [0.0, 1.0] {
                let params = SamplingParams { temperature, top_p: 0.5, typical_p: 0.5, ..neutral() };
                let seen = check.sees(&Case::of(&vec![z; vocab], params));
                assert_eq!((seen.token, seen.status.0), (NONE, status), "{vocab} of {z}");
            }
        }
    }
}

fn minus_zero_sets_no_bit(check: &Check<'_>) {
    assert_eq!(check.sees(&Case::of(&[-0.0, 0.0, -0.0], neutral())).status, Status::default());
}
