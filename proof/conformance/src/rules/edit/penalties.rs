//! Penalties and biases (E1, E2, E5 to E7).
//!
//! An edited logit is read off the kept order: between two untouched tokens of the expected value, one
//! with a lower and one with a higher id, it must come exactly in the middle.

use gumball_spec::{SamplingParams, Scope, Status};

use crate::case::{CallerEdit, Case};
use crate::rules::Check;

rules!(penalty_rules:
    E1 a_logit_at_minus_infinity_is_never_changed,
    E1 an_infinite_result_becomes_the_largest_finite_logit,
    E1 a_result_of_minus_zero_becomes_zero,
    E2 repetition_divides_positive_logits_and_multiplies_others,
    E2 repetition_acts_once_per_distinct_id,
    E2 repetition_counts_the_scope_it_is_told,
    E2 frequency_rounds_the_product_before_the_difference,
    E2 frequency_and_presence_count_the_scope_they_are_told,
    E2 a_window_counts_the_last_tokens_of_each_scope,
    E2 a_window_counts_back_over_long_histories,
    E2 presence_needs_an_occurrence,
    E2 negative_penalties_raise,
    E2 bias_is_added_and_minus_infinity_bans,
    E2 edits_come_in_their_order,
    E2 a_bias_that_comes_first_is_penalised_with_its_logit,
    E5 ids_outside_the_vocabulary_edit_nothing,
    E6 prompt_and_output_are_one_history,
    E6 bans_have_no_window,
    E7 the_hook_sees_the_row_after_the_bias_and_before_the_bans,
    E7 the_hook_reads_what_the_edits_before_it_left,
    E7 what_the_hook_leaves_is_read_as_input_is,
    E2 edits_in_f32_are_never_rounded_back_to_the_rows_type,
);

fn neutral() -> SamplingParams {
    SamplingParams::default()
}

/// Holds what edits make of a logit: token 1 has it, tokens 0 and 2 have the expected result.
fn makes(check: &Check<'_>, z: f32, expected: f32, case: impl Fn(Case) -> Case) {
    let made = case(Case::of(&[expected, z, expected], neutral()));
    check.keeps(&made, if expected == f32::NEG_INFINITY { &[] } else { &[0, 1, 2] });
}

/// Sets parameters and an output.
fn with(params: SamplingParams, output: &[u32]) -> impl Fn(Case) -> Case {
    move |case| Case { params: params.clone(), ..case }.after(&[], output)
}

fn a_logit_at_minus_infinity_is_never_changed(check: &Check<'_>) {
    let params = SamplingParams {
        repetition_penalty: 1.5,
        frequency_penalty: -2.0,
        presence_penalty: -1.0,
        logit_bias: vec![(0, 1e30), (1, 1e30)],
        ..neutral()
    };
    check.keeps(&Case::of(&[f32::NEG_INFINITY, f32::NAN, 0.0], params.clone()).after(&[0, 1], &[0, 1]), &[2]);
    let none = Case::of(&[f32::NEG_INFINITY, f32::NAN], params).after(&[0, 1], &[0, 1]);
    assert_eq!(check.sees(&none).token, -1);
}

fn an_infinite_result_becomes_the_largest_finite_logit(check: &Check<'_>) {
    let halve = SamplingParams { repetition_penalty: 0.5, ..neutral() };
    makes(check, f32::MAX, f32::MAX, with(halve, &[1]));
    let double = SamplingParams { repetition_penalty: 2.0, ..neutral() };
    makes(check, -f32::MAX, -f32::MAX, with(double.clone(), &[1]));
    // Clamped after each operation: MAX doubled is MAX, and only then is something taken away.
    let then_bias = SamplingParams { logit_bias: vec![(1, f32::MAX)], ..double };
    makes(check, -f32::MAX, 0.0, with(then_bias, &[1]));
    let up = SamplingParams { logit_bias: vec![(1, f32::MAX)], ..neutral() };
    makes(check, f32::MAX, f32::MAX, with(up, &[]));
}

fn a_result_of_minus_zero_becomes_zero(check: &Check<'_>) {
    // -2^-149 halved is a tie, and goes to -0.0.
    let halve = SamplingParams { repetition_penalty: 0.5, ..neutral() };
    makes(check, -f32::from_bits(1), 0.0, with(halve, &[1]));
}

