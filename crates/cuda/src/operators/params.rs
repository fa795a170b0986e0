//! The parameters of an operator's rows: common values, which the host checks, and columns, which only the
//! device reads.

use gumball_spec::{Error, Kind, Result, SamplingParams};

use crate::abi::dtype::IntType;
use crate::abi::{ParamColumns, Params, columns, features, from_columns_flags};
use crate::memory::columns::{DeviceIntSlice, DeviceSlice};
use crate::requests::step_features::StepFeatures;
use crate::requests::{edit_params, filter_params};

/// One value for all rows, or a column with one value per row. A column of one number holds for all rows.
#[derive(Clone, Copy, Debug)]
pub enum PerRow<'b, T> {
    /// One value for all rows.
    All(T),
    /// One value per row. If the column's integers have more bits than the parameter, their low bits count.
    Rows(DeviceIntSlice<'b>),
}

/// The parameters of rows: temperature and filters. Columns have one value per row of logits or
/// probabilities.
///
/// The host does not read the columns. The kernel replaces a value outside its range by the nearest one
/// inside. NaN switches a filter off, and counts as temperature 0.
#[derive(Clone, Copy, Debug)]
pub struct RowParams<'b> {
    /// The parameters of all rows; a column replaces the one of its name. There is no history, so parameters
    /// that refer to one find it empty. Seed and logprobs are ignored.
    pub common: &'b SamplingParams,
    /// The temperatures, f32; only for rows of logits.
    pub temperature: Option<DeviceSlice<'b>>,
    /// Each row's `top_k`, i32 or i64; off at 0 or less, and at the vocabulary or more.
    pub top_k: Option<DeviceIntSlice<'b>>,
    /// Each row's `top_p`, f32; off at 1 or more.
    pub top_p: Option<DeviceSlice<'b>>,
    /// Each row's `min_p`, f32; off at 0 or less.
    pub min_p: Option<DeviceSlice<'b>>,
}

/// The seed, position and draw index of each output (N8).
#[derive(Clone, Copy, Debug)]
pub struct Draws<'b> {
    /// The seeds.
    pub seeds: PerRow<'b, u64>,
    /// The positions: the number of tokens before the drawn one, modulo 2^32.
    pub positions: PerRow<'b, u32>,
    /// The draw indices. `None`: each output's own number, so that outputs with one seed and position are
    /// independent.
    pub draws: Option<PerRow<'b, u32>>,
    /// Whether 64-bit positions in a column are offsets. Then the low word is the position; the high word, as
    /// a signed number, times 0x9E37_79B9_7F4A_7C15 is added to the seed. Otherwise only the low words count.
    pub offsets: bool,
    /// Whether an output without a token is 0 instead of [`gumball_spec::NONE`].
    pub zero_for_none: bool,
}

/// The parameters of an operator's rows as kernels read them, and the least features that support all rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreparedRows {
    pub columns: ParamColumns,
    pub needs: StepFeatures,
}

impl PreparedRows {
    /// Returns whether no filter can be on, and each row's temperature is the given one.
    pub fn keeps_all(&self) -> bool {
        let others = features::DYNAMIC_TEMPERATURE | features::MIROSTAT;
        self.columns.filter_chain == 0 && self.columns.base.features & others == 0
    }
}

impl<'b> RowParams<'b> {
    /// Describes parameters that are equal in all rows.
    #[must_use]
    pub fn new(common: &'b SamplingParams) -> Self {
        Self { common, temperature: None, top_k: None, top_p: None, min_p: None }
    }

    /// Checks the parameters of `rows` rows, and prepares them for kernels.
    pub(super) fn prepare(&self, kind: Kind, rows: usize, vocab: usize) -> Result<PreparedRows> {
        self.common.validate(vocab)?;
        self.common.check_kind(kind, vocab)?;
        if kind == Kind::Probabilities && self.temperature.is_some() {
            let reason = "only logits have one; pass logits, or leave it out";
            return Err(Error::Conflict { parameter: "temperature", other: "probabilities", reason });
        }
        let mut prepared =
            ParamColumns { logits_rows: rows as u32, vocab: vocab as u32, ..ParamColumns::default() };
        let mut float = |name, column: &Option<DeviceSlice<'_>>, bit| -> Result<u64> {
            let Some(column) = column else { return Ok(0) };
            prepared.per_row_columns |= per_row_bit(name, column.rows, rows, bit)?;
            Ok(column.address)
        };
        let temperatures = float("temperature", &self.temperature, columns::TEMPERATURE)?;
        let top_ps = float("top_p", &self.top_p, columns::TOP_P)?;
        let min_ps = float("min_p", &self.min_p, columns::MIN_P)?;
        prepared = ParamColumns { temperatures, top_ps, min_ps, ..prepared };
        if let Some(top_k) = &self.top_k {
            if !matches!(top_k.dtype, IntType::I32 | IntType::I64) {
                return Err(Error::out_of_range("top_k.dtype", top_k.dtype.name(), "i32 or i64"));
            }
            prepared.top_ks = integers(&mut prepared, "top_k", top_k, rows, columns::TOP_K)?;
        }

