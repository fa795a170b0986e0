//! What a release wrote is read by this one: parameters in JSON, a saved state, files of heads. `releases`
//! has a folder for each minor version, and C's structs of it in `structs.txt`, which a test of the C library
//! reads.
//!
//! `GUMBALL_BLESS=1 cargo test -p gumball-conformance --test releases` writes the folder of a version that
//! has none, and never one that is there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gumball_conformance::rows;
use gumball_engine::head::artefact::build;
use gumball_engine::head::{Artefact, ClusterBuild, Clustered, ClusteredOptions, Exact, HeadOptions};
use gumball_engine::{Sampler, SamplingParams, State, build_clusters};
use serde_json::{Value, json};

const CHANGED: &str = "a program of an earlier release wrote this. If that version is out, read what it wrote, or write \
    a deprecation and, after it, raise the minor version and remove the folder; if it is not out yet, remove its folder \
    and write it again with GUMBALL_BLESS=1";
const VOCAB: usize = 96;
const WIDTH: usize = 24;

/// Every field with another value than the neutral one.
const EVERYTHING: &str = r#"{"temperature": 0.7, "dynamic_temperature": {"min": 0.5, "max": 1.5, "exponent": 2},
"top_k": 40, "top_p": 0.9, "typical_p": 0.95, "min_p": 0.05, "top_n_sigma": 1.5, "top_a": 0.1, "p_less": true,
"epsilon_cutoff": 0.001, "eta_cutoff": 0.002, "xtc_probability": 0.5, "xtc_threshold": 0.2, "xtc_exempt_ids": [2],
"min_keep": 3, "mirostat": {"tau": 4, "eta": 0.2, "mu": 7.5}, "repetition_penalty": 1.2, "repetition_scope": "output",
"frequency_penalty": 0.3, "presence_penalty": -0.2, "penalty_scope": "both", "penalty_window": 64,
"dry": {"multiplier": 0.8, "base": 1.5, "allowed_length": 3, "breakers": [13, 198], "window": 100},
"no_repeat_ngram": 4, "logit_bias": [[3, -1.5], [260, "-inf"]], "bias_first": true, "allowed_ids": [0, 1, 2, 3, 260],
"banned_ids": [7], "bad_words": [[1, 2], [3]], "min_tokens": 2, "stop_ids": [2], "seed": 18446744073709551615,
"logprobs": {"mode": "edited", "top_n": 5, "ids": [1, 4]}, "order": {"list": ["top_k", "top_p"]},
"temperature_last": true}"#;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of all versions, with that of this one, which is written if it is missing and may be.
fn releases() -> Vec<PathBuf> {
    static WRITTEN: std::sync::Once = std::sync::Once::new();
    let all = home().join("releases");
    let version = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")].join(".");
    WRITTEN.call_once(|| {
        let folder = all.join(&version);
        if !folder.join("state.json").exists() && std::env::var_os("GUMBALL_BLESS").is_some() {
            fs::create_dir_all(&folder).expect("a folder that can be written");
            write(&folder);
        }
        assert!(
            folder.join("state.json").exists(),
            "no fixtures of version {version}: GUMBALL_BLESS=1 writes them"
        );
    });
    fs::read_dir(all).expect("the folders").map(|entry| entry.expect("a folder").path()).collect()
}

/// Returns the JSON of parameters as it is written; numbers of `f32` have fewer digits there than as values.
fn written(params: &SamplingParams) -> Value {
    serde_json::from_str(&serde_json::to_string(params).expect("finite numbers")).expect("JSON")
}

fn read(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join(name)).expect(name)).expect(name)
}

/// Weights that rounding does not touch, the same on every machine.
fn weights() -> Vec<f32> {
    (0..VOCAB * WIDTH).map(|at| ((at * 7919 + at / WIDTH * 31) % 255) as f32 / 64.0 - 2.0).collect()
}

fn exact(weights: &[f32]) -> Exact<'_> {
    Exact::new(weights, VOCAB, WIDTH, HeadOptions::default()).expect("finite weights")
}

fn row(step: u64) -> Vec<f32> {
    rows::bell(1000, 2.0, step)
}

/// Draws the tokens of some steps.
fn steps(sampler: &mut Sampler, steps: std::ops::Range<u64>) -> Vec<u32> {
    steps.map(|step| sampler.sample(&row(step)[..]).expect("a row").id.expect("a token")).collect()
}

