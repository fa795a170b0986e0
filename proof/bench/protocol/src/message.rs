//! The lines between the runner and an engine: JSON, one object a line.
//!
//! ```text
//! engine: {"hello":{"engine":"floor","version":"0.1.0"}}
//! runner: {"prepare":{"definition":{...},"parameters":{...},"rows_file":"...","row_count":12}}
//! engine: {"ready":{"does":"one AVX-512 maximum"}}        or {"skip":{"reason":"..."}}
//! runner: {"sample":{"row":3,"min_ns":20000000}}
//! engine: {"sample":{"ns_per_row":5102.5,"calls":3920,"row":3,"token":812}}
//! ```
//!
//! `prepare` may come again with another definition. The end of the input ends the engine.

use serde::{Deserialize, Serialize};

use crate::{Definition, Parameters};

/// Who an engine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name of its column in tables.
    pub engine: String,
    /// The version of the library that it times.
    pub version: String,
}

/// A request of the runner to an engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Get ready for a definition.
    Prepare {
        /// What will be measured.
        definition: Definition,
        /// Its task, spelled out.
        parameters: Parameters,
        /// The file of its rows: `row_count` x `vocab` logits, little endian, nothing between.
        rows_file: String,
        /// The rows of the file.
        row_count: usize,
    },
    /// Take one sample.
    Sample {
        /// Which row to repeat; a definition that streams goes on from where it was instead.
        row: usize,
        /// How long the sample should last at least.
        min_ns: u64,
    },
}

/// What an engine answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The first line, unasked.
    Hello(Identity),
    /// The definition is understood.
    Ready {
        /// What exactly a call does here, in a few words.
        does: String,
    },
    /// The engine cannot do this definition.
    Skip {
        /// Why.
        reason: String,
    },
    /// One sample.
    Sample {
        /// The time of a call, in nanoseconds: the median of the means of batches of calls.
        ns_per_row: f64,
        /// How many calls were timed.
        calls: u64,
        /// The row of the last call.
        row: usize,
        /// The token of the last call.
        token: i64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Residence, RowKind, Task};

    #[test]
    fn lines_read_as_the_module_shows_them() {
        let hello = r#"{"hello":{"engine":"floor","version":"0.1.0"}}"#;
        let identity = Identity { engine: "floor".into(), version: "0.1.0".into() };
        assert_eq!(serde_json::from_str::<Reply>(hello).unwrap(), Reply::Hello(identity));
        let sample = Request::Sample { row: 3, min_ns: 20_000_000 };
        assert_eq!(serde_json::to_string(&sample).unwrap(), r#"{"sample":{"row":3,"min_ns":20000000}}"#);
    }

    #[test]
    fn a_prepare_survives_the_journey() {
        let definition = Definition {
            vocab: 64,
            dtype: Dtype::F32,
            rows: RowKind::Flat,
            residence: Residence::Cache,
            task: Task::Everything,
        };
        let request = Request::Prepare {
            definition,
            parameters: Parameters::of(Task::Everything, 64),
            rows_file: "rows".into(),
            row_count: 2,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
    }
}
