//! The screen: an upper bound of every product, from a copy of the weights as 8-bit codes (H5).
//!
//! ```text
//! center = mean + scale (unit (codes . digits))                   codes . digits is an integer, exact
//! reach  = own norm + codes' norm rest + slack
//! bound  = center + reach, rounded up
//! ```
//!
//! `docs/bounds.md` proves that no product of the exact head is above its bound.

use crate::lanes::{Kernel, Lanes, WIDTH};

/// Codes that are multiplied by one operation; rows are padded to a multiple of it with zeros.
const STEP: usize = 2 * WIDTH;

/// How many rows are multiplied before their bounds are computed, several side by side.
const GROUP: usize = 64;

/// How many codes are added up in 32 bits: a lane takes 2 products of 127 * 32512 from each of 256 steps,
/// less than 2^31.
const BLOCK: usize = 256 * STEP;

/// Returns how many codes a row of `width` takes once it is padded.
#[must_use]
pub fn padded_codes(width: usize) -> usize {
    width.next_multiple_of(STEP)
}

/// Neighbouring rows of weights as a screen has them, N of them.
#[derive(Clone, Copy, Debug)]
pub struct ScreenRows<'a> {
    /// N rows of [`padded_codes`], each from -127 to 127, zeros after the width.
    pub codes: &'a [i8],
    /// The value of one unit of a row's codes; finite, not negative.
    pub scales: &'a [f32],
    /// By how much each row's bound grows for a hidden state of length 1: the part that its codes leave out,
    /// and the roundings of its product.
    pub own: &'a [f32],
    /// The length of each row's codes times its scale.
    pub code_norms: &'a [f32],
}

/// A hidden state as a screen has it.
#[derive(Clone, Copy, Debug)]
pub struct ScreenState<'a> {
    /// [`padded_codes`] digits, each from -32512 to 32512, zeros after the width.
    pub digits: &'a [i16],
    /// The value of one unit of a digit, a power of two.
    pub unit: f64,
    /// The product of the mean row and the hidden state, about.
    pub mean: f64,
    /// The length of the hidden state, or a little more.
    pub norm: f64,
    /// The length of what its digits leave out, or a little more.
    pub rest: f64,
    /// How far `mean` may be off, and what subnormal numbers lose.
    pub slack: f64,
}

impl ScreenRows<'_> {
    pub(super) fn check(&self, state: &ScreenState<'_>, rows: usize) {
        let columns = [self.scales.len(), self.own.len(), self.code_norms.len()];
        assert_eq!(columns, [rows; 3], "a number for each of {rows} rows");
        assert!(state.digits.len().is_multiple_of(STEP) && !state.digits.is_empty(), "padded digits");
        assert_eq!(self.codes.len(), rows * state.digits.len(), "{rows} rows of codes");
    }
}

/// Upper bounds of all products, before bias, scale and cap.
pub struct UpperBounds<'a> {
    pub rows: &'a ScreenRows<'a>,
    pub state: &'a ScreenState<'a>,
    pub out: &'a mut [f32],
}

impl Kernel for UpperBounds<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { rows, state, out } = self;
        let width = state.digits.len();
        let mut products = [0; GROUP];
        for (group, (codes, out)) in rows.codes.chunks(GROUP * width).zip(out.chunks_mut(GROUP)).enumerate() {
            for (products, four) in products.chunks_mut(4).zip(codes.chunks(4 * width)) {
                let mut codes = [&four[..0]; 4];
                for (codes, row) in codes.iter_mut().zip(four.chunks(width)) {
                    *codes = row;
                }
                // The last rows may be fewer than four: the first stands in for the missing ones.
                for place in four.len() / width..4 {
                    codes[place] = codes[0];
                }
                products.copy_from_slice(&l.call(Products { codes, digits: state.digits }));
            }
            let of_group = group * GROUP..group * GROUP + out.len();
            let (scales, own) = (&rows.scales[of_group.clone()], &rows.own[of_group.clone()]);
            let code_norms = &rows.code_norms[of_group];
            let columns = scales.iter().zip(own).zip(code_norms).zip(&products);
            for (bound, (((scale, own), code_norm), product)) in out.iter_mut().zip(columns) {
                *bound = state.bound(*scale, *own, *code_norm, *product);
            }
        }
    }
}

/// The products of four rows of codes with the digits.
struct Products<'a> {
    codes: [&'a [i8]; 4],
    digits: &'a [i16],
}

impl Kernel for Products<'_> {
    type Output = [i64; 4];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [i64; 4] {
        let mut products = [0; 4];
        for (block, digits) in self.digits.chunks(BLOCK).enumerate() {
            let mut sums = [l.splat_u(0); 4];
            for (i, digits) in digits.as_chunks::<STEP>().0.iter().enumerate() {
                let from = block * BLOCK + i * STEP;
                for (sum, codes) in sums.iter_mut().zip(self.codes) {
                    let codes = codes[from..].first_chunk().expect("as many codes as digits");
                    *sum = l.add_products(*sum, codes, digits);
                }
            }
            for (product, sum) in products.iter_mut().zip(sums) {
                *product += l.sum_i(sum);
            }
        }
        products
    }
}

impl ScreenState<'_> {
    /// Returns the upper bound of a row's product with this hidden state.
    #[inline(always)]
    fn bound(&self, scale: f32, own: f32, code_norm: f32, product: i64) -> f32 {
        let coded = f64::from(scale) * (self.unit * product as f64);
        let reach = f64::from(own) * self.norm + f64::from(code_norm) * self.rest + self.slack;
        // Every number here is rounded to f64 a few times, by 2^-53 of itself; 2^-50 of their sizes covers
        // that.
        let sizes = self.mean.abs() + coded.abs() + reach;
        let bound = self.mean + coded + reach + sizes * (1.0 / (1u64 << 50) as f64);
        // One rounding to f32 follows, by 2^-24 of itself, or by 2^-150 where the result is subnormal.
        (bound + bound.abs() * (1.0 / (1 << 22) as f64) + f64::from_bits((1023 - 140) << 52)) as f32
    }
}
