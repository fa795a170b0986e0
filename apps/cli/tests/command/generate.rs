//! `gumball generate` on the default model: the same text everywhere, bound to grammars, ended where asked.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::support::{Files, gumball, refuses, succeeds};

const PROMPT: &str = "Write a sentence about the sea.";

/// One model runs at a time: threads of several would only wait for each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(args: &[&str]) -> Value {
    let _alone = alone();
    let text = succeeds(&[&["generate", "--json"], args].concat());
    serde_json::from_str(&text).expect("JSON")
}

fn text_under(variables: &[(&str, &str)], args: &[&str]) -> String {
    let _alone = alone();
    let output = Command::new(env!("CARGO_BIN_EXE_gumball"))
        .arg("generate")
        .args(args)
        .envs(variables.iter().copied())
        .output()
        .expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_text_is_the_same_for_every_level_and_thread_count() {
    let args =
        [PROMPT, "--seed", "42", "--max-tokens", "24", "--repetition-penalty", "1.1", "--top-p", "0.95"];
    let text = text_under(&[], &args);
    assert!(text.trim().len() > 20, "{text}");
    for (level, threads) in gumball_engine::Level::available().zip(["1", "5", "2"]) {
        let variables = [("GUMBALL_LEVEL", level.name()), ("RAYON_NUM_THREADS", threads)];
        assert_eq!(text_under(&variables, &args), text, "{level}, {threads} threads");
    }
    assert_eq!(text_under(&[], &[&args[..], &["--route", "oracle"]].concat()), text, "the oracle");
    if gumball_engine::Device::emulated().is_ok() {
        let args = [&args[..], &["--device", "emulated"]].concat();
        assert_eq!(text_under(&[], &args), text, "the kernels of a GPU");
    }
}

#[test]
fn a_screen_writes_the_text_of_all_logits_from_fewer_bytes() {
    for settings in [&["--temperature", "0"][..], &["--top-k", "50", "--top-p", "0.9"]] {
        let args = [&[PROMPT, "--seed", "42", "--max-tokens", "24"], settings].concat();
        let screened = json(&[&args[..], &["--head", "auto"]].concat());
        // Such logprobs need all logits.
        let whole = json(&[&args[..], &["--head", "auto", "--logprobs", "raw"]].concat());
        let ids = |text: &Value| -> Vec<Value> {
            text["tokens"].as_array().unwrap().iter().map(|token| token["id"].clone()).collect()
        };
        assert_eq!(ids(&screened), ids(&whole), "{settings:?}");
        let (of_whole, of_screened) = (&whole["head"], &screened["head"]);
        assert_eq!((&of_whole["kind"], &of_screened["kind"]), (&"auto".into(), &"auto".into()));
        assert_eq!((&of_whole["certified_rows"], &of_screened["whole_rows"]), (&0.into(), &0.into()));
        let bytes = |head: &Value| head["bytes_a_token"].as_f64().unwrap();
        // The weights are f32 here, of which a code is a quarter.
        assert!(bytes(of_screened) < 0.28 * bytes(of_whole), "{of_whole}, {of_screened}");
    }
    // A nucleus needs the sum of all weights.
    let args = [PROMPT, "--seed", "42", "--max-tokens", "2", "--top-p", "0.9", "--head", "auto"];
    assert_eq!(json(&args)["head"]["certified_rows"], 0);
}

#[test]
fn all_that_acts_is_said_and_no_rate_is_told_of_a_single_token() {
    let said = |args: &[&str]| {
        let _alone = alone();
        let output = gumball(&[&["generate", PROMPT, "--seed", "1"], args].concat());
        String::from_utf8(output.stderr).unwrap()
    };
    let one = said(&["--max-tokens", "1", "--top-k", "5"]);
    assert!(one.contains("temperature 1, top_k 5, and nothing else; seed 1"), "{one}");
    assert!(one.contains("temperature 0.7 and top-p 0.9 are for calls without such parameters"), "{one}");
    assert!(one.contains("1 token, ended by") && one.contains("the first after"), "{one}");
    assert!(!one.contains("a second") && !one.contains("head"), "{one}");
    let two = said(&["--max-tokens", "2", "--head", "auto"]);
    assert!(two.contains("temperature 0.7, top_p 0.9, and nothing else"), "{two}");
    assert!(!two.contains("without such parameters"), "{two}");
    assert!(two.contains("a second") && two.contains("may be another than without --head"), "{two}");
    // A neutral value that is given is given.
    let neutral = said(&["--max-tokens", "1", "--temperature", "1"]);
    assert!(neutral.contains("temperature 1, and nothing else"), "{neutral}");
}

#[test]
fn a_seed_chosen_for_you_reproduces_the_text() {
    let first = json(&[PROMPT, "--max-tokens", "12"]);
    let seed = first["seed"].as_u64().unwrap().to_string();
    let again = json(&[PROMPT, "--max-tokens", "12", "--seed", &seed]);
    // A seed of its own may draw the end of the text before the twelfth token.
    assert_eq!((&first["text"], &first["finish"]), (&again["text"], &again["finish"]));
    assert_eq!(first["params"]["temperature"], 0.7);
    let other = json(&[PROMPT, "--max-tokens", "12", "--seed", &seed, "--temperature", "0"]);
    assert_eq!(other["params"]["top_p"], 1.0, "a parameter given switches the settings for prose off");
}

#[test]
fn a_json_schema_yields_json_that_follows_it_or_says_that_it_does_not() {
    let files = Files::new();
    let schema = br##"{"type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"$ref": "#/$defs/age"}},
        "$defs": {"age": {"type": "integer", "minimum": 0, "maximum": 99}}}"##;
    let schema = files.write("person.json", schema);
    for seed in ["1", "2", "3"] {
        let args = ["Describe a person.", "--grammar", &schema, "--seed", seed, "--temperature", "1.3"];
        let report = json(&args);
        let person: Value = serde_json::from_str(report["text"].as_str().unwrap()).expect("the text is JSON");
        assert!(person["name"].is_string() && person["age"].as_u64().unwrap() < 100, "{person}");
        assert_eq!(report["complete"], true);
    }
    let cut = gumball(&[
        "generate",
        "Describe a person.",
        "--grammar",
        &schema,
        "--max-tokens",
        "3",
        "--seed",
        "1",
    ]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("ends before its grammar does"));
}

