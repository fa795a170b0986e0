//! Fuzz bodies: plain functions of bytes that panic when something is wrong.
//!
//! They run on stable Rust under the bounded driver (`cargo run --bin fuzz`), in proptest, and under
//! libFuzzer (the package in `proof/fuzz/`, apart from the workspace).

use std::collections::HashMap;

use gumball_cpu::{Entry, History};
#[cfg(feature = "cuda")]
use gumball_engine::Device;
use gumball_engine::{Batch, HostMasks, Outputs, Place, Pool, PoolConfig, Rows, Sampler, StepOptions};
use gumball_spec::Forced;
use gumball_spec::num::{exp_of_u32, log2};
use gumball_spec::{Error, FilterOrder, Row, SamplingParams};

use crate::backend::{self, Backend, Oracle};
use crate::bytes::Bytes;
use crate::case::Case;
use crate::compare;
use crate::generate;
use crate::reference::{self, Reference};
use crate::scripts;

/// A body, under its name.
pub type Body = (&'static str, fn(&[u8]));

/// All bodies.
pub const BODIES: &[Body] = &[
    ("sample_matches_oracle", sample_matches_oracle),
    ("oracle_holds_its_invariants", oracle_holds_its_invariants),
    ("oracle_agrees_with_f64", oracle_agrees_with_f64),
    ("edits_match_a_dense_reference", edits_match_a_dense_reference),
    ("history_counts_match_a_recount", history_counts_match_a_recount),
    ("any_params_are_refused_or_drawn_from", any_params_are_refused_or_drawn_from),
    ("params_survive_json", params_survive_json),
    ("any_text_is_no_params_or_valid_json", any_text_is_no_params_or_valid_json),
    ("orders_parse_back", orders_parse_back),
    ("numbers_are_monotone", numbers_are_monotone),
    ("any_masks_are_refused_or_forbid_what_they_lack", any_masks_are_refused_or_forbid_what_they_lack),
    ("any_drafts_are_refused_or_accepted_as_defined", any_drafts_are_refused_or_accepted_as_defined),
    (
        "scripts_from_hidden_states_do_what_they_do_from_logits",
        scripts_from_hidden_states_do_what_they_do_from_logits,
    ),
    ("scripts_over_ranks_do_what_they_do_in_one_process", scripts_over_ranks_do_what_they_do_in_one_process),
    #[cfg(feature = "cuda")]
    ("scripts_on_a_device_do_what_they_do_on_the_host", scripts_on_a_device_do_what_they_do_on_the_host),
    #[cfg(feature = "cuda")]
    ("scripts_from_hidden_states_on_a_device_do_so_too", scripts_from_hidden_states_on_a_device_do_so_too),
    #[cfg(feature = "cuda")]
    (
        "scripts_over_devices_do_what_they_do_in_one_process",
        scripts_over_devices_do_what_they_do_in_one_process,
    ),
];

/// Every backend of this machine gives what the oracle gives, for any case.
pub fn sample_matches_oracle(data: &[u8]) {
    hold_to_oracle(&generate::case(data));
}

/// The largest vocabularies, as models have them; slow, as the oracle sorts them.
pub fn large_sample_matches_oracle(data: &[u8]) {
    hold_to_oracle(&generate::large_case(data));
}

/// Holds every backend of this machine to the oracle; a row's buffers stay for the next one.
fn hold_to_oracle(case: &Case) {
    thread_local! {
        static BACKENDS: Vec<Box<dyn Backend>> = backend::available();
    }
    BACKENDS.with(|backends| {
        for backend in backends.iter().skip(1) {
            if let Err(text) = compare::against_oracle(&**backend, case) {
                panic!("{text}");
            }
        }
    });
}

/// The oracle's results make sense in themselves.
pub fn oracle_holds_its_invariants(data: &[u8]) {
    let case = generate::case(data);
    let seen = Oracle.sample(&case).expect("generated cases are valid");
    let kept = seen.kept.expect("the oracle reports it");
    let z = case.edited();
    let alive = z.iter().filter(|z| **z > f32::NEG_INFINITY).count();
    let forced = case.request().emitted();
    if let Some(id) = forced.and_then(Forced::kept) {
        assert_eq!((kept, seen.token), (vec![id], id as i32), "a forced token is kept alone\n{case:?}");
        return;
    }
    assert_eq!(kept.is_empty(), alive == 0, "kept is empty only in an empty row\n{case:?}");
    assert!(kept.is_sorted_by(|a, b| key(&z, *a) > key(&z, *b)), "kept follows the order\n{case:?}");
    if let (Some(first), Some(last)) = (kept.first(), kept.last()) {
        let inside = |id: &u32| key(&z, *id) <= key(&z, *first) && key(&z, *id) >= key(&z, *last);
        let between = (0..z.len() as u32).filter(|id| z[*id as usize] > f32::NEG_INFINITY).filter(inside);
        assert_eq!(between.count(), kept.len(), "kept is an interval\n{case:?}");
    }
    match alive {
        0 => assert_eq!(seen.token, gumball_spec::NONE),
        _ => assert!(kept.contains(&(seen.token as u32)), "drawn from the kept\n{case:?}"),
    }
    if let Some(logprobs) = seen.logprobs {
        let listed: Vec<u32> = logprobs.top.iter().map(|e| e.rank).take_while(|rank| *rank > 0).collect();
        assert!(listed.iter().copied().eq(1..=listed.len() as u32), "ranks count up\n{case:?}");
        assert!(logprobs.top.is_sorted_by(|a, b| a.logprob >= b.logprob), "the list descends\n{case:?}");
    }
}

fn key(z: &[f32], id: u32) -> u64 {
    gumball_spec::num::key(z[id as usize], id)
}

/// Where the f64 reference can tell, the oracle keeps and draws the same.
pub fn oracle_agrees_with_f64(data: &[u8]) {
    let case = Case { forced: None, ..generate::case(data) };
    let forced = case.request().emitted().map(|forced| forced.id);
    assert_eq!(forced, reference::edits::forced(&case), "forced\n{case:?}");
    if forced.is_some() {
        return;
    }
    let z = case.edited();
    let reference = Reference::of(case.kind, &z);
    let spread = reference.z().iter().filter(|z| z.is_finite()).fold(0f64, |spread, z| spread.max(z.abs()));
    let seen = Oracle.sample(&case).expect("generated cases are valid");
    // Beyond these, differences in f64 and f32 are not the same numbers.
    if seen.temperature == 0.0 || reference.order.is_empty() || spread > 1e4 || seen.temperature < 0.01 {
        return;
    }
    let acts = reference::xtc_acts(case.params.xtc_probability, case.seed, case.position, case.draw);
    let Some(kept) = reference.kept(&case.params, seen.temperature.into(), case.mu, acts) else { return };
    let ids: Vec<usize> = reference.order[kept.clone()].to_vec();
    let oracle: Vec<usize> =
        seen.kept.expect("the oracle reports it").iter().map(|id| *id as usize).collect();
    assert_eq!(oracle, ids, "kept\n{case:?}");
    let t = seen.temperature.into();
    let (seed, position, draw) = reference::race_words(&case);
    let winner = if case.params.is_adaptive() {
        let row = reference.adapted(&case.params, kept, t, case.mu);
        row.and_then(|row| reference::race(&row, &ids, 1.0, seed, position, draw))
    } else {
        reference::race(reference.z(), &ids, t, seed, position, draw)
    };
    if let Some(winner) = winner {
        assert_eq!(seen.token, winner as i32, "drawn\n{case:?}");
    }
}

/// Edits agree with a walk over the whole vocabulary, each operation in f64 and rounded.
pub fn edits_match_a_dense_reference(data: &[u8]) {
    let case = Case { hook: None, ..generate::case(data) };
    if case.kind == gumball_spec::Kind::Probabilities {
        // Their only edits are bans; their numbers count otherwise.
        return;
    }
    let bits = |z: Vec<f32>| z.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(case.edited()), bits(reference::edits(&case)), "{case:?}");
}

