//! Texts are marked by `sample` and found by `detect`, and no output has the key.

use crate::support::{Files, bytes, lines, refuses, succeeds};

const KEY: &str = "00112233445566778899aabbccddeeff";

#[test]
fn a_marked_text_is_found_by_its_key() {
    let files = Files::new();
    let keys = files
        .write("keys", format!("# of tests\n41 {KEY}\n42 ffeeddccbbaa99887766554433221100\n").as_bytes());
    let row = files.write("row.f32", &bytes(&(0..50).map(|id| (id % 7) as f32 * 0.3).collect::<Vec<_>>()));
    let (mut ids, mut marked): (Vec<String>, usize) = (Vec::new(), 0);
    for place in 0..80 {
        let (output, seed) = (ids.join(","), place.to_string());
        let mut args =
            vec!["sample", &row, "--vocab", "50", "--json", "--seed", &seed, "--watermark-keys", &keys];
        args.extend(["--watermark-key", "41", "--watermark-context", "2"]);
        if !output.is_empty() {
            args.extend(["--history", &output]);
        }
        let record = &lines(&succeeds(&args))[0];
        ids.push(record["token"].to_string());
        let is_marked = record["status"].to_string().contains("marked");
        assert!(place >= 2 || !is_marked, "{record}");
        marked += usize::from(is_marked);
    }
    // Contexts of two of 50 ids come twice now and then.
    assert!((60..79).contains(&marked), "{marked} of 80");
    let text = files.write("ids", format!("[{}]", ids.join(", ")).as_bytes());
    let args =
        ["detect", &text, "--watermark-keys", &keys, "--context", "2", "--keys", "42,41", "--parts", "40"];
    let shown = succeeds(&args);
    assert!(
        shown.contains("key 41: p-value") && shown.contains("marked ids") && !shown.contains(KEY),
        "{shown}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&succeeds(&[&args[..], &["--json"]].concat())).expect("JSON");
    assert!(json["p_value"].as_f64().unwrap() < 1e-10 && json["parts"][0]["start"] == 0, "{json}");
}

#[test]
fn what_is_no_mark_or_no_key_is_told() {
    let files = Files::new();
    let keys = files.write("keys", format!("43 {KEY}\n").as_bytes());
    let text = files.write("ids", b"1 2 3 4 5 6 7 8 9 10");
    assert!(
        refuses(&["detect", &text])
            .contains("number 0 has no key; name the file of keys by --watermark-keys FILE")
    );
    let theirs = ["--watermark-keys", &keys, "--keys", "43", "--scheme", "vllm"];
    assert!(refuses(&[&["detect", &text], &theirs[..]].concat()).contains("a key of 64 bits, as vllm has"));
    assert!(
        refuses(&["detect", &text, "--scheme", "synthid"])
            .contains("known are: gumball, vllm, vllm_dual_key, sglang")
    );
    assert!(refuses(&["detect", &text, "--watermark-keys", &text]).contains("not readable in line 1"));
    let words = files.write("words", b"1 two 3");
    let args = ["--watermark-keys", &keys, "--keys", "43"];
    assert!(refuses(&[&["detect", &words], &args[..]].concat()).contains("\"two\" is no id"));
    assert!(
        refuses(&[&["detect", &text, "--prompt-len", "11"], &args[..]].concat())
            .contains("at most 10, the number of ids")
    );
}

#[test]
fn no_error_shows_a_key_that_is_given_in_the_place_of_its_number() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&[0.0; 8]));
    let ids = files.write("ids", b"1 2 3 4 5");
    for key in [KEY, "0x0123456789abcdef", "81985529216486895"] {
        let keys = files.write("keys", format!("44 {key}\n").as_bytes());
        let params = files.write("params.json", format!("{{\"watermark\": \"{key}\"}}").as_bytes());
        let (scheme, two, flag) = (format!("sglang={key}"), format!("44,{key}"), format!("--keys={key}"));
        let sample = ["sample", &row, "--vocab", "8"];
        let cases = [
            [&sample[..], &["--watermark-key", key]].concat(),
            [&sample[..], &["--params", &params]].concat(),
            vec!["detect", &ids, "--keys", key],
            vec!["detect", &ids, "--keys", &two],
            vec!["detect", &ids, &flag],
            vec!["detect", &ids, "--scheme", &scheme],
        ];
        let scope = [&sample[..], &["--watermark-scope", key]].concat();
        let written = [
            scope,
            vec!["detect", &keys],
            vec!["detect", &ids, "--watermark-keys", key],
            vec!["detect", &ids, key],
        ];
        let written = written.into_iter().filter(|_| !key.starts_with('8'));
        for args in cases.into_iter().chain(written) {
            let told = refuses(&args);
            assert!(!told.contains(key), "{args:?}: {told}");
        }
    }
    let both = format!("44 {KEY}");
    let detect = std::process::Command::new(env!("CARGO_BIN_EXE_gumball"))
        .args(["detect", &ids])
        .env("GUMBALL_WATERMARK_KEYS", both)
        .output()
        .expect("the command starts");
    let told = String::from_utf8_lossy(&detect.stderr);
    assert!(told.contains("take a file of keys, not a key") && !told.contains(KEY), "{told}");
}
