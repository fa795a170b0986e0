//! A grammar that the text must follow: which tokens it allows next, as a bitmask.
//!
//! JSON schemas and Lark grammars are compiled by `llguidance`. Only complete text follows a grammar, so
//! whoever stops early must ask [`Grammar::is_complete`].

use std::path::Path;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::model::Tokenizer;
use crate::output::without_middle;
use crate::{Error, Result, reading};

/// The most properties of an object. The time to compile grows with their square: 1,000 take a third of a second, 10,000 half a
/// minute.
const MOST_PROPERTIES: usize = 2000;

/// A grammar, and how far a text has followed it.
pub struct Grammar {
    matcher: Matcher,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("stopped", &self.matcher.is_stopped()).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Compiles the grammar of a file for a vocabulary: a JSON schema (`.json`) or a Lark grammar (`.lark`).
    ///
    /// # Errors
    /// - [`Error::File`] if the file has another name or cannot be read, or the grammar does not compile.
    /// - [`Error::Usage`] if the vocabulary has no token that ends a text.
    pub fn load(path: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let text = reading::text(path)?;
        let grammar = match path.extension().and_then(|kind| kind.to_str()) {
            Some("json") => {
                let schema: Value = serde_json::from_str(&text)
                    .map_err(|error| Error::file(path, format!("no valid JSON ({error})")))?;
                if let Some(count) = widest(&schema).filter(|count| *count > MOST_PROPERTIES) {
                    let reason = format!(
                        "an object of the schema has {count} properties; at most {MOST_PROPERTIES} are taken"
                    );
                    return Err(Error::file(path, reason));
                }
                TopLevelGrammar::from_json_schema(schema)
            }
            Some("lark") => TopLevelGrammar::from_lark(text),
            _ => return Err(Error::file(path, "a grammar's name ends in .json (a JSON schema) or .lark")),
        };
        // The compiler draws the place below its message; the message names it too.
        let wrong = |error: String| {
            Error::file(path, format!("the grammar does not compile: {}", first_line(&error)))
        };
        let mut factory =
            ParserFactory::new_simple(&vocabulary(tokenizer)?).map_err(|error| wrong(error.to_string()))?;
        factory.quiet();
        // Verbose errors print the parser's state, which helps only its developers.
        factory.limits_mut().verbose_errors = false;
        let matcher = Matcher::new(factory.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(wrong(error)),
            None => Ok(Self { matcher }),
        }
    }

    /// Returns the ids allowed next: bit `id % 32` of word `id / 32`.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the grammar grows beyond what its engine handles.
    pub fn mask(&mut self) -> Result<Vec<u32>> {
        Ok(self.matcher.compute_mask_or_eos().map_err(|error| failed(&error))?.as_slice().to_vec())
    }

    /// Follows a token that the mask allowed.
    ///
    /// # Errors
    /// - [`Error::Usage`] if it did not.
    pub fn follow(&mut self, token: u32) -> Result<()> {
        self.matcher.consume_token(token).map_err(|error| failed(&error))
    }

    /// Goes back to before the last tokens that were followed.
    ///
    /// # Errors
    /// - [`Error::Usage`] if there are fewer.
    pub fn go_back(&mut self, tokens: usize) -> Result<()> {
        self.matcher.rollback(tokens).map_err(|error| failed(&error))
    }

    /// Returns whether the text may end here.
    pub fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Returns whether the text must end here.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.matcher.is_stopped()
    }
}

fn failed(error: &impl std::fmt::Display) -> Error {
    Error::Usage(format!("--grammar: {}", first_line(&error.to_string())))
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

/// Returns the vocabulary as the grammar's engine takes it: bytes, special tokens marked.
fn vocabulary(tokenizer: &Tokenizer) -> Result<TokEnv> {
    let Some(end) = tokenizer.eos().first() else {
        return Err(Error::Usage("--grammar: the model has no token that ends a text".to_owned()));
    };
    let word = |id: u32| {
        let bytes = tokenizer.token_bytes(id);
        if tokenizer.is_special(id) {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
        } else {
            bytes.to_vec()
        }
    };
    let words: Vec<Vec<u8>> = (0..tokenizer.len() as u32).map(word).collect();
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, *end), &words);
    Ok(Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(tokenizer.eos()))))
}
