//! `gumball head`: artefacts of heads, built from models in GGUF and in safetensors format, looked at,
//! verified, and used.

use std::path::Path;

use candle_core::quantized::GgmlDType;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value as Json;

use crate::head_model::{self, model, numbers};
use crate::support::{Files, gumball, refuses, succeeds};

fn inspected(file: &str) -> Json {
    serde_json::from_str(&succeeds(&["head", "inspect", file, "--json"])).expect("JSON")
}

fn texts(args: &[&str]) -> Json {
    let output = gumball(&[&["generate", "--json", "--no-chat", "--max-tokens", "40", "aba"], args].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?}: {output:?}"))
}

/// Returns what the command says as it finds something wanting.
fn finds_wanting(args: &[&str]) -> String {
    let output = gumball(args);
    let stderr = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "gumball {args:?}: {stderr}");
    stderr
}

#[test]
fn a_file_gives_the_text_of_the_head_that_it_was_built_for() {
    let files = Files::new();
    for (dtype, is_tied) in [(GgmlDType::F32, false), (GgmlDType::Q8_0, true)] {
        let model = files.write("tiny.gguf", &model(dtype, 7, is_tied));
        let file = files.name("tiny.head");
        let said = succeeds(&["head", "build", "--kind", "certified", "--model", &model, "--out", &file]);
        assert!(said.contains("MB for") && said.contains("[265, 32]"), "{said}");
        assert!(!Path::new(&format!("{file}.part")).exists());
        let info = inspected(&file);
        let name = if is_tied { "token_embd.weight" } else { "output.weight" };
        assert_eq!((&info["weights"]["name"], &info["weights"]["dtype"]), (&name.into(), &"F32".into()));
        assert_eq!((&info["vocab"], &info["version"]), (&265.into(), &1.into()));
        assert!(
            succeeds(&["head", "inspect", &file]).contains("certified head, screen int8, format version 1")
        );
        assert!(succeeds(&["head", "verify", &file]).contains("holds what was written"));
        assert!(succeeds(&["head", "verify", &file, "--model", &model]).contains(name));
        for setting in [&["--temperature", "0"][..], &["--temperature", "0.8", "--seed", "3"]] {
            let args = [&["--model", &model], setting].concat();
            let made = texts(&[&args[..], &["--head", "auto"]].concat());
            let of_file = texts(&[&args[..], &["--head-file", &file]].concat());
            assert_eq!(of_file["tokens"], made["tokens"]);
            assert_eq!(of_file["head"], made["head"]);
            assert!(of_file["head"]["certified_rows"].as_u64() > Some(0), "{}", of_file["head"]);
            let drafted = texts(&[&args[..], &["--head-file", &file, "--speculate", "ngram"]].concat());
            assert_eq!(drafted["tokens"], made["tokens"]);
        }
    }
}

#[test]
fn a_file_of_another_model_or_a_damaged_one_is_refused() {
    let files = Files::new();
    let own = files.write("own.gguf", &model(GgmlDType::F32, 7, false));
    let other = files.write("other.gguf", &head_model::model(GgmlDType::F32, 70, false));
    let file = files.name("own.head");
    succeeds(&["head", "build", "--model", &own, "--out", &file]);
    let said = refuses(&["generate", "x", "--model", &other, "--head-file", &file]);
    assert!(said.contains("it is of another head: the weights it was built from: SHA-256"), "{said}");
    let said = refuses(&["generate", "x", "--model", &own, "--head", "clustered", "--head-file", &file]);
    assert!(said.contains("the file of --head-file is for --head auto"), "{said}");
    assert!(
        finds_wanting(&["head", "verify", &file, "--model", &other])
            .contains("the weights it was built from")
    );
    assert!(refuses(&["head", "verify", &file, "--tensor", "x"]).contains("name the model, too"));
    assert!(
        refuses(&["head", "build", "--model", &own, "--out", &file, "--tensor", "x"])
            .contains("--tensor names")
    );
    assert!(refuses(&["head", "inspect", &own]).contains("no whole safetensors file"));
    assert!(refuses(&["head", "inspect", &files.name("none")]).contains("no such file"));

    let mut bytes = std::fs::read(&file).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = files.write("damaged.head", &bytes);
    assert!(finds_wanting(&["head", "verify", &damaged]).contains("damaged or changed"));
    let said = refuses(&["generate", "x", "--model", &own, "--head-file", &damaged]);
    assert!(said.contains("the file was damaged or changed; build it again"), "{said}");
}

