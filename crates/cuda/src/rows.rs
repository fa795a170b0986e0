//! Rows of logits or probabilities, and of bitmasks, in a machine's memory, as a caller hands them in.

use std::marker::PhantomData;

use gumball_spec::{Error, Kind, MAX_VOCAB, Result};

use crate::runtime::Buffer;

/// The type of a row's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// Truncated single precision.
    Bf16,
    /// Half precision.
    F16,
}

impl Dtype {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
        }
    }

    /// Returns the size of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }
}

/// Rows of logits or probabilities in the machine's memory, which lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) dtype: Dtype,
    pub(crate) kind: Kind,
    pub(crate) rows: usize,
    pub(crate) vocab: usize,
    pub(crate) stride: usize,
}

impl<'b> Rows<'b> {
    /// Says what the numbers are; [`Kind::Logits`] if not said.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns what the numbers are.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns some of the rows.
    pub(crate) fn part(&self, rows: std::ops::Range<usize>) -> Self {
        let start = rows.start * self.stride * self.dtype.bytes();
        Self { address: self.address + start as u64, rows: rows.len(), ..*self }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of elements in a row.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Takes `rows` rows of `vocab` elements, `stride` elements apart, at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20, `stride` less than it with several rows, the rows reach
    ///   beyond the address space, or the address is no multiple of an element's size.
    /// - [`Error::Length`] if there are 2^32 rows or more.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the machine can read, and nobody writes them while a step on them runs.
    pub unsafe fn new(address: u64, dtype: Dtype, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
        }
        if rows > 1 && stride < vocab {
            return Err(Error::out_of_range(
                "stride",
                stride,
                format!("at least the width of a row, {vocab}"),
            ));
        }
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", dtype.bytes());
            return Err(Error::out_of_range("logits", format!("{address:#x}"), allowed));
        }
        check_extent("stride", address, dtype.bytes(), (rows, vocab, stride))?;
        Ok(Self { memory: PhantomData, address, dtype, kind: Kind::Logits, rows, vocab, stride })
    }

    /// Takes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - Those of [`Rows::new`].
    /// - [`Error::Length`] if the buffer ends before the last row does.
    pub fn of(
        buffer: &'b Buffer,
        dtype: Dtype,
        start: usize,
        rows: usize,
        vocab: usize,
        stride: usize,
    ) -> Result<Self> {
        if !holds(buffer, dtype.bytes(), start, (rows, vocab, stride)) {
            let allowed = format!("at least {rows} rows of {vocab} elements, {stride} apart, from {start}");
            return Err(Error::length("logits", buffer.bytes() / dtype.bytes(), allowed));
        }
        let address = buffer.address() + (start * dtype.bytes()) as u64;
        // SAFETY: the rows lie in the buffer, as was just seen, which is borrowed for `'b`: until then nothing
        // enqueues a write, and its end waits for what was enqueued before.
        unsafe { Self::new(address, dtype, rows, vocab, stride) }
    }
}

/// Rows in the machine's memory that are written, or read and written; they are nobody else's as long as `'b`.
#[derive(Debug)]
pub struct RowsOut<'b>(Rows<'b>);

impl<'b> RowsOut<'b> {
    /// Says what the numbers are; [`Kind::Logits`] if not said.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self(self.0.with_kind(kind))
    }

    /// Returns where the rows are and what they are like.
    #[must_use]
    pub fn rows(&self) -> &Rows<'b> {
        &self.0
    }

    /// Takes `rows` rows of `vocab` elements, `stride` elements apart, at an address of the machine.
    ///
    /// # Errors
    /// Those of [`Rows::new`].
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the machine can read and write, and while what is enqueued on them runs nobody
    /// else does either.
    pub unsafe fn new(address: u64, dtype: Dtype, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        // SAFETY: the caller vouches for more than it takes.
        unsafe { Rows::new(address, dtype, rows, vocab, stride) }.map(Self)
    }

    /// Takes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// Those of [`Rows::of`].
    pub fn of(
        buffer: &'b mut Buffer,
        dtype: Dtype,
        start: usize,
        rows: usize,
        vocab: usize,
        stride: usize,
    ) -> Result<Self> {
        Rows::of(buffer, dtype, start, rows, vocab, stride).map(Self)
    }
}

/// A number of 32 bits for each row, side by side in the machine's memory, which lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) rows: usize,
}

impl<'b> DeviceSlice<'b> {
    /// Takes the numbers of `rows` rows at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the address is no multiple of 4 bytes.
    ///
    /// # Safety
    /// For `'b`, they lie in memory that the machine can read, and write where that is what they are for; while what is
    /// enqueued with them runs, nobody else writes them.
    pub unsafe fn new(address: u64, rows: usize) -> Result<Self> {
        if !address.is_multiple_of(4) {
            return Err(Error::out_of_range("column", format!("{address:#x}"), "a multiple of 4 bytes"));
        }
        Ok(Self { memory: PhantomData, address, rows })
    }

    /// Takes all that a buffer holds.
    #[must_use]
    pub fn of(buffer: &'b Buffer) -> Self {
        Self { memory: PhantomData, address: buffer.address(), rows: buffer.bytes() / size_of::<u32>() }
    }

    /// Returns the first so many of them.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are not as many.
    pub fn first(self, rows: usize) -> Result<Self> {
        if rows > self.rows {
            return Err(Error::length("column", self.rows, format!("{rows} numbers at least")));
        }
        Ok(Self { rows, ..self })
    }
}

