//! The certified head: the exact head's token, from a part of the weights (H5).
//!
//! A screen of a few bits for each weight bounds every logit. For the tokens that could still be chosen, the
//! head then computes the logit as the exact head does, and it reads the weights of these tokens only. If a
//! hidden state cannot be screened, or too many tokens could be chosen, the exact head computes the whole
//! row.

use gumball_cpu::{Contest, Level, LogitSource, ROWS_OF_GROUP, Task};
use gumball_spec::{Error, HostMatrix, Reading, Result, memory};
use rayon::prelude::*;

use crate::exact::Exact;
use crate::measure::length_of;
use crate::screen::{self, Screen, ScreenArrays, ScreenedStates};
use crate::spread::{Spread, rows_of_piece};
use crate::states::Widened;
use crate::two_level::{self, BandedStates, TwoLevel};

/// Of a row's logits at most this part is computed; where more are needed, the exact head computes all.
const MOST_OF_ROW: usize = 4;

/// How many rows of a step are screened at most, unless a caller says otherwise. Measured on one core with
/// AVX-512 (`docs/heads.md`): the exact head reads its weights once for all rows of a step, and is as fast at
/// 16 rows.
const MOST_ROWS: usize = 8;

/// How many rows of a step a screen of two levels bounds at most, unless a caller says otherwise. They are
/// more, since this screen multiplies each code that it reads with several rows.
const MOST_ROWS_OF_TWO_LEVELS: usize = 64;

/// A head that screens its weights before it reads them.
#[derive(Clone, Debug)]
pub struct Certified<'w> {
    exact: Exact<'w>,
    screen: AnyScreen,
    most_rows: usize,
}

#[derive(Clone, Debug)]
enum AnyScreen {
    Int8(Box<Screen>),
    TwoLevel(Box<TwoLevel>),
}

/// Buffers of a batch's bounds, kept from step to step.
#[derive(Debug, Default)]
pub struct Bounds {
    states: ScreenedStates,
    banded: BandedStates,
    values: Vec<f32>,
    /// Of a two-level screen: for each bound the middle between it and the bound from below.
    centers: Vec<f32>,
}

/// The data of a batch beside its bounds: its hidden states, and the numbers that the second level of a
/// screen needs to lower bounds.
#[derive(Clone, Copy, Debug)]
pub struct SecondLevel<'a> {
    states: &'a ScreenedStates,
    banded: &'a BandedStates,
    centers: &'a [f32],
}

impl<'w> Certified<'w> {
    /// Makes the screen of a head, over rayon's threads. It takes about a byte for each weight.
    #[must_use]
    pub fn new(exact: Exact<'w>) -> Self {
        let screen = Screen::new(&exact);
        Self::with_screen(exact, screen)
    }

    /// Takes a screen of these weights.
    pub(crate) fn with_screen(exact: Exact<'w>, screen: Screen) -> Self {
        Self { exact, screen: AnyScreen::Int8(Box::new(screen)), most_rows: MOST_ROWS }
    }

    /// Returns the screen of 8-bit codes, for what keeps it in files; `None` for one of two levels.
    pub(crate) fn kept_screen(&self) -> Option<&Screen> {
        match &self.screen {
            AnyScreen::Int8(screen) => Some(screen),
            AnyScreen::TwoLevel(_) => None,
        }
    }

    /// Makes a screen of two levels, over rayon's threads: about 4.5 bits for each weight that every step
    /// reads, with 18 bytes a row and 2 bytes for each element of width x width, and 4 bits more that are
    /// read for the tokens that those leave in question.
    ///
    /// `calibration`: hidden states like those to come, at least five for each element of their width. They
    /// choose what is coded finely; bounds are tighter with them than from the weights alone, and hold for
    /// any hidden state either way. Hidden states that [`Certified::can_screen`] would refuse are left out.
    ///
    /// The time this takes grows with the third power of the width, and for each row with its square: 6 s on
    /// two cores for 49152 rows of 576.
    ///
    /// # Errors
    /// - [`Error::Length`] if the hidden states have another width than the weights.
    pub fn two_level(exact: Exact<'w>, calibration: Option<HostMatrix<'_>>) -> Result<Self> {
        if let Some(states) = calibration {
            exact.check_width(states.width())?;
        }
        let screen = AnyScreen::TwoLevel(Box::new(TwoLevel::new(&exact, calibration)));
        Ok(Self { exact, screen, most_rows: MOST_ROWS_OF_TWO_LEVELS })
    }

