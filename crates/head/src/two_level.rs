//! The two-level screen of a head: weights along chosen directions in about 4.5 bits each, and for tokens
//! that those leave in question 4 bits more.
//!
//! It is made once from the weights, and from hidden states where there are any. `docs/heads.md` has the
//! proof; each step of it that is rounded is rounded to the safe side here.

use std::ops::Range;

use gumball_cpu::{
    Band, BandRows, BandState, BandedState, FloatEnv, HeadLanes, ROWS_OF_GROUP, group_numbers, group_words,
    pack_group, pack_residual,
};
use gumball_spec::head::Scaling;
use gumball_spec::{HostMatrix, Row};
use half::bf16;
use rayon::prelude::*;

use crate::directions::Directions;
use crate::exact::Exact;
use crate::measure::{
    LENGTH_UP, length, length_of, mean_row, product_lost, product_rounding, unscreened, up,
};
use crate::states::Widened;

/// The longest row of weights, and the longest hidden state, that are screened: all products along directions
/// stay far from overflow.
pub(crate) const LONGEST: f64 = (1u64 << 30) as f64;

/// How many rows and how many hidden states are looked at to choose directions, for each element of their
/// width.
const SAMPLES: usize = 16;

/// The largest digit.
const DIGIT_MOST: f64 = 127.0;

/// The least number that a digit is worth: half of it is a normal number.
const LEAST_UNIT: f32 = f32::from_bits((127 - 120) << 23);

/// A factor that makes up for the roundings of a reach that is added up in f32: each part passes through
/// fewer than 64, each by 2^-24.
const REACH_UP: f64 = 1.0 + 1.0 / (1 << 15) as f64;

/// How many groups of rows are coded before they are appended to the others.
const GROUPS_AT_ONCE: usize = 512;

/// How many hidden states are multiplied with the directions, or with codes, at a time.
const AT_ONCE: usize = 4;

/// A head's weights as two levels of codes.
#[derive(Clone, Debug)]
pub(crate) struct TwoLevel {
    bands: Vec<Band>,
    /// `[columns, width]`.
    directions: Vec<bf16>,
    /// The length of each band's directions taken together.
    lengths: Vec<f64>,
    /// As [`BandRows`] has them, of all rows; the last group has places without a row.
    codes: Vec<u32>,
    numbers: Vec<bf16>,
    /// For each row, for each band that is not wide, codes of what its codes leave out; and then two numbers,
    /// their scale and the length of what is still left out.
    residuals: Vec<u8>,
    residual_numbers: Vec<bf16>,
    /// For each band the largest length of a row's codes as numbers, and of its residual's.
    code_norms: Vec<[f64; 2]>,
    mean: Vec<f32>,
    mean_norm: f64,
    /// Rows that are not screened: with a weight or a bias that is not finite, or very large.
    pub(crate) unscreened: Vec<u32>,
}

impl TwoLevel {
    /// Codes the weights of a head, over rayon's threads. The environment of floats is each thread's own, so
    /// each piece of work enters it.
    pub(crate) fn new(exact: &Exact<'_>, calibration: Option<HostMatrix<'_>>) -> Self {
        let _env = FloatEnv::enter();
        let (vocab, width, lanes) = (exact.vocab(), exact.width(), exact.lanes());
        let unscreened = unscreened(exact, LONGEST);
        let mean = mean_row(exact, &unscreened);
        let mean_norm = length_of(Row::F32(&mean)) * LENGTH_UP;
        let is_screened = |id: usize| unscreened.binary_search(&(id as u32)).is_err();
        let mut of_weights = Vec::new();
        for id in spaced(vocab, SAMPLES * width).filter(|id| is_screened(*id)) {
            centered(exact.weights_of(id), &mean, &mut of_weights);
        }
        let mut of_states = Vec::new();
        if let Some(states) = calibration {
            for state in spaced(states.rows(), SAMPLES * width).map(|row| states.row(row)) {
                if can_screen(state) {
                    of_states.extend((0..width).map(|i| f64::from(state.logit(i))));
                }
            }
        }
        let directions = Directions::new(lanes, width, &of_weights, &of_states);
        let mut screen = Self {
            code_norms: vec![[0.0; 2]; directions.bands.len()],
            bands: directions.bands.clone(),
            directions: Vec::new(),
            lengths: directions.lengths.clone(),
            codes: Vec::new(),
            numbers: Vec::new(),
            residuals: Vec::new(),
            residual_numbers: Vec::new(),
            mean,
            mean_norm,
            unscreened,
        };
        let groups: Vec<usize> = (0..vocab).step_by(ROWS_OF_GROUP).collect();
        for some in groups.chunks(GROUPS_AT_ONCE) {
            let coded: Vec<Group> =
                some.par_iter().map(|first| Group::new(exact, &screen, &directions, *first)).collect();
            coded.iter().for_each(|group| screen.push(group));
        }
        screen.directions = directions.rows;
        screen
    }

