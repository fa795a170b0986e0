//! The parameters of an operator's rows: common values, which the host checks, and columns, which only the
//! device reads.

use gumball_spec::num::LOG2_E;
use gumball_spec::{Error, Kind, Result, SamplingParams};

use crate::abi::dtype::ColumnType;
use crate::abi::{
    MAX_LISTED_TOP_K, ParamColumns, Params, columns, features, from_columns_flags, logprob_modes, readings,
    row_filters,
};
use crate::memory::columns::{DeviceSlice, FLOATS, INTEGERS, SIGNED};
use crate::requests::step_features::{StepFeatures, Variant};
use crate::requests::{edit_params, filter_params};

/// One value for all rows, or a column with one value per row. A column of one number holds for all rows.
#[derive(Clone, Copy, Debug)]
pub enum PerRow<'b, T> {
    /// One value for all rows.
    All(T),
    /// One value per row. If the column's integers have more bits than the parameter, their low bits count.
    Rows(DeviceSlice<'b>),
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
    pub top_k: Option<DeviceSlice<'b>>,
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
    /// Makes the rows report radii. `repetition_penalty`: that of the rows; `size`: that of their edits (L7).
    pub fn ask_for_radii(&mut self, repetition_penalty: f32, size: f32) {
        let edited = logprob_modes::EDITED;
        self.columns.base = Params {
            features: self.columns.base.features | features::LOGPROBS | features::LOGPROB_SUMS,
            logprob_modes: edited | logprob_modes::RADIUS << 4 | edited << 8,
            logprob_log2e_over_t: LOG2_E,
            repetition_penalty,
            radius_size: size,
            ..self.columns.base
        };
        let asked = StepFeatures { sums: true, variant: Variant::General, ..StepFeatures::NONE };
        self.needs = self.needs.union(asked);
    }

    /// Returns whether no filter can be on, and each row's temperature is the given one.
    pub fn keeps_all(&self) -> bool {
        let others = features::DYNAMIC_TEMPERATURE | features::MIROSTAT;
        self.columns.base.filter_chain == 0 && self.columns.base.features & others == 0
    }
}

impl<'b> RowParams<'b> {
    /// Describes parameters that are equal in all rows.
    #[must_use]
    pub fn new(common: &'b SamplingParams) -> Self {
        Self { common, temperature: None, top_k: None, top_p: None, min_p: None }
    }

