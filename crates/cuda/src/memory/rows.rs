//! Rows of logits, probabilities or bitmasks in device memory that a caller provides.

use std::marker::PhantomData;

use gumball_spec::shape::{check_stride, check_vocab};
use gumball_spec::{Error, Kind, MAX_VOCAB, Result};

use crate::abi::dtype::Dtype;
use crate::memory::buffer::Buffer;

/// The rows that are copied to a device at a time where they are put in order first: so the host needs no
/// second copy of all.
pub(crate) const ROWS_AT_ONCE: usize = 4096;

/// Rows of logits or probabilities in device memory that lives as long as `'b`.
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
    /// Sets whether the numbers are logits or probabilities; [`Kind::Logits`] if not set.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns whether the numbers are logits or probabilities.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns a range of the rows.
    ///
    /// # Panics
    /// If it ends behind the last one.
    #[must_use]
    pub fn part(&self, rows: std::ops::Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let start = rows.start * self.stride * self.dtype.bytes();
        Self { address: self.address + start as u64, rows: rows.len(), ..*self }
    }

    /// Returns the address of the first element of the first row.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns how many elements lie from the start of a row to the start of the next.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
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

    /// Describes `rows` rows of `vocab` elements, `stride` elements apart, that begin at a device address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `vocab` is outside 1..=2^20.
    /// - [`Error::OutOfRange`] if there are several rows and `stride` is less than `vocab`.
    /// - [`Error::OutOfRange`] if the rows reach beyond the address space.
    /// - [`Error::OutOfRange`] if the address is not a multiple of an element's size.
    /// - [`Error::Length`] if there are 2^32 or more rows.
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the device can read. Nobody writes them while a step that reads
    /// them runs.
    pub unsafe fn new(address: u64, dtype: Dtype, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        check_vocab(vocab)?;
        check_rows(["logits", "stride"], address, dtype.bytes(), (rows, vocab, stride))?;
        Ok(Self { memory: PhantomData, address, dtype, kind: Kind::Logits, rows, vocab, stride })
    }

    /// Describes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// - The errors of [`Rows::new`].
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
        // SAFETY: the check above saw that the rows lie in the buffer. It stays borrowed for `'b`, so nobody
        // enqueues a write until then; freeing it waits for the work that was enqueued before.
        unsafe { Self::new(address, dtype, rows, vocab, stride) }
    }
}

/// Rows in device memory that kernels write, or read and write. The caller has exclusive access to them for
/// `'b`.
#[derive(Debug)]
pub struct RowsOut<'b>(Rows<'b>);

impl<'b> RowsOut<'b> {
    /// Sets whether the numbers are logits or probabilities; [`Kind::Logits`] if not set.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Self {
        Self(self.0.with_kind(kind))
    }

    /// Returns the address, type and shape of the rows.
    #[must_use]
    pub fn rows(&self) -> &Rows<'b> {
        &self.0
    }

    /// Describes `rows` rows of `vocab` elements, `stride` elements apart, that begin at a device address.
    ///
    /// # Errors
    /// The errors of [`Rows::new`].
    ///
    /// # Safety
    /// For `'b`, all rows lie in memory that the device can read and write. Nobody else reads or writes them
    /// while work that was enqueued with them runs.
    pub unsafe fn new(address: u64, dtype: Dtype, rows: usize, vocab: usize, stride: usize) -> Result<Self> {
        // SAFETY: the caller guarantees more than [`Rows::new`] requires.
        unsafe { Rows::new(address, dtype, rows, vocab, stride) }.map(Self)
    }

    /// Describes rows that begin `start` elements into a buffer.
    ///
    /// # Errors
    /// The errors of [`Rows::of`].
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

