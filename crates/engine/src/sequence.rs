//! A sequence: the state that a draw depends on besides the row, kept from token to token.

use std::sync::Arc;

use gumball_cpu::{History, Prepared, Task};
use gumball_spec::request::check_mu;
use gumball_spec::{Error, Forced, Kind, Result, SamplingParams};

use crate::entropy;
use crate::state::State;

/// One sequence of a request: its parameters, seed, draw index, history and `mu`, which is mirostat's limit
/// or the mean of adaptive-p.
#[derive(Clone, Debug)]
pub struct Sequence {
    prepared: Arc<Prepared>,
    history: History,
    seed: u64,
    draw: u32,
    mu: f32,
    /// `mu` before each output token since the start, so that `shorten` finds the way back; empty where
    /// nothing moves it.
    mus: Vec<f32>,
    /// The number of output tokens at the start: 0 unless it was resumed.
    start: usize,
    /// How much further the position is than the history is long, modulo 2^32.
    offset: u32,
}

impl Sequence {
    pub(crate) fn new(params: SamplingParams, vocab: usize, prompt: &[u32]) -> Result<Self> {
        let prepared = Prepared::new(params, vocab)?;
        let seed = entropy::seed(prepared.params())?;
        let mu = prepared.params().initial_mu();
        let history = History::of(&prepared, prompt);
        let (prepared, mus) = (Arc::new(prepared), Vec::new());
        Ok(Self { prepared, history, seed, draw: 0, mu, mus, start: 0, offset: 0 })
    }

    /// Takes up a sequence where it was left.
    pub(crate) fn resume(params: SamplingParams, vocab: usize, state: State<'_>) -> Result<Self> {
        let params = SamplingParams { seed: Some(state.seed), ..params };
        let mut sequence = Self::new(params, vocab, &[])?;
        sequence.set_state(state)?;
        Ok(sequence)
    }

    /// Puts a state in place of its own.
    pub(crate) fn set_state(&mut self, state: State<'_>) -> Result<()> {
        check_mu(state.mu)?;
        self.reset(state.prompt);
        state.output.iter().for_each(|id| self.history.push(*id));
        (self.seed, self.draw, self.mu) = (state.seed, state.draw, state.mu);
        self.start = state.output.len();
        self.offset = state.position.wrapping_sub(self.history.ids().len() as u32);
        Ok(())
    }

    /// Returns the same state under another draw index.
    pub(crate) fn fork(&self, draw: u32) -> Self {
        Self { draw, ..self.clone() }
    }

    /// Starts over after a prompt, with the same parameters, seed and draw index.
    pub(crate) fn reset(&mut self, prompt: &[u32]) {
        self.history = History::of(&self.prepared, prompt);
        self.mu = self.params().initial_mu();
        self.mus.clear();
        (self.start, self.offset) = (0, 0);
    }

    /// Appends an output token; `mu` is the one after it.
    pub(crate) fn push(&mut self, id: u32, mu: f32) {
        if self.params().steered_by().is_some() {
            self.mus.push(self.mu);
            self.mu = mu;
        }
        self.history.push(id);
    }

    /// Appends output tokens that were chosen elsewhere; `mu` is the one after them, those between
    /// being lost, so that nothing is shortened to before this.
    pub(crate) fn apply(&mut self, ids: &[u32], mu: f32) {
        if ids.is_empty() {
            return;
        }
        ids.iter().for_each(|id| self.history.push(*id));
        if self.params().steered_by().is_some() {
            self.mus.clear();
            self.start = self.history.output().len();
            self.mu = mu;
        }
    }

    /// Takes output tokens away until `output_len` are left, as was done elsewhere; `mu` is the one after
    /// them if it is not known here.
    pub(crate) fn cut(&mut self, output_len: usize, mu: f32) {
        let len = self.history.output().len();
        let output_len = output_len.min(len);
        if self.shorten(len - output_len).is_err() {
            self.history.truncate(output_len);
            self.mus.clear();
            (self.start, self.mu) = (output_len, mu);
        }
    }

    /// Returns how many output tokens can be taken away.
    pub(crate) fn most_to_take_away(&self) -> usize {
        self.history.output().len() - self.least_output_len()
    }

