//! Grammar bitmasks of the rows of a batch, in the memory of the host or of a device.

use gumball_spec::layout::set_ids;
use gumball_spec::matrix::check_matrix;
use gumball_spec::request::check_mask_width;
use gumball_spec::{Error, Result};

use crate::device::DeviceMasks;

/// Grammar bitmasks of a batch: one row of words for each row of logits.
///
/// Bit `id % 32` of word `id / 32` allows an id. Ids beyond the words of a row of the mask are forbidden, so
/// a mask may be made for a vocabulary without its padding; a row of no words forbids every id.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Masks<'a> {
    /// No row has a mask.
    #[default]
    None,
    /// In the memory of the host.
    Host(HostMasks<'a>),
    /// In the memory of a device.
    Device(DeviceMasks<'a>),
}

impl<'a> Masks<'a> {
    /// Takes `rows` rows of `width` words of the host: [`HostMasks::new`].
    ///
    /// # Errors
    /// The errors of [`HostMasks::new`].
    pub fn new(words: &'a [u32], rows: usize, width: usize, stride: usize) -> Result<Self> {
        HostMasks::new(words, rows, width, stride).map(Self::Host)
    }

    /// Returns the number of words of each mask, if there are masks in the memory of the host.
    pub(crate) fn width(&self) -> Option<usize> {
        match self {
            Self::Host(masks) => Some(masks.width),
            _ => None,
        }
    }

    /// Returns the words of a row, if it has a mask in the memory of the host.
    pub(crate) fn row(&self, row: usize) -> Option<&'a [u32]> {
        match self {
            Self::Host(masks) => masks.row(row),
            _ => None,
        }
    }

    /// Returns the words of `rows` rows; an empty list if none has a mask.
    pub(crate) fn rows(&self, rows: usize) -> Vec<Option<&'a [u32]>> {
        match self {
            Self::None => Vec::new(),
            _ => (0..rows).map(|row| self.row(row)).collect(),
        }
    }

    /// Checks that masks suit `rows` rows, for a call that reads them on the host.
    pub(crate) fn check(&self, rows: usize, vocab: usize) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Host(masks) if masks.rows == rows => check_mask_width("masks.width", masks.width, vocab),
            Self::Host(masks) => Err(Error::length("masks", masks.rows, format!("one per row, {rows}"))),
            Self::Device(_) => Err(crate::matrix::on_a_device("masks")),
        }
    }

    /// Returns the masks of some rows only, in this order.
    pub(crate) fn pick<'b>(&self, rows: &'b [usize]) -> Masks<'b>
    where
        'a: 'b,
    {
        match *self {
            Self::Host(masks) => Masks::Host(HostMasks { select: Some(rows), ..masks }),
            masks => masks,
        }
    }
}

impl<'a> From<HostMasks<'a>> for Masks<'a> {
    fn from(masks: HostMasks<'a>) -> Self {
        Self::Host(masks)
    }
}

impl<'a> From<DeviceMasks<'a>> for Masks<'a> {
    fn from(masks: DeviceMasks<'a>) -> Self {
        Self::Device(masks)
    }
}

/// Grammar bitmasks in the memory of the host: a strided matrix of words.
#[derive(Clone, Copy, Debug)]
pub struct HostMasks<'a> {
    words: &'a [u32],
    rows: usize,
    width: usize,
    stride: usize,
    present: Option<&'a [bool]>,
    /// For each row, the row of the matrix that it has; `None`: its own.
    select: Option<&'a [usize]>,
}

impl<'a> HostMasks<'a> {
    /// Takes `rows` rows of `width` words each, the next one `stride` words on.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if `stride` is less than `width` and there are several rows.
    /// - [`Error::Length`] if the words end before the last row does.
    pub fn new(words: &'a [u32], rows: usize, width: usize, stride: usize) -> Result<Self> {
        // Where a row without words would lie does not matter.
        let stride = if width == 0 { 0 } else { stride };
        check_matrix("masks", words.len(), rows, width, stride)?;
        Ok(Self { words, rows, width, stride, present: None, select: None })
    }

    /// Says for each row whether its mask counts; a row without one is not restricted.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one per row.
    pub fn with_present(self, present: &'a [bool]) -> Result<Self> {
        if present.len() != self.rows {
            return Err(Error::length("masks.present", present.len(), format!("one per row, {}", self.rows)));
        }
        Ok(Self { present: Some(present), ..self })
    }

    /// Packs the rows as sets; see [`Operators::pack_kept`](crate::Operators::pack_kept).
    pub(crate) fn pack(&self, packed: &mut [u32]) -> Result<()> {
        let wanted = self.rows * (1 + self.width);
        if packed.len() != wanted {
            return Err(Error::length("packed", packed.len(), format!("{wanted} words")));
        }
        let (lengths, mut sets) = packed.split_at_mut(self.rows);
        for (row, length) in lengths.iter_mut().enumerate() {
            let words = self.row(row).unwrap_or_default();
            let count = words.iter().map(|word| word.count_ones()).sum::<u32>();
            *length = count;
            let set =
                sets.split_off_mut(..self.width.min(count as usize)).expect("room for every row's words");
            if count as usize > self.width {
                set.copy_from_slice(words);
            } else {
                set.iter_mut().zip(set_ids(words)).for_each(|(to, id)| *to = id);
            }
        }
        Ok(())
    }

    fn row(&self, row: usize) -> Option<&'a [u32]> {
        let row = self.select.map_or(row, |select| select[row]);
        if self.present.is_some_and(|present| !present[row]) {
            return None;
        }
        Some(&self.words[row * self.stride..][..self.width])
    }
}