#[test]
fn a_model_in_safetensors_format_is_read_as_it_lies_there() {
    let files = Files::new();
    let (vocab, width) = (500, 24);
    let weights: Vec<bf16> = numbers(vocab * width, 5).into_iter().map(bf16::from_f32).collect();
    let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let bias: Vec<u8> = numbers(vocab, 6).iter().flat_map(|b| b.to_le_bytes()).collect();
    let matrix = || TensorView::new(Dtype::BF16, vec![vocab, width], &bytes).expect("a matrix");
    let with_bias = [
        ("lm_head.weight", matrix()),
        ("lm_head.bias", TensorView::new(Dtype::F32, vec![vocab], &bias).expect("a bias")),
        (
            "model.norm.weight",
            TensorView::new(Dtype::BF16, vec![width], &bytes[..2 * width]).expect("a norm"),
        ),
    ];
    let write = |name: &str, tensors: &[(&str, TensorView<'_>)]| {
        let bytes = safetensors::serialize(tensors.iter().map(|(name, view)| (*name, view)), None);
        files.write(name, &bytes.expect("bytes"))
    };
    let model = write("model.safetensors", &with_bias);
    let file = files.name("head");
    succeeds(&["head", "build", "--model", &model, "--out", &file]);
    let info = inspected(&file);
    assert_eq!(
        (&info["weights"]["name"], &info["weights"]["dtype"]),
        (&"lm_head.weight".into(), &"BF16".into())
    );
    assert!(info["bias_sha256"].is_string());
    assert!(succeeds(&["head", "verify", &file, "--model", &model]).contains("lm_head.weight"));

    // The tensor that was `lm_head.weight` above, in a model that ties it to the embedding, and under a name
    // that no model gives it.
    let tied = write("tied.safetensors", &[("model.embed_tokens.weight", matrix())]);
    let (tied_file, odd_file) = (files.name("tied"), files.name("odd"));
    succeeds(&["head", "build", "--model", &tied, "--out", &tied_file]);
    assert_eq!(inspected(&tied_file)["weights"]["sha256"], info["weights"]["sha256"]);
    assert!(
        finds_wanting(&["head", "verify", &tied_file, "--model", &model])
            .contains("the bias it was built from")
    );
    let odd = write("odd.safetensors", &[("codebook", matrix())]);
    assert!(
        refuses(&["head", "build", "--model", &odd, "--out", &odd_file])
            .contains("name its output matrix by --tensor")
    );
    succeeds(&["head", "build", "--model", &odd, "--tensor", "codebook", "--out", &odd_file]);
    let vector = write("vector.safetensors", &[("lm_head.weight", with_bias[2].1.clone())]);
    assert!(
        refuses(&["head", "build", "--model", &vector, "--out", &odd_file])
            .contains("must be [vocab, hidden]")
    );
}

#[test]
fn a_file_of_clusters_is_built_shown_verified_used_and_compared() {
    let files = Files::new();
    let model = files.write("tiny.gguf", &model(GgmlDType::F32, 7, false));
    let file = files.name("tiny.clusters");
    let sizes = ["--capacity", "8", "--iterations", "4"];
    let build = ["head", "build", "--kind", "clustered", "--model", &model, "--out", &file];
    assert!(succeeds(&[&build[..], &sizes].concat()).contains("[265, 32]"));
    assert!(!Path::new(&format!("{file}.part")).exists());
    let info = inspected(&file);
    assert_eq!((&info["head"], &info["screen"]), (&"clustered".into(), &Json::Null));
    // 33 clusters of 8, and one of 1.
    assert_eq!(
        (&info["clusters"], &info["capacity"], &info["iterations"]),
        (&34.into(), &8.into(), &4.into())
    );
    assert!(
        succeeds(&["head", "inspect", &file]).contains("head, 34 clusters of at most 8, format version 1")
    );
    assert!(succeeds(&["head", "verify", &file]).contains("holds what was written"));
    assert!(succeeds(&["head", "verify", &file, "--model", &model]).contains("output.weight"));

    for setting in [&["--temperature", "0"][..], &["--temperature", "0.8", "--seed", "3"]] {
        let args = [&["--model", &model], setting].concat();
        let auto = texts(&[&args[..], &["--head", "auto"]].concat());
        assert_eq!(auto["head"]["approximate"], false);
        // All clusters are all logits; a few are the same text with drafts and without.
        let all = texts(&[&args[..], &["--head-file", &file, "--probes", "34"]].concat());
        assert_eq!(all["tokens"], auto["tokens"]);
        let few = [&args[..], &["--head", "clustered", "--head-file", &file, "--probes", "4"]].concat();
        let of_few = texts(&few);
        assert_eq!(
            (&of_few["head"]["kind"], &of_few["head"]["approximate"]),
            (&"clustered".into(), &true.into())
        );
        assert!(of_few["head"]["clustered_rows"].as_u64() > Some(0), "{}", of_few["head"]);
        let (bytes, whole) = (of_few["head"]["bytes_a_token"].as_f64().expect("a number"), 265 * 32 * 4);
        assert!(bytes < f64::from(whole) / 3.0, "{bytes} of {whole}");
        let drafted = texts(&[&few[..], &["--speculate", "ngram"]].concat());
        assert_eq!(drafted["tokens"], of_few["tokens"]);
    }

    let text = files.write("text", b"abab aba bab aab ab aba");
    let check = ["head", "check", &file, "--model", &model, "--text", &text];
    let report = succeeds(&[&check[..], &["--probes", "3,34", "--json"]].concat());
    let report: Json = serde_json::from_str(&report).expect("JSON");
    let number = |row: usize, field: &str| report["rows"][row][field].as_f64().expect("a number");
    for share in ["greedy", "temperature_1", "top_k_top_p", "mass", "first_50"] {
        assert_eq!(number(1, share), 1.0, "{report}");
        assert!((0.0..=1.0).contains(&number(0, share)), "{report}");
    }
    assert!(number(0, "bytes") < 0.3 && number(0, "first_50") < 0.9, "{report}");
    assert!(succeeds(&check).contains("clustered head, "));
    // Clusters of another program: of 20 ids and of 5 in turn, and the rest.
    let (mut maps, mut next): (Vec<i64>, i64) = (Vec::new(), 0);
    while next < 265 {
        let size = if maps.len() / 20 % 2 == 0 { 20 } else { 5 };
        maps.extend((next..next + size).take_while(|id| *id < 265));
        maps.resize(maps.len().next_multiple_of(20), -1);
        next += size;
    }
    let count = maps.len() / 20;
    let maps: Vec<u8> = maps.into_iter().flat_map(i64::to_le_bytes).collect();
    let centroids: Vec<u8> = numbers(count * 32, 4).iter().flat_map(|x| x.to_le_bytes()).collect();
    let maps = ("vocab_maps", TensorView::new(Dtype::I64, vec![count, 20], &maps).expect("maps"));
    let centroids = TensorView::new(Dtype::F32, vec![count, 32], &centroids).expect("centroids");
    let write = |name: &str, tensors: Vec<(&str, TensorView<'_>)>| {
        files.write(name, &safetensors::serialize(tensors, None).expect("bytes"))
    };
    let given = write("given", vec![maps.clone(), ("centroids", centroids)]);
    let lacking = write("lacking", vec![maps]);
    let of_given = files.name("given.head");
    let take = ["head", "build", "--model", &model, "--out", &of_given, "--clusters"];
    assert!(succeeds(&[&take[..], &[&given, "--kind", "clustered"]].concat()).contains("[265, 32]"));
    let info = inspected(&of_given);
    assert_eq!((&info["clusters"], &info["capacity"]), (&count.into(), &20.into()));
    assert_eq!(info["iterations"], Json::Null);
    assert!(succeeds(&["head", "verify", &of_given, "--model", &model]).contains("output.weight"));
    let args = ["--model", &model, "--temperature", "0"];
    let all = ["--head-file", &of_given, "--probes", &count.to_string()];
    let auto = texts(&[&args[..], &["--head", "auto"]].concat());
    assert_eq!(texts(&[&args[..], &all].concat())["tokens"], auto["tokens"]);
    let check = ["head", "check", &of_given, "--model", &model, "--text", &text];
    assert!(succeeds(&check).contains("clustered head, "));

    let certified = files.name("tiny.head");
    succeeds(&["head", "build", "--model", &model, "--out", &certified]);
    let check = ["head", "check", &certified, "--model", &model, "--text", &text];
    let report: Json = serde_json::from_str(&succeeds(&[&check[..], &["--json"]].concat())).expect("JSON");
    assert_eq!((&report["rows"][0]["greedy"], &report["rows"][0]["mass"]), (&1.0.into(), &Json::Null));

    let says = |args: &[&str], what: &str| {
        let said = refuses(args);
        assert!(said.contains(what), "{args:?}: {said}");
    };
    let generate = ["generate", "x", "--model", &model];
    let with = |args: &[&'static str]| [&generate[..], args].concat();
    says(&with(&["--head", "clustered"]), "gumball head build --kind clustered");
    says(&with(&["--probes", "3"]), "--probes is for a clustered head; add --head-file FILE");
    says(&[&generate[..], &["--head", "auto", "--head-file", &file]].concat(), "is for --head clustered");
    says(
        &[&generate[..], &["--head-file", &file, "--probes", "35"]].concat(),
        "probes is 35, but must be in 1..=34",
    );
    says(&[&generate[..], &["--head-file", &certified, "--probes", "3"]].concat(), "is for --head auto");
    says(&[&check[..], &["--probes", "3"]].concat(), "this artefact has a screen");
    says(&["head", "inspect", &given], "with --clusters FILE of clusters that it holds");
    says(&[&take[..], &[&given]].concat(), "--clusters is for a clustered head; add --kind clustered");
    says(
        &[&take[..], &[&lacking, "--kind", "clustered"]].concat(),
        "its tensor `centroids` is missing, but must be F32, BF16 or F16 of shape [21, 32]",
    );
    says(&[&build[..], &["--capacity", "266"]].concat(), "capacity is 266, but must be in 1..=265");
    let other = files.write("other.gguf", &head_model::model(GgmlDType::F32, 70, false));
    says(&["generate", "x", "--model", &other, "--head-file", &file], "it is of another head");
}
