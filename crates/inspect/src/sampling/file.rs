//! Parameters from a JSON file: the names of `SamplingParams`, and none that is misspelt.

use std::path::Path;

use gumball_spec::SamplingParams;
use serde_json::Value;

use crate::output::without_middle;
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
    let value: Value = serde_json::from_str(text)
        .map_err(|error| format!("no valid JSON ({error}); write {{\"top_p\": 0.9}}"))?;
    let known = serde_json::to_value(SamplingParams::default()).expect("plain data");
    unknown_name(&value, &known, "").map_or(Ok(()), Err)?;
    // From the text again: of a key that stands twice the value holds one.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// Returns what is wrong with the first name that no parameter has.
fn unknown_name(value: &Value, known: &Value, prefix: &str) -> Option<String> {
    let (Value::Object(fields), Value::Object(names)) = (value, known) else { return None };
    fields.iter().find_map(|(name, value)| match names.get(name) {
        Some(inner) => unknown_name(value, inner, &format!("{prefix}{name}.")),
        None => {
            let names: Vec<_> = names.keys().map(String::as_str).collect();
            let name = without_middle(name, 80);
            Some(format!("parameter \"{prefix}{name}\" is not known; known are: {}", names.join(", ")))
        }
    })
}
