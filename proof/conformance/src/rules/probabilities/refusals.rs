//! The parameters that rows of probabilities refuse, and the ones that they take (P2).

use gumball_spec::{Dry, DynamicTemperature, SamplingParams};

use crate::case::{CallerEdit, Case};
use crate::rules::Check;

rules!(refusal_rules:
    P2 a_temperature_other_than_0_and_1_is_refused,
    P2 what_speaks_of_logits_is_refused,
    P2 what_is_switched_off_is_not_refused,
    P2 a_hook_is_refused,
    P2 bans_and_bitmask_apply,
    P2 temperature_last_changes_nothing,
);

fn plain() -> SamplingParams {
    SamplingParams::default()
}

/// Holds a case to be refused with a text that begins so.
fn refuses(check: &Check<'_>, case: &Case, text: &str) {
    match check.attempt(case) {
        Err(error) if error.to_string().starts_with(text) => {}
        answer => check.fail(case, format_args!("answers {answer:?}, not an error {text:?},")),
    }
}

fn of(params: SamplingParams) -> Case {
    Case::of_probabilities(&[0.5, 0.25, 0.25], params).after(&[0], &[1])
}

fn a_temperature_other_than_0_and_1_is_refused(check: &Check<'_>) {
    for t in [0.7, 1.000_000_1, 2.0, 1e-20] {
        let text = format!("temperature is {t}, but must be 0 (greedy) or 1 for probabilities");
        refuses(check, &of(SamplingParams { temperature: t, ..plain() }), &text);
    }
    for t in [0.0, 1e-31] {
        check.draws(&of(SamplingParams { temperature: t, ..plain() }), 0);
    }
}

fn what_speaks_of_logits_is_refused(check: &Check<'_>) {
    let dry = Dry { multiplier: 0.8, ..Dry::default() };
    let dynamic_temperature = Some(DynamicTemperature::new(0.5, 1.5));
    for (name, params) in [
        ("dynamic_temperature", SamplingParams { dynamic_temperature, ..plain() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 1.1, ..plain() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: 0.1, ..plain() }),
        ("presence_penalty", SamplingParams { presence_penalty: -0.1, ..plain() }),
        ("dry", SamplingParams { dry, ..plain() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(0, f32::NEG_INFINITY), (1, 0.0)], ..plain() }),
        ("p_less", SamplingParams { p_less: true, ..plain() }),
        ("top_n_sigma", SamplingParams { top_n_sigma: 1.0, ..plain() }),
    ] {
        let case = of(params);
        refuses(check, &case, &format!("{name} cannot be combined with probabilities: it speaks of logits"));
        check.sees(&Case { kind: gumball_spec::Kind::Logits, ..case });
    }
}

fn what_is_switched_off_is_not_refused(check: &Check<'_>) {
    let params = SamplingParams { top_n_sigma: 0.0, repetition_penalty: 1.0, ..plain() };
    check.keeps(&of(params), &[0, 1, 2]);
}

fn a_hook_is_refused(check: &Check<'_>) {
    let case = Case { hook: Some(CallerEdit::Reverse), ..of(plain()) };
    refuses(check, &case, "hook cannot be combined with probabilities");
}

fn bans_and_bitmask_apply(check: &Check<'_>) {
    let banned = |params: SamplingParams| of(params);
    check.keeps(&banned(SamplingParams { banned_ids: vec![0], ..plain() }), &[1, 2]);
    check.keeps(&banned(SamplingParams { allowed_ids: Some(vec![2]), ..plain() }), &[2]);
    check.keeps(&banned(SamplingParams { logit_bias: vec![(1, f32::NEG_INFINITY)], ..plain() }), &[0, 2]);
    check.keeps(&banned(SamplingParams { bad_words: vec![vec![0, 1, 2]], ..plain() }), &[0, 1]);
    check.keeps(&banned(SamplingParams { no_repeat_ngram: 1, ..plain() }), &[2]);
    check.keeps(&banned(SamplingParams { min_tokens: 5, stop_ids: vec![0, 7], ..plain() }), &[1, 2]);
    check.keeps(&Case { mask: Some(vec![0b110]), ..of(plain()) }, &[1, 2]);
    check.keeps(&Case { mask: Some(vec![]), ..of(plain()) }, &[]);
    // The mass is the mass of the tokens that are left.
    let params = SamplingParams { banned_ids: vec![0], top_p: 0.5, ..plain() };
    check.keeps(&of(params), &[1]);
}

fn temperature_last_changes_nothing(check: &Check<'_>) {
    let params = SamplingParams { top_p: 0.6, ..plain() };
    let kept = check.kept(&of(params.clone()));
    check.keeps(&of(SamplingParams { temperature_last: true, ..params }), &kept);
}
