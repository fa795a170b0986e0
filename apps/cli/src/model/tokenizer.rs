//! Text to tokens and tokens to bytes, by the vocabulary that a GGUF file carries.
//!
//! The merging is the `tokenizers` crate's; what stands before it (how text is cut, spelled and prefixed)
//! is [`pipeline`](super::pipeline). Going back needs no decoder: every token is a string of bytes, and a
//! text is their concatenation. Tokens of the kinds control and unknown have bytes for grammars to match,
//! yet add nothing to a text.

use gumball_spec::MAX_VOCAB;
use tokenizers::AddedToken;

use super::error::{Error, Result};
use super::gguf::Gguf;
use super::pipeline::pipeline;

/// Texts by which end-of-turn tokens are known; files name only one end by metadata.
const ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<|end|>",
    "<|end_of_turn|>",
    "</s>",
];

/// The longest text of a token: the longest of known vocabularies are runs of 128 blanks, spelled in 256
/// bytes.
const LONGEST_TOKEN_BYTES: usize = 1024;
/// The most bytes of all tokens; known vocabularies have four million.
const MOST_TOKEN_BYTES: usize = 1 << 25;

/// The kind of a token, by GGUF's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The vocabulary as the file lists it.
#[derive(Debug)]
pub(super) struct Vocabulary {
    pub(super) texts: Vec<String>,
    pub(super) kinds: Vec<Kind>,
    pub(super) unknown: Option<u32>,
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: Vec<Vec<u8>>,
    vocabulary: Vocabulary,
    bos: Option<u32>,
    /// The one that the file names as such.
    end: Option<u32>,
    eos: Vec<u32>,
    starts_with_bos: bool,
    pub(super) space_prefix: bool,
}

impl Tokenizer {
    /// Builds the tokenizer of a model.
    ///
    /// Known are byte-level BPE with the pre-tokenizers `smollm`, `gpt-2`, `llama-bpe` and `qwen2`, and
    /// SentencePiece's `llama` with byte fallback.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] for any other tokenizer: one that cuts text differently would not fail, it
    ///   would make the model worse.
    /// - [`Error::Malformed`] or [`Error::Tokenizer`] if the vocabulary does not make sense.
    pub fn load(gguf: &Gguf) -> Result<Self> {
        let vocabulary = Vocabulary::read(gguf)?;
        let (mut inner, spelling, space_prefix) = pipeline(gguf, &vocabulary)?;
        let added = vocabulary.texts.iter().zip(&vocabulary.kinds).filter_map(|(text, kind)| match kind {
            Kind::Control | Kind::UserDefined if !text.is_empty() => {
                Some(AddedToken::from(text.clone(), *kind == Kind::Control).normalized(false))
            }
            _ => None,
        });
        inner.add_tokens(added).map_err(failed)?;

        let count = vocabulary.texts.len();
        let id = |key: &str| -> Result<Option<u32>> {
            match gguf.integer(key)? {
                Some(id) if id >= count => Err(gguf.malformed(format!("`{key}` is {id}, of {count} tokens"))),
                id => Ok(id.map(|id| id as u32)),
            }
        };
        let bos = id("tokenizer.ggml.bos_token_id")?;
        let end = id("tokenizer.ggml.eos_token_id")?;
        let mut eos: Vec<u32> = end.into_iter().chain(id("tokenizer.ggml.eot_token_id")?).collect();
        eos.extend((0..count as u32).filter(|&id| {
            vocabulary.kinds[id as usize] == Kind::Control
                && ENDS.contains(&vocabulary.texts[id as usize].as_str())
        }));
        eos.sort_unstable();
        eos.dedup();

        let bytes =
            (0..count).map(|id| spelling.bytes(&vocabulary.texts[id], vocabulary.kinds[id])).collect();
        let starts_with_bos =
            gguf.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(spelling.bos_by_default()) && bos.is_some();
        Ok(Tokenizer { inner, bytes, vocabulary, bos, end, eos, starts_with_bos, space_prefix })
    }

    /// Tokens in the vocabulary; the model's logits may have more elements, as padding.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True of a vocabulary without tokens.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The token that begins a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The one token that the file names as the end of a text.
    pub(super) fn eos_named(&self) -> Option<u32> {
        self.end
    }

    /// The tokens that end a text or a turn, ascending.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// True of a token that ends a text or a turn.
    pub fn is_eos(&self, token: u32) -> bool {
        self.eos.binary_search(&token).is_ok()
    }

