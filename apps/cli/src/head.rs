//! The head, which makes logits of the model's hidden states: the model's own product or one of Gumball's
//! heads.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gumball_engine::head::artefact::Kind as ArtefactKind;
use gumball_engine::head::{
    Artefact, ArtefactError, Auto, Clustered, ClusteredOptions, Exact, HeadOptions, Weights,
};
use gumball_engine::{Head, HeadCounts, Level, bf16};
use serde::Serialize;

use crate::model::Llama;
use crate::{Error, Result};

/// Which head.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// The tokens that follow from all logits, added up in an order that is the same on every machine; a copy
    /// of the weights in fewer bits finds the logits that could matter
    Auto,
    /// Every logit, by the tensor cores of a GPU, from the weights rounded to bf16; near-ties may go to
    /// another token than with `auto`, or on another GPU; with --device
    Fast,
    /// Approximately the same tokens, from the weights of the clusters of tokens that look likeliest; with
    /// --head-file
    Clustered,
}

impl HeadKind {
    /// Returns its name, as the command line has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Fast => "fast",
            Self::Clustered => "clustered",
        }
    }
}

/// The error for a fast head without a GPU.
const NEEDS_TENSOR_CORES: &str = "--head fast is computed by the tensor cores of a GPU; add --device cuda, or take --head auto, whose logits are the \
                                  same on every machine";

/// Which head makes the logits.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Head")]
pub struct HeadArgs {
    /// Make the logits by a head of Gumball's from the model's weights as f32, on the GPU with --device
    ///
    /// If absent, the model's own product makes them, whose logits differ in their last digits, and so now
    /// and then the text.
    #[arg(long, value_name = "KIND")]
    pub head: Option<HeadKind>,
    /// Take the screen of an auto head, or clusters, from a file that `gumball head build` made
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub head_file: Option<PathBuf>,
    /// How many clusters a clustered head probes for a token; without it, an eighth of them
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub probes: Option<usize>,
}