    /// Sets how many rows of a step are screened at most; 8 by default, 64 with two levels. In a step
    /// that has more of them, the exact head computes all rows. Tokens do not depend on it.
    #[must_use]
    pub fn with_most_rows(self, most_rows: usize) -> Self {
        Self { most_rows, ..self }
    }

    /// Returns how many rows of a step are screened at most.
    #[must_use]
    pub fn most_rows(&self) -> usize {
        self.most_rows
    }

    /// Returns the exact head, whose tokens these are.
    #[must_use]
    pub fn exact(&self) -> &Exact<'w> {
        &self.exact
    }

    /// Returns how many bytes of the screen a step reads, beside the rows of weights of the tokens that could
    /// be chosen, and beside [`Certified::second_level_bytes`].
    #[must_use]
    pub fn screen_bytes(&self) -> usize {
        match &self.screen {
            AnyScreen::Int8(screen) => screen.bytes(),
            AnyScreen::TwoLevel(screen) => screen.bytes(),
        }
    }

    /// Returns how many bytes of the screen are read for each token that the first level leaves in question;
    /// 0 if there is one level.
    #[must_use]
    pub fn second_level_bytes(&self) -> usize {
        match &self.screen {
            AnyScreen::Int8(_) => 0,
            AnyScreen::TwoLevel(screen) => screen.residual_row_bytes(),
        }
    }

    /// Returns the ids whose rows are not screened, ascending: rows with a weight or a bias that is not
    /// finite, or very large. Their logits are always computed.
    #[must_use]
    pub fn unscreened(&self) -> &[u32] {
        match &self.screen {
            AnyScreen::Int8(screen) => &screen.unscreened,
            AnyScreen::TwoLevel(screen) => &screen.unscreened,
        }
    }

    /// Returns the arrays of a screen of 8-bit codes; `None` for one of two levels.
    #[must_use]
    pub fn screen(&self) -> Option<ScreenArrays<'_>> {
        self.kept_screen().map(Screen::arrays)
    }

    /// Returns the length that a hidden state may have to be screened.
    fn longest(&self) -> f64 {
        match &self.screen {
            AnyScreen::Int8(_) => screen::LONGEST,
            AnyScreen::TwoLevel(_) => two_level::LONGEST,
        }
    }

    /// Returns whether a hidden state can be screened: it is finite, and at most 2^50 long, or 2^30 with two
    /// levels.
    ///
    /// # Panics
    /// If there is no such hidden state.
    #[must_use]
    pub fn can_screen(&self, states: HostMatrix<'_>, row: usize) -> bool {
        // NaN if an element is.
        length_of(states.row(row)) <= self.longest()
    }

    /// Returns whether a few logits may decide a row. They do not if the request needs more than a quarter of
    /// the row's logits, or if more than a quarter of the ids are not screened.
    #[must_use]
    pub fn is_worth_screening(&self, reading: Reading) -> bool {
        let least = match reading {
            Reading::Top(k) => k,
            Reading::Mass(_) | Reading::Whole(_) => return false,
            _ => 1,
        };
        least.max(self.unscreened().len()) <= self.most_logits()
    }

    /// Returns how many logits of a row are computed at most.
    fn most_logits(&self) -> usize {
        self.exact.vocab() / MOST_OF_ROW
    }

    /// Computes upper bounds of all logits of hidden states. Of one that [`Certified::can_screen`] refuses
    /// they are no bounds, and [`Certified::settle`] gives its row up.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state has another length than a row of weights.
    /// - [`Error::Unavailable`] if the system refuses the memory of the bounds, 4 bytes for each logit, or 8
    ///   with two levels.
    pub fn bound(&self, states: &Widened, spread: Spread, bounds: &mut Bounds) -> Result<()> {
        self.exact.check_width(states.width())?;
        let vocab = self.exact.vocab();
        let Bounds { states: screened, banded, values, centers } = bounds;
        if states.rows() == 0 {
            values.clear();
            centers.clear();
            return Ok(());
        }
        let count = memory::product("memory for bounds", &[states.rows(), vocab])?;
        memory::reserve("memory for bounds", values, count)?;
        values.resize(count, 0.0);
        match &self.screen {
            AnyScreen::Int8(screen) => {
                screened.fill(screen, states);
                centers.clear();
                let screened = &*screened;
                let piece = rows_of_piece(self.exact.width());
                in_pieces(spread, vocab, piece, values, &mut [], |from, rows, values, _| {
                    for (row, out) in rows.zip(values) {
                        let ids = from..from + out.len();
                        screen.upper_bounds(self.exact.lanes(), &self.exact, &screened.state(row), ids, out);
                    }
                });
            }
            AnyScreen::TwoLevel(screen) => {
                memory::reserve("memory for bounds", centers, count)?;
                centers.resize(count, 0.0);
                banded.fill(self.exact.lanes(), screen, states);
                let banded = &*banded;
                // About as many bytes of codes as a piece of another head has of weights.
                let piece = rows_of_piece(self.exact.width() * 5 / 8).next_multiple_of(ROWS_OF_GROUP);
                in_pieces(spread, vocab, piece, values, centers, |from, rows, values, centers| {
                    let ids = from..from + values[0].len();
                    screen.first_bounds(&self.exact, banded, rows, ids, values, centers);
                });
            }
        }
        Ok(())
    }

    /// Writes the logits that decide a row, and -inf elsewhere: the row then has the token, the kept set and
    /// the logprobs of the exact head's row. Returns how many logits were computed, or `None` if they would
    /// be too many, or the hidden state cannot be screened, so that the exact head is to compute the row.
    ///
    /// # Shapes and units
    /// The hidden states that were bounded, and the row's place there. `bounds`, `second_level`: of
    /// [`Bounds::parts_mut`]: the row's part of the former, which is changed, and the latter. `reading`: of
    /// the task's request. `row`: one for each id.
    ///
    /// # Errors
    /// - [`Error::Length`] if `bounds` or `row` have another length.
    #[expect(clippy::too_many_arguments, reason = "a row, its request, and buffers of both")]
    pub fn settle(
        &self,
        (states, state): (&Widened, usize),
        bounds: &mut [f32],
        second_level: SecondLevel<'_>,
        reading: Reading,
        task: &Task<'_>,
        contest: &mut Contest,
        row: &mut [f32],
    ) -> Result<Option<Settled>> {
        let vocab = self.exact.vocab();
        for (parameter, length) in [("bounds", bounds.len()), ("logits", row.len())] {
            if length != vocab {
                return Err(Error::length(parameter, length, format!("{vocab} ids")));
            }
        }
        let is_short = match &self.screen {
            AnyScreen::Int8(_) => second_level.states.is_short(state),
            AnyScreen::TwoLevel(_) => second_level.banded.is_short(state),
        };
        if !is_short {
            return Ok(None);
        }
        let mut source = Source { head: self, states, state, second_level, lowered: 0 };
        let limit = self.most_logits();
        let count = contest.settle(reading, bounds, self.unscreened(), task, limit, row, &mut source)?;
        Ok(count.map(|logits| Settled { logits, lowered: source.lowered }))
    }

    /// Lowers a row's bounds of some ids by the second level of the screen, as [`Certified::settle`] does
    /// where it pays; does nothing if there is one level.
    ///
    /// # Shapes and units
    /// `state`: the row's place among the bounded rows. `second_level`: of [`Bounds::parts_mut`]. `bounds`:
    /// one for each id.
    ///
    /// # Panics
    /// If there is no such row or id, or there are not as many bounds as ids in the vocabulary.
    pub fn lower(&self, state: usize, second_level: SecondLevel<'_>, ids: &[u32], bounds: &mut [f32]) {
        let vocab = self.exact.vocab();
        assert_eq!(bounds.len(), vocab, "a bound for each id");
        if let AnyScreen::TwoLevel(screen) = &self.screen {
            let SecondLevel { banded, centers, .. } = second_level;
            let centers = &centers[state * vocab..(state + 1) * vocab];
            screen.tighten(&self.exact, banded, state, ids, centers, bounds);
        }
    }

    /// Makes buffers for [`Certified::settle`].
    ///
    /// # Errors
    /// None in practice: the level was checked when the head was made.
    pub fn contest(&self) -> Result<Contest> {
        Contest::new(self.level())
    }

    /// Returns the SIMD level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.exact.level()
    }
}

