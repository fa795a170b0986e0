//! The head: what makes logits of the model's hidden states, the model's own product or a head of Gumball's.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gumball_engine::head::artefact::Kind as ArtefactKind;
use gumball_engine::head::{
    Artefact, ArtefactError, Certified, Clustered, ClusteredOptions, Exact, HeadOptions,
};
use gumball_engine::{Head, HeadCounts, Level};
use serde::Serialize;

use crate::model::Llama;
use crate::{Error, Result};

/// Which head.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Every logit, in an order of adding that is the same on every machine
    Exact,
    /// Only the logits of the tokens that could be drawn, which a copy of the weights in fewer bits finds; the tokens are those of `exact`
    Certified,
    /// Approximately the same tokens, from the weights of the clusters of tokens that look likeliest; with --head-file
    Clustered,
}

/// Which copy of the weights a certified head reads.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScreenKind {
    /// 8 bits a weight
    #[default]
    Int8,
    /// 4.5 bits a weight, and 4 more for tokens that those leave in question
    TwoLevel,
}

/// Which head makes the logits.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Head")]
pub struct HeadArgs {
    /// Make the logits by a head of Gumball's from the model's weights as f32; if absent, by the model's own product
    #[arg(long, value_name = "KIND")]
    pub head: Option<HeadKind>,
    /// Take what a certified or clustered head derives from the weights from a file that `gumball head build` made
    #[arg(long, value_name = "FILE")]
    pub head_file: Option<PathBuf>,
    /// How many clusters a clustered head probes for a token; without it, an eighth of them
    #[arg(long, value_name = "N")]
    pub probes: Option<usize>,

    /// What a certified head reads before it computes logits; without it, int8
    #[arg(long, value_name = "KIND")]
    pub screen: Option<ScreenKind>,
}

/// A head over a model's output matrix.
#[derive(Debug)]
pub enum ModelHead {
    /// Every logit.
    Exact(Exact<'static>),
    /// Those that decide.
    Certified(Certified<'static>),
    /// Those of the clusters that look likeliest.
    Clustered(Box<Clustered<'static>>),
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
    /// Rows of which a clustered head computed the probed clusters.
    pub clustered_rows: u64,
    /// The logits that were computed for these, in all.
    pub clustered_logits: u64,
    /// Whether tokens and logprobs may be others than the exact head's.
    pub approximate: bool,
}

impl HeadArgs {
    /// Makes the head that the arguments name for a model; `None` if they name none. `special_ids`: those that a clustered head always computes.
    ///
    /// # Errors
    /// - What the model's weights, the level, or a number of probes are refused for.
    /// - [`Error::Usage`] for arguments that are not for this kind of head, or a clustered head without a file.
    /// - [`Error::File`] for a file that is not of this model, or that is damaged.
    pub fn of_model(&self, model: &Llama, special_ids: &[u32], level: Level) -> Result<Option<ModelHead>> {
        let usage = |reason: &str| Err(Error::Usage(reason.to_owned()));
        if self.screen.is_some() && (self.head != Some(HeadKind::Certified) || self.head_file.is_some()) {
            return usage("--screen is for a certified head without a file; add --head certified");
        }
        let Some(path) = &self.head_file else {
            if self.probes.is_some() {
                return usage("--probes is for a clustered head; add --head-file FILE");
            }
            if self.screen == Some(ScreenKind::TwoLevel) {
                let exact = exact(model, model.vocab(), level)?;
                return Ok(Some(ModelHead::Certified(Certified::two_level(exact, None)?)));
            }
            return self.head.map(|kind| ModelHead::new(kind, model, model.vocab(), level)).transpose();
        };
        let artefact = open(path)?;
        let kind = match artefact.info().kind {
            ArtefactKind::Clustered(_) => HeadKind::Clustered,
            _ => HeadKind::Certified,
        };
        match (self.head, kind) {
            (Some(HeadKind::Exact), _) => {
                return usage("--head-file is for --head certified or clustered; leave out one of the two");
            }
            (Some(named), kind) if named != kind => {
                let file = artefact.info().kind.name();
                return usage(&format!(
                    "the file of --head-file is of a {file} head; name it by --head {file}"
                ));
            }
            (_, HeadKind::Certified) if self.probes.is_some() => {
                return usage(
                    "--probes is for a clustered head, and the file of --head-file is of a certified one",
                );
            }
            _ => {}
        }
        if kind == HeadKind::Certified {
            let certified = artefact.certified(exact(model, model.vocab(), level)?);
            return Ok(Some(ModelHead::Certified(certified.map_err(|error| of_file(path, error))?)));
        }
        let exact = exact(model, model.vocab(), level)?;
        let clusters = artefact.clusters(&exact).map_err(|error| of_file(path, error))?;
        let options =
            ClusteredOptions { probes: self.probes, special_ids: special_ids.to_vec(), most_rows: None };
        Ok(Some(ModelHead::Clustered(Box::new(Clustered::new(&exact, clusters, &options)?))))
    }
}

impl HeadArgs {
    /// Makes the exact head of a model's weights, as an artefact of the model is of.
    ///
    /// # Errors
    /// What the model's weights are refused for.
    pub(crate) fn exact(model: &Llama) -> Result<Exact<'static>> {
        exact(model, model.vocab(), Level::detect()?)
    }
}

/// Opens an artefact.
pub(crate) fn open(path: &Path) -> Result<Artefact> {
    Artefact::open(path).map_err(|error| of_file(path, error))
}

/// Says of which file an error is.
pub(crate) fn of_file(path: &Path, error: ArtefactError) -> Error {
    match error {
        ArtefactError::Io { path, source } => Error::io(&path, &source),
        error => Error::file(path, error.to_string()),
    }
}

/// Makes the exact head of a model's weights with as many ids as `vocab` says.
fn exact(model: &Llama, vocab: usize, level: Level) -> Result<Exact<'static>> {
    let (own, width) = (model.vocab(), model.config().hidden);
    let mut matrix = model.head_matrix()?;
    matrix.resize(vocab * width, 0.0);
    let bias = (own < vocab || model.head_bias().is_some()).then(|| {
        let mut bias = model.head_bias().map_or_else(|| vec![0.0; own], <[f32]>::to_vec);
        bias.resize(vocab, f32::NEG_INFINITY);
        bias.into()
    });
    let options = HeadOptions { bias, level: Some(level), ..HeadOptions::default() };
    Ok(Exact::new(matrix, vocab, width, options)?)
}

impl ModelHead {
    /// Makes a head of a model's weights with as many ids as `vocab` says: ids that the model lacks have the logit -inf, and those beyond
    /// are left out.
    ///
    /// # Errors
    /// What the model's weights, or the level, are refused for.
    pub fn new(kind: HeadKind, model: &Llama, vocab: usize, level: Level) -> Result<Self> {
        let exact = exact(model, vocab, level)?;
        Ok(match kind {
            HeadKind::Exact => ModelHead::Exact(exact),
            HeadKind::Certified => ModelHead::Certified(Certified::new(exact)),
            HeadKind::Clustered => {
                let reason = "a clustered head takes its clusters from a file; build it by \
                              `gumball head build --kind clustered`, and name it by --head-file";
                return Err(Error::Usage(reason.to_owned()));
            }
        })
    }

