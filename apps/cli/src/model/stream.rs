//! Text as tokens arrive: whole characters are written at once, half a character waits for its other half.

use super::tokenizer::Tokenizer;

/// Turns a stream of tokens into a stream of text.
///
/// The pieces concatenate to the text of all tokens. Unlike [`Tokenizer::decode`] it keeps a leading space:
/// the tokens continue something.
///
/// ```no_run
/// # let model = gumball_cli::model::Model::load(std::path::Path::new("model.gguf"))?;
/// let mut stream = gumball_cli::model::TokenStream::new(&model.tokenizer);
/// for token in [19556, 905] {
///     print!("{}", stream.push(token));
/// }
/// println!("{}", stream.finish());
/// # Ok::<(), gumball_cli::model::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    pending: Vec<u8>,
}

impl<'a> TokenStream<'a> {
    /// An empty stream.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        TokenStream { tokenizer, pending: Vec::new() }
    }

    /// Takes a token and returns the text that it completes, often all of it, sometimes none.
    ///
    /// Special tokens add nothing. Bytes that no continuation could make UTF-8 become U+FFFD.
    pub fn push(&mut self, token: u32) -> String {
        if !self.tokenizer.is_special(token) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(token));
        }
        let mut text = String::new();
        loop {
            let (valid, broken) = match std::str::from_utf8(&self.pending) {
                Ok(valid) => (valid.len(), None),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            text.extend(String::from_utf8(self.pending.drain(..valid).collect()));
            let Some(broken) = broken else { return text };
            self.pending.drain(..broken);
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    /// Ends the stream: half a character that is still waiting becomes U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
