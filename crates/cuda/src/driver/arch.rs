//! Architectures: what a device can run, and which machine code a device is given.

use std::fmt;
use std::str::FromStr;

use gumball_spec::Error;

/// The architecture of a device: its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// The major number: 9 of compute capability 9.0.
    pub major: i32,
    /// The minor number: 0 of compute capability 9.0.
    pub minor: i32,
}

/// The first architecture with dependent launches, clusters, and bulk copies into shared memory.
pub(crate) const HOPPER: Arch = Arch::new(9, 0);

impl Arch {
    /// The oldest architecture that has the instructions of the kernels, sm_80.
    pub const OLDEST: Arch = Arch::new(8, 0);

    /// The architectures whose machine code a wheel carries.
    pub const CARRIED: [Arch; 7] = [
        Arch::new(8, 0),
        Arch::new(8, 6),
        Arch::new(8, 9),
        Arch::new(9, 0),
        Arch::new(10, 0),
        Arch::new(10, 3),
        Arch::new(12, 0),
    ];

    /// The architectures of embedded devices, whose machine code no other device shares: Orin, and Thor under
    /// the number that it has in CUDA 12.
    const EMBEDDED: [Arch; 2] = [Arch::new(8, 7), Arch::new(10, 1)];

    /// Returns the architecture of a compute capability.
    #[must_use]
    pub const fn new(major: i32, minor: i32) -> Self {
        Self { major, minor }
    }

    /// Returns the architectures whose machine code this one runs, the best first: its own, then those of the
    /// same major number with smaller minor numbers.
    pub fn binaries(self) -> impl Iterator<Item = Self> {
        let older = (0..self.minor).rev().map(move |minor| Self { minor, ..self });
        let shared =
            older.filter(move |other| ![self, *other].iter().any(|arch| Self::EMBEDDED.contains(arch)));
        [self].into_iter().chain(shared)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// Reads an architecture, such as `sm_90` or `9.0`.
impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = match text.strip_prefix("sm_") {
            Some(digits) => digits.split_at_checked(digits.len().saturating_sub(1)),
            None => text.split_once('.'),
        };
        let number = |digits: &str| {
            let digits = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
            digits.parse().ok().filter(|number| *number < 1000)
        };
        let arch = parts.and_then(|(major, minor)| Some(Self::new(number(major)?, number(minor)?)));
        arch.filter(|arch| *arch >= Self::OLDEST)
            .ok_or_else(|| Error::out_of_range("arch", text, "sm_80 (or 8.0) and newer"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_runs_machine_code_of_its_major_number_up_to_its_minor_number() {
        let of = |major, minor| {
            let binaries = Arch::new(major, minor).binaries();
            binaries
                .filter(|arch| Arch::CARRIED.contains(arch))
                .map(|arch| arch.to_string())
                .collect::<Vec<_>>()
        };
        let table: [((i32, i32), &[&str]); 14] = [
            ((7, 5), &[]),
            ((8, 0), &["sm_80"]),
            ((8, 6), &["sm_86", "sm_80"]),
            ((8, 7), &[]),
            ((8, 8), &["sm_86", "sm_80"]),
            ((8, 9), &["sm_89", "sm_86", "sm_80"]),
            ((9, 0), &["sm_90"]),
            ((10, 0), &["sm_100"]),
            ((10, 1), &[]),
            ((10, 3), &["sm_103", "sm_100"]),
            ((11, 0), &[]),
            ((12, 0), &["sm_120"]),
            ((12, 1), &["sm_120"]),
            ((13, 0), &[]),
        ];
        for ((major, minor), expected) in table {
            assert_eq!(of(major, minor), expected, "{major}.{minor}");
        }
    }

    #[test]
    fn an_embedded_device_runs_only_its_own_machine_code() {
        for arch in Arch::EMBEDDED {
            assert_eq!(arch.binaries().collect::<Vec<_>>(), [arch]);
        }
        assert!(!Arch::new(8, 9).binaries().any(|arch| arch == Arch::new(8, 7)));
    }

    #[test]
    fn an_architecture_is_read_as_it_is_written() {
        for arch in Arch::CARRIED {
            assert_eq!(arch.to_string().parse(), Ok(arch));
            assert_eq!(format!("{}.{}", arch.major, arch.minor).parse(), Ok(arch));
        }
        for text in [
            "", "sm_", "sm_9", "sm_75", "7.5", "90", "9", "sm_9x", "-9.0", "9.-1", "sm_+90", "9.0a",
            "99999.0",
        ] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }
}