        let mut params = SamplingParams { logprobs: None, ..self.common.clone() };
        let columns = self.columns();
        self.switch_columns(&mut params, columns, vocab);
        params.validate(vocab)?;
        check_edits(&params, vocab)?;
        let with_filters = |params: &SamplingParams| {
            let mut prepared = Params::default();
            filter_params::prepare(params, vocab, &mut prepared);
            prepared
        };
        prepared.base = with_filters(&params);
        prepared.filter_chain = prepared.base.filter_chain;
        prepared.mirostat_mu = params.initial_mu();
        let mut needs = StepFeatures::of(&prepared.base);
        // The host does not know the columns' values. So it takes the union over every combination of columns
        // switched on and off.
        let mut on = columns;
        while on != 0 {
            on = (on - 1) & columns;
            self.switch_columns(&mut params, on, vocab);
            needs = needs.union(StepFeatures::of(&with_filters(&params)));
        }
        // With a top-k column, several blocks per row would shorten only the rows whose top-k is off. They would
        // slow the other rows by more than that is worth.
        needs.long_nucleus &= self.top_k.is_none();
        Ok(PreparedRows { columns: prepared, needs })
    }

    /// Returns the bits of the parameters that are columns.
    fn columns(&self) -> u32 {
        let columns = [
            (self.temperature.is_some(), columns::TEMPERATURE),
            (self.top_k.is_some(), columns::TOP_K),
            (self.top_p.is_some(), columns::TOP_P),
            (self.min_p.is_some(), columns::MIN_P),
        ];
        columns.iter().filter(|(there, _)| *there).fold(0, |bits, (_, bit)| bits | bit)
    }

    /// Replaces each parameter that is a column. If the column's bit is in `on`, the new value switches the
    /// parameter on, and otherwise off.
    fn switch_columns(&self, params: &mut SamplingParams, on: u32, vocab: usize) {
        let on = |bit: u32| on & bit != 0;
        if self.temperature.is_some() {
            params.temperature = if on(columns::TEMPERATURE) { 1.0 } else { 0.0 };
        }
        if self.top_k.is_some() {
            params.top_k = if on(columns::TOP_K) { (vocab as i64 - 1).min(50) } else { 0 };
        }
        if self.top_p.is_some() {
            params.top_p = if on(columns::TOP_P) { 0.5 } else { 1.0 };
        }
        if self.min_p.is_some() {
            params.min_p = if on(columns::MIN_P) { 0.5 } else { 0.0 };
        }
    }
}

impl<'b> Draws<'b> {
    /// Describes draws with one seed and one position; each output's number is its draw index.
    #[must_use]
    pub fn new(seed: u64, position: u32) -> Self {
        let (seeds, positions) = (PerRow::All(seed), PerRow::All(position));
        Self { seeds, positions, draws: None, offsets: false, zero_for_none: false }
    }

    /// Adds the seeds, positions and draw indices of `outputs` outputs to the kernel's argument.
    pub(super) fn prepare(&self, outputs: usize, prepared: &mut ParamColumns) -> Result<()> {
        prepared.flags |= if self.offsets { from_columns_flags::OFFSETS } else { 0 };
        match &self.seeds {
            PerRow::All(seed) => prepared.base.seed = *seed,
            PerRow::Rows(seeds) => {
                prepared.seeds = integers(prepared, "seeds", seeds, outputs, columns::SEED)?
            }
        }
        match &self.positions {
            PerRow::All(position) => prepared.position = *position,
            PerRow::Rows(positions) => {
                prepared.positions = integers(prepared, "positions", positions, outputs, columns::POSITION)?;
            }
        }
        match &self.draws {
            Some(PerRow::All(draw)) => {
                prepared.base.draw = *draw;
                prepared.flags |= from_columns_flags::ONE_DRAW;
            }
            Some(PerRow::Rows(draws)) => {
                prepared.draws = integers(prepared, "draws", draws, outputs, columns::DRAW)?;
            }
            None => {}
        }
        Ok(())
    }
}

/// Checks a column of integers, records its type and length in `prepared`, and returns its address.
pub(super) fn integers(
    prepared: &mut ParamColumns,
    parameter: &'static str,
    column: &DeviceIntSlice<'_>,
    rows: usize,
    bit: u32,
) -> Result<u64> {
    prepared.per_row_columns |= per_row_bit(parameter, column.rows, rows, bit)?;
    if column.dtype.bytes() == size_of::<u64>() {
        prepared.columns_64_bit |= bit;
    }
    Ok(column.address)
}

/// Returns the column's bit if it has one number per row, and 0 if it has a single number for all rows.
fn per_row_bit(parameter: &'static str, length: usize, rows: usize, bit: u32) -> Result<u32> {
    match length {
        _ if length == rows => Ok(bit),
        1 => Ok(0),
        _ => Err(Error::length(parameter, length, format!("one for each of {rows} rows, or for all"))),
    }
}

/// Checks that the parameters have no biases or bans, which operators do not support.
fn check_edits(params: &SamplingParams, vocab: usize) -> Result<()> {
    let edits = edit_params::prepare(params, vocab, &mut Params::default());
    if edits.bias.is_empty() && edits.allowed.is_none() && edits.stop_ids.is_empty() {
        return Ok(());
    }
    let reason = "biases and bans need a request of a pool there; or mask the rows before".to_owned();
    Err(Error::Unavailable { resource: "edits of ids in an operator on a device", reason })
}