    /// Checks the parameters of rows of a kind, whose columns have `count` elements, and prepares them for
    /// kernels.
    pub(super) fn prepare(
        &self,
        kind: Kind,
        count: (usize, &'static str),
        vocab: usize,
    ) -> Result<PreparedRows> {
        self.common.validate(vocab)?;
        self.common.check_kind(kind)?;
        if kind == Kind::Probabilities && self.temperature.is_some() {
            let reason = "only logits have one; pass logits, or leave it out";
            return Err(Error::Conflict { parameter: "temperature", other: "probabilities", reason });
        }
        let mut prepared = ParamColumns { vocab: vocab as u32, ..ParamColumns::default() };
        // The bits of the parameters that are columns.
        let mut columns = 0;
        let mut column = |name, column: Option<DeviceSlice<'_>>, types, bit| {
            let Some(column) = column else { return Ok(0) };
            columns |= bit;
            Numbers::of(name, &column, types, count).map(|numbers| numbers.mark(&mut prepared, bit))
        };
        let temperatures = column("temperature", self.temperature, FLOATS, columns::TEMPERATURE)?;
        let top_ks = column("top_k", self.top_k, SIGNED, columns::TOP_K)?;
        let top_ps = column("top_p", self.top_p, FLOATS, columns::TOP_P)?;
        let min_ps = column("min_p", self.min_p, FLOATS, columns::MIN_P)?;
        prepared = ParamColumns { temperatures, top_ks, top_ps, min_ps, ..prepared };

        let mut params = SamplingParams { logprobs: None, ..self.common.clone() };
        self.switch_columns(&mut params, columns, vocab);
        params.validate(vocab)?;
        check_edits(&params, vocab)?;
        let with_filters = |params: &SamplingParams| {
            let mut prepared = Params::default();
            filter_params::prepare(params, params.temperature, vocab, &mut prepared);
            prepared
        };
        prepared.base = with_filters(&params);
        prepared.mirostat_mu = params.initial_mu();
        let mut needs = StepFeatures::of(&prepared.base);
        // The host does not know the columns' values. So it prepares the filters for every combination of
        // columns switched on and off, and the step has the features that any of them needs.
        let mut on = columns;
        loop {
            self.switch_columns(&mut params, on, vocab);
            let of_rows = with_filters(&params);
            needs = needs.union(StepFeatures::of(&of_rows));
            // A row of temperature 0 has no filters.
            if of_rows.features & features::GREEDY == 0 {
                let bit = |column, bit| if on & column != 0 { bit } else { 0 };
                let index = bit(columns::TOP_K, row_filters::TOP_K)
                    | bit(columns::TOP_P, row_filters::TOP_P)
                    | bit(columns::MIN_P, row_filters::MIN_P);
                prepared.filters[index as usize] = filter_params::row_filters(
                    &params,
                    params.temperature,
                    vocab,
                    params.top_k <= MAX_LISTED_TOP_K,
                )
                .0;
                prepared.filters[(index | row_filters::LONG_TOP_K) as usize] =
                    filter_params::row_filters(&params, params.temperature, vocab, false).0;
            }
            if on == 0 {
                break;
            }
            on = (on - 1) & columns;
        }
        prepared.base.features &= !filter_params::DECIDED_BY_CHAIN;
        // No head serves an operator.
        prepared.base.reading = readings::WHOLE;
        // With a top-k column, several blocks per row would shorten only the rows whose top-k is off. They
        // would slow the other rows by more than that is worth.
        needs.long_nucleus &= self.top_k.is_none();
        Ok(PreparedRows { columns: prepared, needs })
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

    /// Adds the seeds, positions and draw indices of `count` outputs or slots to the kernel's argument.
    pub(super) fn prepare(&self, count: (usize, &'static str), prepared: &mut ParamColumns) -> Result<()> {
        prepared.flags |= if self.offsets { from_columns_flags::OFFSETS } else { 0 };
        let [seeds, positions, draws] = self.numbers(count)?;
        prepared.base.seed = seeds.common;
        prepared.seeds = seeds.mark(prepared, columns::SEED);
        prepared.position = positions.common as u32;
        prepared.positions = positions.mark(prepared, columns::POSITION);
        prepared.base.draw = draws.common as u32;
        prepared.draws = draws.mark(prepared, columns::DRAW);
        prepared.flags |=
            if matches!(self.draws, Some(PerRow::All(_))) { from_columns_flags::ONE_DRAW } else { 0 };
        Ok(())
    }

    /// Checks the columns, with one number for each of `count` outputs or chains, and returns the seeds,
    /// positions and draw indices.
    pub(super) fn numbers(&self, count: (usize, &'static str)) -> Result<[Numbers; 3]> {
        Ok([
            self.seeds.numbers("seeds", count)?,
            self.positions.numbers("positions", count)?,
            self.draws.map_or(Ok(Numbers::default()), |draws| draws.numbers("draws", count))?,
        ])
    }
}

/// The numbers of a parameter as kernels read them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    /// The number for all rows, if there is no column.
    pub common: u64,
    /// The address of the column; 0 if there is none.
    address: u64,
    /// Whether the column's numbers have 64 bits.
    pub is_64_bit: bool,
    /// Whether the column has one number per row; otherwise its first number is that of all rows.
    pub per_row: bool,
}

impl Numbers {
    /// Checks a column, which has one number for each of `count` rows, or a single one for all.
    pub fn of(
        parameter: &'static str,
        column: &DeviceSlice<'_>,
        types: &[ColumnType],
        (count, of): (usize, &'static str),
    ) -> Result<Self> {
        column.check_type(parameter, types)?;
        if column.rows != count && column.rows != 1 {
            let allowed = format!("one for each of {count} {of}, or for all");
            return Err(Error::length(parameter, column.rows, allowed));
        }
        let is_64_bit = column.dtype.bytes() == size_of::<u64>();
        Ok(Self { common: 0, address: column.address, is_64_bit, per_row: column.rows == count })
    }

    /// Notes the column's type and length under its bit, and returns its address.
    pub fn mark(&self, prepared: &mut ParamColumns, bit: u32) -> u64 {
        prepared.per_row_columns |= if self.per_row { bit } else { 0 };
        prepared.columns_64_bit |= if self.is_64_bit { bit } else { 0 };
        self.address
    }

    /// Returns the address of the numbers of row `row` and those after it.
    pub fn from(&self, row: usize) -> u64 {
        let bytes = if self.is_64_bit { size_of::<u64>() } else { size_of::<u32>() };
        self.address + if self.per_row { (row * bytes) as u64 } else { 0 }
    }
}

impl<T: Copy + Into<u64>> PerRow<'_, T> {
    /// Returns the numbers of `count` rows.
    fn numbers(&self, parameter: &'static str, count: (usize, &'static str)) -> Result<Numbers> {
        match self {
            PerRow::All(number) => Ok(Numbers { common: (*number).into(), ..Numbers::default() }),
            PerRow::Rows(column) => Numbers::of(parameter, column, INTEGERS, count),
        }
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
