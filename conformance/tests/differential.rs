//! Every fuzz body over random bytes, shrunk by proptest where one fails.
//!
//! The bounded driver (`cargo run --bin fuzz`) runs the same bodies for as long as it is given, `ci/long fuzz` for ten
//! minutes each.

use gumball_conformance::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Runs a body on inputs of a fixed seed, so that a run of the tests says the same twice.
fn holds(body: fn(&[u8]), cases: u32) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let bytes = prop_oneof![
        2 => vec(any::<u8>(), 0..400),
        // Mostly zero bytes: few things at once.
        1 => vec(prop_oneof![7 => Just(0u8), 1 => any::<u8>()], 0..400),
    ];
    TestRunner::new_with_rng(config, rng)
        .run(&bytes, |data| {
            body(&data);
            Ok(())
        })
        .unwrap();
}

macro_rules! bodies {
    ($($body:ident $cases:literal,)*) => {
        $(#[test]
        fn $body() {
            holds(fuzz::$body, $cases);
        })*

        #[test]
        fn every_body_is_here() {
            let here = [$(stringify!($body)),*];
            let all: Vec<_> = fuzz::BODIES.iter().map(|(name, _)| *name).collect();
            assert_eq!(all, here);
        }
    };
}

bodies! {
    sample_matches_oracle 3000,
    oracle_holds_its_invariants 8000,
    oracle_agrees_with_f64 8000,
    edits_match_a_dense_reference 4000,
    history_counts_match_a_recount 2000,
    any_params_are_refused_or_drawn_from 3000,
    params_survive_json 8000,
    any_text_is_no_params_or_valid_json 8000,
    orders_parse_back 8000,
    numbers_are_monotone 20000,
    any_masks_are_refused_or_forbid_what_they_lack 8000,
    any_drafts_are_refused_or_accepted_as_defined 1500,
    any_drafts_on_a_device_are_accepted_as_defined 20,
}
