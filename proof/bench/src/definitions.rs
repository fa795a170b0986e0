//! The definitions that a run measures, in the order of its tables.

use gumball_bench_protocol::{Definition, Dtype, Residence, RowKind, Task};

/// The vocabulary of the recorded real rows.
pub const REAL_VOCAB: usize = 49152;

/// Every definition of a full run.
///
/// Model-like rows in cache at three vocabularies, then streamed; flat and equal rows, and other families
/// that filters may be slow on; and rows of a real model.
pub fn full() -> Vec<Definition> {
    use Dtype::{Bf16, F32};
    let mut groups = Vec::new();
    for dtype in [F32, Bf16] {
        for vocab in [32000, 128256, 151936] {
            groups.push((vocab, dtype, RowKind::Model, Residence::Cache));
        }
        for vocab in [128256, 151936] {
            groups.push((vocab, dtype, RowKind::Model, Residence::Dram));
        }
        for rows in RowKind::ALL.into_iter().filter(|rows| *rows != RowKind::Model) {
            let vocab = if rows == RowKind::Real { REAL_VOCAB } else { 128256 };
            groups.push((vocab, dtype, rows, Residence::Cache));
        }
    }
    of_groups(&groups)
}

/// A few definitions that show in a minute whether everything runs.
pub fn quick() -> Vec<Definition> {
    of_groups(&[
        (128256, Dtype::F32, RowKind::Model, Residence::Cache),
        (128256, Dtype::Bf16, RowKind::Model, Residence::Cache),
        (128256, Dtype::F32, RowKind::Model, Residence::Dram),
        (128256, Dtype::F32, RowKind::Flat, Residence::Cache),
    ])
}

fn of_groups(groups: &[(usize, Dtype, RowKind, Residence)]) -> Vec<Definition> {
    groups
        .iter()
        .flat_map(|&(vocab, dtype, rows, residence)| {
            Task::ALL.map(|task| Definition { vocab, dtype, rows, residence, task })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_distinct_and_quick_is_a_part_of_full() {
        let names: BTreeSet<String> = full().iter().map(Definition::to_string).collect();
        assert_eq!(names.len(), full().len());
        assert!(quick().iter().all(|definition| names.contains(&definition.to_string())));
    }
}
