//! Parameters from a JSON file: the names of `SamplingParams`, and none that is misspelt.

use std::path::Path;

use gumball_spec::SamplingParams;
use serde_json::Value;

use crate::{Error, Result};

/// Reads the parameters of a file.
pub(super) fn read(path: &Path) -> Result<SamplingParams> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::io(path, &error))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Error::file(path, format!("no valid JSON ({error}); write {{\"top_p\": 0.9}}")))?;
    let known = serde_json::to_value(SamplingParams::default()).expect("plain data");
    unknown_name(&value, &known, "").map_or(Ok(()), |reason| Err(Error::file(path, reason)))?;
    serde_json::from_value(value).map_err(|error| Error::file(path, error.to_string()))
}

/// Returns what is wrong with the first name that no parameter has.
fn unknown_name(value: &Value, known: &Value, prefix: &str) -> Option<String> {
    let (Value::Object(fields), Value::Object(names)) = (value, known) else { return None };
    fields.iter().find_map(|(name, value)| match names.get(name) {
        Some(inner) => unknown_name(value, inner, &format!("{prefix}{name}.")),
        None => {
            let names: Vec<_> = names.keys().map(String::as_str).collect();
            Some(format!("parameter \"{prefix}{name}\" is not known; known are: {}", names.join(", ")))
        }
    })
}
