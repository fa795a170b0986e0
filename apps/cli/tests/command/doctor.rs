//! `gumball doctor` examines the machine it runs on.

use std::process::Command;

use crate::support;

#[test]
fn the_doctor_finds_this_machine_well() {
    let text = support::succeeds(&["doctor"]);
    for part in ["processor", "SIMD", "scalar", "self-test", "scalar draws the oracle's tokens"] {
        assert!(text.contains(part), "{text}");
    }
    let report: serde_json::Value = serde_json::from_str(&support::succeeds(&["doctor", "--json"])).unwrap();
    assert!(report["self_test"].as_array().unwrap().iter().all(|item| item["holds"] == true));
}

#[test]
fn a_level_that_does_not_exist_is_a_finding() {
    let output = Command::new(env!("CARGO_BIN_EXE_gumball"))
        .arg("doctor")
        .env("GUMBALL_LEVEL", "mmx")
        .output()
        .expect("the command starts");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\"mmx\" is not known; known are: scalar"), "{text}");
}
