//! Files at paths that callers name: writing harms nothing that lies there, and opening a pipe or a device
//! does not wait.
#![cfg(unix)]

mod places;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use gumball_cpu::MappedFile;
use gumball_cpu::files::{self, Links, NewFile, open_plain};
use places::{refuses_all_but_files, spares_neighbours};

fn write(path: &Path) -> Result<(), String> {
    files::write(path, b"whole").map_err(|error| error.to_string())
}

#[test]
fn a_file_is_written_over_a_plain_file_or_nothing() {
    refuses_all_but_files(write);
    spares_neighbours(&[], write);
}

#[test]
fn a_file_that_is_not_kept_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let mut file = NewFile::beside(&path).unwrap();
    file.write_all(b"half").unwrap();
    drop(file);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    assert!(files::check_place(&folder.path().join("none/a")).is_err());
}

#[test]
fn a_pipe_or_a_folder_is_not_opened_and_a_link_only_where_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
    std::fs::write(&file, "abc").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let open = |path: &Path, links| {
        open_plain(OpenOptions::new().read(true), path, links).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(open(&link, Links::Followed), Ok(()));
    assert_eq!(open(&link, Links::Refused), Err("it is a link, not a file".to_owned()));
    assert_eq!(open(&pipe, Links::Followed), Err("it is a pipe, not a file".to_owned()));
    assert_eq!(open(folder.path(), Links::Followed), Err("it is a folder, not a file".to_owned()));
    assert_eq!(MappedFile::open(&link).unwrap().as_ref(), b"abc");
    assert_eq!(MappedFile::open(&pipe).unwrap_err().to_string(), "it is a pipe, not a file");
}
