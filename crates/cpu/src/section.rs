//! Sections and loops: where a history stands between the ids that open and close a section, and behind which
//! loop, kept up to date token by token, and what follows for its next token (rules B1 to B5).
//!
//! A place holds for every shorter history, too, back to where the section, the text outside or the loop
//! began. So an output that is shortened is rarely searched again.

use std::sync::Arc;

use gumball_spec::section::Ending;
use gumball_spec::{Loops, Section, Status};

use crate::prepared::Prepared;

/// The section and the loops of a request, and where a history stands in them.
#[derive(Clone, Debug)]
pub struct Tracked {
    section: Option<Arc<Section>>,
    loops: Option<Arc<Loops>>,
    is_open: bool,
    /// Where the section begins, or the ids in which the next `open` is looked for.
    start: usize,
    /// The index after the last id that the last loop forces, or after a loop that forces none; 0 if there
    /// was no loop.
    loop_end: usize,
}

impl Tracked {
    /// Finds the place after a prompt and an output, if the request has a section or loops.
    pub fn new(prepared: &Prepared, ids: &[u32], prompt_len: usize) -> Option<Self> {
        let (section, loops) = (prepared.section().cloned(), prepared.loops().cloned());
        if section.is_none() && loops.is_none() {
            return None;
        }
        let mut tracked = Self { section, loops, is_open: false, start: 0, loop_end: 0 };
        tracked.find(ids, prompt_len);
        Some(tracked)
    }

    fn find(&mut self, ids: &[u32], prompt_len: usize) {
        let comes_once = self.section.as_ref().is_some_and(|section| section.open.is_empty());
        (self.is_open, self.loop_end) = (comes_once, 0);
        self.start = if comes_once { prompt_len } else { 0 };
        // Loops are those of the output, so without a section the prompt is passed over.
        let first = if self.section.is_some() { self.start } else { prompt_len };
        (first + 1..=ids.len()).for_each(|len| self.advance(&ids[..len], prompt_len));
    }

    /// Takes in the last of the ids.
    pub fn advance(&mut self, ids: &[u32], prompt_len: usize) {
        if self.section.as_ref().is_some_and(|section| self.changes(section, &ids[self.start..])) {
            (self.is_open, self.start) = (!self.is_open, ids.len());
        }
        let Some(loops) = &self.loops else { return };
        let is_row = ids.len() > prompt_len && (ids.len() - prompt_len).is_multiple_of(loops.every as usize);
        if !is_row || self.is_spent(ids.len()) {
            return;
        }
        let first = if loops.close { self.start } else { self.loop_end }.max(prompt_len);
        if (self.is_open || !loops.close) && first < ids.len() && repeats(loops, &ids[first..]) {
            self.loop_end = ids.len() + loops.end.len();
        }
    }

    /// Returns whether a section begins, or is over, after the last of `tokens`, which are the ids since its
    /// beginning.
    fn changes(&self, section: &Section, tokens: &[u32]) -> bool {
        let Section { open, close, budget, .. } = section;
        let (has_looped, budget) = (self.has_looped(), *budget as usize);
        match self.is_open {
            false => !open.is_empty() && tokens.ends_with(open),
            true if tokens.len() < budget && !has_looped => tokens.ends_with(close),
            true if tokens.ends_with(section.end()) => true,
            true if tokens.len() == budget && !has_looped => tokens.ends_with(close),
            true => tokens.ends_with(close) && !continues_end(section, tokens),
        }
    }

    /// Returns whether the section is to be closed because of a loop in it.
    fn has_looped(&self) -> bool {
        self.loop_end > self.start && self.loops.as_ref().is_some_and(|loops| loops.close)
    }

    /// Returns whether a section is spent after `len` ids.
    fn is_spent(&self, len: usize) -> bool {
        let is_spent = |section: &Arc<Section>| len - self.start >= section.budget as usize;
        self.is_open && (self.has_looped() || self.section.as_ref().is_some_and(is_spent))
    }

    /// Goes back to a shorter history.
    pub fn shorten(&mut self, ids: &[u32], prompt_len: usize) {
        let of_loop = self.loops.as_ref().map_or(0, |loops| loops.end.len());
        if self.loop_end > ids.len() + of_loop && self.has_looped() && self.start <= ids.len() {
            self.loop_end = 0;
        } else if self.start > ids.len() || self.loop_end > ids.len() + of_loop {
            self.find(ids, prompt_len);
        }
    }

    /// Returns what the end of the section or of a loop does at the next token (B2, B5).
    pub fn ending(&self, ids: &[u32]) -> Ending {
        let mut ending = Ending::default();
        if let Some(loops) = &self.loops {
            let left = self.loop_end.saturating_sub(ids.len());
            if left > 0 {
                ending.forced = Some(loops.end[loops.end.len() - left]);
            }
            let is_found = loops.end.is_empty() && !loops.close && self.loop_end == ids.len();
            if left > 0 || is_found && self.loop_end > 0 || self.is_open && self.has_looped() {
                ending.status.insert(Status::LOOP);
            }
        }
        if let (None, Some(section), true) = (ending.forced, &self.section, self.is_spent(ids.len())) {
            ending.forced = Some(section.end()[begun(section, &ids[self.start..])]);
            ending.status.insert(Status::SECTION);
        }
        ending
    }

