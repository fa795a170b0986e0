//! A trace as one page of HTML that explains itself to someone who never met top-p.
//!
//! The words are written here, with the figures of this row in them; the plots are drawn in the page from
//! the trace's JSON, as wide as the reader's screen. Style, script and data are inside: the page asks
//! nothing of the network and can be kept or mailed as it is.

mod cuts;
mod explain;
mod html;
mod race;
mod sections;

use std::fmt::Write;

use crate::trace::Trace;
use html::{escape, json};

/// The page's style.
const STYLE: &str = include_str!("page.css");
/// The page's script, in the order it is read.
const SCRIPTS: [&str; 4] = [
    include_str!("plot.js"),
    include_str!("figures.js"),
    include_str!("whatif.js"),
    include_str!("start.js"),
];

/// The text that a token continues.
#[derive(Clone, Debug)]
pub struct Context {
    /// The prompt.
    pub prompt: String,
    /// The answer so far.
    pub said: String,
}

/// Returns the page; `context` is the text that the token continues, where there is one.
#[must_use]
pub fn page(trace: &Trace, context: Option<&Context>) -> String {
    let title = match &trace.winner {
        Some(token) => {
            format!("{} \u{2014} gumball inspect", html::plain_label(token.id, token.text.as_deref()))
        }
        None => "no token \u{2014} gumball inspect".to_owned(),
    };
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    page.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
    let _ = writeln!(page, "<title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>", escape(&title));
    page.push_str(&sections::body(trace, context));
    let _ = writeln!(page, "<script type=\"application/json\" id=\"trace\">{}</script>", json(trace));
    let _ = writeln!(page, "<script>\n\"use strict\";\n{}</script>\n</body>\n</html>", SCRIPTS.join("\n"));
    page
}
