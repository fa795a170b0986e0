//! Drafts change no token of a text: on small models of random weights, in every type that has a product of
//! its own, and under parameters that look at the history, the path, the grammar and the end of the text.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use gumball_cli::model::{Gguf, Llama, ROWS_LIKE_ONE};
use serde_json::Value as Json;

use crate::made;
use crate::support::{Files, gumball, refuses, succeeds, uniform};
use crate::tiny;

/// A whole block of the K-quants.
const HIDDEN: usize = 256;
const CONTEXT: u32 = 160;

/// Tokens of more than a byte, and single letters.
const PIECES: [&str; 10] = ["\u{2581}", "a", "b", "c", "ab", "ba", "ca", "\u{2581}a", "\u{2581}ba", "caba"];

/// Returns the bytes of a model of random weights, its matrices in a type.
pub fn model(dtype: GgmlDType) -> Vec<u8> {
    model_with(dtype, &PIECES, 0.0)
}

/// Returns the bytes of a model like that of [`model`], with other pieces and with weights that differ by
/// some noise.
fn model_with(dtype: GgmlDType, pieces: &[&str], noise: f32) -> Vec<u8> {
    let mut metadata = tiny::metadata(pieces);
    for (key, value) in [
        ("llama.embedding_length", HIDDEN as u32),
        ("llama.feed_forward_length", HIDDEN as u32),
        ("llama.attention.head_count", 4),
        ("llama.context_length", CONTEXT),
    ] {
        metadata.insert(key.into(), Value::U32(value));
    }
    let mut uniform = uniform(7);
    let tensor = |name: &str, shape: &[usize]| {
        // Weak blocks, so that a token depends mostly on the one before it, and texts run in circles.
        let (spread, mean) = match (name.starts_with("blk"), shape.len()) {
            (_, 1) => (0.1, 1.0),
            (blocks, _) => (if blocks { 0.05 } else { 0.4 }, 0.0),
        };
        // The sum of four uniform numbers; norms around 1.
        let mut number = || {
            let [sum, other] = [(); 2].map(|()| uniform.by_ref().take(4).sum::<f32>());
            mean + spread * (sum + noise * other)
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| number()).collect();
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor");
        let dtype = if shape.len() == 2 { dtype } else { GgmlDType::F32 };
        QTensor::quantize(&tensor, dtype).expect("a quantised tensor")
    };
    let tensors = tiny::tensors(3 + 256 + pieces.len(), HIDDEN, false, tensor);
    made::bytes(&metadata, &tensors)
}

fn write(args: &[&str]) -> Json {
    let prompt = "aba caba aba caba aba";
    let output = gumball(&[&["generate", "--json", "--no-chat", prompt], args].concat());
    // A text that is cut off before its grammar ends is written, and found wanting.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {stderr}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn drafts_change_no_token_of_a_text_that_a_head_writes() {
    let files = Files::new();
    let target = files.write("target.gguf", &model(GgmlDType::F32));
    let near = files.write("near.gguf", &model_with(GgmlDType::F32, &PIECES, 0.1));
    assert!(!refuses(&["generate", "x", "--model", &target, "--draft-head", "auto"]).is_empty());
    let drafters: [&[&str]; 4] = [
        &["--speculate", "ngram"],
        &["--draft-model", &near],
        &["--draft-model", &near, "--draft-head", "auto", "--drafts", "3"],
        &["--draft-model", &target, "--draft-head", "auto", "--drafts", "4"],
    ];
    // A head of all logits: its one cluster has all ids.
    let (clusters, ids) = (files.name("clusters"), (3 + 256 + PIECES.len()).to_string());
    let build = ["head", "build", "--kind", "clustered", "--model", &target, "--out", &clusters];
    succeeds(&[&build[..], &["--capacity", &ids]].concat());
    let heads = [&["--head-file", &clusters, "--probes", "1"][..], &["--head", "auto"]];
    let setting = ["--temperature", "0.7", "--top-k", "4", "--logprobs", "processed", "--top-logprobs", "2"];
    for (number, drafter) in drafters.iter().enumerate() {
        let args = [&["--model", &target, "--seed", "5", "--max-tokens", "50"], &setting[..]].concat();
        let exact = write(&[&args[..], heads[0]].concat());
        for head in heads {
            let args = [&args[..], head].concat();
            let (accepted, drafted) = same_text(&args, drafter);
            let text = write(&[&args[..], drafter].concat());
            assert_eq!(text["tokens"], exact["tokens"], "{head:?}, {drafter:?}");
            assert!(drafted > 0 && (number != 3 || accepted == drafted), "{accepted} of {drafted}");
            assert_eq!(text["head"]["certified_rows"].as_u64() > Some(0), head == heads[1]);
            assert_eq!(text["draft_head"]["kind"].as_str(), (number > 1).then_some("auto"));
        }
    }
}

