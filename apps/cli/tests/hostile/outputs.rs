//! Output paths of the command: a path at which something other than a plain file lies is refused before any
//! work.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use crate::places::{refuses_all_but_files, spares_neighbours};
use crate::support::{Files, bytes, refuses};

/// Runs the command with a path at the end, and returns what it says if it refuses.
fn run(args: &[&str], path: &Path) -> Result<(), String> {
    let output =
        Command::new(env!("CARGO_BIN_EXE_gumball")).args(args).arg(path).output().expect("it starts");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).expect("text")) }
}

#[test]
fn a_page_replaces_a_plain_file_and_nothing_else() {
    let page = |path: &Path| run(&["inspect", "--kind", "flat", "--vocab", "8", "--html"], path);
    refuses_all_but_files(page);
    spares_neighbours(&[".out.html", "out.html.new"], page);
}

/// Writes a safetensors file with an output matrix.
fn model(files: &Files) -> String {
    let data = bytes(&crate::support::logits(64 * 8, 3));
    let tensor = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![64, 8], &data).unwrap();
    files.write("m.safetensors", &safetensors::serialize([("lm_head.weight", tensor)], None).unwrap())
}

#[test]
fn the_artefact_of_a_head_replaces_a_plain_file_and_nothing_else() {
    let files = Files::new();
    let model = model(&files);
    for kind in ["certified", "clustered"] {
        let model = model.clone();
        let build =
            move |path: &Path| run(&["head", "build", "--model", &model, "--kind", kind, "--out"], path);
        refuses_all_but_files(build);
    }
}

#[test]
fn a_model_that_is_no_file_is_not_waited_for() {
    let files = Files::new();
    let (pipe, folder) = (files.path("pipe"), files.path("."));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let out = files.path("out").to_str().expect("text").to_owned();
    for (path, says) in [(&pipe, "it is a pipe, not a file"), (&folder, "it is a folder, not a file")] {
        let path = path.to_str().expect("text");
        for args in [
            &["head", "build", "--out", &out, "--model", path][..],
            &["head", "verify", "--model", path, path],
            &["head", "inspect", path],
            &["head", "check", "--text", path, "--model", path, path],
            &["generate", "x", "--model", path],
            &["inspect", "--prompt", "x", "--model", path],
        ] {
            let message = refuses(args);
            assert!(message.contains(says), "{args:?}: {message}");
        }
    }
    let message = refuses(&["kernels", "--arch", "9.0", "--out", &model(&files)]);
    assert!(message.contains("it is no folder"), "{message}");
}
