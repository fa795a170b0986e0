//! What rows without requests are drawn by: seeds, positions and draw indices of the program's choice, and
//! parameters.

use gumball_engine::{Error, PerRow, SamplingParams};

use crate::columns::Arrays;
use crate::error::{Failure, Result, refuse};
use crate::params::Params;
use crate::versioned::versioned;

/// The row, seed, position and draw index of each output, or of each draft tree, with the meaning that they
/// have for a sequence. A list has one element per output and lies where the rows do; a value for all outputs
/// lies on the host. A seed needs a position: a loop that gives none would draw every token by the same
/// random words. Without both, each call draws by fresh entropy, which the capture of a graph refuses. A
/// value for all outputs is the same in every replay.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    pub struct_size: usize,
    pub outputs: usize,
    /// For each output the index of the matrix row that it is drawn from, any number of times; NULL: output i
    /// from row i. Not for draft trees.
    pub row_indices: *const u32,
    /// The seed of all outputs; or NULL.
    pub seed: *const u64,
    /// The seed of each; or NULL.
    pub seeds: *const u64,
    /// The position of all outputs: the number of tokens before them; or NULL. That of a draft tree is the
    /// position of its first draft.
    pub position: *const u32,
    /// The position of each; or NULL.
    pub positions: *const u32,
    /// The draw index of each; NULL: the output's own index, so that outputs with equal seed and position
    /// draw independently.
    pub draws: *const u32,
    /// The slot of each request: the index of its elements in all lists of these draws and of
    /// gumball_row_params, which are pools then, kept for many requests. Outputs are one for each row. On a
    /// device a slot that no pool has yields -1 and GUMBALL_STATUS_EMPTY. NULL: there are no pools.
    pub slots: *const u32,
    /// The number of elements of each pool.
    pub size: usize,
    /// How many neighbouring rows a request has, of which each is one position on; 0: one.
    pub rows_per_slot: usize,
    /// With `slots`, instead of `positions` and `draws`: a pool of words whose low halves are positions and
    /// whose high halves are draw indices; or NULL.
    pub offsets: *const i64,
}

versioned!(Draws, "gumball_draws", offsets: *const i64);

/// The positions and draw indices of offsets that lie on the host.
#[derive(Default)]
pub(crate) struct Halves {
    positions: Vec<u32>,
    draws: Vec<u32>,
}

impl Draws {
    pub(crate) fn reads_pools(&self) -> Result<bool> {
        let others = [
            ("size", self.size > 0),
            ("rows_per_slot", self.rows_per_slot > 0),
            ("offsets", !self.offsets.is_null()),
        ];
        if self.slots.is_null() {
            refuse(others, "slots", "it is read with slots; leave it zero")?;
        }
        Ok(!self.slots.is_null())
    }

    /// Checks that there is an output for each `item`, which names no other row.
    pub(crate) fn check_one_per(&self, item: &str) -> Result<()> {
        for (name, list) in [("row_indices", self.row_indices), ("slots", self.slots)] {
            if !list.is_null() {
                return Err(Failure::out_of_range(name, format!("{list:p}"), &format!("NULL for {item}")));
            }
        }
        self.reads_pools()?;
        Ok(())
    }

    pub(crate) fn keys<'a>(&self, arrays: Arrays<'a>) -> Result<gumball_engine::Draws<'a>> {
        Ok(gumball_engine::Draws {
            seeds: arrays.for_all_or_each(("seed", self.seed), ("seeds", self.seeds), self.outputs)?,
            positions: arrays.for_all_or_each(
                ("position", self.position),
                ("positions", self.positions),
                self.outputs,
            )?,
            draws: arrays.per_row("draws", self.draws, self.outputs)?,
            ..Default::default()
        })
    }

    /// Returns the keys of draws with positions and draw indices by `offsets`, if there are any, and whether
    /// the high words of positions are draw indices for the engine as well: on the host `halves` takes them.
    pub(crate) fn offset<'a>(
        &self,
        arrays: Arrays<'a>,
        keys: gumball_engine::Draws<'a>,
        halves: &'a mut Halves,
    ) -> Result<(gumball_engine::Draws<'a>, bool)> {
        match arrays.per_row("offsets", self.offsets, self.size)? {
            None => Ok((keys, false)),
            Some(_) if keys.draws.is_some() || keys.positions.is_some() => {
                let other = if keys.draws.is_some() { "draws" } else { "positions" };
                let reason = "an offset holds both";
                Err(Error::Conflict { parameter: "offsets", other, reason }.into())
            }
            Some(PerRow::Device(words)) => {
                Ok((gumball_engine::Draws { positions: Some(PerRow::Device(words)), ..keys }, true))
            }
            Some(words) => {
                let PerRow::Host(words) = words else { unreachable!("a list of the host") };
                halves.positions = words.iter().map(|word| *word as u32).collect();
                halves.draws = words.iter().map(|word| (*word >> 32) as u32).collect();
                let positions = Some(PerRow::Host(&halves.positions[..]));
                Ok((gumball_engine::Draws { positions, draws: Some((&halves.draws).into()), ..keys }, false))
            }
        }
    }
}

/// The parameters of the rows of a batch. A list has one element per row and lies where the rows do; NULL:
/// the value in `params`, for all rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RowParams {
    pub struct_size: usize,
    /// The parameters of all rows; NULL: neutral parameters. Rules that read a history find it empty; seed
    /// and logprobs are not read.
    pub params: *const Params,
    pub temperature: *const f32,
    pub top_k: *const i64,
    pub top_p: *const f32,
    pub min_p: *const f32,
}

versioned!(RowParams, "gumball_row_params", min_p: *const f32);

pub(crate) fn read_row_params<'a>(
    arrays: Arrays<'a>,
    given: *const RowParams,
    rows: usize,
    neutral: &'a SamplingParams,
) -> Result<gumball_engine::RowParams<'a>> {
    let given = arrays.c.read_or_default("params", given)?;
    Ok(gumball_engine::RowParams {
        common: arrays.c.handle(given.params).map_or(neutral, |params| &params.inner),
        temperature: arrays.per_row("temperature", given.temperature, rows)?,
        top_k: arrays.per_row("top_k", given.top_k, rows)?,
        top_p: arrays.per_row("top_p", given.top_p, rows)?,
        min_p: arrays.per_row("min_p", given.min_p, rows)?,
    })
}
