//! The logits after a prompt and the tokens that follow it, in any order of questions.
//!
//! A prompt is read at once and each later token alone, as `generate` does, so that a row has the same bits
//! whichever way was taken to it. The model keeps what it has read, and the hidden state after each token is
//! kept besides: a row of the same text needs the last product alone, and another token in its place makes
//! the model forget the rest and read on from there.

use crate::model::{Hidden, Model};
use crate::{Error, Result};

/// The most tokens of a prompt and its continuation; the model's context may allow fewer.
pub const MOST_TOKENS: usize = 4096;

/// The text that the model has read.
#[derive(Debug, Default)]
pub struct Continuation {
    prompt: Vec<u32>,
    output: Vec<u32>,
    /// After the prompt, and after each token of `output`.
    states: Vec<Hidden>,
}

impl Continuation {
    /// Returns the logits after `prompt` and `output`, `[vocab]`; ids that are no tokens have -infinity.
    ///
    /// # Errors
    /// - [`Error::Usage`] if these are more tokens than the model takes, or the prompt is empty.
    /// - What the forward pass fails with, such as an id outside the vocabulary.
    pub fn row(&mut self, model: &mut Model, prompt: &[u32], output: &[u32]) -> Result<Vec<f32>> {
        let (tokens, most) = (prompt.len() + output.len(), most_tokens(model));
        if prompt.is_empty() || tokens > most {
            let reason = format!(
                "the prompt has {} tokens and {} follow; allowed are 1 to {most} in all, one of the prompt at least",
                prompt.len(),
                output.len()
            );
            return Err(Error::Usage(reason));
        }
        if self.prompt != prompt {
            *self = Self::default();
            model.llama.reset();
            self.states.push(model.llama.hidden(prompt)?.into_last());
            self.prompt = prompt.to_owned();
        }
        let common = self.output.iter().zip(output).take_while(|(held, asked)| held == asked).count();
        if common < output.len() {
            self.output.truncate(common);
            self.states.truncate(common + 1);
            model.llama.truncate(prompt.len() + common);
        }
        for &id in &output[common..] {
            let state = model.llama.hidden(&[id])?;
            self.states.push(state);
            self.output.push(id);
        }
        let mut row = model.llama.logits(&self.states[output.len()])?;
        row[model.tokens()..].fill(f32::NEG_INFINITY);
        Ok(row)
    }
}

/// The most tokens that a model reads here.
pub fn most_tokens(model: &Model) -> usize {
    model.context().min(MOST_TOKENS)
}