/// Counts kept up to date equal a recount.
pub fn history_counts_match_a_recount(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let prompt: Vec<u32> = (0..bytes.byte() % 32).map(|_| u32::from(bytes.byte() % 16)).collect();
    let (mut history, mut output) = (History::new(&prompt), Vec::new());
    for _ in 0..bytes.byte() {
        match bytes.byte() {
            byte if byte % 5 < 4 => {
                let id = bytes.of(&[u32::from(byte >> 4), u32::from(byte >> 4), u32::MAX]);
                history.push(id);
                output.push(id);
            }
            byte => {
                let len = usize::from(byte) % (output.len() + 3);
                history.truncate(len);
                output.truncate(len);
            }
        }
        let mut counts: HashMap<u32, (u32, u32)> = HashMap::new();
        prompt.iter().for_each(|id| counts.entry(*id).or_default().0 += 1);
        output.iter().for_each(|id| counts.entry(*id).or_default().1 += 1);
        let mut entries: Vec<Entry> =
            counts.into_iter().map(|(id, (prompt, output))| Entry { id, prompt, output }).collect();
        entries.sort_by_key(|entry| entry.id);
        assert_eq!(history.entries(), entries);
        assert_eq!((history.prompt(), history.output()), (&prompt[..], &output[..]));
    }
}

