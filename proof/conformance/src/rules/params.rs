//! Parameters: what lies outside its range is refused by name, before anything is drawn.

use gumball_spec::params::Field;
use gumball_spec::{
    Dry, DynamicTemperature, Error, Filter, FilterOrder, LogprobMode, LogprobModes, LogprobsParams, Loops,
    Mark, Mirostat, Parameter, Parameters, SamplingParams, Scope, Section, Watermark,
};

use crate::case::Case;
use crate::generate::add_keys;
use crate::observed::{Observed, differences};
use crate::rows;
use crate::rules::Check;

rules!(params_rules:
    L2 a_requested_id_outside_the_vocabulary_is_refused,
    F6 mirostat_refuses_filters_beside_it,
    M2 a_filter_set_but_not_listed_is_refused,
    M2 a_filter_by_which_no_row_loses_a_token_is_set_too,
    M2 a_repeated_filter_is_refused,
    E2 numbers_outside_their_range_are_refused_by_name,
    E4 ids_outside_the_vocabulary_are_refused_by_name,
    E2 the_ends_of_each_range_are_accepted,
    E2 counts_that_no_text_reaches_are_one,
    N9 a_forced_token_outside_the_vocabulary_is_refused,
    F6 a_limit_that_no_update_reaches_is_refused,
    N7 an_empty_or_too_long_row_is_refused,
);

fn base() -> SamplingParams {
    SamplingParams::default()
}

/// Holds that a backend refuses parameters and names the first word of the message.
fn refuses(check: &Check<'_>, params: SamplingParams, parameter: &str) {
    let case = Case::of(&[0.0, 1.0, 2.0, 3.0], params);
    match check.attempt(&case) {
        Err(error) if error.to_string().starts_with(&format!("{parameter} ")) => {}
        other => check.fail(&case, format_args!("answers {other:?}, and does not refuse {parameter},")),
    }
}

fn accepts(check: &Check<'_>, params: SamplingParams) {
    check.sees(&Case::of(&[0.0, 1.0, 2.0, 3.0], params));
}

fn a_requested_id_outside_the_vocabulary_is_refused(check: &Check<'_>) {
    for id in [4, u32::MAX] {
        let logprobs = Some(LogprobsParams { ids: vec![0, id], ..Default::default() });
        refuses(check, SamplingParams { logprobs, ..base() }, "logprobs.ids");
    }
    let mode = LogprobModes { first: LogprobMode::Edited, second: Some(LogprobMode::Edited) };
    let logprobs = Some(LogprobsParams { mode, ..Default::default() });
    refuses(check, SamplingParams { logprobs, ..base() }, "logprobs.mode");
    let logprobs = Some(LogprobsParams { top_n: (1 << 20) + 1, ..Default::default() });
    refuses(check, SamplingParams { logprobs, ..base() }, "logprobs.top_n");
}

fn mirostat_refuses_filters_beside_it(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
    let with = |params: SamplingParams| SamplingParams { mirostat, ..params };
    refuses(check, with(SamplingParams { top_k: 2, ..base() }), "top_k");
    refuses(check, with(SamplingParams { top_p: 0.5, ..base() }), "top_p");
    refuses(check, with(SamplingParams { xtc_probability: 0.5, ..base() }), "xtc");
    refuses(check, with(SamplingParams { top_n_sigma: 1.0, ..base() }), "top_n_sigma");
    refuses(check, with(SamplingParams { p_less: true, ..base() }), "p_less");
    accepts(check, with(SamplingParams { top_k: 4, top_p: 1.0, ..base() }));
}

fn a_filter_set_but_not_listed_is_refused(check: &Check<'_>) {
    let listed = |filters: &[Filter], params| {
        let order = FilterOrder::List(filters.to_vec());
        SamplingParams { order, ..params }
    };
    let params = SamplingParams { top_k: 2, min_p: 0.1, ..base() };
    refuses(check, listed(&[Filter::TopK], params.clone()), "min_p");
    refuses(check, listed(&[], params.clone()), "top_k");
    accepts(check, listed(&[Filter::MinP, Filter::Xtc, Filter::TopK], params));
    accepts(check, listed(&[], SamplingParams { top_k: 4, ..base() }));
}

