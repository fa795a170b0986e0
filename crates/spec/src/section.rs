//! Sections: stretches of a text between ids that open them and ids that close them, with a budget of tokens
//! (rules B1 to B3).
//!
//! Here each row searches the whole history again; a backend keeps where the last section began or ended.

use crate::params::Section;
use crate::request::Request;

impl Request<'_> {
    /// Returns the token that is emitted instead of the drawn one: the caller's, or the one that the end of a
    /// section forces.
    #[must_use]
    pub fn emitted(&self) -> Option<u32> {
        self.forced.or_else(|| forced(self))
    }
}

/// Returns the token that the end of its section forces at a row (B2).
#[must_use]
pub fn forced(request: &Request<'_>) -> Option<u32> {
    let section = request.params.section.as_ref()?;
    let tokens = tokens(section, request.prompt, request.output)?;
    (tokens.len() >= section.budget as usize).then(|| section.end()[begun(section, &tokens)])
}

/// Returns the id that would close its section too early at a row (B3).
#[must_use]
pub fn banned(request: &Request<'_>) -> Option<u32> {
    let section = request.params.section.as_ref()?;
    let tokens = tokens(section, request.prompt, request.output)?;
    let (last, before) = section.close.split_last().expect("validated: at least one id");
    (tokens.len() < section.min as usize && tokens.ends_with(before)).then_some(*last)
}

/// Where a history stands: in a section, or outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether in a section.
    pub is_open: bool,
    /// The index of its first token, or of the first id in which the next `open` is looked for.
    pub start: usize,
}

/// Returns the tokens of the section that a row stands in, if it stands in one (B1).
#[must_use]
pub fn tokens(section: &Section, prompt: &[u32], output: &[u32]) -> Option<Vec<u32>> {
    let Place { is_open, start } = place(section, prompt, output);
    is_open.then(|| [prompt, output].concat()[start..].to_vec())
}

/// Returns where a history stands (B1).
#[must_use]
pub fn place(section: &Section, prompt: &[u32], output: &[u32]) -> Place {
    let history = [prompt, output].concat();
    let comes_once = section.open.is_empty();
    let mut place = Place { is_open: comes_once, start: if comes_once { prompt.len() } else { 0 } };
    loop {
        let Place { is_open, start } = place;
        let changes = |end: &usize| match is_open {
            true => ends(section, &history[start..*end]),
            false => !comes_once && history[start..*end].ends_with(&section.open),
        };
        match (start + 1..=history.len()).find(changes) {
            None => return place,
            Some(end) => place = Place { is_open: !is_open, start: end },
        }
    }
}

/// Returns whether a section ends behind the last of its tokens.
fn ends(section: &Section, tokens: &[u32]) -> bool {
    let before = &tokens[..tokens.len() - 1];
    let was_spent = before.len() >= section.budget as usize;
    let goes_on = was_spent && begun(section, tokens) == begun(section, before) + 1;
    let is_spent = tokens.len() >= section.budget as usize;
    is_spent && tokens.ends_with(section.end()) || tokens.ends_with(&section.close) && !goes_on
}

/// Returns how many ids of `end`, less than all, a section's tokens end with at most.
fn begun(section: &Section, tokens: &[u32]) -> usize {
    let end = section.end();
    (0..end.len()).rev().find(|k| tokens.ends_with(&end[..*k])).expect("every text ends with no id")
}
