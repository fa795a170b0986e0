//! SIMD levels: which instructions carry the sixteen lanes, chosen once at run time.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use gumball_spec::{Error, Result};

/// A way to carry the lanes. All levels give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust over arrays, for every machine; left out of a module of WebAssembly with SIMD128, which no
    /// machine without it loads.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// SIMD128 of WebAssembly, in a module that is compiled with it.
    Simd128,
    /// NEON of little-endian aarch64.
    Neon,
}

/// Forces a level by its name; read once.
const VARIABLE: &str = "GUMBALL_LEVEL";

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 5] = [Level::Scalar, Level::Avx2, Level::Avx512, Level::Simd128, Level::Neon];

    /// Returns the level's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Simd128 => "simd128",
            Level::Neon => "neon",
        }
    }

    /// Returns whether this machine has the level.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Level::Scalar => true,
            Level::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Level::Avx512 => {
                Level::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Level::Simd128 | Level::Neon => false,
        }
        #[cfg(not(target_arch = "x86_64"))]
        match self {
            Level::Scalar => !cfg!(target_feature = "simd128"),
            Level::Avx2 | Level::Avx512 => false,
            Level::Simd128 => cfg!(target_feature = "simd128"),
            Level::Neon => {
                cfg!(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))
            }
        }
    }

    /// Returns the levels of this machine, slowest first.
    pub fn available() -> impl Iterator<Item = Level> {
        Self::ALL.into_iter().filter(|level| level.is_available())
    }

    /// Returns the level to use: the one `GUMBALL_LEVEL` names, or the best of this machine.
    ///
    /// # Errors
    /// - [`Error::Unknown`] if the variable names no level.
    /// - [`Error::OutOfRange`] if this machine lacks the level it names.
    pub fn detect() -> Result<Level> {
        static DETECTED: OnceLock<Result<Level>> = OnceLock::new();
        DETECTED.get_or_init(|| Self::named_or_best(std::env::var_os(VARIABLE).as_deref())).clone()
    }

    /// Returns the level of a name, or the best of this machine without one. An empty name is none.
    fn named_or_best(name: Option<&OsStr>) -> Result<Level> {
        match name.filter(|name| !name.is_empty()) {
            // A value that is no text is no known name, and is shown in the error as far as it is text.
            Some(name) => name.to_string_lossy().parse::<Level>()?.check(),
            None => Ok(Self::available().last().expect("there is always one")),
        }
    }

    /// Returns the level if this machine has it.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it has not.
    pub fn check(self) -> Result<Level> {
        if self.is_available() {
            return Ok(self);
        }
        let names: Vec<_> = Self::available().map(Self::name).collect();
        Err(Error::out_of_range("level", self, format!("one of this machine's: {}", names.join(", "))))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == name)
            .ok_or_else(|| Error::unknown("level", name, Self::ALL.map(Self::name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_name_is_none_and_one_that_is_no_text_is_refused() {
        let best = Level::named_or_best(None).unwrap();
        assert_eq!(Level::named_or_best(Some(OsStr::new(""))), Ok(best));
        assert_eq!(Level::named_or_best(Some(OsStr::new(best.name()))), Ok(best));
        #[cfg(unix)]
        {
            let name = std::os::unix::ffi::OsStrExt::from_bytes(b"\xffmmx");
            let error = Level::named_or_best(Some(name)).unwrap_err().to_string();
            assert!(error.starts_with("level \"\\u{fffd}mmx\" is not known; known are: scalar"), "{error}");
        }
    }
}
