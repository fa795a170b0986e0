//! Flags: sizes that cannot be, checks of nothing, flags without effect, and lines that are too long.

use std::time::Instant;

use crate::support::{Files, bytes, gumball, lines, logits, npy, refuses, succeeds};

/// Runs the command, which must refuse at once, and returns what it says in one line.
fn refuses_at_once(args: &[&str]) -> String {
    let start = Instant::now();
    let message = refuses(args);
    assert!(start.elapsed().as_secs() < 5, "gumball {args:?} took {:?}", start.elapsed());
    message
}

#[test]
fn sizes_that_cannot_be_are_refused_before_anything_is_allocated() {
    for command in ["sample", "check", "inspect"] {
        for kind in ["flat", "model-like"] {
            for vocab in ["0", "1048577", "100000000000", "18446744073709551615"] {
                let message = refuses_at_once(&[command, "--kind", kind, "--vocab", vocab]);
                assert_eq!(message, format!("error: vocab is {vocab}, but must be in 1..=2^20\n"));
            }
            for rows in ["0-4000000000", "18446744073709551615", "0-18446744073709551615"] {
                let message =
                    refuses_at_once(&[command, "--kind", kind, "--rows", rows, "--vocab", "1048576"]);
                let allowed = "but must be in 1..=256 where rows of 1048576 logits are made up";
                assert!(message.starts_with("error: rows is ") && message.contains(allowed), "{message}");
            }
        }
    }
}

#[test]
fn lists_that_name_too_much_are_refused_before_they_are_made() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&[0.0; 1 << 10]));
    let all = ["0-1023"; 16_400].join(",");
    let message = refuses_at_once(&["sample", &row, "--vocab", "1", "--rows", &all]);
    assert!(message.contains("16,793,600 rows are named; at most 16,777,216 can be"), "{message}");
    let message = refuses_at_once(&["sample", &row, "--vocab", "1", "--banned-ids", "0-4294967295"]);
    assert!(message.contains("names 4,294,967,296 ids; a range names at most 1,048,576"), "{message}");
    let message = refuses_at_once(&["sample", &row, "--vocab", "1", "--draws", "4294967295"]);
    assert!(message.contains("too many for a table") && message.contains("--json"), "{message}");
}

#[test]
fn a_negative_number_is_told_its_range_wherever_a_number_is_due() {
    for (flag, says) in [
        ("--seed", "write a whole number in 0..2^64"),
        ("--top-p", "top_p is -1"),
        ("--min-tokens", "invalid value '-1'"),
        ("--dry-allowed-length", "invalid value '-1'"),
        ("--top-logprobs", "invalid value '-1'"),
        ("--position", "invalid value '-1'"),
        ("--draws", "-1 is not in"),
        ("--vocab", "invalid value '-1'"),
    ] {
        let message = refuses_at_once(&["sample", "--kind", "flat", flag, "-1"]);
        assert!(message.contains(says) && !message.contains("unexpected"), "{flag}: {message}");
    }
    let message = refuses_at_once(&["inspect", "--kind", "flat", "--draw", "-1"]);
    assert!(message.contains("invalid value '-1'"), "{message}");
}

#[test]
fn a_check_that_would_check_nothing_is_refused() {
    assert!(refuses_at_once(&["check", "--draws", "0"]).contains("0 is not in 1.."));
    assert!(refuses_at_once(&["check", "--oracle-draws", "0"]).contains("0 is not in 1.."));
    let small = ["check", "--kind", "flat", "--vocab", "8", "--draws", "20", "--oracle-draws", "2"];
    let message = refuses_at_once(&[&small[..], &["--banned-ids", "0-7"]].concat());
    assert!(message.contains("no token is left to draw in any row"), "{message}");
}

#[test]
fn the_suite_fits_a_vocabulary_of_one_token() {
    let text = succeeds(&["check", "--vocab", "1", "--draws", "20", "--oracle-draws", "2"]);
    assert!(text.contains("items hold"), "{text}");
}

