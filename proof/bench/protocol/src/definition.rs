//! The definition of a measurement: one task on one kind of row, in one place of memory.
//!
//! A definition names just the things that change a time; its name is its identity
//! in records and on the command line.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The task of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// The most likely token.
    Greedy,
    /// A draw at temperature 0.8 from the whole row.
    Plain,
    /// A draw at temperature 0.8 from what min-p 0.05 keeps.
    MinP,
    /// A draw at temperature 0.8 from what top-k 50, then top-p 0.9 keep.
    TopKTopP,
    /// A draw at temperature 0.8 from what top-p 0.9 keeps of the whole row.
    TopP,
    /// Penalties over 2000 tokens, bias, mask, top-k, top-p, min-p, a draw, and logprobs.
    Everything,
}

impl Task {
    /// Every task, in the order of tables.
    pub const ALL: [Task; 6] =
        [Task::Greedy, Task::Plain, Task::MinP, Task::TopKTopP, Task::TopP, Task::Everything];
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Task::Greedy => "greedy",
            Task::Plain => "plain",
            Task::MinP => "min-p",
            Task::TopKTopP => "top-k-top-p",
            Task::TopP => "top-p",
            Task::Everything => "everything",
        })
    }
}

/// The type of a logit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dtype {
    /// IEEE single precision, four bytes.
    F32,
    /// bfloat16, two bytes.
    Bf16,
}

impl Dtype {
    /// The bytes of one logit.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        })
    }
}

/// How the logits of a row are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowKind {
    /// A bell of deviation 2, then 20 tokens raised by 6 to 14.
    Model,
    /// A bell of deviation 0.001: every token about as likely as any other.
    Flat,
    /// One value for every token.
    Equal,
    /// A bell of deviation 2, without peaks.
    Bell,
    /// Minus the logarithm of the rank.
    #[serde(rename = "zipf-1")]
    Zipf1,
    /// One and a half times that.
    #[serde(rename = "zipf-1.5")]
    Zipf15,
    /// A bell of deviation 1 with 300 tokens near 8 and 3000 that all are 5.
    Heaps,
    /// [`RowKind::Bell`], rounded to eighths.
    Ties,
    /// Recorded from a real model.
    Real,
}

impl RowKind {
    /// Every kind.
    pub const ALL: [RowKind; 9] = [
        RowKind::Model,
        RowKind::Flat,
        RowKind::Equal,
        RowKind::Bell,
        RowKind::Zipf1,
        RowKind::Zipf15,
        RowKind::Heaps,
        RowKind::Ties,
        RowKind::Real,
    ];
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowKind::Model => "model",
            RowKind::Flat => "flat",
            RowKind::Equal => "equal",
            RowKind::Bell => "bell",
            RowKind::Zipf1 => "zipf-1",
            RowKind::Zipf15 => "zipf-1.5",
            RowKind::Heaps => "heaps",
            RowKind::Ties => "ties",
            RowKind::Real => "real",
        })
    }
}

/// Where the row lies when the engine begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residence {
    /// One row again and again: as near to the processor as its size allows.
    Cache,
    /// Another row each time, out of more rows than the last-level cache holds.
    Dram,
}

impl fmt::Display for Residence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Residence::Cache => "cache",
            Residence::Dram => "dram",
        })
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Definition {
    /// The tokens of a row.
    pub vocab: usize,
    /// The type of a logit.
    pub dtype: Dtype,
    /// How the logits are made.
    pub rows: RowKind,
    /// Where the row lies.
    pub residence: Residence,
    /// The row's task.
    pub task: Task,
}

impl Definition {
    /// The bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.vocab * self.dtype.bytes()
    }
}

impl fmt::Display for Definition {
    /// Writes the definition's name, for example `128256/f32/model/cache/min-p`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}/{}", self.vocab, self.dtype, self.rows, self.residence, self.task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_everything_and_matches_the_json_spelling() {
        let definition = Definition {
            vocab: 128256,
            dtype: Dtype::Bf16,
            rows: RowKind::Model,
            residence: Residence::Dram,
            task: Task::TopKTopP,
        };
        assert_eq!(definition.to_string(), "128256/bf16/model/dram/top-k-top-p");
        assert_eq!(definition.row_bytes(), 256512);
        for task in Task::ALL {
            assert_eq!(serde_json::to_string(&task).unwrap(), format!("\"{task}\""));
        }
        for (value, name) in [
            (serde_json::to_value(Dtype::F32), Dtype::F32.to_string()),
            (serde_json::to_value(Dtype::Bf16), Dtype::Bf16.to_string()),
        ] {
            assert_eq!(value.unwrap(), name);
        }
        for kind in RowKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.to_string());
        }
        for residence in [Residence::Cache, Residence::Dram] {
            assert_eq!(serde_json::to_value(residence).unwrap(), residence.to_string());
        }
    }
}
