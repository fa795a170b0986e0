//! The disk cache of compiled programs.
//!
//! The key of an entry is the program's source with its headers, the architecture, and the compiler with its
//! version and options. An entry holds its whole key, and a SHA-256 of key and value. A truncated or damaged
//! entry is ignored, and its program compiled again.
//!
//! Processes may share the folder: a writer writes a temporary file and renames it to the entry's name.
//!
//! Entries are machine code, so only the user may have write access to the folder and to the entries
//! (`private_files.rs`). The cache does not read what others may have written. If that is the whole
//! folder, [`Cache::trouble`] says why. A cache that cannot be used is no error: each process then compiles
//! its programs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

use crate::driver::private_files;

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

/// The first bytes of an entry; change them whenever its layout changes.
const MAGIC: &[u8; 8] = b"gumball2";

/// The bytes of a SHA-256.
const DIGEST_BYTES: usize = 32;

impl Cache {
    /// Returns the user's cache: the folder `kernels` in the folder that `GUMBALL_CACHE` names. If that is
    /// unset or empty, `gumball/kernels` in `XDG_CACHE_HOME`, or in `.cache` of `HOME`.
    ///
    /// Paths must be absolute, because a relative one would depend on the working directory. A relative
    /// `XDG_CACHE_HOME` is ignored, as its specification says. With a relative `GUMBALL_CACHE` the cache
    /// keeps nothing.
    #[must_use]
    pub fn user() -> Self {
        Self { folder: user_folder(|name| std::env::var_os(name)) }
    }

    /// Returns a cache in a folder, which the first write creates.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// Returns a cache that keeps nothing.
    #[must_use]
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// Returns the folder; `None` if the cache keeps nothing.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns why the cache does not use its folder, because other users may have written there; `None` if
    /// it does, or if the cache keeps nothing.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        private_files::trouble(self.folder.as_deref()?)
    }

    /// Returns the value of a key. If the cache does not hold it, calls `make` and keeps the result if it
    /// can.
    ///
    /// # Errors
    /// The error of `make`.
    pub fn get_or_make<E>(&self, key: &str, make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        if let Some(value) = self.read(key) {
            return Ok(value);
        }
        let value = make()?;
        // If the value cannot be kept, the next process makes it again.
        let _ = self.write(key, &value);
        Ok(value)
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        let name = Sha256::digest(key.as_bytes());
        let name: String = name[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        Some(self.folder.as_ref()?.join(format!("{name}.bin")))
    }

    fn read(&self, key: &str) -> Option<Vec<u8>> {
        if self.trouble().is_some() {
            return None;
        }
        let entry = private_files::read(&self.path(key)?).ok()?;
        let rest = entry.strip_prefix(MAGIC)?;
        let (digest, rest) = rest.split_first_chunk::<DIGEST_BYTES>()?;
        if Sha256::digest(rest)[..] != digest[..] {
            return None;
        }
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (stored, value) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        (stored == key.as_bytes()).then(|| value.to_vec())
    }

    fn write(&self, key: &str, value: &[u8]) -> std::io::Result<()> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let Some(path) = self.path(key) else { return Ok(()) };
        let rest = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), value].concat();
        let entry = [&MAGIC[..], &Sha256::digest(&rest)[..], &rest].concat();
        if let Some(folder) = &self.folder {
            private_files::make_folder(folder)?;
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{}-{serial}", std::process::id()));
        let done = private_files::write_new(&aside, &entry).and_then(|()| fs::rename(&aside, &path));
        if done.is_err() {
            let _ = fs::remove_file(&aside);
        }
        done
    }
}

/// Returns the folder that environment variables name; `None` if they name no absolute path.
fn user_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = match variable("GUMBALL_CACHE").filter(|value| !value.is_empty()) {
        Some(_) => absolute("GUMBALL_CACHE")?,
        None => absolute("XDG_CACHE_HOME")
            .map(|path| path.join("gumball"))
            .or_else(|| Some(absolute("HOME")?.join(".cache/gumball")))?,
    };
    Some(folder.join("kernels"))
}

/// Returns the FNV-1a hash of the concatenated parts, for names that need no cryptographic hash.
#[cfg(feature = "emulator")]
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
    fn only_absolute_paths_lead_to_kernels() {
        let folder = |variables: &[(&str, &str)]| {
            user_folder(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            })
        };
        let home = ("HOME", "/home/a");
        let kernels = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(&[home]), kernels("/home/a/.cache/gumball/kernels"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "relx"), home]), kernels("/home/a/.cache/gumball/kernels"));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "/x"), home]), kernels("/x/gumball/kernels"));
        assert_eq!(folder(&[("GUMBALL_CACHE", ""), home]), kernels("/home/a/.cache/gumball/kernels"));
        assert_eq!(folder(&[("GUMBALL_CACHE", "/g"), home]), kernels("/g/kernels"));
        assert_eq!(folder(&[("GUMBALL_CACHE", "g"), home]), None);
        assert_eq!(folder(&[("HOME", "a")]), None);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_or_entry_that_others_can_write_to_is_not_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = scratch("foreign");
        let cache = Cache::at(&folder);
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert!(get(&cache, "a", b"1").1 && !get(&cache, "a", b"1").1);
        let path = cache.path("a").unwrap();
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));

        set(&path, 0o622);
        assert!(get(&cache, "a", b"2").1, "anybody may have written the entry");
        assert_eq!((get(&cache, "a", b"3"), mode(&path)), ((b"2".to_vec(), false), 0o600));

        set(&folder, 0o777);
        assert!(get(&cache, "a", b"4").1 && get(&cache, "a", b"4").1, "anybody may write into the folder");
        assert!(cache.trouble().is_some_and(|reason| reason.contains("others can write to it (mode 777)")));
        set(&folder, 0o700);
        assert!(!get(&cache, "a", b"5").1 && cache.trouble().is_none());

        let elsewhere = folder.join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(get(&cache, "a", b"6").1, "a link is not followed");
        assert_eq!(fs::read(&elsewhere).unwrap().last(), Some(&b'2'), "nor written through");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        assert!(get(&Cache::at("/dev/null/none"), "a", b"1").1);
        assert!(get(&Cache::none(), "a", b"1").1);
    }
}
