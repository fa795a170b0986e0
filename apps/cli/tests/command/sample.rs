//! `gumball sample`: small files of every kind, the errors of bad ones, and the tokens.

use gumball_spec::{Request, Row, SamplingParams, oracle};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};

use crate::support::{Files, bytes, lines, logits, npy, refuses, succeeds};

const VOCAB: usize = 300;

fn tokens(json: &str) -> Vec<i64> {
    lines(json).iter().map(|line| line["token"].as_i64().expect("a token")).collect()
}

fn oracle_token(row: Row<'_>, params: &SamplingParams, seed: u64, draw: u32) -> i64 {
    let request = Request { draw, ..Request::new(params, &[], seed) };
    i64::from(oracle::sample(row, &request, None).expect("an outcome").token)
}

#[test]
fn tokens_are_the_oracles_for_every_type_of_npy() {
    let files = Files::new();
    let rows: Vec<Vec<f32>> = (0..3).map(|seed| logits(VOCAB, seed)).collect();
    let flat = rows.concat();
    let half: Vec<u8> = flat.iter().flat_map(|z| f16::from_f32(*z).to_le_bytes()).collect();
    let brain: Vec<u8> = flat.iter().flat_map(|z| bf16::from_f32(*z).to_le_bytes()).collect();
    let shape = "(3, 300)";
    let inputs = [
        files.write("f4.npy", &npy("<f4", shape, &bytes(&flat))),
        files.write("f2.npy", &npy("<f2", shape, &half)),
        files.write("u2.npy", &npy("<u2", shape, &brain)),
        files.write("v2.npy", &npy("|V2", shape, &brain)),
    ];
    let params = SamplingParams { temperature: 0.9, top_k: 40, top_p: 0.95, ..Default::default() };
    for file in inputs {
        let flags = "--temperature 0.9 --top-k 40 --top-p 0.95 --seed 5 --draws 4 --json".split(' ');
        let args: Vec<_> = ["sample", &file].into_iter().chain(flags).collect();
        // Every logit here is exact in all three types, so all files hold the same rows.
        let expected: Vec<i64> = rows
            .iter()
            .flat_map(|row| (0..4).map(|draw| oracle_token(Row::F32(row), &params, 5, draw)))
            .collect();
        assert_eq!(tokens(&succeeds(&args)), expected, "{file}");
    }
}

#[test]
fn a_tensor_is_found_by_name_and_rows_by_number() {
    let files = Files::new();
    let data = bytes(&[logits(VOCAB, 1), logits(VOCAB, 2)].concat());
    let view = || TensorView::new(Dtype::F32, vec![2, VOCAB], &data).unwrap();
    let one = safetensors::serialize([("logits", view())], None).unwrap();
    let two = safetensors::serialize([("a", view()), ("b", view())], None).unwrap();
    let (one, two) = (files.write("one.safetensors", &one), files.write("two.safetensors", &two));

    let out = succeeds(&["sample", &one, "--rows", "1", "--seed", "3", "--json"]);
    let expected = oracle_token(Row::F32(&logits(VOCAB, 2)), &SamplingParams::default(), 3, 0);
    assert_eq!(tokens(&out), [expected]);
    assert!(refuses(&["sample", &two]).contains("add --tensor NAME, one of: a, b"));
    assert!(refuses(&["sample", &two, "--tensor", "c"]).contains("there is no tensor \"c\""));
    assert!(refuses(&["sample", &one, "--rows", "2"]).contains("there is no row 2; rows are 0..2"));
}

#[test]
fn logprobs_ranks_and_state_are_in_the_record() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(VOCAB, 4)));
    let args =
        ["sample", &row, "--vocab", "300", "--seed", "1", "--json", "--prompt-ids", "1,2", "--history", "3"];
    let line =
        lines(&succeeds(&[&args[..], &["--top-logprobs", "2", "--logprob-ids", "0,9"]].concat())).remove(0);
    assert_eq!((line["position"].as_u64(), line["seed"].as_u64()), (Some(3), Some(1)));
    assert_eq!(line["top_logprobs"].as_array().map(Vec::len), Some(2));
    assert_eq!(line["top_logprobs"][0]["rank"], 1);
    assert_eq!(line["logprob_ids"][1]["id"], 9);
    assert!(line["logprob"]["logprob"].as_f64().unwrap() < 0.0);
    let table = succeeds(&[&args[..4], &["--seed", "1"]].concat());
    assert!(table.contains("token") && table.contains("seed 1, position 0"), "{table}");
}

