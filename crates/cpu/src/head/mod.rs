//! The head over lanes: products of weight rows and hidden states, and the steps that make logits of them
//! (H1, H2).
//!
//! ```text
//! for every four rows of weights:
//!     for every four hidden states:      16 products side by side, sixteen partial sums each
//! products -> bias, scale, cap           sixteen logits at a time
//! ```
//!
//! A product's partial sums are the lanes of one vector, so its order of adding is the definition's at every
//! level, and no product knows of the others beside it.

mod products;
mod scaling;
mod screen;

use gumball_spec::head::Scaling;
use gumball_spec::{Result, Row};

use crate::Level;
use crate::float_env::FloatEnv;
use crate::lanes::{Element, Proven, WIDTH, dispatch, dispatch_products};

pub use screen::{ScreenRows, ScreenState, padded_codes};

/// Returns how many elements a hidden state of `width` takes once it is padded for [`HeadLanes`].
#[must_use]
pub fn padded_width(width: usize) -> usize {
    width.next_multiple_of(WIDTH)
}

/// Appends a hidden state, converted exactly and padded with zeros to [`padded_width`].
pub fn widen(hidden: Row<'_>, to: &mut Vec<f32>) {
    to.extend((0..hidden.vocab()).map(|i| hidden.logit(i)));
    to.resize(to.len() + padded_width(hidden.vocab()) - hidden.vocab(), 0.0);
}

/// What computes logits from hidden states, at a level of this machine.
#[derive(Clone, Copy, Debug)]
pub struct HeadLanes(Proven);

impl HeadLanes {
    /// Proves a level.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Proven::new(level).map(Self)
    }

    /// Returns the level in use.
    #[must_use]
    pub fn level(self) -> Level {
        self.0.level()
    }

    /// Computes the logits of neighbouring rows of weights, for a batch of hidden states.
    ///
    /// # Shapes and units
    /// `weights`: N rows of `width`. `hidden`: B rows of [`padded_width`], zeros after `width`. `bias`: N.
    /// `out`: B slices of N.
    ///
    /// # Panics
    /// If a shape is not so.
    pub fn logits(
        self,
        weights: Row<'_>,
        width: usize,
        hidden: &[f32],
        bias: Option<&[f32]>,
        scaling: &Scaling,
        out: &mut [&mut [f32]],
    ) {
        let rows = weights.vocab() / width;
        assert_eq!(rows * width, weights.vocab(), "rows of {width} weights");
        assert_eq!(hidden.len(), out.len() * padded_width(width), "{} hidden states of {width}", out.len());
        assert!(out.iter().all(|logits| logits.len() == rows), "a place for each of {rows} logits");
        assert!(bias.is_none_or(|bias| bias.len() == rows), "a bias for each of {rows} logits");
        let _env = FloatEnv::enter();
        match weights {
            Row::F32(weights) => self.products(weights, width, hidden, out),
            Row::Bf16(weights) => self.products(weights, width, hidden, out),
            Row::F16(weights) => self.products(weights, width, hidden, out),
        }
        for logits in out {
            dispatch(self.0, scaling::Finish { logits, bias, scaling });
        }
    }

    fn products<E: Element>(self, weights: &[E], width: usize, hidden: &[f32], out: &mut [&mut [f32]]) {
        dispatch(self.0, products::OfRows { weights, width, hidden, out });
    }

    /// Computes the logits of some ids, for one hidden state.
    ///
    /// # Shapes and units
    /// `weights`: all rows, of `width`. `hidden`: one of [`padded_width`]. `bias`: one for each row. `out`:
    /// one for each id.
    ///
    /// # Panics
    /// If a shape is not so, or an id has no row.
    #[expect(clippy::too_many_arguments, reason = "a head's parts, which have a struct in another crate")]
    pub fn logits_of(
        self,
        weights: Row<'_>,
        width: usize,
        hidden: &[f32],
        bias: Option<&[f32]>,
        scaling: &Scaling,
        ids: &[u32],
        out: &mut [f32],
    ) {
        assert_eq!(hidden.len(), padded_width(width), "a hidden state of {width}");
        assert_eq!(out.len(), ids.len(), "a place for each logit");
        let _env = FloatEnv::enter();
        match weights {
            Row::F32(weights) => self.products_of(weights, width, hidden, ids, out),
            Row::Bf16(weights) => self.products_of(weights, width, hidden, ids, out),
            Row::F16(weights) => self.products_of(weights, width, hidden, ids, out),
        }
        for (logit, id) in out.iter_mut().zip(ids) {
            *logit = gumball_spec::head::logit(*logit, bias.map(|bias| bias[*id as usize]), scaling);
        }
    }

    fn products_of<E: Element>(
        self,
        weights: &[E],
        width: usize,
        hidden: &[f32],
        ids: &[u32],
        out: &mut [f32],
    ) {
        dispatch(self.0, products::OfIds { weights, width, hidden, ids, out });
    }
}

impl HeadLanes {
    /// Computes an upper bound of each logit of neighbouring rows, from their codes.
    ///
    /// # Shapes and units
    /// `rows`: N rows. `bias`: N finite numbers. `out`: N.
    ///
    /// # Panics
    /// If a shape is not so.
    pub fn upper_bounds(
        self,
        rows: &ScreenRows<'_>,
        state: &ScreenState<'_>,
        bias: Option<&[f32]>,
        scaling: &Scaling,
        out: &mut [f32],
    ) {
        rows.check(state, out.len());
        assert!(bias.is_none_or(|bias| bias.len() == out.len()), "a bias for each of {} logits", out.len());
        let _env = FloatEnv::enter();
        dispatch_products(self.0, screen::UpperBounds { rows, state, out });
        self.finish_bounds(out, bias, scaling);
    }

    /// Turns bounds of products into bounds of logits.
    fn finish_bounds(self, bounds: &mut [f32], bias: Option<&[f32]>, scaling: &Scaling) {
        dispatch(self.0, scaling::Finish { logits: bounds, bias, scaling });
        if scaling.softcap > 0.0 {
            // A larger logit may come out of the cap lower, by at most twice SOFTCAP_ERROR; 2.3 covers the
            // rounding of this sum too.
            let slack = scaling.softcap * (2.3 * gumball_spec::head::SOFTCAP_ERROR as f32);
            bounds.iter_mut().for_each(|bound| *bound += slack);
        }
    }
}

#[cfg(test)]
mod tests;
