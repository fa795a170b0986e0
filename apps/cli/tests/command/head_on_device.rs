//! `gumball generate --head KIND --device NAME`: heads on a device write the text that they write on the CPU,
//! and a fast head one of its own.

use candle_core::quantized::GgmlDType;
use serde_json::Value as Json;

use crate::head_model;
use crate::support::{Files, emulated, gumball, refuses, succeeds};

/// The ids of the tiny model, and the elements of a row of its weights.
const SHAPE: [usize; 2] = [265, 32];

/// The tokens of a text.
const TOKENS: u64 = 48;

const SETTINGS: [&[&str]; 5] = [
    &["--temperature", "0"],
    &["--temperature", "0.8"],
    &["--min-p", "0.05", "--temperature", "1.2", "--repetition-penalty", "1.2"],
    &["--top-k", "20", "--top-p", "0.9", "--logprobs", "processed", "--top-logprobs", "2"],
    &["--top-p", "0.9", "--logprobs", "raw"],
];

/// Writes the tiny model, and returns its path.
fn written(files: &Files, name: &str, seed: u64) -> String {
    files.write(name, &head_model::model(GgmlDType::F32, seed, false))
}

/// Runs `gumball generate --json` with further arguments for 48 tokens, and returns the JSON that it writes.
fn text(args: &[&[&str]]) -> Json {
    let generate: &[&str] = &["generate", "--json", "--no-chat", "--max-tokens", "48", "--seed", "3", "aba"];
    let args = [&[generate], args].concat().concat();
    let output = gumball(&args);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {output:?}"))
}

const THERE: &[&str] = &["--device", "emulated"];

#[test]
fn a_head_on_a_device_writes_the_text_that_it_writes_on_the_cpu() {
    if !emulated() {
        return;
    }
    let files = Files::new();
    let model = written(&files, "tiny.gguf", 7);
    let clusters = files.name("tiny.clusters");
    let build = ["head", "build", "--kind", "clustered", "--model", &model, "--out", &clusters];
    succeeds(&[&build[..], &["--capacity", "8", "--iterations", "4"]].concat());
    let certified = files.name("tiny.head");
    succeeds(&["head", "build", "--model", &model, "--out", &certified]);
    let heads: [&[&str]; 3] = [
        &["--head", "auto"],
        &["--head-file", &certified],
        &["--head", "clustered", "--head-file", &clusters, "--probes", "9"],
    ];
    for setting in SETTINGS {
        // All clusters are all logits.
        let all = ["--head-file", &clusters, "--probes", "34"];
        let exact = text(&[&["--model", &model], setting, &all]);
        for head in heads {
            let args = [&["--model", &model][..], setting, head];
            let (host, there) = (text(&args), text(&[&args[..], &[THERE]].concat()));
            assert_eq!(there["tokens"], host["tokens"], "{setting:?}, {head:?}");
            let is_clustered = head == heads[2];
            assert!(is_clustered || there["tokens"] == exact["tokens"], "{setting:?}, {head:?}");
            assert_eq!(there["device"], "emulated");
            let figures = [&host["head"], &there["head"]];
            for name in ["kind", "approximate", "clustered_rows", "clustered_logits"] {
                assert_eq!(figures[1][name], figures[0][name], "{setting:?}, {head:?}");
            }
            assert_eq!(figures[0]["device"], Json::Null);
            assert!(figures[1]["device"].is_string(), "{there}");
            let [of_host, of_device] = figures.map(|head| head["bytes_a_token"].as_f64().expect("a number"));
            let count = |name: &str| figures[1][name].as_u64().expect("a count");
            let rows = ["whole_rows", "certified_rows", "clustered_rows"].map(count).iter().sum::<u64>();
            assert_eq!(rows, TOKENS, "{there}");
            if is_clustered {
                assert_eq!(of_device, of_host, "{setting:?}, {head:?}");
            } else {
                // A row of the screen has 64 codes, of which 32 are padding, and three numbers. Rows with too
                // many contenders read it, too.
                let [vocab, width] = SHAPE;
                let whole = (count("whole_rows") as usize * vocab * width * 4) as f64;
                let logits = (count("certified_logits") as usize * width * 4) as f64;
                let screened = (TOKENS as f64 * of_device - whole - logits) / (vocab * (64 + 12)) as f64;
                let takes_screen = !setting.contains(&"raw");
                assert_eq!(screened.round() as u64, if takes_screen { TOKENS } else { 0 }, "{there}");
                let decides = setting == SETTINGS[0] || setting == SETTINGS[1];
                assert!(!decides || count("certified_rows") > 0, "{there}");
            }
        }
    }
}

