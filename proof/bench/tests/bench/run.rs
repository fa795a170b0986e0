//! Whole runs with real programs: the floor, and small scripts that behave badly.
//!
//! Nothing here looks at a time, only at the engines that took part and the reasons of the others.

use std::path::Path;

use gumball_bench::process::Running;
use gumball_bench::record::Settings;
use gumball_bench::rivals::Program;
use gumball_bench::runner::{self, Found};
use gumball_bench::staging::Staging;
use gumball_bench_protocol::{Definition, Dtype, Residence, RowKind, Task};

const HELLO: &str = r#"echo '{"hello":{"engine":"script","version":"1"}}'"#;
const READY: &str = r#"read -r line; echo '{"ready":{"does":"something"}}'"#;

fn floor() -> Program {
    let command = [env!("CARGO_BIN_EXE_gumball-bench"), "engine", "floor"].map(Into::into).to_vec();
    Program { name: "floor".into(), command }
}

fn script(lines: &[&str]) -> Program {
    let command = ["sh".into(), "-c".into(), lines.join("\n").into()].to_vec();
    Program { name: "script".into(), command }
}

/// Runs greedy over small rows, in cache and streamed.
fn run(programs: &[Program]) -> Found {
    let engines = programs.iter().map(|program| Running::start(program).unwrap()).collect();
    let definitions = [Residence::Cache, Residence::Dram].map(|residence| Definition {
        vocab: 512,
        dtype: Dtype::Bf16,
        rows: RowKind::Model,
        residence,
        task: Task::Greedy,
    });
    let settings = Settings { samples: 3, min_ns: 1000, stream_bytes: 8 << 10 };
    let mut staging = Staging::new(Path::new("")).unwrap();
    runner::run(&definitions, engines, &mut staging, &settings, |_| {}).unwrap()
}

#[test]
fn runs_end_to_end_and_engines_that_misbehave_are_left_out() {
    let wrong =
        r#"while read -r line; do echo '{"sample":{"ns_per_row":1,"calls":1,"row":0,"token":-1}}'; done"#;
    let found = run(&[script(&[HELLO, READY, wrong]), floor()]);
    assert!(found.results.iter().all(|result| result.engine == "floor" && result.samples == 3));
    assert_eq!(found.results.len(), 2);
    assert_eq!(found.skipped[0].reason, "wrong: token -1 is none of 0..512");

    let silent = run(&[script(&[HELLO, READY]), floor()]);
    assert_eq!(silent.results.len(), 2);
    assert_eq!(silent.skipped.len(), 1, "an engine that ended is not asked again");

    let unable = r#"while read -r line; do echo '{"skip":{"reason":"no bf16"}}'; done"#;
    let skipped = run(&[floor(), script(&[HELLO, unable])]).skipped;
    assert_eq!(skipped.iter().map(|skip| skip.reason.as_str()).collect::<Vec<_>>(), ["no bf16", "no bf16"]);
    assert_eq!(skipped[0].definition, "512/bf16/model/cache/greedy");
}

#[test]
fn a_program_that_does_not_say_hello_is_no_engine() {
    assert!(Running::start(&script(&["exit 0"])).is_err());
    assert!(Running::start(&script(&["echo hello"])).is_err());
    assert!(
        Running::start(&Program { name: "none".into(), command: vec!["no-such-program".into()] }).is_err()
    );
}
