//! Flags become parameters under the same names, with ranges checked where they always are.

use clap::{CommandFactory, FromArgMatches, Parser};
use gumball_cli::sampling::SamplingArgs;
use gumball_inspect::command::with_signs;
use gumball_spec::{
    Dry, DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobsParams, Loops, Mirostat, Parameter,
    SamplingParams, Scope, Section,
};

use crate::support::{Files, bytes, refuses};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    sampling: SamplingArgs,
}

fn params(flags: &str) -> SamplingParams {
    let words = std::iter::once("gumball").chain(flags.split_whitespace());
    let matches = with_signs(Flags::command()).try_get_matches_from(words).expect("flags");
    Flags::from_arg_matches(&matches).expect("flags").sampling.to_params().expect("parameters")
}

#[test]
fn no_flags_are_the_neutral_parameters() {
    assert_eq!(params(""), SamplingParams::default());
}

#[test]
fn every_knob_has_a_flag() {
    let mut filters = SamplingParams::default();
    let mut flags = String::new();
    for filter in Filter::ALL {
        let Parameter { name, usual, range, .. } = *filter.parameter();
        filters = filters.with_filter(filter, usual);
        let value = if range.is_some() { usual.to_string() } else { String::new() };
        flags += &format!("--{} {value} ", name.replace('_', "-"));
    }
    flags += "--temperature 0.7 --dynamic-temperature 0.5,1.5,2 --xtc-threshold 0.2 --mirostat 5,0.1 --repetition-penalty 1.1 --repetition-scope output \
        --frequency-penalty -0.5 --presence-penalty 0.25 --penalty-scope both --penalty-window 64 --dry-multiplier 0.8 \
        --dry-base 2 --dry-allowed-length 3 --dry-breakers 1,2 --dry-window 9 --no-repeat-ngram 4 --no-repeat-ngram-scope output --no-repeat-ngram-window 90 --no-repeat-ngram-exempt-ids 7 --logit-bias 7=-1.5 \
        --logit-bias 8=2,9=-inf --bias-first --allowed-ids 1-3 --banned-ids 5 --bad-words 1,2 --bad-words 3 \
        --min-tokens 6 --stop-ids 0 --section-open 1 --section-close 2,3 --section-end 4 --section-budget 9 --section-min 2 \
        --loops-min-period 2 --loops-max-period 9 --loops-min-copies 3 --loops-min-tokens 40 --loops-every 8 --loops-close --loops-end 6 --seed 0x2a --logprobs processed --top-logprobs 5 --logprob-ids 4 \
        --order top_p,top_k --temperature-last";
    let expected = SamplingParams {
        temperature: 0.7,
        dynamic_temperature: Some(DynamicTemperature { min: 0.5, max: 1.5, exponent: 2.0 }),
        xtc_threshold: 0.2,
        mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }),
        repetition_penalty: 1.1,
        repetition_scope: Scope::Output,
        frequency_penalty: -0.5,
        presence_penalty: 0.25,
        penalty_scope: Scope::Both,
        penalty_window: 64,
        dry: Dry { multiplier: 0.8, base: 2.0, allowed_length: 3, breakers: vec![1, 2], window: 9 },
        no_repeat_ngram: 4,
        no_repeat_ngram_scope: Scope::Output,
        no_repeat_ngram_window: 90,
        no_repeat_ngram_exempt_ids: vec![7],
        logit_bias: vec![(7, -1.5), (8, 2.0), (9, f32::NEG_INFINITY)],
        bias_first: true,
        allowed_ids: Some(vec![1, 2, 3]),
        banned_ids: vec![5],
        bad_words: vec![vec![1, 2], vec![3]],
        min_tokens: 6,
        stop_ids: vec![0],
        section: Some(Section { open: vec![1], close: vec![2, 3], end: vec![4], budget: 9, min: 2 }),
        loops: Some(Loops {
            min_period: 2,
            max_period: 9,
            min_copies: 3,
            min_tokens: 40,
            every: 8,
            close: true,
            end: vec![6],
        }),
        seed: Some(42),
        logprobs: Some(LogprobsParams { mode: LogprobMode::Processed.into(), top_n: 5, ids: vec![4] }),
        order: FilterOrder::List(vec![Filter::TopP, Filter::TopK]),
        temperature_last: true,
        ..filters
    };
    assert_eq!(params(&flags), expected);
}

#[test]
fn a_file_of_parameters_is_read_and_flags_go_before_it() {
    let files = Files::new();
    let file = files.write("p.json", br#"{"top_p": 0.5, "top_k": 7, "dry": {"multiplier": 1.0}}"#);
    let params = params(&format!("--params {file} --top-k 9"));
    assert_eq!((params.top_p, params.top_k, params.dry.multiplier, params.dry.base), (0.5, 9, 1.0, 1.75));
}

#[test]
fn a_number_of_logprobs_is_how_many_tokens_are_listed() {
    let asked = |flags: &str| params(flags).logprobs.unwrap();
    let listed = |mode: LogprobMode, top_n| LogprobsParams { mode: mode.into(), top_n, ids: vec![] };
    assert_eq!(asked("--logprobs 3"), listed(LogprobMode::Raw, 3));
    assert_eq!(asked("--logprobs 3"), asked("--top-logprobs 3"));
    assert_eq!(asked("--logprobs edited --top-logprobs 3"), listed(LogprobMode::Edited, 3));
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&[0.0; 4]));
    let told = refuses(&["sample", &row, "--vocab", "4", "--logprobs", "3", "--top-logprobs", "2"]);
    assert!(told.contains("--logprobs 3 and --top-logprobs 2 say different numbers"), "{told}");
}

#[test]
fn a_flag_that_is_not_known_has_one_tip() {
    for command in ["sample", "inspect", "generate"] {
        for (flag, meant) in [("--dry", "--dry-multiplier"), ("--repeat-penalty", "--repetition-penalty")] {
            let told = refuses(&[command, "x", flag, "1"]);
            assert!(told.matches("tip:").count() == 1 && !told.contains(" --"), "{told}");
            assert!(told.contains(&format!("'{meant}'")), "{told}");
        }
    }
}

#[test]
fn a_misspelt_name_in_a_file_is_refused_with_the_known_ones() {
    let files = Files::new();
    let file = files.write("p.json", br#"{"dry": {"multiplicator": 1}}"#);
    let row = files.write("row.f32", &bytes(&[0.0; 4]));
    let message = refuses(&["sample", &row, "--vocab", "4", "--params", &file]);
    assert!(
        message.contains("\"dry.multiplicator\" is not known; known are: ")
            && message.contains("allowed_length")
    );
}

#[test]
fn a_value_out_of_range_is_one_line_with_name_value_and_range() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&[0.0; 4]));
    let sample = |flags: &[&str]| refuses(&[&["sample", &row, "--vocab", "4"], flags].concat());
    assert_eq!(sample(&["--min-p", "1.5"]), "error: min_p is 1.5, but must be in 0..=1 (0: off)\n");
    assert_eq!(sample(&["--banned-ids", "9"]), "error: banned_ids is 9, but must be an id in 0..4\n");
    assert!(
        sample(&["--order", "top_q"])
            .contains("\"top_q\" is not known (do you mean \"top_p\"?); known are: top_n_sigma")
    );
    assert_eq!(sample(&["--top-p", "1.9"]), "error: top_p is 1.9, but must be in 0..=1 (1: off)\n");
    assert_eq!(sample(&["--top-k", "-5"]), "error: top_k is -5, but must be at least -1 (0, -1: off)\n");
    assert!(sample(&["--mirostat", "5,"]).contains("write one to three numbers"));
}
