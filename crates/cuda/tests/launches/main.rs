//! Every launch of steps, verifications, drafts, hidden states, shortenings and ranks is as `launches.txt`
//! has it: kernel, grid, whether it is a dependent launch, and each field of its argument.
//!
//! No kernel runs: a [`Tap`](gumball_cuda::Tap) without a machine takes down what a device with the limits of
//! an H200 would get, and an older one. `GUMBALL_BLESS=1 cargo test -p gumball-cuda --test launches` writes
//! the file.

mod arguments;
mod bench;
mod combined;
mod drafts;
mod golden;
mod hidden;
mod ranks;
mod steps;

use crate::golden::Golden;

const ABOUT: &str = "\
The launches of every kind of work: see crates/README.md. GUMBALL_BLESS=1 cargo test -p gumball-cuda --test launches writes this file.

A section is a kind of work and a shape. In it stands each distinct list of launches once, under the cases that make it.
A launch: kernel, blocks x threads, `dependent` if it may start before the one before it is complete, other needs, and its argument.
A section begins with the arguments of its first list, each as it differs from the first one of its struct in this file; those that
follow are written as they differ from the section's. Fields that are 0 are left out.
An address is the name of the first field of its list that points to the allocation, and the distance from its start in bytes.";

#[test]
fn launches_are_those_of_the_golden_file() {
    let mut golden = Golden::new(ABOUT);
    steps::add_steps(&mut golden);
    steps::add_options(&mut golden);
    drafts::add_verifications(&mut golden);
    drafts::add_drafts(&mut golden);
    combined::add_verifications(&mut golden);
    combined::add_shared_rows(&mut golden);
    combined::add_drafts(&mut golden);
    drafts::add_shorten(&mut golden);
    steps::add_scores(&mut golden);
    hidden::add_hidden(&mut golden);
    ranks::add_ranks(&mut golden);
    golden.hold("launches.txt");
}