#[test]
fn flags_without_effect_are_refused() {
    let files = Files::new();
    let row = files.write("row.npy", &npy("<f4", "(4,)", &bytes(&[0.0; 4])));
    for args in [
        &["sample", "--kind", "flat", "--tensor", "x"][..],
        &["sample", &row, "--tensor", "x"],
        &["inspect", &row, "--after", "3"],
        &["inspect", "--kind", "flat", "--after", "0"],
        &["inspect", &row, "--model", "x.gguf"],
        &["inspect", &row, "--no-chat"],
        &["inspect", "--prompt", "a", "--vocab", "3"],
        &["inspect", "--prompt", "a", "--rows", "0"],
        &["check", "--history", "1"],
        &["check", "--position", "3"],
    ] {
        let message = refuses_at_once(args);
        assert!(
            message.contains("leave it out") || message.contains("cannot be used with"),
            "{args:?}: {message}"
        );
    }
}

#[test]
fn a_decimal_is_the_same_number_as_a_flag_and_in_a_file() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(64, 1)));
    let middle = "1.000000059604644775390626";
    let file = files.write("p.json", format!("{{\"temperature\": {middle}}}").as_bytes());
    let temperature = |flags: &[&str]| {
        let out = succeeds(&[&["sample", &row, "--vocab", "64", "--seed", "1", "--json"], flags].concat());
        lines(&out)[0]["temperature"].clone()
    };
    assert_eq!(temperature(&["--temperature", middle]), 1.0);
    assert_eq!(temperature(&["--params", &file]), 1.0);
}

#[test]
fn a_file_of_parameters_is_an_object_whose_keys_stand_once() {
    let files = Files::new();
    let refused = |json: &str| {
        let file = files.write("p.json", json.as_bytes());
        refuses_at_once(&["sample", "--kind", "flat", "--vocab", "4", "--params", &file])
    };
    for (json, name) in
        [("[0]", "parameters"), (r#"{"dry": [0.8]}"#, "dry"), (r#"{"logprobs": ["raw"]}"#, "logprobs")]
    {
        let words = format!("invalid type: sequence, expected {name} to be an object");
        assert!(refused(json).contains(&words), "{json}");
    }
    assert!(refused(r#"{"seed": 1, "seed": 2}"#).contains("seed stands twice"));
    assert!(refused(&"[".repeat(100_000)).contains("invalid type: sequence"));
    for order in [r#""none""#, r#"["top_k"]"#, r#""top_k,top_p""#, r#"{"list": ["top_k"]}"#] {
        let file = files.write("p.json", format!("{{\"order\": {order}}}").as_bytes());
        succeeds(&["sample", "--kind", "flat", "--vocab", "4", "--params", &file]);
    }
}

#[test]
fn what_is_said_of_long_values_is_short() {
    let files = Files::new();
    let file = files.write("p.json", format!("{{\"{}\": 1}}", "\u{1b}[2J".repeat(1 << 20)).as_bytes());
    let message = refuses_at_once(&["sample", "--kind", "flat", "--params", &file]);
    assert!(message.len() < 3000 && !message.contains('\u{1b}') && message.lines().count() == 1, "{message}");
    let shape = format!("({})", "1,".repeat(10_000));
    let mut array = npy("<f4", "(1,)", &bytes(&[0.0]));
    array.truncate(10);
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n");
    array[8..10].copy_from_slice(&(header.len() as u16).to_le_bytes());
    let array = [array, header.into_bytes(), bytes(&[0.0])].concat();
    let message = refuses_at_once(&["sample", &files.write("a.npy", &array)]);
    assert!(message.len() < 600 && message.contains("has no rows of logits"), "{message}");
}

#[test]
fn json_is_not_mixed_with_words() {
    let files = Files::new();
    let page = files.path("page.html");
    let out = gumball(&["inspect", "--kind", "flat", "--json", "--html", page.to_str().unwrap()]);
    assert!(serde_json::from_slice::<serde_json::Value>(&out.stdout).is_ok() && page.exists());
}
