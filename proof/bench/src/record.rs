//! The results of a run as a file that is kept: JSON under `proof/bench/record/`.
//!
//! A record is complete: from it alone, tables can be printed and ratios formed again.

use std::fs;
use std::io;
use std::path::Path;

use gumball_bench_protocol::{Definition, Identity};
use gumball_cpu::files;
use serde::{Deserialize, Serialize};

use crate::engines::FLOOR;
use crate::machine::Machine;

/// The format that this program writes, and the only one that it reads.
pub const FORMAT: u32 = 1;

/// One run on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`] at the time.
    pub format: u32,
    /// When it began, UTC.
    pub date: String,
    /// Where it ran.
    pub machine: Machine,
    /// How samples were taken.
    pub settings: Settings,
    /// Who took part.
    pub engines: Vec<Identity>,
    /// The measurements.
    pub results: Vec<Measurement>,
    /// The definitions that an engine did not take, with its reasons.
    pub skipped: Vec<Skipped>,
}

/// How samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Samples of each engine for each definition.
    pub samples: usize,
    /// How long a sample lasts at least.
    pub min_ns: u64,
    /// How many bytes of rows a stream goes through before it meets the first again.
    pub stream_bytes: usize,
}

/// One engine's time for one definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The definition that was measured.
    pub definition: Definition,
    /// By which engine.
    pub engine: String,
    /// The work of a call there, in words.
    pub does: String,
    /// How many samples the rest is of.
    pub samples: usize,
    /// The smallest time of a call, in nanoseconds.
    pub ns_min: f64,
    /// The median time of a call, in nanoseconds.
    pub ns_median: f64,
    /// The 95th percentile of the time of a call, in nanoseconds.
    pub ns_p95: f64,
    /// The median divided by the floor's, where the floor was measured.
    pub ratio_to_floor: Option<f64>,
}

/// A definition that an engine did not do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The definition's name.
    pub definition: String,
    /// The engine's.
    pub engine: String,
    /// Why.
    pub reason: String,
}

impl Record {
    /// Fills in every ratio to the floor of the same definition.
    pub fn relate_to_floor(&mut self) {
        let floors: Vec<(Definition, f64)> = self
            .results
            .iter()
            .filter(|result| result.engine == FLOOR)
            .map(|result| (result.definition, result.ns_median))
            .collect();
        for result in &mut self.results {
            let floor = floors.iter().find(|(definition, _)| *definition == result.definition);
            result.ratio_to_floor = floor.map(|(_, ns)| round(result.ns_median / ns, 1e4));
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// What reading gives, and [`io::ErrorKind::InvalidData`] for another format or none.
    pub fn read(path: &Path) -> io::Result<Self> {
        Self::parse(&fs::read_to_string(path)?)
    }

    /// Writes a record where [`Record::check_place`] found nothing in the way.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        files::write(path, (serde_json::to_string(self)? + "\n").as_bytes())
    }

    /// Checks that a record can be written to a path, and makes the folders above it.
    ///
    /// # Errors
    /// What writing would give.
    pub fn check_place(path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        files::check_place(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Header {
            format: u32,
        }
        let Header { format } = serde_json::from_str(text)?;
        if format != FORMAT {
            let message = format!("record has format {format}; this program reads {FORMAT}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(serde_json::from_str(text)?)
    }
}

/// Rounds to a multiple of 1 / `parts`.
pub(crate) fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

#[cfg(test)]
pub(crate) mod tests {
    use gumball_bench_protocol::{Dtype, Residence, RowKind, Task};

    use super::*;

    /// A record of two tasks, three engines and easy numbers.
    pub(crate) fn sample() -> Record {
        let of = |task| Definition {
            vocab: 1000,
            dtype: Dtype::F32,
            rows: RowKind::Model,
            residence: Residence::Cache,
            task,
        };
        let result = |task, engine: &str, ns| Measurement {
            definition: of(task),
            engine: engine.into(),
            does: String::new(),
            samples: 12,
            ns_min: ns,
            ns_median: ns,
            ns_p95: ns,
            ratio_to_floor: None,
        };
        let machine = Machine {
            processor: "none".into(),
            simd: vec![],
            processors: 1,
            last_level_cache_bytes: 1,
            system: "none".into(),
            rustc: "none".into(),
            commit: "none".into(),
            load_average: None,
        };
        let mut record = Record {
            format: FORMAT,
            date: "1970-01-01T00:00:00Z".into(),
            machine,
            settings: Settings { samples: 12, min_ns: 1, stream_bytes: 1 },
            engines: vec![],
            results: vec![
                result(Task::Greedy, "floor", 100.0),
                result(Task::Greedy, "rival", 2500.0),
                result(Task::Greedy, "gumball", 110.0),
                result(Task::Plain, "floor", 100.0),
                result(Task::Plain, "gumball", 170.0),
            ],
            skipped: vec![],
        };
        record.relate_to_floor();
        record
    }

    #[test]
    fn ratios_are_to_the_floor_of_the_same_definition() {
        let ratios: Vec<Option<f64>> = sample().results.iter().map(|result| result.ratio_to_floor).collect();
        assert_eq!(ratios, [Some(1.0), Some(25.0), Some(1.1), Some(1.0), Some(1.7)]);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = sample();
        let text = serde_json::to_string_pretty(&record).unwrap();
        assert_eq!(Record::parse(&text).unwrap(), record);
    }

    #[test]
    fn another_format_is_refused_before_anything_else_is_looked_at() {
        let message = Record::parse(r#"{"format": 99}"#).unwrap_err().to_string();
        assert_eq!(message, "record has format 99; this program reads 1");
        assert!(Record::parse("{}").is_err());
    }
}
