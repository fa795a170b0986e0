//! The screen of a certified head on a device: codes of its weights, and memory for the bounds of some rows.

use std::sync::Arc;

use gumball_spec::{Error, Result, TILE};

use crate::abi::{self, BOUND_IDS, HEAD_MANY_STATES, MATRIX_CHUNK_BYTES, SCREENED_STATES, head_flags};
use crate::driver::runtime::Runtime;
use crate::launch::tuning;
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::rows::ROWS_AT_ONCE;

/// The ids of a vocabulary for each contender of a row, at least: of a row with more contenders all logits
/// are computed.
const LEAST_IDS_A_CONTENDER: usize = 4;

/// A screen of a head's weights, in the host's memory: 8-bit codes, and for each row how far its logits may
/// be off. `docs/bounds.md` says what the numbers mean.
#[derive(Clone, Copy, Debug)]
pub struct HeadScreen<'a> {
    /// `[vocab, padded]` codes from -127 to 127, zeros after the width.
    pub codes: &'a [i8],
    /// The codes of a row, padding included; at least the width.
    pub padded: usize,
    /// `[vocab]` each.
    pub scales: &'a [f32],
    /// The bound's growth for a hidden state of length 1.
    pub own: &'a [f32],
    /// The length of the codes times the scale.
    pub code_norms: &'a [f32],
    /// `[width]`: what was taken from each row before it was coded.
    pub mean: &'a [f32],
    /// The length of the mean row, or a little more.
    pub mean_norm: f64,
    /// The ids that are not screened.
    pub unscreened: &'a [u32],
}

impl HeadScreen<'_> {
    /// Returns an error if a part has another length than a head's vocabulary and width demand, a number is
    /// none that a bound can be made of, or an unscreened id is not in the vocabulary.
    pub(super) fn check(&self, vocab: usize, width: usize) -> Result<()> {
        let HeadScreen { padded, .. } = *self;
        if padded < width {
            return Err(Error::length("padded", padded, format!("at least {width}, the width")));
        }
        let columns = [
            ("codes", self.codes.len(), vocab * padded),
            ("scales", self.scales.len(), vocab),
            ("own", self.own.len(), vocab),
            ("code_norms", self.code_norms.len(), vocab),
            ("mean", self.mean.len(), width),
        ];
        for (parameter, length, expected) in columns {
            if length != expected {
                return Err(Error::length(parameter, length, expected.to_string()));
            }
        }
        let sizes = [("scales", self.scales), ("code_norms", self.code_norms), ("own", self.own)];
        for (parameter, sizes) in sizes {
            // An id with a growth that is infinite is not screened.
            let is_size = |size: f32| size >= 0.0 && (size.is_finite() || parameter == "own");
            if let Some(size) = sizes.iter().find(|size| !is_size(**size)) {
                return Err(Error::out_of_range(parameter, *size, "finite, and at least 0"));
            }
        }
        if let Some(mean) = self.mean.iter().find(|mean| !mean.is_finite()) {
            return Err(Error::out_of_range("mean", *mean, "finite"));
        }
        if !(0.0..f64::INFINITY).contains(&self.mean_norm) {
            return Err(Error::out_of_range("mean_norm", self.mean_norm, "finite, and at least 0"));
        }
        if let Some(id) = self.unscreened.iter().find(|id| **id as usize >= vocab) {
            return Err(Error::out_of_range("unscreened", *id, format!("an id, in 0..{vocab}")));
        }
        Ok(())
    }

    /// Returns whether it bounds at least three quarters of the ids: otherwise every row would have too many
    /// contenders.
    pub(super) fn leaves_few_out(&self, vocab: usize) -> bool {
        self.unscreened.len() <= vocab / LEAST_IDS_A_CONTENDER
    }
}

/// A screen on the device, and memory for what it says of some rows.
#[derive(Debug)]
pub(super) struct Screen {
    codes: Buffer,
    codes_width: usize,
    /// Scales, own norms and norms of codes of the ids, then the mean row.
    numbers: Buffer,
    mean_norm: f64,
    unscreened: Buffer,
    unscreened_count: usize,
    digits: Buffer,
    /// Upper bounds, then lower ones.
    bounds: Buffer,
    maxima: Buffer,
    contenders: Buffer,
    /// How many rows' bounds there is memory for.
    rows: usize,
}

