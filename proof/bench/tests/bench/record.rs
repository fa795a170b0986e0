//! Records of CPUs and the pages that stand beside them; where the raw numbers of pages are.

use std::fs;
use std::path::Path;
use std::process::Command;

use gumball_bench::record::Record;
use gumball_bench::table;

#[test]
fn the_page_beside_a_record_has_its_tables() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("record");
    let mut pages = 0;
    for file in fs::read_dir(folder).expect("records").map(|entry| entry.expect("an entry").path()) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        if !name.ends_with("-cpu.json") {
            continue;
        }
        let wanted = table::page(&Record::read(&file).expect("a record"), &name);
        let found = fs::read_to_string(file.with_extension("md")).unwrap_or_default();
        assert!(found == wanted, "{name}: write its page by `gumball-bench table --page` again");
        pages += 1;
    }
    assert!(pages > 0, "there is no record of a CPU");
}

/// Returns whether a page has its raw numbers: as JSON of its name, beside it or in a commit that it names.
fn has_raw_numbers(page: &Path) -> bool {
    let json = page.with_extension("json");
    if json.exists() {
        return true;
    }
    let name = json.file_name().expect("a name").to_string_lossy();
    let text = fs::read_to_string(page).expect("a page");
    let commits =
        text.split("`git show ").filter_map(|rest| rest.split_once(':')).filter(|(commit, rest)| {
            let is_commit = commit.len() >= 8 && commit.chars().all(|c| c.is_ascii_hexdigit());
            is_commit && rest.starts_with(&format!("proof/bench/record/{name}`"))
        });
    let git = |object: &str| {
        let mut git = Command::new("git");
        git.args(["cat-file", "-e", object]).current_dir(env!("CARGO_MANIFEST_DIR"));
        git.output().is_ok_and(|output| output.status.success())
    };
    // A shallow clone lacks the commit.
    commits
        .map(|(commit, _)| commit)
        .any(|commit| !git(commit) || git(&format!("{commit}:proof/bench/record/{name}")))
}

#[test]
fn pages_since_december_have_their_raw_numbers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("record");
    assert!(has_raw_numbers(&folder.join("2026-11-20-zen5-cpu.md")));
    assert!(has_raw_numbers(&folder.join("2026-11-25-h100-sglang.md")));
    assert!(!has_raw_numbers(&folder.join("2026-11-30-h200-warpgroups.md")));
    for page in fs::read_dir(folder).expect("records").map(|entry| entry.expect("an entry").path()) {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with(".md") && &*name >= "2026-12" {
            assert!(has_raw_numbers(&page), "{name}: proof/bench/README.md says where its raw numbers go");
        }
    }
}
