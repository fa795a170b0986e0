//! `gumball explore`: opens the explorer, a page of HTML with the engine and rows of a real model in it.
//!
//! A released Python package brings the page. In the repository `ci/explorer` makes it, where the command in
//! Rust that was built there looks for it. A browser opens the file, without a server; the command in Rust
//! can serve it with a model.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use crate::output::{say, shown};
use crate::{Error, Result};

/// Returns the path of the page; `brought` is the page that the program brings, if any.
///
/// # Errors
/// - [`Error::Usage`] if there is none; it says where to get it.
pub fn page(brought: Option<&Path>) -> Result<PathBuf> {
    let Some(page) = brought.filter(|page| page.is_file()) else {
        return Err(Error::Usage(
            "this gumball brings no page of the explorer: a released Python package does, and ci/explorer in Gumball's repository \
             makes it for `cargo gumball explore` there"
                .to_owned(),
        ));
    };
    Ok(std::path::absolute(page)?)
}

/// Writes where the page is and, where somebody reads that on a terminal, opens it in their browser.
///
/// # Errors
/// What writing gives.
pub fn open(page: &str, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}", shown(page))?;
    out.flush()?;
    if std::io::stdout().is_terminal() && open::that_detached(page).is_err() {
        say(format_args!("no browser was found; open this in one"));
    }
    Ok(())
}

/// Opens the page as a file.
///
/// # Errors
/// As [`page`] and [`open()`].
pub fn run(brought: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    open(&page(brought)?.display().to_string(), out)
}