    /// Appends a group of rows.
    fn push(&mut self, group: &Group) {
        self.codes.extend_from_slice(&group.codes);
        self.numbers.extend_from_slice(&group.numbers);
        self.residuals.extend_from_slice(&group.residuals);
        self.residual_numbers.extend_from_slice(&group.residual_numbers);
        for (largest, norms) in self.code_norms.iter_mut().zip(&group.code_norms) {
            *largest = [largest[0].max(norms[0]), largest[1].max(norms[1])];
        }
    }

    fn columns(&self) -> usize {
        self.bands.iter().map(|band| band.columns).sum()
    }

    /// Returns how many bytes of it a step reads, beside the residuals of tokens that the first level leaves
    /// in question.
    pub(crate) fn bytes(&self) -> usize {
        4 * self.codes.len() + 2 * (self.numbers.len() + self.directions.len())
    }

    /// Returns how many bytes a token's residual has.
    pub(crate) fn residual_row_bytes(&self) -> usize {
        self.narrow().map(|(_, band)| band.residual_bytes() + 4).sum()
    }

    /// Returns the bands that have residuals, with their numbers.
    fn narrow(&self) -> impl Iterator<Item = (usize, &Band)> {
        self.bands.iter().enumerate().filter(|(_, band)| !band.is_wide)
    }

    /// Computes upper bounds of neighbouring logits and the centers of their products' bounds, by the first
    /// level, for some hidden states. `ids` begin with a group.
    pub(crate) fn first_bounds(
        &self,
        exact: &Exact<'_>,
        states: &BandedStates,
        rows: Range<usize>,
        ids: Range<usize>,
        bounds: &mut [&mut [f32]],
        centers: &mut [&mut [f32]],
    ) {
        let groups = ids.start / ROWS_OF_GROUP..ids.end.div_ceil(ROWS_OF_GROUP);
        let (words, numbers) = (group_words(&self.bands), group_numbers(&self.bands));
        let band_rows = BandRows {
            bands: &self.bands,
            codes: &self.codes[groups.start * words..groups.end * words],
            numbers: &self.numbers[groups.start * numbers..groups.end * numbers],
        };
        let bias = exact.bias().map(|bias| &bias[ids]);
        for (first, (bounds, centers)) in
            rows.clone().step_by(AT_ONCE).zip(bounds.chunks_mut(AT_ONCE).zip(centers.chunks_mut(AT_ONCE)))
        {
            // The first state stands in for those that are not there.
            let state = |i: usize| states.state(if first + i < rows.end { first + i } else { first });
            let some: [_; AT_ONCE] = std::array::from_fn(state);
            let some = &some[..bounds.len()];
            exact.lanes().band_bounds(&band_rows, some, bias, exact.scaling(), bounds, centers);
        }
    }

