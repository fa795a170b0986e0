//! Logprobs of given ids over given sets, entropies, and the gradient of both, by the kernels of
//! `given_logprobs.cu`: a block takes a row, so a call is one launch without scratch memory.

use gumball_spec::{Error, Kind, Result, TILE};

use super::params::{Numbers, PerRow};
use super::softmax::check_temperature;
use super::{Operators, check_column, check_out, check_rows};
use crate::abi::{self, WEIGHED_NUMBERS, given_flags};
use crate::launch::tuning;
use crate::memory::columns::{DeviceSlice, FLOATS, SIGNED};
use crate::memory::rows::{MaskRows, Rows, RowsOut};

/// The ids that rows are asked for, and over which sets.
#[derive(Clone, Copy, Debug)]
pub struct GivenTokens<'b> {
    /// `[rows, width]` ids of i32 or i64, or one for all rows if the width is 1.
    pub ids: DeviceSlice<'b>,
    /// The number of ids of each row, in 0..=1024.
    pub width: usize,
    /// The id that is ignored.
    pub ignored: i32,
    /// In 0..=2^100; in a column what is not counts as the nearest that is.
    pub temperature: PerRow<'b, f32>,
    /// The sets; `None`: all ids.
    pub kept: Option<MaskRows<'b>>,
}

/// The columns that receive what is said of given ids, all of f32.
#[derive(Clone, Copy, Debug)]
pub struct GivenLogprobs<'b> {
    /// `[rows, width]`.
    pub logprobs: DeviceSlice<'b>,
    /// `[rows]`.
    pub entropies: Option<DeviceSlice<'b>>,
    /// `[rows, 3]`.
    pub weighed: Option<DeviceSlice<'b>>,
}

/// The derivatives of a loss by what rows were asked for, all of f32.
#[derive(Clone, Copy, Debug)]
pub struct LossDerivatives<'b> {
    /// `[rows, 3]`, of the former call.
    pub weighed: DeviceSlice<'b>,
    /// `[rows, width]`.
    pub of_logprobs: DeviceSlice<'b>,
    /// `[rows]`; `None`: 0.
    pub of_entropies: Option<DeviceSlice<'b>>,
}

impl Operators {
    /// Enqueues the writing of the logprobs of given ids over given sets, and of the sets' entropies (L4), in
    /// one launch. Allocates nothing.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `tokens`, `out`: what their fields say. An id that is none of the vocabulary
    /// has the logprob -inf.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] or [`gumball_spec::Error::OutOfRange`] if a shape or a type differs
    ///   from these.
    /// - [`gumball_spec::Error::Unavailable`] if the device fails.
    pub fn logprobs(&self, rows: &Rows<'_>, tokens: &GivenTokens<'_>, out: &GivenLogprobs<'_>) -> Result<()> {
        let argument = argument(rows, tokens)?;
        check_column("logprobs", Some(&out.logprobs), FLOATS, rows.rows * tokens.width)?;
        check_column("entropies", out.entropies.as_ref(), FLOATS, rows.rows)?;
        check_column("weighed", out.weighed.as_ref(), FLOATS, rows.rows * WEIGHED_NUMBERS as usize)?;
        let at = |column: Option<DeviceSlice<'_>>| column.map_or(0, |column| column.address);
        let argument = abi::GivenArgs {
            logprobs: out.logprobs.address,
            entropies: at(out.entropies),
            weighed: at(out.weighed),
            ..argument
        };
        if rows.rows == 0 {
            return Ok(());
        }
        let launch = tuning::given_logprobs(rows.rows, argument.tiles, rows.dtype);
        // SAFETY: the creators of rows, sets and columns guarantee their memory, whose types and lengths were
        // checked.
        Ok(unsafe { launch.enqueue(&*self.passes.runtime, &argument) }?)
    }

