//! Files of logits and masks that look like what they are not.

use crate::support::{Files, bytes, npy, refuses};

/// Returns an `.npy` file whose header says what it is told to of the order.
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
            &["bench", file],
            &["sample", "--kind", "flat", "--params", file],
            &["sample", "--kind", "flat", "--mask", file],
        ] {
            let message = refuses(args);
            assert!(message.contains(says), "{args:?}: {message}");
        }
    }
}