    /// Lowers the bounds of some ids by the second level.
    pub(crate) fn tighten(
        &self,
        exact: &Exact<'_>,
        states: &BandedStates,
        row: usize,
        ids: &[u32],
        centers: &[f32],
        bounds: &mut [f32],
    ) {
        let _env = FloatEnv::enter();
        let state = states.state(row);
        let digits = &states.wide_digits[row * self.columns()..(row + 1) * self.columns()];
        let residual_bytes: usize = self.bands.iter().map(Band::residual_bytes).sum();
        let (count, of_residual) = (self.bands.len(), 2 * self.narrow().count());
        for id in ids.iter().filter(|id| self.unscreened.binary_search(id).is_err()).map(|id| *id as usize) {
            let (group, lane) = (id / ROWS_OF_GROUP, id % ROWS_OF_GROUP);
            let numbers = &self.numbers[group * group_numbers(&self.bands)..];
            let number = |i: usize| f64::from(numbers[i * ROWS_OF_GROUP + lane].to_f32());
            let mut residual = &self.residuals[id * residual_bytes..(id + 1) * residual_bytes];
            let mut residual_numbers = self.residual_numbers[id * of_residual..(id + 1) * of_residual].iter();
            let mut next = || f64::from(residual_numbers.next().expect("two for each band").to_f32());
            let (mut center, mut column) = (f64::from(centers[id]), 0);
            let mut sizes = center.abs();
            let mut reach = f64::from(state.slack) + number(2 * count) * f64::from(state.norm);
            for (i, (band, of_state)) in self.bands.iter().zip(state.bands).enumerate() {
                reach += number(2 * i) * f64::from(of_state.slack);
                if band.is_wide {
                    reach += number(2 * i + 1) * f64::from(of_state.norm);
                } else {
                    let (codes, rest) = residual.split_at(band.residual_bytes());
                    residual = rest;
                    let halves = exact.lanes().residual_dot(codes, &digits[column..column + band.columns]);
                    let (scale, error) = (next(), next());
                    let part = scale * (f64::from(of_state.half_unit) * halves as f64);
                    (center, sizes) = (center + part, sizes + part.abs());
                    reach += error * f64::from(of_state.norm) + scale * f64::from(of_state.residual_slack);
                }
                column += band.columns;
            }
            // Every number here is rounded to f64 a few times for each band, by 2^-53 of itself; 2^-45 of
            // their sizes covers that.
            let bound = center + reach + (sizes + reach) * (1.0 / (1u64 << 45) as f64);
            // One rounding to f32 follows, by 2^-24 of itself, or by 2^-150 where the result is subnormal.
            let bound =
                (bound + bound.abs() * (1.0 / (1 << 22) as f64) + f64::from_bits((1023 - 140) << 52)) as f32;
            let bias = exact.bias().map(|bias| bias[id]);
            let bound = exact.lanes().finish_bound(bound, bias, exact.scaling());
            bounds[id] = bounds[id].min(bound);
        }
    }
}

/// Sixteen rows of weights, coded.
struct Group {
    codes: Vec<u32>,
    numbers: Vec<bf16>,
    residuals: Vec<u8>,
    residual_numbers: Vec<bf16>,
    code_norms: Vec<[f64; 2]>,
}

