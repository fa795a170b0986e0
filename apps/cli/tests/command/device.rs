//! `--device`: the same tokens wherever they are chosen, and clear words where there is no such device.

use gumball_engine::Device;
use serde_json::Value;

use crate::support::{Files, bytes, emulated, lines, logits, refuses, succeeds};

const VOCAB: usize = 600;

fn row(files: &Files) -> String {
    files.write("row.f32", &bytes(&[logits(VOCAB, 4), logits(VOCAB, 5)].concat()))
}

#[test]
fn a_machine_without_cuda_is_told_what_is_missing() {
    if Device::cuda(0).is_ok() {
        return println!("left out: this machine has CUDA");
    }
    let files = Files::new();
    let row = row(&files);
    let rows = [&row, "--vocab", "600", "--rows", "0"];
    for (command, args) in
        [("sample", &rows[..]), ("check", &rows), ("inspect", &rows), ("generate", &["hello"])]
    {
        let text = refuses(&[&[command, "--device", "cuda"], args].concat());
        assert!(text.contains("error:") && text.contains("no CUDA: "), "{command}: {text}");
    }
}

#[test]
fn a_device_that_is_none_is_named_with_those_there_are() {
    let text = refuses(&["sample", "--kind", "flat", "--device", "tpu"]);
    assert!(
        text.contains("device \"tpu\" is not known (do you mean \"cpu\"?); known are: cpu, cuda, cuda:N"),
        "{text}"
    );
    let text = refuses(&["sample", "--kind", "flat", "--device", "cuda", "--level", "scalar"]);
    assert!(text.contains("--level is about the CPU"), "{text}");
    let text = refuses(&["sample", "--kind", "flat", "--device", "cuda", "--route", "oracle"]);
    assert!(text.contains("route \"oracle\" is not known; known are: race, probabilities"), "{text}");
}

#[test]
fn the_doctor_says_what_of_cuda_there_is() {
    let text = succeeds(&["doctor"]);
    for part in ["CUDA", "driver", "NVRTC", "kernel cache", "between GPUs"] {
        assert!(text.contains(part), "{text}");
    }
    let report: Value = serde_json::from_str(&succeeds(&["doctor", "--json"])).unwrap();
    // Each device to each other one; where there are none, it says so.
    let devices = report["cuda"]["devices"].as_array().unwrap().len();
    let links = report["cuda"]["links"].as_array().unwrap();
    assert_eq!(links.len(), devices * devices.saturating_sub(1), "{report}");
    assert_eq!(text.contains("nothing to measure: no GPUs"), devices == 0, "{text}");
    for link in links {
        assert!(link["reaches"]["Ok"].is_boolean(), "{link}");
        assert!(link["bytes_per_second"]["Ok"].as_f64().is_some_and(|speed| speed > 1e8), "{link}");
    }
    let missing = report["cuda"]["driver"]["Err"].as_str();
    assert!(missing.is_none_or(|reason| reason.contains("install NVIDIA's driver")), "{report}");
}

#[test]
fn samples_are_the_same_on_a_device() {
    if !emulated() {
        return;
    }
    let files = Files::new();
    let args = ["sample", &row(&files), "--vocab", "600", "--seed", "5", "--draws", "6", "--json"];
    let settings = [
        &[][..],
        &["--min-p", "0.1", "--repetition-penalty", "1.3", "--prompt-ids", "1,2"],
        &["--top-k", "30", "--top-p", "0.8", "--top-logprobs", "2", "--logprob-ids", "3,4"],
        &["--route", "probabilities", "--top-p", "0.9"],
    ];
    for flags in settings {
        let host = succeeds(&[&args[..], flags].concat());
        let device = succeeds(&[&args[..], flags, &["--device", "emulated"]].concat());
        assert_eq!(lines(&device), lines(&host), "{flags:?}");
    }
}

#[test]
fn a_check_takes_the_route_probabilities_on_a_device() {
    if !emulated() {
        return;
    }
    let args = ["check", "--vocab", "100", "--draws", "200", "--oracle-draws", "4", "--top-p", "0.9"];
    let text = succeeds(&[&args[..], &["--route", "probabilities", "--device", "emulated"]].concat());
    assert!(text.contains("route probabilities on device emulated") && text.contains("items hold"), "{text}");
}

#[test]
fn a_check_passes_on_a_device() {
    if !emulated() {
        return;
    }
    let args = ["check", "--vocab", "150", "--draws", "600", "--oracle-draws", "8", "--min-p", "0.05"];
    let text = succeeds(&[&args[..], &["--device", "emulated"]].concat());
    assert!(text.contains("device emulated") && text.contains("items hold"), "{text}");
}

#[test]
fn an_inspection_holds_a_device_to_the_definition() {
    if !emulated() {
        return;
    }
    let files = Files::new();
    let args =
        ["inspect", &row(&files), "--vocab", "600", "--rows", "1", "--seed", "3", "--device", "emulated"];
    let trace: Value = serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!(trace["device"]["token"], trace["winner"]["id"]);
    assert_eq!(trace["device"]["differences"].as_array().map(Vec::len), Some(0));
    assert!(succeeds(&args).contains("emulated comes to the same"));
}
