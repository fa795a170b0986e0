//! A record as Markdown: one table a group of rows, tasks down, engines across.
//!
//! Only ratios are printed, since only they mean something on another machine: multiples of the
//! floor, or of our own engine's time.

use std::fmt::Write;

use gumball_bench_protocol::{Definition, Dtype, Residence, RowKind, Task};
use regex_lite::Regex;

use crate::engines::FLOOR;
use crate::engines::ours::OURS;
use crate::record::{Measurement, Record};

/// What times are divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The floor: how many times one read of the row.
    Floor,
    /// Our engine: how many times as long a rival takes.
    Ours,
}

impl Against {
    fn engine(self) -> &'static str {
        match self {
            Against::Floor => FLOOR,
            Against::Ours => OURS,
        }
    }

    fn heading(self) -> &'static str {
        match self {
            Against::Floor => "times the floor",
            Against::Ours => "times ours",
        }
    }
}

/// Prints the definitions of a record whose names match, every one without `only`.
///
/// The result is empty where the record has nothing to divide by.
pub fn markdown(record: &Record, against: Against, only: Option<&Regex>) -> String {
    let results: Vec<&Measurement> = record
        .results
        .iter()
        .filter(|result| only.is_none_or(|only| only.is_match(&result.definition.to_string())))
        .collect();
    let mut text = String::new();
    let mut groups: Vec<Definition> = Vec::new();
    for result in &results {
        let group = group(result.definition);
        if !groups.contains(&group) {
            groups.push(group);
            let members: Vec<&Measurement> =
                results.iter().copied().filter(|other| self::group(other.definition) == group).collect();
            write_group(&mut text, group, against, &members);
        }
    }
    text
}

