//! Tokenizers of the families that the default model does not cover, on vocabularies of a few tokens.

use candle_core::quantized::gguf_file::Value;
use gumball_cli::model::{Error, TokenStream, Tokenizer};

use crate::made::{self, Metadata};

/// A list of texts as GGUF has it.
fn texts<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    Value::Array(items.into_iter().map(|item| Value::String(item.into())).collect())
}

/// A byte-level vocabulary: printable ASCII, the spelt space and line break, then what merges give.
fn byte_level(pre: &str) -> Result<Tokenizer, Error> {
    let mut tokens: Vec<String> = ('!'..='~').chain("ĠĊ".chars()).map(String::from).collect();
    let merges = ["1 2", "12 3", "123 4", "h i", "Ġ hi", "Ċ Ċ", "Ġ Ġ"];
    tokens.extend(merges.map(|merge| merge.replace(' ', "")));
    tokens.extend(["unmergeable".into(), "<|end_of_text|>".into(), "<|eot_id|>".into()]);
    let mut kinds = vec![Value::I32(1); tokens.len()];
    let count = kinds.len();
    kinds[count - 2..].fill(Value::I32(3));
    let metadata = Metadata::from([
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        ("tokenizer.ggml.tokens".into(), texts(tokens.iter().map(String::as_str))),
        ("tokenizer.ggml.token_type".into(), Value::Array(kinds)),
        ("tokenizer.ggml.merges".into(), texts(merges)),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(count as u32 - 2)),
        ("tokenizer.ggml.eos_token_id".into(), Value::U32(count as u32 - 2)),
    ]);
    Tokenizer::load(&made::open(&metadata, &[])?)
}

fn pieces(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let tokens = tokenizer.encode(text).expect("text encodes");
    tokens.iter().map(|&token| tokenizer.name(token).to_owned()).collect()
}

#[test]
fn each_pre_tokenizer_cuts_digits_its_own_way() {
    let cut = |pre: &str| pieces(&byte_level(pre).expect(pre), "hi 12341");
    assert_eq!(cut("smollm"), ["hi", "Ġ", "1", "2", "3", "4", "1"]);
    assert_eq!(cut("gpt-2"), ["hi", "Ġ", "1234", "1"]);
    assert_eq!(cut("llama-bpe"), ["hi", "Ġ", "123", "4", "1"]);
    assert_eq!(cut("qwen2"), ["hi", "Ġ", "1", "2", "3", "4", "1"]);
}

#[test]
fn words_keep_their_space_and_runs_of_spaces_give_one_to_the_word() {
    for pre in ["smollm", "gpt-2", "llama-bpe", "qwen2"] {
        let tokenizer = byte_level(pre).expect(pre);
        assert_eq!(pieces(&tokenizer, "hi hi   hi"), ["hi", "Ġhi", "ĠĠ", "Ġhi"], "{pre}");
        assert_eq!(pieces(&tokenizer, "hi<|eot_id|>hi"), ["hi", "<|eot_id|>", "hi"], "{pre}");
        assert_eq!(tokenizer.eos(), [104, 105], "{pre}: both ends are known");
    }
}

#[test]
fn llama_bpe_takes_whole_words_and_begins_with_a_token() {
    let llama = byte_level("llama-bpe").expect("a tokenizer");
    assert_eq!(pieces(&llama, "unmergeable"), ["unmergeable"], "a word in the vocabulary needs no merges");
    let prompt = llama.encode_prompt("hi").expect("text encodes");
    assert_eq!(prompt.first().copied(), llama.bos());
    let own = llama.encode_prompt("<|end_of_text|>hi").expect("text encodes");
    assert_eq!(own, prompt, "not twice");

    let gpt2 = byte_level("gpt-2").expect("a tokenizer");
    assert_eq!(pieces(&gpt2, "unmergeable").len(), "unmergeable".len());
    assert_ne!(gpt2.encode_prompt("hi").expect("text encodes").first().copied(), gpt2.bos());
}

#[test]
fn an_unknown_pre_tokenizer_or_model_is_an_error_and_no_guess() {
    let error = byte_level("tekken").expect_err("unknown");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("`tekken`"), "{error}");

    let metadata = Metadata::from([
        ("tokenizer.ggml.model".into(), Value::String("t5".into())),
        ("tokenizer.ggml.tokens".into(), texts(["a"])),
    ]);
    let gguf = made::open(&metadata, &[]).expect("a sound file");
    assert!(matches!(Tokenizer::load(&gguf), Err(Error::Unsupported { .. })));
}

/// A SentencePiece vocabulary in which "ab" scores above "bc", and "abc" comes only of "ab" and "c".
fn sentence_piece(space_prefix: bool) -> Tokenizer {
    let mut tokens: Vec<(String, f32, i32)> =
        [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)].map(|(t, s, k)| (t.into(), s, k)).into();
    tokens.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    let pieces = [("ab", -1.0), ("bc", -2.0), ("▁abc", -3.0), ("▁ab", -4.0), ("▁", -5.0), ("a", -6.0)];
    tokens.extend(pieces.map(|(text, score)| (text.into(), score, 1)));
    tokens.extend([("b", -7.0), ("c", -8.0)].map(|(text, score)| (text.into(), score, 1)));
    let metadata = Metadata::from([
        ("tokenizer.ggml.model".into(), Value::String("llama".into())),
        ("tokenizer.ggml.tokens".into(), texts(tokens.iter().map(|(text, ..)| text.as_str()))),
        (
            "tokenizer.ggml.scores".into(),
            Value::Array(tokens.iter().map(|token| Value::F32(token.1)).collect()),
        ),
        (
            "tokenizer.ggml.token_type".into(),
            Value::Array(tokens.iter().map(|token| Value::I32(token.2)).collect()),
        ),
        ("tokenizer.ggml.add_space_prefix".into(), Value::Bool(space_prefix)),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(1)),
        ("tokenizer.ggml.eos_token_id".into(), Value::U32(2)),
        ("tokenizer.ggml.unknown_token_id".into(), Value::U32(0)),
    ]);
    Tokenizer::load(&made::open(&metadata, &[]).expect("a sound file")).expect("a tokenizer")
}

#[test]
fn sentence_piece_merges_the_best_score_first() {
    let tokenizer = sentence_piece(false);
    assert_eq!(pieces(&tokenizer, "abc"), ["ab", "c"], "`ab` scores above `bc`");
    assert_eq!(pieces(&tokenizer, "bc ab"), ["bc", "▁ab"]);
    assert_eq!(pieces(&tokenizer, "<s>a</s>"), ["<s>", "a", "</s>"]);
    assert_eq!(tokenizer.encode_prompt("a").expect("text encodes")[0], 1, "texts begin with <s>");
}

#[test]
fn sentence_piece_falls_back_to_bytes_and_comes_back_whole() {
    for space_prefix in [false, true] {
        let tokenizer = sentence_piece(space_prefix);
        for text in ["abc", "a b  c", "naïve 🎈", " ab"] {
            let tokens = tokenizer.encode(text).expect("text encodes");
            assert_eq!(tokenizer.decode(&tokens), text, "{space_prefix}");
        }
        let balloon = tokenizer.encode("🎈").expect("text encodes");
        assert_eq!(tokenizer.token_bytes(*balloon.last().expect("a byte")), [0x88]);
        let mut stream = TokenStream::new(&tokenizer);
        let text: String = balloon.iter().map(|&token| stream.push(token)).collect();
        assert_eq!(text.trim_start(), "🎈", "a stream keeps the space before the first word");
    }
}