#[test]
fn a_lark_grammar_allows_what_it_says() {
    let files = Files::new();
    let grammar = files.write("answer.lark", b"start: \"yes\" | \"no\"\n");
    let text = text_under(&[], &["Is it raining?", "--grammar", &grammar, "--seed", "9"]);
    assert!(["yes\n", "no\n"].contains(&text.as_str()), "{text}");
    // More tokens would not help where the parameters ban what the grammar wants.
    let banned = gumball(&["generate", "x", "--grammar", &grammar, "--allowed-ids", "5"]);
    let message = String::from_utf8(banned.stderr).unwrap();
    assert_eq!(banned.status.code(), Some(1));
    assert!(message.contains("see --allowed-ids") && !message.contains("raise --max-tokens"), "{message}");
    let broken = files.write("broken.lark", b"start: \"yes");
    let message = refuses(&["generate", "x", "--grammar", &broken]);
    assert!(message.contains("the grammar does not compile") && message.lines().count() == 1, "{message}");
    let unknown = files.write("grammar.txt", b"");
    assert!(
        refuses(&["generate", "x", "--grammar", &unknown]).contains("ends in .json (a JSON schema) or .lark")
    );
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let args = [PROMPT, "--seed", "4", "--max-tokens", "24"];
    let whole = json(&args)["text"].as_str().unwrap().to_owned();
    let middle: String = whole.chars().skip(10).take(3).collect();
    let report = json(&[&args[..], &["--stop", &middle]].concat());
    assert_eq!(report["finish"], "stop_string");
    assert_eq!(report["text"].as_str(), whole.find(&middle).map(|at| &whole[..at]));
}

