//! Fragments of the documents, as far as the command, the shell and JavaScript's parser can check them.
//! Fragments in Rust are doctests of the engine; fragments in Python and C run in the tests of these
//! bindings, fragments in JavaScript in `ci/wasm`.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use gumball_bench_protocol::skipped::skip;

use crate::fragments::{fragments, pages, root};

/// The languages of fragments: each has a test, except text, which is drawings and output.
const LANGUAGES: [&str; 8] = ["rust", "rust,no_run", "python", "c", "js", "sh", "json", "text"];

/// Folders of the repository, as paths in commands begin.
const FOLDERS: [&str; 7] = ["apps/", "bindings/", "ci/", "crates/", "docs/", "integrations/", "proof/"];

#[test]
fn each_fragment_names_a_language_that_a_test_holds() {
    let found = fragments();
    assert!(found.len() > 30, "{} fragments", found.len());
    for fragment in found {
        assert!(LANGUAGES.contains(&&*fragment.language), "{}: ```{}", fragment.place, fragment.language);
    }
}

/// The help of the command's subcommands, asked for once each.
#[derive(Default)]
struct Helps(HashMap<String, Option<String>>);

impl Helps {
    /// Returns what the command says of a subcommand; none if there is no such subcommand.
    fn of(&mut self, subcommand: &[&str]) -> Option<&str> {
        let help = || {
            let output = Command::new(env!("CARGO_BIN_EXE_gumball")).args(subcommand).arg("--help").output();
            let output = output.expect("it was just built");
            output.status.success().then(|| String::from_utf8(output.stdout).expect("text"))
        };
        self.0.entry(subcommand.join(" ")).or_insert_with(help).as_deref()
    }

    /// Holds the words of a command of ours: its subcommand is there, and has the flags.
    fn hold(&mut self, place: &str, words: &[&str]) {
        let is_name = |word: &&&str| {
            word.len() > 1
                && word
                    .split('-')
                    .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase()))
        };
        let mut subcommand: Vec<&str> = words.iter().take(2).take_while(is_name).copied().collect();
        if self.of(&subcommand).is_none() {
            // The second word is an argument.
            subcommand.truncate(1);
        }
        let help = self.of(&subcommand).unwrap_or_else(|| panic!("{place}: no command {words:?}"));
        let known: Vec<&str> =
            help.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c))).collect();
        for flag in
            words.iter().filter_map(|word| word.split('=').next()).filter(|word| word.starts_with('-'))
        {
            assert!(known.contains(&flag), "{place}: gumball {} has no {flag}", subcommand.join(" "));
        }
    }
}

/// Returns the words after the name of our command, if these words call it.
fn of_ours<'a>(words: &'a [&'a str]) -> Option<&'a [&'a str]> {
    match words {
        ["cargo", "gumball", rest @ ..] | ["gumball", rest @ ..] => Some(rest),
        ["python", "-m", "gumball", rest @ ..] => Some(rest),
        _ => None,
    }
}

#[test]
fn commands_in_the_documents_have_the_flags_and_files_that_they_name() {
    let (mut helps, mut held) = (Helps::default(), 0);
    let members = fs::read_to_string(root().join("Cargo.lock")).expect("a lock");
    for fragment in fragments().iter().filter(|fragment| fragment.language == "sh") {
        let place = &fragment.place;
        parses("bash", &["-n"], "sh", place, &fragment.text);
        for line in fragment.text.replace("\\\n", " ").lines() {
            let code = line.split(" #").next().filter(|code| !code.starts_with('#')).unwrap_or("");
            for command in code.split("&&").flat_map(|part| part.split([';', '|'])) {
                let words: Vec<&str> = command.split_whitespace().collect();
                if let Some(words) = of_ours(&words) {
                    helps.hold(place, words);
                    held += 1;
                }
                for word in &words {
                    let word = word.trim_start_matches("./");
                    let is_made = word.contains("/pkg") || word.contains("NAME");
                    if FOLDERS.iter().any(|folder| word.starts_with(folder)) && !is_made {
                        assert!(root().join(word).exists(), "{place}: there is no {word}");
                    }
                }
                for pair in words.windows(2).filter(|pair| ["-p", "--package"].contains(&pair[0])) {
                    let line = format!("name = \"{}\"", pair[1]);
                    assert!(members.contains(&line), "{place}: there is no crate {}", pair[1]);
                }
            }
        }
    }
    // Commands between backticks, in running text.
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        let prose: String = text.split("\n```").step_by(2).collect();
        for span in prose.split('`').skip(1).step_by(2) {
            let words: Vec<&str> = span.split_whitespace().collect();
            if let Some(words) = of_ours(&words).filter(|words| !words.is_empty()) {
                helps.hold(&page.display().to_string(), words);
                held += 1;
            }
        }
    }
    assert!(held > 30, "{held} commands");
}

#[test]
fn fragments_of_javascript_parse() {
    if Command::new("node").arg("--version").output().is_err() {
        return skip("there is no node");
    }
    for fragment in fragments().iter().filter(|fragment| fragment.language == "js") {
        parses("node", &["--check"], "mjs", &fragment.place, &fragment.text);
    }
}

/// Holds that a parser takes a fragment, from a file of this ending.
fn parses(program: &str, flags: &[&str], ending: &str, place: &str, text: &str) {
    let name = place.replace(['/', ':'], "-");
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{ending}"));
    fs::File::create(&file).and_then(|mut file| file.write_all(text.as_bytes())).expect("a folder");
    let output = Command::new(program).args(flags).arg(&file).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_engine_is_added_to_ones_own_crate_as_the_readme_says() {
    let readme = fs::read_to_string(root().join("README.md")).expect("the page");
    let line = readme.lines().find(|line| line.starts_with("cargo add ")).expect("a line for Rust");
    let line = line.split('#').next().expect("a command").replace("PATH", root().to_str().expect("text"));
    let words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let own = tempfile::tempdir().expect("a folder");
    let cargo = |args: &[&str]| {
        let output = Command::new(env!("CARGO")).args(args).current_dir(own.path()).output().expect("cargo");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    cargo(&["init", "--vcs", "none", "--name", "own", "."]);
    cargo(&[&words[..], &["--offline"]].concat());
    let manifest = fs::read_to_string(own.path().join("Cargo.toml")).expect("a manifest");
    assert!(
        manifest.contains("gumball-engine = { version") || manifest.contains("gumball-engine = { path"),
        "{manifest}"
    );
}
