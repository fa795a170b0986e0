//! Finds the rivals that are built or installed under `proof/bench/rivals`.
//!
//! A folder with a `Cargo.toml` is a Rust rival, run as `target/release/bench-NAME`; a folder with a
//! `requirements.txt` is a Python rival, run as `engine.py` by the interpreter of its `.venv`. No list of
//! rivals is kept anywhere: a new folder is a new rival.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

/// How an engine is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The engine's name.
    pub name: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// The rivals of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rivals {
    /// The rivals that can be started, by name.
    pub ready: Vec<Program>,
    /// The names of the rivals that are not installed.
    pub missing: Vec<String>,
}

/// Looks through a folder of rivals.
///
/// # Errors
/// What listing the folder gives.
pub fn find(folder: &Path) -> io::Result<Rivals> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    let mut rivals = Rivals::default();
    for name in names {
        let home = folder.join(&name);
        let command = if home.join("Cargo.toml").is_file() {
            vec![home.join("target/release").join(format!("bench-{name}"))]
        } else if home.join("requirements.txt").is_file() {
            vec![home.join(".venv/bin/python"), home.join("engine.py")]
        } else {
            continue;
        };
        if command.iter().all(|file| file.is_file()) {
            let command = command.into_iter().map(OsString::from).collect();
            rivals.ready.push(Program { name, command });
        } else {
            rivals.missing.push(name);
        }
    }
    Ok(rivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_rivals_are_ready_others_missing_and_other_folders_nothing() {
        let folder = std::env::temp_dir().join(format!("gumball-bench-rivals-{}", std::process::id()));
        let touch = |path: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        for path in ["built/Cargo.toml", "built/target/release/bench-built", "unbuilt/Cargo.toml"] {
            touch(path);
        }
        for path in ["snake/requirements.txt", "snake/.venv/bin/python", "snake/engine.py", "shared/x.py"] {
            touch(path);
        }
        let rivals = find(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let ready: Vec<&str> = rivals.ready.iter().map(|program| program.name.as_str()).collect();
        assert_eq!((ready, rivals.missing), (vec!["built", "snake"], vec!["unbuilt".to_string()]));
        assert_eq!(rivals.ready[1].command.len(), 2);
    }
}
