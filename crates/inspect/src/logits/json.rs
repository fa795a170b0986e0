//! Logits from a JSON file: an array of numbers, or an array of such rows, as float32.
//!
//! It is read from its begin to the last row that is meant, and only what is meant is kept. JSON has no
//! infinities: `null` is -inf, as it is where a logprob is written.

use std::io::{BufRead, BufReader, Read};

use gumball_spec::MAX_VOCAB;
use serde::de::{DeserializeSeed, Error as _, SeqAccess, Visitor};
use serde::{Deserializer, de};

use super::chosen::{Chosen, MOST_BYTES, check_vocab, too_many};
use super::{Data, Logits, Selection};
use crate::output::without_middle;
use crate::reading::BYTE_ORDER_MARK;

/// Reads the rows that are meant.
///
/// # Errors
/// A sentence that names the mistake, its place and the remedy.
pub(super) fn read(
    source: impl Read,
    vocab: Option<usize>,
    meant: Option<&Selection>,
) -> Result<Chosen, String> {
    let mut source = BufReader::with_capacity(1 << 16, source);
    let mark = BYTE_ORDER_MARK.as_bytes();
    if source.fill_buf().map_err(|error| error.to_string())?.starts_with(mark) {
        source.consume(mark.len());
    }
    let mut rows = Rows { meant, ..Rows::default() };
    let mut json = serde_json::Deserializer::from_reader(source);
    let read = json.deserialize_any(&mut rows).and_then(|()| json.end());
    if let Err(error) = read
        && !rows.is_enough
    {
        return Err(unread(&error));
    }
    let Rows { data, row, vocab: found, .. } = rows;
    check_vocab(found, vocab)?;
    let (numbers, rows) = Selection::chosen(meant, row)?;
    Ok(Chosen { logits: Logits::new(Data::F32(data), found)?, numbers, rows })
}

/// The numbers that were read so far.
#[derive(Default)]
struct Rows<'a> {
    meant: Option<&'a Selection>,
    /// The logits of rows that are meant.
    data: Vec<f32>,
    /// How many rows there were.
    row: usize,
    /// The length of the first one.
    vocab: usize,
    /// All that is meant was read, and the rest is not looked at.
    is_enough: bool,
}

impl<'de> Visitor<'de> for &mut Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut flat = Row { rows: self, length: 0, is_inside: false };
        while elements.next_element_seed(&mut flat)?.is_some() {
            if flat.rows.is_enough {
                return Err(A::Error::custom("enough"));
            }
        }
        if flat.length > 0 { flat.end() } else { Ok(()) }
    }
}

/// The row that is being read: inside a list of rows, or the only one.
struct Row<'a, 'b> {
    rows: &'a mut Rows<'b>,
    length: usize,
    is_inside: bool,
}

impl Row<'_, '_> {
    fn push<E: de::Error>(&mut self, logit: f32) -> Result<(), E> {
        if !self.is_inside && self.rows.row > 0 {
            return Err(E::custom("a number stands among rows"));
        }
        self.length += 1;
        if self.length > MAX_VOCAB {
            return Err(E::custom("a row has more than 2^20 logits"));
        }
        if self.rows.meant.is_none_or(|meant| meant.names(self.rows.row)) {
            let bytes = 4 * (self.rows.data.len() as u64 + 1);
            if bytes > MOST_BYTES {
                return Err(E::custom(too_many(bytes)));
            }
            self.rows.data.push(logit);
        }
        Ok(())
    }

    fn end<E: de::Error>(&mut self) -> Result<(), E> {
        let Rows { meant, row, vocab, .. } = *self.rows;
        if row > 0 && self.length != vocab {
            let found = self.length;
            return Err(E::custom(format_args!("row {row} has {found} logits, but row 0 has {vocab}")));
        }
        self.rows.vocab = self.length;
        self.rows.row += 1;
        self.rows.is_enough = meant.is_some_and(|meant| self.rows.row >= meant.least_rows());
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Row<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Row<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number")
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.push(f32::NEG_INFINITY)
    }

