//! Watermarks: races whose words are made of a secret key and of the last ids (rules W1 to W3).
//!
//! A key of 128 bits is known by its number. So parameters, states, digests and errors name a key, and none
//! can tell it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{PoisonError, RwLock};

use crate::error::{Error, Result};
use crate::hex::unhex;
use crate::num::{Tag, philox4x32_10};
use crate::params::{Mark, SamplingParams, Scope, Watermark};

/// A secret key. It cannot be shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u32; 4]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Seed, position and draw index of a race's words (N8), or words that stand in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Philox's key.
    pub seed: u64,
    /// The second word of the counter.
    pub position: u32,
    /// The fourth word of the counter.
    pub draw: u32,
}

static KEYS: RwLock<BTreeMap<u32, Key>> = RwLock::new(BTreeMap::new());

/// Makes a key known to the process under a number. A number keeps its key: rotation is by numbers.
///
/// # Errors
/// - [`Error::OutOfRange`] if the number has another key already.
pub fn add_key(number: u32, key: [u8; 16]) -> Result<()> {
    let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| key[4 * i + byte]));
    let key = Key([0, 1, 2, 3].map(word));
    let mut keys = KEYS.write().unwrap_or_else(PoisonError::into_inner);
    if *keys.entry(number).or_insert(key) == key {
        return Ok(());
    }
    Err(Error::out_of_range("number", number, "a number that has no key, or the same one"))
}

/// Reads a key: 32 hexadecimal digits, byte by byte; or `0x` and up to 16 digits of a number of 64 bits, as
/// other engines have them, whose lowest byte is the first.
///
/// # Errors
/// - [`Error::Length`] if it is none of these. The error does not show it.
pub fn parse_key(text: &str) -> Result<[u8; 16]> {
    let mut key = [0; 16];
    if let Some(digits) = text.strip_prefix("0x")
        && (1..=16).contains(&digits.len())
        && !digits.starts_with('+')
        && let Ok(number) = u64::from_str_radix(digits, 16)
    {
        key[..8].copy_from_slice(&number.to_le_bytes());
        return Ok(key);
    }
    unhex(text)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| Error::length("key", text.len(), "32 hexadecimal digits, or 0x and up to 16"))
}

/// Makes the keys of a file's text known: a number and a key ([`parse_key`]) a line; empty lines and lines
/// that begin with `#` say nothing. Returns how many keys there are.
///
/// # Errors
/// - [`Error::OutOfRange`] for a line that is none of these, by its number, and the errors of [`add_key`].
pub fn add_keys(text: &str) -> Result<usize> {
    let mut count = 0;
    for (place, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = line
            .split_once(char::is_whitespace)
            .and_then(|(number, key)| Some((number.parse::<u32>().ok()?, parse_key(key.trim()).ok()?)));
        let Some((number, key)) = parsed else {
            let allowed =
                "a number in 0..2^32 and a key of 32 hexadecimal digits, or of 0x and up to 16, in each line";
            return Err(Error::out_of_range("text", format!("not readable in line {}", place + 1), allowed));
        };
        add_key(number, key)?;
        count += 1;
    }
    Ok(count)
}

/// Returns the key of a number.
///
/// # Errors
/// - [`Error::OutOfRange`] if there is none.
pub fn key(number: u32) -> Result<Key> {
    let keys = KEYS.read().unwrap_or_else(PoisonError::into_inner);
    keys.get(&number).copied().ok_or_else(|| {
        let known = keys.keys().take(8).map(u32::to_string).collect::<Vec<_>>().join(", ");
        let allowed = match known.is_empty() {
            true => "the number of a key; none was added to this process".to_owned(),
            false => format!("the number of a key that was added to this process, such as {known}"),
        };
        Error::out_of_range("watermark.key", number, allowed)
    })
}

