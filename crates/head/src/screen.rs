//! The screen of a head: its weights as 8-bit codes, and for each row how far the codes may be off.
//!
//! It is made once from the weights and bounds every logit from above. `docs/bounds.md` has the proof; each
//! step of it that is rounded is rounded to the safe side here.

use std::ops::Range;

use gumball_cpu::{FloatEnv, HeadLanes, ScreenRows, ScreenState, padded_codes};
use gumball_spec::Row;
use rayon::prelude::*;

use crate::exact::Exact;
use crate::measure::{LENGTH_UP, length_of, mean_row, product_lost, product_rounding, unscreened, up};
use crate::states::Widened;
use crate::stored::Stored;

/// The longest row of weights, and the longest hidden state, that are screened: products of both stay far
/// from overflow.
pub(crate) const LONGEST: f64 = (1u64 << 50) as f64;

/// The largest code.
const CODE_MOST: f64 = 127.0;

/// The largest digit: 256 a + b with a and b in 8-bit integers.
const DIGIT_MOST: f64 = 32_512.0;

/// A head's weights as 8-bit codes.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    codes: Stored<i8>,
    scales: Stored<f32>,
    own: Stored<f32>,
    code_norms: Stored<f32>,
    /// The mean row, which is taken from every row before it is coded.
    mean: Vec<f32>,
    mean_norm: f64,
    /// Rows that are not screened: with a weight or a bias that is not finite, or very large.
    pub(crate) unscreened: Vec<u32>,
    padded: usize,
}

/// The arrays of a screen, for code that computes the bounds elsewhere, such as on a GPU. `docs/bounds.md`
/// says what the numbers mean.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ScreenArrays<'a> {
    /// `[vocab, padded]` codes from -127 to 127, zeros after the width.
    pub codes: &'a [i8],
    /// The codes of a row, padding included.
    pub padded: usize,
    /// `[vocab]`: the value of one unit of a row's codes.
    pub scales: &'a [f32],
    /// `[vocab]`: by how much each row's bound grows for a hidden state of length 1.
    pub own: &'a [f32],
    /// `[vocab]`: the length of each row's codes times its scale.
    pub code_norms: &'a [f32],
    /// `[width]`: the mean row, which was taken from every row before it was coded.
    pub mean: &'a [f32],
    /// The length of the mean row, or a little more.
    pub mean_norm: f64,
    /// The ids whose rows are not screened, ascending.
    pub unscreened: &'a [u32],
}

/// The numbers that are stored for a row of weights besides its codes.
struct Coded {
    scale: f32,
    own: f32,
    code_norm: f32,
}

impl Screen {
    /// Codes the weights of a head, over rayon's threads.
    pub(crate) fn new(exact: &Exact<'_>) -> Self {
        let mut screen = Self::uncoded(exact);
        screen.code_rows(exact, 0..exact.vocab());
        screen
    }

    /// Makes the screen of a head, whose rows are to be coded. The environment of floats is each thread's
    /// own, so each piece of work enters it.
    pub(crate) fn uncoded(exact: &Exact<'_>) -> Self {
        let _env = FloatEnv::enter();
        let (vocab, width) = (exact.vocab(), exact.width());
        let unscreened = unscreened(exact, LONGEST);
        let mean = mean_row(exact, &unscreened);
        let codes = vec![0; vocab * padded_codes(width)].into();
        let [scales, own, code_norms] = [(); 3].map(|()| vec![0.0; vocab].into());
        Self::of_parts(codes, scales, own, code_norms, mean, unscreened)
    }

    /// Makes a screen of what another one was made of.
    pub(crate) fn of_parts(
        codes: Stored<i8>,
        scales: Stored<f32>,
        own: Stored<f32>,
        code_norms: Stored<f32>,
        mean: Vec<f32>,
        unscreened: Vec<u32>,
    ) -> Self {
        let _env = FloatEnv::enter();
        let mean_norm = length_of(Row::F32(&mean)) * LENGTH_UP;
        let padded = padded_codes(mean.len());
        Self { codes, scales, own, code_norms, mean, mean_norm, unscreened, padded }
    }

