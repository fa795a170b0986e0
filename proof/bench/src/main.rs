//! The command `gumball-bench`: run everything, or print a record's tables.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use gumball_bench::definitions;
use gumball_bench::engines::{self, FLOOR};
use gumball_bench::machine::{self, Machine};
use gumball_bench::process::Running;
use gumball_bench::record::{FORMAT, Record, Settings};
use gumball_bench::rivals::{self, Program};
use gumball_bench::runner;
use gumball_bench::staging::Staging;
use gumball_bench::table::{self, Against};
use gumball_bench_protocol::{RowKind, serve};
use regex_lite::Regex;

/// Times every way from logits to a token that is built here, all in one run.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, and write a record.
    Run {
        /// A few definitions and short samples: does everything run?
        #[arg(long)]
        quick: bool,
        /// Only definitions whose names match, such as '128256/f32/model/cache/(plain|min-p)'.
        #[arg(long, value_name = "REGEX")]
        only: Option<Regex>,
        /// Only these engines, and the floor.
        #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
        engines: Vec<String>,
        /// Where the record goes.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Print a record as Markdown tables of ratios.
    Table {
        /// A record.
        file: PathBuf,
        /// Only definitions whose names match.
        #[arg(long, value_name = "REGEX")]
        only: Option<Regex>,
        /// What to divide by; both without it.
        #[arg(long)]
        against: Option<AgainstName>,
        /// Print the page that stands beside a record in proof/bench/record.
        #[arg(long, conflicts_with_all = ["only", "against"])]
        page: bool,
    },
    /// List definitions and engines.
    List,
    /// Be one of the engines inside this program, on standard input and output.
    #[command(hide = true)]
    Engine {
        /// Its name.
        name: String,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AgainstName {
    Floor,
    Gumball,
}

fn main() -> ExitCode {
    match act(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gumball-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn act(command: Command) -> io::Result<()> {
    match command {
        Command::Run { quick, only, engines, out } => run(quick, only.as_ref(), &engines, &out),
        Command::Table { file, page: true, .. } => {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            print!("{}", table::page(&Record::read(&file)?, &name));
            Ok(())
        }
        Command::Table { file, only, against, .. } => print_tables(&file, only.as_ref(), against),
        Command::List => {
            definitions::full().iter().for_each(|definition| println!("{definition}"));
            programs(&[])?.iter().for_each(|program| println!("engine {}", program.name));
            Ok(())
        }
        Command::Engine { name } => {
            let engine = engines::named(&name);
            serve(engine.ok_or_else(|| io::Error::other(format!("no engine {name}")))?.as_mut())
        }
    }
}

/// The root of the bench's own folder.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn real_rows() -> PathBuf {
    home().join("../conformance/rows/smollm2.bf16")
}

fn run(quick: bool, only: Option<&Regex>, wanted: &[String], out: &Path) -> io::Result<()> {
    let mut definitions = if quick { definitions::quick() } else { definitions::full() };
    definitions.retain(|definition| only.is_none_or(|only| only.is_match(&definition.to_string())));
    let real = definitions.iter().filter(|definition| definition.rows == RowKind::Real).count();
    if real > 0 && !real_rows().is_file() {
        eprintln!("{real} definitions skipped: proof/conformance/rows/smollm2.bf16 is not there");
        definitions.retain(|definition| definition.rows != RowKind::Real);
    }
    if definitions.is_empty() {
        return Err(io::Error::other("no definition is left; see `gumball-bench list`"));
    }
    Record::check_place(out)?;
    let stream_bytes = (4 * machine::last_level_cache_bytes()).max(64 << 20);
    let (samples, min_ns) = if quick { (10, 4_000_000) } else { (12, 20_000_000) };
    let settings = Settings { samples, min_ns, stream_bytes };
    let (date, machine) = (machine::date(), Machine::here());
    let mut running = Vec::new();
    for program in programs(wanted)? {
        match Running::start(&program) {
            Ok(engine) => running.push(engine),
            Err(error) => eprintln!("{}: skipped, {error}", program.name),
        }
    }
    let identities = running.iter().map(|engine| engine.identity.clone()).collect();
    let mut staging = Staging::new(&real_rows())?;
    let found = runner::run(&definitions, running, &mut staging, &settings, |line| eprintln!("{line}"))?;
    let (results, skipped) = (found.results, found.skipped);
    let mut record =
        Record { format: FORMAT, date, machine, settings, engines: identities, results, skipped };
    record.relate_to_floor();
    record.write(out)?;
    print!("{}", table::markdown(&record, Against::Floor, None));
    Ok(())
}

/// The engines to start: those inside, then the rivals; a rival that is missing is named.
fn programs(wanted: &[String]) -> io::Result<Vec<Program>> {
    let this = std::env::current_exe()?;
    let mut programs: Vec<Program> = engines::all()
        .iter()
        .map(|engine| {
            let name = engine.identity().engine;
            let command = vec![this.clone().into(), OsString::from("engine"), OsString::from(&name)];
            Program { name, command }
        })
        .collect();
    let rivals = rivals::find(&home().join("rivals"))?;
    programs.extend(rivals.ready);
    let is_wanted = |name: &String| wanted.is_empty() || wanted.contains(name);
    for name in rivals.missing.iter().filter(|name| is_wanted(name)) {
        eprintln!("{name}: skipped, not installed (proof/bench/rivals/setup {name})");
    }
    if let Some(unknown) = wanted
        .iter()
        .find(|name| !rivals.missing.contains(name) && programs.iter().all(|program| program.name != **name))
    {
        return Err(io::Error::other(format!("no engine {unknown}; see `gumball-bench list`")));
    }
    programs.retain(|program| program.name == FLOOR || is_wanted(&program.name));
    Ok(programs)
}

fn print_tables(file: &Path, only: Option<&Regex>, against: Option<AgainstName>) -> io::Result<()> {
    let record = Record::read(file)?;
    let wanted = match against {
        None => vec![Against::Floor, Against::Ours],
        Some(AgainstName::Floor) => vec![Against::Floor],
        Some(AgainstName::Gumball) => vec![Against::Ours],
    };
    for against in wanted {
        if against == Against::Floor && only.is_none() {
            print!("{}", table::worst(&record));
        }
        print!("{}", table::markdown(&record, against, only));
    }
    Ok(())
}
