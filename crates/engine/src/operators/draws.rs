//! Draws: any number of tokens from any rows.
//!
//! Outputs are sorted by the row they read and cut into blocks. A block surveys its row once for up to 16384
//! draws, which makes the survey cheap beside them: five million draws from one row take 306 surveys.

use gumball_cpu::{Draw, History};
use gumball_spec::{Error, Kind, Result, Status, memory};

use super::params::{PerRow, RowParams};
use super::write::task;
use super::{Operators, ROOM};
use crate::logits::Logits;

/// The keys of each output's draw.
#[derive(Clone, Copy, Debug)]
pub struct Draws<'a> {
    /// The seed of each output.
    pub seeds: PerRow<'a, u64>,
    /// The position of each output.
    pub positions: PerRow<'a, u32>,
    /// The draw index of each output. `None` uses the output's own index, so that outputs with equal seed and
    /// position draw independently.
    pub draws: Option<PerRow<'a, u32>>,
}

impl<'a> Draws<'a> {
    /// Takes one seed and one position for all outputs; each output's own index is its draw index.
    #[must_use]
    pub fn new(seed: u64, position: u32) -> Self {
        Self { seeds: PerRow::All(seed), positions: PerRow::All(position), draws: None }
    }

    fn check(&self, outputs: usize) -> Result<()> {
        if u32::try_from(outputs).is_err() {
            return Err(Error::out_of_range("outputs", outputs, "less than 2^32"));
        }
        self.seeds.check("seeds", outputs)?;
        self.positions.check("positions", outputs)?;
        match self.draws {
            Some(draws) => draws.check("draws", outputs),
            None => Ok(()),
        }
    }

    fn of(&self, output: usize) -> Draw {
        let draw = self.draws.map_or(output as u32, |draws| draws.of(output));
        Draw { seed: self.seeds.of(output), position: self.positions.of(output), draw }
    }
}

/// The number of draws that a thread makes from one survey of a row.
const BLOCK: usize = 16_384;

impl Operators {
    /// Draws a token for each output from a row of probabilities, after its filters and bans.
    ///
    /// The token equals that of a [`Pool`](crate::Pool) whose sequence has this seed, position and draw
    /// index. A row without a number above 0 yields [`NONE`](crate::NONE). Returns one status per matrix row;
    /// a row that no output reads has none set.
    ///
    /// # Shapes and units
    /// `probabilities`: L rows. The number of outputs R is L, or after [`Logits::select`] the length of its
    /// list. `params`: columns of L. `draws`: one value for all, or R. `tokens`: R.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the rows are logits, or there are 2^32 outputs or more.
    /// - [`Error::Length`] if a shape differs.
    /// - Those of [`SamplingParams::validate_for`](crate::SamplingParams::validate_for).
    /// - [`Error::Unavailable`] if the system refuses the memory to sort the outputs by row.
    ///
    /// After an error nothing has been written.
    pub fn sample_probabilities(
        &self,
        probabilities: Logits<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
    ) -> Result<Vec<Status>> {
        if probabilities.kind() != Kind::Probabilities {
            return Err(Error::out_of_range("kind", "logits", "probabilities"));
        }
        self.sample(probabilities, params, draws, tokens)
    }

    /// Draws a token for each output from a row of logits, after temperature, filters and bans. Shapes and
    /// results are those of [`Operators::sample_probabilities`]; here a row without a logit above -inf yields
    /// [`NONE`](crate::NONE).
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the rows are probabilities.
    /// - Those of [`Operators::sample_probabilities`].
    pub fn sample_logits(
        &self,
        logits: Logits<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
    ) -> Result<Vec<Status>> {
        if logits.kind() != Kind::Logits {
            return Err(Error::out_of_range("kind", "probabilities", "logits"));
        }
        self.sample(logits, params, draws, tokens)
    }

    fn sample(
        &self,
        rows: Logits<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
    ) -> Result<Vec<Status>> {
        if tokens.len() != rows.rows() {
            return Err(Error::length("tokens", tokens.len(), format!("one per output, {}", rows.rows())));
        }
        draws.check(rows.rows())?;
        let lines = params.prepare(rows.kind(), rows.lines(), rows.vocab())?;
        let history = History::new(&[]);
        let outputs = by_line(&rows)?;
        let mut statuses = memory::filled(ROOM, Status::default(), rows.lines())?;
        let blocks: Vec<&[u32]> = outputs
            .chunk_by(|a, b| rows.line(*a as usize) == rows.line(*b as usize))
            .flat_map(|line| line.chunks(BLOCK))
            .collect();
        let drawn = self.over(blocks, |workspace, block| {
            let first = block[0] as usize;
            let task = task(rows.kind(), lines.of(rows.line(first)), &history);
            let which: Vec<Draw> = block.iter().map(|output| draws.of(*output as usize)).collect();
            let mut tokens = vec![0; block.len()];
            let status = workspace.sample_many(rows.row(first), &task, &which, &mut tokens)?;
            Ok((block, tokens, status))
        })?;
        for (block, drawn, status) in drawn {
            statuses[rows.line(block[0] as usize)].insert(status);
            for (output, token) in block.iter().zip(drawn) {
                tokens[*output as usize] = token;
            }
        }
        Ok(statuses)
    }
}

/// Returns the outputs sorted by the row they read; the outputs of one row stay in order.
fn by_line(rows: &Logits<'_>) -> Result<Vec<u32>> {
    let line = |output: u32| rows.line(output as usize);
    let mut outputs = memory::room(ROOM, rows.rows())?;
    outputs.extend(0..rows.rows() as u32);
    if outputs.is_sorted_by_key(|output| line(*output)) {
        return Ok(outputs);
    }
    let mut starts = memory::filled(ROOM, 0u32, rows.lines() + 1)?;
    outputs.iter().for_each(|output| starts[line(*output) + 1] += 1);
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    for output in 0..rows.rows() as u32 {
        let place = &mut starts[line(output)];
        outputs[*place as usize] = output;
        *place += 1;
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_cannot_be_numbered_are_refused() {
        assert_eq!(Draws::new(1, 2).check(u32::MAX as usize), Ok(()));
        let one_index = Draws { draws: Some(PerRow::All(0)), ..Draws::new(1, 2) };
        for draws in [Draws::new(1, 2), one_index] {
            let error = draws.check(1 << 32).unwrap_err();
            assert_eq!(error.to_string(), "outputs is 4294967296, but must be less than 2^32");
        }
    }
}
