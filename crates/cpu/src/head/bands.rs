//! The two-level screen: upper bounds of products from codes of 4 bits, and tighter ones from the codes of
//! what those leave out (H5).
//!
//! ```text
//! first level     for every 16 rows, a row to a lane; for every band:
//!                     dot = codes . digits                          an integer, exact
//!                     center += scale (half_unit (2 dot - offset))
//!                     reach  += error norm + scale slack
//!                 bound = center + reach
//! second level    for one row; for every band that has a residual:
//!                     center += residual scale (half_unit (2 dot - offset))
//!                     reach  += residual error norm + (scale slack + residual scale residual slack)
//! ```
//!
//! A code c of n bits stands for c - (2^n - 1) / 2, so codes stand for odd numbers of halves: 2 dot - offset
//! has no fraction. A *wide* band has codes of 8 bits, each as two of 4 bits, and no residual.
//! `docs/heads.md` proves that no product of the exact head is above its bounds.

use half::bf16;

use crate::lanes::{Kernel, Lanes, WIDTH};

/// Columns that a band is padded to a multiple of.
pub const BAND_STEP: usize = 2 * WIDTH;

/// How many rows of weights lie side by side.
pub const ROWS_OF_GROUP: usize = WIDTH;

/// How many hidden states are multiplied with a vector of codes at a time.
const AT_ONCE: usize = 4;

/// The low half of each byte.
const LOW: u32 = 0x0F0F_0F0F;

/// Neighbouring directions of a two-level screen, coded alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// How many directions, padded to a multiple of [`BAND_STEP`].
    pub columns: usize,
    /// True if codes have 8 bits. False if they have 4 bits, and a residual of 4 more in the second level.
    pub is_wide: bool,
}

impl Band {
    /// Returns how many words of four codes of 8 bits, or eight of 4 bits, a row has.
    #[must_use]
    pub fn words(&self) -> usize {
        self.columns / if self.is_wide { 4 } else { 8 }
    }

    /// Returns how many bytes a row of its residual has.
    #[must_use]
    pub fn residual_bytes(&self) -> usize {
        if self.is_wide { 0 } else { self.columns / 2 }
    }

    /// Returns the largest code.
    #[must_use]
    pub fn most(&self) -> u32 {
        if self.is_wide { 255 } else { 15 }
    }
}

/// Groups of sixteen rows of weights as the first level has them, G of them.
#[derive(Clone, Copy, Debug)]
pub struct BandRows<'a> {
    /// The bands of all rows.
    pub bands: &'a [Band],
    /// For each group, for each band, for each of its words: the words of sixteen rows. In a wide band the
    /// word k has the codes of the columns 4 k to 4 k + 3 as its bytes; else the lower halves of its bytes
    /// have those of the columns 8 k to 8 k + 3, the upper halves the four that follow.
    pub codes: &'a [u32],
    /// For each group, for each band, scales of sixteen rows and then their error norms; behind the last band
    /// what their bounds grow by for a hidden state of length 1. None is negative or not finite.
    pub numbers: &'a [bf16],
}

/// What a screen knows of the part of a hidden state that lies in a band.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BandState {
    /// Half of what a digit is worth.
    pub half_unit: f32,
    /// The sum of the digits times the largest code.
    pub offset: i32,
    /// The length of the part, or a little more.
    pub norm: f32,
    /// What a scale of 1 adds to the reach.
    pub slack: f32,
    /// What a residual scale of 1 adds to the reach.
    pub residual_slack: f32,
}

/// A hidden state as a two-level screen has it.
#[derive(Clone, Copy, Debug)]
pub struct BandedState<'a> {
    /// Digits from -127 to 127 in the order of columns, four to a word, the first in its lowest byte; zeros
    /// in padding.
    pub digits: &'a [u32],
    /// What belongs to each band.
    pub bands: &'a [BandState],
    /// The product of the mean row and the hidden state, about.
    pub mean: f32,
    /// The length of the hidden state, or a little more.
    pub norm: f32,
    /// How far `mean` may be off, and what other roundings lose.
    pub slack: f32,
}

impl BandRows<'_> {
    pub(super) fn check(&self, states: &[BandedState<'_>], rows: usize) {
        let groups = rows.div_ceil(ROWS_OF_GROUP);
        let columns: usize = self.bands.iter().map(|band| band.columns).sum();
        assert!(self.bands.iter().all(|band| band.columns.is_multiple_of(BAND_STEP)), "padded bands");
        assert_eq!(self.codes.len(), groups * group_words(self.bands), "codes of {groups} groups");
        assert_eq!(self.numbers.len(), groups * group_numbers(self.bands), "numbers of {groups} groups");
        for state in states {
            assert_eq!(4 * state.digits.len(), columns, "a digit for each column");
            assert_eq!(state.bands.len(), self.bands.len(), "numbers of each band");
        }
    }
}

/// Returns how many words of codes a group has.
#[must_use]
pub fn group_words(bands: &[Band]) -> usize {
    ROWS_OF_GROUP * bands.iter().map(Band::words).sum::<usize>()
}

