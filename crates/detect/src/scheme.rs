//! The marks of other engines: which tokens count, and by which numbers they were drawn. Facts of their
//! published functions, in our words.

use std::fmt;
use std::str::FromStr;

use gumball_spec::draw::arrival_by;
use gumball_spec::error::HIDDEN;
use gumball_spec::num::philox4x32_10;
use gumball_spec::watermark::{self, Key};
use gumball_spec::{Error, Result, Watermark};
use sha2::{Digest as _, Sha256};

/// Whose mark a text has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Scheme {
    /// Gumball's: rules W1 and W2.
    #[default]
    Gumball,
    /// vLLM's `gumbel`, 0.32 and 0.33: contexts lie in the output, and ids in front of it are all ones.
    Vllm,
    /// vLLM's `dual_key_gumbel`, by the same rules: two keys, made of one, draw the tokens.
    VllmDualKey {
        /// The second key's weight, in 0..=1: vLLM's `alpha`.
        alpha: f64,
    },
    /// SGLang's, 0.5.23: contexts may lie in the prompt, the first 4096 different ones count.
    Sglang {
        /// Its second key, if it has one.
        second: Option<Second>,
    },
}

/// SGLang's second key: each context is marked by the first key or by this one, as a hash of both says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Second {
    /// The number of the key: SGLang's `key_b`.
    pub number: u32,
    /// The probability of the first key, in (0, 1): SGLang's `mixing_probability`.
    pub mixing: f64,
}

/// The keys of a mark: what [`Scheme::key`] makes of a number.
#[derive(Clone, Copy)]
pub struct Keys {
    own: Key,
    /// The low and high words of the keys by which another engine draws: the same one twice where it has one.
    pair: [[u32; 2]; 2],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(..)")
    }
}

/// The ids of a text and which of them have contexts.
pub(crate) struct Text {
    pub ids: Vec<u32>,
    /// The first id that has a context, and the first after the prompt.
    pub first: usize,
    pub output: usize,
    /// How many rows back a context must not have come, 0: all; and how many different contexts count.
    pub window: usize,
    pub most: usize,
}

impl Scheme {
    /// All schemes, with an engine's own defaults.
    pub const ALL: [Self; 4] =
        [Self::Gumball, Self::Vllm, Self::VllmDualKey { alpha: 0.1 }, Self::Sglang { second: None }];

    /// Returns the key of a number, with the others by which the scheme draws.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if there is none, or if another engine's key has more than 64 bits.
    pub fn key(self, number: u32) -> Result<Keys> {
        let known = |parameter, number, key: Key| {
            let is_theirs = key.secret_words()[2..] == [0, 0];
            match self == Self::Gumball || is_theirs {
                true => Ok(key),
                false => {
                    Err(Error::out_of_range(parameter, number, format!("a key of 64 bits, as {self} has")))
                }
            }
        };
        let own = known("keys", number, watermark::key(number)?)?;
        let [low, high, ..] = own.secret_words();
        let pair = match self {
            Self::VllmDualKey { .. } => [b"key_a", b"key_b"].map(|domain| derived(domain, low, high)),
            Self::Sglang { second: Some(Second { number, .. }) } => {
                let second = watermark::key(number).map_err(|error| error.with_parameter(|_| "scheme"))?;
                let [second_low, second_high, ..] = known("scheme", number, second)?.secret_words();
                [[low, high], [second_low, second_high]]
            }
            _ => [[low, high]; 2],
        };
        Ok(Keys { own, pair })
    }

    pub(crate) fn text(self, ids: &[u32], prompt_len: usize, watermark: &Watermark) -> Text {
        let count = watermark.context as usize;
        match self {
            Self::Gumball => Text {
                ids: ids.to_vec(),
                first: watermark.first(prompt_len) + count,
                output: prompt_len,
                window: watermark.window as usize,
                most: usize::MAX,
            },
            Self::Vllm | Self::VllmDualKey { .. } => {
                let mut padded = vec![u32::MAX; count];
                padded.extend(ids.get(prompt_len..).unwrap_or_default());
                Text { ids: padded, first: count, output: count, window: 0, most: usize::MAX }
            }
            Self::Sglang { .. } => {
                let before = count.min(prompt_len);
                let first = if prompt_len == 0 { count } else { before };
                let ids = ids.get(prompt_len - before..).unwrap_or_default().to_vec();
                Text { ids, first, output: before, window: 0, most: 4096 }
            }
        }
    }

