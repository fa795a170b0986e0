//! How the values of the sampling flags are written: lists of ids, biases, tuples of numbers.

use std::str::FromStr;

use gumball_engine::unstable::shown;
use gumball_spec::{DynamicTemperature, LogprobModes, Mirostat, Parameters};

use crate::text::count;

/// Ids separated by commas; `A-B` stands for all ids from A to B.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids(pub Vec<u32>);

/// The most ids that a range may name: as many as the largest vocabulary has.
const MAX_IDS: usize = gumball_spec::MAX_VOCAB;
/// The most ids that a list may name. Histories may be longer than a vocabulary, and memory is not.
const MAX_LIST: usize = 16 * MAX_IDS;

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = |text: &str| {
            let text = text.trim();
            text.parse::<u32>()
                .map_err(|_| format!("\"{}\" is no id in 0..2^32; write ids as 3,17,40-44", shown(text)))
        };
        let mut ids = Vec::new();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('-') {
                None => ids.push(id(part)?),
                Some((first, last)) => {
                    let (first, last) = (id(first)?, id(last)?);
                    if first > last {
                        return Err(format!("{part:?} is no range of ids; the smaller id comes first"));
                    }
                    let length = u64::from(last - first) + 1;
                    if length > MAX_IDS as u64 {
                        let most = count(MAX_IDS as u64);
                        return Err(format!(
                            "{part:?} names {} ids; a range names at most {most}",
                            count(length)
                        ));
                    }
                    ids.extend(first..=last);
                }
            }
            if ids.len() > MAX_LIST {
                return Err(format!("a list names at most {} ids", count(MAX_LIST as u64)));
            }
        }
        Ok(Self(ids))
    }
}

/// A bias of one id, written `ID=V`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bias {
    /// The id.
    pub id: u32,
    /// The number that is added to its logit.
    pub value: f32,
}

impl FromStr for Bias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (id, value) = text.split_once('=')?;
            Some(Self { id: id.trim().parse().ok()?, value: number(value.trim()).ok()? })
        };
        parse().ok_or_else(|| format!("\"{}\" is no bias; write 42=-1.5, or 42=-inf for a ban", shown(text)))
    }
}

/// What `--logprobs` asks for: the modes, or how many of the most likely tokens to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Modes(LogprobModes),
    Best(u32),
}

impl FromStr for Asked {
    type Err = gumball_spec::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::Best).or_else(|_| text.parse().map(Self::Modes))
    }
}

/// Reads a number: rounded to f64 and then to f32, as JSON and Python have it, so that a decimal is one
/// number everywhere.
pub(super) fn number(text: &str) -> Result<f32, String> {
    text.parse::<f64>().map(|number| number as f32).map_err(|_| "write a number, such as 0.8".to_owned())
}

/// Reads the number of a key. The error shows nothing of the text, which may be the key itself.
pub fn key_number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write the number of a key, a whole number in 0..2^32".to_owned())
}

/// Reads between `least` and `N` numbers separated by commas.
fn numbers<const N: usize>(text: &str, least: usize) -> Option<[Option<f32>; N]> {
    let mut values = [None; N];
    let parts: Vec<_> = text.split(',').collect();
    if !(least..=N).contains(&parts.len()) {
        return None;
    }
    for (value, part) in values.iter_mut().zip(parts) {
        *value = Some(number(part.trim()).ok()?);
    }
    Some(values)
}

/// Reads `MIN,MAX` or `MIN,MAX,EXP`.
pub(super) fn dynamic_temperature(text: &str) -> Result<DynamicTemperature, String> {
    match numbers::<3>(text, 2) {
        Some([Some(min), Some(max), exponent]) => {
            Ok(DynamicTemperature { min, max, exponent: exponent.unwrap_or(1.0) })
        }
        _ => Err("write two or three numbers: MIN,MAX or MIN,MAX,EXPONENT, such as 0.5,1.5".to_owned()),
    }
}

/// Reads `TAU`, `TAU,ETA` or `TAU,ETA,MU`.
pub(super) fn mirostat(text: &str) -> Result<Mirostat, String> {
    match numbers::<3>(text, 1) {
        Some([Some(tau), eta, mu]) => Ok(Mirostat { tau, eta: eta.unwrap_or(Mirostat::neutral().eta), mu }),
        _ => Err("write one to three numbers: TAU, TAU,ETA or TAU,ETA,MU, such as 5,0.1".to_owned()),
    }
}

/// Reads a seed, decimal or hexadecimal with `0x`.
pub(super) fn seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a whole number in 0..2^64, decimal or hexadecimal (0x...)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_single_or_ranges() {
        assert_eq!("3, 17,40-42".parse(), Ok(Ids(vec![3, 17, 40, 41, 42])));
        assert_eq!("".parse(), Ok(Ids(vec![])));
        for text in ["x", "4-2", "1--2", "0-4294967295", "1.5"] {
            assert!(text.parse::<Ids>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_range_that_is_too_long_is_not_called_reversed() {
        let refused = |text: &str| text.parse::<Ids>().unwrap_err();
        assert_eq!(
            refused("0-4294967295"),
            "\"0-4294967295\" names 4,294,967,296 ids; a range names at most 1,048,576"
        );
        assert!(refused("4-2").ends_with("the smaller id comes first"));
        assert_eq!(refused(&["0-1048575"; 17].join(",")), "a list names at most 16,777,216 ids");
    }

    #[test]
    fn a_flag_is_the_number_that_the_same_decimal_is_in_json() {
        for text in ["1.000000059604644775390626", "0.1", "16777217", "1e-50", "0.30000001192092896"] {
            let json: f64 = serde_json::from_str(text).unwrap();
            assert_eq!(number(text), Ok(json as f32), "{text}");
        }
        assert_eq!(number("1.000000059604644775390626"), Ok(1.0));
        assert!(number("0,5").is_err());
    }

    #[test]
    fn a_bias_may_ban() {
        assert_eq!("7=-inf".parse(), Ok(Bias { id: 7, value: f32::NEG_INFINITY }));
        assert!("7".parse::<Bias>().unwrap_err().contains("write 42=-1.5"));
    }

    #[test]
    fn seeds_are_decimal_or_hexadecimal() {
        assert_eq!(seed("0xff"), Ok(255));
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        assert!(seed("-1").is_err());
    }
}
