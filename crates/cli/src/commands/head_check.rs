//! `gumball head check`: how often a head draws the exact head's token, over the hidden states of a text.
//!
//! Every position of the text gives a hidden state, and each setting draws a token from it twice: by the head of the artefact and by the exact head, with the
//! same random words. A clustered head is also asked how much of the exact head's probability its probed sets hold, and how many of its first 50 tokens.

use std::io::Write;
use std::path::PathBuf;

use gumball_engine::head::artefact::Kind;
use gumball_engine::head::{Clustered, ClusteredOptions, Exact, HiddenStates, Probes, Spread, Widened};
use gumball_engine::{BatchOptions, Head, Outputs, Pool, PoolConfig, SamplingParams, Slot};
use serde::Serialize;

use crate::head::{HeadArgs, of_file, open};
use crate::model::Model;
use crate::text::Table;
use crate::{Error, Result};

/// Tokens of a piece of text that the model sees together.
const PIECE: usize = 1024;

/// Hidden states that are compared together.
const TOGETHER: usize = 16;

/// Of so many of the exact head's first tokens it is asked whether they were probed.
const FIRST: usize = 50;

/// What to compare.
#[derive(clap::Args, Clone, Debug)]
pub struct CheckArgs {
    /// The artefact
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The model it was built from, in GGUF format; SmolLM2-135M-Instruct if absent
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// A text whose hidden states are taken; may be given several times
    #[arg(long, value_name = "FILE", required = true)]
    pub text: Vec<PathBuf>,
    /// How many positions are compared at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub positions: usize,
    /// How many clusters are probed; several numbers give a line each. Without it, an eighth of them
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub probes: Vec<usize>,
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What comes out.
#[derive(Debug, Serialize)]
struct Report {
    head: &'static str,
    positions: usize,
    rows: Vec<Agreement>,
}

/// How a head agrees with the exact one; shares of positions, from 0 to 1.
#[derive(Debug, Serialize)]
struct Agreement {
    /// Clusters that are probed; absent for a certified head.
    probes: Option<usize>,
    /// The weights and centroids that a row reads, as a share of all weights' bytes; absent for a certified head.
    bytes: Option<f64>,
    /// Positions at which the greedy token is the exact head's.
    greedy: f64,
    /// The same of the token drawn at temperature 1.
    temperature_1: f64,
    /// The same with top-k 50 and top-p 0.9 at temperature 0.8.
    top_k_top_p: f64,
    /// The exact head's probability of the probed sets, on average.
    mass: Option<f64>,
    /// How many of the exact head's first 50 tokens are probed, as a share.
    first_50: Option<f64>,
}

fn settings() -> [SamplingParams; 3] {
    let at = |temperature| SamplingParams { temperature, seed: Some(7), ..SamplingParams::default() };
    [at(0.0), at(1.0), SamplingParams { top_k: 50, top_p: 0.9, ..at(0.8) }]
}

/// Compares a head with the exact one.
///
/// # Errors
/// - What is wrong with a file, named.
/// - [`Error::Usage`] for probes of a head that is not clustered, or texts without tokens.
pub fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<()> {
    let artefact = open(&args.file)?;
    let is_clustered = matches!(artefact.info().kind, Kind::Clustered(_));
    if !is_clustered && !args.probes.is_empty() {
        return Err(Error::Usage(
            "--probes is for a clustered head, and this artefact is of a certified one".to_owned(),
        ));
    }
    let path = match &args.model {
        Some(path) => path.clone(),
        None => Model::default_path()?,
    };
    let mut model = Model::load(&path)?;
    let hidden = hidden_states(&mut model, args)?;
    let head = HeadArgs::exact(&model.llama)?;
    let width = head.width();
    let positions = hidden.len() / width;
    if positions == 0 {
        return Err(Error::Usage("the texts have no tokens; name one that has by --text".to_owned()));
    }
    let exact_tokens = settings().map(|params| tokens((&head).into(), &hidden, params));
    let exact_tokens = exact_tokens.into_iter().collect::<Result<Vec<_>>>()?;
    let agreement = |head: Head<'_>| -> Result<Agreement> {
        let share = |setting: usize| -> Result<f64> {
            let seen = tokens(head, &hidden, settings()[setting].clone())?;
            let same = seen.iter().zip(&exact_tokens[setting]).filter(|(a, b)| a == b).count();
            Ok(same as f64 / positions as f64)
        };
        let (greedy, temperature_1, top_k_top_p) = (share(0)?, share(1)?, share(2)?);
        Ok(Agreement {
            probes: None,
            bytes: None,
            greedy,
            temperature_1,
            top_k_top_p,
            mass: None,
            first_50: None,
        })
    };
    let mut rows = Vec::new();
    if is_clustered {
        let clusters = artefact.clusters(&head).map_err(|error| of_file(&args.file, error))?;
        let options = ClusteredOptions { special_ids: model.eos().to_vec(), ..ClusteredOptions::default() };
        let mut clustered = Clustered::new(&head, clusters, &options)?;
        let all = if args.probes.is_empty() { vec![clustered.probes()] } else { args.probes.clone() };
        for probes in all {
            clustered = clustered.with_probes(probes)?;
            let (mass, first_50) = held(&clustered, &head, &hidden)?;
            let row_bytes = width * head.weights().element_bytes();
            let logits = probes * clustered.clusters().capacity() + clustered.special_ids().len();
            let bytes = (logits * row_bytes + clustered.centroid_bytes()) as f64;
            rows.push(Agreement {
                probes: Some(probes),
                bytes: Some(bytes / (row_bytes * head.vocab()) as f64),
                mass: Some(mass),
                first_50: Some(first_50),
                ..agreement((&clustered).into())?
            });
        }
    } else {
        let certified = artefact.certified(head.clone()).map_err(|error| of_file(&args.file, error))?;
        rows.push(agreement((&certified).into())?);
    }
    let report = Report { head: artefact.info().kind.name(), positions, rows };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        return Ok(writeln!(out)?);
    }
    let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.3}"));
    writeln!(
        out,
        "{} head, {positions} positions: shares of those with the exact head's token\n",
        report.head
    )?;
    let mut table =
        Table::new(&[">probes", ">bytes", ">greedy", ">T 1", ">top-k 50, top-p 0.9", ">mass", ">first 50"]);
    for row in &report.rows {
        table.row(vec![
            row.probes.map_or("-".to_owned(), |probes| probes.to_string()),
            share(row.bytes),
            share(Some(row.greedy)),
            share(Some(row.temperature_1)),
            share(Some(row.top_k_top_p)),
            share(row.mass),
            share(row.first_50),
        ]);
    }
    Ok(table.write(out)?)
}

