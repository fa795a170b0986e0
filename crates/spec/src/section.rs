//! Sections: stretches of a text between ids that open them and ids that close them, with a budget of tokens;
//! and loops: outputs that repeat themselves (rules B1 to B5).
//!
//! Here each row walks over the whole history again; a backend keeps the place in which it ends.

use crate::params::{Loops, SamplingParams, Section};
use crate::request::{Forced, Request};
use crate::row::Status;

/// The effect on a row of a section that is to end, or of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The token that the end of the section or of the loop forces.
    pub forced: Option<u32>,
    /// `SECTION` and `LOOP`.
    pub status: Status,
}

impl Request<'_> {
    /// Returns the token that is emitted instead of the drawn one: the request's own, or the one that the end
    /// of a section or of a loop forces.
    #[must_use]
    pub fn emitted(&self) -> Option<Forced> {
        self.forced.or_else(|| ending(self).emitted())
    }
}

impl Ending {
    /// Returns the token that is forced, and what forces it.
    #[must_use]
    pub fn emitted(self) -> Option<Forced> {
        self.forced.map(|id| Forced { id, by: self.status })
    }
}

impl Status {
    /// Returns whether the row of a request says that its token was forced: `LOOP` alone says so only where
    /// loops force ids (B5).
    #[must_use]
    pub fn is_forced(self, params: &SamplingParams) -> bool {
        let is_by_loop = self.contains(Self::LOOP) && !end_of(params.loops.as_ref()).1.is_empty();
        self.contains(Self::FORCED) || self.contains(Self::SECTION) || is_by_loop
    }
}

/// Returns what the end of a section or of a loop does at a row: nothing where the caller forces the token
/// (B2, B5).
#[must_use]
pub fn ending(request: &Request<'_>) -> Ending {
    let Request { params, prompt, output, forced, .. } = *request;
    if forced.is_some() || params.section.is_none() && params.loops.is_none() {
        return Ending::default();
    }
    let (section, loops) = (params.section.as_ref(), params.loops.as_ref());
    let place = place(section, loops, prompt, output);
    let history = [prompt, output].concat();
    let (closes, of_loop) = end_of(loops);
    if history.len() < place.loop_end {
        let left = place.loop_end - history.len();
        return Ending { forced: Some(of_loop[of_loop.len() - left]), status: Status::LOOP };
    }
    let mut ending = Ending::default();
    if let Some(section) = section
        && place.is_spent(section, closes, history.len())
    {
        ending.forced = Some(section.end()[begun(section, &history[place.start..])]);
        ending.status.insert(Status::SECTION);
    }
    let tells = match closes {
        true => place.is_open && place.loop_end > place.start,
        false => of_loop.is_empty() && place.loop_end > 0 && place.loop_end == history.len(),
    };
    if tells {
        ending.status.insert(Status::LOOP);
    }
    ending
}

/// Returns the id that would close its section too early at a row (B3).
#[must_use]
pub fn banned(request: &Request<'_>) -> Option<u32> {
    let section = request.params.section.as_ref()?;
    let loops = request.params.loops.as_ref();
    let place = place(Some(section), loops, request.prompt, request.output);
    let history = [request.prompt, request.output].concat();
    let tokens = &history[place.start..];
    let (last, before) = section.close.split_last().expect("validated: at least one id");
    let is_spent = place.is_spent(section, end_of(loops).0, history.len());
    let is_early = place.is_open && !is_spent && tokens.len() < section.min as usize;
    (is_early && tokens.ends_with(before)).then_some(*last)
}

/// Where a history stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether in a section.
    pub is_open: bool,
    /// The index of its first token, or of the first id in which the next `open` is looked for.
    pub start: usize,
    /// The index after the last id that the last loop forces; the index of the row at which the loop was
    /// found, if the loop forces no id, as one that closes a section does; 0 if there was no loop.
    pub loop_end: usize,
}

impl Place {
    /// Returns whether the section is spent once it has the tokens in front of index `end` (B1, B5).
    fn is_spent(&self, section: &Section, closes: bool, end: usize) -> bool {
        let is_spent = end - self.start >= section.budget as usize;
        self.is_open && (is_spent || closes && self.loop_end > self.start)
    }
}

/// Returns where a history stands (B1, B4, B5).
#[must_use]
pub fn place(section: Option<&Section>, loops: Option<&Loops>, prompt: &[u32], output: &[u32]) -> Place {
    let history = [prompt, output].concat();
    let (closes, of_loop) = end_of(loops);
    let comes_once = section.is_some_and(|section| section.open.is_empty());
    let start = if comes_once { prompt.len() } else { 0 };
    let mut place = Place { is_open: comes_once, start, loop_end: 0 };
    for end in 1..=history.len() {
        let mut is_spent = false;
        if let Some(section) = section
            && end > place.start
        {
            let tokens = &history[place.start..end];
            let changes = match place.is_open {
                true => {
                    let was_spent = place.is_spent(section, closes, end - 1);
                    is_spent = place.is_spent(section, closes, end);
                    let goes_on = was_spent
                        && section.end()[begun(section, &tokens[..tokens.len() - 1])]
                            == tokens[tokens.len() - 1];
                    is_spent && tokens.ends_with(section.end())
                        || tokens.ends_with(&section.close) && !goes_on
                }
                false => !comes_once && tokens.ends_with(&section.open),
            };
            if changes {
                (place.is_open, place.start) = (!place.is_open, end);
                is_spent = place.is_spent(section, closes, end);
            }
        }
        let Some(loops) = loops else { continue };
        let first = if closes { place.start } else { place.loop_end }.max(prompt.len());
        let is_looked_for = !is_spent && (place.is_open || !closes);
        let is_row = end > prompt.len() && (end - prompt.len()).is_multiple_of(loops.every as usize);
        if is_row && is_looked_for && first <= end && repeats(loops, &history[first..end]) {
            place.loop_end = end + of_loop.len();
        }
    }
    place
}

/// Returns whether loops close sections, and the ids that they force otherwise.
fn end_of(loops: Option<&Loops>) -> (bool, &[u32]) {
    loops.map_or((false, &[]), |loops| (loops.close, &loops.end))
}

/// Returns whether tokens end with a loop (B4).
#[must_use]
pub fn repeats(loops: &Loops, tokens: &[u32]) -> bool {
    (loops.min_period..=loops.max_period).any(|period| {
        let (least, period) = ((period * loops.min_copies).max(loops.min_tokens) as usize, period as usize);
        let equals = |i: usize| tokens[i] == tokens[i - period];
        least <= tokens.len() && (tokens.len() - least + period..tokens.len()).all(equals)
    })
}

/// Returns how many ids of `end`, less than all, a section's tokens end with at most.
fn begun(section: &Section, tokens: &[u32]) -> usize {
    let end = section.end();
    (0..end.len()).rev().find(|k| tokens.ends_with(&end[..*k])).expect("every text ends with no id")
}
