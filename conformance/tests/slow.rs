//! What takes minutes: long vocabularies against the oracle. `cargo test -p gumball-conformance --test slow -- --ignored`

use gumball_conformance::fuzz::large_sample_matches_oracle;
use gumball_conformance::rows::Words;

#[test]
#[ignore = "takes minutes"]
fn long_vocabularies_match_the_oracle() {
    for seed in 0..1000 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..400).map(|_| words.word() as u8).collect();
        large_sample_matches_oracle(&data);
    }
}
