//! The head: what makes logits of the model's hidden states, the model's own product or a head of Gumball's.

use clap::{Args, ValueEnum};
use gumball_engine::head::{Certified, Exact, HeadOptions};
use gumball_engine::{Head, HeadCounts, Level};
use serde::Serialize;

use crate::Result;
use crate::model::Llama;

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
    /// Bytes of weights and of their copy for each token of the text, on average; rows that are computed together read them once.
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
    /// What the model's weights, or the level, are refused for.
    pub fn of_model(&self, model: &Llama, level: Level) -> Result<Option<ModelHead>> {
        self.head.map(|kind| ModelHead::new(kind, model, model.vocab(), level)).transpose()
    }
}

impl ModelHead {
    /// Makes a head of a model's weights with as many ids as `vocab` says: ids that the model lacks have the logit -inf, and those beyond
    /// are left out.
    ///
    /// # Errors
    /// What the model's weights, or the level, are refused for.
    pub fn new(kind: HeadKind, model: &Llama, vocab: usize, level: Level) -> Result<Self> {
        let (own, width) = (model.vocab(), model.config().hidden);
        let mut matrix = model.head_matrix()?;
        matrix.resize(vocab * width, 0.0);
        let bias = (own < vocab).then(|| {
            let mut bias = vec![0.0; own];
            bias.resize(vocab, f32::NEG_INFINITY);
            bias.into()
        });
        let options = HeadOptions { bias, level: Some(level), ..HeadOptions::default() };
        let exact = Exact::new(matrix, vocab, width, options)?;
        Ok(match kind {
            HeadKind::Exact => ModelHead::Exact(exact),
            HeadKind::Certified => ModelHead::Certified(Certified::new(exact)),
        })
    }

    /// Returns it as pools take it.
    #[must_use]
    pub fn head(&self) -> Head<'_> {
        match self {
            ModelHead::Exact(exact) => exact.into(),
            ModelHead::Certified(certified) => certified.into(),
        }
    }

    /// Returns what it has read for so many tokens; `counts` are of its rows alone.
    #[must_use]
    pub fn figures(&self, counts: HeadCounts, tokens: usize) -> HeadFigures {
        let HeadCounts { whole_rows, certified_rows, certified_logits, weight_reads, screen_reads, .. } =
            counts;
        let (kind, exact, screen_bytes) = match self {
            ModelHead::Exact(exact) => ("exact", exact, 0),
            ModelHead::Certified(certified) => ("certified", certified.exact(), certified.screen_bytes()),
        };
        let row_bytes = exact.width() * exact.weights().element_bytes();
        let whole = weight_reads as f64 * (row_bytes * exact.vocab()) as f64;
        let part = screen_reads as f64 * screen_bytes as f64 + certified_logits as f64 * row_bytes as f64;
        let tokens = tokens.max(1) as f64;
        HeadFigures {
            kind,
            bytes_a_token: (whole + part) / tokens,
            whole_rows,
            certified_rows,
            certified_logits,
        }
    }
}
