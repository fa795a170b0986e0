//! `gumball head check`: how often a head draws the exact head's token, over the hidden states of a text.
//!
//! Every position of the text gives a hidden state, and each setting draws a token from it twice: by the head
//! of the artefact and by the exact head, with the same random words. A clustered head is also asked how much
//! of the exact head's probability its probed sets hold, and how many of its first 50 tokens. With `--device`
//! the artefact's head draws on the device, and must draw what it draws on the CPU; the exact head stays on
//! the CPU.

use std::io::Write;
use std::path::PathBuf;

use gumball_engine::head::artefact::Kind;
use gumball_engine::head::{Clustered, ClusteredOptions, Exact, HostMatrix};
use gumball_engine::unstable::head::{Probes, Spread, Widened};
use gumball_engine::{DeviceHead, Head, SamplingParams};
use serde::Serialize;

use crate::engine::DeviceArgs;
use crate::head::{HeadArgs, of_file, open};
use crate::model::Model;
use crate::positions::{HeadThere, TOGETHER};
use crate::text::Table;
use crate::{Error, Result, reading};

/// How many of the exact head's first tokens are looked for in the probed set.
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
    /// The device where the artefact's head draws.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The figures of a number of probes.
#[derive(Debug, Serialize)]
struct Report {
    head: &'static str,
    /// The name of the device where it draws; absent on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    positions: usize,
    rows: Vec<Agreement>,
}

/// How a head agrees with the exact one; shares of positions, from 0 to 1.
#[derive(Debug, Serialize)]
struct Agreement {
    /// Clusters that are probed; absent for a screen.
    probes: Option<usize>,
    /// The weights and centroids that a row reads, of clusters of mean size, as a share of all weights'
    /// bytes; absent for a screen.
    bytes: Option<f64>,
    /// Positions at which the greedy token is the exact head's.
    greedy: f64,
    /// The share of tokens drawn at temperature 1 that are equal.
    temperature_1: f64,
    /// The share with top-k 50 and top-p 0.9 at temperature 0.8.
    top_k_top_p: f64,
    /// How many draws on the device, of all three settings, equal the draws of the same head on the host;
    /// absent if the head draws on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_on_host: Option<f64>,
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
/// - [`Error::Verdict`] if a device draws another token than the host does by the same head.
pub fn run(args: &CheckArgs, out: &mut dyn Write) -> Result<()> {
    let device = args.device.open()?;
    let artefact = open(&args.file)?;
    let is_clustered = matches!(artefact.info().kind, Kind::Clustered(_));
    if !is_clustered && !args.probes.is_empty() {
        return Err(Error::Usage(
            "--probes is for a clustered head, and this artefact has a screen".to_owned(),
        ));
    }
    let path = match &args.model {
        Some(path) => path.clone(),
        None => Model::default_path()?,
    };
    let mut model = Model::load(&path)?;
    let texts = args.text.iter().map(|path| reading::text(path)).collect::<Result<Vec<_>>>()?;
    let hidden = model.hidden_states(&texts, args.positions)?;
    let head = HeadArgs::exact(&model.llama)?;
    let width = head.width();
    let positions = hidden.len() / width;
    if positions == 0 {
        return Err(Error::Usage("the texts have no tokens; name one that has by --text".to_owned()));
    }
    let drawn = |head: HeadThere<'_>| -> Result<Vec<Vec<i32>>> {
        settings().iter().map(|params| head.tokens(&hidden, params)).collect()
    };
    let exact_tokens = drawn(HeadThere::Host((&head).into()))?;
    let agreement = |head: Head<'_>| -> Result<Agreement> {
        let (seen, as_on_host) = match &device {
            None => (drawn(HeadThere::Host(head))?, None),
            Some(device) => {
                let there = DeviceHead::new(device, head, TOGETHER)?;
                let seen = drawn(HeadThere::Device(device, &there))?;
                let same = share(&seen.concat(), &drawn(HeadThere::Host(head))?.concat());
                (seen, Some(same))
            }
        };
        let [greedy, temperature_1, top_k_top_p] =
            [0, 1, 2].map(|setting| share(&seen[setting], &exact_tokens[setting]));
        Ok(Agreement {
            probes: None,
            bytes: None,
            greedy,
            temperature_1,
            top_k_top_p,
            as_on_host,
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
            let ids = head.vocab() as f64 / clustered.clusters().count() as f64;
            let logits = probes as f64 * ids + clustered.special_ids().len() as f64;
            let bytes = logits * row_bytes as f64 + clustered.centroid_bytes() as f64;
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
    let device = device.map(|device| device.name());
    let report = Report { head: artefact.info().kind.name(), device, positions, rows };
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        show(&report, out)?;
    }
    let worst = report.rows.iter().filter_map(|row| row.as_on_host).fold(1.0, f64::min);
    if worst < 1.0 {
        let reason = format!(
            "the device draws {worst:.5} of the tokens that the CPU draws by the same head, and should draw all"
        );
        return Err(Error::Verdict(reason));
    }
    Ok(())
}

/// Returns the share of tokens that equal the token at their place in another list.
fn share(tokens: &[i32], others: &[i32]) -> f64 {
    let same = tokens.iter().zip(others).filter(|(a, b)| a == b).count();
    same as f64 / others.len() as f64
}

/// Writes a report as a table.
fn show(report: &Report, out: &mut dyn Write) -> Result<()> {
    let share = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.3}"));
    writeln!(
        out,
        "{} head{}, {} positions: shares of those with the token of all logits\n",
        report.head,
        report.device.as_ref().map_or(String::new(), |device| format!(" on {device}")),
        report.positions
    )?;
    let mut columns =
        vec![">probes", ">bytes", ">greedy", ">T 1", ">top-k 50, top-p 0.9", ">mass", ">first 50"];
    columns.extend(report.device.as_ref().map(|_| ">as on the CPU"));
    let mut table = Table::new(&columns);
    for row in &report.rows {
        let mut cells = vec![
            row.probes.map_or("-".to_owned(), |probes| probes.to_string()),
            share(row.bytes),
            share(Some(row.greedy)),
            share(Some(row.temperature_1)),
            share(Some(row.top_k_top_p)),
            share(row.mass),
            share(row.first_50),
        ];
        cells.extend(row.as_on_host.map(|same| share(Some(same))));
        table.row(cells);
    }
    Ok(table.write(out)?)
}

/// Returns how much of the exact head's probability the probed sets hold, and of its first tokens, both as
/// means over all positions.
fn held(clustered: &Clustered<'_>, exact: &Exact<'_>, hidden: &[f32]) -> Result<(f64, f64)> {
    let (vocab, width) = (exact.vocab(), exact.width());
    let (mut mass, mut first, mut positions) = (0.0, 0.0, 0);
    let mut probes = Probes::default();
    for states in hidden.chunks(TOGETHER * width) {
        let rows = states.len() / width;
        let states = Widened::of(HostMatrix::new(states, rows, width)?);
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
