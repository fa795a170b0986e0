//! Bytes as hexadecimal digits: how digests, keys and the inputs of fuzzing are written and read.

/// Returns bytes as lowercase digits, two for each.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes that pairs of digits of either case stand for; `None` for anything else.
#[must_use]
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks();
    let digit = |letter: u8| char::from(letter).to_digit(16).map(|digit| digit as u8);
    let byte = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}
