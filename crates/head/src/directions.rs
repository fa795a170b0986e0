//! The directions that a two-level screen codes weights along: where hidden states are long and weights short
//! and the other way round, both are made about alike, and directions that matter alike are mixed and make up
//! a band.
//!
//! ```text
//! hidden states, or none     -> their second moments L; without any, those of numbers that are alike in all directions
//! rows less the mean row     -> their second moments W
//! L = T T', T' W T = U A^2 U' -> y = sqrt(A) U' T^-1 h and x = 1 / sqrt(A) U' T' w have the moments A, and
//!                                x.y = w.h
//! bands of falling A         -> each turned by a random rotation, so that a row's elements in it are of one size
//! rounded to bf16            -> D; the inverse that takes a row to x is that of D itself
//! ```
//!
//! A bad choice costs time, never a token: what a bound rests on is measured here, of D and its inverse as
//! they are.

use std::ops::Range;

use gumball_cpu::{BAND_STEP, Band, FloatEnv, HeadLanes};
use gumball_spec::num::philox4x32_10;
use half::bf16;
use rayon::prelude::*;

use crate::linear::{cholesky, eigen, identity, inverse, orthonormalise, solve_behind, transpose};
use crate::measure::product_rounding;

/// What part of its mean eigenvalue is added to each eigenvalue of the moments of hidden states and of
/// weights, which few samples may leave 0.
const LEAST_MOMENTS: [f64; 2] = [1e-2, 1e-4];

/// The largest length of the inverse that is used; else directions stay as they are.
const MOST_INVERSE: f64 = (1 << 20) as f64;

/// Samples of rows or hidden states that are multiplied at a time.
const SAMPLES: usize = 1024;

/// The directions.
#[derive(Clone, Debug)]
pub(crate) struct Directions {
    /// The bands, padded.
    pub(crate) bands: Vec<Band>,
    /// For each band its columns that are directions; padding follows them.
    pub(crate) places: Vec<Range<usize>>,
    /// `[columns, width]`: a row for each column, zeros in padding.
    pub(crate) rows: Vec<bf16>,
    /// At least the length of each band's rows taken together.
    pub(crate) lengths: Vec<f64>,
    /// `[width, columns]`: what takes a row of weights to its numbers along the directions.
    pub(crate) inverse: Vec<f64>,
    /// At least what part of a row's length is lost on the way there and back.
    pub(crate) lost: f64,
}

/// Returns the bands of a width, and the places of their directions: an eighth of them wide, then an eighth,
/// a quarter, and the rest.
fn bands(width: usize) -> (Vec<Band>, Vec<Range<usize>>) {
    let eighth = ((width / 8 + BAND_STEP / 2) / BAND_STEP).max(1) * BAND_STEP;
    let (mut bands, mut places, mut left, mut column) = (Vec::new(), Vec::new(), width, 0);
    for size in [eighth, eighth, 2 * eighth, usize::MAX] {
        let count = size.min(left);
        if count == 0 {
            break;
        }
        bands.push(Band { columns: count.next_multiple_of(BAND_STEP), is_wide: bands.is_empty() });
        places.push(column..column + count);
        column += count.next_multiple_of(BAND_STEP);
        left -= count;
    }
    (bands, places)
}

impl Directions {
    /// Chooses directions by samples of rows of weights less their mean, and of hidden states if there are
    /// any; each `[samples, width]`, finite.
    pub(crate) fn new(lanes: HeadLanes, width: usize, weights: &[f64], states: &[f64]) -> Self {
        let _env = FloatEnv::enter();
        let chosen =
            balanced(lanes, width, weights, states).and_then(|rows| Self::of_rows(lanes, width, rows));
        chosen.or_else(|| Self::of_rows(lanes, width, identity(width))).expect("the identity has an inverse")
    }

