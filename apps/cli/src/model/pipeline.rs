//! How each family of vocabularies cuts and spells text before it is merged into tokens.
//!
//! A GGUF file only names its pre-tokenizer; the model's makers fix the rules of a name.
//! A name that is not listed here is an error: text cut by the wrong rules still yields tokens.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::error::Result;
use super::gguf::Gguf;
use super::tokenizer::{Kind, Vocabulary, failed};

/// SentencePiece writes spaces as this.
const SPACE: char = '\u{2581}';

/// Llama 3's rule: words with one leading sign, up to three digits, runs of signs, spaces.
const LLAMA_BPE: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// Qwen 2's rule: the same with digits one by one.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The most bytes of all ways to halve all pieces; known vocabularies have ten million.
const MOST_MERGE_BYTES: usize = 1 << 27;

/// How a vocabulary writes bytes as characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte is one character of a fixed alphabet.
    ByteLevel { alphabet: HashMap<char, u8>, bos_by_default: bool },
    /// Text as it is, except spaces.
    SentencePiece,
}

/// Builds the tokenizer without its special tokens; the flag says that texts get a leading space.
pub(super) fn pipeline(
    gguf: &Gguf,
    vocabulary: &Vocabulary,
) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
    let model = gguf.text("tokenizer.ggml.model")?;
    match gguf.required("tokenizer.ggml.model", model)? {
        "gpt2" => byte_level(gguf, vocabulary),
        "llama" => sentence_piece(gguf, vocabulary),
        other => Err(gguf.unsupported(
            format!("the tokenizer `{other}`"),
            "`gpt2` (byte-level BPE) and `llama` (SentencePiece) are",
        )),
    }
}

fn byte_level(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
    let name = gguf.text("tokenizer.ggml.pre")?;
    let name = gguf.required("tokenizer.ggml.pre", name)?;
    // A leading space is never added; the last argument lets the byte level cut by GPT-2's rule itself.
    let cutting = ByteLevel::new(false, true, true);
    let (pre, ignore_merges): (PreTokenizerWrapper, bool) = match name {
        "smollm" => (Sequence::new(vec![Digits::new(true).into(), cutting.into()]).into(), false),
        "gpt-2" | "gpt2" => (cutting.into(), false),
        "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA_BPE)?, true),
        "qwen2" => (split(QWEN2)?, false),
        other => {
            return Err(gguf.unsupported(
                format!("the pre-tokenizer `{other}`"),
                "`smollm`, `gpt-2`, `llama-bpe` and `qwen2` are",
            ));
        }
    };

    let key = "tokenizer.ggml.merges";
    let merges = gguf.texts(key)?;
    let merges = gguf.required(key, merges)?.into_iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(gguf.malformed(format!("the merge `{merge}` has no two halves"))),
    });
    let merges = merges.collect::<Result<Vec<_>>>()?;
    let model = BPE::builder().vocab_and_merges(ids(vocabulary), merges).ignore_merges(ignore_merges);
    let mut tokenizer = tokenizers::Tokenizer::new(model.build().map_err(failed)?);
    tokenizer.with_pre_tokenizer(Some(pre));
    if name == "qwen2" {
        tokenizer.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    let spelling = Spelling::ByteLevel { alphabet: alphabet(), bos_by_default: ignore_merges };
    Ok((tokenizer, spelling, false))
}

