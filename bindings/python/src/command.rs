//! The command `gumball` that pip installs: the subcommands of the one in Rust that need no model.

use std::ffi::OsString;
use std::path::PathBuf;

use gumball_inspect::doctor::{Known, Package, Python as Interpreter};
use pyo3::prelude::*;

/// Runs a command line, writes to standard output and error, and returns the exit code.
///
/// name: how the program is called, for its help. arguments: what follows it. version: Python's. package: the
/// folder of this package. archs: architectures of its compiled kernels. packages: of packages that this one
/// works with: name, version or None, and their use.
#[pyfunction]
pub fn command(
    py: Python<'_>,
    name: String,
    arguments: Vec<OsString>,
    version: String,
    package: PathBuf,
    archs: Vec<String>,
    packages: Vec<(String, Option<String>, String)>,
) -> u8 {
    let packages = packages.into_iter().map(|(name, version, about)| Package { name, version, about });
    let (kernels, explorer) = (package.join("kernels"), package.join("explorer.html"));
    let python = Interpreter {
        version,
        package: package.display().to_string(),
        kernel_archs: archs,
        emulator: cfg!(feature = "emulator"),
        packages: packages.collect(),
    };
    py.detach(|| {
        gumball_inspect::command::run(
            &name,
            arguments,
            Known {
                kernels: Some(&kernels),
                explorer: Some(&explorer),
                python: Some(python),
                ..Known::default()
            },
        )
    })
}