    /// Returns the score of a token after a context: -ln(1 - u), where u is the number by which it was drawn;
    /// of two numbers the weighted mean.
    pub(crate) fn score(self, keys: Keys, context: &[u32], id: u32) -> f64 {
        let Keys { own, pair } = keys;
        let of_vllm = |[low, high]: [u32; 2]| -libm::log1p(-f64::from(uniform(low, high, context, id)));
        match self {
            Self::Gumball => {
                let time = f64::from(arrival_by(own.words(context.iter().copied()), id));
                -libm::log(-libm::expm1(-time * std::f64::consts::LN_2))
            }
            Self::Vllm => of_vllm(pair[0]),
            Self::VllmDualKey { alpha } => (1.0 - alpha) * of_vllm(pair[0]) + alpha * of_vllm(pair[1]),
            Self::Sglang { second } => {
                let (context, [[a, b], [c, d]]) = (murmur(context), pair);
                let is_first = second.is_none_or(|second| {
                    let threshold = (second.mixing * 2f64.powi(32)) as u32;
                    murmur(&[a, b, c, d, context]) < threshold
                });
                let [low, high] = pair[usize::from(!is_first)];
                let word = murmur(&[low, high, context, id]);
                -libm::log1p(-(f64::from(word) + 0.5) / 2f64.powi(32))
            }
        }
    }
}

/// One of the two keys that vLLM makes of one, in big-endian bytes.
fn derived(domain: &[u8], low: u32, high: u32) -> [u32; 2] {
    let hash =
        Sha256::new().chain_update(domain).chain_update(high.to_be_bytes()).chain_update(low.to_be_bytes());
    let hash = hash.finalize();
    [4, 0].map(|first| u32::from_be_bytes([0, 1, 2, 3].map(|byte| hash[first + byte])))
}

/// vLLM's number of a token: Philox over blocks of four ids of the context, then over the token.
fn uniform(low: u32, high: u32, context: &[u32], id: u32) -> f32 {
    let key = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut state = [0x574D_4358, context.len() as u32, 0, 0];
    for (number, block) in context.chunks(4).enumerate() {
        let word = |i: usize| block.get(i).copied().unwrap_or(u32::MAX - i as u32);
        let counter = [0, 1, 2, 3].map(|i| state[i] ^ word(i));
        state = philox4x32_10(key(low ^ (4 * number as u32), high), counter);
    }
    let [a, b, c, d] = state;
    let words = philox4x32_10(key(low ^ d, high ^ 0x574D_544B), [id >> 2, a, b, c]);
    ((f64::from(words[id as usize % 4] >> 8) + 1.0) / f64::from((1 << 24) + 1)) as f32
}

/// MurmurHash3 of 32 bits over whole words, with the seed 0.
fn murmur(words: &[u32]) -> u32 {
    let mut hash = 0u32;
    for word in words {
        hash ^= word.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593);
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64);
    }
    hash ^= 4 * words.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gumball => "gumball",
            Self::Vllm => "vllm",
            Self::VllmDualKey { alpha } if *alpha == 0.1 => "vllm_dual_key",
            Self::VllmDualKey { alpha } => return write!(f, "vllm_dual_key={alpha}"),
            Self::Sglang { second: None } => "sglang",
            Self::Sglang { second: Some(Second { number, mixing }) } => {
                let shown = if *mixing == 0.5 { String::new() } else { format!(",{mixing}") };
                return write!(f, "sglang={number}{shown}");
            }
        })
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(alpha) = name.strip_prefix("vllm_dual_key=") {
            return match alpha.parse() {
                Ok(alpha) if (0.0..=1.0).contains(&alpha) => Ok(Self::VllmDualKey { alpha }),
                _ => Err(refused(name, "vllm_dual_key= and an alpha in 0..=1")),
            };
        }
        if let Some(second) = name.strip_prefix("sglang=") {
            let (number, mixing) = second.split_once(',').unwrap_or((second, "0.5"));
            return match (number.parse(), mixing.parse()) {
                (Ok(number), Ok(mixing)) if mixing > 0.0 && mixing < 1.0 => {
                    Ok(Self::Sglang { second: Some(Second { number, mixing }) })
                }
                _ => {
                    let allowed =
                        "sglang= and the number of a key, and perhaps a comma and a mixing in (0, 1)";
                    Err(refused(name, allowed))
                }
            };
        }
        let known = || Self::ALL.map(|scheme| scheme.to_string()).join(", ");
        let found = Self::ALL.into_iter().find(|scheme| scheme.to_string() == name);
        let is_word = name.bytes().all(|letter| letter.is_ascii_alphabetic() || letter == b'_');
        let shown = if is_word { name } else { HIDDEN };
        found.ok_or_else(|| Error::unknown("scheme", shown, known()))
    }
}

/// Returns the error of a scheme that is not shown from the `=` on, where the key itself may stand in the
/// place of its number.
fn refused(name: &str, allowed: &str) -> Error {
    let engine = name.split('=').next().unwrap_or_default();
    Error::out_of_range("scheme", format!("{engine}=.."), allowed)
}

#[cfg(test)]
mod tests {
    use gumball_spec::watermark::add_keys;

    use super::*;
    use crate::detect_any;

