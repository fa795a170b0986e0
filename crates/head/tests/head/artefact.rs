//! Artefacts: the data that was written is read back, any other file is an error, and a build that was
//! stopped goes on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gumball_head::artefact::{BuildProgress, build};
use gumball_head::{
    Artefact, ArtefactError, Bounds, Certified, Exact, HeadOptions, HostMatrix, Spread, Widened,
};
use half::{bf16, f16};
use safetensors::tensor::{SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use crate::{folder, numbers};

const VOCAB: usize = 300;
const WIDTH: usize = 40;

/// Weights of which one is not finite.
fn weights() -> Vec<f32> {
    let mut weights = numbers(VOCAB * WIDTH, 1);
    weights[7 * WIDTH] = f32::INFINITY;
    weights
}

fn head(weights: &[f32]) -> Exact<'_> {
    Exact::new(weights, weights.len() / WIDTH, WIDTH, HeadOptions::default()).expect("a head")
}

/// Returns the bounds of some hidden states, as bits.
fn bounds(certified: &Certified<'_>) -> Vec<u32> {
    let data = numbers(3 * WIDTH, 9);
    let states = Widened::of(HostMatrix::new(&data, 3, WIDTH).expect("hidden states"));
    let mut bounds = Bounds::default();
    certified.bound(&states, Spread::Caller, &mut bounds).expect("bounds");
    bounds.rows().iter().map(|bound| bound.to_bits()).collect()
}

fn written(folder: &Path, weights: &[f32]) -> PathBuf {
    let path = folder.join("head.safetensors");
    Artefact::write(&Certified::new(head(weights)), "lm_head.weight", &path).expect("it is written");
    path
}

fn of(bytes: Vec<u8>) -> Result<Artefact, ArtefactError> {
    Artefact::of(Arc::new(bytes))
}

#[test]
fn what_is_read_back_bounds_as_what_was_written() {
    let (folder, weights) = (folder(), weights());
    let certified = Certified::new(head(&weights));
    let path = written(folder.path(), &weights);
    let artefact = Artefact::open(&path).expect("an artefact");
    let info = artefact.info();
    assert_eq!((info.version, info.kind.name(), info.kind.screen()), (1, "certified", Some("int8")));
    assert_eq!((info.vocab, info.width, &*info.weights_name), (VOCAB, WIDTH, "lm_head.weight"));
    assert_eq!((&*info.weights_dtype, &info.bias_sha256), ("F32", &None));
    assert_eq!(info.tensors.len(), 6);
    let read = artefact.certified(head(&weights)).expect("these weights");
    assert_eq!(bounds(&read), bounds(&certified));
    assert_eq!(read.unscreened(), [7]);
    assert_eq!((read.screen_bytes(), read.most_rows()), (certified.screen_bytes(), certified.most_rows()));
    artefact.verify(&head(&weights)).expect("it is what these weights give");
    // The screen lies in the file's bytes, which outlive the artefact's own handle.
    drop(artefact);
    assert_eq!(bounds(&read), bounds(&certified));
}

#[test]
fn whoever_may_read_a_file_may_read_an_artefact() {
    let folder = folder();
    let permissions = |path: &Path| path.metadata().expect("a file").permissions();
    let ordinary = folder.path().join("ordinary");
    std::fs::write(&ordinary, "x").expect("a file");
    assert_eq!(permissions(&written(folder.path(), &weights())), permissions(&ordinary));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2);
}

#[test]
fn narrow_weights_and_a_bias_are_told_apart() {
    let (folder, bias) = (folder(), numbers(VOCAB, 3));
    let wide = numbers(VOCAB * WIDTH, 1);
    let narrow: Vec<bf16> = wide.iter().map(|w| bf16::from_f32(*w)).collect();
    let half: Vec<f16> = wide.iter().map(|w| f16::from_f32(*w)).collect();
    let options = |bias: Option<&[f32]>| HeadOptions {
        bias: bias.map(|b| b.to_vec().into()),
        ..HeadOptions::default()
    };
    let exact = |bias: Option<&[f32]>| Exact::new(&narrow, VOCAB, WIDTH, options(bias)).expect("a head");
    let path = folder.path().join("narrow");
    Artefact::write(&Certified::new(exact(Some(&bias))), "w", &path).expect("it is written");
    let artefact = Artefact::open(&path).expect("an artefact");
    assert_eq!(artefact.info().weights_dtype, "BF16");
    assert!(artefact.certified(exact(Some(&bias))).is_ok());
    let message = |exact| artefact.certified(exact).expect_err("another head").to_string();
    assert!(message(exact(None)).contains("the bias it was built from: SHA-256"));
    assert!(message(exact(Some(&numbers(VOCAB, 4)))).contains("the bias it was built from: SHA-256"));
    let halves = Exact::new(&half, VOCAB, WIDTH, options(None)).expect("a head");
    assert!(message(halves).starts_with(
        "it is of another head: the weights it was built from: type BF16 and shape [300, 40]; of this head: type F16"
    ));
    let fewer = Exact::new(&narrow[WIDTH..], VOCAB - 1, WIDTH, options(None)).expect("a head");
    assert!(message(fewer).contains("shape [299, 40]"));
    let mut others = narrow.clone();
    others[5] = bf16::from_f32(0.25);
    let others = Exact::new(&others, VOCAB, WIDTH, options(Some(&bias))).expect("a head");
    assert!(message(others).contains("the weights it was built from: SHA-256"));
}

