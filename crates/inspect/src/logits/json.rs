//! Logits from a JSON file: an array of numbers, or an array of such rows, as float32.
//!
//! JSON has no infinities: `null` is -inf, as it is where a logprob is written.

use serde::Deserialize;

/// A row, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Rows {
    One(Vec<Option<f64>>),
    Several(Vec<Vec<Option<f64>>>),
}

/// Reads the logits and the length of a row.
///
/// # Errors
/// A sentence on what is wrong and what to do.
pub(super) fn read(file: &[u8]) -> Result<(Vec<f32>, usize), String> {
    let rows: Rows = serde_json::from_slice(file).map_err(|_| {
        "no JSON array of numbers, nor of rows of numbers; write [0.5, 2, null], where null is -inf"
            .to_owned()
    })?;
    let rows = match rows {
        Rows::One(row) => vec![row],
        Rows::Several(rows) => rows,
    };
    let vocab = rows.first().map_or(0, Vec::len);
    if let Some((row, found)) = rows.iter().enumerate().find(|(_, found)| found.len() != vocab) {
        return Err(format!("row {row} has {} logits, but row 0 has {vocab}", found.len()));
    }
    rows.iter().flatten().map(|logit| single(*logit)).collect::<Result<_, _>>().map(|logits| (logits, vocab))
}

/// Rounds a logit to float32.
fn single(logit: Option<f64>) -> Result<f32, String> {
    let Some(logit) = logit else { return Ok(f32::NEG_INFINITY) };
    match logit as f32 {
        rounded if rounded.is_finite() => Ok(rounded),
        _ => Err(format!("{logit:e} is no float32; write null for -inf")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_null_is_minus_infinity() {
        assert_eq!(read(b"[1, -2.5, null]"), Ok((vec![1.0, -2.5, f32::NEG_INFINITY], 3)));
        assert_eq!(read(b"[[1, 2], [3, 4]]"), Ok((vec![1.0, 2.0, 3.0, 4.0], 2)));
        // 0.1 is rounded once, to the nearest float32.
        assert_eq!(read(b"[0.1]"), Ok((vec![0.1], 1)));
    }

    #[test]
    fn what_is_no_row_of_numbers_is_refused() {
        for (file, reason) in [
            (&b"[[1, 2], [3]]"[..], "row 1 has 1 logits, but row 0 has 2"),
            (b"[1e300]", "1e300 is no float32"),
            (b"{}", "no JSON array of numbers"),
            (b"[1, \"2\"]", "no JSON array of numbers"),
            (b"[1,", "no JSON array of numbers"),
        ] {
            let error = read(file).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