fn sentence_piece(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<(tokenizers::Tokenizer, Spelling, bool)> {
    let key = "tokenizer.ggml.scores";
    let scores = gguf.numbers(key)?;
    let scores = gguf.required(key, scores)?;
    if scores.len() != vocabulary.texts.len() {
        let (scores, tokens) = (scores.len(), vocabulary.texts.len());
        return Err(gguf.malformed(format!("{scores} scores of {tokens} tokens")));
    }
    let prefix = gguf.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);

    let merges = merges_by_score(vocabulary, &scores).map_err(|reason| gguf.malformed(reason))?;
    let mut model =
        BPE::builder().vocab_and_merges(ids(vocabulary), merges).byte_fallback(true).fuse_unk(true);
    if let Some(unknown) = vocabulary.unknown {
        model = model.unk_token(vocabulary.texts[unknown as usize].clone());
    }
    let mut tokenizer = tokenizers::Tokenizer::new(model.build().map_err(failed)?);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if prefix {
        normalizers.push(Prepend::new(SPACE.into()).into());
    }
    normalizers.push(Replace::new(" ", String::from(SPACE)).map_err(failed)?.into());
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers))).map_err(failed)?;
    Ok((tokenizer, Spelling::SentencePiece, prefix))
}

/// SentencePiece merges the pair whose union scores best; as a list of merges, that is every way to halve
/// every piece, best score first, ids settling ties.
///
/// # Errors
/// Returns a sentence if the ways to merge pieces would not fit in memory.
fn merges_by_score(
    vocabulary: &Vocabulary,
    scores: &[f64],
) -> std::result::Result<Vec<(String, String)>, String> {
    let ids = ids(vocabulary);
    let mut merges = Vec::new();
    let mut bytes = 0;
    for (id, text) in vocabulary.texts.iter().enumerate() {
        if vocabulary.kinds[id] != Kind::Normal {
            continue;
        }
        let halves = text.char_indices().skip(1).map(|(middle, _)| text.split_at(middle));
        for (left, right) in halves {
            if let (Some(&a), Some(&b)) = (ids.get(left), ids.get(right)) {
                merges.push((scores[id], id, a, b, left, right));
                bytes += text.len();
            }
        }
        if bytes > MOST_MERGE_BYTES {
            return Err(format!("the halves of its tokens have more than {MOST_MERGE_BYTES} bytes"));
        }
    }
    merges.sort_by(|x, y| y.0.total_cmp(&x.0).then((x.1, x.2, x.3).cmp(&(y.1, y.2, y.3))));
    Ok(merges.into_iter().map(|(.., left, right)| (left.to_owned(), right.to_owned())).collect())
}

fn ids(vocabulary: &Vocabulary) -> Vocab {
    vocabulary.texts.iter().cloned().zip(0..).collect()
}

/// Cuts by a rule, then spells bytes.
fn split(rule: &str) -> Result<PreTokenizerWrapper> {
    let pattern = SplitPattern::Regex(rule.into());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(failed)?;
    Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into())
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes follow from U+0100 on.
fn alphabet() -> HashMap<char, u8> {
    let itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let plain = (0..=u8::MAX).filter(itself).map(|byte| (char::from(byte), byte));
    let moved = ('\u{100}'..).zip((0..=u8::MAX).filter(|byte| !itself(byte)));
    plain.chain(moved).collect()
}

impl Spelling {
    /// True where texts begin with the beginning-of-text token unless the file says otherwise.
    pub(super) fn bos_by_default(&self) -> bool {
        match self {
            Spelling::ByteLevel { bos_by_default, .. } => *bos_by_default,
            Spelling::SentencePiece => true,
        }
    }

    /// The bytes that a token stands for.
    pub(super) fn bytes(&self, text: &str, kind: Kind) -> Vec<u8> {
        match (self, kind) {
            (Spelling::ByteLevel { alphabet, .. }, Kind::Normal | Kind::Byte) => {
                let spelled = text.chars().map(|character| alphabet.get(&character).copied());
                spelled.collect::<Option<_>>().unwrap_or_else(|| text.into())
            }
            (Spelling::SentencePiece, Kind::Byte) => {
                let byte = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
                match byte.and_then(|byte| u8::from_str_radix(byte, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => text.into(),
                }
            }
            (Spelling::SentencePiece, Kind::Normal | Kind::UserDefined) => text.replace(SPACE, " ").into(),
            _ => text.into(),
        }
    }
}
