//! The `gumball` command; everything it does is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gumball_cli::app::main()
}
