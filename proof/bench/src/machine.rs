//! The machine and the time of a record, without the machine's name.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine and the tools of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub processor: String,
    /// The vector units that matter here.
    pub simd: Vec<String>,
    /// Processors the run could use; it uses one thread.
    pub processors: usize,
    /// The last-level cache.
    pub last_level_cache_bytes: usize,
    /// Operating system and architecture.
    pub system: String,
    /// The compiler found at run time.
    pub rustc: String,
    /// The commit of this repository.
    pub commit: String,
    /// Processes that wanted to run when the run began: a noisy machine shows here.
    pub load_average: Option<f64>,
}

impl Machine {
    /// Looks around; what cannot be found is left empty.
    pub fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&info, "flags");
        let simd = ["avx2", "fma", "avx512f", "avx512bw", "avx512_bf16"];
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            processor: processor(&info),
            simd: simd
                .iter()
                .filter(|unit| flags.split(' ').any(|flag| flag == **unit))
                .map(|s| s.to_string())
                .collect(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            last_level_cache_bytes: last_level_cache_bytes(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            rustc: said_by(Command::new("rustc").arg("--version")),
            commit: said_by(
                Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(repository),
            ),
            load_average: load.split(' ').next().and_then(|first| first.parse().ok()),
        }
    }
}

/// The name, and the family and model, which a virtual machine's name hides.
fn processor(info: &str) -> String {
    format!(
        "{}, family {} model {}",
        field(info, "model name"),
        field(info, "cpu family"),
        field(info, "model")
    )
}

fn field<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map_or("", |(_, value)| value.trim())
}

/// The largest cache of the first processor, or 32 MiB where the system does not say.
pub fn last_level_cache_bytes() -> usize {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").into_iter().flatten().flatten();
    let sizes = caches.filter_map(|cache| cache_bytes(&fs::read_to_string(cache.path().join("size")).ok()?));
    sizes.max().unwrap_or(32 << 20)
}

fn cache_bytes(size: &str) -> Option<usize> {
    let size = size.trim();
    match size.split_at_checked(size.len().checked_sub(1)?)? {
        (number, "K") => Some(number.parse::<usize>().ok()? << 10),
        (number, "M") => Some(number.parse::<usize>().ok()? << 20),
        _ => size.parse().ok(),
    }
}

fn said_by(command: &mut Command) -> String {
    let output = command.output().ok().filter(|output| output.status.success());
    output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The day and time now, in UTC, as `2026-01-31T12:00:00Z`.
pub fn date() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs());
    date_of(now)
}

fn date_of(seconds: u64) -> String {
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut days, mut year) = (seconds / 86400, 1970);
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        assert_eq!(date_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_of(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date_of(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_of(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(date_of(1_798_761_600), "2027-01-01T00:00:00Z");
    }

    #[test]
    fn cache_sizes_are_read_in_every_unit() {
        assert_eq!(cache_bytes("32768K\n"), Some(32 << 20));
        assert_eq!(cache_bytes("96M"), Some(96 << 20));
        assert_eq!(cache_bytes("4096"), Some(4096));
        assert_eq!(cache_bytes("many"), None);
    }

    #[test]
    fn a_processor_is_told_by_name_family_and_model() {
        let info = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: Some CPU\n";
        assert_eq!(processor(info), "Some CPU, family 25 model 17");
    }
}
