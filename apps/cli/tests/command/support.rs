//! Functions that the tests of the command share: running it, and writing small files of logits.

use std::path::PathBuf;
use std::process::{Command, Output};

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::Device;
use serde_json::Value;
use tempfile::TempDir;

/// Runs the command to its end.
pub fn gumball(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gumball")).args(args).output().expect("the command starts")
}

/// Runs the command, which must succeed, and returns what it wrote.
pub fn succeeds(args: &[&str]) -> String {
    let output = gumball(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "gumball {args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs the command, which must refuse with exit code 2, and returns what it says.
pub fn refuses(args: &[&str]) -> String {
    let output = gumball(args);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(2), "gumball {args:?}: {stderr}");
    stderr
}

/// Returns whether the host can emulate a device.
pub fn emulated() -> bool {
    or_skip(Device::emulated()).is_some()
}

/// Returns numbers from -0.5 to 0.5, without end.
pub fn uniform(mut state: u64) -> impl Iterator<Item = f32> {
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    })
}

/// Parses one JSON value a line.
pub fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A folder of small files.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder for the test"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the path of a file as text.
    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    /// Writes a file and returns its path as text.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("the file is written");
        self.name(name)
    }
}

/// Returns an `.npy` file of version 1.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), data].concat()
}

/// Returns little-endian bytes.
pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns a row of whole logits and halves, exact in every type.
pub fn logits(vocab: usize, seed: u32) -> Vec<f32> {
    let mut word = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        word
    };
    (0..vocab).map(|_| (next() % 64) as f32 / 8.0 - 4.0).collect()
}
