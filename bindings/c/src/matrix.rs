//! Values that describe memory of the host or of a device: matrices, integers and grammar bitmasks.

use std::ffi::c_void;

use gumball_engine::{
    DeviceIntMatrix, DeviceIntMatrixMut, DeviceMasks, DeviceMatrix, DeviceSlice, Dtype as Type, Error,
    HostMasks, HostMatrix, Ids, IntType as Int, MAX_VOCAB, Row,
};

use crate::error::{Failure, Result};
use crate::ffi::{Caller, DtypeNumber, IntTypeNumber, MemoryNumber, constant, device_address};

/// Whose memory something lies in.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    GUMBALL_HOST = 0,
    /// The memory of the device that a pool or operators were made with; a CUdeviceptr is cast to a pointer.
    GUMBALL_DEVICE = 1,
}

pub(crate) fn memory(given: MemoryNumber) -> Result<Memory> {
    let all = [Memory::GUMBALL_HOST, Memory::GUMBALL_DEVICE].map(|memory| (memory, memory));
    constant("memory", given, &all)
}

fn check_memory(given: MemoryNumber, wanted: Memory, reason: &str) -> Result<()> {
    match memory(given)? {
        given if given == wanted => Ok(()),
        given => Err(Failure::out_of_range("memory", format!("{given:?}"), &format!("{wanted:?}: {reason}"))),
    }
}

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    GUMBALL_F32 = 0,
    GUMBALL_BF16 = 1,
    GUMBALL_F16 = 2,
}

pub(crate) fn dtype(given: DtypeNumber) -> Result<Type> {
    let all =
        [(Dtype::GUMBALL_F32, Type::F32), (Dtype::GUMBALL_BF16, Type::Bf16), (Dtype::GUMBALL_F16, Type::F16)];
    constant("dtype", given, &all)
}

/// The type of integers; in the memory of the host they have 32 bits.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntType {
    GUMBALL_I32 = 0,
    GUMBALL_I64 = 1,
}

/// A matrix of `rows` rows, each of `width` elements, which must not be written while it is read. `stride`:
/// how many elements after a row the next one begins; 0: width. The structs that follow have strides of the
/// same meaning.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub data: *const c_void,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
    pub dtype: DtypeNumber,
    pub memory: MemoryNumber,
}

/// Integers: a list of `rows`, or `rows` lines of `width`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ints {
    /// The first integer; NULL: there are none.
    pub data: *const c_void,
    pub rows: usize,
    /// The number of integers in a line; 0: 1.
    pub width: usize,
    pub stride: usize,
    pub dtype: IntTypeNumber,
    pub memory: MemoryNumber,
}

/// Grammar bitmasks, one for each row of a call: bit `id % 32` of word `id / 32` allows an id, and ids beyond
/// a bitmask are forbidden.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// The first word, a uint32_t; NULL: no row has a bitmask.
    pub words: *const c_void,
    pub rows: usize,
    /// The number of words in one. Bitmasks of 0 words forbid every id.
    pub width: usize,
    pub stride: usize,
    /// For each row whether its bitmask counts; NULL: all do. Not for bitmasks in a device's memory.
    pub present: *const u8,
    pub memory: MemoryNumber,
}

/// Returns a stride in elements: `width` if `given` is 0.
pub(crate) fn stride(given: usize, width: usize) -> usize {
    if given == 0 { width } else { given }
}

/// Returns the stride of a matrix in elements, and the number of elements to the end of its last row.
pub(crate) fn extent(rows: usize, width: usize, given: usize) -> Result<(usize, usize)> {
    if !(1..=MAX_VOCAB).contains(&width) {
        return Err(Failure::out_of_range("width", width, "in 1..=2^20"));
    }
    let stride = stride(given, width);
    Ok((stride, end("stride", rows, width, stride)?))
}

fn end(parameter: &str, rows: usize, width: usize, stride: usize) -> Result<usize> {
    let Some(others) = rows.checked_sub(1) else { return Ok(0) };
    let end = others.checked_mul(stride).and_then(|start| start.checked_add(width));
    let end = end.filter(|_| others == 0 || stride >= width);
    end.ok_or_else(|| Failure::out_of_range(parameter, stride, &format!("at least {width}, inside memory")))
}

