//! The text of the golden file: sections, and in each the distinct lists of launches with the cases that make
//! them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use gumball_cuda::{Grid, Launch, Tap};

use crate::arguments::{Arguments, Fields};

/// The columns of a line.
const COLUMNS: usize = 140;

/// A golden file in the making.
pub struct Golden {
    arguments: Arguments,
    /// The first argument of each struct.
    first_of_file: HashMap<String, Fields>,
    text: String,
}

impl Golden {
    /// Begins with the lines that say how to read the file.
    pub fn new(about: &str) -> Self {
        let text = about.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect();
        Self { arguments: Arguments::new(), first_of_file: HashMap::new(), text }
    }

    /// Adds a section: cases by their names, each with its launches on a tap.
    pub fn add(&mut self, title: &str, cases: &[(String, Vec<Launch>)], tap: &Tap) {
        let mut first_of_section: HashMap<String, Fields> = HashMap::new();
        let mut lists: Vec<(Vec<&str>, String)> = Vec::new();
        _ = writeln!(self.text, "\n## {title}");
        for (case, launches) in cases {
            let names = self.arguments.names(launches, tap);
            let mut list = String::new();
            for launch in launches {
                let (of_type, fields) = self.arguments.fields(launch, &names, tap);
                let first = first_of_section.entry(of_type.to_owned()).or_insert_with(|| {
                    let known = self.first_of_file.entry(of_type.to_owned());
                    let written = match &known {
                        std::collections::hash_map::Entry::Occupied(known) => {
                            format!("  {of_type}: as first {}", differences(known.get(), &fields))
                        }
                        std::collections::hash_map::Entry::Vacant(_) => {
                            format!("  {of_type}: {}", differences(&Fields::new(), &fields))
                        }
                    };
                    known.or_insert_with(|| fields.clone());
                    self.text += &wrapped(&written);
                    fields.clone()
                });
                let kernel = launch.kernel.name();
                let line = format!("    {kernel} {} {of_type} {}", grid(launch), differences(first, &fields));
                list += &wrapped(line.trim_end());
            }
            match lists.iter_mut().find(|(_, known)| *known == list) {
                Some((cases, _)) => cases.push(case),
                None => lists.push((vec![case], list)),
            }
        }
        for (cases, list) in lists {
            self.text += &wrapped(&format!("  {}", cases.join("; ")));
            self.text += if list.is_empty() { "    nothing\n" } else { &list };
        }
    }

    /// Compares the text with a file of this folder. With `GUMBALL_BLESS=1` writes the file.
    ///
    /// # Panics
    /// If they differ: with the first line that does, and the section that it stands in.
    pub fn hold(self, file: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/launches").join(file);
        if std::env::var_os("GUMBALL_BLESS").is_some() {
            std::fs::write(&path, &self.text).expect("a golden file can be written");
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let (mut made, mut section) = (self.text.lines(), "");
        for (number, line) in known.lines().enumerate() {
            section = if line.starts_with("##") { line } else { section };
            let made = made.next().unwrap_or("the end");
            let bless = "GUMBALL_BLESS=1 writes the file";
            assert!(line == made, "{file}:{}, {section}\n was {line}\n is  {made}\n{bless}", number + 1);
        }
        assert_eq!(made.next(), None, "{file} ends here; GUMBALL_BLESS=1 writes it");
    }
}

/// Returns blocks and threads of a launch, and its other demands on the device.
fn grid(launch: &Launch) -> String {
    let Grid { blocks, threads, one_block_per_sm, cluster, dynamic_smem_bytes } = launch.grid;
    let mut text = format!("{blocks} x {threads}");
    for (word, is_so) in [("dependent", launch.is_dependent), ("one-per-sm", one_block_per_sm)] {
        text += &if is_so { format!(" {word}") } else { String::new() };
    }
    for (word, number) in [("cluster", cluster), ("smem", dynamic_smem_bytes)] {
        text += &if number > 0 { format!(" {word}={number}") } else { String::new() };
    }
    text
}

/// Returns the fields whose values differ between two arguments, with the values of the second one.
fn differences(from: &Fields, fields: &Fields) -> String {
    let value = |of: &Fields, path: &str| of.iter().find(|(known, _)| known == path).map(|(_, v)| v.clone());
    let changed = fields.iter().filter(|(path, text)| value(from, path).as_ref() != Some(text));
    let changed = changed.map(|(path, text)| format!("{path}={text}"));
    let gone =
        from.iter().filter(|(path, _)| value(fields, path).is_none()).map(|(path, _)| format!("{path}=0"));
    changed.chain(gone).collect::<Vec<_>>().join(" ")
}

/// Breaks a line where it is too long, and indents what follows.
fn wrapped(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let (mut text, mut columns) = (" ".repeat(indent), indent);
    for (index, word) in line.split_whitespace().enumerate() {
        if columns + word.len() >= COLUMNS {
            (text, columns) = (text.trim_end().to_owned() + "\n" + &" ".repeat(indent + 4), indent + 4);
        } else if index > 0 {
            (text, columns) = (text + " ", columns + 1);
        }
        text += word;
        columns += word.len();
    }
    text + "\n"
}
