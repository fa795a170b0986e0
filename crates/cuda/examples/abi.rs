//! Writes the headers that are generated from `src/abi` below a folder, for readers and editors: compilers
//! get them from memory.
//!
//! `cargo run -p gumball-cuda --example abi -- target/abi`

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from).ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder.join("abi"))?;
    gumball_cuda::generated_headers().try_for_each(|(name, text)| fs::write(folder.join(name), text))
}
