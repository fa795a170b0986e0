//! What this machine is: processor, cores, caches, as far as the system tells.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The processor, as the system describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The architecture this program was built for.
    pub arch: &'static str,
    /// The operating system.
    pub os: &'static str,
    /// Threads that may run at once.
    pub threads: usize,
    /// The data caches that a core sees, smallest first.
    pub caches: Vec<Cache>,
}

/// One cache.
#[derive(Clone, Debug, Serialize)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// Its size.
    pub size_bytes: u64,
    /// The hardware threads that share it.
    pub shared_by: usize,
}

impl Machine {
    /// Asks the system.
    #[must_use]
    pub fn ask() -> Self {
        Self {
            cpu: cpu_name().unwrap_or_else(|| "unknown".to_owned()),
            arch: std::env::consts::ARCH,
            os: std::env::consts::OS,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            caches: caches(),
        }
    }
}

/// Reads the processor's name where Linux keeps it.
fn cpu_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let field = |name: &str| {
        let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    field("model name").or_else(|| field("Model")).or_else(|| field("CPU implementer"))
}

/// Reads the caches where Linux lists them; none elsewhere.
fn caches() -> Vec<Cache> {
    let folder = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let mut caches: Vec<Cache> =
        (0..8).filter_map(|index| cache(&folder.join(format!("index{index}")))).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

fn cache(folder: &Path) -> Option<Cache> {
    let read = |name: &str| Some(fs::read_to_string(folder.join(name)).ok()?.trim().to_owned());
    if read("type")? == "Instruction" {
        return None;
    }
    let size = read("size")?;
    let (digits, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let unit = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => 1,
    };
    Some(Cache {
        level: read("level")?.parse().ok()?,
        size_bytes: digits.parse::<u64>().ok()? * unit,
        shared_by: read("shared_cpu_list").map_or(1, |list| listed(&list)),
    })
}

/// Counts the processors of a list such as `0-3,8`.
fn listed(list: &str) -> usize {
    let one = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?),
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').filter_map(one).sum::<usize>().max(1)
}

/// Formats a size in the largest unit that divides it well.
#[must_use]
pub fn size(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{:.1} GiB", b as f64 / f64::from(1 << 30)),
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!([listed("0"), listed("0-3"), listed("0-1,4,6-7"), listed("")], [1, 4, 5, 1]);
    }
}