fn repetition_divides_positive_logits_and_multiplies_others(check: &Check<'_>) {
    let by = |repetition_penalty| with(SamplingParams { repetition_penalty, ..neutral() }, &[1]);
    makes(check, 3.0, 2.0, by(1.5));
    makes(check, -2.0, -3.0, by(1.5));
    makes(check, 0.0, 0.0, by(1.5));
    makes(check, 1.0, 2.0, by(0.5));
    makes(check, -1.0, -0.5, by(0.5));
    // Rounded to nearest, and divided rather than multiplied by a reciprocal: 5/3 and 7/49.
    makes(check, 5.0, (5.0f64 / 3.0) as f32, by(3.0));
    makes(check, 7.0, (7.0f64 / 49.0) as f32, by(49.0));
    makes(check, -0.1, (-0.1f32 as f64 * 1.1f32 as f64) as f32, by(1.1));
}

fn repetition_acts_once_per_distinct_id(check: &Check<'_>) {
    let params = SamplingParams { repetition_penalty: 2.0, ..neutral() };
    makes(check, 4.0, 2.0, |case| Case { params: params.clone(), ..case }.after(&[1, 1], &[1, 1, 1]));
}

fn repetition_counts_the_scope_it_is_told(check: &Check<'_>) {
    let halves =
        [(Scope::Prompt, [true, false]), (Scope::Output, [false, true]), (Scope::Both, [true, true])];
    for (repetition_scope, [prompt, output]) in halves {
        let params = SamplingParams { repetition_penalty: 2.0, repetition_scope, ..neutral() };
        let case = |case| Case { params: params.clone(), ..case };
        makes(check, 4.0, if prompt { 2.0 } else { 4.0 }, |c| case(c).after(&[1], &[]));
        makes(check, 4.0, if output { 2.0 } else { 4.0 }, |c| case(c).after(&[], &[1]));
    }
    assert_eq!(neutral().repetition_scope, Scope::Both);
}

fn frequency_rounds_the_product_before_the_difference(check: &Check<'_>) {
    // RN(3 * 0.1) is the f32 0.3; fused, 7.5e-9 would be left.
    makes(check, 0.3, 0.0, with(SamplingParams { frequency_penalty: 0.1, ..neutral() }, &[1, 1, 1]));
    makes(check, 5.0, 3.0, with(SamplingParams { frequency_penalty: 0.5, ..neutral() }, &[1, 1, 1, 1]));
    makes(check, 5.0, 4.5, with(SamplingParams { frequency_penalty: 0.5, ..neutral() }, &[1]));
}

fn frequency_and_presence_count_the_scope_they_are_told(check: &Check<'_>) {
    for (penalty_scope, count) in [(Scope::Prompt, 2.0), (Scope::Output, 3.0), (Scope::Both, 5.0)] {
        let params =
            SamplingParams { frequency_penalty: 1.0, presence_penalty: 0.5, penalty_scope, ..neutral() };
        let case = |case: Case| Case { params: params.clone(), ..case }.after(&[1, 1], &[1, 1, 1]);
        makes(check, 9.0, 8.5 - count, case);
    }
    assert_eq!(neutral().penalty_scope, Scope::Output);
}

fn a_window_counts_the_last_tokens_of_each_scope(check: &Check<'_>) {
    // How often each scope has token 1 in the last n of 1 1, 9 1 7; 9 and 7 are no ids.
    for (window, [prompt, output]) in [
        (0, [2.0, 1.0]),
        (1, [0.0, 0.0]),
        (2, [0.0, 1.0]),
        (3, [0.0, 1.0]),
        (4, [1.0, 1.0]),
        (5, [2.0, 1.0]),
        (6, [2.0, 1.0]),
        (u32::MAX, [2.0, 1.0]),
    ] {
        for (scope, count) in
            [(Scope::Prompt, prompt), (Scope::Output, output), (Scope::Both, prompt + output)]
        {
            let windowed = |params| {
                let params = SamplingParams { penalty_window: window, ..params };
                move |case: Case| Case { params: params.clone(), ..case }.after(&[1, 1], &[9, 1, 7])
            };
            let counted = SamplingParams {
                frequency_penalty: 1.0,
                presence_penalty: 0.5,
                penalty_scope: scope,
                ..neutral()
            };
            let seen = SamplingParams { repetition_penalty: 2.0, repetition_scope: scope, ..neutral() };
            let presence = if count > 0.0 { 0.5 } else { 0.0 };
            makes(check, 9.0, 9.0 - count - presence, windowed(counted.clone()));
            makes(check, 9.0, if count > 0.0 { 4.5 } else { 9.0 }, windowed(seen.clone()));
            // Of both kinds each has its scope, in one window.
            let twice = SamplingParams { repetition_scope: Scope::Output, ..seen };
            let both = SamplingParams {
                repetition_penalty: 2.0,
                repetition_scope: twice.repetition_scope,
                ..counted
            };
            let first = if output > 0.0 { 4.5 } else { 9.0 };
            makes(check, 9.0, first - count - presence, windowed(both));
        }
    }
    assert_eq!(neutral().penalty_window, 0);
}

