//! Is a file of the cache still the one that was fetched? The command checks that each time it uses the file,
//! and computes the file's digest for it once a day.
//!
//! Beside the file lies a note: the digest, the file's length, the time of its last change, and the time of
//! the check. If length and time of change equal the note's, and the note is of today, the digest is not
//! computed, because reading 98 MB takes longer than writing the first token. A program of the user's that
//! may write to the cache may write the note too. The note therefore finds accidents, and changes by programs
//! that do not write it; the digest finds all other changes within a day. Neither the file nor the note is
//! used if other users may have written it (`private_files`).

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gumball_engine::unstable::private_files::{self, Readers};
use gumball_spec::hex::hex;
use sha2::{Digest, Sha256};

/// How long a digest is taken to hold.
const DAY_SECONDS: u64 = 24 * 60 * 60;
/// The longest note.
const NOTE_BYTES: u64 = 256;

/// Returns the SHA-256 of a file at a path, in lowercase hexadecimal digits, if it is not `expected`.
///
/// # Errors
/// What reading gives.
pub(super) fn other_digest(file: File, path: &Path, expected: &str) -> io::Result<Option<String>> {
    let state = state(&file.metadata()?, expected);
    if noted(path).is_some_and(|note| is_fresh(&note, &state)) {
        return Ok(None);
    }
    let found = digest(file)?;
    if found != expected {
        return Ok(Some(found));
    }
    // Where it cannot be noted, the next start reads it again.
    let _ = note(path, &state);
    Ok(None)
}

/// Notes that a file was just found to be right.
pub(super) fn keep(path: &Path, digest: &str) {
    if let Ok(metadata) = path.metadata() {
        let _ = note(path, &state(&metadata, digest));
    }
}

/// Returns the SHA-256 of a file, in lowercase hexadecimal digits.
///
/// # Errors
/// What reading gives.
pub(crate) fn digest(mut file: File) -> io::Result<String> {
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&buffer[..count]),
        }
    }
}

fn note_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.checked"))
}

/// Describes a file's digest and state in a line.
fn state(metadata: &Metadata, digest: &str) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let modified = modified.map_or(0, |time| time.as_nanos());
    #[cfg(unix)]
    let changed = {
        use std::os::unix::fs::MetadataExt;
        format!("{}.{} {}", metadata.ctime(), metadata.ctime_nsec(), metadata.ino())
    };
    #[cfg(not(unix))]
    let changed = "-";
    format!("{digest} {} {modified} {changed}", metadata.len())
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn is_fresh(note: &str, state: &str) -> bool {
    let Some((found, at)) = note.trim_end().split_once('\n') else { return false };
    let age = at.parse().ok().and_then(|at: u64| seconds_now().checked_sub(at));
    found == state && age.is_some_and(|age| age < DAY_SECONDS)
}

fn noted(path: &Path) -> Option<String> {
    let mut note = String::new();
    let file = private_files::open(OpenOptions::new().read(true), &note_path(path)).ok()?;
    file.take(NOTE_BYTES).read_to_string(&mut note).ok()?;
    Some(note)
}

fn note(path: &Path, state: &str) -> io::Result<()> {
    let note = format!("{state}\n{}\n", seconds_now());
    private_files::write(&note_path(path), note.as_bytes(), Readers::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_note_holds_for_a_day_and_for_the_file_it_was_made_of() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "abc").unwrap();
        let other_digest = || other_digest(File::open(&path).unwrap(), &path, ABC).unwrap();
        assert_eq!(other_digest(), None);
        let note = noted(&path).expect("it was noted");
        let state = state(&path.metadata().unwrap(), ABC);
        assert!(is_fresh(&note, &state) && !is_fresh(&note, "another"));
        for age in [DAY_SECONDS + 1, u64::MAX] {
            let at = seconds_now().wrapping_sub(age);
            assert!(!is_fresh(&format!("{state}\n{at}\n"), &state), "{age}");
        }
        assert!(!is_fresh(&state, &state) && !is_fresh("", &state));

        std::fs::write(&path, "abd").unwrap();
        assert!(other_digest().is_some(), "the change shows, though the length is the same");
    }
}
