//! `gumball kernels` compiles for architectures that this machine does not have, and names a missing compiler
//! and missing kernels.
//!
//! Compilation needs NVRTC, which `GUMBALL_NVRTC` names; the test of it is left to `ci/gpu build-kernels`,
//! because it takes minutes.

use std::process::{Command, Output};

fn gumball(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gumball"));
    command.args(arguments).env("GUMBALL_NVRTC", "/none/libnvrtc.so").env_remove("GUMBALL_KERNELS");
    command.output().expect("the command starts")
}

#[test]
fn a_folder_without_kernels_fails_the_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("text");
    let output = gumball(&["kernels", "--check", "--out", folder, "--arch", "sm_90,8.0"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("lacks") && text.contains("history_edits-sm_80"), "{text}");
}

#[test]
fn without_a_compiler_nothing_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = gumball(&["kernels", "--arch", "9.0", "--out", folder.path().to_str().expect("text")]);
    assert_ne!(output.status.code(), Some(0));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("NVRTC is missing") && text.contains("/none/libnvrtc.so"), "{text}");
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
}

#[test]
fn an_architecture_that_cannot_be_is_refused() {
    for arch in ["sm_75", "90", "sm_90a", ""] {
        let output = gumball(&["kernels", "--arch", arch, "--out", "/none"]);
        assert_eq!(output.status.code(), Some(2), "{arch}");
    }
}
