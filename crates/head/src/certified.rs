//! The certified head: the exact head's token, from a part of the weights (H5).
//!
//! A screen of a few bits for each weight bounds every logit. For the tokens that could still be chosen, the
//! head then computes the logit as the exact head does, and it reads the weights of these tokens only. If a
//! hidden state cannot be screened, or too many tokens could be chosen, the exact head computes the whole
//! row.

use gumball_cpu::{Contest, Level, Task};
use gumball_spec::{Error, HostMatrix, Reading, Result, memory};
use rayon::prelude::*;

use crate::exact::Exact;
use crate::measure::length_of;
use crate::screen::{LONGEST, Screen, ScreenArrays, ScreenedStates};
use crate::spread::{Spread, rows_of_piece};
use crate::states::Widened;

/// Of a row's logits at most this part is computed; where more are needed, the exact head computes all.
const MOST_OF_ROW: usize = 4;

/// How many rows of a step are screened at most, unless a caller says otherwise. Measured on one core with
/// AVX-512 (`docs/heads.md`): the exact head reads its weights once for all rows of a step, and is as fast at
/// 16 rows.
const MOST_ROWS: usize = 8;

/// A head that screens its weights before it reads them.
#[derive(Clone, Debug)]
pub struct Certified<'w> {
    exact: Exact<'w>,
    screen: Box<Screen>,
    most_rows: usize,
}

/// Buffers of a batch's bounds, kept from step to step.
#[derive(Debug, Default)]
pub struct Bounds {
    states: ScreenedStates,
    values: Vec<f32>,
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
        Self { exact, screen: Box::new(screen), most_rows: MOST_ROWS }
    }

    /// Sets how many rows of a step are screened at most; 8 by default. In a step that has more of
    /// them, the exact head computes all rows. Tokens do not depend on it.
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
    /// be chosen.
    #[must_use]
    pub fn screen_bytes(&self) -> usize {
        self.screen.bytes()
    }

    /// Returns the ids whose rows are not screened, ascending: rows with a weight or a bias that is not
    /// finite, or very large. Their logits are always computed.
    #[must_use]
    pub fn unscreened(&self) -> &[u32] {
        &self.screen.unscreened
    }

    /// Returns the arrays of the screen.
    #[must_use]
    pub fn screen(&self) -> ScreenArrays<'_> {
        self.screen.arrays()
    }

    /// Returns whether a hidden state can be screened: it is finite, and at most 2^50 long.
    ///
    /// # Panics
    /// If there is no such hidden state.
    #[must_use]
    pub fn can_screen(&self, states: HostMatrix<'_>, row: usize) -> bool {
        // NaN if an element is.
        length_of(states.row(row)) <= LONGEST
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
    /// - [`Error::Unavailable`] if the system refuses the memory of the bounds, 4 bytes for each logit.
    pub fn bound(&self, states: &Widened, spread: Spread, bounds: &mut Bounds) -> Result<()> {
        self.exact.check_width(states.width())?;
        let vocab = self.exact.vocab();
        let Bounds { states: screened, values } = bounds;
        if states.rows() == 0 {
            values.clear();
            return Ok(());
        }
        let count = memory::product("memory for bounds", &[states.rows(), vocab])?;
        memory::reserve("memory for bounds", values, count)?;
        values.resize(count, 0.0);
        screened.fill(&self.screen, states);
        let screened = &*screened;
        let one = |from: usize, row: usize, out: &mut [f32]| {
            let (ids, state) = (from..from + out.len(), screened.state(row));
            self.screen.upper_bounds(self.exact.lanes(), &self.exact, &state, ids, out);
        };
        let piece = rows_of_piece(self.exact.width());
        match spread {
            Spread::Caller => {
                for from in (0..vocab).step_by(piece) {
                    let ids = from..(from + piece).min(vocab);
                    for (row, bounds) in values.chunks_mut(vocab).enumerate() {
                        one(from, row, &mut bounds[ids.clone()]);
                    }
                }
            }
            Spread::Rayon => {
                let mut pieces: Vec<Vec<&mut [f32]>> = Vec::new();
                pieces.resize_with(vocab.div_ceil(piece), Vec::new);
                for bounds in values.chunks_mut(vocab) {
                    pieces.iter_mut().zip(bounds.chunks_mut(piece)).for_each(|(all, part)| all.push(part));
                }
                pieces.into_par_iter().enumerate().for_each(|(i, parts)| {
                    parts.into_iter().enumerate().for_each(|(row, part)| one(i * piece, row, part));
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
    /// The hidden states that were bounded, and the row's place there. `bounds`, `screened`: of
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
        screened: &ScreenedStates,
        reading: Reading,
        task: &Task<'_>,
        contest: &mut Contest,
        row: &mut [f32],
    ) -> Result<Option<usize>> {
        let vocab = self.exact.vocab();
        for (parameter, length) in [("bounds", bounds.len()), ("logits", row.len())] {
            if length != vocab {
                return Err(Error::length(parameter, length, format!("{vocab} ids")));
            }
        }
        if !screened.is_short(state) {
            return Ok(None);
        }
        let mut logits = |ids: &[u32], out: &mut [f32]| self.exact.logits_of(states, state, ids, out);
        contest.settle(reading, bounds, self.unscreened(), task, self.most_logits(), row, &mut logits)
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

    /// Returns the bounds, one row after the other, and the hidden states as the screen has them.
    pub fn parts_mut(&mut self) -> (&mut [f32], &ScreenedStates) {
        (&mut self.values, &self.states)
    }
}