impl Bounds {
    /// Returns the bounds, one row after the other.
    #[must_use]
    pub fn rows(&self) -> &[f32] {
        &self.values
    }

    /// Returns the bounds, one row after the other, and the data that [`Certified::settle`] needs to lower
    /// the bounds of some tokens.
    pub fn parts_mut(&mut self) -> (&mut [f32], SecondLevel<'_>) {
        (&mut self.values, SecondLevel { states: &self.states, banded: &self.banded, centers: &self.centers })
    }
}

/// The work that settled a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Logits that were computed.
    pub logits: usize,
    /// Bounds that the second level of the screen lowered.
    pub lowered: usize,
}

/// Where the contest over a row gets logits and lower bounds.
struct Source<'a, 'w> {
    head: &'a Certified<'w>,
    states: &'a Widened,
    state: usize,
    second_level: SecondLevel<'a>,
    lowered: usize,
}

impl LogitSource for Source<'_, '_> {
    fn logits(&mut self, ids: &[u32], out: &mut [f32]) -> Result<()> {
        self.head.exact.logits_of(self.states, self.state, ids, out)
    }

    fn guess(&mut self, out: &mut Vec<f32>) -> bool {
        let (exact, vocab) = (&self.head.exact, self.head.exact.vocab());
        if self.second_level.centers.is_empty() {
            return false;
        }
        out.clear();
        out.extend_from_slice(&self.second_level.centers[self.state * vocab..(self.state + 1) * vocab]);
        exact.lanes().finish(out, exact.bias(), exact.scaling());
        // A bias that is not finite belongs to a token that is not bounded, and is not guessed.
        true
    }