/// A head over a model's output matrix.
#[derive(Debug)]
pub enum ModelHead {
    /// It draws the tokens that follow from all logits.
    Auto(Auto<'static>),
    /// It computes the logits of the likeliest clusters.
    Clustered(Box<Clustered<'static>>),
}

/// The figures of a head's work.
#[derive(Clone, Debug, Serialize)]
pub struct HeadFigures {
    /// The name of its kind.
    pub kind: &'static str,
    /// The name of the device where it lies; absent on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Bytes of weights and of their copy for each token of the text, on average; rows that are computed
    /// together read them once. Absent where drafts were verified on a device, which does not count how often
    /// their rows read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_a_token: Option<f64>,
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
    /// Whether logits are left out, so that tokens and logprobs may be others.
    pub approximate: bool,
}

impl HeadFigures {
    /// Returns the counts of a head's work, without the bytes that it took.
    pub(crate) fn of(kind: HeadKind, head: &Head<'_>, counts: HeadCounts) -> Self {
        Self {
            kind: kind.name(),
            device: None,
            bytes_a_token: None,
            whole_rows: counts.whole_rows,
            certified_rows: counts.certified_rows,
            certified_logits: counts.certified_logits,
            clustered_rows: counts.clustered_rows,
            clustered_logits: counts.clustered_logits,
            approximate: head.is_approximate(),
        }
    }
}

impl HeadArgs {
    /// Returns whether the arguments name a head.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.head.is_some() || self.head_file.is_some()
    }

    /// Checks that the head they name can lie where tokens are chosen: on a device, or on the host.
    ///
    /// # Errors
    /// - [`Error::Usage`] for a fast head without a device, or one of a file.
    pub fn check(&self, is_on_device: bool) -> Result<()> {
        let usage = |reason: &str| Err(Error::Usage(reason.to_owned()));
        let is_fast = self.head == Some(HeadKind::Fast);
        if is_fast && !is_on_device {
            return usage(NEEDS_TENSOR_CORES);
        }
        if is_fast && self.head_file.is_some() {
            return usage("--head-file is for --head auto or clustered; leave out one of the two");
        }
        Ok(())
    }

    /// Makes the head that the tensor cores of a device compute as a fast one, of the model's weights rounded
    /// to bf16.
    ///
    /// # Errors
    /// - What the model's weights, or the level, are refused for.
    /// - [`Error::Usage`] for arguments that are not for this kind of head.
    pub(crate) fn rounded(&self, model: &Llama, level: Level) -> Result<ModelHead> {
        self.check_flags()?;
        let rounded = |weights: Vec<f32>| weights.into_iter().map(bf16::from_f32).collect::<Vec<_>>().into();
        Ok(ModelHead::Auto(Auto::Exact(exact_of(model, model.vocab(), level, rounded)?)))
    }

    /// Refuses flags for another kind of head than that which is named, as far as no file is needed to know.
    fn check_flags(&self) -> Result<()> {
        if self.probes.is_some() && self.head_file.is_none() {
            return Err(Error::Usage("--probes is for a clustered head; add --head-file FILE".to_owned()));
        }
        Ok(())
    }

    /// Makes the head that the arguments name for a model, on the host; `None` if they name none.
    /// `special_ids`: the ids whose logits a clustered head computes for every row.
    ///
    /// # Errors
    /// - What the model's weights, the level, or a number of probes are refused for.
    /// - [`Error::Usage`] for arguments that are not for this kind of head, or a clustered head without a
    ///   file.
    /// - [`Error::File`] for a file that is not of this model, or that is damaged.
    pub fn of_model(&self, model: &Llama, special_ids: &[u32], level: Level) -> Result<Option<ModelHead>> {
        let usage = |reason: &str| Err(Error::Usage(reason.to_owned()));
        self.check_flags()?;
        let Some(path) = &self.head_file else {
            return self.head.map(|kind| ModelHead::new(kind, model, model.vocab(), level)).transpose();
        };
        let artefact = open(path)?;
        let kind = match artefact.info().kind {
            ArtefactKind::Clustered(_) => HeadKind::Clustered,
            _ => HeadKind::Auto,
        };
        if self.head.is_some_and(|named| named != kind) {
            let kind = kind.name();
            return usage(&format!("the file of --head-file is for --head {kind}; name it so"));
        }
        if kind == HeadKind::Auto {
            if self.probes.is_some() {
                return usage(
                    "--probes is for a clustered head, and the file of --head-file is for --head auto",
                );
            }
            let certified = artefact.certified(exact(model, model.vocab(), level)?);
            let certified = certified.map_err(|error| of_file(path, error))?;
            return Ok(Some(ModelHead::Auto(Auto::Certified(certified))));
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
    /// The error in the model's weights.
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
    exact_of(model, vocab, level, Weights::from)
}

/// Makes such a head of what `convert` makes of the weights.
fn exact_of(
    model: &Llama,
    vocab: usize,
    level: Level,
    convert: impl FnOnce(Vec<f32>) -> Weights<'static>,
) -> Result<Exact<'static>> {
    let (own, width) = (model.vocab(), model.config().hidden);
    let mut matrix = model.head_matrix()?;
    matrix.resize(vocab * width, 0.0);
    let bias = (own < vocab || model.head_bias().is_some()).then(|| {
        let mut bias = model.head_bias().map_or_else(|| vec![0.0; own], <[f32]>::to_vec);
        bias.resize(vocab, f32::NEG_INFINITY);
        bias.into()
    });
    let options = HeadOptions { bias, level: Some(level), ..HeadOptions::default() };
    Ok(Exact::new(convert(matrix), vocab, width, options)?)
}

impl ModelHead {
    /// Makes a head of a model's weights with as many ids as `vocab` says: ids that the model lacks have the
    /// logit -inf, and those beyond are left out.
    ///
    /// # Errors
    /// - What the model's weights, or the level, are refused for.
    /// - [`Error::Usage`] for a fast head, which no host has, and for a clustered one, whose clusters stand
    ///   in a file.
    pub fn new(kind: HeadKind, model: &Llama, vocab: usize, level: Level) -> Result<Self> {
        let exact = exact(model, vocab, level)?;
        Ok(match kind {
            HeadKind::Auto => ModelHead::Auto(Auto::new(exact)),
            HeadKind::Fast => return Err(Error::Usage(NEEDS_TENSOR_CORES.to_owned())),
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
            ModelHead::Auto(auto) => auto.into(),
            ModelHead::Clustered(clustered) => (&**clustered).into(),
        }
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> HeadKind {
        match self {
            ModelHead::Auto(_) => HeadKind::Auto,
            ModelHead::Clustered(_) => HeadKind::Clustered,
        }
    }

    /// Returns its weights.
    pub(crate) fn weights(&self) -> &Weights<'static> {
        match self {
            ModelHead::Auto(auto) => auto.exact().weights(),
            ModelHead::Clustered(clustered) => clustered.weights(),
        }
    }

    /// Returns the bytes of all centroids; 0 if there are none.
    pub(crate) fn centroid_bytes(&self) -> usize {
        match self {
            ModelHead::Clustered(clustered) => clustered.centroid_bytes(),
            _ => 0,
        }
    }

    /// Returns how many bytes the head has read for each of `tokens` tokens. `counts`: the head's work for
    /// the rows of this model, without its work for the rows of a draft model.
    #[must_use]
    pub fn figures(&self, counts: HeadCounts, tokens: usize) -> HeadFigures {
        let screen_bytes = match self {
            ModelHead::Auto(Auto::Certified(certified)) => certified.screen_bytes(),
            _ => 0,
        };
        let head = self.head();
        let row_bytes = head.width() * self.weights().element_bytes();
        let bytes = counts.weight_reads as f64 * (row_bytes * head.vocab()) as f64
            + counts.screen_reads as f64 * screen_bytes as f64
            + counts.centroid_reads as f64 * self.centroid_bytes() as f64
            + (counts.certified_logits + counts.clustered_logits) as f64 * row_bytes as f64;
        HeadFigures {
            bytes_a_token: Some(bytes / tokens.max(1) as f64),
            ..HeadFigures::of(self.kind(), &head, counts)
        }
    }
}
