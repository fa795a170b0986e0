//! The processor: candle's interface over a sampler.

use candle_core::{Error, Result, Tensor};
use gumball_engine::{Sampler, SamplingParams, StepOptions, Token};

use crate::probabilities::edit_probabilities;
use crate::sampling::Sampling;
use crate::tensor::with_row;

/// Chooses the next token of one sequence from tensors of logits.
///
/// The vocabulary is the first row's; parameters are checked against it there. Each `sample` appends
/// its token to the history and advances the position, which counts from the prompt given to
/// [`with_prompt`](LogitsProcessor::with_prompt), or from 0.
#[derive(Debug)]
pub struct LogitsProcessor {
    /// Until the first row says how long it is.
    params: gumball_engine::Result<SamplingParams>,
    prompt: Vec<u32>,
    shows_probabilities: bool,
    sampler: Option<Sampler>,
}

impl LogitsProcessor {
    /// As candle's: greedy without a temperature (or below 1e-7), top-p unless that is absent.
    #[must_use]
    pub fn new(seed: u64, temperature: Option<f64>, top_p: Option<f64>) -> Self {
        let sampling = match (temperature, top_p) {
            (None, _) => Sampling::ArgMax,
            (Some(temperature), _) if temperature < 1e-7 => Sampling::ArgMax,
            (Some(temperature), None) => Sampling::All { temperature },
            (Some(temperature), Some(p)) => Sampling::TopP { p, temperature },
        };
        Self::from_sampling(seed, sampling)
    }

    /// As candle's.
    #[must_use]
    pub fn from_sampling(seed: u64, sampling: Sampling) -> Self {
        let shows_probabilities = sampling.shows_probabilities();
        Self { params: sampling.to_params(seed), prompt: Vec::new(), shows_probabilities, sampler: None }
    }

    /// Takes any parameters: penalties, further filters, bans, logprobs.
    #[must_use]
    pub fn from_params(params: SamplingParams) -> Self {
        Self { params: Ok(params), prompt: Vec::new(), shows_probabilities: true, sampler: None }
    }

    /// Puts a prompt before the output, which starts empty: penalties and position count it.
    #[must_use]
    pub fn with_prompt(mut self, prompt: &[u32]) -> Self {
        if let Some(sampler) = &mut self.sampler {
            sampler.reset(prompt);
        }
        self.prompt = prompt.to_vec();
        self
    }

    /// Draws the next token.
    ///
    /// # Shapes and units
    /// `logits`: `[vocab]`, or `[1, .., vocab]`; any type and device. f32, bf16 and f16 on the CPU are read
    /// in place.
    ///
    /// # Errors
    /// - A parameter outside its range, which is named.
    /// - A tensor that is not one row, or not as long as the first.
    /// - A row without a token above -inf (NaN counts as -inf); nothing was changed.
    pub fn sample(&mut self, logits: &Tensor) -> Result<u32> {
        id_of(self.sample_with(logits, StepOptions::default())?)
    }

    /// Draws the next token after `f` has edited the probabilities.
    ///
    /// As in candle, `f` sees the softmax of the whole row at the temperature, before the filters, may leave
    /// weights that do not sum to 1, and is not called where the choice is greedy or `GumbelSoftmax`. An
    /// unchanged probability keeps its logit to the bit; a changed probability becomes the logit that has it,
    /// and 0 and less a ban. Penalties and bias come before, bans after. With a dynamic temperature `f` sees
    /// the probabilities at `temperature`. To edit logits, use [`sample_with`](LogitsProcessor::sample_with).
    ///
    /// # Errors
    /// The errors of [`sample`](LogitsProcessor::sample).
    pub fn sample_f(&mut self, logits: &Tensor, f: impl FnOnce(&mut [f32])) -> Result<u32> {
        let temperature = self.params.as_ref().map_or(0.0, |params| params.temperature);
        if !self.shows_probabilities || SamplingParams::is_greedy(temperature) {
            return self.sample(logits);
        }
        let mut f = Some(f);
        let mut hook = |z: &mut [f32]| {
            if let Some(f) = f.take() {
                edit_probabilities(z, temperature, f);
            }
        };
        let options = StepOptions { hook: Some(&mut hook), ..Default::default() };
        id_of(self.sample_with(logits, options)?)
    }

    /// Draws the next token with options of this row alone: a bitmask, a forced token, edits of logits.
    ///
    /// An empty row is no error here: its token has no id, and nothing was changed.
    ///
    /// # Errors
    /// The errors of [`sample`](LogitsProcessor::sample), and a forced token outside the vocabulary.
    pub fn sample_with(&mut self, logits: &Tensor, options: StepOptions<'_>) -> Result<Token> {
        with_row(logits, |row| self.opened(row.vocab())?.sample_with(row, options).map_err(Error::wrap))
    }

    /// Draws `n` independent tokens from one row, and appends none of them; see [`Sampler::sample_n`].
    ///
    /// # Errors
    /// The errors of [`sample`](LogitsProcessor::sample), except for empty rows.
    pub fn sample_n(&mut self, logits: &Tensor, n: u32) -> Result<Vec<Token>> {
        with_row(logits, |row| self.opened(row.vocab())?.sample_n(row, n).map_err(Error::wrap))
    }

    /// Returns the sampler inside, for seed, history and logprobs; `None` before the first row.
    #[must_use]
    pub fn sampler(&self) -> Option<&Sampler> {
        self.sampler.as_ref()
    }

    /// Returns the sampler inside, to push, shorten or read the kept set; `None` before the first row.
    #[must_use]
    pub fn sampler_mut(&mut self) -> Option<&mut Sampler> {
        self.sampler.as_mut()
    }

    fn opened(&mut self, vocab: usize) -> Result<&mut Sampler> {
        if self.sampler.is_none() {
            let params = self.params.clone().map_err(Error::wrap)?;
            let sampler = Sampler::new(params, vocab).map_err(Error::wrap)?;
            self.sampler = Some(sampler.with_prompt(&self.prompt));
        }
        Ok(self.sampler.as_mut().expect("just set"))
    }
}

fn id_of(token: Token) -> Result<u32> {
    token
        .id
        .ok_or_else(|| Error::msg("no token of the row is above -inf: all logits are -inf, NaN or banned"))
}
