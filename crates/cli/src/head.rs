//! The head: what makes logits of the model's hidden states, the model's own product or a head of Gumball's.

use clap::{Args, ValueEnum};
use gumball_engine::head::{Certified, Exact, HeadOptions};
use gumball_engine::{HeadCounts, Level, Pool};
use serde::Serialize;

use crate::model::Llama;
use crate::speculate::SpeculateArgs;
use crate::{Error, Result};

/// Which head.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Every logit, in an order of adding that is the same on every machine
    Exact,
    /// The same tokens, from a copy of the weights in 8 bits and the weights of the tokens that could be drawn
    Certified,
}

/// Which head makes the logits.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Head")]
pub struct HeadArgs {
    /// Make the logits by a head of Gumball's from the model's weights as f32; if absent, by the model's own product
    #[arg(long, value_name = "KIND")]
    pub head: Option<HeadKind>,
}

/// A head over a model's output matrix.
#[derive(Debug)]
pub enum ModelHead {
    /// Every logit.
    Exact(Exact<'static>),
    /// Those that decide.
    Certified(Certified<'static>),
}

/// What a head has read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HeadFigures {
    /// The name of its kind.
    pub kind: &'static str,
    /// Bytes of weights and of their copy for each token, on average.
    pub bytes_a_token: f64,
    /// Rows all of whose logits were computed.
    pub whole_rows: u64,
    /// Rows that a part of their logits decided.
    pub certified_rows: u64,
    /// The logits that were computed for these, in all.
    pub certified_logits: u64,
}

impl HeadArgs {
    /// Makes the head that the arguments name for a model; `None` if they name none.
    ///
    /// # Errors
    /// - [`Error::Usage`] beside drafts, whose rows come from the model's own product.
    /// - What the model's weights, or the level, are refused for.
    pub fn of_model(
        &self,
        model: &Llama,
        level: Level,
        speculate: &SpeculateArgs,
    ) -> Result<Option<ModelHead>> {
        let Some(kind) = self.head else { return Ok(None) };
        if speculate.speculate.is_some() || speculate.draft_model.is_some() {
            let reason =
                "--head takes a hidden state at a time, and drafts need several; leave out one of the two";
            return Err(Error::Usage(reason.to_owned()));
        }
        let options = HeadOptions { level: Some(level), ..HeadOptions::default() };
        let exact = Exact::new(model.head_matrix()?, model.vocab(), model.config().hidden, options)?;
        Ok(Some(match kind {
            HeadKind::Exact => ModelHead::Exact(exact),
            HeadKind::Certified => ModelHead::Certified(Certified::new(exact)),
        }))
    }
}

impl ModelHead {
    /// Returns what it has read for a pool's tokens.
    #[must_use]
    pub fn figures(&self, pool: &Pool) -> HeadFigures {
        let HeadCounts { whole_rows, certified_rows, certified_logits, .. } = pool.head_counts();
        let (kind, exact, screen_bytes) = match self {
            ModelHead::Exact(exact) => ("exact", exact, 0),
            ModelHead::Certified(certified) => ("certified", certified.exact(), certified.screen_bytes()),
        };
        let row_bytes = exact.width() * exact.weights().element_bytes();
        let whole = whole_rows as f64 * (row_bytes * exact.vocab()) as f64;
        let part = certified_rows as f64 * screen_bytes as f64 + certified_logits as f64 * row_bytes as f64;
        let tokens = (whole_rows + certified_rows).max(1) as f64;
        HeadFigures {
            kind,
            bytes_a_token: (whole + part) / tokens,
            whole_rows,
            certified_rows,
            certified_logits,
        }
    }
}
