//! All fuzz bodies under libFuzzer: the first byte chooses the body, `GUMBALL_BODY` fixes it.
#![no_main]

use std::sync::LazyLock;

use gumball_conformance::fuzz::BODIES;
use libfuzzer_sys::fuzz_target;

static CHOSEN: LazyLock<Option<usize>> = LazyLock::new(|| {
    let name = std::env::var("GUMBALL_BODY").ok()?;
    Some(BODIES.iter().position(|(body, _)| *body == name).unwrap_or_else(|| panic!("no body {name}")))
});

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let (_, body) = BODIES[CHOSEN.unwrap_or(usize::from(*first) % BODIES.len())];
    body(rest);
});
