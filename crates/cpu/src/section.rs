//! Sections: where a history stands between the ids that open and close one, kept up to date token by token,
//! and what follows for its next token (rules B1 to B3).
//!
//! A place holds for every shorter history, too, back to where the section, or the text outside, began. So an
//! output that is shortened is rarely searched again.

use std::sync::Arc;

use gumball_spec::Section;

/// The section of a request, and where a history stands in it.
#[derive(Clone, Debug)]
pub struct Tracked {
    section: Arc<Section>,
    is_open: bool,
    /// Where the section begins, or the ids in which the next `open` is looked for.
    start: usize,
}

impl Tracked {
    /// Finds the place after a prompt and an output.
    pub fn new(section: Arc<Section>, ids: &[u32], prompt_len: usize) -> Self {
        let mut tracked = Self { section, is_open: false, start: 0 };
        tracked.find(ids, prompt_len);
        tracked
    }

    fn find(&mut self, ids: &[u32], prompt_len: usize) {
        let has_open = !self.section.open.is_empty();
        (self.is_open, self.start) = (!has_open, if has_open { 0 } else { prompt_len });
        (self.start + 1..=ids.len()).for_each(|len| self.advance(&ids[..len]));
    }

    /// Takes in the last of the ids.
    pub fn advance(&mut self, ids: &[u32]) {
        let Section { open, close, budget, .. } = &*self.section;
        let (tokens, budget) = (&ids[self.start..], *budget as usize);
        let changes = match self.is_open {
            false => !open.is_empty() && tokens.ends_with(open),
            true if tokens.len() < budget => tokens.ends_with(close),
            true if tokens.ends_with(self.section.end()) => true,
            true if tokens.len() == budget => tokens.ends_with(close),
            true => tokens.ends_with(close) && !self.continues_end(tokens),
        };
        if changes {
            (self.is_open, self.start) = (!self.is_open, ids.len());
        }
    }

    /// Returns whether the last of the section's tokens is the next of the ids that were to be forced.
    fn continues_end(&self, tokens: &[u32]) -> bool {
        let (last, before) = tokens.split_last().expect("longer than the budget");
        self.section.end()[self.begun(before)] == *last
    }

    /// Returns how many ids of `end` the tokens end with at most, of fewer than all.
    fn begun(&self, tokens: &[u32]) -> usize {
        let end = self.section.end();
        (1..end.len()).rev().find(|k| tokens.ends_with(&end[..*k])).unwrap_or(0)
    }

    /// Goes back to a shorter history.
    pub fn shorten(&mut self, ids: &[u32], prompt_len: usize) {
        if ids.len() < self.start {
            self.find(ids, prompt_len);
        }
    }

    /// Returns the token that comes next instead of the drawn one (B2).
    pub fn forced(&self, ids: &[u32]) -> Option<u32> {
        let tokens = &ids[self.start..];
        let is_spent = self.is_open && tokens.len() >= self.section.budget as usize;
        is_spent.then(|| self.section.end()[self.begun(tokens)])
    }

    /// Returns the id that would close the section too early (B3).
    pub fn banned(&self, ids: &[u32]) -> Option<u32> {
        let tokens = &ids[self.start..];
        let (last, before) = self.section.close.split_last().expect("validated: at least one id");
        let is_early = self.is_open && tokens.len() < self.section.min as usize;
        (is_early && tokens.ends_with(before)).then_some(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_spec::section::tokens;

    /// All texts of three ids up to a length, after which sections of short lists stand where the definition
    /// says, however the text came there.
    #[test]
    fn a_place_is_the_definitions_after_every_text_and_every_shorter_one() {
        let lists: [&[u32]; 7] = [&[], &[0], &[1], &[0, 1], &[1, 1], &[0, 0, 1], &[2, 1, 0]];
        let texts =
            |len: u32| (0..3u32.pow(len)).map(move |n| (0..len).map(|i| n / 3u32.pow(i) % 3).collect());
        for (open, close, end) in lists.iter().flat_map(|open| {
            let closes = lists[1..].iter();
            closes.flat_map(move |close| lists.map(move |end| (open.to_vec(), close.to_vec(), end.to_vec())))
        }) {
            for budget in [0, 1, 2, 3, u32::MAX] {
                let (open, close, end) = (open.clone(), close.clone(), end.clone());
                let section = Arc::new(Section { open, close, end, budget, min: 0 });
                for text in texts(5) {
                    let text: Vec<u32> = text;
                    for prompt_len in [0, 1, 5] {
                        let mut tracked = Tracked::new(section.clone(), &text[..prompt_len], prompt_len);
                        for len in prompt_len + 1..=text.len() {
                            tracked.advance(&text[..len]);
                        }
                        for len in (prompt_len..=text.len()).rev() {
                            tracked.shorten(&text[..len], prompt_len);
                            let (prompt, output) = text[..len].split_at(prompt_len);
                            let expected = tokens(&section, prompt, output);
                            let seen = tracked.is_open.then(|| text[tracked.start..len].to_vec());
                            assert_eq!(seen, expected, "{section:?} after {prompt:?} and {output:?}");
                        }
                    }
                }
            }
        }
    }
}
