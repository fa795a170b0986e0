//! Rows that are drawn one at a time, on the host or a device, by a pool of one slot.

use gumball_engine::{Batch, Masks, Outputs, Place, Pool, PoolConfig, Route, Rows, State, Widths};
use gumball_spec::logprobs::Logprobs;
use gumball_spec::{LogprobsParams, Request, Row, SamplingParams};

use crate::Result;

/// A pool of one slot, which tells kept sets.
pub(crate) struct OneSlot {
    pool: Pool,
    asked: Option<LogprobsParams>,
    out: Outputs,
}

impl OneSlot {
    /// Makes the pool, for requests that ask for the logprobs of `params`.
    pub fn new(params: &SamplingParams, vocab: usize, place: Place, route: Route) -> Result<Self> {
        let asked = params.logprobs.clone();
        let widths = Widths::of(asked.as_ref());
        let config = PoolConfig { slots: 1, widths, kept: true, route, place, ..PoolConfig::new(vocab) };
        Ok(Self { pool: Pool::new(config)?, asked, out: Outputs::new() })
    }

    /// Draws the token that a request gets from a row.
    pub fn draw(&mut self, row: Row<'_>, request: &Request<'_>) -> Result<()> {
        let Request { params, prompt, output, seed, position, draw, mu, mask, forced, .. } = *request;
        let params = SamplingParams { seed: Some(seed), ..params.clone() };
        let slots = [self.pool.resume(params, State { prompt, output, seed, position, draw, mu })?];
        let drawn =
            self.step(row, mask, &Batch { forced: &[forced.map(|forced| forced.id)], ..Batch::of(&slots) });
        self.pool.assign(&Batch::default())?;
        self.pool.release(slots[0])?;
        drawn
    }

    fn step(&mut self, row: Row<'_>, mask: Option<&[u32]>, batch: &Batch<'_>) -> Result<()> {
        // A mask without words forbids all ids, as a word of zeros does.
        let mask = mask.map(|words| if words.is_empty() { &[0][..] } else { words });
        let masks = mask.map_or(Ok(Masks::None), |words| Masks::new(words, 1, words.len(), words.len()))?;
        let rows = Rows::logits(row, 1, row.vocab())?;
        Ok(self.pool.step(rows, &Batch { masks, ..*batch }, &mut self.out)?)
    }

    /// Returns what the last draw came to.
    pub fn drawn(&self) -> &Outputs {
        &self.out
    }

    /// Returns the logprobs of the last row, if they were asked for.
    pub fn logprobs(&self) -> Option<Logprobs> {
        Some(self.out.logprobs_of(0, self.asked.as_ref()?))
    }
}
