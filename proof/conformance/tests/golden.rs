//! Value stability: every backend draws the pinned tokens.

use gumball_bench_protocol::skipped::skip;
use gumball_conformance::backend::available;
use gumball_conformance::golden::{CHANGED, Set, changes};
use gumball_detect::{Evidence, detect_any, find_marked};
use gumball_spec::watermark::add_keys;
use gumball_spec::{Mirostat, SamplingParams, prompt_seed, sample_seed};
use serde_json::{Value, json};

fn holds(set: Set) {
    let pinned = set.pinned().expect("the golden file is there");
    for backend in available() {
        let changes = changes(&pinned, &set.draw(&*backend));
        assert!(changes.is_empty(), "{CHANGED}\n{}:\n{}", backend.name(), changes.join("\n"));
    }
}

#[test]
fn generated_rows_draw_the_pinned_tokens() {
    holds(Set::Generated);
}

#[test]
fn recorded_rows_of_a_real_model_draw_the_pinned_tokens() {
    if Set::Recorded.is_present() {
        holds(Set::Recorded);
    } else {
        skip("rows/smollm2.bf16 is not there");
    }
}

#[test]
fn a_changed_token_is_seen() {
    let pinned = Set::Generated.pinned().expect("the golden file is there");
    let mut drawn = pinned.clone();
    let name = drawn.keys().next().expect("there are some").clone();
    drawn.get_mut(&name).expect("just seen")[3] += 1;
    assert_eq!(changes(&pinned, &drawn).len(), 1);
    drawn.remove(&name);
    assert_eq!(changes(&pinned, &drawn).len(), 1);
    assert_eq!(changes(&drawn, &pinned).len(), 1);
}

/// Every language runs these cases: the texts of `same` are written alike, the JSON of `written` has a part,
/// and the error of `refused` has one.
#[test]
fn parameters_are_read_from_json_and_written_as_every_language_does() {
    let cases: Value = serde_json::from_str(include_str!("../golden/params_json.json")).expect("an object");
    let all = |name: &str| -> Vec<(String, String)> {
        serde_json::from_value(cases[name].clone()).expect("pairs of texts")
    };
    let read = |text: &str| serde_json::from_str::<SamplingParams>(text);
    let written = |text: &str| serde_json::to_string(&read(text).expect(text)).expect("finite numbers");
    assert_eq!(written("{}"), cases["neutral"].as_str().expect("a text"));
    for (one, other) in all("same") {
        assert_eq!(written(&one), written(&other));
        assert_eq!(written(&written(&one)), written(&one));
    }
    for (text, part) in all("written") {
        assert!(written(&text).contains(&part), "{text} is written {}", written(&text));
    }
    for (text, said) in all("refused") {
        let error = read(&text).expect_err(&text).to_string();
        assert!(error.contains(&said), "{text}: {error}");
    }
}

#[test]
fn a_number_that_json_has_no_word_for_is_not_written() {
    let mirostat = |mu| Some(Mirostat { tau: 5.0, eta: 0.1, mu: Some(mu) });
    for (params, name) in [
        (SamplingParams { temperature: f32::NAN, ..Default::default() }, "temperature is NaN"),
        (SamplingParams { top_p: f32::INFINITY, ..Default::default() }, "top_p is inf"),
        (SamplingParams { mirostat: mirostat(f32::NAN), ..Default::default() }, "mirostat.mu is NaN"),
        (SamplingParams { logit_bias: vec![(3, f32::NAN)], ..Default::default() }, "logit_bias is NaN"),
    ] {
        let error = serde_json::to_string(&params).expect_err(name).to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn prompts_and_samples_have_the_pinned_seeds() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../golden/rollout_seeds.json")).expect("a list");
    let whole = |text: &Value| -> u64 { text.as_str().expect("digits").parse().expect("a u64") };
    let small = |number: &Value| number.as_u64().expect("an integer") as u32;
    for case in &cases {
        let seed = prompt_seed(whole(&case["run"]), whole(&case["prompt"]), small(&case["turn"]));
        assert_eq!(seed, whole(&case["prompt_seed"]), "{case}");
        assert_eq!(sample_seed(seed, small(&case["sample"])), whole(&case["sample_seed"]), "{case}");
    }
}

/// Every language finds these: scores and p-values are the same bits everywhere.
#[test]
fn texts_have_the_pinned_evidence_and_marked_parts() {
    let cases: Value = serde_json::from_str(include_str!("../golden/marks.json")).expect("an object");
    add_keys(cases["watermark_keys"].as_str().expect("a text")).expect("keys");
    let seen = |key: u32, evidence: &Evidence| {
        let Evidence { tokens, skipped, score, ln_p } = *evidence;
        json!({"key": key, "tokens": tokens, "skipped": skipped, "score": score, "ln_p": ln_p, "p_value": evidence.p_value()})
    };
    let list = |of: &Value| -> Vec<u32> { serde_json::from_value(of.clone()).expect("integers") };
    for case in cases["texts"].as_array().expect("a list") {
        let params = json!({"watermark": case["watermark"]});
        let params: SamplingParams = serde_json::from_value(params).expect("parameters");
        let watermark = params.watermark.own().expect("a watermark");
        let scheme = case["scheme"].as_str().expect("a name").parse().expect("a scheme");
        let mut ids = list(&case["prompt"]);
        let prompt_len = ids.len();
        ids.extend(list(&case["ids"]));
        let keys = if case["keys"].is_null() { vec![watermark.key] } else { list(&case["keys"]) };
        let (key, evidence) =
            detect_any(&ids, prompt_len, scheme, &watermark, &keys).expect("a prompt and keys");
        assert_eq!(seen(key, &evidence), case["evidence"]);
        let length = case["length"].as_u64().expect("an integer") as usize;
        let alpha = case["alpha"].as_f64().expect("a number");
        let found = find_marked(&ids, prompt_len, scheme, &watermark, length, alpha).expect("a length");
        let found = found.iter().map(|part| {
            json!({"start": part.ids.start, "end": part.ids.end, "evidence": seen(watermark.key, &part.evidence)})
        });
        assert_eq!(Value::from_iter(found), case["parts"]);
    }
}