    #[test]
    fn other_engines_numbers_are_theirs() {
        // The results of the functions of vLLM 0.32 and SGLang 0.5.23, for these arguments.
        let of_engines = [
            (
                1,
                [
                    (0, 0x3F32_0F80, 0x74DA_FFD9),
                    (1, 0x3ED7_6E1B, 0x9FF6_8777),
                    (2, 0x3E0A_1EE7, 0xAF08_A389),
                    (151_935, 0x3C23_9D7F, 0xA8C3_06C7),
                ],
            ),
            (
                4,
                [
                    (0, 0x3F5A_0940, 0xCF22_2AC3),
                    (1, 0x3F26_7580, 0x3F5A_958E),
                    (2, 0x3F0D_71FE, 0x9313_13E7),
                    (151_935, 0x3C9B_D67F, 0xA790_7C87),
                ],
            ),
            (
                5,
                [
                    (0, 0x3D80_157F, 0x7E69_23B8),
                    (1, 0x3F7B_9221, 0xE6BA_88ED),
                    (2, 0x3EFB_F0EB, 0x44F2_FDC9),
                    (151_935, 0x3F5A_44AB, 0x0CEA_C490),
                ],
            ),
        ];
        let (low, high) = (0x89AB_CDEF, 0x0123_4567);
        for (count, tokens) in of_engines {
            let context: Vec<u32> = (0..count).map(|i| (7 * i + 3) * 1001 % 151_936).collect();
            for (id, of_vllm, of_sglang) in tokens {
                assert_eq!(uniform(low, high, &context, id).to_bits(), of_vllm);
                assert_eq!(murmur(&[low, high, murmur(&context), id]), of_sglang);
            }
        }
    }

    #[test]
    fn other_engines_texts_count_as_they_count() {
        add_keys("80 0x0123456789abcdef\n81 000102030405060708090a0b0c0d0e0f\n82 0xfedcba9876543210")
            .unwrap();
        let ids: Vec<u32> = (0..60).map(|i| i * i * 31 % 50).collect();
        let watermark = Watermark { context: 3, ..Watermark::default() };
        // The results of the detectors of vLLM 0.32 and SGLang 0.5.23, for these ids.
        let two = |alpha| Scheme::VllmDualKey { alpha };
        let both = |mixing| Scheme::Sglang { second: Some(Second { number: 82, mixing }) };
        for (scheme, prompt_len, tokens, score, ln_p) in [
            (two(0.1), 0, 53, 57.703_927_476_754_81, 0.231_280_909_680_693_2_f64.ln()),
            (two(0.0), 0, 53, 58.170_330_058_848_92, 0.231_540_406_277_548_18_f64.ln()),
            (two(0.4), 0, 53, 56.304_719_730_472_45, 0.257_933_840_113_920_7_f64.ln()),
            (two(0.5), 0, 53, 55.838_317_148_378_33, 0.282_963_925_068_510_65_f64.ln()),
            (Scheme::Vllm, 0, 53, 54.306_243_440_011_03, 0.411_500_255_270_302_7_f64.ln()),
            (Scheme::Sglang { second: None }, 0, 50, 36.271_090_282_941_36, -0.017_746_819_986_999_007),
            (Scheme::Sglang { second: None }, 5, 50, 36.271_090_282_941_36, -0.017_746_819_986_999_007),
            (Scheme::Sglang { second: None }, 2, 51, 36.443_086_552_912_41, -0.013_129_775_534_294_286),
            (both(0.5), 0, 50, 34.162_115_314_984_92, -0.006_513_335_661_183_284),
            (both(0.5), 2, 51, 34.334_111_584_955_98, -0.004_631_822_398_561_081),
            (both(0.3), 0, 50, 38.871_554_395_012_18, -0.049_623_560_421_421_686),
            (both(0.3), 2, 51, 39.043_550_665_983_23, -0.038_359_224_612_223_74),
        ] {
            let (_, found) = detect_any(&ids, prompt_len, scheme, &watermark, &[80]).unwrap();
            assert_eq!((found.tokens, found.tokens + found.skipped), (tokens, 60 - prompt_len));
            assert!((found.score - score).abs() < 1e-9 && (found.ln_p - ln_p).abs() < 1e-9, "{found:?}");
            assert!(detect_any(&ids, prompt_len, scheme, &watermark, &[81]).is_err());
        }
        for (number, said) in
            [(81, "a key of 64 bits, as sglang=81 has"), (83, "the number of a key that was added")]
        {
            let error =
                format!("sglang={number}").parse::<Scheme>().unwrap().key(80).unwrap_err().to_string();
            assert!(error.starts_with(&format!("scheme is {number}, but must be {said}")), "{error}");
        }
        for scheme in Scheme::ALL {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        for scheme in [two(0.4), both(0.5), both(0.25)] {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        for name in [
            "synthid",
            "vllm_dual_key=1.5",
            "vllm_dual_key=",
            "sglang=",
            "sglang=82,0",
            "sglang=82,1",
            "sglang=-1",
        ] {
            assert!(name.parse::<Scheme>().is_err());
        }
        for key in ["00112233445566778899aabbccddeeff", "0x0123456789abcdef", "81985529216486895"] {
            for name in ["", "sglang=", "sglang:", "vllm_dual_key=", "vllm", "82,"] {
                let error = format!("{name}{key}").parse::<Scheme>().unwrap_err().to_string();
                assert!(!error.contains(key), "{error}");
            }
        }
    }
}