    /// True of a token that stands for no text: control, unknown and unused ones, and ids beyond the
    /// vocabulary.
    pub fn is_special(&self, token: u32) -> bool {
        let kind = self.vocabulary.kinds.get(token as usize);
        !matches!(kind, Some(Kind::Normal | Kind::UserDefined | Kind::Byte))
    }

    /// The bytes of a token, which need not be whole characters; empty for ids beyond the vocabulary.
    ///
    /// A special token's bytes are its name, `<|im_end|>` say.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// The token of that name, as the file spells it (`<|im_end|>`, `Ġworld`).
    pub fn token(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(name)
    }

    /// A token's text in the file; empty for ids beyond the vocabulary.
    pub fn name(&self, token: u32) -> &str {
        self.vocabulary.texts.get(token as usize).map_or("", String::as_str)
    }

    /// The tokens of a text. Names of special tokens in it become those tokens.
    ///
    /// Bytes that a byte-level vocabulary does not spell (SmolLM2 lacks six control characters and the
    /// planes 4 to 11 of Unicode) are left out, as the model's own tokenizer does.
    ///
    /// # Errors
    /// - [`Error::Tokenizer`] if the text cannot be cut.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.inner.encode_fast(text, false).map_err(failed)?.get_ids().to_vec())
    }

    /// The tokens of a prompt: the text's tokens, after the beginning-of-text token where the model wants one
    /// and the text does not bring it.
    ///
    /// # Errors
    /// - [`Error::Tokenizer`] if the text cannot be cut.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = self.encode(text)?;
        if self.starts_with_bos && tokens.first().copied() != self.bos {
            tokens.splice(0..0, self.bos);
        }
        Ok(tokens)
    }

    /// A token's own text, as a person reads it: bytes that are no UTF-8 by themselves as `<F0 9F>`.
    pub fn readable(&self, token: u32) -> String {
        let bytes = self.token_bytes(token);
        let hexadecimal = || bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(" ");
        std::str::from_utf8(bytes).map_or_else(|_| format!("<{}>", hexadecimal()), str::to_owned)
    }

    /// The text of tokens from its beginning; special tokens add nothing, broken UTF-8 becomes U+FFFD.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let text = tokens.iter().filter(|&&token| !self.is_special(token));
        let bytes: Vec<u8> = text.flat_map(|&token| self.token_bytes(token)).copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        match text.strip_prefix(' ').filter(|_| self.space_prefix) {
            Some(rest) => rest.to_owned(),
            None => text.into_owned(),
        }
    }
}

impl Vocabulary {
    fn read(gguf: &Gguf) -> Result<Self> {
        let key = "tokenizer.ggml.tokens";
        let texts = gguf.texts(key)?;
        let texts = gguf.required(key, texts)?;
        check_lengths(gguf, &texts)?;
        let kinds = match gguf.numbers("tokenizer.ggml.token_type")? {
            None => vec![Kind::Normal; texts.len()],
            Some(kinds) => kinds.into_iter().map(Kind::new).collect(),
        };
        if kinds.len() != texts.len() {
            return Err(gguf.malformed(format!("{} token types of {} tokens", kinds.len(), texts.len())));
        }
        let unknown = gguf.integer("tokenizer.ggml.unknown_token_id")?.filter(|&id| id < texts.len());
        Ok(Vocabulary { texts, kinds, unknown: unknown.map(|id| id as u32) })
    }
}

/// Refuses vocabularies whose texts are so long that cutting by them would never end.
fn check_lengths(gguf: &Gguf, texts: &[String]) -> Result<()> {
    if let Some((id, text)) = texts.iter().enumerate().find(|(_, text)| text.len() > LONGEST_TOKEN_BYTES) {
        let length = text.len();
        return Err(gguf.malformed(format!(
            "token {id} has {length} bytes, but must have at most {LONGEST_TOKEN_BYTES}"
        )));
    }
    let bytes: usize = texts.iter().map(String::len).sum();
    if texts.len() > MAX_VOCAB || bytes > MOST_TOKEN_BYTES {
        let reason = format!(
            "{} tokens of {bytes} bytes in all, but must be at most {MAX_VOCAB} of {MOST_TOKEN_BYTES}",
            texts.len()
        );
        return Err(gguf.malformed(reason));
    }
    Ok(())
}

impl Kind {
    fn new(number: f64) -> Self {
        match number as i64 {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }
}

pub(super) fn failed(error: tokenizers::Error) -> Error {
    Error::Tokenizer(error.to_string())
}