    /// Enqueues the writing of the derivatives of a loss by logits (L5), in one launch. Allocates nothing.
    ///
    /// # Shapes and units
    /// `from`: R rows of logits; `None`: the logits lie in `to` and are replaced. `to`: R rows of the logits'
    /// type. `by`: as its fields say.
    ///
    /// # Errors
    /// - The errors of [`Operators::logprobs`].
    pub fn logprobs_gradient(
        &self,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        tokens: &GivenTokens<'_>,
        by: &LossDerivatives<'_>,
    ) -> Result<()> {
        let rows = from.unwrap_or(to.rows());
        check_out(rows, to)?;
        let (dtype, allowed) = (to.rows().dtype, rows.dtype);
        if dtype != allowed {
            return Err(Error::out_of_range(
                "out.dtype",
                dtype.name(),
                format!("{}, as the logits", allowed.name()),
            ));
        }
        let argument = argument(rows, tokens)?;
        check_column("weighed", Some(&by.weighed), FLOATS, rows.rows * WEIGHED_NUMBERS as usize)?;
        check_column("of_logprobs", Some(&by.of_logprobs), FLOATS, rows.rows * tokens.width)?;
        check_column("of_entropies", by.of_entropies.as_ref(), FLOATS, rows.rows)?;
        let argument = abi::GivenArgs {
            out: to.rows().address,
            out_stride: to.rows().stride as u64,
            weighed: by.weighed.address,
            of_logprobs: by.of_logprobs.address,
            of_entropies: by.of_entropies.map_or(0, |column| column.address),
            ..argument
        };
        if rows.rows == 0 {
            return Ok(());
        }
        let launch = tuning::given_gradient(rows.rows, argument.tiles, rows.dtype);
        // SAFETY: as above; the written rows are the rows that are read, or do not overlap them, and no other
        // code uses them.
        Ok(unsafe { launch.enqueue(&*self.passes.runtime, &argument) }?)
    }
}

/// Checks rows and tokens; returns what the kernels' arguments have in common.
fn argument(rows: &Rows<'_>, tokens: &GivenTokens<'_>) -> Result<abi::GivenArgs> {
    let GivenTokens { ids, width, ignored, temperature, kept } = tokens;
    if rows.kind != Kind::Logits {
        return Err(Error::out_of_range("kind", "probabilities", "logits"));
    }
    if *width > abi::MAX_GIVEN_IDS as usize {
        return Err(Error::out_of_range("width", width, format!("in 0..={}", abi::MAX_GIVEN_IDS)));
    }
    ids.check_type("ids", SIGNED)?;
    let is_one = *width == 1 && ids.rows == 1;
    if !is_one && ids.rows != rows.rows * width {
        return Err(Error::length("ids", ids.rows, format!("{width} for each of {} rows", rows.rows)));
    }
    let (temperatures, temperature_stride, temperature) = match temperature {
        PerRow::All(of_all) => (0, 0, check_temperature(*of_all)?),
        PerRow::Rows(each) => {
            let column = Numbers::of("temperature", each, FLOATS, (rows.rows, "rows"))?;
            (column.from(0), u32::from(column.per_row), 0.0)
        }
    };
    if let Some(kept) = kept {
        check_rows("masks", kept.rows, rows.rows)?;
    }
    let is_64_bit = ids.dtype.bytes() == size_of::<u64>();
    let flags =
        if is_64_bit { given_flags::IDS_I64 } else { 0 } | if is_one { given_flags::ONE_ID } else { 0 };
    Ok(abi::GivenArgs {
        logits: rows.address,
        stride: rows.stride as u64,
        ids: ids.address,
        kept: kept.map_or(0, |kept| kept.address),
        kept_stride: kept.map_or(0, |kept| kept.stride as u64),
        temperatures,
        vocab: rows.vocab as u32,
        tiles: rows.vocab.div_ceil(TILE) as u32,
        width: *width as u32,
        kept_words: kept.map_or(0, |kept| kept.width as u32),
        ignored: *ignored,
        flags,
        temperature,
        temperature_stride,
        ..bytemuck::Zeroable::zeroed()
    })
}
