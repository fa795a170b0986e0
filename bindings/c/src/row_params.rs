//! The parameters of rows without requests.

use gumball_engine::SamplingParams;

use crate::columns::per_row;
use crate::error::Result;
use crate::matrix::Memory;
use crate::params::Params;
use crate::versioned::{read_or_default, versioned};

/// The parameters of the rows of a batch. A list has one element per row of the matrix and lies where the rows
/// do; NULL: the value in `params`, for all rows.
#[repr(C)]
#[derive(Debug)]
pub struct RowParams {
    /// sizeof(gumball_row_params).
    pub struct_size: usize,
    /// The parameters of all rows; NULL: neutral parameters. Rules that read a history find it empty; seed and logprobs are not
    /// read.
    pub params: *const Params,
    /// The temperature of each row.
    pub temperature: *const f32,
    /// The top_k of each row.
    pub top_k: *const i64,
    /// The top_p of each row.
    pub top_p: *const f32,
    /// The min_p of each row.
    pub min_p: *const f32,
}

impl Clone for RowParams {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for RowParams {}

versioned!(RowParams, "gumball_row_params", min_p: *const f32);

/// Returns the parameters of `rows` rows as the engine takes them.
///
/// # Safety
/// `given` is NULL or a struct with the size it states. Its handle `params` is NULL or alive, and each list is
/// NULL or has one element per row in that memory. Nobody frees or writes them for `'a`; on a device, until
/// the enqueued work is done.
pub(crate) unsafe fn read_row_params<'a>(
    memory: Memory,
    given: *const RowParams,
    rows: usize,
    neutral: &'a SamplingParams,
) -> Result<gumball_engine::RowParams<'a>> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read_or_default("params", given) }?;
    Ok(gumball_engine::RowParams {
        // SAFETY: the caller ensures that `params` is NULL or a live handle that nobody changes for `'a`.
        common: unsafe { given.params.as_ref() }.map_or(neutral, |params| &params.inner),
        // SAFETY: the caller ensures that `temperature` is NULL or has one f32 per row.
        temperature: unsafe { per_row(memory, "temperature", given.temperature, rows) }?,
        // SAFETY: the caller ensures that `top_k` is NULL or has one i64 per row.
        top_k: unsafe { per_row(memory, "top_k", given.top_k, rows) }?,
        // SAFETY: the caller ensures that `top_p` is NULL or has one f32 per row.
        top_p: unsafe { per_row(memory, "top_p", given.top_p, rows) }?,
        // SAFETY: the caller ensures that `min_p` is NULL or has one f32 per row.
        min_p: unsafe { per_row(memory, "min_p", given.min_p, rows) }?,
    })
}