/// Holds the text with drafts to that without, and returns how many drafts were accepted of how many.
fn same_text(args: &[&str], drafts: &[&str]) -> (u64, u64) {
    let (plain, drafted) = (write(args), write(&[args, drafts].concat()));
    for field in ["text", "tokens", "finish", "complete", "params", "prompt_tokens"] {
        assert_eq!(plain[field], drafted[field], "{field} under {args:?} with {drafts:?}");
    }
    assert!(plain["speculation"].is_null());
    let of = &drafted["speculation"];
    let number = |field: &str| of[field].as_u64().unwrap_or_else(|| panic!("{field} of {of}"));
    let (passes, accepted) = (number("passes"), number("accepted"));
    let tokens = drafted["tokens"].as_array().unwrap().len() as u64;
    // A token that ends the text leaves out the drafts that were accepted after it.
    assert!(tokens <= passes + accepted, "{tokens} tokens of {of}");
    (accepted, number("drafted"))
}

#[test]
fn drafts_from_the_text_change_no_token_of_it() {
    let files = Files::new();
    let model = files.write("tiny.gguf", &model(GgmlDType::F32));
    let schema =
        br#"{"type": "array", "items": {"enum": ["ab", "aba", "cab"]}, "minItems": 3, "maxItems": 9}"#;
    let schema = files.write("schema.json", schema);
    let settings: [&[&str]; 12] = [
        &["--temperature", "0"],
        &["--temperature", "1"],
        &["--temperature", "0.4", "--top-p", "0.9"],
        &["--temperature", "0.3", "--repetition-penalty", "1.1", "--frequency-penalty", "0.1"],
        &["--temperature", "0.5", "--dry-multiplier", "0.8", "--no-repeat-ngram", "6"],
        &["--top-k", "3", "--xtc-probability", "0.5", "--xtc-threshold", "0.1"],
        &["--temperature", "0.2", "--logprobs", "processed", "--top-logprobs", "2", "--logprob-ids", "5,9"],
        &["--temperature", "0.3", "--grammar", &schema],
        &["--temperature", "0.6", "--presence-penalty", "0.4", "--grammar", &schema],
        &["--temperature", "0.3", "--stop", "b", "--stop", "zz"],
        &["--temperature", "0.3", "--stop-ids", "260-264", "--min-tokens", "9"],
        &["--temperature", "0", "--max-tokens", "500"],
    ];
    let drafters: [&[&str]; 3] = [
        &["--speculate", "ngram"],
        &["--speculate", "ngram", "--drafts", "16", "--ngram", "1"],
        &["--speculate", "ngram", "--drafts", "1", "--ngram", "5"],
    ];
    let (mut accepted, mut drafted) = (0, 0);
    for (number, setting) in settings.iter().enumerate() {
        for (seed, drafter) in drafters.iter().enumerate() {
            let (seed, most) = ((number * 3 + seed).to_string(), ["--max-tokens", "80"]);
            let limit: &[&str] = if setting.contains(&"--max-tokens") { &[] } else { &most };
            let args = [&["--model", &model, "--seed", &seed], *setting, limit].concat();
            let (some, all) = same_text(&args, drafter);
            (accepted, drafted) = (accepted + some, drafted + all);
        }
    }
    assert!(accepted > 200 && drafted > accepted + 200, "{accepted} of {drafted}");
}

#[test]
fn the_rows_of_a_pass_have_the_bits_of_tokens_that_come_one_by_one() {
    let files = Files::new();
    for dtype in [GgmlDType::Q8_0, GgmlDType::Q4_0, GgmlDType::Q4K, GgmlDType::Q5K, GgmlDType::Q6K] {
        let path = files.write("tiny.gguf", &model(dtype));
        let mut llama = Llama::load(&mut Gguf::open(path.as_ref()).unwrap()).unwrap();
        let tokens: Vec<u32> = (0..ROWS_LIKE_ONE as u32).map(|i| 259 + i * i % 10).collect();
        let mut bits = |size: usize| -> Vec<u32> {
            llama.reset();
            let logits = tokens.chunks(size).flat_map(|tokens| {
                let hidden = llama.hidden(tokens).unwrap();
                llama.logits_all(&hidden).unwrap()
            });
            logits.map(f32::to_bits).collect()
        };
        let alone = bits(1);
        for size in [2, 5, ROWS_LIKE_ONE] {
            assert!(bits(size) == alone, "{dtype:?}, {size} at once");
        }
        let args = ["--model", &path, "--seed", "3", "--temperature", "0", "--max-tokens", "100"];
        let (accepted, _) = same_text(&args, &["--speculate", "ngram", "--drafts", "16"]);
        assert!(accepted > 0, "{dtype:?}");
    }
}

