//! What tests say where a machine lacks what they need: beside the message, a line in the file that
//! `GUMBALL_SKIPPED` names, which `ci/run` counts in its last line (`ci/lib/command`). A test that only ever
//! runs elsewhere, on a GPU say, says so without this.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::thread;

/// Returns what was found. Where it was not, says that the test is skipped, and why.
pub fn or_skip<T, E: Display>(found: Result<T, E>) -> Option<T> {
    found.inspect_err(|error| skip(error)).ok()
}

/// Says that the test, or a part of it, is skipped, and why.
pub fn skip(reason: impl Display) {
    println!("skipped: {reason}");
    if let Some(file) = env::var_os("GUMBALL_SKIPPED") {
        record(Path::new(&file), &reason.to_string());
    }
}

fn record(file: &Path, reason: &str) {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    // Tests run on threads that have their names.
    let thread = thread::current();
    let line = format!("test\t{}\t{reason}\n", thread.name().unwrap_or("?"));
    // One write, as other processes append too.
    let written = OpenOptions::new().append(true).create(true).open(file);
    let written = written.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("GUMBALL_SKIPPED is {}: {error}", file.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_skipped_is_a_line_with_the_tests_name_and_its_reason() {
        let file = env::temp_dir().join(format!("gumball-skipped-{}", std::process::id()));
        record(&file, "there is\nno compiler");
        record(&file, "there is no GPU");
        let lines = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let name = "test\tskipped::tests::what_is_skipped_is_a_line_with_the_tests_name_and_its_reason\t";
        assert_eq!(lines, format!("{name}there is no compiler\n{name}there is no GPU\n"));
    }
}
