//! The rules whose numbers a caller may set as large as a pointer of 32 bits, on backends of every machine.
//!
//! `ci/run narrow` compiles them for WebAssembly with overflow checks; `ci/wasm conformance` has all rules.
#![cfg(target_pointer_width = "32")]

macro_rules! backends {
    ($($backend:ident),*) => {
        $(mod $backend {
            gumball_conformance::params_rules!(run);
            gumball_conformance::mark_rules!(run);

            fn run(name: &str) {
                let backend = gumball_conformance::by_name(stringify!($backend)).expect("of every machine");
                gumball_conformance::rules::named(name).run(&*backend);
            }
        })*
    };
}

backends!(scalar, pool);