impl Key {
    /// Returns the words of the race after a context, of which the oldest id comes first (W1).
    #[must_use]
    pub fn words(self, context: impl IntoIterator<Item = u32>) -> Words {
        let mut state = self.0;
        for id in context {
            let key = u64::from(id) | (Tag::Watermark as u64) << 32;
            let mixed = philox4x32_10(key, state);
            state = [0, 1, 2, 3].map(|i| mixed[i] ^ state[i]);
        }
        let [low, high, position, draw] = state;
        Words { seed: u64::from(low) | u64::from(high) << 32, position, draw }
    }

    /// Returns the four words of the key itself, which only kernels and detectors may have.
    #[must_use]
    pub fn secret_words(self) -> [u32; 4] {
        self.0
    }

    /// Returns a check value: processes compare it to find out whether they have the same key.
    #[must_use]
    pub fn check_value(self) -> u64 {
        self.words([u32::MAX; 8]).seed
    }
}

impl Mark {
    /// Returns the request's own mark.
    #[must_use]
    pub fn own(self) -> Option<Watermark> {
        if let Self::Own(watermark) = self { Some(watermark) } else { None }
    }

    /// Returns the request's own mark, which is made if there is none.
    pub(crate) fn own_mut(&mut self) -> &mut Watermark {
        *self = Self::Own(self.own().unwrap_or_default());
        let Self::Own(watermark) = self else { unreachable!("it was just made") };
        watermark
    }

    /// Returns the mark in a pool whose default is `pool` (W5), which may be enforced.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a request that wants no mark where the default is enforced.
    pub fn in_pool(self, pool: Option<Watermark>, enforce_all: bool) -> Result<Self> {
        match (self, pool) {
            (Self::Default, Some(watermark)) => Ok(Self::Own(watermark)),
            (Self::Off, Some(_)) if enforce_all => {
                let allowed = "a mark or left out: the pool marks all texts (enforce_all)";
                Err(Error::out_of_range("watermark", false, allowed))
            }
            _ => Ok(self),
        }
    }
}

impl From<Watermark> for Mark {
    fn from(watermark: Watermark) -> Self {
        Self::Own(watermark)
    }
}

impl Watermark {
    /// Returns the place of the first id that contexts may have.
    #[must_use]
    pub fn first(&self, prompt_len: usize) -> usize {
        if self.scope == Scope::Output { prompt_len } else { 0 }
    }

    /// Returns the context of a row: the last ids in front of it, if they all lie in the scope and did not
    /// come before (W2).
    #[must_use]
    pub fn context<'a>(&self, ids: &'a [u32], prompt_len: usize) -> Option<&'a [u32]> {
        let count = self.context as usize;
        let ids = ids.get(self.first(prompt_len)..)?;
        let window = if self.window == 0 {
            ids.len()
        } else {
            (self.window as usize).saturating_add(count).min(ids.len())
        };
        let context = &ids[ids.len().checked_sub(count)?..];
        let before = &ids[ids.len() - window..ids.len() - 1];
        (!contains(before, context)).then_some(context)
    }
}

/// Returns whether ids contain others in a row. Chunks without the last of them are passed over.
fn contains(ids: &[u32], sought: &[u32]) -> bool {
    const CHUNK: usize = 64;
    let (last, others) = sought.split_last().expect("validated: at least one id");
    let ends = ids.get(others.len()..).unwrap_or_default().chunks(CHUNK).enumerate();
    let mut ends = ends.filter(|(_, chunk)| chunk.contains(last));
    ends.any(|(number, chunk)| {
        let before = |place| &ids[number * CHUNK + place..][..others.len()];
        chunk.iter().enumerate().any(|(place, id)| id == last && before(place) == others)
    })
}