#[test]
fn a_fast_head_writes_the_same_text_each_time() {
    if !emulated() {
        return;
    }
    let files = Files::new();
    let model = written(&files, "tiny.gguf", 7);
    for setting in SETTINGS {
        let args = [&["--model", &model, "--head", "fast"][..], setting, THERE];
        let fast = text(&args);
        assert_eq!(fast["tokens"], text(&args)["tokens"], "{setting:?}");
        let head = &fast["head"];
        assert_eq!((&head["kind"], &head["approximate"]), (&"fast".into(), &false.into()));
        // Every logit of every row, from weights of two bytes.
        assert_eq!((&head["whole_rows"], &head["certified_rows"]), (&TOKENS.into(), &0.into()));
        assert_eq!(head["bytes_a_token"], (SHAPE[0] * SHAPE[1] * 2) as f64);
    }
    let said = gumball(
        &[&["generate", "aba", "--no-chat", "--model", &model, "--head", "fast"][..], THERE].concat(),
    );
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(said.contains("fast head on ") && said.contains(" a second, "), "{said}");
}

#[test]
fn a_check_holds_the_head_of_a_file_on_a_device_to_that_on_the_cpu() {
    if !emulated() {
        return;
    }
    let files = Files::new();
    let model = written(&files, "tiny.gguf", 7);
    let text = files.write("text", b"abab aba bab aab ab aba");
    for (kind, options) in [("certified", &[][..]), ("clustered", &["--capacity", "8"])] {
        let file = files.name(kind);
        let build = ["head", "build", "--kind", kind, "--model", &model, "--out", &file];
        succeeds(&[&build[..], options].concat());
        let probes: &[&str] = if kind == "clustered" { &["--probes", "3,34"] } else { &[] };
        let check = [&["head", "check", &file, "--model", &model, "--text", &text][..], probes].concat();
        let report = |args: &[&str]| -> Json {
            serde_json::from_str(&succeeds(&[&check[..], args, &["--json"]].concat())).expect("JSON")
        };
        let (host, mut there) = (report(&[]), report(THERE));
        assert_eq!(there["device"].take(), "emulated");
        for row in there["rows"].as_array_mut().expect("rows") {
            let same = row.as_object_mut().expect("an object").remove("as_on_host");
            assert_eq!(same, Some(1.0.into()));
        }
        assert_eq!(there["rows"], host["rows"], "{kind}");
        let table = succeeds(&[&check[..], THERE].concat());
        assert!(
            table.contains(&format!("{kind} head on emulated")) && table.contains("as on the CPU"),
            "{table}"
        );
        let said = refuses(&[&check[..], &["--device", "tpu"]].concat());
        assert!(said.contains("device \"tpu\" is not known"), "{said}");
    }
}

#[test]
fn what_no_device_or_no_host_computes_is_refused_with_what_to_do() {
    let files = Files::new();
    let model = written(&files, "tiny.gguf", 7);
    let says = |args: &[&str], what: &str| {
        let said = refuses(&[&["generate", "x", "--model", &model], args].concat());
        assert!(said.contains(what), "{args:?}: {said}");
    };
    says(&["--head", "fast"], "add --device cuda, or take --head auto");
    says(&["--draft-model", &model, "--draft-head", "fast"], "take --draft-head auto");
    if emulated() {
        let on_device = |args: &[&'static str]| [THERE, args].concat();
        let file = "--head-file is for --head auto or clustered";
        says(&on_device(&["--head", "fast", "--head-file", "x"]), file);
        says(&on_device(&["--head", "fast", "--probes", "3"]), "--probes is for a clustered head");
        says(&on_device(&["--head", "clustered"]), "gumball head build --kind clustered");
        let penalised = on_device(&["--head", "auto", "--route", "probabilities", "--presence-penalty", "1"]);
        says(&penalised, "take the route race");
    }
}