fn a_filter_by_which_no_row_loses_a_token_is_set_too(check: &Check<'_>) {
    let unlisted = FilterOrder::List(Vec::new());
    let refused = |row: &[f32], params: SamplingParams, parameter: &'static str, by: &'static str| {
        let refused = check.attempt(&Case::of(row, params)).unwrap_err();
        let names = |error| matches!(error, Error::Conflict { parameter: a, other: b, .. } if a == parameter && b == by);
        assert!(names(refused.clone()), "{refused}");
    };
    // Two tokens never have more than half of the mass each.
    let xtc = SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.9, ..base() };
    refused(&[0.0; 4], SamplingParams { order: unlisted.clone(), ..xtc.clone() }, "xtc", "order");
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
    refused(&[0.0; 4], SamplingParams { mirostat, ..xtc }, "xtc", "mirostat");
    for (params, parameter) in [
        (SamplingParams { top_p: 0.5, ..base() }, "top_p"),
        (SamplingParams { min_p: 0.5, ..base() }, "min_p"),
        (SamplingParams { p_less: true, ..base() }, "p_less"),
    ] {
        refused(&[0.0], SamplingParams { order: unlisted.clone(), ..params }, parameter, "order");
    }
}

fn a_repeated_filter_is_refused(check: &Check<'_>) {
    let order = FilterOrder::List(vec![Filter::TopK, Filter::TopP, Filter::TopK]);
    refuses(check, SamplingParams { order, ..base() }, "order");
    assert!(matches!("top_k,top_q".parse::<FilterOrder>(), Err(Error::Unknown { .. })));
}

macro_rules! each_refused {
    ($check:ident: $($field:ident in [$($value:expr),*]),* $(,)?) => {
        $($(refuses($check, SamplingParams { $field: $value, ..base() }, stringify!($field));)*)*
    };
}

/// Calls `hold` with parameters of which one number is an end of its range, a neighbour of it, or no number.
fn at_ends(hold: impl Fn(&Parameter, bool, SamplingParams)) {
    fn of_part<T: Parameters>(
        base: SamplingParams,
        part: fn(&mut SamplingParams) -> &mut T,
        hold: impl Fn(&Parameter, bool, SamplingParams),
    ) {
        for parameter in T::TABLE {
            let Some(range) = parameter.range else { continue };
            for value in [false, true].map(|is_whole| range.probes(is_whole)).concat() {
                let mut params = base.clone();
                if part(&mut params).field(parameter.field()).expect("the table names fields").1.set(value) {
                    hold(parameter, range.contains(value), params);
                }
            }
        }
    }
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
    let dynamic_temperature = Some(DynamicTemperature::new(0.0, 2f32.powi(100)));
    of_part(base(), |params| params, &hold);
    of_part(base(), |params| &mut params.dry, &hold);
    of_part(base(), |params| params.logprobs.get_or_insert_default(), &hold);
    of_part(SamplingParams { mirostat, ..base() }, |params| params.mirostat.as_mut().expect("set"), &hold);
    let dynamic = SamplingParams { dynamic_temperature, ..base() };
    of_part(dynamic, |params| params.dynamic_temperature.as_mut().expect("set"), &hold);
}

fn numbers_outside_their_range_are_refused_by_name(check: &Check<'_>) {
    at_ends(|parameter, is_inside, params| {
        if !is_inside {
            refuses(check, params, parameter.name);
        }
    });
    let dynamic_temperature = Some(DynamicTemperature::new(1.0, 0.5));
    refuses(check, SamplingParams { dynamic_temperature, ..base() }, "dynamic_temperature.max");
}

fn ids_outside_the_vocabulary_are_refused_by_name(check: &Check<'_>) {
    each_refused! { check:
        logit_bias in [vec![(4, 1.0)], vec![(1, 1.0), (1, 1.0)], vec![(0, f32::NAN)], vec![(0, f32::INFINITY)]],
        allowed_ids in [Some(vec![0, 4])],
        banned_ids in [vec![u32::MAX]],
        bad_words in [vec![vec![1], vec![]]],
    }
    // History, stop ids, breakers and bad words may name ids that the vocabulary lacks.
    let params = SamplingParams {
        stop_ids: vec![4],
        bad_words: vec![vec![4]],
        dry: Dry { multiplier: 1.0, breakers: vec![4], ..Dry::default() },
        ..base()
    };
    accepts(check, params);
}

fn the_ends_of_each_range_are_accepted(check: &Check<'_>) {
    at_ends(|_, is_inside, params| {
        if is_inside {
            accepts(check, params);
        }
    });
    for temperature in [-0.0, f32::from_bits(1), 2f32.powi(-100)] {
        accepts(check, SamplingParams { temperature, ..base() });
    }
}