impl Group {
    /// Codes the rows from `first` on; a row that is not screened, or not there, as zeros.
    fn new(exact: &Exact<'_>, screen: &TwoLevel, directions: &Directions, first: usize) -> Self {
        let _env = FloatEnv::enter();
        let (width, columns, lanes) = (exact.width(), directions.columns(), exact.lanes());
        let Directions { bands, places, inverse, lost, .. } = directions;
        let mut rows = Vec::with_capacity(ROWS_OF_GROUP * width);
        let mut out = Self {
            codes: vec![0; group_words(bands)],
            numbers: vec![bf16::ZERO; group_numbers(bands)],
            residuals: Vec::new(),
            residual_numbers: Vec::new(),
            code_norms: vec![[0.0; 2]; bands.len()],
        };
        let of_product = product_rounding(width);
        for (lane, id) in (first..first + ROWS_OF_GROUP).enumerate() {
            if id >= exact.vocab() || screen.unscreened.binary_search(&(id as u32)).is_ok() {
                rows.resize(rows.len() + width, 0.0);
                continue;
            }
            centered(exact.weights_of(id), &screen.mean, &mut rows);
            let of_row = length_of(exact.weights_of(id)) * LENGTH_UP;
            let of_centered = length(rows[lane * width..].iter().copied()) * LENGTH_UP;
            // The subtraction of the mean was rounded, by 2^-53 of numbers no longer than these.
            let rounding = (of_row + screen.mean_norm) * (1.0 / (1u64 << 50) as f64);
            let own = (of_product * of_row + lost * of_centered + rounding) * LENGTH_UP;
            out.numbers[2 * bands.len() * ROWS_OF_GROUP + lane] = narrow_up(own);
        }
        let mut along = vec![0.0; ROWS_OF_GROUP * columns];
        lanes.multiply(&rows, inverse, width, &mut along);
        let (mut codes, mut residual) = (vec![0u8; ROWS_OF_GROUP * columns], vec![0u8; columns]);
        let (mut errors, mut left) = (vec![0.0; columns], vec![0.0; columns]);
        for (lane, (along, codes)) in along.chunks(columns).zip(codes.chunks_mut(columns)).enumerate() {
            for (i, (band, place)) in bands.iter().zip(places).enumerate() {
                let (codes, errors) = (&mut codes[place.clone()], &mut errors[place.clone()]);
                let coded = lanes.code(&along[place.clone()], band.is_wide, codes, errors);
                out.numbers[2 * i * ROWS_OF_GROUP + lane] = coded.scale;
                out.numbers[(2 * i + 1) * ROWS_OF_GROUP + lane] = narrow_up(coded.error);
                let norms = &mut out.code_norms[i];
                norms[0] = norms[0].max(coded.code_norm);
                if !band.is_wide {
                    let columns = place.start..place.start + band.columns;
                    residual[columns.clone()].fill(0);
                    let again =
                        lanes.code(errors, false, &mut residual[place.clone()], &mut left[place.clone()]);
                    // The errors that were coded are rounded, by 2^-53 of themselves.
                    let error = again.error + coded.error * (1.0 / (1u64 << 52) as f64);
                    out.residual_numbers.extend([again.scale, narrow_up(error)]);
                    norms[1] = norms[1].max(again.code_norm);
                    let from = out.residuals.len();
                    out.residuals.resize(from + band.residual_bytes(), 0);
                    pack_residual(&residual[columns], &mut out.residuals[from..]);
                }
            }
        }
        pack_group(bands, &codes, &mut out.codes);
        out
    }
}

/// Hidden states as a two-level screen has them, in buffers that are kept from batch to batch.
#[derive(Debug, Default)]
pub(crate) struct BandedStates {
    /// Hidden states along the directions.
    along: Vec<f32>,
    digits: Vec<u32>,
    /// The digits as numbers of 16 bits, as the second level takes them.
    wide_digits: Vec<i16>,
    bands: Vec<BandState>,
    numbers: Vec<StateNumbers>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StateNumbers {
    is_short: bool,
    mean: f32,
    norm: f32,
    slack: f32,
}

impl BandedStates {
    /// Converts hidden states to digits and numbers of each band, which replace those of the last call. For a
    /// hidden state that is not finite, or longer than [`LONGEST`], they are meaningless, and no bound may be
    /// computed from them.
    pub(crate) fn fill(&mut self, lanes: HeadLanes, screen: &TwoLevel, states: &Widened) {
        let _env = FloatEnv::enter();
        let (width, columns) = (states.width(), screen.columns());
        self.along.clear();
        self.along.resize(states.rows() * columns, 0.0);
        for (first, along) in (0..).step_by(AT_ONCE).zip(self.along.chunks_mut(AT_ONCE * columns)) {
            let count = along.len() / columns;
            let mut places: [&mut [f32]; AT_ONCE] = Default::default();
            places.iter_mut().zip(along.chunks_mut(columns)).for_each(|(place, along)| *place = along);
            let (rows, states) = (Row::Bf16(&screen.directions), states.padded(first..first + count));
            lanes.logits(rows, width, states, None, &Scaling::default(), &mut places[..count]);
        }
        self.digits.clear();
        self.wide_digits.clear();
        self.bands.clear();
        self.numbers.clear();
        let terms = (screen.bands.len() + 8) as f64 * (1.0 / (1 << 22) as f64);
        let (rounding, lost) = (product_rounding(width), product_lost(width));
        for row in 0..states.rows() {
            let state = &states.padded(row..row + 1)[..width];
            let (mut squares, mut mean) = (0.0f64, 0.0f64);
            for (h, m) in state.iter().zip(&screen.mean) {
                let h = f64::from(*h);
                (squares, mean) = (squares + h * h, mean + f64::from(*m) * h);
            }
            let is_short = squares.sqrt() <= LONGEST;
            let norm = squares.sqrt() * LENGTH_UP;
            let mut along = &self.along[row * columns..(row + 1) * columns];
            for ((band, length), norms) in screen.bands.iter().zip(&screen.lengths).zip(&screen.code_norms) {
                let (of_band, rest) = along.split_at(band.columns);
                along = rest;
                // The products with the band's directions are rounded, too.
                let off = rounding * length * norm + (band.columns as f64).sqrt() * lost;
                let numbers = band_state(band, of_band, off, *norms, terms, &mut self.wide_digits);
                self.bands.push(numbers);
            }
            // The mean's product is rounded in f64, once for each element, then to f32.
            let of_mean = (width + 2) as f64 / (1u64 << 52) as f64 * screen.mean_norm * norm;
            let slack = of_mean + terms * mean.abs() + lost + f64::from_bits((1023 - 130) << 52);
            let numbers = StateNumbers {
                is_short,
                mean: mean as f32,
                norm: up(norm * REACH_UP),
                slack: up(slack * REACH_UP),
            };
            self.numbers.push(numbers);
        }
        let (fours, _) = self.wide_digits.as_chunks::<4>();
        self.digits
            .extend(fours.iter().map(|digits| u32::from_le_bytes(digits.map(|digit| digit as i8 as u8))));
    }

