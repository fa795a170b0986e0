//! A grammar that the text must follow: which tokens it allows next, as a bitmask.
//!
//! JSON schemas and Lark grammars are compiled by `llguidance`, in a process of its own where the command can
//! start one (`Apart`), because the grammar decides how much time, memory and stack its compiler takes. Only
//! complete text follows a grammar, so a caller that stops early must ask [`Grammar::is_complete`].

use std::path::Path;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};

use crate::apart::{Apart, Work, answer_all};
use crate::model::Tokenizer;
use crate::output::without_middle;
use crate::{Error, Result, reading};

/// The most properties of an object. The time to compile grows with their square: 1,000 take a third of a
/// second, 10,000 half a minute.
const MOST_PROPERTIES: usize = 2000;

/// Compiling a grammar and following it, in a process of its own.
pub(crate) const GRAMMARS: Work = ("__follow-grammar", || {
    let mut engine = Engine::default();
    answer_all(|question| engine.answer(question))
});

/// A grammar, and how far a text has followed it.
#[derive(Debug)]
pub struct Grammar {
    engine: Place,
    /// Of the text so far.
    state: State,
}

/// Where the engine is.
#[derive(Debug)]
enum Place {
    Here(Box<Engine>),
    Apart(Apart),
}

/// The engine of a grammar; without a matcher until it has compiled one.
#[derive(Default)]
pub(crate) struct Engine(Option<Matcher>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// A question to the engine.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// To compile a grammar.
    Compile(Source),
    /// For the mask of the next token.
    Mask,
    /// To follow a token.
    Follow(u32),
    /// To go back by a number of tokens.
    GoBack(usize),
}

/// A grammar and the vocabulary it is compiled for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Source {
    is_schema: bool,
    text: String,
    /// The bytes of each token; the bytes of special tokens are marked.
    words: Vec<Vec<u8>>,
    /// The tokens that end a text.
    eos: Vec<u32>,
}

/// An answer of the engine.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The ids allowed next, if that was asked.
    mask: Vec<u32>,
    state: State,
}

/// The state of a text.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct State {
    is_complete: bool,
    is_over: bool,
}

impl Grammar {
    /// Compiles the grammar of a file for a vocabulary: a JSON schema (`.json`) or a Lark grammar (`.lark`).
    ///
    /// # Errors
    /// - [`Error::File`] if the file has another name or cannot be read, or the grammar does not compile
    ///   within the bounds.
    /// - [`Error::Usage`] if the vocabulary has no token that ends a text.
    pub fn load(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let is_schema = match path.extension().and_then(|kind| kind.to_str()) {
            Some("json") => true,
            Some("lark") => false,
            _ => return Err(Error::file(path, "a grammar's name ends in .json (a JSON schema) or .lark")),
        };
        let text = reading::text(path)?;
        let source = Source { is_schema, text, words: words(tokenizer)?, eos: tokenizer.eos().to_vec() };
        let engine = Apart::start(GRAMMARS).map_or_else(|| Place::Here(Box::default()), Place::Apart);
        let mut grammar = Self { engine, state: State::default() };
        grammar.ask(Question::Compile(source)).map_err(|reason| Error::file(path, reason))?;
        Ok(grammar)
    }

    /// Returns the ids allowed next: bit `id % 32` of word `id / 32`.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the grammar grows beyond what its engine handles.
    pub fn mask(&mut self) -> Result<Vec<u32>> {
        self.ask(Question::Mask).map_err(failed)
    }

    /// Follows a token that the mask allowed.
    ///
    /// # Errors
    /// - [`Error::Usage`] if it did not.
    pub fn follow(&mut self, token: u32) -> Result<()> {
        self.ask(Question::Follow(token)).map(drop).map_err(failed)
    }

    /// Goes back to before the last tokens that were followed.
    ///
    /// # Errors
    /// - [`Error::Usage`] if there are fewer.
    pub fn go_back(&mut self, tokens: usize) -> Result<()> {
        if tokens == 0 {
            return Ok(());
        }
        self.ask(Question::GoBack(tokens)).map(drop).map_err(failed)
    }

