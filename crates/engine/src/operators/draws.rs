//! Draws: any number of tokens from any rows.
//!
//! Outputs are sorted by the row they read and cut into blocks. A block surveys its row once for up to 16384
//! draws, which makes the survey cheap beside them: five million draws from one row take 306 surveys.

use gumball_cpu::{Draw, History};
use gumball_spec::{Error, NONE, Result, Status, memory};

use super::MEMORY;
use super::host::{Host, task};
use super::params::{PerRow, RowParams};
use crate::entropy;
use crate::logits::Logits;

/// The keys of each output's draw: seed, position and draw index. The default draws with fresh entropy in
/// each call.
///
/// In a captured graph a number given for all outputs is the same in each replay; a column on the device may
/// change between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draws<'a> {
    /// The seeds; a column on a device has 64-bit elements. `None`: fresh entropy for each call, which a
    /// captured graph refuses.
    pub seeds: Option<PerRow<'a, u64>>,
    /// The positions: the number of tokens before the drawn one, modulo 2^32. Of 64-bit elements in a column
    /// on a device the low 32 bits count. `None`: 0, without seeds alone, since a seed draws the same again
    /// at one position.
    pub positions: Option<PerRow<'a, u32>>,
    /// The draw indices; of 64-bit elements in a column on a device the low 32 bits count. `None`: each
    /// output's own index, so that outputs with equal seed and position draw independently.
    pub draws: Option<PerRow<'a, u32>>,
    /// Whether 64-bit positions in a column on a device are offsets. The low word of an offset is the
    /// position. The high word, as a signed integer times 0x9E37_79B9_7F4A_7C15, is added to the seed. If
    /// false, only the low words count.
    pub offsets: bool,
    /// Whether an output without a token is written as 0 instead of [`NONE`].
    pub zero_for_none: bool,
}

/// The keys of draws that the host reads, after their checks.
pub(super) struct HostKeys<'a> {
    seeds: PerRow<'a, u64>,
    positions: PerRow<'a, u32>,
    draws: Option<PerRow<'a, u32>>,
}

impl HostKeys<'_> {
    /// Returns the keys of an output.
    pub fn of(&self, output: usize) -> Draw {
        let draw = self.draws.map_or(output as u32, |draws| draws.of(output));
        Draw { seed: self.seeds.of(output), position: self.positions.of(output), draw }
    }
}

impl<'a> Draws<'a> {
    /// Takes one seed and one position for all outputs; each output's own index is its draw index.
    #[must_use]
    pub fn new(seed: u64, position: u32) -> Self {
        Self { seeds: Some(seed.into()), positions: Some(position.into()), ..Self::default() }
    }

    /// Returns the seeds and positions; without seeds, a seed of fresh entropy.
    pub(super) fn seeds_and_positions(&self) -> Result<(PerRow<'a, u64>, PerRow<'a, u32>)> {
        match (self.seeds, self.positions) {
            (Some(seeds), Some(positions)) => Ok((seeds, positions)),
            (Some(_), None) => {
                let allowed = "given with a seed, as in seed=7, position=step, \
                               because a seed draws the same again at one position";
                Err(Error::out_of_range("positions", "absent", allowed))
            }
            (None, positions) => Ok((entropy::fresh()?.into(), positions.unwrap_or(PerRow::All(0)))),
        }
    }

    /// Checks and returns the keys of `outputs` draws that the host reads.
    pub(super) fn on_host(&self, outputs: usize) -> Result<HostKeys<'a>> {
        if u32::try_from(outputs).is_err() {
            return Err(Error::out_of_range("outputs", outputs, "less than 2^32"));
        }
        let (seeds, positions) = self.seeds_and_positions()?;
        seeds.check_host("seeds", outputs)?;
        positions.check_host("positions", outputs)?;
        self.draws.map_or(Ok(()), |draws| draws.check_host("draws", outputs))?;
        Ok(HostKeys { seeds, positions, draws: self.draws })
    }

    /// Returns what is written for a token: itself, or 0 for none if the caller wants zeros.
    pub(super) fn written(&self, token: i32) -> i32 {
        if self.zero_for_none && token == NONE { 0 } else { token }
    }
}

/// The number of draws that a thread makes from one survey of a row.
const BLOCK: usize = 16_384;

impl Host {
    /// Draws a token for each output; see [`Operators::sample`](super::Operators::sample).
    pub(super) fn sample(
        &self,
        rows: Logits<'_>,
        row_indices: Option<PerRow<'_, u32>>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
        mut statuses: Option<&mut [Status]>,
    ) -> Result<()> {
        let listed;
        let rows = match row_indices {
            None => rows,
            Some(indices) => {
                listed = indices.row_indices(tokens.len(), rows.lines())?;
                rows.select(&listed)?
            }
        };
        if tokens.len() != rows.rows() {
            return Err(Error::length("tokens", tokens.len(), format!("one per output, {}", rows.rows())));
        }
        let keys = draws.on_host(rows.rows())?;
        let prepared = params.prepare(rows.kind(), rows.lines(), rows.vocab())?;
        let history = History::new(&[]);
        let outputs = by_row(&rows)?;
        let blocks: Vec<&[u32]> = outputs
            .chunk_by(|a, b| rows.line(*a as usize) == rows.line(*b as usize))
            .flat_map(|row| row.chunks(BLOCK))
            .collect();
        let drawn = self.over(blocks, |workspace, block| {
            let first = block[0] as usize;
            let task = task(rows.kind(), prepared.of(rows.line(first)), &history);
            let keys: Vec<Draw> = block.iter().map(|output| keys.of(*output as usize)).collect();
            let mut tokens = vec![0; block.len()];
            let status = workspace.sample_many(rows.row(first), &task, &keys, &mut tokens)?;
            Ok((block, tokens, status))
        })?;
        for (block, drawn, status) in drawn {
            for (output, token) in block.iter().zip(drawn) {
                tokens[*output as usize] = draws.written(token);
                if let Some(statuses) = &mut statuses {
                    statuses[*output as usize] = status;
                }
            }
        }
        Ok(())
    }
}

/// Returns the outputs sorted by the row they read; the outputs of one row stay in order.
fn by_row(rows: &Logits<'_>) -> Result<Vec<u32>> {
    let row = |output: u32| rows.line(output as usize);
    let mut outputs = memory::with_capacity(MEMORY, rows.rows())?;
    outputs.extend(0..rows.rows() as u32);
    if outputs.is_sorted_by_key(|output| row(*output)) {
        return Ok(outputs);
    }
    let mut starts = memory::filled(MEMORY, 0u32, rows.lines() + 1)?;
    outputs.iter().for_each(|output| starts[row(*output) + 1] += 1);
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    for output in 0..rows.rows() as u32 {
        let start = &mut starts[row(output)];
        outputs[*start as usize] = output;
        *start += 1;
    }
    Ok(outputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn outputs_that_cannot_be_numbered_are_refused() {
        assert!(Draws::new(1, 2).on_host(u32::MAX as usize).is_ok());
        let one_index = Draws { draws: Some(PerRow::All(0)), ..Draws::new(1, 2) };
        for draws in [Draws::new(1, 2), one_index] {
            let error = draws.on_host(1 << 32).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), Some("outputs is 4294967296, but must be less than 2^32"));
        }
    }
}
