//! One run: every definition, every engine, in turn.
//!
//! Engines are started once and all stay. For each definition they get ready one after another, then
//! give one sample each, round after round, each round beginning with another engine: slow drifts of
//! the machine meet all of them alike. Samples whose token cannot be right end that engine's part.

use std::io;

use gumball_bench_protocol::{Definition, Parameters, Rows};

use crate::engines::FLOOR;
use crate::plausible;
use crate::process::Running;
use crate::record::{Measurement, Settings, Skipped, round};
use crate::staging::{RowsFile, Staging};
use crate::stats;

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The measurements.
    pub results: Vec<Measurement>,
    /// The definitions that an engine did not take, with its reasons.
    pub skipped: Vec<Skipped>,
}

/// Measures all definitions with all engines; `tell` hears about progress.
///
/// # Errors
/// None of an engine's: only what reading or writing rows gives.
pub fn run(
    definitions: &[Definition],
    mut engines: Vec<Running>,
    staging: &mut Staging,
    settings: &Settings,
    mut tell: impl FnMut(&str),
) -> io::Result<Found> {
    let mut found = Found::default();
    for definition in definitions {
        let rows = staging.rows(definition, settings.samples, settings.stream_bytes)?;
        let round = Round::new(*definition, &rows, settings)?;
        tell(&definition.to_string());
        let mut parts = round.prepare(&mut engines);
        round.sample(&mut engines, &mut parts);
        let mut left = Vec::new();
        for (engine, part) in engines.into_iter().zip(parts) {
            let name = engine.identity.engine.clone();
            match part {
                Part::Measured { does, ns } => {
                    let result = round.measurement(&name, does, &ns);
                    let (median, min) = (result.ns_median, result.ns_min);
                    tell(&format!("    {name:<16} {median:>12.0} ns, {min:.0} at least"));
                    found.results.push(result);
                    left.push(engine);
                }
                Part::Skipped { reason, gone } => {
                    tell(&format!("    {name:<16} skipped: {reason}"));
                    if !gone {
                        left.push(engine);
                    }
                    let definition = definition.to_string();
                    found.skipped.push(Skipped { definition, engine: name, reason });
                }
            }
        }
        engines = left;
    }
    Ok(found)
}

/// An engine's part in a definition.
enum Part {
    Measured { does: String, ns: Vec<f64> },
    Skipped { reason: String, gone: bool },
}

struct Round<'a> {
    definition: Definition,
    parameters: Parameters,
    file: &'a RowsFile,
    rows: Rows,
    settings: &'a Settings,
}

impl<'a> Round<'a> {
    fn new(definition: Definition, file: &'a RowsFile, settings: &'a Settings) -> io::Result<Self> {
        let rows = Rows::read(&file.path, definition.vocab, definition.dtype, file.row_count)?;
        let parameters = Parameters::of(definition.task, definition.vocab);
        Ok(Self { definition, parameters, file, rows, settings })
    }

    fn prepare(&self, engines: &mut [Running]) -> Vec<Part> {
        engines
            .iter_mut()
            .map(|engine| match engine.prepare(&self.definition, &self.parameters, self.file) {
                Ok(Ok(does)) => Part::Measured { does, ns: Vec::new() },
                Ok(Err(reason)) => Part::Skipped { reason, gone: false },
                Err(error) => Part::Skipped { reason: error.to_string(), gone: true },
            })
            .collect()
    }

    fn sample(&self, engines: &mut [Running], parts: &mut [Part]) {
        for number in 0..self.settings.samples {
            for turn in 0..engines.len() {
                let place = (number + turn) % engines.len();
                let Part::Measured { ns, .. } = &mut parts[place] else { continue };
                match self.one(&mut engines[place], number) {
                    Ok(ns_per_row) => ns.push(ns_per_row),
                    Err(skipped) => parts[place] = skipped,
                }
            }
        }
    }

    fn one(&self, engine: &mut Running, number: usize) -> Result<f64, Part> {
        let row = number % self.file.row_count;
        let sample = engine
            .sample(row, self.settings.min_ns)
            .map_err(|error| Part::Skipped { reason: error.to_string(), gone: true })?;
        if engine.identity.engine != FLOOR
            && let Some(reason) =
                plausible::objection(self.rows.row(sample.row), &self.parameters, sample.token)
        {
            return Err(Part::Skipped { reason: format!("wrong: {reason}"), gone: false });
        }
        Ok(sample.ns_per_row)
    }

    fn measurement(&self, engine: &str, does: String, ns: &[f64]) -> Measurement {
        let summary = stats::summary(ns).expect("at least one sample is taken");
        Measurement {
            definition: self.definition,
            engine: engine.into(),
            does,
            samples: ns.len(),
            ns_min: round(summary.min, 10.0),
            ns_median: round(summary.median, 10.0),
            ns_p95: round(summary.p95, 10.0),
            ratio_to_floor: None,
        }
    }
}
