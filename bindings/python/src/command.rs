//! `python -m gumball`: `doctor` and `inspect`, as the `gumball` command has them.

use std::ffi::OsString;
use std::path::PathBuf;

use gumball_inspect::doctor::{Known, Package, Python as Interpreter};
use pyo3::prelude::*;

/// Runs a command line of `doctor` and `inspect`, writes to standard output and error, and returns the exit code.
///
/// name: how the program is called, for its help. arguments: what follows it. version: Python's. package: the folder of this
/// package. packages: name, version or None, and what it makes possible, of packages that this one works with.
#[pyfunction]
pub fn command(
    py: Python<'_>,
    name: String,
    arguments: Vec<OsString>,
    version: String,
    package: PathBuf,
    packages: Vec<(String, Option<String>, String)>,
) -> u8 {
    let packages = packages.into_iter().map(|(name, version, about)| Package { name, version, about });
    let folder = package.display().to_string();
    let python = Interpreter { version, package: folder, packages: packages.collect() };
    let kernels = package.join("kernels");
    py.detach(|| {
        gumball_inspect::command::run(
            &name,
            arguments,
            Known { kernels: Some(&kernels), python: Some(python), ..Known::default() },
        )
    })
}