impl Screen {
    pub fn new(
        runtime: &Arc<dyn Runtime>,
        screen: &HeadScreen<'_>,
        (vocab, width): (usize, usize),
        rows: usize,
    ) -> Result<Self> {
        let codes_width = width.next_multiple_of(MATRIX_CHUNK_BYTES);
        let mut codes = Buffer::sized(runtime, ROWS, &[vocab, codes_width])?;
        let mut padded = Vec::new();
        for (part, rows) in screen.codes.chunks(ROWS_AT_ONCE * screen.padded).enumerate() {
            padded.clear();
            for row in rows.chunks(screen.padded) {
                padded.extend_from_slice(&row[..width]);
                padded.resize(padded.len() + codes_width - width, 0);
            }
            codes.write(part * ROWS_AT_ONCE * codes_width, &padded)?;
        }
        let mut own = screen.own.to_vec();
        screen.unscreened.iter().for_each(|id| own[*id as usize] = f32::INFINITY);
        // An id without a finite bound is as one that is not screened.
        let unscreened: Vec<u32> =
            (0..).zip(&own).filter(|(_, own)| !own.is_finite()).map(|(id, _)| id).collect();
        let numbers = [screen.scales, &own, screen.code_norms, screen.mean].concat();
        let alloc = |sizes: &[usize]| Buffer::sized(runtime, ROWS, sizes);
        let columns = 2 * rows.next_multiple_of(SCREENED_STATES);
        let rows = rows.min(SCREENED_STATES);
        Ok(Self {
            codes,
            codes_width,
            numbers: Buffer::of(runtime, &numbers)?,
            mean_norm: screen.mean_norm,
            unscreened: Buffer::of(runtime, &unscreened)?,
            unscreened_count: unscreened.len(),
            digits: alloc(&[columns, tuning::column_bytes(codes_width)])?,
            bounds: alloc(&[2, rows, bounds_stride(vocab), size_of::<f32>()])?,
            maxima: alloc(&[2, rows, bound_tiles(vocab), size_of::<f32>()])?,
            contenders: alloc(&[rows, vocab / LEAST_IDS_A_CONTENDER, size_of::<u32>()])?,
            rows,
        })
    }

    /// Returns how many bytes of weights a step of `rows` rows does not read if the screen decides all of
    /// them, less the bytes of the screen, of which a pass takes `at_once` rows. A pass over the weights, for
    /// some rows, reads `weight_bytes`.
    pub fn saved_bytes(&self, vocab: usize, (rows, at_once): (usize, usize), weight_bytes: usize) -> usize {
        let whole = rows.div_ceil(HEAD_MANY_STATES as usize).saturating_mul(weight_bytes);
        whole.saturating_sub(rows.div_ceil(at_once).saturating_mul(self.bytes(vocab)))
    }

    /// Returns the bytes that a group of rows reads of it: the codes, and for each id a scale and two norms.
    pub fn bytes(&self, vocab: usize) -> usize {
        vocab * (self.codes_width + 3 * size_of::<f32>())
    }

    /// Adds the screen to the argument of the kernels.
    pub fn of(&self, vocab: usize, head: abi::HeadStep) -> abi::HeadStep {
        let column = |index: usize| self.numbers.address() + (index * vocab * size_of::<f32>()) as u64;
        let second =
            |buffer: &Buffer, width: usize| buffer.address() + (self.rows * width * size_of::<f32>()) as u64;
        abi::HeadStep {
            flags: head.flags | head_flags::SCREENED,
            most_contenders: (vocab / LEAST_IDS_A_CONTENDER) as u32,
            codes: self.codes.address(),
            scales: column(0),
            own: column(1),
            code_norms: column(2),
            mean: column(3),
            mean_norm: self.mean_norm,
            codes_width: self.codes_width as u32,
            digits: self.digits.address(),
            unscreened: self.unscreened.address(),
            unscreened_count: self.unscreened_count as u32,
            upper: self.bounds.address(),
            lower: second(&self.bounds, bounds_stride(vocab)),
            upper_maxima: self.maxima.address(),
            lower_maxima: second(&self.maxima, bound_tiles(vocab)),
            contenders: self.contenders.address(),
            bounds_stride: bounds_stride(vocab) as u32,
            bound_tiles: bound_tiles(vocab) as u32,
            ..head
        }
    }
}

/// Bounds from the start of a row to the start of the next: whole tiles of the race.
fn bounds_stride(vocab: usize) -> usize {
    vocab.next_multiple_of(TILE)
}

fn bound_tiles(vocab: usize) -> usize {
    vocab.div_ceil(BOUND_IDS as usize)
}
