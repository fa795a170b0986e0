//! Rows that operators read and write: into separate memory, or in place; on the host or on a device.

use std::ffi::c_void;

use gumball_engine::unstable::RowMut;
use gumball_engine::{
    DeviceRows, Dtype as Type, HostMatrix, Kind, LogitsMut, Matrix as EngineMatrix, Rows as EngineRows,
    RowsInOut,
};

use crate::columns::Arrays;
use crate::error::{Failure, Result};
use crate::ffi::{Caller, device_address};
use crate::matrix::{Matrix, Memory, dtype, extent};
use crate::rows::{Rows, What};

/// Why rows must lie in a memory.
pub(crate) const HERE: &str = "the operators work there";

/// Returns what rows are that no head makes.
pub(crate) fn kind(rows: &Rows) -> Result<Kind> {
    rows.refuse_head()?;
    match rows.what()? {
        What::GUMBALL_LOGITS => Ok(Kind::Logits),
        What::GUMBALL_PROBABILITIES => Ok(Kind::Probabilities),
        What::GUMBALL_HIDDEN => {
            Err(Failure::out_of_range("what", "GUMBALL_HIDDEN", "GUMBALL_LOGITS or GUMBALL_PROBABILITIES"))
        }
    }
}

impl<'a> Arrays<'a> {
    /// Returns rows to be read as the engine takes them, and their number.
    pub fn rows(self, given: *const Rows) -> Result<(EngineRows<'a>, usize)> {
        let given = self.c.plain("logits", given)?;
        let (kind, matrix) = (kind(&given)?, &given.matrix);
        matrix.check_memory(self.memory, HERE)?;
        let rows = match self.memory {
            Memory::GUMBALL_HOST => here(self.c, matrix)?.into(),
            Memory::GUMBALL_DEVICE => EngineMatrix::from(matrix.on_device(self.c, "logits")?),
        };
        Ok((EngineRows::of(rows, kind), matrix.rows))
    }

    /// Returns rows to be read and rows to be written as the engine takes them, and the number of rows. The
    /// rows to be written may be the rows that are read, but must not overlap them otherwise.
    pub fn rows_in_out(self, rows: *const Rows, out: *const Matrix) -> Result<(RowsInOut<'a>, usize)> {
        let Self { c, memory } = self;
        let (from, to) = (c.plain("logits", rows)?, c.plain("out", out)?);
        let (kind, from) = (kind(&from)?, from.matrix);
        from.check_memory(memory, HERE)?;
        to.check_memory(memory, HERE)?;
        let reads = !is_same(&from, &to)?;
        let (stride, len) = extent(to.rows, to.width, to.stride)?;
        let to_type = dtype(to.dtype)?;
        if memory == Memory::GUMBALL_DEVICE {
            let address = device_address("out", to.data, len)?;
            // SAFETY: the C caller ensures that `to.data` is the device address of this matrix, which only
            // this work uses; `is_same` found it equal to the read rows or apart.
            let to = unsafe { DeviceRows::new(address, to_type, to.rows, to.width, stride) }?.with_kind(kind);
            let read = reads.then(|| Ok::<_, Failure>(EngineRows::of(from.on_device(c, "logits")?, kind)));
            return Ok((RowsInOut { from: read.transpose()?, to: to.into() }, from.rows));
        }
        let read = reads.then(|| Ok::<_, Failure>(EngineRows::of(here(c, &from)?, kind))).transpose()?;
        let data = to.data.cast_mut();
        let written = match to_type {
            Type::F32 => RowMut::F32(c.slice_mut("out", data.cast(), len)?),
            Type::Bf16 => RowMut::Bf16(c.slice_mut("out", data.cast(), len)?),
            Type::F16 => RowMut::F16(c.slice_mut("out", data.cast(), len)?),
        };
        let to = LogitsMut::strided(written, to.rows, to.width, stride)?.with_kind(kind);
        Ok((RowsInOut { from: read, to: to.into() }, from.rows))
    }
}

fn here<'a>(c: Caller<'a>, matrix: &Matrix) -> Result<HostMatrix<'a>> {
    let (stride, data) = matrix.on_host(c, "logits")?;
    Ok(HostMatrix::of_vocab(data, matrix.rows, matrix.width, stride)?)
}

/// Returns whether the rows to be written are the rows that are read; refuses any other overlap.
fn is_same(from: &Matrix, to: &Matrix) -> Result<bool> {
    let (from_stride, from_len) = extent(from.rows, from.width, from.stride)?;
    let (to_stride, to_len) = extent(to.rows, to.width, to.stride)?;
    let (from_type, to_type) = (dtype(from.dtype)?, dtype(to.dtype)?);
    let same = from.data.addr() == to.data.addr()
        && (from.rows, from.width, from_stride, from_type) == (to.rows, to.width, to_stride, to_type);
    let (start, end) = span(from.data, from_len, from_type);
    let (out_start, out_end) = span(to.data, to_len, to_type);
    if !same && start < out_end && out_start < end {
        let allowed = "the very rows that are read, or memory that has nothing in common with theirs";
        return Err(Failure::out_of_range("out", format!("{:p}", to.data), allowed));
    }
    Ok(same)
}

/// Returns the addresses of the first byte and of the end of `len` elements.
fn span(first: *const c_void, len: usize, dtype: Type) -> (usize, usize) {
    let bytes = if dtype == Type::F32 { 4 } else { 2 };
    (first.addr(), first.addr().saturating_add(len.saturating_mul(bytes)))
}