impl SamplingParams {
    /// Returns the words of the mark of a row whose token is drawn after these ids; none if the request has
    /// no watermark, draws nothing, or has no context there (W2).
    #[must_use]
    pub fn mark_by(&self, key: Key, ids: &[u32], prompt_len: usize) -> Option<Words> {
        // A dynamic temperature replaces one that is as good as 0 (F7).
        let is_greedy = match self.dynamic_temperature {
            Some(_) => self.temperature == 0.0,
            None => Self::is_greedy(self.temperature),
        };
        let watermark = self.watermark.own().filter(|_| !is_greedy)?;
        watermark.context(ids, prompt_len).map(|context| key.words(context.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "serde")]
    const KEY: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_number_keeps_its_key_and_nothing_shows_it() {
        let text = "# keys\n\n70 000102030405060708090a0b0c0d0e0f\n71 FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF\n";
        assert_eq!(add_keys(text), Ok(2));
        assert_eq!(add_keys(text), Ok(2));
        assert_eq!(key(70).unwrap().0, [0x0302_0100, 0x0706_0504, 0x0B0A_0908, 0x0F0E_0D0C]);
        assert_eq!(format!("{:?}", key(70).unwrap()), "Key(..)");
        let other = add_key(70, [0xAB; 16]).unwrap_err().to_string();
        assert_eq!(other, "number is 70, but must be a number that has no key, or the same one");
        let unknown = key(72).unwrap_err().to_string();
        assert!(unknown.starts_with("watermark.key is 72, but must be the number of a key"), "{unknown}");
        add_keys("73 0x0123456789abcdef").unwrap();
        assert_eq!(key(73).unwrap().0, [0x89AB_CDEF, 0x0123_4567, 0, 0]);
        for line in [
            "70",
            "7 0x",
            "7 0x+1",
            "7 0x00010203040506070",
            "x 000102030405060708090a0b0c0d0e0f",
            "7 0001",
            "7 g00102030405060708090a0b0c0d0e0f",
        ] {
            let error = add_keys(&format!("\n{line}")).unwrap_err().to_string();
            assert!(error.contains("line 2") && !error.contains("0001"), "{error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn no_error_of_json_shows_a_key_in_the_place_of_its_number() {
        for key in [
            "\"00112233445566778899aabbccddeeff\"",
            "\"0x0123456789abcdef\"",
            "81985529216486895",
            "1.5e19",
            "-7e9",
        ] {
            let name = key.trim_matches('"');
            for json in [
                format!("{{\"watermark\": {key}}}"),
                format!("{{\"watermark\": {{\"key\": {key}}}}}"),
                format!("{{\"watermark\": {{\"key\": 1, \"scope\": \"{KEY}\"}}}}"),
                format!("{{\"watermark\": {{\"{KEY}\": 1}}}}"),
                format!("{{\"{KEY}\": 1}}"),
            ] {
                let error = serde_json::from_str::<SamplingParams>(&json).unwrap_err().to_string();
                assert!(!error.contains(name) && !error.contains(KEY), "{json}: {error}");
            }
            if key.starts_with('"') {
                let error = serde_json::from_str::<SamplingParams>(key).unwrap_err().to_string();
                assert!(!error.contains(name), "{error}");
                let error = serde_json::from_str::<Watermark>(key).unwrap_err().to_string();
                assert!(!error.contains(name), "{error}");
            }
        }
    }

    #[test]
    fn a_context_lies_in_its_scope_and_comes_once() {
        let of = |scope, window, ids: &[u32], prompt| {
            let mark = Watermark { context: 2, scope, window, ..Watermark::default() };
            mark.context(ids, prompt).map(<[u32]>::to_vec)
        };
        assert_eq!(of(Scope::Both, 0, &[1], 1), None);
        assert_eq!(of(Scope::Both, 0, &[1, 2], 2), Some(vec![1, 2]));
        assert_eq!(of(Scope::Output, 0, &[1, 2, 3], 2), None);
        assert_eq!(of(Scope::Output, 0, &[1, 2, 3, 4], 2), Some(vec![3, 4]));
        let repeated = [1, 2, 9, 1, 2];
        assert_eq!(of(Scope::Both, 0, &repeated, 0), None);
        assert_eq!(of(Scope::Output, 0, &repeated, 1), Some(vec![1, 2]));
        // The rows of the last `window` contexts are looked at: the row at index 2 is three back.
        assert_eq!(of(Scope::Both, 3, &repeated, 0), None);
        assert_eq!(of(Scope::Both, 2, &repeated, 0), Some(vec![1, 2]));
        // A context may overlap the one before it.
        assert_eq!(of(Scope::Both, 1, &[7, 7, 7], 0), None);
    }
}
