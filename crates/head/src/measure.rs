//! Measures of weights and hidden states before they are screened: lengths, rounded up, which rows
//! are odd, the mean row.

use gumball_cpu::FloatEnv;
use gumball_spec::Row;
use rayon::prelude::*;

use crate::exact::Exact;

/// The largest bias that is screened.
const LARGEST_BIAS: f32 = f32::from_bits((127 + 100) << 23);

/// A factor that makes up for the roundings of a length in f64, for any width.
pub(crate) const LENGTH_UP: f64 = 1.0 + 1.0 / (1u64 << 30) as f64;

/// Returns the length of a vector; NaN or an infinity if it has one.
pub(crate) fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the length of a row of weights, or of a hidden state.
pub(crate) fn length_of(vector: Row<'_>) -> f64 {
    length((0..vector.vocab()).map(|i| f64::from(vector.logit(i))))
}

/// Returns a positive number as the next f32 that is not below it.
pub(crate) fn up(value: f64) -> f32 {
    let rounded = value as f32;
    if f64::from(rounded) < value { rounded.next_up() } else { rounded }
}

/// Returns the ids whose rows are not screened: rows with a weight or a bias that is not finite, longer than
/// `longest`, or with a very large bias.
pub(crate) fn unscreened(exact: &Exact<'_>, longest: f64) -> Vec<u32> {
    let is_unscreened = |id: &usize| {
        let _env = FloatEnv::enter();
        let is_bias_odd = exact.bias().is_some_and(|bias| {
            let bias = bias[*id];
            !(bias.is_finite() && bias.abs() <= LARGEST_BIAS)
        });
        // The length is NaN where a weight is.
        let is_short = length_of(exact.weights_of(*id)) <= longest;
        is_bias_odd || !is_short
    };
    (0..exact.vocab()).into_par_iter().filter(is_unscreened).map(|id| id as u32).collect()
}

/// Returns the mean of the rows that are screened. Any row would do: it is a matter of how small the codes'
/// errors are.
pub(crate) fn mean_row(exact: &Exact<'_>, unscreened: &[u32]) -> Vec<f32> {
    // Parts of a fixed size, so that threads do not change it.
    const PART: usize = 1024;
    let (vocab, width) = (exact.vocab(), exact.width());
    let sum_of_part = |part: usize| {
        let _env = FloatEnv::enter();
        let mut sums = vec![0.0f64; width];
        for id in part * PART..((part + 1) * PART).min(vocab) {
            if unscreened.binary_search(&(id as u32)).is_err() {
                let row = exact.weights_of(id);
                sums.iter_mut().enumerate().for_each(|(i, sum)| *sum += f64::from(row.logit(i)));
            }
        }
        sums
    };
    let parts: Vec<Vec<f64>> = (0..vocab.div_ceil(PART)).into_par_iter().map(sum_of_part).collect();
    let count = (vocab - unscreened.len()).max(1) as f64;
    (0..width).map(|i| (parts.iter().map(|sums| sums[i]).sum::<f64>() / count) as f32).collect()
}

/// Returns how far a product of the exact head may be off the real one, as a part of the product of the
/// lengths (H1).
pub(crate) fn product_rounding(width: usize) -> f64 {
    let roundings = width.div_ceil(16) as f64 + 4.0;
    let unit = 1.0 / (1 << 24) as f64;
    roundings * unit / (1.0 - roundings * unit)
}

/// Returns what a product of the exact head may lose besides, to subnormal numbers: at most 2^-150 in each
/// fma.
pub(crate) fn product_lost(width: usize) -> f64 {
    (width + 16) as f64 * f64::from_bits((1023 - 148) << 52)
}