/// The type of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntType {
    /// 32 bits, with a sign.
    I32,
    /// 32 bits, without.
    U32,
    /// 64 bits, with a sign.
    I64,
    /// 64 bits, without.
    U64,
}

impl IntType {
    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            IntType::I32 => "i32",
            IntType::U32 => "u32",
            IntType::I64 => "i64",
            IntType::U64 => "u64",
        }
    }

    /// Returns the size of a number.
    #[must_use]
    pub fn bytes(self) -> usize {
        if matches!(self, IntType::I32 | IntType::U32) { 4 } else { 8 }
    }
}

/// Whole numbers side by side in the machine's memory, which lives as long as `'b`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIntSlice<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) dtype: IntType,
    pub(crate) rows: usize,
}

impl<'b> DeviceIntSlice<'b> {
    /// Takes the numbers of `rows` rows at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the address is no multiple of a number's size.
    ///
    /// # Safety
    /// Those of [`DeviceSlice::new`].
    pub unsafe fn new(address: u64, dtype: IntType, rows: usize) -> Result<Self> {
        if !address.is_multiple_of(dtype.bytes() as u64) {
            let allowed = format!("a multiple of {} bytes", dtype.bytes());
            return Err(Error::out_of_range("integers", format!("{address:#x}"), allowed));
        }
        Ok(Self { memory: PhantomData, address, dtype, rows })
    }

    /// Takes all that a buffer holds.
    #[must_use]
    pub fn of(buffer: &'b Buffer, dtype: IntType) -> Self {
        let rows = buffer.bytes() / dtype.bytes();
        Self { memory: PhantomData, address: buffer.address(), dtype, rows }
    }

    /// Returns the first so many of them.
    ///
    /// # Errors
    /// - [`Error::Length`] if there are not as many.
    pub fn first(self, rows: usize) -> Result<Self> {
        if rows > self.rows {
            return Err(Error::length("column", self.rows, format!("{rows} numbers at least")));
        }
        Ok(Self { rows, ..self })
    }

    /// Returns how many there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns their type.
    #[must_use]
    pub fn dtype(&self) -> IntType {
        self.dtype
    }
}

/// Grammar bitmasks in the machine's memory, one line a row, which live as long as `'b`.
///
/// Bit `id % 32` of word `id / 32` allows an id. Ids beyond the words of a line are forbidden; lines without words, which may lie
/// anywhere, forbid every id.
#[derive(Clone, Copy, Debug)]
pub struct MaskRows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl<'b> MaskRows<'b> {
    /// Takes `rows` lines of `width` words, `stride` words apart, at an address of the machine.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `width` is above that of the largest vocabulary, `stride` less than it with several
    ///   rows, the lines reach beyond the address space, or the address is no multiple of 4 bytes.
    /// - [`Error::Length`] if there are 2^32 lines or more.
    ///
    /// # Safety
    /// For `'b`, all lines lie in memory that the machine can read, and nobody writes them while a step on them runs.
    pub unsafe fn new(address: u64, rows: usize, width: usize, stride: usize) -> Result<Self> {
        if width > MAX_VOCAB / 32 {
            return Err(Error::out_of_range("masks.width", width, "in 0..=2^15 words"));
        }
        if rows > 1 && stride < width {
            let allowed = format!("at least the width of a row, {width}");
            return Err(Error::out_of_range("masks.stride", stride, allowed));
        }
        if !address.is_multiple_of(4) {
            return Err(Error::out_of_range("masks", format!("{address:#x}"), "a multiple of 4 bytes"));
        }
        check_extent("masks.stride", address, size_of::<u32>(), (rows, width, stride))?;
        Ok(Self { memory: PhantomData, address, rows, width, stride })
    }

    /// Takes lines that begin with a buffer.
    ///
    /// # Errors
    /// - Those of [`MaskRows::new`].
    /// - [`Error::Length`] if the buffer ends before the last line does.
    pub fn of(buffer: &'b Buffer, rows: usize, width: usize, stride: usize) -> Result<Self> {
        if !holds(buffer, size_of::<u32>(), 0, (rows, width, stride)) {
            let allowed = format!("at least {rows} rows of {width} words, {stride} apart");
            return Err(Error::length("masks", buffer.bytes() / size_of::<u32>(), allowed));
        }
        // SAFETY: the lines lie in the buffer, as was just seen, which is borrowed for `'b`.
        unsafe { Self::new(buffer.address(), rows, width, stride) }
    }
}

/// Checks that lines of elements at an address end inside the address space, and that kernels can number them.
pub(crate) fn check_extent(
    parameter: &'static str,
    address: u64,
    element: usize,
    (lines, width, stride): (usize, usize, usize),
) -> Result<()> {
    if u32::try_from(lines).is_err() {
        return Err(Error::length("rows", lines, "less than 2^32 rows"));
    }
    let last = lines.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(width));
    let bytes = last.and_then(|end| isize::try_from(end.checked_mul(element)?).ok());
    match bytes.and_then(|bytes| address.checked_add(bytes as u64)) {
        Some(_) => Ok(()),
        None => Err(Error::out_of_range(parameter, stride, "less, so that all lines lie inside memory")),
    }
}

/// Returns whether lines of elements that begin `start` elements into a buffer end inside it.
pub(crate) fn holds(
    buffer: &Buffer,
    element: usize,
    start: usize,
    (lines, width, stride): (usize, usize, usize),
) -> bool {
    if lines == 0 {
        return true;
    }
    let last = (lines - 1).checked_mul(stride);
    let end = last.and_then(|last| last.checked_add(start)?.checked_add(width)?.checked_mul(element));
    end.is_some_and(|end| end <= buffer.bytes())
}