impl Matrix {
    /// Returns `len` elements from its first one on, in the memory of the host.
    pub(crate) fn elements<'a>(&self, c: Caller<'a>, parameter: &'static str, len: usize) -> Result<Row<'a>> {
        Ok(match dtype(self.dtype)? {
            Type::F32 => Row::F32(c.slice(parameter, self.data.cast(), len)?),
            Type::Bf16 => Row::Bf16(c.slice(parameter, self.data.cast(), len)?),
            Type::F16 => Row::F16(c.slice(parameter, self.data.cast(), len)?),
        })
    }

    /// Returns the stride and all elements of a matrix of the host.
    pub(crate) fn on_host<'a>(&self, c: Caller<'a>, parameter: &'static str) -> Result<(usize, Row<'a>)> {
        let (stride, len) = extent(self.rows, self.width, self.stride)?;
        Ok((stride, self.elements(c, parameter, len)?))
    }

    pub(crate) fn get<'a>(
        &self,
        c: Caller<'a>,
        parameter: &'static str,
    ) -> Result<gumball_engine::Matrix<'a>> {
        if memory(self.memory)? == Memory::GUMBALL_DEVICE {
            return Ok(self.on_device(c, parameter)?.into());
        }
        let (stride, data) = self.on_host(c, parameter)?;
        Ok(HostMatrix::strided(data, self.rows, self.width, stride)?.into())
    }

    pub(crate) fn hidden<'a>(&self, c: Caller<'a>) -> Result<HostMatrix<'a>> {
        self.check_memory(Memory::GUMBALL_HOST, "a head of the host reads it")?;
        let (stride, data) = self.on_host(c, "hidden")?;
        let states = HostMatrix::strided(data, self.rows, self.width, stride);
        Ok(states.map_err(|error| {
            error.with_parameter(|name| if name == "width" { "hidden.width" } else { name })
        })?)
    }

    pub(crate) fn check_memory(&self, wanted: Memory, reason: &str) -> Result<()> {
        check_memory(self.memory, wanted, reason)
    }

    pub(crate) fn on_device<'a>(&self, _: Caller<'a>, parameter: &'static str) -> Result<DeviceMatrix<'a>> {
        let (stride, len) = extent(self.rows, self.width, self.stride)?;
        let (address, dtype) = (device_address(parameter, self.data, len)?, dtype(self.dtype)?);
        // SAFETY: the C caller ensures that this matrix lies there.
        let matrix = unsafe { DeviceMatrix::new(address, dtype, self.rows, self.width, stride) };
        Ok(matrix
            .map_err(|error| error.with_parameter(|name| if name == "logits" { parameter } else { name }))?)
    }
}

impl Ints {
    pub(crate) fn check_memory(&self, wanted: Memory, reason: &str) -> Result<()> {
        check_memory(self.memory, wanted, reason)
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.data.is_null() && self.rows == 0
    }

    pub(crate) fn int_type(&self) -> Result<Int> {
        let all = [(IntType::GUMBALL_I32, Int::I32), (IntType::GUMBALL_I64, Int::I64)];
        constant("dtype", self.dtype, &all)
    }

    pub(crate) fn check_list(&self, parameter: &str) -> Result<()> {
        for (name, value) in [("width", self.width), ("stride", self.stride)] {
            if value > 1 {
                return Err(Failure::out_of_range(name, value, &format!("0 or 1: {parameter} is a list")));
            }
        }
        Ok(())
    }

    pub(crate) fn list<'a>(&self, c: Caller<'a>, parameter: &'static str) -> Result<Ids<'a>> {
        let dtype = self.int_type()?;
        self.check_list(parameter)?;
        if memory(self.memory)? == Memory::GUMBALL_HOST {
            if dtype == Int::I64 {
                let allowed = "GUMBALL_I32 in the memory of the host";
                return Err(Failure::out_of_range("dtype", "GUMBALL_I64", allowed));
            }
            return Ok(c.slice(parameter, self.data.cast::<i32>(), self.rows)?.into());
        }
        let address = device_address(parameter, self.data, self.rows)?;
        // SAFETY: the C caller ensures that as many integers lie there.
        Ok(unsafe { DeviceSlice::new(address, dtype, self.rows) }?.into())
    }

