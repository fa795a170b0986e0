//! The house as the code has it: the table of stages and places, dependencies one way, where `unsafe` may be, and
//! the size of files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The stages, in the order data flows.
const STAGES: [&str; 7] = ["head", "edit", "survey", "filter", "draw", "logprobs", "verify"];

/// The stages that are there; the others join with the work that fills them, and are claimed by their first file.
const FOUNDED: [&str; 5] = ["edit", "survey", "filter", "draw", "logprobs"];

/// The places: what each must exist for, and the files of which a stage has one there.
const PLACES: [(&str, &[&str]); 5] = [
    ("crates/spec", &["crates/spec/src/STAGE.rs", "crates/spec/src/STAGE/mod.rs"]),
    ("crates/cpu", &["crates/cpu/src/STAGE.rs", "crates/cpu/src/STAGE/mod.rs"]),
    ("crates/cuda", &["crates/cuda/src/STAGE.rs", "crates/cuda/src/STAGE/mod.rs"]),
    ("docs", &["docs/stages/STAGE.md"]),
    ("conformance", &["conformance/src/rules/STAGE.rs", "conformance/src/rules/STAGE/mod.rs"]),
];

/// The storeys of the house: a crate depends only on crates of lower storeys.
const STOREYS: [(&str, u32); 15] = [
    ("gumball-spec", 0),
    ("gumball-bench-protocol", 0),
    ("gumball-cpu", 1),
    ("gumball-cuda", 1),
    ("gumball-dist", 2),
    ("gumball-head", 2),
    ("gumball-engine", 3),
    ("gumball-candle", 4),
    ("gumball-python", 4),
    ("gumball-c", 4),
    ("gumball-conformance", 4),
    ("gumball-bench", 4),
    ("gumball-cli", 5),
    ("gumball-fuzz", 5),
    ("gumball", 5),
];

/// Crates that may hold `unsafe`: lanes, launches, foreign libraries, bindings, and the floor that is timed.
const MAY_BE_UNSAFE: [&str; 6] =
    ["gumball-cpu", "gumball-cuda", "gumball-dist", "gumball-python", "gumball-c", "gumball-bench"];

/// Files longer than this want splitting.
const MOST_LINES: usize = 500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("conformance lies in the root").to_owned()
}

/// Returns what a cell of the table holds, if anything.
fn cell(stage: &str, files: &[&str]) -> Option<String> {
    files.iter().find_map(|file| fs::read_to_string(root().join(file.replace("STAGE", stage))).ok())
}

#[test]
fn no_cell_that_is_claimed_is_empty() {
    for stage in STAGES {
        let claimed = |files| FOUNDED.contains(&stage) || cell(stage, files).is_some();
        if !PLACES.iter().any(|(_, files)| claimed(files)) {
            continue;
        }
        for (place, files) in PLACES.iter().filter(|(place, _)| root().join(place).exists()) {
            let text =
                cell(stage, files).unwrap_or_else(|| panic!("{stage} has no file in {place}: {files:?}"));
            let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
            assert!(lines >= 3, "{stage} is empty in {place}");
        }
    }
}

#[test]
fn stages_are_declared_where_they_are_claimed() {
    for place in ["crates/spec", "crates/cpu", "crates/cuda"] {
        let lib = fs::read_to_string(root().join(place).join("src/lib.rs")).expect("a library");
        for stage in FOUNDED {
            let declared = lib.lines().any(|line| {
                line.trim_start_matches("pub ").trim_start_matches("pub(crate) ") == format!("mod {stage};")
            });
            assert!(declared, "{place} does not declare {stage}");
        }
    }
}

/// Returns the folders of the workspace's members.
fn members() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let list = manifest.split_once("members = [").expect("a workspace").1.split_once(']').expect("a list").0;
    list.split(',').map(|name| root().join(name.trim().trim_matches('"'))).filter(|p| *p != root()).collect()
}

/// Returns a member's name and the crates of the house it names in a dependency table.
fn manifest(folder: &Path) -> (String, Vec<String>) {
    let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    let value = |line: &str| Some(line.split_once('=')?.1.trim().trim_matches('"').to_owned());
    let name = text.lines().find(|line| line.starts_with("name =")).and_then(value).expect("a name");
    let mut depends = Vec::new();
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            table = line;
        } else if table.ends_with("dependencies]") && line.starts_with("gumball") {
            depends.push(line.split([' ', '=', '.']).next().expect("not empty").to_owned());
        }
    }
    (name, depends)
}

#[test]
fn dependencies_point_one_way() {
    let storeys: BTreeMap<&str, u32> = STOREYS.into_iter().collect();
    let storey =
        |name: &str| *storeys.get(name).unwrap_or_else(|| panic!("{name} has no storey: give it one"));
    assert!(members().len() >= 7);
    for (name, depends) in members().iter().map(|folder| manifest(folder)) {
        for other in depends {
            assert!(storey(&other) < storey(&name), "{name} must not depend on {other}");
        }
    }
}

/// Returns the files below a folder whose names end so, build outputs left out.
fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir() && !["target", ".git", ".venv", ".cache"].contains(&&*name) {
            found.extend(files(&path, ends));
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    found
}

#[test]
fn unsafe_stays_where_it_may_be() {
    for folder in members() {
        let (name, _) = manifest(&folder);
        if MAY_BE_UNSAFE.contains(&&*name) {
            continue;
        }
        let lib = fs::read_to_string(folder.join("src/lib.rs")).expect("a library");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
        for file in files(&folder.join("src"), &[".rs"]) {
            let text = fs::read_to_string(&file).expect("text");
            let found = text.lines().find(|line| {
                let code = line.split("//").next().unwrap_or("");
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                    .iter()
                    .any(|form| code.contains(form))
            });
            assert_eq!(found, None, "{}", file.display());
        }
    }
}

/// Returns the sources of the house.
fn sources(ends: &[&str]) -> Vec<PathBuf> {
    ["crates", "conformance", "bench", "bindings", "fuzz"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), ends))
        .collect()
}

#[test]
fn no_file_is_longer_than_500_lines() {
    for file in sources(&[".rs", ".cu", ".cuh", ".py"]) {
        let lines = fs::read_to_string(&file).expect("text").lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines: look for the seam", file.display());
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for file in sources(&[".rs"]) {
        let text = fs::read_to_string(&file).expect("text");
        assert!(text.starts_with("//!"), "{} does not open with //!", file.display());
    }
}

#[test]
fn every_rule_of_sections_2_to_5_has_a_body() {
    let numbers = |letter: char, last: u32| (1..=last).map(move |n| format!("{letter}{n}"));
    let rules = numbers('N', 9).chain(numbers('E', 7)).chain(numbers('M', 5)).chain(numbers('F', 10));
    for rule in rules.chain(numbers('D', 2)).chain(numbers('L', 3)) {
        // What no backend shows through its answers is held in numbers.rs.
        if ["N1", "N2"].contains(&&*rule) {
            continue;
        }
        assert!(gumball_conformance::rules::all().any(|body| body.rule == rule), "{rule} has no body");
    }
}

#[test]
fn no_two_bodies_have_one_name() {
    let mut names: Vec<_> = gumball_conformance::rules::all().map(|rule| rule.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
