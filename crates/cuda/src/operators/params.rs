//! Parameters of rows: values for all, checked here, and columns that only the machine knows.

use gumball_spec::{Error, Kind, Result, SamplingParams};

use crate::abi::{Params, Prepare, asks, columns, prepare_flags};
use crate::rows::{Column, IntType, Integers};
use crate::variant::Needs;
use crate::{edit, filter};

/// A value for all, or a column of one for each; a column of one number stands for all as well.
#[derive(Clone, Copy, Debug)]
pub enum Each<'b, T> {
    /// The same for all.
    All(T),
    /// Their own. Of wider numbers than the parameter has bits the low ones count.
    Rows(Integers<'b>),
}

/// The parameters of rows: temperature and filters, by line of the matrix.
///
/// Nobody sees the columns before the machine does. What is outside its range counts as the nearest value inside; NaN
/// as off, and as a temperature as 0.
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'b> {
    /// What all rows have in common, but for what stands in a column. There is no history: what speaks of one finds it empty. Seed and
    /// logprobs are not read.
    pub common: &'b SamplingParams,
    /// The temperatures, f32; of rows of logits alone.
    pub temperature: Option<Column<'b>>,
    /// `top_k` of each, i32 or i64; off at 0 or less, and at the vocabulary or more.
    pub top_k: Option<Integers<'b>>,
    /// `top_p` of each, f32; off at 1 or more.
    pub top_p: Option<Column<'b>>,
    /// `min_p` of each, f32; off at 0 or less.
    pub min_p: Option<Column<'b>>,
}

/// Which draw each output is.
#[derive(Clone, Copy, Debug)]
pub struct Draws<'b> {
    /// The seeds.
    pub seeds: Each<'b, u64>,
    /// The positions.
    pub positions: Each<'b, u32>,
    /// The draw indices; `None`: each output's own number, so that outputs of one seed and position are independent.
    pub draws: Option<Each<'b, u32>>,
}

/// What rows ask for, as kernels read it; and the least that serves all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub prepare: Prepare,
    pub needs: Needs,
}

impl Asked {
    /// Returns whether no filter can be on, and the temperature is what stands there.
    pub fn keeps_all(&self) -> bool {
        let others = asks::DYNAMIC_TEMPERATURE | asks::MIROSTAT;
        self.prepare.filters == 0 && self.prepare.base.asks & others == 0
    }
}

impl<'b> RowParams<'b> {
    /// Takes parameters that all rows have in common.
    #[must_use]
    pub fn new(common: &'b SamplingParams) -> Self {
        Self { common, temperature: None, top_k: None, top_p: None, min_p: None }
    }

    /// Checks the parameters of `lines` lines of a kind, and makes them ready.
    pub(super) fn ask(&self, kind: Kind, lines: usize, vocab: usize) -> Result<Asked> {
        self.common.validate(vocab)?;
        self.common.check_kind(kind, vocab)?;
        if kind == Kind::Probabilities && self.temperature.is_some() {
            let reason = "it speaks of logits; hand over logits, or leave it out";
            return Err(Error::Conflict { parameter: "temperature", other: "probabilities", reason });
        }
        let mut asked = Prepare { line_count: lines as u32, vocab: vocab as u32, ..Prepare::default() };
        let mut float = |name, column: &Option<Column<'_>>, bit| -> Result<u64> {
            let Some(column) = column else { return Ok(0) };
            asked.of_each |= each(name, column.rows, lines, bit)?;
            Ok(column.address)
        };
        let temperatures = float("temperature", &self.temperature, columns::TEMPERATURE)?;
        let top_ps = float("top_p", &self.top_p, columns::TOP_P)?;
        let min_ps = float("min_p", &self.min_p, columns::MIN_P)?;
        asked = Prepare { temperatures, top_ps, min_ps, ..asked };
        if let Some(top_k) = &self.top_k {
            if !matches!(top_k.dtype, IntType::I32 | IntType::I64) {
                return Err(Error::out_of_range("top_k.dtype", top_k.dtype.name(), "i32 or i64"));
            }
            asked.top_ks = integers(&mut asked, "top_k", top_k, lines, columns::TOP_K)?;
        }