    /// Makes directions of rows `[width, width]`; `None` if their inverse is not good enough.
    fn of_rows(lanes: HeadLanes, width: usize, mut rows: Vec<f64>) -> Option<Self> {
        let scale = (width as f64).sqrt() / length(&rows);
        rows.iter_mut().for_each(|x| *x *= scale);
        let rounded: Vec<bf16> = rows.iter().map(|x| bf16::from_f64(*x)).collect();
        let rows: Vec<f64> = rounded.iter().map(|x| f64::from(x.to_f32())).collect();
        let inverse = inverse(rows.clone(), width)?;
        // Each element of the product is off by at most this part of the product of lengths.
        let rounding = (width + 2) as f64 / (1u64 << 52) as f64;
        let mut product = multiply(lanes, &inverse, &rows, width);
        (0..width).for_each(|i| product[i * width + i] -= 1.0);
        let [of_inverse, of_rows, left] =
            [&inverse, &rows, &product].map(|matrix| length(matrix) * (1.0 + 1e-9));
        // Once for this product, once for that of a row and the inverse; twice that, for what the roundings
        // of these lines may be.
        let lost = left + 4.0 * rounding * of_inverse * of_rows;
        // More may not be lost than the exact head's products lose by rounding. NaN is not either.
        let is_good = of_inverse <= MOST_INVERSE && lost <= product_rounding(width);
        if !is_good {
            return None;
        }
        let (bands, places) = bands(width);
        let columns: usize = bands.iter().map(|band| band.columns).sum();
        let mut padded = Self {
            lengths: Vec::new(),
            rows: vec![bf16::ZERO; columns * width],
            inverse: vec![0.0; width * columns],
            bands,
            places,
            lost,
        };
        let mut direction = 0;
        for place in padded.places.clone() {
            let of_band = direction * width..(direction + place.len()) * width;
            padded.lengths.push(length(&rows[of_band.clone()]) * (1.0 + 1e-9));
            padded.rows[place.start * width..place.end * width].copy_from_slice(&rounded[of_band]);
            for i in 0..width {
                padded.inverse[i * columns..][place.clone()]
                    .copy_from_slice(&inverse[i * width + direction..][..place.len()]);
            }
            direction += place.len();
        }
        Some(padded)
    }

    /// Returns the columns of all bands.
    pub(crate) fn columns(&self) -> usize {
        self.bands.iter().map(|band| band.columns).sum()
    }
}

/// Returns the directions in which weights and hidden states have the same moments, falling, turned inside
/// each band; `None` if they are not found.
fn balanced(lanes: HeadLanes, width: usize, weights: &[f64], states: &[f64]) -> Option<Vec<f64>> {
    let of_states = moments(lanes, width, states, LEAST_MOMENTS[0]);
    let of_weights = moments(lanes, width, weights, LEAST_MOMENTS[1]);
    let lower = cholesky(of_states, width)?;
    let left = multiply(lanes, &transpose(&lower, width), &of_weights, width);
    let (values, vectors) = eigen(multiply(lanes, &left, &lower, width), width)?;
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|i, j| values[*j].total_cmp(&values[*i]));
    let mut rows = Vec::with_capacity(width * width);
    for i in order {
        // The fourth root of the eigenvalue, A^2; those that f64 could not tell from 0 are not larger than
        // this.
        let value = values[i].max(values.iter().fold(0.0, |a: f64, b| a.max(*b)) * 1e-12).sqrt().sqrt();
        let from = rows.len();
        rows.extend_from_slice(&vectors[i * width..][..width]);
        solve_behind(&mut rows[from..], &lower);
        rows[from..].iter_mut().for_each(|x| *x *= value);
    }
    let mut direction = 0;
    for (band, place) in bands(width).1.into_iter().enumerate() {
        let count = place.len();
        let of_band = &mut rows[direction * width..(direction + count) * width];
        let turned = multiply(lanes, &rotation(count, band as u32), of_band, count);
        of_band.copy_from_slice(&turned);
        direction += count;
    }
    Some(rows)
}

/// Returns the second moments of samples, `[width, width]`, scaled to a mean eigenvalue of 1, and a part of
/// the identity besides; without samples, or if they are all zeros, the identity.
fn moments(lanes: HeadLanes, width: usize, samples: &[f64], least: f64) -> Vec<f64> {
    let mut sums = vec![0.0; width * width];
    for samples in samples.chunks(SAMPLES * width) {
        let count = samples.len() / width;
        let part = multiply(lanes, &transpose(samples, count), samples, count);
        sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    }
    let mean = (0..width).map(|i| sums[i * width + i]).sum::<f64>() / width as f64;
    if !mean.is_normal() {
        return identity(width);
    }
    sums.iter_mut().for_each(|x| *x /= mean);
    (0..width).for_each(|i| sums[i * width + i] += least);
    sums
}

