//! A conversation as the one text that a chat model was trained on, by the template in its file.
//!
//! Templates are Jinja as Python's `transformers` runs it: blocks trimmed, Python's string methods,
//! `raise_exception`. Tools and dates are left undefined, which templates allow for.
//!
//! A template is a program from a file that may be hostile. This module bounds how deep it nests, how many
//! steps it runs and how much text it writes; the process of its own in which the command runs it ([`Apart`])
//! bounds its memory.

use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};
use super::nesting;
use crate::apart::{Apart, Work, answer_all};

/// The most steps of a template; models' templates take a few thousand for a conversation.
const MOST_STEPS: u64 = 500_000;
/// The most bytes that a template may write; no context holds more.
const MOST_BYTES: usize = 16 << 20;
/// The stack that a template runs on: enough for values that nest once for every few steps.
const STACK_BYTES: usize = 256 << 20;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the message.
    pub content: String,
}

impl Message {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into() }
    }
}

/// A model's chat template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// - [`Error::Template`] if the template does not parse, refuses the messages, or takes too much.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        if let Some(reason) = nesting::excess(&self.source) {
            return Err(Error::Template(reason));
        }
        let task = Task { template: self.clone(), messages: messages.to_vec(), add_generation_prompt };
        match Apart::start(TEMPLATES) {
            Some(mut apart) => apart.ask(&task).map_err(Error::Template),
            None => self.render_here(messages, add_generation_prompt),
        }
    }

    /// Writes the messages in this process, on a stack of its own.
    fn render_here(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        std::thread::scope(|scope| {
            let run = || self.run(messages, add_generation_prompt, MOST_STEPS);
            match std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run) {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::Template("it made its interpreter panic".to_owned()))),
                // No thread can be started: on this stack, with as many steps as it has room for.
                Err(_) => self.run(messages, add_generation_prompt, MOST_STEPS / 10),
            }
        })
    }

    fn run(&self, messages: &[Message], add_generation_prompt: bool, steps: u64) -> Result<String> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_fuel(Some(steps));
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
        let mut text = Bounded(Vec::new());
        let template = environment.template_from_str(&self.source).map_err(failed)?;
        template.render_captured_to(values, &mut text).map_err(failed)?;
        String::from_utf8(text.0).map_err(|_| Error::Template("it wrote no text".to_owned()))
    }
}

/// Rendering templates in a process of its own.
pub(crate) const TEMPLATES: Work = ("__render-template", || answer_all(rendered));

/// A template and its input.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    template: ChatTemplate,
    messages: Vec<Message>,
    add_generation_prompt: bool,
}

fn rendered(task: Task) -> std::result::Result<String, String> {
    let rendered = task.template.render_here(&task.messages, task.add_generation_prompt);
    rendered.map_err(|error| match error {
        Error::Template(reason) => reason,
        error => error.to_string(),
    })
}

/// The output of a template, up to its bound.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_BYTES {
            return Err(io::Error::other(format!("it writes more than {MOST_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(error: minijinja::Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => "it takes too many steps".to_owned(),
        // What `Bounded` says is the source of minijinja's own words.
        ErrorKind::WriteFailure => format!("it writes more than {MOST_BYTES} bytes"),
        _ => error.to_string(),
    };
    Error::Template(reason)
}
