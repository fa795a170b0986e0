//! Model files: headers and vocabularies that are damaged on purpose.

use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file::Value;
use gumball_cli::model::{Error, Model, Tokenizer};

use crate::made::{self, Metadata};
use crate::support::{Files, refuses};
use crate::tiny;
use crate::zeros;

/// Opens a file and its tokenizer, which must be refused soon, and returns the error's text.
fn refused(metadata: &Metadata) -> String {
    let start = Instant::now();
    let error = match made::open(metadata, &[]) {
        Ok(gguf) => Tokenizer::load(&gguf).expect_err("a hostile file"),
        Err(error) => error,
    };
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    error.to_string()
}

#[test]
fn an_alignment_of_zero_is_refused_in_every_width() {
    for value in [Value::U32(0), Value::U8(0), Value::U16(0), Value::I32(0), Value::U32(u32::MAX)] {
        let metadata = Metadata::from([("general.alignment".to_owned(), value)]);
        assert!(refused(&metadata).contains("`general.alignment` is "), "{metadata:?}");
    }
    let aligned = Metadata::from([("general.alignment".to_owned(), Value::U32(64))]);
    assert!(made::open(&aligned, &[]).is_ok());
}

#[test]
fn a_token_of_a_megabyte_is_refused_and_not_halved_in_every_way() {
    let long = "a".repeat(1 << 20);
    let message = refused(&tiny::metadata(&["a", &long]));
    assert!(message.contains("token 260 has 1048576 bytes, but must have at most 1024"), "{message}");
}

#[test]
fn tokens_that_can_be_halved_in_all_ways_are_refused_before_they_fill_the_memory() {
    let families: Vec<String> =
        ('a'..='z').flat_map(|c| (1..=1000).map(move |n| c.to_string().repeat(n))).collect();
    let pieces: Vec<&str> = families.iter().map(String::as_str).collect();
    assert!(refused(&tiny::metadata(&pieces)).contains("the halves of its tokens"));
}

#[test]
fn metadata_that_is_small_on_disk_and_large_in_memory_is_refused() {
    let files = Files::new();
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0u64, 1, 1].map(u64::to_le_bytes).concat());
    file.extend(b"x\x09\0\0\0\0\0\0\0");
    file.extend((64u64 << 20).to_le_bytes());
    file.resize(file.len() + (64 << 20), 7);
    let path = files.write("large.gguf", &file);
    let error = Model::load(path.as_ref()).expect_err("a hostile file").to_string();
    assert!(error.contains("its metadata has 67108864 elements up to `x`"), "{error}");
    // In arrays of arrays, too.
    let mut file = file[..24 + 8 + 1 + 4].to_vec();
    file.extend(9u32.to_le_bytes());
    file.extend((9u64 << 20).to_le_bytes());
    file.resize(file.len() + (9 << 20) * 12, 0);
    let path = files.write("nested.gguf", &file);
    let error = Model::load(path.as_ref()).expect_err("a hostile file").to_string();
    assert!(error.contains("its metadata has 9437184 elements"), "{error}");
}

#[test]
fn a_name_out_of_a_file_moves_no_terminal_and_fills_none() {
    let files = Files::new();
    for architecture in ["\u{1b}]0;X\u{7}".to_owned(), "x".repeat(10 << 20)] {
        let mut metadata = tiny::metadata(&["a"]);
        metadata.insert("general.architecture".into(), Value::String(architecture));
        let model = files.write("named.gguf", &zeros::model(&metadata));
        let message = refuses(&["generate", "hi", "--model", &model]);
        assert!(!message.contains(['\u{1b}', '\u{7}']) && message.len() < 3000, "{message}");
        assert!(
            message.contains("the architecture `") && message.ends_with("choose another model\n"),
            "{message}"
        );
    }
}

#[test]
fn a_text_keeps_its_escapes_in_a_pipe() {
    let files = Files::new();
    let mut metadata = tiny::metadata(&["\u{1b}[31mred", "\u{2581}"]);
    metadata.insert("tokenizer.ggml.add_space_prefix".into(), Value::Bool(false));
    let model = files.write("escapes.gguf", &zeros::model(&metadata));
    let args =
        ["generate", "hi", "--no-chat", "--model", &model, "--allowed-ids", "259", "--max-tokens", "2"];
    let text = crate::support::succeeds(&args);
    assert_eq!(text, "\u{1b}[31mred\u{1b}[31mred\n");
    let json = crate::support::succeeds(&[&args[..], &["--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["text"], text.trim_end());
}

#[test]
fn no_tokens_have_no_speed() {
    let files = Files::new();
    let model = files.write("m.gguf", &zeros::model(&tiny::metadata(&["a"])));
    let output =
        crate::support::gumball(&["generate", "a", "--no-chat", "--model", &model, "--max-tokens", "0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("no tokens, ended by") && !said.contains("inf"),
        "{said}"
    );
}

#[test]
fn grammars_are_refused_soon_and_in_a_line() {
    let files = Files::new();
    let model = files.write("m.gguf", &zeros::model(&tiny::metadata(&["a"])));
    let refused = |schema: &str| {
        let grammar = files.write("g.json", schema.as_bytes());
        let start = Instant::now();
        let args =
            ["generate", "a", "--no-chat", "--model", &model, "--max-tokens", "4", "--grammar", &grammar];
        let message = refuses(&args);
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        // The first line says which model it is; errors are the last.
        let error = message.lines().last().unwrap().to_owned();
        assert!(
            error.starts_with("error: ") && error.len() < 800 && message.lines().count() <= 3,
            "{message}"
        );
        error
    };
    let properties: Vec<_> = (0..10_000).map(|n| format!("\"p{n}\": {{}}")).collect();
    let schema = format!("{{\"type\": \"object\", \"properties\": {{{}}}}}", properties.join(","));
    assert!(refused(&schema).contains("has 10000 properties; at most 2000"));
    refused(r##"{"$ref": "#"}"##);
}