    fn visit_f64<E: de::Error>(self, logit: f64) -> Result<(), E> {
        match logit as f32 {
            rounded if rounded.is_finite() => self.push(rounded),
            _ => Err(E::custom(format_args!("{logit:e} is no float32"))),
        }
    }

    fn visit_i64<E: de::Error>(self, logit: i64) -> Result<(), E> {
        self.visit_f64(logit as f64)
    }

    fn visit_u64<E: de::Error>(self, logit: u64) -> Result<(), E> {
        self.visit_f64(logit as f64)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        if self.is_inside || self.length > 0 {
            return Err(A::Error::custom("a row stands among numbers"));
        }
        let mut row = Row { rows: self.rows, length: 0, is_inside: true };
        while elements.next_element_seed(&mut row)?.is_some() {}
        row.end()
    }
}

/// Says what stands where the reader did not go on.
fn unread(error: &serde_json::Error) -> String {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    let what = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    format!(
        "no JSON array of numbers, nor of rows of numbers: line {line}, column {column}: {}; write [0.5, 2, null], where null is -inf",
        without_middle(what, 120)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(file: &[u8]) -> Result<(Vec<f32>, usize), String> {
        let read = read(file, None, None)?;
        let logits = bytemuck::cast_slice(read.logits.bytes()).to_vec();
        Ok((logits, read.logits.vocab()))
    }

    #[test]
    fn rows_are_read_and_null_is_minus_infinity() {
        assert_eq!(all(b"[1, -2.5, null]"), Ok((vec![1.0, -2.5, f32::NEG_INFINITY], 3)));
        assert_eq!(all(b"[[1, 2], [3, 4]]"), Ok((vec![1.0, 2.0, 3.0, 4.0], 2)));
        // 0.1 is rounded once, to the nearest float32.
        assert_eq!(all(b"[0.1]"), Ok((vec![0.1], 1)));
        assert_eq!(all(b"\xef\xbb\xbf [1]"), Ok((vec![1.0], 1)));
    }

    #[test]
    fn of_many_rows_only_those_that_are_meant_are_read() {
        let some = |file: &[u8], rows: &str| {
            let read = read(file, None, Some(&rows.parse().unwrap()))?;
            Ok((bytemuck::cast_slice::<u8, f32>(read.logits.bytes()).to_vec(), read.numbers, read.rows))
        };
        let file = b"[[1, 2], [3, 4], [5, 6], and so on for ever";
        assert_eq!(some(file, "2,0,2"), Ok((vec![1.0, 2.0, 5.0, 6.0], vec![0, 2], vec![1, 0, 1])));
        assert_eq!(some(b"[7]", "0"), Ok((vec![7.0], vec![0], vec![0])));
        let absent: Result<_, String> = some(b"[[1], [2]]", "2");
        assert!(absent.unwrap_err().contains("there is no row 2; rows are 0..2"));
    }

    #[test]
    fn what_is_no_row_of_numbers_is_refused() {
        for (file, reason) in [
            (&b"[[1, 2], [3]]"[..], "row 1 has 1 logits, but row 0 has 2"),
            (b"[1e300]", "1e300 is no float32"),
            (b"{}", "expected an array"),
            (b"[1, \"2\"]", "expected a number"),
            (b"[1,", "EOF"),
            (b"[1, [2]]", "a row stands among numbers"),
            (b"[[1], 2]", "a number stands among rows"),
            (b"[[1], [[2]]]", "a row stands among numbers"),
            (b"[]", "a row has 0 logits"),
            (b"[1] 2", "trailing characters"),
            (b"[1,\n 2, NaN]", "line 2, column 5: expected value; write"),
            (b"[-Infinity]", "invalid number; write [0.5, 2, null], where null is -inf"),
            (
                b"[[1, 2],\n[3, \"4\"]]",
                "no JSON array of numbers, nor of rows of numbers: line 2, column 7: invalid type: string \"4\", expected a number; write",
            ),
        ] {
            let error = all(file).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