/// Any bits at all in the parameters give a typed error that names one, or draw without a panic.
pub fn any_params_are_refused_or_drawn_from(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let vocab = 1 + bytes.below(40);
    let mut params = generate::params(bytes, vocab);
    let numbers = SamplingParams::parameters().filter(|parameter| parameter.range.is_some());
    let numbers: Vec<_> = numbers.map(|parameter| parameter.name).collect();
    for _ in 0..1 + bytes.byte() % 3 {
        let odd = [-1.0, 0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65_536.0, 1e30, 1e-45];
        let value = if bytes.seldom(3) { f32::from_bits(bytes.word()) } else { bytes.of(&odd) };
        let id = bytes.word();
        match bytes.below(numbers.len() + 4) {
            0 => params.logit_bias.push((id % 64, value)),
            1 => params.banned_ids.push(id % 64),
            2 => params.allowed_ids.get_or_insert_default().push(id % 64),
            3 => params.bad_words.push(vec![id % 64; (id % 3) as usize]),
            place => {
                let mut set = |value| params.parameter(numbers[place - 4]).expect("a number").1.set(value);
                // An integer is not any of these values.
                _ = set(value.into()) || set((id as i32).into()) || set(id.into());
            }
        }
    }
    let case = Case::of(&vec![0.5; vocab], params).after(&[1, 2, 1], &[2, 1]);
    match Oracle.sample(&case) {
        Ok(_) => {}
        Err(Error::Unknown { .. }) => panic!("nothing was named\n{case:?}"),
        Err(error) => {
            assert!(error.to_string().contains(" but must ") || error.to_string().contains(" cannot "))
        }
    }
    hold_to_oracle(&case);
    // What speaks of logits is refused beside probabilities, alike everywhere.
    hold_to_oracle(&Case { kind: gumball_spec::Kind::Probabilities, ..case });
}

/// Parameters written as JSON and read again are the same.
pub fn params_survive_json(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let params = generate::params(bytes, 500);
    let text = serde_json::to_string(&params).expect("parameters are plain data");
    let back: SamplingParams = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(back, params, "{text}");
    assert_eq!(params.order.to_string().parse(), Ok(params.order));
}

