//! Receipts that `generate` writes, drawn again by `verify-receipt`.

use std::fs;

use gumball_receipt::Receipt;
use gumball_spec::{LogprobMode, LogprobModes, LogprobsParams, Request, SamplingParams, oracle};
use serde_json::Value;

use crate::generate::alone;
use crate::support::{Files, bytes, gumball, npy, refuses, succeeds};

fn verdict(args: &[&str]) -> (Option<i32>, Value) {
    let output = gumball(&[&["verify-receipt", "--json"], args].concat());
    (output.status.code(), serde_json::from_slice(&output.stdout).expect("JSON"))
}

#[test]
fn a_receipt_does_not_go_among_the_text() {
    assert!(refuses(&["generate", "x", "--receipt", "-"]).contains("name a file"));
}

#[test]
fn a_text_of_drafts_under_a_grammar_is_drawn_again_in_passes_of_another_shape() {
    let _alone = alone();
    let files = Files::new();
    let schema = br#"{"type": "object", "additionalProperties": false, "required": ["name"],
        "properties": {"name": {"type": "string", "maxLength": 12}}}"#;
    let (schema, receipt) = (files.write("person.json", schema), files.name("receipt.json"));
    let args = ["generate", "Describe a person.", "--seed", "3", "--repetition-penalty", "1.2"];
    succeeds(&[&args[..], &["--grammar", &schema, "--speculate", "ngram", "--receipt", &receipt]].concat());
    let (code, found) = verdict(&[&receipt, "--grammar", &schema]);
    assert_eq!(
        (code, &found["answer"], found["wrong"].as_array().map(Vec::len)),
        (Some(0), &"equal".into(), Some(0))
    );
    assert!(found["equal"].as_u64().unwrap() > 5, "{found}");
    // Without the grammar the masks are others than the receipt says.
    assert!(refuses(&["verify-receipt", &receipt]).contains("name the grammar by --grammar"));
    // A grammar that the text does not follow has other masks.
    let other = files.write("other.json", br#"{"type": "array", "items": {"type": "integer"}}"#);
    let (code, found) = verdict(&[&receipt, "--grammar", &other]);
    assert_eq!((code, &found["wrong"][0]["claim"]), (Some(1), &"mask".into()), "{found}");

    // Of another seed nothing but a token here and there is as likely as that.
    let text = fs::read_to_string(&receipt).unwrap().replace("\"seed\":\"3\"", "\"seed\":\"4\"");
    let forged = files.write("forged.json", text.as_bytes());
    let (code, found) = verdict(&[&forged, "--grammar", &schema, "--tolerance", "0.01"]);
    assert_eq!((code, &found["answer"]), (Some(1), &"wrong".into()), "{found}");
}

#[test]
fn a_receipt_is_drawn_again_from_a_file_of_logits() {
    let files = Files::new();
    let (vocab, steps) = (40, 6);
    let mode = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Radius) };
    let asked = LogprobsParams { mode, top_n: 2, ..LogprobsParams::default() };
    let params = SamplingParams { top_k: 9, logprobs: Some(asked), ..SamplingParams::default() };
    let logits: Vec<f32> = crate::support::uniform(5).map(|x| x * 6.0).take(vocab * steps).collect();
    let mut receipt = Receipt::new(&params, vocab, 7, 0, &[1, 2]).unwrap();
    let (mut output, mask) = (Vec::new(), [u32::MAX - 8, u32::MAX]);
    for row in logits.chunks(vocab) {
        let position = output.len() as u32 + 2;
        let request =
            Request { output: &output, position, mask: Some(&mask), ..Request::new(&params, &[1, 2], 7) };
        let outcome = oracle::sample(row.into(), &request, None).unwrap();
        receipt.push(outcome.token, outcome.status, &outcome.logprobs.unwrap(), Some(&mask)).unwrap();
        output.push(outcome.token as u32);
    }
    let empty =
        files.write("empty.json", Receipt::new(&params, vocab, 7, 0, &[1]).unwrap().to_json().as_bytes());
    let (code, found) = verdict(&[&empty, "none.npy"]);
    assert_eq!((code, &found["answer"]), (Some(1), &"empty".into()), "{found}");
    let receipt = files.write("receipt.json", format!("{}\n", receipt.to_json()).as_bytes());
    let exact = files.write("exact.npy", &npy("<f4", "(6, 40)", &bytes(&logits)));
    let allowed: Vec<u8> = (0..vocab).map(|id| u8::from(id != 3)).collect();
    let one = files.write("mask.npy", &npy("|b1", "(40,)", &allowed));
    let all = files.write("masks.npy", &npy("|b1", "(6, 40)", &allowed.repeat(steps)));
    for masks in [&one, &all] {
        let shown = succeeds(&["verify-receipt", &receipt, &exact, "--masks", masks]);
        assert_eq!(shown, "equal: 6 tokens equal, 0 forced, 0 wrong\n");
    }
    let near: Vec<f32> = logits.iter().zip(crate::support::uniform(6)).map(|(z, x)| z + x * 0.25).collect();
    let near = files.write("near.npy", &npy("<f4", "(6, 40)", &bytes(&near)));
    let masked = [&receipt[..], &near, "--masks", &one];
    let (code, found) = verdict(&[&masked[..], &["--tolerance", "0.125"]].concat());
    assert_eq!((code, &found["answer"], &found["within"]), (Some(0), &"within".into(), &6.into()));
    let (code, found) = verdict(&masked);
    assert_eq!((code, found["wrong"].as_array().map(Vec::len)), (Some(1), Some(6)), "{found}");

    let refused = |args: &[&str]| refuses(&[&["verify-receipt"], args].concat());
    assert!(refused(&[&receipt, &one]).contains("no logits") || refused(&[&receipt, &one]).contains("bool"));
    let short = files.write("short.npy", &npy("<f4", "(5, 40)", &bytes(&logits[..200])));
    assert!(refused(&[&receipt, &short]).contains("it has 5 rows of 40 logits, the receipt 6 tokens of 40"));
    let three = files.write("three.npy", &npy("|b1", "(3, 40)", &allowed.repeat(3)));
    assert!(refused(&[&receipt, &exact, "--masks", &three]).contains("it has 3 masks, the receipt 6 tokens"));
    let list = files.write("logits.json", b"[[1.0, 2.5]]");
    assert!(refused(&[&list, &exact]).contains("receipt is a text that begins \"[[1.0, 2.5]]\""));
    assert!(refused(&[&exact, &exact]).contains("exact.npy: no text in UTF-8"));
    assert!(refused(&[&receipt, &exact, "--masks", &one, "--tolerance", "-1"]).contains("tolerance is -1"));
}