    /// Returns whether a hidden state is finite and short enough to be screened.
    pub(crate) fn is_short(&self, row: usize) -> bool {
        self.numbers[row].is_short
    }

    pub(crate) fn state(&self, row: usize) -> BandedState<'_> {
        let StateNumbers { mean, norm, slack, .. } = self.numbers[row];
        let (words, bands) = (self.digits.len() / self.numbers.len(), self.bands.len() / self.numbers.len());
        BandedState {
            digits: &self.digits[row * words..(row + 1) * words],
            bands: &self.bands[row * bands..(row + 1) * bands],
            mean,
            norm,
            slack,
        }
    }
}

/// Appends the digits of the part of a hidden state that lies in a band, each element of which is off by what
/// makes up `off` in length.
fn band_state(
    band: &Band,
    along: &[f32],
    off: f64,
    code_norms: [f64; 2],
    terms: f64,
    digits: &mut Vec<i16>,
) -> BandState {
    let largest = along.iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
    let unit = (largest / DIGIT_MOST as f32).max(LEAST_UNIT);
    let (mut squares, mut rest, mut sum) = (0.0f64, 0.0f64, 0i32);
    for y in along {
        let y = f64::from(*y);
        let digit = (y / f64::from(unit)).round_ties_even().clamp(-DIGIT_MOST, DIGIT_MOST);
        digits.push(digit as i16);
        let left = y - f64::from(unit) * digit;
        (squares, rest, sum) = (squares + y * y, rest + left * left, sum + digit as i32);
    }
    let norm = squares.sqrt() * LENGTH_UP;
    // What digits leave out is rounded by 2^-53 of itself.
    let rest = rest.sqrt() * LENGTH_UP;
    let [codes, residual] = code_norms;
    BandState {
        half_unit: unit / 2.0,
        offset: sum * band.most() as i32,
        norm: up((norm + off) * REACH_UP),
        slack: up(codes * (rest + off + terms * (norm + rest)) * REACH_UP),
        residual_slack: up(residual * (rest + off) * REACH_UP),
    }
}

/// Returns a positive number as the next bf16 that is not below it.
fn narrow_up(value: f64) -> bf16 {
    let rounded = bf16::from_f64(value);
    if f64::from(rounded.to_f32()) < value { bf16::from_bits(rounded.to_bits() + 1) } else { rounded }
}

/// Appends a row of weights less the mean row.
fn centered(row: Row<'_>, mean: &[f32], to: &mut Vec<f64>) {
    to.extend(mean.iter().enumerate().map(|(i, m)| f64::from(row.logit(i)) - f64::from(*m)));
}

/// Returns at most `most` of `count` places, evenly spaced.
fn spaced(count: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(count.div_ceil(most).max(1))
}

/// Returns whether a hidden state can be used.
fn can_screen(state: Row<'_>) -> bool {
    length_of(state) <= LONGEST
}