/// Prints for each task the worst multiple of the floor that our engine takes, by type and residence, and the
/// rows where it does.
///
/// The result is empty where the record has none.
pub fn worst(record: &Record) -> String {
    let of_ours = |result: &&Measurement| result.engine == OURS && result.ratio_to_floor.is_some();
    let results: Vec<&Measurement> = record.results.iter().filter(of_ours).collect();
    let mut places: Vec<(Dtype, Residence)> = Vec::new();
    for result in &results {
        let place = (result.definition.dtype, result.definition.residence);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    if places.is_empty() {
        return String::new();
    }
    let headings = places.iter().map(|(dtype, place)| format!("{dtype}, {}", residence_in_words(*place)));
    let mut text = format!(
        "**the worst of {OURS}**\n\n| times the floor | {} |\n",
        headings.collect::<Vec<_>>().join(" | ")
    );
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(places.len()));
    for task in Task::ALL {
        let _ = write!(text, "| {task} |");
        for place in &places {
            let of = |result: &&&Measurement| {
                let definition = result.definition;
                definition.task == task && (definition.dtype, definition.residence) == *place
            };
            let ratio = |result: &&Measurement| result.ratio_to_floor.unwrap_or_default();
            let worst = results.iter().filter(of).copied().max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
            let cell = worst.map_or("-".to_owned(), |result| {
                let Definition { rows, vocab, .. } = result.definition;
                format!("{} ({}, {vocab})", digits(ratio(&result)), kind_in_words(rows))
            });
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text + "\n"
}

/// Prints the page that stands beside a record in `proof/bench/record`: the worst, and all multiples of the
/// floor, under a heading.
///
/// `file` is the record's file name.
pub fn page(record: &Record, file: &str) -> String {
    let name = file.trim_end_matches(".json");
    let (processor, date) = (&record.machine.processor, record.date.split('T').next().unwrap_or_default());
    let tables = worst(record) + &markdown(record, Against::Floor, None);
    let has = |unit: &str| record.machine.simd.iter().any(|found| found == unit);
    let widest = match () {
        () if has("avx512f") => "AVX-512",
        () if has("avx2") => "AVX2",
        () => "no wide vectors",
    };
    let load = record.machine.load_average.map_or("unknown".to_owned(), |load| load.to_string());
    let processors = record.machine.processors;
    format!(
        "# {name}\n\nPrinted by `gumball-bench table --page` from [the record]({file}), which has every value; do not edit. One thread \
         of {processor}, {widest}, {date}; load average at the start: {load}, processors for the run: {processors}. Medians, in \
         multiples of the floor. How times are taken is in [bench](../README.md), what bounds them in \
         [performance](../../../docs/performance.md).\n\n{}\n",
        tables.trim_end()
    )
}

/// Returns a definition with its task blanked; a table has the definitions that are then equal.
fn group(definition: Definition) -> Definition {
    Definition { task: Task::Greedy, ..definition }
}

fn write_group(text: &mut String, group: Definition, against: Against, members: &[&Measurement]) {
    let time = |task, engine: &str| {
        let found = members.iter().find(|result| result.definition.task == task && result.engine == engine);
        found.map(|result| result.ns_median)
    };
    let mut engines: Vec<&str> = Vec::new();
    for result in members {
        let engine = result.engine.as_str();
        if engine != FLOOR && engine != against.engine() && !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    engines.sort_by_key(|engine| !engine.starts_with(OURS));
    let tasks: Vec<Task> = Task::ALL
        .into_iter()
        .filter(|&task| time(task, against.engine()).is_some())
        .filter(|&task| engines.iter().any(|engine| time(task, engine).is_some()))
        .collect();
    if tasks.is_empty() {
        return;
    }
    let (rows, place) = (kind_in_words(group.rows), residence_in_words(group.residence));
    let _ = writeln!(text, "**vocab {}, {}, {rows}, {place}**\n", group.vocab, group.dtype);
    let _ = writeln!(text, "| {} | {} |", against.heading(), engines.join(" | "));
    let _ = writeln!(text, "| --- |{}", " ---: |".repeat(engines.len()));
    for task in tasks {
        let _ = write!(text, "| {task} |");
        for engine in &engines {
            let ratio = time(task, engine).zip(time(task, against.engine())).map(|(ns, base)| ns / base);
            let _ = write!(text, " {} |", ratio.map_or("-".to_string(), digits));
        }
        text.push('\n');
    }
    text.push('\n');
}

fn kind_in_words(rows: RowKind) -> &'static str {
    match rows {
        RowKind::Model => "model-like rows",
        RowKind::Flat => "flat rows",
        RowKind::Equal => "equal rows",
        RowKind::Bell => "bell-shaped rows",
        RowKind::Zipf1 => "Zipf-like rows, exponent 1",
        RowKind::Zipf15 => "Zipf-like rows, exponent 1.5",
        RowKind::Heaps => "rows with two heaps",
        RowKind::Ties => "rows of ties",
        RowKind::Real => "rows of a real model",
    }
}

fn residence_in_words(residence: Residence) -> &'static str {
    match residence {
        Residence::Cache => "in cache",
        Residence::Dram => "streamed from DRAM",
    }
}

/// Three significant digits, as long as there is a fraction to cut.
fn digits(ratio: f64) -> String {
    if ratio < 9.995 {
        format!("{ratio:.2}")
    } else if ratio < 99.95 {
        format!("{ratio:.1}")
    } else {
        format!("{ratio:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn multiples_of_the_floor_put_ours_first() {
        let expected = "\
**vocab 1000, f32, model-like rows, in cache**

| times the floor | gumball | rival |
| --- | ---: | ---: |
| greedy | 1.10 | 25.0 |
| plain | 1.70 | - |

";
        assert_eq!(markdown(&sample(), Against::Floor, None), expected);
    }

    #[test]
    fn multiples_of_ours_leave_out_tasks_without_a_rival() {
        let expected = "\
**vocab 1000, f32, model-like rows, in cache**

| times ours | rival |
| --- | ---: |
| greedy | 22.7 |

";
        assert_eq!(markdown(&sample(), Against::Ours, None), expected);
    }

    #[test]
    fn the_worst_of_ours_is_named_with_its_rows() {
        let mut record = sample();
        let mut flat = record.results[2].clone();
        flat.definition.rows = RowKind::Flat;
        flat.ratio_to_floor = Some(128.4);
        record.results.push(flat);
        let text = worst(&record);
        assert!(text.contains("| times the floor | f32, in cache |\n"), "{text}");
        assert!(text.contains("\n| greedy | 128 (flat rows, 1000) |\n"), "{text}");
        assert!(text.contains("\n| plain | 1.70 (model-like rows, 1000) |\n| min-p | - |\n"), "{text}");
    }

    #[test]
    fn only_what_matches_is_printed() {
        let plain = Regex::new("plain$").unwrap();
        let text = markdown(&sample(), Against::Floor, Some(&plain));
        assert!(text.contains("plain") && !text.contains("greedy"), "{text}");
        assert_eq!(markdown(&sample(), Against::Floor, Some(&Regex::new("bf16").unwrap())), "");
    }

    #[test]
    fn ratios_have_three_digits() {
        assert_eq!(
            [1.0, 9.994, 9.996, 99.94, 99.96, 1234.5].map(digits),
            ["1.00", "9.99", "10.0", "99.9", "100", "1234"]
        );
    }
}
