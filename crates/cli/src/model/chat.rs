//! A conversation as the one text that a chat model was trained on, by the template in its file.
//!
//! Templates are Jinja as Python's `transformers` runs it: blocks trimmed, Python's string methods,
//! `raise_exception`. Tools and dates are left undefined, which templates allow for.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};

use super::error::{Error, Result};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A model's chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Takes a template's source and the names of the tokens that begin and end a text.
    pub fn new(source: impl Into<String>, bos: impl Into<String>, eos: impl Into<String>) -> Self {
        ChatTemplate { source: source.into(), bos: bos.into(), eos: eos.into() }
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Writes the messages as one text, open for the assistant's answer if `add_generation_prompt`.
    ///
    /// # Errors
    /// - [`Error::Template`] if the template does not parse or refuses the messages.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |reason: String| -> std::result::Result<(), _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        });
        let turns: Value = messages
            .iter()
            .map(|turn| Value::from_pairs([("role", turn.role.as_str()), ("content", turn.content.as_str())]))
            .collect();
        let values = context! {
            messages => turns,
            add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        environment.render_str(&self.source, values).map_err(failed)
    }
}

fn failed(error: minijinja::Error) -> Error {
    Error::Template(error.to_string())
}
