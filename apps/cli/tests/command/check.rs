//! `gumball check` passes the engine and fails what only resembles it.

use gumball_cli::Result;
use gumball_cli::check::{Check, Draw, Engine, Item, Opened, Setting, Subject};
use gumball_cli::logits::{Fallback, Kind, LogitsArgs, Source};
use gumball_cli::state::State;
use gumball_engine::{Level, Route, Rows};
use gumball_spec::{Row, SamplingParams};

use crate::support::{gumball, succeeds};

/// In which way a fake differs from the engine.
#[derive(Clone, Copy)]
enum Flaw {
    /// It draws at a lower temperature.
    Biased,
    /// Its cut keeps one token more.
    Leaky,
    /// A row's place in the batch changes its draw.
    Batched,
    /// It counts how often it was asked.
    Stateful,
}

struct Fake(Flaw);

struct OpenedFake {
    flaw: Flaw,
    inner: Box<dyn Opened>,
    asked: u32,
}

impl Subject for Fake {
    fn name(&self) -> String {
        "fake".to_owned()
    }

    fn open(&self, params: &SamplingParams, state: &State, vocab: usize) -> Result<Box<dyn Opened>> {
        let mut params = params.clone();
        match self.0 {
            Flaw::Biased => params.temperature *= 0.8,
            Flaw::Leaky => params.top_k += 1,
            Flaw::Batched | Flaw::Stateful => {}
        }
        let inner = Engine { level: Level::Scalar, route: Route::Race }.open(&params, state, vocab)?;
        Ok(Box::new(OpenedFake { flaw: self.0, inner, asked: 0 }))
    }
}

impl Opened for OpenedFake {
    fn draw(&mut self, draw: &Draw<'_>) -> Result<i32> {
        self.asked += u32::from(matches!(self.flaw, Flaw::Stateful));
        self.inner.draw(&Draw { position: draw.position + self.asked, ..*draw })
    }

    fn step(&mut self, rows: Rows<'_>, lines: &[u32], seeds: &[u64]) -> Result<Vec<i32>> {
        let moved = |place: usize| if matches!(self.flaw, Flaw::Batched) { place as u64 } else { 0 };
        let seeds: Vec<_> = seeds.iter().enumerate().map(|(place, seed)| seed + moved(place)).collect();
        self.inner.step(rows, lines, &seeds)
    }
}

fn items(subject: &dyn Subject) -> Vec<Item> {
    let fallback = Fallback { kind: Some(Kind::Flat), rows: 1, vocab: 60 };
    let mut source: Source = LogitsArgs::default().load(fallback).unwrap();
    // Spread the row, so that a temperature matters.
    let Row::F32(row) = source.logits.row(0) else { panic!("f32") };
    let spread: Vec<f32> = row.iter().map(|z| z * 60.0).collect();
    source.logits = gumball_cli::logits::Logits::new(gumball_cli::logits::Data::F32(spread), 60).unwrap();
    let params = SamplingParams { top_k: 20, temperature: 1.0, ..Default::default() };
    let setting = Setting { name: "top-k 20".to_owned(), params, state: State::default() };
    let check = Check { draws: 20_000, oracle_draws: 100, seed: 3 };
    check.run(subject, &setting, &source).unwrap()
}

fn failures(subject: &dyn Subject) -> Vec<&'static str> {
    items(subject).into_iter().filter(|item| !item.holds).map(|item| item.name).collect()
}

#[test]
fn every_level_of_the_cpu_passes() {
    for level in Level::available() {
        assert_eq!(failures(&Engine { level, route: Route::Race }), [""; 0], "{level}");
    }
}

#[test]
fn each_flaw_fails_the_item_that_looks_for_it() {
    let biased = failures(&Fake(Flaw::Biased));
    assert!(
        biased.contains(&"distribution over draws") && biased.contains(&"distribution over seeds"),
        "{biased:?}"
    );
    assert!(biased.contains(&"equals the oracle"), "{biased:?}");
    assert!(failures(&Fake(Flaw::Leaky)).contains(&"never outside the cut"));
    assert_eq!(failures(&Fake(Flaw::Batched)), ["batch invariance"]);
    assert!(failures(&Fake(Flaw::Stateful)).contains(&"seed reproduces"));
}

#[test]
fn the_command_passes_its_suite_and_reports_as_json() {
    let small = ["check", "--vocab", "150", "--draws", "600", "--oracle-draws", "8"];
    let text = succeeds(&small);
    assert!(text.contains("items hold") && text.contains("xtc") && text.contains("mirostat"), "{text}");
    let json = succeeds(&[&small[..], &["--kind", "flat", "--top-p", "0.5", "--json"]].concat());
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    let items = report["items"].as_array().unwrap();
    assert!(items.len() == 6 && items.iter().all(|item| item["holds"] == true), "{json}");
}

#[test]
fn a_parameter_that_does_not_fit_the_rows_is_a_mistake_not_a_verdict() {
    assert_eq!(gumball(&["check", "--vocab", "10", "--banned-ids", "10"]).status.code(), Some(2));
}
