//! Bans (E4), the grammar bitmask, and the status bits of the logits that they allow (E7).

use gumball_spec::{NONE, SamplingParams, Scope, Status};

use crate::case::{Case, Dtype, Logits};
use crate::drafted::Drafted;
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
    E4 an_ngram_lies_whole_in_its_scope,
    E4 an_ngram_lies_whole_in_its_window,
    E4 an_exempt_id_completes_an_ngram_again,
    E6 each_row_of_drafts_has_its_own_ngrams,
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

/// Returns parameters by which n-grams of two ids are not repeated.
fn bigrams(scope: Scope, window: u32, exempt_ids: &[u32]) -> SamplingParams {
    SamplingParams {
        no_repeat_ngram: 2,
        no_repeat_ngram_scope: scope,
        no_repeat_ngram_window: window,
        no_repeat_ngram_exempt_ids: exempt_ids.to_vec(),
        ..neutral()
    }
}

fn an_ngram_lies_whole_in_its_scope(check: &Check<'_>) {
    assert_eq!(neutral().no_repeat_ngram_scope, Scope::Both);
    // 9 0 stands in the prompt, 9 1 across its end, 9 2 in the output.
    let (prompt, output) = ([9, 0, 9], [1, 9, 2, 9]);
    for (scope, kept) in
        [(Scope::Both, &[3, 4][..]), (Scope::Prompt, &[1, 2, 3, 4]), (Scope::Output, &[0, 1, 3, 4])]
    {
        check.keeps(&five(bigrams(scope, 0, &[])).after(&prompt, &output), kept);
    }
    let all = [0, 1, 2, 3, 4];
    check.keeps(&five(bigrams(Scope::Output, 0, &[])).after(&[9, 0, 9], &[]), &all);
    check.keeps(&five(bigrams(Scope::Prompt, 0, &[])).after(&[], &[9, 0, 9]), &all);
    // The ids that it would complete may begin in the other part.
    check.keeps(&five(bigrams(Scope::Prompt, 0, &[])).after(&[9, 0], &[9]), &[1, 2, 3, 4]);
    let long = |scope| SamplingParams { no_repeat_ngram: 3, ..bigrams(scope, 0, &[]) };
    check.keeps(&five(long(Scope::Output)).after(&[8, 9, 1, 8], &[9, 2, 8, 9]), &all);
    check.keeps(&five(long(Scope::Both)).after(&[8, 9, 1, 8], &[9, 2, 8, 9]), &[0, 3, 4]);
    check.keeps(&five(long(Scope::Prompt)).after(&[8, 9, 1, 8], &[9, 2, 8, 9]), &[0, 2, 3, 4]);
    let one = |scope| SamplingParams { no_repeat_ngram: 1, ..bigrams(scope, 0, &[]) };
    check.keeps(&five(one(Scope::Output)).after(&[0, 1], &[3]), &[0, 1, 2, 4]);
    check.keeps(&five(one(Scope::Prompt)).after(&[0, 1], &[3]), &[2, 3, 4]);
}

fn an_ngram_lies_whole_in_its_window(check: &Check<'_>) {
    assert_eq!(neutral().no_repeat_ngram_window, 0);
    let history = [9, 0, 9, 1, 9, 2, 9];
    for (window, kept) in [
        (1, &[0, 1, 2, 3, 4][..]),
        (2, &[0, 1, 2, 3, 4]),
        (3, &[0, 1, 3, 4]),
        (4, &[0, 1, 3, 4]),
        (5, &[0, 3, 4]),
        (6, &[0, 3, 4]),
        (7, &[3, 4]),
        (8, &[3, 4]),
        (u32::MAX, &[3, 4]),
        (0, &[3, 4]),
    ] {
        for prompt_len in [0, 3, 7] {
            let (prompt, output) = history.split_at(prompt_len);
            check.keeps(&five(bigrams(Scope::Both, window, &[])).after(prompt, output), kept);
        }
    }
    // It counts back from the end of the history, whatever the scope.
    check.keeps(&five(bigrams(Scope::Prompt, 6, &[])).after(&history[..4], &history[4..]), &[0, 2, 3, 4]);
    check.keeps(&five(bigrams(Scope::Output, 6, &[])).after(&history[..4], &history[4..]), &[0, 1, 3, 4]);
    check.keeps(&five(bigrams(Scope::Prompt, 3, &[])).after(&history[..4], &history[4..]), &[0, 1, 2, 3, 4]);
    // Beside DRY, which has another window, over more tokens than a block has threads.
    let mut long: Vec<u32> = (0..700).map(|i| 10 + i).collect();
    (long[0], long[1], long[690], long[691], long[699]) = (9, 0, 9, 1, 9);
    for (ngrams, dry, banned) in [(0, 5, &[0, 1][..]), (10, 0, &[1]), (9, 0, &[]), (700, 0, &[0, 1])] {
        let mut params = bigrams(Scope::Both, ngrams, &[]);
        (params.dry.multiplier, params.dry.allowed_length, params.dry.window) = (1e-3, 1, dry);
        let kept: Vec<u32> = check.kept(&five(params).after(&[], &long)).into_iter().collect();
        assert!((0..5).all(|id| kept.contains(&id) != banned.contains(&id)), "{kept:?} without {banned:?}");
    }
}

fn an_exempt_id_completes_an_ngram_again(check: &Check<'_>) {
    let case = |exempt: &[u32]| five(bigrams(Scope::Both, 0, exempt)).after(&[], &[9, 3, 9, 1, 0, 9]);
    check.keeps(&case(&[3]), &[0, 2, 3, 4]);
    check.keeps(&case(&[4, 1, 3, 1]), &[0, 1, 2, 3, 4]);
    // Another rule may ban it.
    let mut banned = case(&[3]);
    banned.params.banned_ids = vec![3];
    check.keeps(&banned, &[0, 2, 4]);
}

fn each_row_of_drafts_has_its_own_ngrams(check: &Check<'_>) {
    // In turn 1 and 2 are likely; after 1 2 1, 2 is banned where the first 2 stands in the window.
    let likely = |id: usize| {
        let mut row = [0.0; 5];
        (row[id], row[4]) = (50.0, 20.0);
        row
    };
    let root =
        |window| Case::of(&likely(1), bigrams(Scope::Output, window, &[])).after(&[1, 2], &[]).at(7, 2);
    let rows = [(1, likely(2)), (2, likely(1)), (1, likely(2)), (2, likely(1))];
    let drafts = |window| {
        let logits = |row: &[f32; 5]| Logits::new(Dtype::F32, row);
        Drafted::chain(root(window), rows.iter().map(|(id, row)| (*id, logits(row))).collect::<Vec<_>>())
    };
    check.walks_to(&drafts(0), &[0, 1, 2, 3], &[1, 2, 1, 4]);
    check.walks_to(&drafts(3), &[0, 1, 2, 3], &[1, 2, 1, 4]);
    check.walks_to(&drafts(2), &[0, 1, 2, 3, 4], &[1, 2, 1, 2, 1]);
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
