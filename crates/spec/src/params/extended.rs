//! Numbers that may be infinite, in formats that have no infinity: JSON writes `"inf"` and `"-inf"`.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a number.
pub(super) fn serialize<S: Serializer>(value: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    match *value {
        f32::INFINITY => serializer.serialize_str("inf"),
        f32::NEG_INFINITY => serializer.serialize_str("-inf"),
        value => serializer.serialize_f32(value),
    }
}

/// Reads a number.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    struct Extended;

    impl Visitor<'_> for Extended {
        type Value = f32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number, \"inf\" or \"-inf\"")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<f32, E> {
            Ok(value as f32)
        }

        fn visit_f32<E: Error>(self, value: f32) -> Result<f32, E> {
            Ok(value)
        }

        fn visit_i64<E: Error>(self, value: i64) -> Result<f32, E> {
            Ok(value as f32)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<f32, E> {
            Ok(value as f32)
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<f32, E> {
            match value {
                "inf" => Ok(f32::INFINITY),
                "-inf" => Ok(f32::NEG_INFINITY),
                other => Err(E::invalid_value(Unexpected::Str(other), &self)),
            }
        }
    }

    deserializer.deserialize_any(Extended)
}

/// The same for the numbers of `logit_bias`.
pub(super) mod biases {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Bias(u32, #[serde(with = "super")] f32);

    pub(in super::super) fn serialize<S: Serializer>(
        biases: &[(u32, f32)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(biases.iter().map(|(id, bias)| Bias(*id, *bias)))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(u32, f32)>, D::Error> {
        Ok(Vec::<Bias>::deserialize(deserializer)?.into_iter().map(|Bias(id, bias)| (id, bias)).collect())
    }
}