/// Holds that all counts beyond the text and the vocabulary do the same, those included that a sum with a
/// length takes beyond 32 bits.
fn counts_that_no_text_reaches_are_one(check: &Check<'_>) {
    fn of_part<T: Parameters>(check: &Check<'_>, base: &Case, part: fn(&mut SamplingParams) -> &mut T) {
        for parameter in T::TABLE {
            let is_count = parameter.range.is_some_and(|range| range.contains(u32::MAX.into()));
            if !is_count || parameter.name == "watermark.key" {
                continue;
            }
            let beyond = [0, 1, 2, 3, 4, 5, 1 << 31].map(|less| i64::from(u32::MAX - less));
            let whole = [1 << 32, (1 << 32) + 1, i64::MAX];
            let mut first: Option<Observed> = None;
            for value in [1 << 20].into_iter().chain(beyond).chain(whole) {
                let mut case = base.clone();
                match part(&mut case.params).field(parameter.field()).expect("the table names fields").1 {
                    Field::Whole(field) => *field = value,
                    Field::Count(field) if value <= u32::MAX.into() => *field = value as u32,
                    _ => continue,
                }
                let seen = check.sees(&case);
                let differs = differences(first.get_or_insert_with(|| seen.clone()), &seen);
                if !differs.is_empty() {
                    check.fail(
                        &case,
                        format_args!("takes {} of {value} for another:\n{differs}", parameter.name),
                    );
                }
            }
        }
    }
    add_keys();
    let all = SamplingParams {
        temperature: 0.7,
        min_p: 0.1,
        repetition_penalty: 1.3,
        frequency_penalty: 0.2,
        dry: Dry { multiplier: 0.8, ..Dry::default() },
        no_repeat_ngram: 3,
        stop_ids: vec![4, 5],
        watermark: Watermark { context: 2, scope: Scope::Both, ..Watermark::default() }.into(),
        ..base()
    };
    let section = Some(Section { close: vec![8], end: vec![6], ..Section::default() });
    let loops = Some(Loops { min_copies: 2, min_tokens: 2, every: 1, end: vec![7], ..Loops::default() });
    let case = Case::of(&rows::model_like(300, 6), all).after(&[1, 2, 9, 7], &[1, 2, 9, 1, 2]);
    of_part(check, &case, |params| params);
    of_part(check, &case, |params| &mut params.dry);
    of_part(check, &case, |params| match &mut params.watermark {
        Mark::Own(watermark) => watermark,
        other => unreachable!("{other:?} was set"),
    });
    let with = |params| Case { params, ..case.clone() };
    let case_of_section = with(SamplingParams { section, ..case.params.clone() });
    of_part(check, &case_of_section, |params| params.section.as_mut().expect("set"));
    let case_of_loops = with(SamplingParams { loops, ..case.params.clone() });
    of_part(check, &case_of_loops, |params| params.loops.as_mut().expect("set"));
}

fn a_forced_token_outside_the_vocabulary_is_refused(check: &Check<'_>) {
    for id in [4, u32::MAX] {
        let case = Case { forced: Some(id), ..Case::of(&[0.0; 4], base()) };
        let error = check.attempt(&case).expect_err("must be refused");
        assert!(error.to_string().starts_with("forced "), "{error}");
    }
}

fn a_limit_that_no_update_reaches_is_refused(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
    let with = |mu| Case { mu, ..Case::of(&[0.0, 1.0], SamplingParams { mirostat, ..base() }) };
    for mu in [f32::NAN, f32::INFINITY] {
        let error = check.attempt(&with(mu)).expect_err("must be refused");
        assert!(error.to_string().starts_with("mu "), "{error}");
    }
    check.sees(&with(f32::MAX));
    // Eta times a surprise may overflow: the limit is then below every surprise, for good.
    let seen = check.sees(&with(f32::NEG_INFINITY));
    assert_eq!((seen.token, seen.mu), (1, f32::NEG_INFINITY));
}

fn an_empty_or_too_long_row_is_refused(check: &Check<'_>) {
    for vocab in [0, (1 << 20) + 1] {
        let case = Case::of(&vec![0.0; vocab], base());
        assert!(matches!(check.attempt(&case), Err(Error::OutOfRange { parameter: "vocab", .. })));
    }
}