#[test]
fn no_damaged_byte_is_taken() {
    let (folder, weights) = (folder(), weights());
    let bytes = std::fs::read(written(folder.path(), &weights)).expect("a file");
    let refuses = |bytes: Vec<u8>, what: &str| {
        let used = of(bytes).and_then(|artefact| artefact.certified(head(&weights)));
        assert!(used.is_err(), "{what}");
    };
    // Every byte of the header, and bytes of every tensor.
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    for place in (0..header).chain((header..bytes.len()).step_by(97)) {
        for flip in [1, 0x80] {
            let mut damaged = bytes.clone();
            damaged[place] ^= flip;
            refuses(damaged, &format!("byte {place} of {}, flipped by {flip}", bytes.len()));
        }
    }
    // Equal fields and tensors in another text.
    let with_header =
        |text: Vec<u8>| [&(text.len() as u64).to_le_bytes()[..], &text, &bytes[header..]].concat();
    let text = String::from_utf8(bytes[8..header].to_vec()).expect("text");
    refuses(with_header(text.replace("\",\"", "\", \"").into_bytes()), "a blank more");
    refuses(with_header(format!("{text}        ").into_bytes()), "blanks at its end");
    let twice = text.replace(
        "\"int8.mean\":",
        "\"int8.mean\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]},\"int8.mean\":",
    );
    let error = of(with_header(twice.into_bytes())).expect_err("a name twice").to_string();
    assert!(error.contains("\"int8.mean\" stands twice"), "{error}");
    for length in [0, 7, 8, 100, header, header + 1, bytes.len() - 1] {
        refuses(bytes[..length].to_vec(), &format!("cut off at {length}"));
    }
    refuses([&bytes[..], &[0]].concat(), "a byte more");
}

/// Returns the bytes of an artefact with changed metadata, and without the tensors that `keeps` refuses.
fn changed(
    bytes: &[u8],
    change: impl FnOnce(&mut HashMap<String, String>),
    keeps: impl Fn(&str) -> bool,
) -> Vec<u8> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).expect("a header");
    let mut fields = metadata.metadata().clone().expect("metadata");
    change(&mut fields);
    let tensors = SafeTensors::deserialize(bytes).expect("tensors");
    let kept: Vec<(String, TensorView<'_>)> =
        tensors.tensors().into_iter().filter(|(name, _)| keeps(name)).collect();
    safetensors::serialize(kept, Some(fields)).expect("bytes")
}

#[test]
fn what_is_wrong_is_told_in_words() {
    let (folder, weights) = (folder(), weights());
    let bytes = std::fs::read(written(folder.path(), &weights)).expect("a file");
    let set = |field: &str, text: &str| {
        let bytes =
            changed(&bytes, |fields| drop(fields.insert(field.to_owned(), text.to_owned())), |_| true);
        of(bytes).and_then(|artefact| artefact.certified(head(&weights))).expect_err("changed")
    };
    assert!(matches!(set("version", "2"), ArtefactError::Version { known: 1, .. }));
    assert_eq!(
        set("version", "2").to_string(),
        "its format has version 2, and this build reads version 1; build it again"
    );
    assert!(matches!(set("format", "another"), ArtefactError::Field { field: "format", .. }));
    assert!(matches!(set("screen", "two-level"), ArtefactError::Kind { what: "screen", .. }));
    assert!(matches!(set("head", "fast"), ArtefactError::Kind { what: "head", .. }));
    assert!(matches!(set("vocab", "0"), ArtefactError::Field { field: "vocab", .. }));
    assert!(matches!(set("width", "many"), ArtefactError::Field { field: "width", .. }));
    assert!(matches!(set("vocab", "299"), ArtefactError::Tensor { .. }));
    assert!(matches!(set("weights.name", "another"), ArtefactError::Checksum { .. }));
    assert!(matches!(set("sha256", "00"), ArtefactError::Checksum { .. }));
    let lacks = |name: &'static str| {
        of(changed(&bytes, |_| {}, |tensor| tensor != name)).expect_err("a tensor is missing").to_string()
    };
    assert_eq!(
        lacks("int8.mean"),
        "its tensor `int8.mean` is missing, but must be F32 of shape [40]; build it again"
    );
    assert!(lacks("int8.unscreened").contains("U32 of one dimension"));
    let without = changed(&bytes, |fields| drop(fields.remove("weights.sha256")), |_| true);
    assert!(matches!(of(without), Err(ArtefactError::Field { field: "weights.sha256", .. })));
    let error = Artefact::open(&folder.path().join("none")).expect_err("no file");
    assert!(matches!(error, ArtefactError::Io { .. }));
    let error = Artefact::open(folder.path()).expect_err("a folder");
    assert!(error.to_string().ends_with("it is a folder, not a file"), "{error}");
}

