//! Files of logits and masks that look like what they are not.

use crate::support::{Files, bytes, npy, refuses};

/// Returns an `.npy` file whose header has this text as its order.
fn in_order(order: &str) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': {order}, 'shape': (2, 2), }}\n");
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &bytes(&[0.0; 4])].concat()
}

#[test]
fn an_array_in_fortran_order_is_refused_however_the_header_says_so() {
    let files = Files::new();
    for (order, says) in [
        ("True", "is in Fortran order"),
        ("1", "is neither True nor False"),
        ("true", "is neither True nor False"),
        ("Falsehood", "is neither True nor False"),
    ] {
        let message = refuses(&["sample", &files.write("a.npy", &in_order(order))]);
        assert!(message.contains(says), "{order}: {message}");
    }
    crate::support::succeeds(&["sample", &files.write("a.npy", &in_order("False"))]);
}

#[test]
fn a_mask_for_each_row_is_no_mask_for_all_of_them() {
    let files = Files::new();
    let sample = |mask: &[u8]| {
        let mask = files.write("m.npy", mask);
        refuses(&["sample", "--kind", "flat", "--vocab", "4", "--rows", "0-1", "--mask", &mask])
    };
    let message = sample(&npy("|b1", "(2, 4)", &[1; 8]));
    assert!(message.contains("a mask is one line") && message.contains("[2, 4]"), "{message}");
    let message = sample(&npy("<i8", "(4,)", &[0; 32]));
    assert!(message.contains("save bool") && !message.contains("float32"), "{message}");
    let message = sample(&npy("<f4", "(4,)", &[0; 16]));
    assert!(message.contains("save bool"), "{message}");
}