#[test]
fn drafts_of_a_model_change_no_token_of_the_text() {
    let files = Files::new();
    let target = files.write("target.gguf", &model(GgmlDType::F32));
    let schema = files.write("schema.json", br#"{"type": "array", "items": {"enum": ["ab", "cab"]}}"#);
    let settings: [&[&str]; 6] = [
        &["--temperature", "0"],
        &["--temperature", "0.7"],
        &["--temperature", "0.8", "--top-p", "0.9", "--repetition-penalty", "1.2"],
        &["--temperature", "0.9", "--grammar", &schema, "--max-tokens", "40"],
        &["--temperature", "0.7", "--stop-ids", "263-264", "--no-repeat-ngram", "3"],
        &["--temperature", "0.7", "--max-tokens", "500"],
    ];
    let mut shares = Vec::new();
    for (name, noise) in [("same", 0.0), ("near", 0.1), ("far", 3.0)] {
        let drafter = files.write("draft.gguf", &model_with(GgmlDType::F32, &PIECES, noise));
        let (mut accepted, mut drafted) = (0, 0);
        for (seed, setting) in settings.iter().enumerate() {
            let limit: &[&str] =
                if setting.contains(&"--max-tokens") { &[] } else { &["--max-tokens", "60"] };
            let seed = seed.to_string();
            let args = [&["--model", &target, "--seed", &seed], *setting, limit].concat();
            let (some, all) = same_text(&args, &["--draft-model", &drafter, "--drafts", "4"]);
            (accepted, drafted) = (accepted + some, drafted + all);
            // A drafter without noise has the target's rows, so every race of its has the target's winner.
            assert!(noise > 0.0 || some == all, "{name}, {setting:?}: {some} of {all}");
        }
        shares.push(accepted as f64 / drafted as f64);
    }
    assert!(shares[0] == 1.0 && shares[1] > 0.5 && shares[2] < 0.5, "{shares:?}");
}

#[test]
fn a_draft_model_of_other_tokens_is_refused() {
    let files = Files::new();
    let target = files.write("target.gguf", &model(GgmlDType::F32));
    let mut others = PIECES;
    others.swap(1, 2);
    for (pieces, text) in [
        (&others[..], "draft.gguf: token 260 is another than the model's; a draft model needs the same"),
        (&PIECES[..9], "draft.gguf: it has 268 tokens, the model has 269; a draft model needs the same"),
    ] {
        let drafter = files.write("draft.gguf", &model_with(GgmlDType::F32, pieces, 0.0));
        let message = refuses(&["generate", "a", "--model", &target, "--draft-model", &drafter]);
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn flags_that_cannot_be_combined_are_named() {
    let files = Files::new();
    let model = files.write("tiny.gguf", &model(GgmlDType::F32));
    let speculate = ["generate", "a", "--model", &model, "--speculate", "ngram"];
    let message = refuses(&[&speculate[..], &["--mirostat", "3,0.1"]].concat());
    assert!(message.contains("--speculate cannot be combined with --mirostat: its state"), "{message}");
    let message = refuses(&["generate", "a", "--draft-model", &model, "--mirostat", "3,0.1"]);
    assert!(message.contains("--draft-model cannot be combined with --mirostat"), "{message}");
    let message = refuses(&[&speculate[..], &["--adaptive-target", "0.3"]].concat());
    assert!(
        message.contains("--speculate cannot be combined with --adaptive-target: its state"),
        "{message}"
    );
    let message = refuses(&[&speculate[..], &["--draft-model", &model]].concat());
    assert!(message.contains("--draft-model") && message.contains("cannot be used with"), "{message}");
    for (flag, value) in [("--drafts", "17"), ("--drafts", "0"), ("--ngram", "0")] {
        let message = refuses(&[&speculate[..], &[flag, value]].concat());
        assert!(message.contains(flag) && message.contains("is not in"), "{message}");
    }
    assert!(refuses(&["generate", "a", "--drafts", "3"]).contains("--speculate"));
}
