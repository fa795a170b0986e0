//! A backend beside the oracle: the same case, every field, bit for bit.

use gumball_spec::Error;

use crate::backend::{Backend, Oracle};
use crate::case::Case;
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
