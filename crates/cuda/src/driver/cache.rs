//! Compiled programs on disk: folders that carry them, and the user's cache.
//!
//! The driver looks for a program's machine code in the carried folders, then in the cache. If neither has
//! it, the driver compiles the program and keeps the result in the cache. A file's name contains a digest of
//! the program's sources, the architecture and the compiler's options (`entry.rs`), so a folder that was
//! filled from other sources has nothing for this build. A truncated or damaged file is ignored.
//!
//! **Carried folders** are only read, and their values are compressed. `gumball kernels` fills them. The
//! Python package brings one, which is trusted as the package's library is. `GUMBALL_KERNELS` names another;
//! if that has nothing for a device, opening the device fails, because somebody counts on it.
//!
//! **The cache** is the user's. Processes may share the folder: an entry appears when it is whole. What takes
//! a minute to make is made by one of them, while the others wait (`Cache::get_or_make`).
//!
//! Entries are machine code, so only the user and root may have write access to the cache and to the folder
//! that `GUMBALL_KERNELS` names (`private_files.rs`). What others may have written is not read. If that is
//! the whole cache, [`Cache::trouble`] says why. A cache that cannot be used is no error: each process then
//! compiles its programs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gumball_cpu::private_files::{self, Readers};

use crate::driver::arch::Arch;
use crate::driver::entry::{Key, compress, expand};
use crate::driver::named;
use crate::error::{Error, Result};
use crate::programs::kernels::Program;

/// Folders of compiled programs: those that are carried, and one that is the user's.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    carried: Vec<Carried>,
}

/// A folder of compiled programs that is only read.
#[derive(Clone, Debug)]
struct Carried {
    folder: PathBuf,
    /// Whether the user named it, and not the program that brings it.
    named: bool,
}

impl Cache {
    /// Returns the user's cache, with the carried folder that `GUMBALL_KERNELS` names, if any.
    ///
    /// The cache is the folder `kernels` in the folder that `GUMBALL_CACHE` names. If that is unset or empty,
    /// `gumball/kernels` in `XDG_CACHE_HOME`, or in `.cache` of `HOME`. Paths must be absolute, because a
    /// relative one would depend on the working directory. A relative `XDG_CACHE_HOME` is ignored, as its
    /// specification says. With a relative `GUMBALL_CACHE` the cache keeps nothing, and a device is not
    /// opened with a relative `GUMBALL_KERNELS`.
    #[must_use]
    pub fn user() -> Self {
        let named = named::path("GUMBALL_KERNELS");
        Self {
            folder: user_folder(|name| std::env::var_os(name)),
            carried: named.map(|folder| Carried { folder, named: true }).into_iter().collect(),
        }
    }

