//! The tests of the GPU bench, which are in Python like it: its runner, its record and its tables, without a
//! GPU.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

#[test]
fn the_gpu_bench_keeps_what_engines_say_and_names_what_is_left_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu");
    let tests =
        Command::new("python3").args(["-B", "-m", "unittest", "discover", "-b"]).current_dir(folder).output();
    match tests {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            gumball_bench_protocol::skipped::skip("there is no python3")
        }
        tests => {
            let tests = tests.expect("python3 starts");
            let said = String::from_utf8_lossy(&tests.stderr);
            assert!(tests.status.success() && said.contains("\nRan "), "{said}");
            assert!(!said.contains("Ran 0 tests"), "{said}");
        }
    }
}
