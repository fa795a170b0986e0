//! Two operations that build a two-level screen: products of f64 matrices, and the coding of vectors in a few
//! bits.
//!
//! Their results decide bounds, never a logit, so no token depends on them. The order of additions is fixed
//! nevertheless, so that a screen has the same bytes at every SIMD level.

use half::bf16;

use crate::lanes::{Kernel, Lanes};

/// Columns that are computed side by side.
const COLUMNS: usize = 32;

/// Partial sums of a length.
const SUMS: usize = 8;

/// The least scale of codes: well inside the normal numbers.
const LEAST_SCALE: f64 = f64::from_bits((1023 - 120) << 52);

/// A factor that makes up for the roundings of a length in f64, whatever its width.
const LENGTH_UP: f64 = 1.0 + 1.0 / (1u64 << 30) as f64;

/// The product of matrices `[m, k]` and `[k, n]`: each element is a sum in ascending order of k, every
/// product and every sum rounded.
pub struct Multiply<'a> {
    pub left: &'a [f64],
    pub right: &'a [f64],
    pub inner: usize,
    pub out: &'a mut [f64],
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        let Self { left, right, inner, out } = self;
        let (rows, columns) = (left.len() / inner, right.len() / inner);
        let mut row = 0;
        while row < rows {
            let count = if row + 4 <= rows { 4 } else { 1 };
            let (left, out) = (&left[row * inner..], &mut out[row * columns..]);
            for from in (0..columns).step_by(COLUMNS) {
                match (count, from + COLUMNS <= columns) {
                    (4, true) => block::<4, COLUMNS>(left, right, inner, columns, from, out),
                    (_, true) => block::<1, COLUMNS>(left, right, inner, columns, from, out),
                    (count, false) => {
                        for row in 0..count {
                            for column in from..columns {
                                let (left, out) = (&left[row * inner..], &mut out[row * columns..]);
                                block::<1, 1>(left, right, inner, columns, column, out);
                            }
                        }
                    }
                }
            }
            row += count;
        }
    }
}

/// Some rows and columns of the product.
#[inline(always)]
fn block<const R: usize, const C: usize>(
    left: &[f64],
    right: &[f64],
    inner: usize,
    columns: usize,
    from: usize,
    out: &mut [f64],
) {
    let mut sums = [[0.0; C]; R];
    for k in 0..inner {
        let of_right = &right[k * columns + from..][..C];
        for (row, sums) in sums.iter_mut().enumerate() {
            let factor = left[row * inner + k];
            for (sum, b) in sums.iter_mut().zip(of_right) {
                *sum += factor * b;
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        out[row * columns + from..][..C].copy_from_slice(sums);
    }
}

/// What a vector's codes are worth, and what they leave out.
#[derive(Clone, Copy, Debug)]
pub struct Coded {
    /// What a code of 1 is worth; 0 for a vector of zeros.
    pub scale: bf16,
    /// At least the length of what the codes leave out.
    pub error: f64,
    /// At least the length of the numbers that the codes stand for.
    pub code_norm: f64,
}

/// A vector as codes of 4 or 8 bits.
pub struct Code<'a> {
    pub values: &'a [f64],
    /// Whether codes have 8 bits rather than 4.
    pub is_wide: bool,
    /// A code for each value.
    pub codes: &'a mut [u8],
    /// What each code leaves out, rounded once by 2^-53 of itself.
    pub errors: &'a mut [f64],
}

impl Kernel for Code<'_> {
    type Output = Coded;

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> Coded {
        let Self { values, is_wide, codes, errors } = self;
        let half = if is_wide { 128.0 } else { 8.0 };
        let largest = values.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        if largest == 0.0 {
            codes.fill(0);
            errors.fill(0.0);
            return Coded { scale: bf16::ZERO, error: 0.0, code_norm: 0.0 };
        }
        let spread = (sum_of(values, |x| x * x) / values.len() as f64).sqrt();
        // Of numbers of a bell's shape, codes of this scale leave out least; larger scales cut fewer of the
        // large numbers off. The last one cuts off none.
        let best = spread * if is_wide { 0.0308 } else { 0.3352 };
        let candidates =
            [0.7 * best, 0.85 * best, best, 1.15 * best, 1.3 * best, 2.0 * best, largest / (half - 0.5)];
        let (mut scale, mut least) = (bf16::ZERO, f64::INFINITY);
        for candidate in candidates {
            let rounded = bf16::from_f64(candidate.max(LEAST_SCALE));
            let s = f64::from(rounded.to_f32());
            let inverse = 1.0 / s;
            let left = sum_of(values, |x| {
                let left = x - s * code_of(x * inverse, half);
                left * left
            });
            if left < least {
                (scale, least) = (rounded, left);
            }
        }
        let s = f64::from(scale.to_f32());
        let inverse = 1.0 / s;
        for ((x, code), error) in values.iter().zip(&mut *codes).zip(&mut *errors) {
            let number = code_of(x * inverse, half);
            // The product is exact: a scale has 8 bits, a code 9.
            *error = x - s * number;
            *code = (number - 0.5 + half) as u8;
        }
        let of_codes = sum_of(values, |x| {
            let number = code_of(x * inverse, half);
            number * number
        });
        Coded { scale, error: least.sqrt() * LENGTH_UP, code_norm: of_codes.sqrt() * LENGTH_UP }
    }
}

/// The number nearest to `x` that a code can stand for.
#[inline(always)]
fn code_of(x: f64, half: f64) -> f64 {
    x.floor().clamp(-half, half - 1.0) + 0.5
}

/// The sum of a function of all values, as eight partial sums by place.
#[inline(always)]
fn sum_of(values: &[f64], f: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0; SUMS];
    let (chunks, rest) = values.as_chunks::<SUMS>();
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += f(*x);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f(*x);
    }
    sums.iter().sum()
}