    /// Returns it as pools take it.
    #[must_use]
    pub fn head(&self) -> Head<'_> {
        match self {
            ModelHead::Exact(exact) => exact.into(),
            ModelHead::Certified(certified) => certified.into(),
            ModelHead::Clustered(clustered) => (&**clustered).into(),
        }
    }

    /// Returns how many bytes the head has read for each of `tokens` tokens. `counts`: the head's work for the rows of this model, without that of a
    /// drafter's.
    #[must_use]
    pub fn figures(&self, counts: HeadCounts, tokens: usize) -> HeadFigures {
        let HeadCounts { whole_rows, certified_rows, certified_logits, weight_reads, .. } = counts;
        let HeadCounts { screen_reads, lowered_bounds, .. } = counts;
        let HeadCounts { clustered_rows, clustered_logits, centroid_reads, .. } = counts;
        let (kind, weights, [screen_bytes, second_bytes, centroid_bytes]) = match self {
            ModelHead::Exact(exact) => ("exact", exact.weights(), [0; 3]),
            ModelHead::Certified(certified) => {
                let bytes = [certified.screen_bytes(), certified.second_level_bytes(), 0];
                ("certified", certified.exact().weights(), bytes)
            }
            ModelHead::Clustered(clustered) => {
                ("clustered", clustered.weights(), [0, 0, clustered.centroid_bytes()])
            }
        };
        let head = self.head();
        let row_bytes = head.width() * weights.element_bytes();
        let whole = weight_reads as f64 * (row_bytes * head.vocab()) as f64;
        let part = screen_reads as f64 * screen_bytes as f64
            + lowered_bounds as f64 * second_bytes as f64
            + centroid_reads as f64 * centroid_bytes as f64
            + (certified_logits + clustered_logits) as f64 * row_bytes as f64;
        let tokens = tokens.max(1) as f64;
        HeadFigures {
            kind,
            bytes_a_token: (whole + part) / tokens,
            whole_rows,
            certified_rows,
            certified_logits,
            clustered_rows,
            clustered_logits,
            approximate: head.is_approximate(),
        }
    }
}
