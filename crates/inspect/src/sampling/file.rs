//! Parameters from a JSON file: the names of `SamplingParams`, and none that is misspelt.

use std::path::Path;

use gumball_spec::SamplingParams;
use serde_json::error::Category;

use crate::{Error, Result, reading};

/// Reads the parameters of a file.
pub(super) fn read(path: &Path) -> Result<SamplingParams> {
    let text = reading::text(path)?;
    parse(&text).map_err(|reason| Error::file(path, reason))
}

/// Reads parameters from JSON.
///
/// # Errors
/// A sentence: no JSON, a name that is not known or stands twice, or a value of another kind.
pub fn parse(text: &str) -> std::result::Result<SamplingParams, String> {
    serde_json::from_str(text).map_err(|error| match error.classify() {
        _ if is_infinity(text, &error) => {
            format!("JSON has no infinities ({error}); write \"-inf\" or \"inf\" as a text, as in {{\"logit_bias\": {{\"5\": \"-inf\"}}}}")
        }
        Category::Data => error.to_string(),
        _ => format!("no valid JSON ({error}); write {{\"top_p\": 0.9}}"),
    })
}

/// Returns whether an infinity stands where JSON could not be read on, as Python and JavaScript write it.
fn is_infinity(text: &str, error: &serde_json::Error) -> bool {
    let line = text.lines().nth(error.line().saturating_sub(1)).unwrap_or_default();
    let (from, to) = (error.column().saturating_sub(2), error.column() + 4);
    line.get(from..to.min(line.len())).is_some_and(|place| place.contains("Inf"))
}