fn a_window_counts_back_over_long_histories(check: &Check<'_>) {
    let history: Vec<u32> = (0..1300).map(|j| if j % 3 == 0 { 1 } else { 100 + j % 7 }).collect();
    for window in [2, 31, 33, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 1299, 1300, 1301, 65_536] {
        let last = &history[history.len().saturating_sub(window)..];
        let count = last.iter().filter(|id| **id == 1).count() as f32;
        let params = SamplingParams {
            frequency_penalty: 0.5,
            penalty_scope: Scope::Both,
            penalty_window: window as u32,
            ..neutral()
        };
        for prompt in [0, 700, 1300] {
            let (before, after) = history.split_at(prompt);
            makes(check, 900.0, 900.0 - 0.5 * count, |case| {
                Case { params: params.clone(), ..case }.after(before, after)
            });
        }
    }
}

fn presence_needs_an_occurrence(check: &Check<'_>) {
    let params = SamplingParams { presence_penalty: 2.0, ..neutral() };
    makes(check, 3.0, 3.0, with(params.clone(), &[7, 8, 9]));
    makes(check, 3.0, 1.0, with(params.clone(), &[1, 1, 1]));
    makes(check, 3.0, 3.0, |case| Case { params: params.clone(), ..case }.after(&[1], &[]));
}

fn negative_penalties_raise(check: &Check<'_>) {
    let params = SamplingParams { frequency_penalty: -0.5, presence_penalty: -2.0, ..neutral() };
    makes(check, 1.0, 4.0, with(params, &[1, 1]));
}

fn bias_is_added_and_minus_infinity_bans(check: &Check<'_>) {
    let bias = |bias| with(SamplingParams { logit_bias: vec![(1, bias)], ..neutral() }, &[]);
    makes(check, 1.0, 3.5, bias(2.5));
    makes(check, 1.0, 1.0, bias(f32::from_bits((127 - 24) << 23)));
    makes(check, 1.0, -99.0, bias(-100.0));
    let banned = Case::of(&[5.0, 9.0, 5.0], neutral());
    check.keeps(&bias(f32::NEG_INFINITY)(banned), &[0, 2]);
    // However large the logit.
    check.keeps(&bias(f32::NEG_INFINITY)(Case::of(&[0.0, f32::INFINITY, 0.0], neutral())), &[0, 2]);
}

fn edits_come_in_their_order(check: &Check<'_>) {
    // 1 - 2^-25 is a tie and stays 1; once the logit is 0, 2^-25 is seen. So of two differences the small one
    // shows which came first.
    let small = f32::from_bits((127 - 25) << 23);
    let first = SamplingParams { repetition_penalty: 1.5, frequency_penalty: 0.25, ..neutral() };
    makes(check, 3.0, 1.5, with(first, &[1, 1]));
    let frequency_first = SamplingParams { frequency_penalty: small, presence_penalty: 1.0, ..neutral() };
    makes(check, 1.0, 0.0, with(frequency_first, &[1]));
    let dry = gumball_spec::Dry { multiplier: 1.0, allowed_length: 1, ..Default::default() };
    let presence_first = SamplingParams { presence_penalty: small, dry, ..neutral() };
    // The history repeats 9 after which came 1: DRY takes 1.
    makes(check, 1.0, 0.0, with(presence_first, &[9, 1, 9]));
    let dry = gumball_spec::Dry { multiplier: small, allowed_length: 1, ..Default::default() };
    let dry_first = SamplingParams { dry, logit_bias: vec![(1, -1.0)], ..neutral() };
    makes(check, 1.0, 0.0, with(dry_first, &[9, 1, 9]));
}

