//! `gumball explore`: opens the explorer, a page of HTML with the engine and rows of a real model in it.
//!
//! A released Python package brings the page. In the repository `ci/explorer` makes it, and the command finds
//! it if it runs in the repository's root. A browser opens the file, without a server.

use std::io::{IsTerminal, Write};
use std::path::Path;

use crate::output::{say, shown};
use crate::{Error, Result};

/// Where `ci/explorer` makes the page, in the repository.
const MADE: &str = "target/explorer/index.html";

/// Writes the path of the page and, where somebody reads that on a terminal, opens it in their browser;
/// `brought` is the page that the program brings, if any.
///
/// # Errors
/// - [`Error::Usage`] if there is none; it says where to get it.
pub fn run(brought: Option<&Path>, out: &mut dyn Write) -> Result<()> {
    let Some(page) = [brought, Some(Path::new(MADE))].into_iter().flatten().find(|page| page.is_file())
    else {
        return Err(Error::Usage(format!(
            "this gumball brings no page of the explorer: a released Python package does, and ci/explorer in Gumball's repository \
             makes it into {MADE}"
        )));
    };
    let page = std::path::absolute(page)?;
    writeln!(out, "{}", shown(&page.display().to_string()))?;
    if std::io::stdout().is_terminal() && open::that_detached(&page).is_err() {
        say(format_args!("no browser was found; open this file in one"));
    }
    Ok(())
}