    /// Returns the id that would close the section too early (B3).
    pub fn banned(&self, ids: &[u32]) -> Option<u32> {
        let section = self.section.as_ref()?;
        let tokens = &ids[self.start..];
        let (last, before) = section.close.split_last().expect("validated: at least one id");
        let is_early = self.is_open && !self.has_looped() && tokens.len() < section.min as usize;
        (is_early && tokens.ends_with(before)).then_some(*last)
    }
}

/// Returns whether the last of a section's tokens is the next of the ids that were to be forced.
fn continues_end(section: &Section, tokens: &[u32]) -> bool {
    let (last, before) = tokens.split_last().expect("a token was taken in");
    section.end()[begun(section, before)] == *last
}

/// Returns how many ids of `end` a section's tokens end with at most, of fewer than all.
fn begun(section: &Section, tokens: &[u32]) -> usize {
    let end = section.end();
    (1..end.len()).rev().find(|k| tokens.ends_with(&end[..*k])).unwrap_or(0)
}

/// Returns whether tokens end with a loop (B4).
fn repeats(loops: &Loops, tokens: &[u32]) -> bool {
    (loops.min_period..=loops.max_period).any(|period| {
        let least = (period * loops.min_copies).max(loops.min_tokens) as usize;
        let tail = tokens.len().checked_sub(least).map(|before| &tokens[before..]);
        tail.is_some_and(|tail| tail[period as usize..] == tail[..least - period as usize])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_spec::SamplingParams;
    use gumball_spec::section::place;

    /// Holds the place after each text of some ids, and after each shorter one, to the definition.
    fn hold(params: SamplingParams, ids: u32, len: u32) {
        let prepared = Prepared::new(params, 3).unwrap();
        let (section, loops) = (prepared.section().map(|it| &**it), prepared.loops().map(|it| &**it));
        for n in 0..ids.pow(len) {
            let text: Vec<u32> = (0..len).map(|i| n / ids.pow(i) % ids).collect();
            for prompt_len in [0, 1, len as usize] {
                let mut tracked = Tracked::new(&prepared, &text[..prompt_len], prompt_len).unwrap();
                for len in prompt_len + 1..=text.len() {
                    tracked.advance(&text[..len], prompt_len);
                }
                for len in (prompt_len..=text.len()).rev() {
                    tracked.shorten(&text[..len], prompt_len);
                    let (prompt, output) = text[..len].split_at(prompt_len);
                    let expected = place(section, loops, prompt, output);
                    let case = format!("{section:?}, {loops:?} after {prompt:?} and {output:?}");
                    assert_eq!(
                        (tracked.is_open, tracked.start),
                        (expected.is_open, expected.start),
                        "{case}"
                    );
                    // A loop before the section, or before the text outside, says nothing any more.
                    let of_loop = |end: usize| {
                        if end > expected.start || loops.is_some_and(|it| !it.close) { end } else { 0 }
                    };
                    assert_eq!(of_loop(tracked.loop_end), of_loop(expected.loop_end), "{case}");
                }
            }
        }
    }

    const LISTS: [&[u32]; 7] = [&[], &[0], &[1], &[0, 1], &[1, 1], &[0, 0, 1], &[2, 1, 0]];

    #[test]
    fn a_place_is_the_definitions_after_every_text_and_every_shorter_one() {
        for (open, close, end) in LISTS.iter().flat_map(|open| {
            let closes = LISTS[1..].iter();
            closes.flat_map(move |close| LISTS.map(move |end| (open.to_vec(), close.to_vec(), end.to_vec())))
        }) {
            for budget in [0, 1, 2, 3, u32::MAX] {
                let (open, close, end) = (open.clone(), close.clone(), end.clone());
                let section = Some(Section { open, close, end, budget, min: 0 });
                hold(SamplingParams { section, ..SamplingParams::default() }, 3, 5);
            }
        }
    }

    #[test]
    fn a_loop_is_the_definitions_after_every_text_and_every_shorter_one() {
        let sections = LISTS.map(|open| {
            let (open, close, end) =
                (open.to_vec(), vec![1], if open == [1] { vec![0, 0, 1] } else { vec![] });
            [2, 5, u32::MAX].map(|budget| {
                Some(Section { open: open.clone(), close: close.clone(), end: end.clone(), budget, min: 0 })
            })
        });
        for section in sections.into_iter().flatten().chain([None]) {
            for (end, close) in [(vec![], false), (vec![], true), (vec![0], false), (vec![1, 0, 1], false)] {
                for (every, min_tokens) in [(1, 0), (2, 3), (3, 5)] {
                    if close && section.is_none() {
                        continue;
                    }
                    let (end, max_period) = (end.clone(), 2);
                    let loops = Some(Loops {
                        max_period,
                        min_copies: 2,
                        min_tokens,
                        every,
                        close,
                        end,
                        ..Loops::default()
                    });
                    hold(
                        SamplingParams { section: section.clone(), loops, ..SamplingParams::default() },
                        2,
                        9,
                    );
                }
            }
        }
    }
}