fn a_bias_that_comes_first_is_penalised_with_its_logit(check: &Check<'_>) {
    let bias_first = |params| SamplingParams { bias_first: true, ..params };
    let biased = |bias| SamplingParams { logit_bias: vec![(1, bias)], ..neutral() };
    let doubled = |bias| bias_first(SamplingParams { repetition_penalty: 2.0, ..biased(bias) });
    makes(check, 1.0, 1.5, with(doubled(2.0), &[1]));
    makes(check, 1.0, -4.0, with(doubled(-3.0), &[1]));
    // An id without an occurrence, beside ids with some, and without any penalty.
    makes(check, 1.0, 3.0, with(doubled(2.0), &[]));
    makes(check, 1.0, 3.0, with(bias_first(biased(2.0)), &[1]));
    // Clamped between the two: the largest finite logit is halved.
    makes(check, f32::MAX, f32::MAX / 2.0, with(doubled(f32::MAX), &[1]));
    // 2^-25 is lost beside 1, and seen beside 0.
    let small = f32::from_bits((127 - 25) << 23);
    let counted = SamplingParams { frequency_penalty: small, ..biased(-1.0) };
    makes(check, 1.0, -small, with(bias_first(counted.clone()), &[1]));
    makes(check, 1.0, 0.0, with(counted, &[1]));
    let dry = gumball_spec::Dry { multiplier: small, allowed_length: 1, ..Default::default() };
    makes(check, 1.0, -small, with(bias_first(SamplingParams { dry, ..biased(-1.0) }), &[9, 1, 9]));
    let banned = Case::of(&[5.0, 9.0, 5.0], neutral());
    check.keeps(&with(doubled(f32::NEG_INFINITY), &[1])(banned), &[0, 2]);
    // Of several biases some are of penalised ids.
    let several = SamplingParams { logit_bias: vec![(2, 1.0), (0, 3.0), (1, 2.0)], ..doubled(0.0) };
    check.keeps(&Case::of(&[0.0, 2.0, 0.0], several).after(&[0], &[1]), &[1, 0, 2]);
}

fn ids_outside_the_vocabulary_edit_nothing(check: &Check<'_>) {
    let params = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 1.0,
        presence_penalty: 1.0,
        dry: gumball_spec::Dry { multiplier: 1.0, allowed_length: 1, ..Default::default() },
        no_repeat_ngram: 1,
        stop_ids: vec![3, 4_000_000_000],
        min_tokens: 100,
        bad_words: vec![vec![3], vec![u32::MAX], vec![u32::MAX, 3]],
        ..neutral()
    };
    let odd = [3, u32::MAX, 4_000_000_000, u32::MAX];
    let case = Case::of(&[1.0, 2.0, 1.0], params).after(&odd, &odd);
    check.keeps(&case, &[1, 0, 2]);
}

fn prompt_and_output_are_one_history(check: &Check<'_>) {
    // The bigram 7 1 lies across the border in one case, and in the prompt or the output in others.
    let params = SamplingParams { no_repeat_ngram: 2, ..neutral() };
    for (prompt, output) in [(&[7][..], &[1, 7][..]), (&[7, 1, 7], &[]), (&[], &[7, 1, 7]), (&[7, 1], &[7])] {
        check.keeps(&Case::of(&[0.0, 9.0, 0.0], params.clone()).after(prompt, output), &[0, 2]);
    }
    let params = SamplingParams { repetition_penalty: 2.0, frequency_penalty: 1.0, ..neutral() };
    makes(check, 8.0, 3.0, |case| Case { params: params.clone(), ..case }.after(&[1], &[1]));
}

fn bans_have_no_window(check: &Check<'_>) {
    let dry = gumball_spec::Dry { multiplier: 1.0, allowed_length: 1, window: 2, ..Default::default() };
    let params = SamplingParams {
        presence_penalty: 1.0,
        penalty_window: 1,
        dry,
        no_repeat_ngram: 3,
        bad_words: vec![vec![9, 8, 7, 2]],
        ..neutral()
    };
    // 8 7 0 stood there before, and 9 8 7 2 is a bad word; 1 came before both windows.
    let case = Case::of(&[9.0, 3.0, 9.0, 3.0], params);
    check.keeps(&case.after(&[1, 8, 7, 0], &[9, 8, 7]), &[1, 3]);
}