/// Any text is refused as JSON of parameters, or as parameters, or gives some that survive being written.
pub fn any_text_is_no_params_or_valid_json(data: &[u8]) {
    let mut text = String::from_utf8_lossy(data).into_owned();
    if data.first().is_some_and(|byte| byte % 2 == 1) {
        // Half of the time text that is nearly right: a valid one with a few bytes overwritten.
        let params = generate::params(&mut Bytes(&data[data.len() / 2..]), 500);
        let mut near = serde_json::to_vec(&params).expect("parameters are plain data");
        for pair in data[..data.len() / 2].chunks_exact(2).take(4) {
            let place = usize::from(pair[0]) * near.len() / 256;
            near[place] = pair[1];
        }
        text = String::from_utf8_lossy(&near).into_owned();
    }
    let Ok(params) = serde_json::from_str::<SamplingParams>(&text) else { return };
    if params.validate(500).is_ok() {
        let again = serde_json::to_string(&params).expect("parameters are plain data");
        assert_eq!(serde_json::from_str::<SamplingParams>(&again).expect("just written"), params, "{text}");
    }
}

/// Any text is refused as an order of filters, or its printed form parses back.
pub fn orders_parse_back(data: &[u8]) {
    let names = ["default", "joint", "top_k", "top_p", "xtc", "min_p", ",", ", ", "top", ""];
    let bytes = &mut Bytes(data);
    let mut text = String::new();
    for _ in 0..bytes.byte() % 8 {
        text.push_str(bytes.of(&names));
    }
    if bytes.seldom(3) {
        text.push_str(&String::from_utf8_lossy(bytes.0));
    }
    match text.parse::<FilterOrder>() {
        Ok(order) => assert_eq!(order.to_string().parse(), Ok(order)),
        Err(error) => assert!(matches!(error, Error::Unknown { .. })),
    }
}

/// `log2` and the arrivals never decrease.
pub fn numbers_are_monotone(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let (a, b) = (bytes.word(), bytes.word() >> (bytes.byte() % 32));
    let (low, high) = (a.min(a.wrapping_add(b)), a.max(a.wrapping_add(b)));
    assert!(exp_of_u32(low) <= exp_of_u32(high), "{low} {high}");
    let positive = |bits: u32| Some(f32::from_bits(bits & 0x7FFF_FFFF)).filter(|x| x.is_finite());
    if let (Some(x), Some(y)) = (positive(low), positive(high)) {
        let (x, y) = (x.min(y).max(2f32.powi(-75)), x.max(y).clamp(2f32.powi(-75), 2f32.powi(17)));
        assert!(log2(x.min(y)) <= log2(y), "{x:e} {y:e}");
    }
    let row = Row::F32(&[]);
    assert!(
        gumball_spec::oracle::sample(row, &Case::of(&[], SamplingParams::default()).request(), None).is_err()
    );
}