    /// Codes neighbouring rows, over rayon's threads.
    pub(crate) fn code_rows(&mut self, exact: &Exact<'_>, ids: Range<usize>) {
        let Self { codes, scales, own, code_norms, mean, mean_norm, unscreened, padded } = self;
        let codes = codes[ids.start * *padded..ids.end * *padded].par_chunks_mut(*padded);
        let columns = scales[ids.clone()].par_iter_mut().zip(&mut own[ids.clone()]);
        let columns = columns.zip(&mut code_norms[ids.clone()]).zip(codes);
        columns.enumerate().for_each(|(row, (((scale, own), code_norm), codes))| {
            let _env = FloatEnv::enter();
            let id = ids.start + row;
            if unscreened.binary_search(&(id as u32)).is_err() {
                let coded = code_row(exact.weights_of(id), mean, *mean_norm, codes);
                (*scale, *own, *code_norm) = (coded.scale, coded.own, coded.code_norm);
            }
        });
    }

    /// Returns what is stored of neighbouring rows, as bytes: codes, scales, own and code_norms.
    pub(crate) fn piece(&self, ids: Range<usize>) -> [&[u8]; 4] {
        let Self { codes, scales, own, code_norms, padded, .. } = self;
        let codes = bytemuck::cast_slice(&codes[ids.start * padded..ids.end * padded]);
        let [scales, own, code_norms] =
            [scales, own, code_norms].map(|column| bytemuck::cast_slice(&column[ids.clone()]));
        [codes, scales, own, code_norms]
    }

    /// Returns the same, to be written.
    pub(crate) fn piece_mut(&mut self, ids: Range<usize>) -> [&mut [u8]; 4] {
        let Self { codes, scales, own, code_norms, padded, .. } = self;
        let codes = bytemuck::cast_slice_mut(&mut codes[ids.start * *padded..ids.end * *padded]);
        let [scales, own, code_norms] =
            [scales, own, code_norms].map(|column| bytemuck::cast_slice_mut(&mut column[ids.clone()]));
        [codes, scales, own, code_norms]
    }

    pub(crate) fn arrays(&self) -> ScreenArrays<'_> {
        let Self { codes, scales, own, code_norms, mean, unscreened, .. } = self;
        let (padded, mean_norm) = (self.padded, self.mean_norm);
        ScreenArrays { codes, padded, scales, own, code_norms, mean, mean_norm, unscreened }
    }

    /// Returns how many bytes of it a step reads.
    pub(crate) fn bytes(&self) -> usize {
        self.codes.len() + 4 * (self.scales.len() + self.own.len() + self.code_norms.len())
    }

    /// Computes upper bounds of neighbouring logits.
    pub(crate) fn upper_bounds(
        &self,
        lanes: HeadLanes,
        exact: &Exact<'_>,
        state: &ScreenState<'_>,
        ids: Range<usize>,
        out: &mut [f32],
    ) {
        let rows = ScreenRows {
            codes: &self.codes[ids.start * self.padded..ids.end * self.padded],
            scales: &self.scales[ids.clone()],
            own: &self.own[ids.clone()],
            code_norms: &self.code_norms[ids.clone()],
        };
        let bias = exact.bias().map(|bias| &bias[ids]);
        lanes.upper_bounds(&rows, state, bias, exact.scaling(), out);
    }
}

/// Returns how many codes a row has, zeros at its end included.
pub(crate) fn padded_width(width: usize) -> usize {
    padded_codes(width)
}