/// Returns how many numbers a group has besides its codes.
#[must_use]
pub fn group_numbers(bands: &[Band]) -> usize {
    ROWS_OF_GROUP * (2 * bands.len() + 1)
}

/// Bounds and centers of all products, before bias, scale and cap.
pub struct FirstBounds<'a, 'b, 'c> {
    pub rows: &'a BandRows<'a>,
    pub states: &'a [BandedState<'a>],
    /// For each state, one bound for each row.
    pub bounds: &'a mut [&'b mut [f32]],
    /// For each state, one center for each row: the product that the codes give, without the error that the
    /// bound adds.
    pub centers: &'a mut [&'c mut [f32]],
}

impl Kernel for FirstBounds<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { rows, states, bounds, centers } = self;
        let codes = rows.codes.chunks(group_words(rows.bands));
        for (group, (codes, numbers)) in codes.zip(rows.numbers.chunks(group_numbers(rows.bands))).enumerate()
        {
            let from = group * ROWS_OF_GROUP;
            for first in (0..states.len()).step_by(AT_ONCE) {
                let count = AT_ONCE.min(states.len() - first);
                let some = &states[first..first + count];
                let bands = rows.bands;
                // The number of states is a constant of each call, so that their sums stay in registers.
                let mut out = [Bounds::default(); AT_ONCE];
                match some {
                    [a] => copy(&mut out, l.call(Group { bands, codes, numbers, states: [a] })),
                    [a, b] => copy(&mut out, l.call(Group { bands, codes, numbers, states: [a, b] })),
                    [a, b, c] => copy(&mut out, l.call(Group { bands, codes, numbers, states: [a, b, c] })),
                    [a, b, c, d] => {
                        copy(&mut out, l.call(Group { bands, codes, numbers, states: [a, b, c, d] }));
                    }
                    _ => unreachable!("{count} of {AT_ONCE} states"),
                }
                for (i, out) in out[..count].iter().enumerate() {
                    let (bounds, centers) = (&mut bounds[first + i][from..], &mut centers[first + i][from..]);
                    let count = ROWS_OF_GROUP.min(bounds.len());
                    bounds[..count].copy_from_slice(&out.bounds[..count]);
                    centers[..count].copy_from_slice(&out.centers[..count]);
                }
            }
        }
    }
}

fn copy<const B: usize>(to: &mut [Bounds; AT_ONCE], from: [Bounds; B]) {
    to[..B].copy_from_slice(&from);
}

/// Bounds and centers of a group.
#[derive(Clone, Copy, Default)]
struct Bounds {
    bounds: [f32; ROWS_OF_GROUP],
    centers: [f32; ROWS_OF_GROUP],
}

/// A group and some hidden states.
struct Group<'a, const B: usize> {
    bands: &'a [Band],
    codes: &'a [u32],
    numbers: &'a [bf16],
    states: [&'a BandedState<'a>; B],
}

impl<const B: usize> Kernel for Group<'_, B> {
    type Output = [Bounds; B];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [Bounds; B] {
        let Self { bands, mut codes, numbers, states } = self;
        let (numbers, _) = numbers.as_chunks::<WIDTH>();
        let own = l.load_bf16(&numbers[2 * bands.len()]);
        let (mut centers, mut reaches) = ([own; B], [own; B]);
        for b in 0..B {
            centers[b] = l.splat(states[b].mean);
            reaches[b] = l.fma(own, l.splat(states[b].norm), l.splat(states[b].slack));
        }
        let mut column = 0;
        for (i, band) in bands.iter().enumerate() {
            let (words, rest) = codes.split_at(WIDTH * band.words());
            codes = rest;
            let mut digits = [&states[0].digits[..0]; B];
            for b in 0..B {
                digits[b] = &states[b].digits[column / 4..][..band.columns / 4];
            }
            column += band.columns;
            let words = words.as_chunks::<WIDTH>().0;
            let dots = match band.is_wide {
                true => wide_dots(l, words, digits),
                false => dots(l, words, digits),
            };
            let (scale, error) = (l.load_bf16(&numbers[2 * i]), l.load_bf16(&numbers[2 * i + 1]));
            for b in 0..B {
                let state = &states[b].bands[i];
                let halves = l.sub_u(l.shl::<1>(dots[b]), l.splat_u(state.offset as u32));
                let part = l.mul(l.float_of_int(halves), l.splat(state.half_unit));
                centers[b] = l.fma(scale, part, centers[b]);
                reaches[b] = l.fma(error, l.splat(state.norm), reaches[b]);
                reaches[b] = l.fma(scale, l.splat(state.slack), reaches[b]);
            }
        }
        let mut out = [Bounds::default(); B];
        for b in 0..B {
            l.store(l.add(centers[b], reaches[b]), &mut out[b].bounds);
            l.store(centers[b], &mut out[b].centers);
        }
        out
    }
}

