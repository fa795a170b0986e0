//! Grammars nest, refer to themselves and repeat as a file says: they end in time, in memory, and in one
//! line.

use std::time::{Duration, Instant};

use crate::support::{Files, gumball};
use crate::tiny;
use crate::zeros;

/// Lets the command follow a grammar for a few tokens, which must end soon, and returns its exit code and the
/// last line that it says.
fn follows(name: &str, grammar: &str) -> (i32, String) {
    let files = Files::new();
    let model = files.write("m.gguf", &zeros::model(&tiny::metadata(&["a", "b", "ab", "{", "}", "\"", "["])));
    let grammar = files.write(name, grammar.as_bytes());
    let start = Instant::now();
    let output = gumball(&[
        "generate",
        "a",
        "--no-chat",
        "--model",
        &model,
        "--max-tokens",
        "6",
        "--seed",
        "1",
        "--grammar",
        &grammar,
    ]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}: {said}", start.elapsed());
    let code = output.status.code().unwrap_or_else(|| panic!("ended by a signal: {said}"));
    let last = said.lines().last().unwrap_or_default().to_owned();
    assert!(last.len() < 800 && !said.contains("panicked") && !said.contains("overflowed"), "{said}");
    (code, last)
}

/// As [`follows`], for a grammar that has to be refused, by a line with `reason`.
fn refused(name: &str, grammar: &str, reason: &str) {
    let (code, said) = follows(name, grammar);
    assert!(code == 2 && said.starts_with("error: ") && said.contains(reason), "{code}: {said}");
}

/// As [`follows`], for one that may be followed, or be refused by an error.
fn followed_or_refused(name: &str, grammar: &str) {
    let (code, said) = follows(name, grammar);
    assert!(matches!(code, 0..=2) && (code == 0 || said.starts_with("error: ")), "{code}: {said}");
}

/// Returns `n` Lark rules of which each leads to the next one.
fn chain(n: usize, rule: impl Fn(usize) -> String) -> String {
    let rules: String = (0..n).map(|i| format!("r{i}: {}\n", rule(i + 1))).collect();
    format!("start: r0\n{rules}r{n}: \"a\"\n")
}

#[test]
fn a_chain_of_rules_that_is_deeper_than_a_stack_ends_the_command_with_an_error() {
    for n in [4_000, 100_000] {
        followed_or_refused("g.lark", &chain(n, |next| format!("r{next}")));
        followed_or_refused("g.lark", &chain(n, |next| format!("\"a\" r{next} \"b\"")));
        followed_or_refused("g.lark", &chain(n, |next| format!("r{next}?")));
    }
    refused("g.lark", &chain(100_000, |next| format!("r{next}")), "the grammar");
    let terminals: String = (0..20_000).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect();
    followed_or_refused("g.lark", &format!("start: T0\n{terminals}T20000: \"b\"\n"));
}

#[test]
fn a_grammar_nested_in_brackets_ends_the_command_with_an_error() {
    for (open, close) in [("(", ")"), ("[", "]"), ("(\"a\" ", ")?"), ("(\"b\" | ", ")")] {
        for n in [2_000, 200_000] {
            let rule = format!("start: {}\"a\"{}\n", open.repeat(n), close.repeat(n));
            followed_or_refused("g.lark", &rule);
        }
    }
    for (open, close) in [("(", ")"), ("(a|", ")"), ("(a", ")*"), ("(?:", "){1,2}")] {
        let n = 20_000;
        followed_or_refused("g.lark", &format!("start: /{}b{}/\n", open.repeat(n), close.repeat(n)));
    }
}

#[test]
fn a_schema_that_refers_on_and_on_or_to_itself_ends_the_command_with_an_error() {
    let chained: Vec<String> =
        (0..4_000).map(|i| format!("\"d{i}\": {{\"$ref\": \"#/$defs/d{}\"}}", i + 1)).collect();
    let chained = format!(
        "{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{}, \"d4000\": {{\"type\": \"null\"}}}}}}",
        chained.join(",")
    );
    followed_or_refused("g.json", &chained);
    let nested: Vec<String> = (0..2_000)
        .map(|i| {
            format!("\"d{i}\": {{\"type\": \"array\", \"items\": {{\"$ref\": \"#/$defs/d{}\"}}}}", i + 1)
        })
        .collect();
    followed_or_refused(
        "g.json",
        &format!(
            "{{\"$ref\": \"#/$defs/d0\", \"$defs\": {{{}, \"d2000\": {{\"type\": \"null\"}}}}}}",
            nested.join(",")
        ),
    );
    for cycle in [
        r##"{"$ref": "#"}"##,
        r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##,
        r##"{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}"##,
        r##"{"anyOf": [{"$ref": "#"}, {"type": "null"}]}"##,
        r##"{"type": "array", "items": {"$ref": "#"}, "minItems": 3}"##,
    ] {
        followed_or_refused("g.json", cycle);
    }
    refused("g.json", &format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)), "no valid JSON");
}

#[test]
fn a_grammar_that_repeats_or_branches_without_end_ends_the_command_with_an_error() {
    for grammar in [
        "start: \"a\"{1,1000000}\n",
        "start: \"a\"{1000000}\n",
        "start: (\"a\"{1,1000}){1,1000}\n",
        "start: ((\"a\" | \"b\"){1,1000} \"ab\"){1,1000}\n",
        "start: /a{1,1000000}/\n",
        "start: /(a{1,1000}){1,1000}/\n",
        "start: /((a|b){1,1000}c){1000}/\n",
        "start: /(.*a){60}b/\n",
        "start: /(a|b)*a(a|b){200}/\n",
        "start: /(a&(b|~c)){1,4000}/\n",
    ] {
        followed_or_refused("g.lark", grammar);
    }
    let words: Vec<String> = (0..50_000).map(|i| format!("\"a{i}\"")).collect();
    followed_or_refused("g.lark", &format!("start: {}\n", words.join(" | ")));
    for schema in [
        r#"{"type": "string", "minLength": 1000000, "maxLength": 2000000}"#,
        r#"{"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}"#,
        r#"{"type": "array", "minItems": 1000000, "items": {"type": "array", "minItems": 1000000}}"#,
        r#"{"type": "number", "multipleOf": 0.0000000001, "minimum": 1e300}"#,
    ] {
        followed_or_refused("g.json", schema);
    }
    let either: Vec<String> = (0..5_000).map(|i| format!("{{\"const\": \"a{i}\"}}")).collect();
    followed_or_refused("g.json", &format!("{{\"anyOf\": [{}]}}", either.join(",")));
    // A power set: each of the objects may have each of the properties, in every combination.
    let all: Vec<String> = (0..24)
        .map(|i| format!("{{\"anyOf\": [{{\"required\": [\"p{i}\"]}}, {{\"properties\": {{\"p{i}\": {{\"type\": \"null\"}}}}}}]}}"))
        .collect();
    followed_or_refused("g.json", &format!("{{\"type\": \"object\", \"allOf\": [{}]}}", all.join(",")));
}