/// Returns the checksum of fields and tensors, as the format's description says.
fn checksum(bytes: &[u8]) -> String {
    let (_, metadata) = SafeTensors::read_metadata(bytes).expect("a header");
    let mut fields: Vec<(String, String)> =
        metadata.metadata().clone().expect("metadata").into_iter().collect();
    fields.retain(|(field, _)| field != "sha256");
    fields.sort();
    let mut text: Vec<u8> = Vec::new();
    let add = |text: &mut Vec<u8>, word: &str| text.extend([word.as_bytes(), &[0]].concat());
    fields.iter().flat_map(|(field, value)| [field, value]).for_each(|word| add(&mut text, word));
    let mut tensors = SafeTensors::deserialize(bytes).expect("tensors").tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, tensor) in tensors {
        add(&mut text, &name);
        add(&mut text, &format!("{:?}", tensor.dtype()));
        tensor.shape().iter().for_each(|size| add(&mut text, &size.to_string()));
        text.push(0);
        text.extend(tensor.data());
    }
    gumball_spec::hex::hex(&Sha256::digest(&text))
}

#[test]
fn bounds_that_are_not_those_of_the_weights_do_not_verify() {
    let (folder, weights) = (folder(), weights());
    let mut bytes = std::fs::read(written(folder.path(), &weights)).expect("a file");
    assert_eq!(checksum(&bytes), of(bytes.clone()).expect("an artefact").info().sha256);
    // A bound is set to 0, which is too low, and the checksum is corrected to match. So opening the file
    // finds nothing; only `verify` does.
    let (header, metadata) = SafeTensors::read_metadata(&bytes).expect("a header");
    let place = metadata.info("int8.own").expect("there").data_offsets.0 + header + 8;
    bytes[place..place + 4].fill(0);
    let sum = checksum(&bytes);
    let stated = of(bytes.clone()).expect("an artefact").info().sha256.clone();
    let place = bytes.windows(64).position(|word| word == stated.as_bytes()).expect("in the header");
    bytes[place..place + 64].copy_from_slice(sum.as_bytes());
    let artefact = of(bytes).expect("an artefact");
    artefact.certified(head(&weights)).expect("its checksum holds");
    let error = artefact.verify(&head(&weights)).expect_err("its bounds do not");
    assert!(matches!(error, ArtefactError::Rebuilt { ref name } if name == "int8.own"), "{error}");
    let others = numbers(VOCAB * WIDTH, 2);
    assert!(matches!(artefact.verify(&head(&others)), Err(ArtefactError::Source { what: "weights", .. })));
}

/// Enough rows for several pieces of a build, in few columns of many bytes.
fn large() -> (Vec<f32>, usize) {
    (numbers(1500 * 8192, 5), 8192)
}

#[test]
fn a_build_that_was_stopped_goes_on() {
    let (folder, (weights, width)) = (folder(), large());
    let exact = Exact::new(&weights, 1500, width, HeadOptions::default()).expect("a head");
    let (path, whole) = (folder.path().join("stopped"), folder.path().join("whole"));
    let part = folder.path().join("stopped.part");
    let mut seen = Vec::new();
    let mut stop = |progress: BuildProgress| {
        seen.push((progress.done, progress.resumed));
        progress.done < 1000
    };
    let error = build(&exact, "w", &path, &mut stop).expect_err("stopped");
    assert!(matches!(error, ArtefactError::Interrupted));
    assert_eq!(seen, [(0, 0), (512, 0), (1024, 0)]);
    assert!(part.exists() && !path.exists());

    // A record that was not written to its end is computed again; whole ones are not.
    let length = part.metadata().expect("a file").len();
    std::fs::OpenOptions::new().write(true).open(&part).expect("it").set_len(length - 9).expect("shorter");
    let mut seen = Vec::new();
    let mut go_on = |progress: BuildProgress| {
        seen.push((progress.done, progress.resumed));
        true
    };
    build(&exact, "w", &path, &mut go_on).expect("built");
    assert_eq!(seen, [(512, 512), (1024, 512), (1500, 512)]);
    assert!(!part.exists());
    build(&exact, "w", &whole, &mut |_| true).expect("built");
    assert_eq!(std::fs::read(&path).expect("it"), std::fs::read(&whole).expect("it"));
    Artefact::open(&path).expect("it").verify(&exact).expect("what the weights give");

    // A build that was begun of other weights does not go on.
    build(&exact, "w", &path, &mut |progress| progress.done < 500).expect_err("stopped");
    let mut others = weights.clone();
    others[3] += 1.0;
    let others = Exact::new(&others, 1500, width, HeadOptions::default()).expect("a head");
    let mut resumed = 1;
    let mut first = |progress: BuildProgress| {
        resumed = progress.resumed;
        true
    };
    build(&others, "w", &path, &mut first).expect("built");
    assert_eq!(resumed, 0);
    Artefact::open(&path).expect("it").verify(&others).expect("what the weights give");
}