/// The products of 4-bit codes of sixteen rows with the digits of some hidden states.
#[inline(always)]
fn dots<L: Lanes, const B: usize>(l: L, words: &[[u32; WIDTH]], digits: [&[u32]; B]) -> [L::U; B] {
    let mut sums = [[l.splat_u(0); 2]; B];
    let low = l.splat_u(LOW);
    assert!(
        digits.iter().all(|digits| digits.len() == 2 * words.len()),
        "two words of digits to one of codes"
    );
    for (i, word) in words.iter().enumerate() {
        let codes = l.load_u(word);
        let (first, second) = (l.and(codes, low), l.and(l.shr::<4>(codes), low));
        for b in 0..B {
            sums[b][0] = l.add_dots(sums[b][0], first, digits[b][2 * i]);
            sums[b][1] = l.add_dots(sums[b][1], second, digits[b][2 * i + 1]);
        }
    }
    let mut out = [l.splat_u(0); B];
    for b in 0..B {
        out[b] = l.add_u(sums[b][0], sums[b][1]);
    }
    out
}

/// The products of 8-bit codes of sixteen rows with the digits of some hidden states: 16 times those of the
/// upper halves, and those of the lower halves.
#[inline(always)]
fn wide_dots<L: Lanes, const B: usize>(l: L, words: &[[u32; WIDTH]], digits: [&[u32]; B]) -> [L::U; B] {
    let mut sums = [[l.splat_u(0); 2]; B];
    let low = l.splat_u(LOW);
    assert!(digits.iter().all(|digits| digits.len() == words.len()), "a word of digits to one of codes");
    for (i, word) in words.iter().enumerate() {
        let codes = l.load_u(word);
        let (lower, upper) = (l.and(codes, low), l.and(l.shr::<4>(codes), low));
        for b in 0..B {
            sums[b][0] = l.add_dots(sums[b][0], lower, digits[b][i]);
            sums[b][1] = l.add_dots(sums[b][1], upper, digits[b][i]);
        }
    }
    let mut out = [l.splat_u(0); B];
    for b in 0..B {
        out[b] = l.add_u(sums[b][0], l.shl::<4>(sums[b][1]));
    }
    out
}

/// The product of a row of residual codes with a hidden state's digits, of one band.
pub struct ResidualDot<'a> {
    /// 16 bytes for every 32 columns: byte j has the code of column j as its lower half, of column 16 + j as
    /// its upper half.
    pub codes: &'a [u8],
    pub digits: &'a [i16],
}

impl Kernel for ResidualDot<'_> {
    /// The sum of (2 code - 15) digit.
    type Output = i64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> i64 {
        let mut sums = l.splat_u(0);
        let chunks = self.codes.as_chunks::<WIDTH>().0.iter();
        for (codes, digits) in chunks.zip(self.digits.as_chunks::<BAND_STEP>().0) {
            let mut halves = [0i8; BAND_STEP];
            for (j, code) in codes.iter().enumerate() {
                halves[j] = 2 * (code & 15) as i8 - 15;
                halves[WIDTH + j] = 2 * (code >> 4) as i8 - 15;
            }
            sums = l.add_products(sums, &halves, digits);
        }
        l.sum_i(sums)
    }
}

/// Packs the codes of sixteen rows, one row of all columns after the other, as [`BandRows::codes`] has them.
///
/// # Panics
/// If there are not sixteen rows of codes, or not as many words as a group has.
pub fn pack_group(bands: &[Band], codes: &[u8], words: &mut [u32]) {
    let columns: usize = bands.iter().map(|band| band.columns).sum();
    assert_eq!(codes.len(), ROWS_OF_GROUP * columns, "sixteen rows of codes");
    assert_eq!(words.len(), group_words(bands), "words of a group");
    let four = |row: usize, column: usize| {
        let codes = codes[row * columns + column..].first_chunk().expect("columns come in fours");
        u32::from_le_bytes(*codes)
    };
    let (mut column, mut words) = (0, words.iter_mut());
    for band in bands {
        for from in (column..column + band.columns).step_by(if band.is_wide { 4 } else { 8 }) {
            for (row, word) in words.by_ref().take(ROWS_OF_GROUP).enumerate() {
                *word = match band.is_wide {
                    true => four(row, from),
                    false => four(row, from) | four(row, from + 4) << 4,
                };
            }
        }
        column += band.columns;
    }
}

/// Packs a row's residual codes of a band: 16 bytes for every 32 columns, byte j with the code of column j as
/// its lower half and that of column 16 + j as its upper half.
///
/// # Panics
/// If `bytes` are not half as many.
pub fn pack_residual(codes: &[u8], bytes: &mut [u8]) {
    assert_eq!(codes.len(), 2 * bytes.len(), "two codes to a byte");
    for (codes, bytes) in codes.chunks(BAND_STEP).zip(bytes.chunks_mut(WIDTH)) {
        let (low, high) = codes.split_at(WIDTH);
        bytes.iter_mut().zip(low.iter().zip(high)).for_each(|(byte, (low, high))| *byte = low | high << 4);
    }
}
