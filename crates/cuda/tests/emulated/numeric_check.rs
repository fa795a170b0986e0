//! The device's numeric functions equal their definitions bit for bit, in the emulator's build of the
//! headers.
//!
//! The conformance program tests the GPU's build (`conformance numbers`). The long test evaluates every
//! 32-bit input: `cargo test --release -p gumball-cuda --features emulator,testing --test emulated
//! numeric_check -- --ignored`

use gumball_cuda::numeric_check::{Inputs, NUMBERS, check};
use gumball_spec::num::{SWITCH_32, SWITCH_64};

use crate::runtime;

/// Compares all functions with their definitions. At least one in `domain` of the inputs must lie in each
/// function's domain.
fn hold_all(inputs: Inputs, domain: usize) {
    let Some(runtime) = runtime() else { return };
    for (which, (name, _)) in NUMBERS.iter().enumerate() {
        let held = check(&runtime, which, inputs)
            .expect("the host runs kernels")
            .unwrap_or_else(|text| panic!("{text}"));
        assert!(held >= inputs.count / domain, "{name} was held on {held} inputs only");
    }
}

#[test]
fn numbers_equal_the_definition_on_a_strided_sweep() {
    hold_all(Inputs { from: 0, step: 4099, count: 1 << 20 }, 16);
}

#[test]
fn numbers_equal_the_definition_on_words_of_64_bits() {
    hold_all(Inputs { from: 0x0123_4567_89AB_CDEF, step: 0x9E37_79B9_7F4A_7C15, count: 1 << 20 }, 16);
}

#[test]
fn numbers_equal_the_definition_at_the_switches() {
    for place in [0, SWITCH_64, u64::MAX, u64::from(SWITCH_32), 0xC2FC_0000, 0x7F80_0000, 0x0080_0000] {
        hold_all(Inputs { from: place.wrapping_sub(500), step: 1, count: 1000 }, usize::MAX);
    }
}

#[test]
#[ignore = "takes minutes"]
fn numbers_equal_the_definition_on_every_word() {
    hold_all(Inputs { from: 0, step: 1, count: 1 << 32 }, 16);
}