/// Bitmasks of any shape are refused, or let a pool draw what a sampler draws under the same line; words that
/// are missing forbid, all of them where a line has none.
pub fn any_masks_are_refused_or_forbid_what_they_lack(data: &[u8]) {
    let bytes = &mut Bytes(data);
    let (vocab, rows) = (1 + bytes.below(300), bytes.below(5));
    let mut size = |usual: usize| match bytes.byte() % 8 {
        0 => bytes.of(&[0, 1, usize::MAX, usize::MAX / 2, usize::MAX / 4 + 1]),
        1 => bytes.below(64),
        _ => usual,
    };
    let (lines, width) = (size(rows), size(vocab.div_ceil(32)));
    let stride = size(width);
    let words: Vec<u32> = (0..bytes.below(80)).map(|_| bytes.of(&[0, u32::MAX, 1, 0x8000_0001])).collect();
    let present: Vec<bool> = (0..size_of_list(bytes, rows)).map(|_| bytes.byte() % 4 > 0).collect();
    let logits: Vec<f32> = (0..rows * vocab).map(|_| f32::from(bytes.byte())).collect();

    let last = lines.saturating_sub(1).checked_mul(stride).and_then(|last| last.checked_add(width));
    let fits = lines == 0
        || width == 0
        || (lines == 1 || stride >= width) && last.is_some_and(|end| end <= words.len());
    let masks = HostMasks::new(&words, lines, width, stride);
    assert_eq!(masks.is_ok(), fits, "{lines} lines of {width}, {stride} apart, of {} words", words.len());
    let Ok(masks) = masks.and_then(|masks| masks.with_present(&present)) else { return };

    let params = SamplingParams { seed: Some(7), ..Default::default() };
    let config = PoolConfig { slots: 8, place: Place::threads(1), ..PoolConfig::new(vocab) };
    let mut pool = Pool::new(config).expect("a small pool");
    let slots: Vec<_> = (0..rows).map(|_| pool.admit(params.clone(), &[]).expect("a slot")).collect();
    let batch = Rows::logits(&logits, rows, vocab).expect("as many");
    let mut out = Outputs::new();
    let stepped = pool.step(batch, &Batch { masks: masks.into(), ..Batch::of(&slots) }, &mut out);
    // A word for each id is no bitmask.
    assert_eq!(stepped.is_ok(), lines == rows && width < vocab.max(64), "{stepped:?}");
    for row in 0..if stepped.is_ok() { rows } else { 0 } {
        let line = if width == 0 { &[][..] } else { &words[row * stride..][..width] };
        let mask = present[row].then_some(line);
        let mut sampler = Sampler::new(params.clone(), vocab).expect("valid parameters");
        let options = StepOptions { mask, ..Default::default() };
        let token =
            sampler.sample_with(&logits[row * vocab..][..vocab], options).expect("a row of the vocabulary");
        assert_eq!(out.tokens()[row], token.id.map_or(gumball_spec::NONE, |id| id as i32), "row {row}");
        let allowed = |id: u32| line.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        match token.id {
            Some(id) => assert!(mask.is_none() || allowed(id), "{id} is forbidden"),
            None => assert!(mask.is_some() && !(0..vocab as u32).any(allowed), "an id was allowed"),
        }
    }
}

/// Returns the length of a list that is mostly as long as it must be.
fn size_of_list(bytes: &mut Bytes<'_>, usual: usize) -> usize {
    if bytes.seldom(8) { bytes.below(8) } else { usual }
}

/// A pool verifies drafts as the oracle does, and refuses what is no tree.
pub fn any_drafts_are_refused_or_accepted_as_defined(data: &[u8]) {
    thread_local! {
        static POOL: Box<dyn Backend> = backend::by_name("pool").expect("it is everywhere");
    }
    let held = POOL.with(|pool| compare::drafts_against_oracle(&**pool, &generate::drafted(data)));
    let _ = held.unwrap_or_else(|text| panic!("{text}"));
}

/// Calls of all kinds do the same from hidden states as from logits.
pub fn scripts_from_hidden_states_do_what_they_do_from_logits(data: &[u8]) {
    scripts::from_hidden_states(data);
}

/// They do the same over ranks as in one process.
pub fn scripts_over_ranks_do_what_they_do_in_one_process(data: &[u8]) {
    scripts::over_ranks(data);
}

/// They do the same on a device as on the host.
#[cfg(feature = "cuda")]
pub fn scripts_on_a_device_do_what_they_do_on_the_host(data: &[u8]) {
    on_a_device(data, scripts::on_a_device);
}

/// They do the same from hidden states there.
#[cfg(feature = "cuda")]
pub fn scripts_from_hidden_states_on_a_device_do_so_too(data: &[u8]) {
    on_a_device(data, scripts::from_hidden_states_on_a_device);
}

/// Plays a script on an emulated device; without a compiler nothing is held.
#[cfg(feature = "cuda")]
fn on_a_device(data: &[u8], play: fn(&[u8], &Device) -> scripts::Counted) {
    thread_local! {
        static DEVICE: Option<Device> = Device::emulated().ok();
    }
    DEVICE.with(|device| device.as_ref().map(|device| play(data, device)));
}

/// They do the same over the devices of ranks as in one process on the host.
#[cfg(feature = "cuda")]
pub fn scripts_over_devices_do_what_they_do_in_one_process(data: &[u8]) {
    if Device::emulated().is_ok() {
        scripts::over_devices(data);
    }
}
