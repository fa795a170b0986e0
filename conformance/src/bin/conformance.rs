//! Runs the rules against a backend: `conformance list|run|golden`.
//!
//! `list [FILTER]` names the bodies with their rules; `run [--backend NAME] [FILTER]` runs those whose rule or name
//! contains the filter, on every backend of this machine unless one is named; `golden [--bless]` compares the
//! golden draws, or pins what the oracle draws now.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use gumball_conformance::backend::{Backend, available, by_name};
use gumball_conformance::golden::{self, Set};
use gumball_conformance::rules::{self, Rule};

const USAGE: &str = "usage: conformance list [FILTER] | run [--backend NAME] [FILTER] | golden [--bless]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["list"] => list(""),
        ["list", filter] => list(filter),
        ["run"] => run(None, ""),
        ["run", "--backend", backend] => run(Some(backend), ""),
        ["run", "--backend", backend, filter] => run(Some(backend), filter),
        ["run", filter] => run(None, filter),
        ["golden"] => compare_golden(),
        ["golden", "--bless"] => bless(),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn chosen(filter: &str) -> impl Iterator<Item = &'static Rule> {
    rules::all().filter(move |rule| rule.rule == filter || rule.name.contains(filter))
}

fn list(filter: &str) -> Result<bool, String> {
    chosen(filter).for_each(|rule| println!("{rule:?}"));
    Ok(true)
}

fn run(backend: Option<&str>, filter: &str) -> Result<bool, String> {
    let backends: Vec<Box<dyn Backend>> = match backend {
        Some(name) => vec![by_name(name).map_err(|error| error.to_string())?],
        None => available(),
    };
    let (mut passed, mut failed) = (0, 0);
    for backend in &backends {
        let began = Instant::now();
        for rule in chosen(filter) {
            match catch_unwind(AssertUnwindSafe(|| rule.run(&**backend))) {
                Ok(()) => passed += 1,
                Err(_) => {
                    failed += 1;
                    println!("{}: {rule:?} FAILED", backend.name());
                }
            }
        }
        let seconds = began.elapsed().as_secs_f32();
        match backend.lacking() {
            0 => println!("{}: {seconds:.1} s", backend.name()),
            lacking => {
                println!("{}: {seconds:.1} s, {lacking} rows were left to the oracle", backend.name());
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

fn compare_golden() -> Result<bool, String> {
    let mut ok = true;
    for set in Set::ALL.into_iter().filter(|set| set.is_present()) {
        let pinned = set.pinned().map_err(|error| format!("{}: {error}", set.path().display()))?;
        for backend in available() {
            let changes = golden::changes(&pinned, &set.draw(&*backend));
            ok &= changes.is_empty();
            println!("{set:?} on {}: {} streams, {} changed", backend.name(), pinned.len(), changes.len());
            changes.iter().for_each(|change| println!("  {change}"));
        }
    }
    if !ok {
        println!("{}", golden::CHANGED);
    }
    Ok(ok)
}

fn bless() -> Result<bool, String> {
    for set in Set::ALL.into_iter().filter(|set| set.is_present()) {
        set.bless().map_err(|error| format!("{}: {error}", set.path().display()))?;
        println!("pinned {}", set.path().display());
    }
    Ok(true)
}