    /// Returns a cache in a folder, which the first write creates, without carried folders.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), carried: Vec::new() }
    }

    /// Returns a cache that keeps nothing, without carried folders.
    #[must_use]
    pub fn none() -> Self {
        Self { folder: None, carried: Vec::new() }
    }

    /// Returns this cache with a further carried folder, which need not exist. Users
    /// who can write to it can run code in this process, so it should be as private as the calling program.
    #[must_use]
    pub fn with_carried(mut self, folder: impl Into<PathBuf>) -> Self {
        self.carried.push(Carried { folder: folder.into(), named: false });
        self
    }

    /// Returns the user's folder; `None` if the cache keeps nothing.
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

    /// Returns why a device of an architecture gets nothing from a carried folder that exists; `None` if it
    /// does, or there is none.
    #[must_use]
    pub fn notice(&self, arch: Arch) -> Option<String> {
        let lacks = |carried: &Carried| Some((carried.folder.display().to_string(), carried.lack(arch)?));
        let there = self.carried.iter().filter(|carried| carried.folder.exists());
        let reasons: Option<Vec<_>> = there.map(lacks).collect();
        reasons?.first().map(|(folder, reason)| format!("{folder} is not used: {reason}"))
    }

    /// Returns whether a carried folder has all programs for a device.
    ///
    /// # Errors
    /// - [`Error::Kernels`] if the folder that `GUMBALL_KERNELS` names lacks some.
    pub(crate) fn carries(&self, arch: Arch) -> Result<bool> {
        for carried in &self.carried {
            match carried.lack(arch) {
                None => return Ok(true),
                Some(reason) if carried.named => {
                    let folder = carried.folder.display().to_string();
                    return Err(Error::Kernels { folder, reason });
                }
                Some(_) => {}
            }
        }
        Ok(false)
    }

    /// Returns a program's machine code for a device, from the carried folders or the user's.
    pub(crate) fn find(&self, program: Program, arch: Arch) -> Option<Vec<u8>> {
        let carried = self.carried.iter().find_map(|carried| carried.find(program, arch));
        carried.or_else(|| self.read(&Key::of(program, arch)))
    }

    /// Returns the value of a key. If the cache does not hold it, calls `make` and keeps the result if it
    /// can. Of those who share the folder one makes at a time, and the others wait for it.
    #[cfg(any(test, feature = "emulator"))]
    pub(crate) fn get_or_make(&self, key: &Key, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        if let Some(value) = self.read(key) {
            return Ok(value);
        }
        let lock = self.lock();
        if lock.is_some()
            && let Some(value) = self.read(key)
        {
            return Ok(value);
        }
        let value = make()?;
        // If the value cannot be kept, the next process makes it again.
        let _ = self.keep(key, &value);
        Ok(value)
    }

    /// Locks the folder until the file is closed, as the system does when its process ends; `None` if there
    /// is no folder, or it takes no lock.
    #[cfg(any(test, feature = "emulator"))]
    fn lock(&self) -> Option<fs::File> {
        let folder = self.folder.as_ref()?;
        private_files::make_folder(folder, Readers::User).ok()?;
        let file = fs::File::open(folder).ok()?;
        file.lock().ok()?;
        Some(file)
    }

    /// Keeps a value, if this cache keeps anything.
    pub(crate) fn keep(&self, key: &Key, value: &[u8]) -> io::Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| write(folder, key, value, Readers::User))
    }

    /// Returns the value of a key, if the user's folder holds it.
    pub(crate) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        if self.trouble().is_some() {
            return None;
        }
        let file = private_files::read(&self.folder.as_ref()?.join(key.file())).ok()?;
        key.decode(&file).map(<[u8]>::to_vec)
    }
}

impl Carried {
    /// Returns why nothing is read from a folder that the user named, if so.
    fn trouble(&self) -> Option<String> {
        match self.named {
            true if !self.folder.is_absolute() => Some("it must be an absolute path".to_owned()),
            true => private_files::trouble(&self.folder),
            false => None,
        }
    }

    /// Returns why a device of an architecture gets no machine code from the folder; `None` if it has files
    /// of all programs. Reads none of them.
    fn lack(&self, arch: Arch) -> Option<String> {
        if let Some(trouble) = self.trouble() {
            return Some(trouble);
        }
        let files = match fs::read_dir(&self.folder) {
            Ok(entries) => entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()),
            Err(error) => return Some(error.to_string()),
        };
        let files: BTreeSet<String> = files.collect();
        let has = |binary| Program::all().all(|program| files.contains(&Key::of(program, binary).file()));
        if arch.binaries().any(has) {
            return None;
        }
        let first = Program::all().next().expect("there are programs");
        let of =
            |binary| files.iter().any(|file| file.starts_with(&format!("{}-", Key::name_of(first, binary))));
        Some(if arch.binaries().any(of) {
            "it was filled from other sources than this build of Gumball; fill it again".to_owned()
        } else {
            format!("it has no kernels that {arch} runs")
        })
    }

    /// Returns a program's machine code for a device: for its own architecture, or the best that it runs.
    fn find(&self, program: Program, arch: Arch) -> Option<Vec<u8>> {
        if self.trouble().is_some() {
            return None;
        }
        let read = if self.named { private_files::read } else { private_files::read_trusted };
        arch.binaries().find_map(|binary| {
            let key = Key::of(program, binary);
            let file = read(&self.folder.join(key.file())).ok()?;
            expand(key.decode(&file)?).ok()
        })
    }
}

