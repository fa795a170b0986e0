//! Output paths at which something other than a plain file lies: a test body that each crate runs over its
//! code that writes files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Bytes that no writer may harm.
const PRECIOUS: &[u8] = b"years of work";
/// A writer that takes longer than this is waiting for another process.
const PATIENCE: Duration = Duration::from_secs(120);

/// Puts something at a path, and says whether the system let it.
type Put = fn(&Path) -> bool;

/// What may lie at a path.
const THINGS: [(&str, Put); 8] = [
    ("a link to a file", |path| {
        let precious = path.with_file_name("precious");
        fs::write(&precious, PRECIOUS).is_ok() && symlink(&precious, path).is_ok()
    }),
    ("a link to nothing", |path| symlink(path.with_file_name("nothing"), path).is_ok()),
    ("a link to a folder", |path| {
        let folder = path.with_file_name("other folder");
        fs::create_dir(&folder).is_ok() && symlink(folder, path).is_ok()
    }),
    ("a link to a device", |path| symlink("/dev/null", path).is_ok()),
    ("a pipe", |path| Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success())),
    ("a folder", |path| fs::create_dir(path).is_ok() && fs::write(path.join("precious"), PRECIOUS).is_ok()),
    ("a socket", |path| UnixListener::bind(path).is_ok()),
    // Only root may.
    ("a device", |path| {
        let made = Command::new("mknod").arg(path).args(["c", "1", "3"]).output();
        made.is_ok_and(|made| made.status.success())
    }),
];

/// Lets `write` write to a path where each of the things lies, to the path of a plain file and to a path
/// where nothing lies. It must refuse the things at once and leave them unharmed, write the other two files,
/// and leave no further file.
pub fn refuses_all_but_files<W>(write: W)
where
    W: Fn(&Path) -> Result<(), String> + Clone + Send + 'static,
{
    for (thing, put) in THINGS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.html");
        if !put(&path) {
            eprintln!("{thing}: not here");
            continue;
        }
        let before = contents(folder.path());
        let refused = in_time(thing, write.clone(), &path).expect_err(thing);
        assert!(refused.contains("it is a ") && refused.contains(", not a file"), "{thing}: {refused}");
        assert_eq!(contents(folder.path()), before, "{thing}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.html");
    let only = || contents(folder.path()).into_keys().collect::<Vec<_>>();
    in_time("nothing", write.clone(), &path).expect("it is written");
    assert_eq!(only(), ["out.html"]);
    fs::write(&path, PRECIOUS).expect("another file");
    fs::hard_link(&path, folder.path().join("precious")).expect("a second name");
    in_time("a file", write, &path).expect("it is replaced");
    assert_ne!(fs::read(&path).expect("a file"), PRECIOUS);
    assert_eq!(fs::read(folder.path().join("precious")).expect("a file"), PRECIOUS, "as a whole");
    assert_eq!(only(), ["out.html", "precious"]);
}

/// Lets `write` write where each of the things, and a file of the user's own, has a name that the writer may
/// want beside its path: none of them is harmed.
pub fn spares_neighbours<W>(names: &[&str], write: W)
where
    W: Fn(&Path) -> Result<(), String> + Clone + Send + 'static,
{
    let own = ("a file of the user's", (|path: &Path| fs::write(path, PRECIOUS).is_ok()) as Put);
    for name in names {
        for (thing, put) in THINGS.into_iter().chain([own]) {
            let folder = tempfile::tempdir().expect("a folder");
            if !put(&folder.path().join(name)) {
                continue;
            }
            let before = contents(folder.path());
            let path = folder.path().join("out.html");
            let outcome = in_time(thing, write.clone(), &path);
            let mut after = contents(folder.path());
            assert_eq!(after.remove("out.html").is_some(), outcome.is_ok(), "{thing} at {name}: {outcome:?}");
            assert_eq!(after, before, "{thing} at {name}: {outcome:?}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mine = |serial: u32| folder.path().join(format!(".gumball-{}-{serial}", std::process::id()));
    (0..2000).for_each(|serial| fs::write(mine(serial), PRECIOUS).expect("a file"));
    in_time("files of the names of its own", write, &folder.path().join("out.html")).expect("it is written");
    assert!((0..2000).all(|serial| fs::read(mine(serial)).is_ok_and(|bytes| bytes == PRECIOUS)));
}

/// Runs a writer, which must come back.
fn in_time<W>(thing: &str, write: W, path: &Path) -> Result<(), String>
where
    W: Fn(&Path) -> Result<(), String> + Send + 'static,
{
    let (done, outcome) = mpsc::channel();
    let path = path.to_owned();
    thread::spawn(move || done.send(write(&path)));
    outcome.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{thing}: it waits"))
}

/// Returns the entries of a folder: each name, with its type and contents.
fn contents(folder: &Path) -> BTreeMap<String, String> {
    let describe = |path: &Path| {
        let kind = fs::symlink_metadata(path).expect("it is there").file_type();
        let mut text = String::new();
        if kind.is_file() {
            File::open(path).and_then(|mut file| file.read_to_string(&mut text)).ok();
        }
        let leads = fs::read_link(path).ok();
        let within = if kind.is_dir() { contents(path) } else { BTreeMap::new() };
        let special = [kind.is_fifo(), kind.is_socket(), kind.is_char_device()];
        format!("{kind:?} {special:?} {leads:?} {text:?} {within:?}")
    };
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), describe(&entry.path()))).collect()
}