fn write(folder: &Path) {
    let golden = fs::read_to_string(home().join("golden/params.json")).expect("parameters by name");
    let golden: BTreeMap<String, SamplingParams> = serde_json::from_str(&golden).expect("parameters");
    let everything: SamplingParams = serde_json::from_str(EVERYTHING).expect("parameters");
    let neutral = written(&SamplingParams::default());
    for (field, value) in written(&everything).as_object().expect("an object") {
        assert!(neutral[field] != *value, "give {field} another value than the neutral one in EVERYTHING");
    }
    let all = golden.values().chain([&everything]);
    let lines: Vec<_> = all.map(|params| serde_json::to_string(params).expect("finite numbers")).collect();
    fs::write(folder.join("params.jsonl"), lines.join("\n") + "\n").expect("a file");

    let params = SamplingParams {
        mirostat: Some(gumball_spec::Mirostat { tau: 5.0, eta: 0.1, mu: None }),
        repetition_penalty: 1.2,
        seed: Some(7),
        ..Default::default()
    };
    let mut sampler = Sampler::new(params.clone(), 1000).expect("parameters").with_prompt(&[3, 1, 4]);
    steps(&mut sampler, 0..4);
    let State { prompt, output, seed, position, draw, mu } = sampler.sequence().state();
    let state = json!({ "prompt": prompt, "output": output, "seed": seed, "position": position, "draw": draw, "mu": mu });
    let tokens = steps(
        &mut Sampler::new(params.clone(), 1000)
            .and_then(|fresh| fresh.with_state(sampler.sequence().state()))
            .expect("a state"),
        4..12,
    );
    let state = json!({ "params": written(&params), "state": state, "tokens": tokens });
    fs::write(folder.join("state.json"), serde_json::to_string(&state).expect("finite numbers") + "\n")
        .expect("a file");

    let weights = weights();
    build(&exact(&weights), "head", &folder.join("certified.head"), &mut |_| true).expect("a file");
    let build = ClusterBuild { capacity: 16, iterations: 4 };
    let clusters = build_clusters(&exact(&weights), build, &mut |_| true).expect("clusters");
    let path = folder.join("clustered.head");
    Artefact::write_clusters(&clusters, &exact(&weights), "head", &path).expect("a file");
}

#[test]
fn parameters_that_a_release_wrote_are_read_and_written_again() {
    for folder in releases() {
        for text in fs::read_to_string(folder.join("params.jsonl")).expect("parameters").lines() {
            let params: SamplingParams =
                serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}\n{CHANGED}"));
            let (old, new): (Value, _) = (serde_json::from_str(text).expect("JSON"), written(&params));
            for (field, value) in old.as_object().expect("an object") {
                assert_eq!(new.get(field), Some(value), "{field} of {text}\n{CHANGED}");
            }
        }
    }
}

#[test]
fn a_state_that_a_release_wrote_goes_on_with_the_same_tokens() {
    for folder in releases() {
        let read = read(&folder, "state.json");
        let ids = |of: &Value| -> Vec<u32> { serde_json::from_value(of.clone()).expect("ids") };
        let whole = |name: &str| read["state"][name].as_u64().expect(name);
        let (prompt, output) = (ids(&read["state"]["prompt"]), ids(&read["state"]["output"]));
        let state = State {
            prompt: &prompt,
            output: &output,
            seed: whole("seed"),
            position: whole("position") as u32,
            draw: whole("draw") as u32,
            mu: read["state"]["mu"].as_f64().expect("mu") as f32,
        };
        let params = serde_json::from_value(read["params"].clone()).expect("parameters");
        let mut sampler =
            Sampler::new(params, 1000).and_then(|fresh| fresh.with_state(state)).expect("a state");
        assert_eq!(steps(&mut sampler, 4..12), ids(&read["tokens"]), "{}: {CHANGED}", folder.display());
    }
}

#[test]
fn heads_that_a_release_wrote_are_opened() {
    let weights = weights();
    for folder in releases() {
        for name in ["certified.head", "clustered.head"] {
            let artefact = Artefact::open(&folder.join(name));
            let artefact =
                artefact.unwrap_or_else(|error| panic!("{}: {error}\n{CHANGED}", folder.display()));
            if name == "certified.head" {
                artefact.certified(exact(&weights)).expect(CHANGED);
            } else {
                let clusters = artefact.clusters(&exact(&weights)).expect(CHANGED);
                Clustered::new(&exact(&weights), clusters, &ClusteredOptions::default()).expect(CHANGED);
            }
        }
    }
}