/// Returns whether a folder carries a program's machine code for an architecture, undamaged.
pub(crate) fn carries(folder: &Path, program: Program, arch: Arch) -> bool {
    let key = Key::of(program, arch);
    let file = private_files::read_trusted(&folder.join(key.file())).unwrap_or_default();
    key.decode(&file).is_some_and(|compressed| expand(compressed).is_ok())
}

/// Writes a program's machine code into a folder that carries it.
pub(crate) fn carry(folder: &Path, program: Program, arch: Arch, cubin: &[u8]) -> io::Result<()> {
    write(folder, &Key::of(program, arch), &compress(cubin)?, Readers::All)
}

/// Removes files of compiled kernels from a folder if they are of other sources than this build's, by name
/// and content.
pub(crate) fn remove_others(folder: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    let is_other = |file: &str| {
        let (name, _digest) = file.strip_suffix(".bin")?.rsplit_once('-')?;
        let (program, arch) = name.rsplit_once('-')?;
        let arch: Arch = arch.parse().ok()?;
        let known = Program::all().find(|known| known.name() == program);
        Some(known.is_none_or(|program| Key::of(program, arch).file() != file))
    };
    for entry in entries.flatten() {
        let has_name = entry.file_name().to_str().and_then(is_other) == Some(true);
        if has_name && private_files::read(&entry.path()).is_ok_and(|file| Key::is_entry(&file)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Writes an entry into a folder, which is made if needed.
fn write(folder: &Path, key: &Key, value: &[u8], readers: Readers) -> io::Result<()> {
    private_files::make_folder(folder, readers)?;
    private_files::write(&folder.join(key.file()), &key.encode(value), readers)
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

#[cfg(all(test, unix))]
#[path = "../../../cpu/tests/places/mod.rs"]
mod places;

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::driver::ahead::Destination;

    fn key(name: &str) -> Key {
        Key::new(name, "text")
    }

    fn path(cache: &Cache, name: &str) -> PathBuf {
        cache.folder().unwrap().join(key(name).file())
    }

    /// Returns a folder that goes with the first value, and that does not exist yet.
    fn scratch() -> (TempDir, PathBuf) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("kernels");
        (temporary, folder)
    }

    /// Cuts a file at each length, and flips a bit of each of its bytes; calls `check` with each damage.
    fn damage(path: &Path, mut check: impl FnMut(&str)) {
        let whole = fs::read(path).unwrap();
        for place in 0..whole.len() {
            fs::write(path, &whole[..place]).unwrap();
            check(&format!("cut at {place}"));
            let mut bytes = whole.clone();
            bytes[place] ^= 0x40;
            fs::write(path, bytes).unwrap();
            check(&format!("flipped at {place}"));
        }
    }

    fn get(cache: &Cache, name: &str, value: &[u8]) -> (Vec<u8>, bool) {
        let mut made = false;
        let got = cache.get_or_make(&key(name), || {
            made = true;
            Ok(value.to_vec())
        });
        (got.unwrap(), made)
    }

    #[test]
    fn an_entry_is_made_once_and_belongs_to_its_key() {
        let (_temporary, folder) = scratch();
        let cache = Cache::at(&folder);
        assert_eq!(get(&cache, "a", b"1"), (b"1".to_vec(), true));
        assert_eq!(get(&cache, "a", b"2"), (b"1".to_vec(), false));
        assert_eq!(get(&cache, "b", b"3"), (b"3".to_vec(), true));
        fs::rename(path(&cache, "b"), path(&cache, "a")).unwrap();
        assert_eq!(get(&cache, "a", b"4"), (b"4".to_vec(), true), "another key's entry is none");
    }

    #[test]
    fn a_damaged_entry_is_made_again() {
        let (_temporary, folder) = scratch();
        let cache = Cache::at(&folder);
        get(&cache, "a", b"12345678");
        damage(&path(&cache, "a"), |how| {
            assert_eq!(get(&cache, "a", b"12345678"), (b"12345678".to_vec(), true), "{how}");
        });
        assert!(!get(&cache, "a", b"").1);
    }

    #[cfg(unix)]
    #[test]
    fn those_who_start_together_make_an_entry_once() {
        let (_temporary, folder) = scratch();
        let makers = std::sync::atomic::AtomicU32::new(0);
        let make = || {
            makers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(50));
            Ok(b"1".to_vec())
        };
        std::thread::scope(|scope| {
            let get = || Cache::at(&folder).get_or_make(&key("a"), make).unwrap();
            let threads = [(); 4].map(|()| scope.spawn(get));
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), b"1"));
        });
        assert_eq!(makers.into_inner(), 1);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
    }

    #[test]
    fn many_writers_leave_one_whole_entry() {
        let (_temporary, folder) = scratch();
        let cache = Cache::at(&folder);
        let value = vec![7u8; 100_000];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        cache.keep(&key("a"), &value).unwrap();
                        assert_eq!(cache.read(&key("a")).as_deref(), Some(&value[..]));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
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
        let (_temporary, folder) = scratch();
        let cache = Cache::at(&folder);
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert!(get(&cache, "a", b"1").1 && !get(&cache, "a", b"1").1);
        let path = path(&cache, "a");
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
        assert!(get(&cache, "a", b"6").1 && get(&cache, "a", b"7").1, "a link is not followed");
        assert_eq!(fs::read(&elsewhere).unwrap().last(), Some(&b'2'), "nor written through");
    }

    #[cfg(unix)]
    #[test]
    fn an_entry_replaces_a_plain_file_and_nothing_else() {
        let write = |path: &Path| {
            private_files::write(path, b"code", Readers::User).map_err(|error| error.to_string())
        };
        places::refuses_all_but_files(write);
        places::spares_neighbours(&[], write);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        assert!(get(&Cache::at("/dev/null/none"), "a", b"1").1);
        assert!(get(&Cache::none(), "a", b"1").1);
    }

    const SM_90: Arch = Arch::new(9, 0);

    /// Fills a folder with made-up machine code of all programs for an architecture.
    fn fill(folder: &Path, arch: Arch) {
        for program in Program::all() {
            carry(folder, program, arch, format!("{} {arch}", program.name()).as_bytes()).unwrap();
        }
    }

    fn any_program() -> Program {
        Program::all().next().unwrap()
    }

    /// A cache as [`Cache::user`] returns if `GUMBALL_KERNELS` names a folder.
    fn naming(folder: &Path) -> Cache {
        Cache { folder: None, carried: vec![Carried { folder: folder.into(), named: true }] }
    }

    fn refusal(cache: &Cache, arch: Arch) -> String {
        match cache.carries(arch) {
            Err(Error::Kernels { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_device_gets_the_best_machine_code_that_it_runs() {
        let (_temporary, folder) = scratch();
        for arch in [Arch::new(8, 0), Arch::new(8, 6), SM_90] {
            fill(&folder, arch);
        }
        let cache = Cache::none().with_carried(&folder);
        let found = |major, minor| {
            let arch = Arch::new(major, minor);
            let found = cache.find(any_program(), arch).map(|cubin| String::from_utf8(cubin).unwrap());
            assert_eq!(cache.carries(arch).unwrap(), found.is_some());
            found
        };
        assert_eq!(found(8, 0).as_deref(), Some("history_edits sm_80"));
        assert_eq!(found(8, 9).as_deref(), Some("history_edits sm_86"));
        assert_eq!(found(9, 0).as_deref(), Some("history_edits sm_90"));
        assert_eq!((found(8, 7), found(10, 0), found(7, 5)), (None, None, None));
    }

    #[test]
    fn a_carried_folder_comes_before_the_cache() {
        let (temporary, carried) = scratch();
        let own = temporary.path().join("own");
        let cache = Cache::at(&own).with_carried(&carried);
        let key = Key::of(any_program(), SM_90);
        cache.keep(&key, b"own").unwrap();
        assert_eq!(cache.find(any_program(), SM_90).as_deref(), Some(&b"own"[..]));
        fill(&carried, SM_90);
        assert_eq!(cache.find(any_program(), SM_90).as_deref(), Some(&b"history_edits sm_90"[..]));
        // A damaged file in the carried folder is ignored.
        let file = carried.join(key.file());
        damage(&file, |how| {
            assert_eq!(cache.find(any_program(), SM_90).as_deref(), Some(&b"own"[..]), "{how}");
        });
        // So is one whose digest is right, and whose value cannot be expanded.
        fs::write(&file, key.encode(b"no LZMA")).unwrap();
        assert_eq!(cache.find(any_program(), SM_90).as_deref(), Some(&b"own"[..]));
    }

    #[test]
    fn a_folder_that_is_named_must_have_the_devices_kernels() {
        let (_temporary, folder) = scratch();
        assert!(refusal(&naming(&folder), SM_90).contains("No such file"));
        fill(&folder, SM_90);
        assert_eq!(naming(&folder).carries(SM_90), Ok(true));
        assert_eq!(refusal(&naming(&folder), Arch::new(8, 0)), "it has no kernels that sm_80 runs");
        let file = folder.join(Key::of(any_program(), SM_90).file());
        fs::rename(&file, folder.join("history_edits-sm_90-0123456789abcdef.bin")).unwrap();
        assert!(refusal(&naming(&folder), SM_90).contains("other sources"));
        assert!(refusal(&naming("kernels".as_ref()), SM_90).contains("must be an absolute path"));
    }

    #[test]
    fn a_folder_that_comes_with_the_program_may_lack_kernels() {
        let (_temporary, folder) = scratch();
        let cache = Cache::none().with_carried(&folder);
        assert_eq!(cache.notice(SM_90), None, "there is no folder");
        assert_eq!((cache.carries(SM_90), cache.find(any_program(), SM_90)), (Ok(false), None));
        fill(&folder, SM_90);
        assert_eq!((cache.carries(SM_90), cache.notice(SM_90)), (Ok(true), None));
        assert!(
            cache.notice(Arch::new(8, 0)).is_some_and(|notice| notice.contains("no kernels that sm_80 runs"))
        );
    }

    #[test]
    fn kernels_of_other_sources_are_removed_from_a_folder_that_is_filled() {
        let (_temporary, folder) = scratch();
        fill(&folder, SM_90);
        let count = fs::read_dir(&folder).unwrap().count();
        let others = ["history_edits-sm_90-0123456789abcdef.bin", "gone_f32-sm_80-0123456789abcdef.bin"];
        let strangers = ["notes.txt", "notes.bin", "a-b-c.bin"];
        let entry = Key::new("another", "text").encode(b"code");
        others.iter().for_each(|file| fs::write(folder.join(file), &entry).unwrap());
        strangers.iter().for_each(|file| fs::write(folder.join(file), b"").unwrap());
        // Nor does a file go that only has the name of one, or a link to one.
        let names = ["gone_f32-sm_80-0000000000000000.bin", "gone_f32-sm_80-1111111111111111.bin"];
        fs::write(folder.join(names[0]), b"mine").unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(folder.join(others[1]), folder.join(names[1])).unwrap();
        #[cfg(not(unix))]
        fs::write(folder.join(names[1]), b"mine").unwrap();
        remove_others(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), count + strangers.len() + names.len());
        assert!(others.iter().all(|file| !folder.join(file).exists()));
        assert!(Destination::Folder(&folder).missing(&[SM_90]).is_empty());
        assert_eq!(Destination::Folder(&folder).missing(&[SM_90, Arch::OLDEST]).len(), count);
        remove_others(&folder.join("none")).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_named_folder_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let (_temporary, folder) = scratch();
        let set = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fill(&folder, SM_90);
        let file = folder.join(Key::of(any_program(), SM_90).file());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&file)), (0o755, 0o644), "other users may read it");
        set(&folder, 0o777);
        assert!(refusal(&naming(&folder), SM_90).contains("others can write to it (mode 777)"));
        assert_eq!(naming(&folder).find(any_program(), SM_90), None);
        set(&folder, 0o755);
        set(&file, 0o666);
        assert_eq!(naming(&folder).find(any_program(), SM_90), None, "anybody may have written the file");
        // What the program itself brings is trusted as the program is.
        assert!(Cache::none().with_carried(&folder).find(any_program(), SM_90).is_some());
    }
}