    /// Returns whether the text may end here.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state.is_complete
    }

    /// Returns whether the text must end here.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state.is_over
    }

    /// Asks the engine, and keeps what it says of the text.
    fn ask(&mut self, question: Question) -> Result<Vec<u32>, String> {
        let answer: Answer = match &mut self.engine {
            Place::Here(engine) => engine.answer(question)?,
            Place::Apart(apart) => apart.ask(&question).map_err(|reason| format!("the grammar: {reason}"))?,
        };
        self.state = answer.state;
        Ok(answer.mask)
    }
}

impl Engine {
    /// Answers a question; the first one is a grammar.
    ///
    /// # Errors
    /// The error in the grammar, or in the token.
    pub(crate) fn answer(&mut self, question: Question) -> Result<Answer, String> {
        let said = |error: &dyn std::fmt::Display| first_line(&error.to_string());
        let mut mask = Vec::new();
        let matcher = match question {
            Question::Compile(source) => self.0.insert(source.compile()?),
            question => {
                let matcher = self.0.as_mut().ok_or("there is none yet")?;
                match question {
                    Question::Follow(token) => {
                        matcher.consume_token(token).map_err(|error| said(&error))?;
                    }
                    Question::GoBack(tokens) => matcher.rollback(tokens).map_err(|error| said(&error))?,
                    _ => {
                        let allowed = matcher.compute_mask_or_eos().map_err(|error| said(&error))?;
                        mask = allowed.as_slice().to_vec();
                    }
                }
                matcher
            }
        };
        let is_over = matcher.is_stopped();
        let is_complete = is_over && !matcher.is_error() || matcher.is_accepting().unwrap_or(false);
        Ok(Answer { mask, state: State { is_complete, is_over } })
    }
}

impl Source {
    fn compile(self) -> Result<Matcher, String> {
        let grammar = if self.is_schema {
            let schema: Value =
                serde_json::from_str(&self.text).map_err(|error| format!("no valid JSON ({error})"))?;
            if let Some(count) = widest(&schema).filter(|count| *count > MOST_PROPERTIES) {
                return Err(format!(
                    "an object of the schema has {count} properties; at most {MOST_PROPERTIES} are taken"
                ));
            }
            TopLevelGrammar::from_json_schema(schema)
        } else {
            TopLevelGrammar::from_lark(self.text)
        };
        let trie = TokTrie::from(&TokRxInfo::new(self.words.len() as u32, self.eos[0]), &self.words);
        let vocabulary = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&self.eos)));
        // The compiler draws the place below its message; the message names it too.
        let wrong = |error: String| format!("the grammar does not compile: {}", first_line(&error));
        let mut factory =
            ParserFactory::new_simple(&(vocabulary as _)).map_err(|error| wrong(error.to_string()))?;
        factory.quiet();
        // Verbose errors print the parser's state, which helps only its developers.
        factory.limits_mut().verbose_errors = false;
        let matcher = Matcher::new(factory.create_parser(grammar));
        matcher.get_error().map_or(Ok(matcher), |error| Err(wrong(error)))
    }
}

fn failed(reason: String) -> Error {
    Error::Usage(format!("--grammar: {reason}"))
}

/// Returns the first line of an error that says something, as much of it as one reads.
fn first_line(error: &str) -> String {
    without_middle(error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default(), 300)
}

/// Returns the number of properties of the object of a schema that has most.
fn widest(schema: &Value) -> Option<usize> {
    let below: Vec<&Value> = match schema {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return None,
    };
    let own = schema.get("properties").and_then(Value::as_object).map(serde_json::Map::len);
    below.into_iter().filter_map(widest).chain(own).max()
}

/// Returns the bytes of each token as the grammar's engine takes them, special tokens marked.
fn words(tokenizer: &Tokenizer) -> Result<Vec<Vec<u8>>> {
    if tokenizer.eos().is_empty() {
        return Err(Error::Usage("--grammar: the model has no token that ends a text".to_owned()));
    }
    let word = |id: u32| {
        let bytes = tokenizer.token_bytes(id);
        if tokenizer.is_special(id) {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
        } else {
            bytes.to_vec()
        }
    };
    Ok((0..tokenizer.len() as u32).map(word).collect())
}