#[test]
fn a_section_between_texts_is_closed_when_its_budget_is_used_up() {
    let end = " Enough.</think>";
    let texts = ["--section-close-text", "</think>", "--section-end-text", end, "--section-budget", "6"];
    let ids = |report: &Value| -> Vec<u64> {
        report["tokens"].as_array().unwrap().iter().map(|token| token["id"].as_u64().unwrap()).collect()
    };
    // Without a text that opens it, a section begins with the answer.
    let args = [&[PROMPT, "--seed", "4", "--max-tokens", "24"], &texts[..]].concat();
    let report = json(&args);
    let section = &report["params"]["section"];
    let forced: Vec<_> = section["end"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    assert!(ids(&report)[6..].starts_with(&forced) && report["text"].as_str().unwrap().contains(end));
    assert_eq!(json(&[&args[..], &["--speculate", "ngram"]].concat())["tokens"], report["tokens"]);
    let open = ["--no-chat", "Aloud:\n<think>", "--section-open-text", "<think>", "--temperature", "0"];
    let report = json(&[&open[..], &["--max-tokens", "12"], &texts].concat());
    assert!(ids(&report)[6..].starts_with(&forced), "{report}");
    let unopened = ["--no-chat", "Aloud:", "--section-open-text", "<think>", "--temperature", "0"];
    let report = json(&[&unopened[..], &["--max-tokens", "12"], &texts].concat());
    assert!(!report["text"].as_str().unwrap().contains(end));
    let twice = refuses(&["generate", "x", "--section-close", "5", "--section-close-text", "y"]);
    assert!(
        twice.contains("--section-close-text is \"y\", but section.close has ids; leave one out"),
        "{twice}"
    );
}

#[test]
fn logprobs_come_with_every_token() {
    let report =
        json(&[PROMPT, "--seed", "1", "--max-tokens", "4", "--logprobs", "raw", "--top-logprobs", "2"]);
    for token in report["tokens"].as_array().unwrap() {
        assert!(token["logprob"]["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(token["logprob"]["id"], token["id"]);
    }
}

#[test]
fn the_prompt_may_come_from_standard_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gumball"))
        .args(["generate", "--no-chat", "--max-tokens", "3", "--temperature", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    child.stdin.take().unwrap().write_all(b"One, two, three,\n").unwrap();
    let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(text, " four, five\n");
}

#[test]
#[cfg(unix)]
fn an_interrupt_ends_the_text_cleanly() {
    use std::io::Read;
    let _alone = alone();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gumball"))
        .args(["generate", PROMPT, "--max-tokens", "5000", "--temperature", "1", "--banned-ids", "0,2"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    // Text has begun, so the handler is there and the loop runs.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 20]).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    // The 20 bytes may end within a character.
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(rest.ends_with(b"\n"), "{}", String::from_utf8_lossy(&rest));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ended by Ctrl-C"));
}

#[test]
fn wrong_models_and_routes_are_refused_with_what_to_do() {
    let files = Files::new();
    let model = files.write("model.gguf", b"GGUF\x03\x00\x00\x00");
    assert!(refuses(&["generate", "x", "--model", &model]).starts_with("error: "));
    let route = refuses(&["generate", "x", "--route", "rase"]);
    assert!(
        route.contains(
            "\"rase\" is not known (do you mean \"race\"?); known are: race, probabilities, oracle"
        ),
        "{route}"
    );
    assert!(refuses(&["generate", "x", "--top-p", "-1"]).contains("top_p is -1"));
}

#[test]
fn inspect_shows_the_row_that_generate_draws_from() {
    let drawn = json(&[PROMPT, "--seed", "6", "--max-tokens", "4"]);
    let inspected = succeeds(&["inspect", "--prompt", PROMPT, "--seed", "6", "--after", "3", "--json"]);
    let trace: Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(trace["winner"]["id"], drawn["tokens"][3]["id"]);
    assert_eq!(trace["winner"]["text"], drawn["tokens"][3]["text"]);
}
