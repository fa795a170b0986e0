//! Every rule, on the CUDA kernels: emulated, and on the GPU where there is one, eagerly and in a graph.

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

backends!(cuda_emulated, cuda, cuda_graph);

fn run(name: &str, backend: &str) {
    match by_name(backend) {
        Ok(backend) => rules::run(name, &*backend),
        Err(error) => println!("skipped: {error}"),
    }
}
