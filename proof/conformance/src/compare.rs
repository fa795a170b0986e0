//! A backend beside the oracle: the same case, every field, bit for bit.

use gumball_spec::Error;

use crate::backend::{Backend, Oracle};
use crate::case::Case;
use crate::drafted::{Drafted, Walked};
use crate::observed::{Observed, differences};

/// Returns what a backend saw of a case.
///
/// # Errors
/// A text that names the fields in which it differs from the oracle, and the case.
pub fn against_oracle(backend: &dyn Backend, case: &Case) -> Result<Result<Observed, Error>, String> {
    let (expected, seen) = (Oracle.sample(case), backend.sample(case));
    let text = match (&expected, &seen) {
        (Ok(expected), Ok(seen)) => differences(expected, seen),
        (Err(expected), Err(seen)) if expected == seen => String::new(),
        (expected, seen) => format!("  expected {expected:?}\n  saw {seen:?}\n"),
    };
    if text.is_empty() {
        return Ok(seen);
    }
    Err(format!("{} differs from the oracle in\n{text}of the case\n{case:?}", backend.name()))
}

/// Returns what a backend makes of a request with drafts.
///
/// # Errors
/// A text that says where the walk differs from the oracle's, and the request.
pub fn drafts_against_oracle(
    backend: &dyn Backend,
    drafted: &Drafted,
) -> Result<Result<Walked, Error>, String> {
    let (expected, seen) = (Oracle.walk(drafted), backend.walk(drafted));
    let text = match (&expected, &seen) {
        (Ok(expected), Ok(seen)) => walk_differences(expected, seen),
        (Err(expected), Err(seen)) if expected == seen => String::new(),
        (expected, seen) => format!("  expected {expected:?}\n  saw {seen:?}\n"),
    };
    if text.is_empty() {
        return Ok(seen);
    }
    Err(format!("{} differs from the oracle in\n{text}of the request\n{drafted:?}", backend.name()))
}

fn walk_differences(expected: &Walked, seen: &Walked) -> String {
    let rows = |walked: &Walked| walked.iter().map(|(row, _)| *row).collect::<Vec<usize>>();
    if rows(expected) != rows(seen) {
        return format!("  rows: expected {:?}, saw {:?}\n", rows(expected), rows(seen));
    }
    let of_row = |((row, expected), (_, seen)): (&(usize, Observed), &(usize, Observed))| {
        let text = differences(expected, seen);
        if text.is_empty() { text } else { format!("  row {row}:\n{text}") }
    };
    expected.iter().zip(seen).map(of_row).collect()
}