/// Grammar bitmasks in device memory that lives as long as `'b`, one per row.
///
/// Bit `id % 32` of word `id / 32` allows an id. Ids beyond a bitmask's words are forbidden. Bitmasks without
/// words forbid every id, and their address may be arbitrary.
#[derive(Clone, Copy, Debug)]
pub struct MaskRows<'b> {
    memory: PhantomData<&'b Buffer>,
    pub(crate) address: u64,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl<'b> MaskRows<'b> {
    /// Describes `rows` bitmasks of `width` 32-bit words, `stride` words apart, that begin at a device
    /// address.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `width` is above 2^15, the words of the largest vocabulary.
    /// - [`Error::OutOfRange`] if there are several bitmasks and `stride` is less than `width`.
    /// - [`Error::OutOfRange`] if the bitmasks reach beyond the address space.
    /// - [`Error::OutOfRange`] if the address is not a multiple of 4 bytes.
    /// - [`Error::Length`] if there are 2^32 or more bitmasks.
    ///
    /// # Safety
    /// For `'b`, all bitmasks lie in memory that the device can read. Nobody writes them while a step that
    /// reads them runs.
    pub unsafe fn new(address: u64, rows: usize, width: usize, stride: usize) -> Result<Self> {
        if width > MAX_VOCAB / 32 {
            return Err(Error::out_of_range("masks.width", width, "in 0..=2^15 words"));
        }
        check_rows(["masks", "masks.stride"], address, size_of::<u32>(), (rows, width, stride))?;
        Ok(Self { memory: PhantomData, address, rows, width, stride })
    }

    /// Describes bitmasks that begin at the start of a buffer.
    ///
    /// # Errors
    /// - The errors of [`MaskRows::new`].
    /// - [`Error::Length`] if the buffer ends before the last bitmask does.
    pub fn of(buffer: &'b Buffer, rows: usize, width: usize, stride: usize) -> Result<Self> {
        if !holds(buffer, size_of::<u32>(), 0, (rows, width, stride)) {
            let allowed = format!("at least {rows} rows of {width} words, {stride} apart");
            return Err(Error::length("masks", buffer.bytes() / size_of::<u32>(), allowed));
        }
        // SAFETY: the check above saw that the bitmasks lie in the buffer, which stays borrowed for `'b`.
        unsafe { Self::new(buffer.address(), rows, width, stride) }
    }
}

/// Checks rows of `width` elements of `element` bytes: that neighbouring rows do not overlap, that
/// elements are aligned, and what [`check_extent`] checks. The first name is that of the rows, the second
/// that of the stride.
pub(crate) fn check_rows(
    [name, stride_name]: [&'static str; 2],
    address: u64,
    element: usize,
    (rows, width, stride): (usize, usize, usize),
) -> Result<()> {
    check_stride(stride_name, rows, width, stride)?;
    if !address.is_multiple_of(element as u64) {
        let allowed = format!("a multiple of {element} bytes");
        return Err(Error::out_of_range(name, format!("{address:#x}"), allowed));
    }
    check_extent(stride_name, address, element, (rows, width, stride))
}

/// Checks that rows of elements end inside the address space, and that kernels can number them in 31 bits.
pub(crate) fn check_extent(
    stride_name: &'static str,
    address: u64,
    element: usize,
    (rows, width, stride): (usize, usize, usize),
) -> Result<()> {
    if i32::try_from(rows).is_err() {
        return Err(Error::length("rows", rows, "less than 2^31 rows"));
    }
    let last = rows.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(width));
    let bytes = last.and_then(|end| isize::try_from(end.checked_mul(element)?).ok());
    match bytes.and_then(|bytes| address.checked_add(bytes as u64)) {
        Some(_) => Ok(()),
        None => Err(Error::out_of_range(stride_name, stride, "less, so that all rows lie inside memory")),
    }
}

/// Returns whether rows of elements that begin `start` elements into a buffer end inside it.
pub(crate) fn holds(
    buffer: &Buffer,
    element: usize,
    start: usize,
    (rows, width, stride): (usize, usize, usize),
) -> bool {
    if rows == 0 {
        return true;
    }
    let last = (rows - 1).checked_mul(stride);
    let end = last.and_then(|last| last.checked_add(start)?.checked_add(width)?.checked_mul(element));
    end.is_some_and(|end| end <= buffer.bytes())
}
