//! Every rule, on the oracle, on the CPU at every level of this machine, and on the engine's pool: from
//! logits, from hidden states, and over ranks.

use gumball_bench_protocol::skipped::skip;
use gumball_conformance::{by_name, rules};

macro_rules! backends {
    ($($backend:ident),*) => {
        $(mod $backend {
            gumball_conformance::each_rule!(run);

            fn run(name: &str) {
                super::run(name, stringify!($backend));
            }
        })*
    };
}

backends!(
    oracle,
    scalar,
    avx2,
    avx512,
    neon,
    simd128,
    scalar_searching,
    avx2_searching,
    avx512_searching,
    neon_searching,
    simd128_searching,
    pool,
    pool_hidden,
    ranks
);

fn run(name: &str, backend: &str) {
    let rule = rules::named(name);
    match by_name(backend) {
        Ok(_) if backend.ends_with("_searching") && !rule.is_searched() => {
            println!("held on the level without searching, and by ci/long on {backend}");
        }
        Ok(_) if backend == "ranks" && rule.counts_draws() => {
            println!("held on `pool`, and by ci/long on {backend}");
        }
        Ok(backend) => rule.run(&*backend),
        Err(error) if is_of_this_architecture(backend) => skip(error),
        Err(error) => println!("left to `ci/long arm` and `ci/long wasm`: {error}"),
    }
}

fn is_of_this_architecture(backend: &str) -> bool {
    let others = [
        ("avx", cfg!(target_arch = "x86_64")),
        ("neon", cfg!(target_arch = "aarch64")),
        ("simd128", cfg!(target_arch = "wasm32")),
    ];
    others.iter().all(|(level, here)| *here || !backend.starts_with(level))
}
