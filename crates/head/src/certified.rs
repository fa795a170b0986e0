//! The certified head: the exact head's token, from a part of the weights (H5).
//!
//! A screen of 8-bit codes bounds every logit. The logits of the tokens that could still be chosen are then computed as the exact head
//! does, and nothing else of the weights is read. If a hidden state cannot be screened, or too many tokens could be chosen, the exact head
//! computes the whole row.

use gumball_cpu::{Contest, Decisive, Level, Task, WholeRow, decisive};
use gumball_spec::{Error, Result, memory};
use rayon::prelude::*;

use crate::exact::Exact;
use crate::screen::{Screen, ScreenArrays, ScreenedStates, can_screen};
use crate::spread::{Spread, rows_of_piece};
use crate::states::{HiddenStates, Widened};

/// Of a row's logits at most this part is computed; where more are needed, the exact head computes all.
const MOST_OF_ROW: usize = 4;

/// How many rows of a step are screened at most, unless a caller says otherwise. Measured on one core with AVX-512 (`docs/heads.md`): the exact
/// head reads its weights once for all rows of a step, and is as fast at 16 rows.
const MOST_ROWS: usize = 8;

/// A head that screens its weights before it reads them.
#[derive(Clone, Debug)]
pub struct Certified<'w> {
    exact: Exact<'w>,
    screen: Screen,
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
        Self { exact, screen, most_rows: MOST_ROWS }
    }

    /// Returns the screen, for what keeps it in files.
    pub(crate) fn kept_screen(&self) -> &Screen {
        &self.screen
    }

    /// Sets how many rows of a step are screened at most; 8 if nobody says so. In a step that has more of them, the exact head computes all
    /// rows. Tokens do not depend on it.
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

    /// Returns how many bytes the screen of a step reads, beside the rows of weights of the tokens that could be chosen.
    #[must_use]
    pub fn screen_bytes(&self) -> usize {
        self.screen.bytes()
    }

    /// Returns the ids whose rows are not screened, ascending: those with a weight or a bias that is not finite, or very large. Their logits
    /// are always computed.
    #[must_use]
    pub fn unscreened(&self) -> &[u32] {
        &self.screen.unscreened
    }

    /// Returns the screen's arrays.
    #[must_use]
    pub fn screen(&self) -> ScreenArrays<'_> {
        self.screen.arrays()
    }

    /// Returns whether a hidden state can be screened: it is finite, and at most 2^50 long.
    ///
    /// # Panics
    /// If there is no such hidden state.
    #[must_use]
    pub fn can_screen(&self, states: HiddenStates<'_>, row: usize) -> bool {
        can_screen(states.row(row))
    }

    /// Returns whether a few logits may decide a row. They do not if the request needs more than a quarter of the row's logits, or if more than a
    /// quarter of the ids are not screened.
    #[must_use]
    pub fn is_worth_screening(&self, decisive: Decisive) -> bool {
        let least = if let Decisive::Top(k) = decisive { k } else { 1 };
        least.max(self.screen.unscreened.len()) <= self.most_logits()
    }

    /// Returns how many logits of a row are computed at most.
    fn most_logits(&self) -> usize {
        self.exact.vocab() / MOST_OF_ROW
    }

    /// Computes upper bounds of all logits of hidden states that can be screened.
    ///
    /// # Errors
    /// - [`Error::Length`] if a hidden state has another length than a row of weights.
    /// - [`Error::OutOfRange`] for a hidden state that [`Certified::can_screen`] refuses.
    /// - [`Error::Unavailable`] if the system refuses the memory of the bounds, 4 bytes for each logit.
    pub fn bound(&self, states: &Widened, spread: Spread, bounds: &mut Bounds) -> Result<()> {
        self.exact.check_width(states.width())?;
        let vocab = self.exact.vocab();
        let Bounds { states: screened, values } = bounds;
        let count = memory::product("memory for bounds", &[states.rows(), vocab])?;
        memory::reserve("memory for bounds", values, count)?;
        screened.fill(&self.screen, states)?;
        values.resize(count, 0.0);
        let piece = rows_of_piece(self.exact.width());
        let (screened, lanes) = (&*screened, self.exact.lanes());
        let one = |row: usize, from: usize, out: &mut [f32]| {
            let (state, ids) = (screened.state(row), from..from + out.len());
            self.screen.upper_bounds(lanes, &self.exact, &state, ids, out);
        };
        match spread {
            Spread::Caller => {
                for from in (0..vocab).step_by(piece) {
                    for (row, values) in values.chunks_mut(vocab).enumerate() {
                        one(row, from, &mut values[from..(from + piece).min(vocab)]);
                    }
                }
            }
            Spread::Rayon => {
                let mut pieces: Vec<Vec<&mut [f32]>> = Vec::new();
                pieces.resize_with(vocab.div_ceil(piece), || Vec::with_capacity(states.rows()));
                for row in values.chunks_mut(vocab) {
                    pieces.iter_mut().zip(row.chunks_mut(piece)).for_each(|(piece, part)| piece.push(part));
                }
                pieces.par_iter_mut().enumerate().for_each(|(i, rows)| {
                    rows.iter_mut().enumerate().for_each(|(row, out)| one(row, i * piece, out));
                });
            }
        }
        Ok(())
    }

    /// Writes the logits that decide a row, and -inf elsewhere: the row then has the token, the kept set and the logprobs of the exact
    /// head's row. Returns how many logits were computed, or `None` if they would be too many, so that the exact head is to compute
    /// the row.
    ///
    /// # Shapes and units
    /// `bounds`: the row's, of [`Bounds::rows_mut`]; they are changed. `states`, `state`: what was bounded, and the row's place there. `decisive`: of
    /// the task's request. `row`: one for each id.
    ///
    /// # Errors
    /// - [`Error::Length`] if `bounds` or `row` have another length.
    #[expect(clippy::too_many_arguments, reason = "a row, its request, and buffers of both")]
    pub fn settle(
        &self,
        states: &Widened,
        state: usize,
        bounds: &mut [f32],
        decisive: Decisive,
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
        let limit = self.most_logits();
        let mut logits = |ids: &[u32], out: &mut [f32]| self.exact.logits_of(states, state, ids, out);
        contest.settle(decisive, bounds, &self.screen.unscreened, task, limit, row, &mut logits)
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

    /// Returns which tokens decide the rows of a task, or why the exact head has to compute all of them.
    ///
    /// # Errors
    /// - The reason, if every logit is needed.
    pub fn decisive(
        task: &Task<'_>,
        hooked: bool,
        keep_ids: bool,
    ) -> std::result::Result<Decisive, WholeRow> {
        decisive(task.prepared, hooked, keep_ids)
    }
}

impl Bounds {
    /// Returns the bounds, one row after the other.
    pub fn rows_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}