        let whole = self.with(vocab, [true; 4]);
        whole.validate(vocab)?;
        check_edits(&whole, vocab)?;
        let prepared = |params: &SamplingParams| {
            let mut prepared = Params::default();
            filter::prepare(params, vocab, &mut prepared);
            prepared
        };
        asked.base = prepared(&whole);
        asked.filters = asked.base.chain;
        asked.mu = whole.initial_mu();
        // Whatever stands in the columns: each on or off. Rows are not long where there is a top-k: that those without it could be helped
        // takes more of the others than it is worth.
        let long = self.top_k.is_none();
        let needs = (0..16u32)
            .map(|on| self.with(vocab, [0, 1, 2, 3].map(|i| on >> i & 1 != 0)))
            .map(|params| Needs::of(&prepared(&params)))
            .fold(Needs::NOTHING, Needs::and);
        let needs = Needs { long: needs.long && long, ..needs };
        Ok(Asked { prepare: asked, needs })
    }

    /// Returns what is in common with values in the place of columns that are on or off: of temperature, top-k, top-p and min-p.
    fn with(&self, vocab: usize, [temperature, top_k, top_p, min_p]: [bool; 4]) -> SamplingParams {
        let mut params = SamplingParams { logprobs: None, ..self.common.clone() };
        if self.temperature.is_some() {
            params.temperature = if temperature { 1.0 } else { 0.0 };
        }
        if self.top_k.is_some() {
            params.top_k = if top_k { (vocab as i64 - 1).min(50) } else { 0 };
        }
        if self.top_p.is_some() {
            params.top_p = if top_p { 0.5 } else { 1.0 };
        }
        if self.min_p.is_some() {
            params.min_p = if min_p { 0.5 } else { 0.0 };
        }
        params
    }
}

impl<'b> Draws<'b> {
    /// Takes a seed and a position for all outputs, told apart by their numbers.
    #[must_use]
    pub fn new(seed: u64, position: u32) -> Self {
        Self { seeds: Each::All(seed), positions: Each::All(position), draws: None }
    }

    /// Adds the draws of `outputs` outputs to what is asked.
    pub(super) fn ask(&self, outputs: usize, asked: &mut Prepare) -> Result<()> {
        match &self.seeds {
            Each::All(seed) => asked.base.seed = *seed,
            Each::Rows(seeds) => asked.seeds = integers(asked, "seeds", seeds, outputs, columns::SEED)?,
        }
        match &self.positions {
            Each::All(position) => asked.position = *position,
            Each::Rows(positions) => {
                asked.positions = integers(asked, "positions", positions, outputs, columns::POSITION)?;
            }
        }
        match &self.draws {
            Some(Each::All(draw)) => {
                asked.base.draw = *draw;
                asked.flags |= prepare_flags::ONE_DRAW;
            }
            Some(Each::Rows(draws)) => {
                asked.draws = integers(asked, "draws", draws, outputs, columns::DRAW)?;
            }
            None => {}
        }
        Ok(())
    }
}

/// Checks a column of whole numbers and takes note of it; returns where it lies.
pub(super) fn integers(
    asked: &mut Prepare,
    parameter: &'static str,
    column: &Integers<'_>,
    rows: usize,
    bit: u32,
) -> Result<u64> {
    asked.of_each |= each(parameter, column.rows, rows, bit)?;
    if column.dtype.bytes() == size_of::<u64>() {
        asked.wide |= bit;
    }
    Ok(column.address)
}

/// Returns the bit of a column that has a number for each row, 0 of one that has a number for all.
fn each(parameter: &'static str, length: usize, rows: usize, bit: u32) -> Result<u32> {
    match length {
        _ if length == rows => Ok(bit),
        1 => Ok(0),
        _ => Err(Error::length(parameter, length, format!("one for each of {rows} rows, or for all"))),
    }
}

/// Checks that no edit of ids comes of parameters without a history.
fn check_edits(params: &SamplingParams, vocab: usize) -> Result<()> {
    let edits = edit::prepare(params, vocab, &mut Params::default());
    if edits.bias.is_empty() && edits.allowed.is_none() && edits.stop_ids.is_empty() {
        return Ok(());
    }
    let reason = "biases and bans need a request of a pool there; or mask the rows before".to_owned();
    Err(Error::Unavailable { resource: "edits of ids in an operator on a device", reason })
}
