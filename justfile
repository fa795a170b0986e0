# Recipes: `just` lists them, `just NAME` runs one. Each calls what works without `just` too; CONTRIBUTING.md says when.

[private]
default:
    @just --list --unsorted

# Formatting, style, cycles and the fast tests: less than a minute after the first build
quick:
    ci/run format style cycles quick

# All that CI runs, or some of its parts: `just check lints tests`
check *parts:
    ci/run {{ parts }}

# The tests, or some of them: `just test -p gumball-conformance --test cpu -- mirostat`
test *arguments='--workspace':
    cargo test {{ arguments }}

# Formatting, lints and cycles between files
lint:
    ci/run format style cycles lints
    cargo deny check

# What has a formatter, written as CI wants it
write:
    cargo fmt --all
    ci/style --write

# The headers that kernels get from Rust, into target/abi: for editors, which need -I for that folder and crates/cuda/device
abi:
    cargo run --quiet --package gumball-cuda --example abi -- target/abi

# The documentation: of the crates, and the site of all pages
docs:
    ci/run documents site

# How long files and functions are, and which blocks of lines stand twice
report:
    ci/report sizes repeats

# Every fuzz body for as many seconds
fuzz seconds='60':
    cargo run --package gumball-conformance --bin fuzz -- --seconds {{ seconds }}

# The CPU's bench beside its rivals, into a record
bench record:
    proof/bench/rivals/setup
    cargo run --release --package gumball-bench -- run --out {{ record }}

# What a machine with a GPU runs, built anywhere
gpu-build:
    ci/gpu build && ci/gpu build-c && ci/gpu build-python

# Everything that holds a GPU to the definition, on a machine with one
gpu:
    ci/gpu conformance && ci/gpu cli
    ci/gpu c && ci/gpu python

# Times on this machine's GPU, ours and the rivals'
gpu-bench:
    ci/gpu rivals
    ci/gpu profile

# What takes hours, or some of its parts: before a release
long *parts:
    ci/long {{ parts }}