    pub(crate) fn lines<'a>(&self, _: Caller<'a>, parameter: &'static str) -> Result<DeviceIntMatrix<'a>> {
        let (address, dtype, width, stride) = self.there(parameter)?;
        // SAFETY: the C caller ensures that these lines lie there.
        Ok(unsafe { DeviceIntMatrix::new(address, dtype, self.rows, width, stride) }?)
    }

    pub(crate) fn written<'a>(
        &self,
        _: Caller<'a>,
        parameter: &'static str,
    ) -> Result<DeviceIntMatrixMut<'a>> {
        let (address, dtype, width, stride) = self.there(parameter)?;
        // SAFETY: the C caller ensures that the lines of ids lie at `address`, and that nothing else reads or
        // writes them.
        Ok(unsafe { DeviceIntMatrixMut::new(address, dtype, self.rows, width, stride) }?)
    }

    fn there(&self, parameter: &'static str) -> Result<(u64, Int, usize, usize)> {
        self.check_memory(Memory::GUMBALL_DEVICE, "a batch of drafts lies there")?;
        let (address, width) = (device_address(parameter, self.data, self.rows)?, stride(self.width, 1));
        Ok((address, self.int_type()?, width, stride(self.stride, width)))
    }
}

/// Bitmasks of C, checked.
#[derive(Debug)]
pub(crate) struct GivenMasks<'a> {
    masks: gumball_engine::Masks<'a>,
    present: Option<Vec<bool>>,
    /// The words, if there is one bitmask.
    only: Option<&'a [u32]>,
}

impl<'a> GivenMasks<'a> {
    /// Returns those in a device's memory.
    pub fn there(&self) -> Result<gumball_engine::Masks<'a>> {
        if matches!(self.masks, gumball_engine::Masks::Host(_)) {
            let allowed = "GUMBALL_DEVICE: bitmasks of the host are assigned";
            return Err(Failure::out_of_range("masks.memory", "GUMBALL_HOST", allowed));
        }
        Ok(self.masks)
    }

    pub fn get(&self) -> Result<gumball_engine::Masks<'_>> {
        match (self.masks, &self.present) {
            (gumball_engine::Masks::Host(masks), Some(present)) => Ok(masks.with_present(present)?.into()),
            (masks, _) => Ok(masks),
        }
    }

    /// Returns the bitmask of the only row, if it counts.
    pub fn of_one(&self) -> Result<Option<&[u32]>> {
        let there = self.present.as_ref().is_none_or(|present| present.first() == Some(&true));
        match (self.masks, self.only) {
            (gumball_engine::Masks::None, _) => Ok(None),
            (gumball_engine::Masks::Host(_), Some(words)) => Ok(Some(words).filter(|_| there)),
            (gumball_engine::Masks::Host(_), None) => {
                Err(Failure::out_of_range("masks.rows", "another number", "1, that of rows"))
            }
            _ => Err(Failure::out_of_range("masks.memory", "GUMBALL_DEVICE", "GUMBALL_HOST, for a sampler")),
        }
    }
}

impl Masks {
    pub(crate) fn get<'a>(&self, c: Caller<'a>) -> Result<GivenMasks<'a>> {
        let (rows, width, stride) = (self.rows, self.width, stride(self.stride, self.width));
        let absent = GivenMasks { masks: gumball_engine::Masks::None, present: None, only: None };
        if self.words.is_null() {
            return Ok(absent);
        }
        let present = c.list("masks.present", self.present, rows)?;
        if memory(self.memory)? == Memory::GUMBALL_DEVICE {
            if present.is_some() {
                let reason =
                    "bitmasks in a device's memory are there for all rows or for none; leave it NULL";
                return Err(Error::Conflict { parameter: "masks.present", other: "memory", reason }.into());
            }
            // SAFETY: the C caller ensures that these words lie there.
            let masks = unsafe { DeviceMasks::new(self.words.addr() as u64, rows, width, stride) }?;
            return Ok(GivenMasks { masks: masks.into(), ..absent });
        }
        let end = if width == 0 { 0 } else { end("masks.stride", rows, width, stride)? };
        let words: &[u32] = c.slice("masks", self.words.cast(), end)?;
        Ok(GivenMasks {
            masks: HostMasks::new(words, rows, width, stride)?.into(),
            present: present.map(|present| present.iter().map(|there| *there != 0).collect()),
            only: Some(words).filter(|_| rows == 1),
        })
    }
}
