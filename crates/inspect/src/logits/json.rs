//! Logits from a JSON file: an array of numbers, or an array of such rows, as float32.
//!
//! JSON has no infinities: `null` is -inf, as it is where a logprob is written.

use crate::output::without_middle;

/// The logits of a row, as they are written.
type Written = Vec<Option<f64>>;

/// Reads the logits and the length of a row.
///
/// # Errors
/// A sentence that names the mistake, its place and the remedy.
pub(super) fn read(file: &[u8]) -> Result<(Vec<f32>, usize), String> {
    let rows: Vec<Written> = match is_of_rows(file) {
        true => serde_json::from_slice(file),
        false => serde_json::from_slice(file).map(|row| vec![row]),
    }
    .map_err(|error| unread(&error))?;
    let vocab = rows.first().map_or(0, Vec::len);
    if let Some((row, found)) = rows.iter().enumerate().find(|(_, found)| found.len() != vocab) {
        return Err(format!("row {row} has {} logits, but row 0 has {vocab}", found.len()));
    }
    rows.iter().flatten().map(|logit| single(*logit)).collect::<Result<_, _>>().map(|logits| (logits, vocab))
}

/// Returns whether the first element of an array is an array.
fn is_of_rows(file: &[u8]) -> bool {
    let mut brackets = file.iter().filter(|byte| !byte.is_ascii_whitespace());
    [brackets.next(), brackets.next()] == [Some(&b'['); 2]
}

/// Says what stands where the reader did not go on.
fn unread(error: &serde_json::Error) -> String {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    let what = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    format!(
        "no JSON array of numbers, nor of rows of numbers: line {line}, column {column}: {}; write [0.5, 2, null], where null is -inf",
        without_middle(&what.replace("expected f64", "expected a number"), 120)
    )
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
            (
                b"[1,\n 2, NaN]",
                "no JSON array of numbers, nor of rows of numbers: line 2, column 5: expected value; write",
            ),
            (
                b"[[1, 2],\n[3, \"4\"]]",
                "no JSON array of numbers, nor of rows of numbers: line 2, column 7: invalid type: string \"4\", expected a number; write",
            ),
        ] {
            let error = read(file).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
    }
}