    fn tighten(&mut self, ids: &[u32], bounds: &mut [f32]) {
        self.head.lower(self.state, self.second_level, ids, bounds);
        self.lowered += ids.len();
    }
}

/// How many rows of a batch a piece of a screen meets at a time on the calling thread.
const AT_ONCE: usize = 4;

/// Calls `one` for every piece of the ids: with the piece's first id, a range of rows, and for each of them
/// the piece's places in `values` and in `more`, which is as long or empty.
fn in_pieces(
    spread: Spread,
    vocab: usize,
    piece: usize,
    values: &mut [f32],
    more: &mut [f32],
    one: impl Fn(usize, std::ops::Range<usize>, &mut [&mut [f32]], &mut [&mut [f32]]) + Sync,
) {
    match spread {
        Spread::Caller => {
            for from in (0..vocab).step_by(piece) {
                let ids = from..(from + piece).min(vocab);
                let mut more = more.chunks_mut(AT_ONCE * vocab);
                for (first, values) in values.chunks_mut(AT_ONCE * vocab).enumerate() {
                    let (first, count) = (first * AT_ONCE, values.len() / vocab);
                    let mut places: [[&mut [f32]; AT_ONCE]; 2] = Default::default();
                    for (places, rows) in places.iter_mut().zip([values, more.next().unwrap_or_default()]) {
                        for (place, row) in places.iter_mut().zip(rows.chunks_mut(vocab)) {
                            *place = &mut row[ids.clone()];
                        }
                    }
                    let [values, more] = &mut places;
                    one(from, first..first + count, &mut values[..count], &mut more[..count]);
                }
            }
        }
        Spread::Rayon => {
            let rows = values.len() / vocab;
            let mut pieces: Vec<[Vec<&mut [f32]>; 2]> = Vec::new();
            pieces.resize_with(vocab.div_ceil(piece), Default::default);
            for (kind, all) in [values, more].into_iter().enumerate() {
                for row in all.chunks_mut(vocab) {
                    pieces
                        .iter_mut()
                        .zip(row.chunks_mut(piece))
                        .for_each(|(piece, part)| piece[kind].push(part));
                }
            }
            pieces.par_iter_mut().enumerate().for_each(|(i, [values, more])| {
                one(i * piece, 0..rows, values, more);
            });
        }
    }
}
