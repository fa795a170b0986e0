//! The fragments of code in the repository's documents.

use std::fs;
use std::path::{Path, PathBuf};

/// A piece of a page between two fences.
#[derive(Debug)]
pub struct Fragment {
    /// The page, and the line of the first fence.
    pub place: String,
    /// The language that the fence names.
    pub language: String,
    /// The text between the fences.
    pub text: String,
}

/// Returns the root of the repository, from a crate two folders below.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the crate lies in the repository")
}

/// Returns the documents: the pages of the root and of `docs`, and the READMEs of folders.
pub fn pages() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (folder, depth) in [
        ("", 0),
        ("docs", 3),
        ("bindings", 1),
        ("proof/bench", 0),
        ("proof/conformance", 1),
        ("apps", 1),
        ("integrations", 1),
    ] {
        below(&root().join(folder), depth, &mut found);
    }
    found.sort();
    found
}

fn below(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let path = entry.path();
        if path.is_dir() && depth > 0 && !path.ends_with("node_modules") {
            below(&path, depth - 1, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Returns the fragments of all pages.
pub fn fragments() -> Vec<Fragment> {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        let name = page.strip_prefix(root()).expect("it lies there").display().to_string();
        let mut lines = text.lines().enumerate();
        while let Some((at, line)) = lines.next() {
            let Some(language) = line.strip_prefix("```") else { continue };
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = inside.map(|line| format!("{line}\n")).collect();
            found.push(Fragment { place: format!("{name}:{}", at + 1), language: language.to_owned(), text });
        }
    }
    found
}