fn the_hook_sees_the_row_after_the_bias_and_before_the_bans(check: &Check<'_>) {
    let params = SamplingParams {
        logit_bias: vec![(1, 2.0), (2, f32::NEG_INFINITY)],
        banned_ids: vec![3],
        ..neutral()
    };
    // Adding after the bias: 1 + 2 + 4. Banned ids stay banned, even if the hook writes them.
    let row = [7.0, 1.0, 7.0, 7.0, 7.0];
    let mut case = Case::of(&row, params);
    case.hook = Some(CallerEdit::Write(3, 100.0));
    check.keeps(&case, &[0, 4, 1]);
    case.hook = Some(CallerEdit::Write(2, 100.0));
    check.keeps(&case, &[0, 4, 1]);
    case.hook = Some(CallerEdit::Write(1, 7.0));
    check.keeps(&case, &[0, 1, 4]);
    // The large number swallows the bias if that comes first, and not if it comes last.
    let mut case = Case::of(&[0.0, 0.0, 0.0], SamplingParams { logit_bias: vec![(0, 1.0)], ..neutral() });
    case.hook = Some(CallerEdit::AddToMultiples(1, -134_217_728.0));
    check.keeps(&case, &[0, 1, 2]);
}

fn the_hook_reads_what_the_edits_before_it_left(check: &Check<'_>) {
    // Token 3 gets what the hook reads; token 2 and 4 are the probes around it.
    let reads = |from, row: [f32; 5], params: SamplingParams, kept: &[u32]| {
        let hook = Some(CallerEdit::Copy(from, 3));
        check.keeps(&Case { hook, ..Case::of(&row, params) }.after(&[], &[1]), kept);
    };
    let penalised = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 1.0,
        logit_bias: vec![(1, 0.5), (0, f32::NEG_INFINITY)],
        ..neutral()
    };
    // 6 / 2 - 1 + 0.5.
    reads(1, [0.0, 6.0, 2.5, 0.0, 2.5], penalised.clone(), &[1, 2, 3, 4]);
    // A ban by bias shows as the smallest finite logit; it is a ban of that id alone.
    reads(0, [0.0, 6.0, -f32::MAX, 0.0, -f32::MAX], penalised, &[1, 2, 3, 4]);
    // Bans come later, and the input was cleaned before.
    let banned = SamplingParams { banned_ids: vec![0], ..neutral() };
    reads(0, [7.0, 8.0, 7.0, 0.0, 7.0], banned, &[1, 2, 3, 4]);
    reads(0, [f32::INFINITY, 8.0, f32::MAX, 0.0, f32::MAX], neutral(), &[0, 2, 3, 4, 1]);
    reads(0, [f32::NAN, 8.0, 0.0, 0.0, 0.0], neutral(), &[1, 2, 4]);
    let mut case = Case::of(&[1.0, 2.0, 3.0, f32::NAN], neutral());
    case.hook = Some(CallerEdit::Reverse);
    check.keeps(&case, &[1, 2, 3]);
}

fn what_the_hook_leaves_is_read_as_input_is(check: &Check<'_>) {
    let mut case = Case::of(&[1.0, 2.0, 3.0], neutral());
    case.hook = Some(CallerEdit::Write(2, f32::NAN));
    check.keeps(&case, &[1, 0]);
    assert_eq!(check.sees(&case).status, Status::NAN);
    case.hook = Some(CallerEdit::Write(0, f32::INFINITY));
    check.keeps(&case, &[0, 2, 1]);
    assert_eq!(check.sees(&case).status, Status::INF);
    case.hook = Some(CallerEdit::Write(0, -0.0));
    case.logits = crate::Logits::new(crate::case::Dtype::F32, &[1.0, 0.0, -0.0]);
    check.keeps(&case, &[0, 1, 2]);
    // A hook can revive a token that came at -inf.
    let mut case = Case::of(&[f32::NEG_INFINITY, 2.0], neutral());
    case.hook = Some(CallerEdit::Write(0, 5.0));
    check.keeps(&case, &[0, 1]);
}

fn edits_in_f32_are_never_rounded_back_to_the_rows_type(check: &Check<'_>) {
    // 1 + 2^-12 is between two bf16 and between two f16 values.
    let params = SamplingParams { logit_bias: vec![(1, 1.0 / 4096.0)], ..neutral() };
    for dtype in crate::case::Dtype::ALL {
        check.keeps(&Case::new(crate::Logits::new(dtype, &[1.0, 1.0, 1.0]), params.clone()), &[1, 0, 2]);
    }
}
