//! The disk cache of compiled programs.
//!
//! An entry is keyed by the program's source with its headers, what it was compiled for, and by which compiler. The
//! whole key lies in the entry, so a hash that collides costs a compilation and no more. Processes may share the
//! folder: an entry is written aside and renamed into place. An entry that is cut short or damaged is
//! compiled anew. A cache that cannot be written to is no error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

/// The first bytes of an entry; to be changed with its layout.
const MAGIC: &[u8; 8] = b"gumball1";

impl Cache {
    /// Returns the user's cache: the folder that `GUMBALL_CACHE` names, or `gumball` in the user's cache folder.
    #[must_use]
    pub fn user() -> Self {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = named("GUMBALL_CACHE")
            .or_else(|| Some(named("XDG_CACHE_HOME")?.join("gumball")))
            .or_else(|| Some(named("HOME")?.join(".cache/gumball")));
        Self { folder }
    }

    /// Returns a cache in a folder, which is made when first written to.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Returns a cache that keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// Returns the folder, if it keeps anything.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the entry of a key, or makes and keeps it.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_make<E>(&self, key: &str, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        if let Some(value) = self.read(key) {
            return Ok(value);
        }
        let value = make()?;
        // The next process compiles again if this one cannot keep the result.
        let _ = self.write(key, &value);
        Ok(value)
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{:016x}.bin", fnv1a(&[key.as_bytes()]))))
    }

    fn read(&self, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.path(key)?).ok()?;
        let rest = entry.strip_prefix(MAGIC)?;
        let (check, rest) = rest.split_first_chunk::<8>()?;
        let (length, _) = rest.split_first_chunk::<8>()?;
        if fnv1a(&[rest]) != u64::from_le_bytes(*check) {
            return None;
        }
        let rest = &rest[8..];
        let (stored, value) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        (stored == key.as_bytes()).then(|| value.to_vec())
    }

    fn write(&self, key: &str, value: &[u8]) -> std::io::Result<()> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let Some(path) = self.path(key) else { return Ok(()) };
        let length = (key.len() as u64).to_le_bytes();
        let parts = [&length[..], key.as_bytes(), value];
        let mut entry = MAGIC.to_vec();
        entry.extend_from_slice(&fnv1a(&parts).to_le_bytes());
        parts.iter().for_each(|part| entry.extend_from_slice(part));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}-{serial}", std::process::id()));
        let done = fs::write(&aside, entry).and_then(|()| fs::rename(&aside, &path));
        if done.is_err() {
            let _ = fs::remove_file(&aside);
        }
        done
    }
}

/// FNV-1a over parts that follow each other.
pub(crate) fn fnv1a(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gumball-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn get(cache: &Cache, key: &str, value: &[u8]) -> (Vec<u8>, bool) {
        let mut made = false;
        let got = cache.get_or_make::<Infallible>(key, || {
            made = true;
            Ok(value.to_vec())
        });
        (got.unwrap(), made)
    }

    #[test]
    fn an_entry_is_made_once_and_belongs_to_its_key() {
        let folder = scratch("once");
        let cache = Cache::at(&folder);
        assert_eq!(get(&cache, "a", b"1"), (b"1".to_vec(), true));
        assert_eq!(get(&cache, "a", b"2"), (b"1".to_vec(), false));
        assert_eq!(get(&cache, "b", b"3"), (b"3".to_vec(), true));
        fs::rename(cache.path("b").unwrap(), cache.path("a").unwrap()).unwrap();
        assert_eq!(get(&cache, "a", b"4"), (b"4".to_vec(), true), "another key's entry is none");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_entry_is_made_again() {
        let folder = scratch("damaged");
        let cache = Cache::at(&folder);
        get(&cache, "a", b"12345678");
        let path = cache.path("a").unwrap();
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(get(&cache, "a", b"12345678"), (b"12345678".to_vec(), true), "cut at {length}");
        }
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0x40;
            fs::write(&path, bytes).unwrap();
            assert_eq!(get(&cache, "a", b"12345678"), (b"12345678".to_vec(), true), "flipped at {place}");
        }
        assert!(!get(&cache, "a", b"").1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn many_writers_leave_one_whole_entry() {
        let folder = scratch("many");
        let cache = Cache::at(&folder);
        let value = vec![7u8; 100_000];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        cache.write("a", &value).unwrap();
                        assert_eq!(cache.read("a").as_deref(), Some(&value[..]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        assert!(get(&Cache::at("/dev/null/none"), "a", b"1").1);
        assert!(get(&Cache::none(), "a", b"1").1);
    }
}