/// Codes a row of weights less the mean row.
fn code_row(row: Row<'_>, mean: &[f32], mean_norm: f64, codes: &mut [i8]) -> Coded {
    let centered = |i: usize| f64::from(row.logit(i)) - f64::from(mean[i]);
    let largest = (0..mean.len()).map(|i| centered(i).abs()).fold(0.0, f64::max);
    let scale = (largest / CODE_MOST) as f32;
    // Where codes would be worth a subnormal number there are none: their error is then the row itself.
    let scale = if scale < f32::MIN_POSITIVE { 0.0 } else { scale };
    let (mut errors, mut squares, mut of_row) = (0.0f64, 0.0f64, 0.0f64);
    for (i, code) in codes[..mean.len()].iter_mut().enumerate() {
        let centered = centered(i);
        let rounded = match scale {
            0.0 => 0.0,
            scale => (centered / f64::from(scale)).round_ties_even().clamp(-CODE_MOST, CODE_MOST),
        };
        *code = rounded as i8;
        let error = centered - f64::from(scale) * rounded;
        let weight = f64::from(row.logit(i));
        (errors, squares, of_row) =
            (errors + error * error, squares + rounded * rounded, of_row + weight * weight);
    }
    let (errors, of_row) = (errors.sqrt() * LENGTH_UP, of_row.sqrt() * LENGTH_UP);
    let code_norm = squares.sqrt() * f64::from(scale) * LENGTH_UP;
    // Two subtractions were rounded, each by 2^-53 of numbers no longer than these.
    let rounding = (of_row + mean_norm + code_norm + errors) * (1.0 / (1u64 << 50) as f64);
    let own = (errors + rounding + product_rounding(mean.len()) * of_row) * LENGTH_UP;
    Coded { scale, own: up(own), code_norm: up(code_norm) }
}

/// Hidden states as a screen has them, in buffers that are kept from batch to batch.
#[derive(Debug, Default)]
pub struct ScreenedStates {
    digits: Vec<i16>,
    numbers: Vec<StateNumbers>,
    padded: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct StateNumbers {
    is_short: bool,
    unit: f64,
    mean: f64,
    norm: f64,
    rest: f64,
    slack: f64,
}

impl ScreenedStates {
    /// Converts hidden states to digits and numbers, which replace the last call's. For a hidden state
    /// that is not finite, or longer than [`LONGEST`], they are meaningless, and no bound may be computed
    /// from them.
    pub(crate) fn fill(&mut self, screen: &Screen, states: &Widened) {
        let _env = FloatEnv::enter();
        let width = states.width();
        self.padded = screen.padded;
        self.digits.clear();
        self.numbers.clear();
        for row in 0..states.rows() {
            let state = &states.padded(row..row + 1)[..width];
            let unit = unit_of(state);
            let (mut squares, mut rest, mut mean) = (0.0f64, 0.0f64, 0.0f64);
            for (h, m) in state.iter().zip(&screen.mean) {
                let h = f64::from(*h);
                let digit = (h / unit).round_ties_even();
                self.digits.push(digit as i16);
                let left = h - unit * digit;
                (squares, rest, mean) = (squares + h * h, rest + left * left, mean + f64::from(*m) * h);
            }
            self.digits.resize(self.numbers.len() * screen.padded + screen.padded, 0);
            let is_short = squares.sqrt() <= LONGEST;
            let norm = squares.sqrt() * LENGTH_UP;
            // The mean's product is rounded once for each element.
            let of_mean = (width + 2) as f64 / (1u64 << 52) as f64 * screen.mean_norm * norm;
            let slack = of_mean + product_lost(width);
            let rest = rest.sqrt() * LENGTH_UP;
            self.numbers.push(StateNumbers { is_short, unit, mean, norm, rest, slack });
        }
    }

    /// Returns whether a hidden state is finite and short enough to be screened.
    pub(crate) fn is_short(&self, row: usize) -> bool {
        self.numbers[row].is_short
    }

    pub(crate) fn state(&self, row: usize) -> ScreenState<'_> {
        let StateNumbers { unit, mean, norm, rest, slack, .. } = self.numbers[row];
        let digits = &self.digits[row * self.padded..(row + 1) * self.padded];
        ScreenState { digits, unit, mean, norm, rest, slack }
    }
}

/// Returns the least power of two in which no element of a hidden state has more than [`DIGIT_MOST`]; 1 for
/// zeros.
fn unit_of(state: &[f32]) -> f64 {
    let largest = state.iter().fold(0.0f32, |largest, h| largest.max(h.abs()));
    if largest == 0.0 {
        return 1.0;
    }
    let largest = f64::from(largest);
    // As f64 it is normal: its exponent field less 14 makes 2^14 <= largest / unit < 2^15.
    let exponent = largest.to_bits() >> 52;
    let unit = f64::from_bits((exponent - 14) << 52);
    if largest / unit > DIGIT_MOST { 2.0 * unit } else { unit }
}