    /// Returns the number of output tokens after which nothing is known: what `mu` was before
    /// the sequence was resumed, for instance.
    fn least_output_len(&self) -> usize {
        if self.params().steered_by().is_some() { self.start } else { 0 }
    }

    /// Returns how many output tokens come after the first `output_len`: what
    /// [`Pool::shorten`](crate::Pool::shorten) takes away to leave these.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there are fewer, or if `mu` after them is not known.
    pub fn tokens_behind(&self, output_len: usize) -> Result<usize> {
        let (least, len) = (self.least_output_len(), self.history.output().len());
        if !(least..=len).contains(&output_len) {
            return Err(Error::out_of_range("output_len", output_len, format!("in {least}..={len}")));
        }
        Ok(len - output_len)
    }

    /// Takes back the last `count` output tokens.
    pub(crate) fn shorten(&mut self, count: usize) -> Result<()> {
        let most = self.most_to_take_away();
        if count > most {
            return Err(Error::out_of_range("count", count, format!("in 0..={most}")));
        }
        let output_len = self.history.output().len() - count;
        if let Some(mu) = self.mus.get(output_len.saturating_sub(self.start)) {
            self.mu = *mu;
            self.mus.truncate(output_len - self.start);
        }
        self.history.truncate(output_len);
        Ok(())
    }

    pub(crate) fn task<'a>(&'a self, kind: Kind, mask: Option<&'a [u32]>, forced: Option<u32>) -> Task<'a> {
        Task {
            kind,
            prepared: &self.prepared,
            history: &self.history,
            seed: self.seed,
            position: self.position(),
            draw: self.draw,
            mu: self.mu,
            mask,
            forced: forced.map(Forced::by_caller),
        }
    }

    pub(crate) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Returns the parameters as they were given.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        self.prepared.params()
    }

    /// Returns the number of ids in the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.prepared.vocab()
    }

    /// Returns the seed in use: the parameters' seed, or the fresh one that was drawn in its place.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the draw index, which tells sequences of the same seed and history apart.
    #[must_use]
    pub fn draw(&self) -> u32 {
        self.draw
    }

    /// Returns the number of tokens before the next one, prompt and output, modulo 2^32.
    #[must_use]
    pub fn position(&self) -> u32 {
        self.offset.wrapping_add(self.history.ids().len() as u32)
    }

    /// Returns what the next token depends on besides its row and the parameters, to be resumed elsewhere.
    #[must_use]
    pub fn state(&self) -> State<'_> {
        State {
            prompt: self.history.prompt(),
            output: self.history.output(),
            seed: self.seed,
            position: self.position(),
            draw: self.draw,
            mu: self.mu,
        }
    }

    /// Returns the ids of prompt and output with their counts.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns mirostat's limit, in bits, or the mean of adaptive-p for the next token; 0 without both.
    #[must_use]
    pub fn mu(&self) -> f32 {
        self.mu
    }

    pub(crate) fn set_draw(&mut self, draw: u32) {
        self.draw = draw;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_spec::Mirostat;

    #[test]
    fn what_is_shortened_has_its_former_limit_of_mirostat() {
        let mirostat = Some(Mirostat { tau: 3.0, eta: 0.1, mu: None });
        let params = SamplingParams { mirostat, ..Default::default() };
        let mut sequence = Sequence::new(params, 10, &[1, 2]).unwrap();
        for (id, mu) in [(3, 5.5), (4, 5.0), (5, 4.5)] {
            sequence.push(id, mu);
        }
        sequence.shorten(0).unwrap();
        assert_eq!((sequence.mu(), sequence.position()), (4.5, 5));
        sequence.shorten(2).unwrap();
        assert_eq!((sequence.mu(), sequence.position()), (5.5, 3));
        sequence.shorten(1).unwrap();
        assert_eq!((sequence.mu(), sequence.position()), (6.0, 2));
        let error = sequence.shorten(1).unwrap_err();
        assert_eq!(error.to_string(), "count is 1, but must be in 0..=0");
    }

    #[test]
    fn a_seed_that_was_not_given_is_fresh_and_readable() {
        let new = || Sequence::new(SamplingParams::default(), 10, &[]).unwrap();
        assert_ne!(new().seed(), new().seed());
        let given = SamplingParams { seed: Some(42), ..Default::default() };
        assert_eq!(Sequence::new(given, 10, &[]).unwrap().seed(), 42);
    }
}