#[test]
fn a_file_without_tensors_does_not_hold_several() {
    let files = Files::new();
    let none: [(&str, safetensors::tensor::TensorView<'_>); 0] = [];
    let file = files.write("none.safetensors", &safetensors::serialize(none, None).unwrap());
    assert!(refuses(&["sample", &file]).contains("the file holds no tensors"));
    assert!(refuses(&["sample", &file, "--tensor", "x"]).contains("the file holds no tensors"));
}

#[cfg(target_os = "linux")]
#[test]
fn what_never_ends_is_read_no_further_than_there_is_use_for() {
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gumball"));
    let output =
        command.args(["sample", "--kind", "flat", "--params", "-"]).stdin(zeros).output().expect("it starts");
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(message.contains("standard input: longer than 64 MiB"), "{message}");
}

#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_is_no_file_of_logits_masks_parameters_or_grammars() {
    let files = Files::new();
    let path = |name: &str| files.path(name).to_str().unwrap().to_owned();
    let (pipe, device) = (path("pipe.json"), path("device.json"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    for (file, says) in [(&pipe, "it is a pipe, not a file"), (&device, "it is a device, not a file")] {
        for args in [
            &["sample", file][..],
            &["inspect", file],
            &["check", file],
            &["sample", "--kind", "flat", "--params", file],
            &["sample", "--kind", "flat", "--mask", file],
        ] {
            let message = refuses(args);
            assert!(message.contains(says), "{args:?}: {message}");
        }
    }
}

/// Makes a file that begins with some bytes and goes on with zeros, 2^40 bytes in all, which take no place on
/// the disk.
#[cfg(target_os = "linux")]
fn sparse(files: &Files, name: &str, start: &[u8]) -> Option<String> {
    let path = files.write(name, start);
    let made = std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40);
    gumball_bench_protocol::skipped::or_skip(made).map(|()| path)
}

#[cfg(target_os = "linux")]
#[test]
fn of_a_terabyte_what_is_asked_for_is_read_and_the_rest_is_refused_before_it_is() {
    let files = Files::new();
    // In 3 GiB of address space, and soon.
    let run = |args: &[&str]| {
        let start = std::time::Instant::now();
        let line = "ulimit -v 3145728 && exec \"$0\" \"$@\"";
        let command = [&["-c", line, env!("CARGO_BIN_EXE_gumball")], args].concat();
        let output = std::process::Command::new("bash").args(command).output().expect("it starts");
        assert!(start.elapsed().as_secs() < 20, "{args:?}: {:?}", start.elapsed());
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let answered = |args: &[&str]| {
        let (code, said) = run(&[&["sample", "--seed", "1", "--json"], args].concat());
        assert!(code == Some(0) && said.starts_with('{') && said.lines().count() == 1, "{args:?}: {said}");
    };
    let refused = |args: &[&str], reason: &str| {
        let (code, said) = run(args);
        assert!(code == Some(2) && said.contains(reason), "{args:?}: {code:?}: {said}");
    };
    let rows = (1u64 << 40) / 4000 - 1;
    let mut array = npy("<f4", &format!("({rows}, 1000)"), &[]);
    let header = r#"{"x":{"dtype":"F32","shape":[274877906000],"data_offsets":[0,1099511624000]}}"#;
    let tensors = [&(1u64 << 40).to_le_bytes()[..], header.as_bytes()].concat();
    for (name, start) in
        [("a.npy", &[][..]), ("a.safetensors", &[]), ("b.safetensors", &tensors), ("a.json", &[]), ("a", &[])]
    {
        let Some(file) = sparse(&files, name, start) else { return };
        refused(&["sample", &file], "error: ");
    }
    let file = sparse(&files, "a.npy", &array).unwrap();
    answered(&[&file, "--rows", "200000000"]);
    refused(&["sample", &file], "choose some by --rows");
    array.truncate(40);
    let file = sparse(&files, "a.npy", &array).unwrap();
    refused(&["sample", &file], "error: ");
    let file = sparse(&files, "a.f32", &[]).unwrap();
    answered(&[&file, "--vocab", "1024", "--rows", "268435455"]);
    refused(&["sample", &file, "--vocab", "1024"], "choose some by --rows");
    refused(&["sample", &file, "--vocab", "1000"], "no whole number of rows");
    let file = sparse(&files, "a.json", b"[[1, 2], [3, 4],").unwrap();
    answered(&[&file, "--rows", "1"]);
    refused(&["sample", &file], "line 1, column 17");
    let length = 8 + 128;
    let data = (1u64 << 40) - length;
    let header = format!(r#"{{"x":{{"dtype":"BF16","shape":[{},1],"data_offsets":[0,{data}]}}}}"#, data / 2);
    let header = format!("{header:128}");
    let file =
        sparse(&files, "a.safetensors", &[&128u64.to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    answered(&[&file, "--rows", "5000000000"]);
    let flat = ["sample", "--kind", "flat", "--vocab", "4"];
    let (mask, params) = (sparse(&files, "mask", &[]).unwrap(), sparse(&files, "p.json", b"{}").unwrap());
    refused(&[&flat[..], &["--mask", &mask]].concat(), "a mask has at most 4194304 bytes");
    refused(&[&flat[..], &["--params", &params]].concat(), "longer than 64 MiB");
    for args in [&["head", "inspect", &mask][..], &["generate", "x", "--model", &mask]] {
        refused(args, "error: ");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_text_behind_it() {
    let files = Files::new();
    let marked = |name: &str, text: &str| files.write(name, format!("\u{feff}{text}").as_bytes());
    let params = marked("p.json", r#"{"top_k": 1}"#);
    crate::support::succeeds(&["sample", "--kind", "flat", "--vocab", "4", "--params", &params]);
    crate::support::succeeds(&["sample", &marked("rows.json", "[[1, 2], [3, 4]]")]);
    let model = files.write("m.gguf", &crate::zeros::model(&crate::tiny::metadata(&["a"])));
    for grammar in [marked("g.lark", "start: \"a\"\n"), marked("g.json", r#"{"const": "a"}"#)] {
        let args = ["generate", "a", "--no-chat", "--model", &model, "--grammar", &grammar];
        crate::support::succeeds(&args);
    }
    let wide: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let message = refuses(&["sample", "--kind", "flat", "--params", &files.write("p.json", &wide)]);
    assert!(message.contains("it is UTF-16, as its byte order mark says; save it as UTF-8"), "{message}");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_gumball"));
    let child =
        child.args(["sample", "-"]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null());
    let mut child = child.spawn().expect("it starts");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\xef\xbb\xbf[1, 2]").unwrap();
    assert!(child.wait().unwrap().success(), "told to be JSON by its content");
}

#[test]
fn infinities_of_json_are_refused_with_what_to_write() {
    let files = Files::new();
    let params = files.write("p.json", br#"{"logit_bias": {"5": -Infinity}}"#);
    let message = refuses(&["sample", "--kind", "flat", "--vocab", "64", "--params", &params]);
    assert!(message.contains(r#"write "-inf""#), "{message}");
    let params = files.write("p.json", br#"{"logit_bias": {"5": "-inf"}}"#);
    crate::support::succeeds(&["sample", "--kind", "flat", "--vocab", "64", "--params", &params]);
    let rows = files.write("rows.json", b"[1, -Infinity]");
    assert!(refuses(&["sample", &rows]).contains("where null is -inf"));
}

#[test]
fn a_tensor_that_a_file_names_twice_is_not_read() {
    let files = Files::new();
    let one = r#""x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}"#;
    let other = r#""x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}"#;
    let header = format!("{{{one},{other}}}");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat();
    let file = files.write("a.safetensors", &file);
    assert!(refuses(&["sample", &file]).contains("\"x\" stands twice"));
    let out = files.name("out");
    let message = refuses(&["head", "build", "--model", &file, "--tensor", "x", "--out", &out]);
    assert!(message.contains("\"x\" stands twice"), "{message}");
}