/// Returns the hidden states of the texts, as many as are asked for at most.
fn hidden_states(model: &mut Model, args: &CheckArgs) -> Result<Vec<f32>> {
    let (mut hidden, mut left) = (Vec::new(), args.positions);
    for path in &args.text {
        let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, &error))?;
        let tokens = model.tokenizer.encode_prompt(&text)?;
        for piece in tokens.chunks(PIECE.min(model.context())) {
            let piece = &piece[..piece.len().min(left)];
            if piece.is_empty() {
                return Ok(hidden);
            }
            model.llama.reset();
            hidden.extend_from_slice(model.llama.hidden(piece)?.values());
            left -= piece.len();
        }
    }
    Ok(hidden)
}

/// Draws a token at each position.
fn tokens(head: Head<'_>, hidden: &[f32], params: SamplingParams) -> Result<Vec<i32>> {
    let width = head.width();
    let mut pool = Pool::new(PoolConfig { slots: TOGETHER, ..PoolConfig::new(head.vocab()) })?;
    let slots = (0..TOGETHER).map(|_| pool.admit(params.clone(), &[]));
    let slots: Vec<Slot> = slots.collect::<Result<_, _>>()?;
    let (mut out, mut tokens) = (Outputs::new(), Vec::new());
    for states in hidden.chunks(TOGETHER * width) {
        let rows = states.len() / width;
        let states = HiddenStates::new(states, rows, width)?;
        pool.step_hidden(head, states, &slots[..rows], &BatchOptions::default(), &mut out)?;
        tokens.extend_from_slice(out.tokens());
    }
    Ok(tokens)
}

/// Returns how much of the exact head's probability the probed sets hold, and of its first tokens, both as means over all positions.
fn held(clustered: &Clustered<'_>, exact: &Exact<'_>, hidden: &[f32]) -> Result<(f64, f64)> {
    let (vocab, width) = (exact.vocab(), exact.width());
    let (mut mass, mut first, mut positions) = (0.0, 0.0, 0);
    let mut probes = Probes::default();
    for states in hidden.chunks(TOGETHER * width) {
        let rows = states.len() / width;
        let states = Widened::of(HiddenStates::new(states, rows, width)?);
        let (mut whole, mut probed) = (vec![0.0; rows * vocab], vec![0.0; rows * vocab]);
        exact.logits(&states, Spread::Rayon, &mut whole)?;
        clustered.rows(&states, Spread::Rayon, &mut probes, &mut probed)?;
        for (whole, probed) in whole.chunks(vocab).zip(probed.chunks(vocab)) {
            let best = whole.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weight = |z: f32| f64::from(z - best).exp();
            let all: f64 = whole.iter().map(|z| weight(*z)).sum();
            mass += probed.iter().filter(|z| **z > f32::NEG_INFINITY).map(|z| weight(*z)).sum::<f64>() / all;
            let mut ids: Vec<usize> = (0..vocab).collect();
            let count = FIRST.min(vocab);
            ids.select_nth_unstable_by(count - 1, |a, b| whole[*b].total_cmp(&whole[*a]));
            let there = ids[..count].iter().filter(|id| probed[**id] > f32::NEG_INFINITY).count();
            first += there as f64 / count as f64;
        }
        positions += rows;
    }
    Ok((mass / f64::from(positions as u32), first / f64::from(positions as u32)))
}
