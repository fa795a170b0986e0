//! Random bytes for everything of the command that reads a file: each body for a bounded time, from a seed.
//!
//! A body panics when something is wrong. An ordinary test gives each a second; `GUMBALL_FUZZ_SECONDS` gives
//! more, and `GUMBALL_FUZZ_SEED` another start. An input that fails is printed as hex, and becomes a test
//! with a name. The bodies of the library stand in `proof/conformance/src/fuzz.rs`.

use std::time::{Duration, Instant};

use candle_core::quantized::gguf_file::Value;
use gumball_cli::logits;
use gumball_cli::model::{ChatTemplate, Gguf, Llama, Message, Tokenizer};

use crate::support::{Files, npy};
use crate::tiny;
use crate::zeros;

/// The longest that a single input may take.
const LONGEST: Duration = Duration::from_secs(20);

/// SplitMix64.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Damages a sound file: bytes overwritten, wild lengths put in, a cut, a piece doubled.
    fn damaged(&mut self, sound: &[u8], head: usize) -> Vec<u8> {
        let mut bytes = sound.to_vec();
        for _ in 0..=self.below(4) {
            let place = self.below(bytes.len().min(head));
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[place] = self.next() as u8,
                1 if !bytes.is_empty() => bytes[place] ^= 1 << self.below(8),
                2 => {
                    let wild = [0, 1, 0xFFFF_FFFF, 1 << 31, 1 << 40, 1 << 63, u64::MAX][self.below(7)];
                    let end = (place + 8).min(bytes.len());
                    bytes[place..end].copy_from_slice(&u64::to_le_bytes(wild)[..end - place]);
                }
                3 => bytes.truncate(place.max(1)),
                _ => {
                    let piece = bytes[place..(place + self.below(32)).min(bytes.len())].to_vec();
                    bytes.splice(place..place, piece);
                }
            }
        }
        bytes
    }
}

/// Runs a body on random inputs until its time is over.
fn run(name: &str, mut input: impl FnMut(&mut Words) -> Vec<u8>, body: impl Fn(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let until = Instant::now() + Duration::from_secs(number("GUMBALL_FUZZ_SECONDS").unwrap_or(1));
    let seed = number("GUMBALL_FUZZ_SEED").unwrap_or(1);
    let mut words = Words(seed);
    let mut runs = 0;
    while Instant::now() < until {
        let data = input(&mut words);
        let start = Instant::now();
        let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&data)));
        runs += 1;
        let hex = || gumball_spec::hex::hex(&data[..data.len().min(4096)]);
        assert!(went.is_ok(), "{name}: failed in run {runs}, seed {seed}: {}", hex());
        assert!(
            start.elapsed() < LONGEST,
            "{name}: {:?} in run {runs}, seed {seed}: {}",
            start.elapsed(),
            hex()
        );
    }
    println!("{name}: {runs} runs, seed {seed}");
}

#[test]
fn any_gguf_is_a_model_or_refused() {
    let files = Files::new();
    let sound = zeros::model(&tiny::metadata(&["a", "b", "ab"]));
    let header = sound.len() - 7 * 32 * 32 * 4;
    let body = |data: &[u8]| {
        let path = files.write("fuzz.gguf", data);
        if let Ok(mut gguf) = Gguf::open(path.as_ref()) {
            let _ = Llama::load(&mut gguf);
            if let Ok(tokenizer) = Tokenizer::load(&gguf) {
                let _ = tokenizer.encode("a ab b");
            }
        }
    };
    body(&sound);
    run("gguf", |words| words.damaged(&sound, header), body);
}

#[test]
fn any_vocabulary_cuts_text_into_tokens_that_come_back_or_is_refused() {
    let files = Files::new();
    let body = |data: &[u8]| {
        let texts: Vec<String> =
            data.chunks(5).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect();
        let mut metadata = tiny::metadata(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let Some(Value::Array(kinds)) = metadata.get_mut("tokenizer.ggml.token_type") else { panic!() };
        for (kind, byte) in kinds[259..].iter_mut().zip(data) {
            *kind = Value::I32(i32::from(byte % 8));
        }
        let path = files.write("fuzz.gguf", &zeros::model(&metadata));
        let gguf = Gguf::open(path.as_ref()).expect("a sound header");
        let Ok(tokenizer) = Tokenizer::load(&gguf) else { return };
        let text = String::from_utf8_lossy(data);
        let tokens = tokenizer.encode(&text).expect("all bytes are tokens");
        assert!(tokens.iter().all(|token| (*token as usize) < tokenizer.len()));
        let _ = tokenizer.decode(&tokens);
    };
    let input = |words: &mut Words| {
        let length = words.below(120);
        (0..length).map(|_| b"ab <\xe2\x96\x81s>\0\xff"[words.below(11)]).collect()
    };
    run("tokenizer", input, body);
}

#[test]
fn any_template_writes_a_text_or_is_refused() {
    let parts = concat!(
        "{{ ¦ }}¦{% ¦ %}¦{%- ¦ -%}¦{# ¦ #}¦for m in messages¦endfor¦if x¦elif y¦else¦endif¦m.role¦",
        "m['content']¦messages[0]¦set x = ¦x¦1¦99999999999¦'a'¦ ~ ¦ + ¦ * ¦ not ¦ | ¦length¦",
        "replace('a', 'bbbb')¦range(100000)¦tojson¦trim¦(¦)¦[¦]¦{¦}¦bos_token¦macro f(a)¦endmacro¦",
        "f(f)¦namespace(x=1)¦n.x¦raise_exception('no')¦loop.index0¦is defined¦in¦\n¦é¦%d¦format(1)¦",
        "join¦batch(2)¦%5d",
    );
    let parts: Vec<&str> = parts.split('¦').collect();
    let body = |data: &[u8]| {
        let source: String = data.iter().map(|byte| parts[usize::from(*byte) % parts.len()]).collect();
        let messages = [Message::new("user", "hi"), Message::new("assistant", "ho")];
        let template = ChatTemplate::new(source, "<s>", "</s>");
        if let Err(error) = template.render(&messages, true) {
            assert!(!error.to_string().contains("panic"), "{error}");
        }
    };
    let input = |words: &mut Words| (0..words.below(40)).map(|_| words.next() as u8).collect();
    run("template", input, body);
}

#[test]
fn any_array_is_rows_or_refused() {
    let files = Files::new();
    let sound = npy("<f4", "(2, 3)", &[0; 24]);
    let body = |data: &[u8]| {
        let file = files.write("fuzz.npy", data);
        if let Ok(read) = logits::read(file.as_ref(), None, None, None) {
            assert!(read.logits.rows() > 0 && read.logits.bytes().len() <= data.len());
        }
    };
    body(&sound);
    run("npy", |words| words.damaged(&sound, 128), body);
}

#[test]
fn any_safetensors_is_rows_or_refused() {
    let files = Files::new();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 3], &[0; 24]).unwrap();
    let sound = safetensors::serialize([("logits", view)], None).unwrap();
    let body = |data: &[u8]| {
        let file = files.write("fuzz.safetensors", data);
        if let Ok(read) = logits::read(file.as_ref(), None, None, None) {
            assert!(read.logits.rows() > 0 && read.logits.bytes().len() <= data.len());
        }
    };
    body(&sound);
    run("safetensors", |words| words.damaged(&sound, sound.len()), body);
}