/// Returns a rotation, or a rotation and a reflection, made of random numbers.
fn rotation(n: usize, seed: u32) -> Vec<f64> {
    let number = |place: u32| {
        let words = philox4x32_10(0x6775_6D62, [place, seed, 0, 0]);
        words.iter().map(|word| f64::from(*word) / f64::from(u32::MAX) - 0.5).sum::<f64>()
    };
    let mut rows: Vec<f64> = (0..(n * n) as u32).map(number).collect();
    if orthonormalise(&mut rows, n) { rows } else { identity(n) }
}

fn length(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Multiplies matrices `[m, inner]` and `[inner, n]` over rayon's threads.
pub(crate) fn multiply(lanes: HeadLanes, left: &[f64], right: &[f64], inner: usize) -> Vec<f64> {
    const ROWS: usize = 32;
    let columns = right.len() / inner;
    let mut out = vec![0.0; left.len() / inner * columns];
    out.par_chunks_mut(ROWS * columns)
        .zip(left.par_chunks(ROWS * inner))
        .for_each(|(out, left)| lanes.multiply(left, right, inner, out));
    out
}

#[cfg(test)]
mod tests {
    use gumball_cpu::Level;

    use super::*;

    #[test]
    fn bands_hold_each_direction_once() {
        for width in (1..200).chain([256, 576, 1024, 2048, 4096, 1 << 16]) {
            let (bands, places) = bands(width);
            assert_eq!(places.iter().map(Range::len).sum::<usize>(), width);
            let mut column = 0;
            for (i, (band, place)) in bands.iter().zip(&places).enumerate() {
                assert!(place.start == column && !place.is_empty() && band.is_wide == (i == 0), "{width}");
                column += band.columns;
                assert!(place.end <= column && band.columns.is_multiple_of(BAND_STEP));
            }
        }
        let sizes = |width| bands(width).0.iter().map(|band| band.columns).collect::<Vec<_>>();
        assert_eq!(sizes(576), [64, 64, 128, 320]);
        assert_eq!(sizes(4096), [512, 512, 1024, 2048]);
    }

    #[test]
    fn directions_that_stay_as_they_are_serve_every_width() {
        for width in (0..=16).map(|power| 1usize << power).flat_map(|width| [width.max(2) - 1, width]) {
            // What is lost to rounding where the matrix and its inverse are the identity.
            let lost = 4.0 * (width + 2) as f64 / (1u64 << 52) as f64 * width as f64;
            assert!(lost <= product_rounding(width), "{width}");
        }
    }

    #[test]
    fn what_is_lost_on_the_way_is_bounded() {
        let lanes = HeadLanes::new(Level::Scalar).unwrap();
        for width in [1, 5, 40, 72] {
            let number = |i: u32| f64::from(philox4x32_10(3, [i, 0, 0, 0])[0]) / f64::from(u32::MAX) - 0.5;
            let samples: Vec<f64> = (0..(200 * width) as u32).map(number).collect();
            // Hidden states of very unlike directions, few of them.
            let states: Vec<f64> = samples[..7 * width]
                .iter()
                .enumerate()
                .map(|(i, x)| x * 10f64.powi((i % width % 5) as i32))
                .collect();
            for (weights, states) in
                [(&samples[..], &states[..]), (&samples, &[]), (&states, &states), (&[], &[])]
            {
                let directions = Directions::new(lanes, width, weights, states);
                let columns = directions.columns();
                assert!(directions.lost < 1e-7);
                for row in samples.chunks(width).take(9) {
                    let along = multiply(lanes, row, &directions.inverse, width);
                    let rows: Vec<f64> = directions.rows.iter().map(|x| f64::from(x.to_f32())).collect();
                    let back = multiply(lanes, &along, &rows, columns);
                    let left: Vec<f64> = back.iter().zip(row).map(|(a, b)| a - b).collect();
                    assert!(length(&left) <= directions.lost * length(row), "{width}");
                }
            }
        }
    }
}
