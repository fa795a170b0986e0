//! Every fuzz body over random bytes, shrunk by proptest where one fails.
//!
//! The bounded driver (`cargo run --bin fuzz`) runs the same bodies for as long as it is given,
//! `ci/long fuzz` for ten minutes each. `slow` takes minutes, too.

mod slow;

use gumball_bench_protocol::skipped::or_skip;
use gumball_conformance::fuzz;
use gumball_conformance::rows::Words;
use gumball_conformance::scripts::{self, Counted, Outcome};
use gumball_engine::Device;
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

/// A script in which no call is accepted would hold nothing: here each pool accepts every call often, except
/// the ones that it does not have.
#[test]
fn scripts_make_every_call() {
    let device = or_skip(Device::emulated());
    let on_device = |play: fn(&[u8], &Device) -> Counted| {
        move |data: &[u8]| device.as_ref().map(|device| play(data, device)).unwrap_or_default()
    };
    let over_devices = |data: &[u8], _: &Device| scripts::over_devices(data);
    type Play<'a> = &'a dyn Fn(&[u8]) -> Counted;
    let pools: [(&str, Play<'_>); 5] = [
        ("hidden states", &scripts::from_hidden_states),
        ("ranks", &scripts::over_ranks),
        ("a device", &on_device.clone()(scripts::on_a_device)),
        ("hidden states on a device", &on_device.clone()(scripts::from_hidden_states_on_a_device)),
        ("devices of ranks", &on_device(over_devices)),
    ];
    for (name, play) in pools {
        let (mut words, mut counted) = (Words(3), Counted::new());
        for _ in 0..40 {
            let data: Vec<u8> = (0..400).map(|_| words.word() as u8).collect();
            play(&data).into_iter().for_each(|(call, count)| *counted.entry(call).or_default() += count);
        }
        println!("{name}: {counted:?}");
        if counted.is_empty() {
            continue;
        }
        let of = |outcome| counted.iter().filter(move |((_, of), _)| *of == outcome);
        for ((call, _), count) in of(Outcome::Accepted) {
            assert!(*count >= 10, "{name}: {count} times {call}");
        }
        assert_eq!(of(Outcome::Accepted).count(), 17, "{name}: {counted:?}");
        // Of the other calls, a few have hooks, which devices do not run.
        let unavailable = of(Outcome::Unavailable).map(|(_, count)| count);
        assert!(unavailable.sum::<u32>() < 40, "{name}: {counted:?}");
        let for_other = of(Outcome::RefusedForOther).map(|(_, count)| count).sum::<u32>();
        assert!(10 * for_other <= of(Outcome::Refused).map(|(_, count)| count).sum(), "{name}: {counted:?}");
    }
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
    scripts_from_hidden_states_do_what_they_do_from_logits 1000,
    scripts_over_ranks_do_what_they_do_in_one_process 300,
    scripts_on_a_device_do_what_they_do_on_the_host 60,
    scripts_from_hidden_states_on_a_device_do_so_too 30,
    scripts_over_devices_do_what_they_do_in_one_process 100,
}
