//! Does each name of a safetensors file stand once? Its reader takes the last of two tensors of a name.

use std::collections::HashSet;
use std::fmt;

use safetensors::tensor::Metadata;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Reads the header of a safetensors file, the bytes after its length: which tensors there are and where they
/// lie.
///
/// # Errors
/// A sentence: no such header, offsets or sizes that do not fit, or a name that stands twice.
pub fn read_tensors(header: &[u8]) -> Result<Metadata, String> {
    let said = |error: serde_json::Error| error.to_string();
    serde_json::from_slice::<Names>(header).map_err(said)?;
    serde_json::from_slice(header).map_err(said)
}

/// An object whose keys stand once.
struct Names;

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for Names {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut seen = HashSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
            if let Some(name) = seen.replace(name) {
                let name = gumball_spec::error::quoted(name.as_bytes(), 80);
                return Err(A::Error::custom(format_args!("\"{name}\" stands twice")));
            }
        }
        Ok(self)
    }
}