#[test]
fn the_number_of_kept_tokens_is_in_the_record() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(VOCAB, 4)));
    for (flags, kept) in [(&["--top-k", "7"][..], 7), (&["--temperature", "0"], 1), (&[], 300)] {
        let out = succeeds(&[&["sample", &row, "--vocab", "300", "--json"], flags].concat());
        assert_eq!(lines(&out)[0]["kept"], kept, "{flags:?}");
    }
}

#[test]
fn a_mask_leaves_what_it_allows() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(VOCAB, 4)));
    let mut allowed = vec![0u8; VOCAB];
    allowed[77] = 1;
    let as_bool = files.write("m.npy", &npy("|b1", "(300,)", &allowed));
    let words = [0u32, 0, 1 << 13].map(u32::to_le_bytes).concat();
    let as_words = files.write("m.bin", &words);
    for mask in [as_bool, as_words] {
        let out = succeeds(&["sample", &row, "--vocab", "300", "--mask", &mask, "--json"]);
        assert_eq!(tokens(&out), [77]);
    }
    let empty = files.write("none.bin", &[]);
    let out = succeeds(&["sample", &row, "--vocab", "300", "--mask", &empty, "--json"]);
    assert_eq!((tokens(&out), &lines(&out)[0]["status"][0]), (vec![-1], &"empty".into()));
}

#[test]
fn a_seed_is_chosen_and_printed_and_then_reproduces() {
    let files = Files::new();
    let row = files.write("row.f32", &bytes(&logits(VOCAB, 4)));
    let args = ["sample", &row, "--vocab", "300", "--draws", "20", "--json"];
    let first = succeeds(&args);
    let seed = lines(&first)[0]["seed"].as_u64().unwrap().to_string();
    assert_eq!(succeeds(&[&args[..], &["--seed", &seed]].concat()), first);
}

#[test]
fn bad_files_are_named_with_what_to_do() {
    let files = Files::new();
    let whole = npy("<f4", "(2, 300)", &bytes(&[0.0; 600]));
    let refused = |name: &str, bytes: &[u8]| refuses(&["sample", &files.write(name, bytes)]);
    let says = |message: String, part: &str| assert!(message.contains(part), "{message}");
    says(refused("a.npy", &whole[..whole.len() - 1]), "cut short: the header promises shape [2, 300]");
    says(refused("a.npy", &whole[..40]), "cut short inside its header");
    says(refused("a.npy", b"PK\x03\x04"), "save it with numpy.save");
    says(refused("a.npy", &npy("<f8", "(3,)", &[0; 24])), "x.astype(numpy.float32)");
    says(refused("a.npy", &npy("<f4", "(1, 2, 3)", &[0; 24])), "[vocab] or [rows, vocab]");
    says(refused("a.npy", &npy("<f4", "(99999999999, 99999999999)", &[0; 24])), "cut short");
    says(refused("a.npy", &npy("<f4", "(0,)", &[])), "1 to 2^20");
    says(refused("a.safetensors", &[0; 30]), "no whole .safetensors file");
    says(refused("a.f32", &[0; 8]), "add --vocab N");
    says(refused("a.txt", b"1 2 3"), "must end in .npy");
    says(refuses(&["sample", "nowhere.npy"]), "nowhere.npy: no such file; check the path");
}

#[test]
fn logits_may_come_from_standard_input_whatever_their_kind() {
    use std::io::Write;
    let row = logits(40, 3);
    let files = Files::new();
    let expected =
        succeeds(&["sample", &files.write("a.npy", &npy("<f4", "(40,)", &bytes(&row))), "--seed", "5"]);
    let json = serde_json::to_vec(&row).unwrap();
    for (name, content) in
        [("-", npy("<f4", "(40,)", &bytes(&row))), ("-", json.clone()), ("/dev/stdin", json)]
    {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gumball"));
        let pipe = std::process::Stdio::piped;
        let command = command.args(["sample", name, "--seed", "5"]).stdin(pipe()).stdout(pipe());
        let mut child = command.spawn().expect("it starts");
        child.stdin.take().unwrap().write_all(&content).expect("it reads");
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{name}");
    }
}
