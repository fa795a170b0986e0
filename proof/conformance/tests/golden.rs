//! Value stability: every backend draws the pinned tokens.

use gumball_bench_protocol::skipped::skip;
use gumball_conformance::backend::available;
use gumball_conformance::golden::{CHANGED, Set, changes};
use gumball_spec::{prompt_seed, sample_seed};

fn holds(set: Set) {
    let pinned = set.pinned().expect("the golden file is there");
    for backend in available() {
        let changes = changes(&pinned, &set.draw(&*backend));
        assert!(changes.is_empty(), "{CHANGED}\n{}:\n{}", backend.name(), changes.join("\n"));
    }
}

#[test]
fn generated_rows_draw_the_pinned_tokens() {
    holds(Set::Generated);
}

#[test]
fn recorded_rows_of_a_real_model_draw_the_pinned_tokens() {
    if Set::Recorded.is_present() {
        holds(Set::Recorded);
    } else {
        skip("rows/smollm2.bf16 is not there");
    }
}

#[test]
fn a_changed_token_is_seen() {
    let pinned = Set::Generated.pinned().expect("the golden file is there");
    let mut drawn = pinned.clone();
    let name = drawn.keys().next().expect("there are some").clone();
    drawn.get_mut(&name).expect("just seen")[3] += 1;
    assert_eq!(changes(&pinned, &drawn).len(), 1);
    drawn.remove(&name);
    assert_eq!(changes(&pinned, &drawn).len(), 1);
    assert_eq!(changes(&drawn, &pinned).len(), 1);
}

#[test]
fn prompts_and_samples_have_the_pinned_seeds() {
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("../golden/rollout_seeds.json")).expect("a list");
    let whole = |text: &serde_json::Value| -> u64 { text.as_str().expect("digits").parse().expect("a u64") };
    let small = |number: &serde_json::Value| number.as_u64().expect("an integer") as u32;
    for case in &cases {
        let seed = prompt_seed(whole(&case["run"]), whole(&case["prompt"]), small(&case["turn"]));
        assert_eq!(seed, whole(&case["prompt_seed"]), "{case}");
        assert_eq!(sample_seed(seed, small(&case["sample"])), whole(&case["sample_seed"]), "{case}");
    }
}
