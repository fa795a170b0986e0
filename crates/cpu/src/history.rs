//! A request's history: its ids in order, and how often each occurs, kept up to date token by token.

use gumball_spec::section::Ending;

use crate::prepared::Prepared;
use crate::section::Tracked;

/// How often an id occurs in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id; it may lie outside the vocabulary.
    pub id: u32,
    /// Occurrences in the prompt.
    pub prompt: u32,
    /// Occurrences in the output.
    pub output: u32,
}

/// The ids of a prompt and of the output after it.
///
/// Counting happens when an id arrives, so a step costs as many operations as there are distinct ids and
/// not as the history is long.
#[derive(Clone, Debug, Default)]
pub struct History {
    ids: Vec<u32>,
    prompt_len: usize,
    entries: Vec<Entry>,
    place: Option<Tracked>,
}

impl History {
    /// Starts a history with the ids of a prompt.
    #[must_use]
    pub fn new(prompt: &[u32]) -> Self {
        let mut sorted = prompt.to_vec();
        sorted.sort_unstable();
        let entries = sorted
            .chunk_by(|a, b| a == b)
            .map(|run| Entry { id: run[0], prompt: run.len() as u32, output: 0 })
            .collect();
        Self { ids: prompt.to_vec(), prompt_len: prompt.len(), entries, place: None }
    }

    /// Starts the history of a request with these parameters, which follows their section and loops.
    #[must_use]
    pub fn of(prepared: &Prepared, prompt: &[u32]) -> Self {
        Self { place: Tracked::new(prepared, prompt, prompt.len()), ..Self::new(prompt) }
    }

    /// Appends an output id.
    pub fn push(&mut self, id: u32) {
        self.ids.push(id);
        if let Some(place) = &mut self.place {
            place.advance(&self.ids, self.prompt_len);
        }
        match self.entries.binary_search_by_key(&id, |entry| entry.id) {
            Ok(place) => self.entries[place].output += 1,
            Err(place) => self.entries.insert(place, Entry { id, prompt: 0, output: 1 }),
        }
    }

    /// Removes output ids from the end until `output_len` are left; none if there are no more.
    pub fn truncate(&mut self, output_len: usize) {
        while self.output().len() > output_len {
            let id = self.ids.pop().expect("output is not empty");
            let place =
                self.entries.binary_search_by_key(&id, |entry| entry.id).expect("counted when pushed");
            self.entries[place].output -= 1;
            if self.entries[place].prompt + self.entries[place].output == 0 {
                self.entries.remove(place);
            }
        }
        if let Some(place) = &mut self.place {
            place.shorten(&self.ids, self.prompt_len);
        }
    }

    /// Returns what the end of a request's section, or of its loop, does after this history (B2, B5).
    pub(crate) fn ending(&self, prepared: &Prepared) -> Ending {
        self.at_place(prepared, Tracked::ending).unwrap_or_default()
    }

    /// Returns the id that would close a request's section too early after this history (B3).
    pub(crate) fn too_early(&self, prepared: &Prepared) -> Option<u32> {
        self.at_place(prepared, Tracked::banned).flatten()
    }

    /// Asks the place in a request's text, which is searched for in a history that does not follow it.
    fn at_place<T>(&self, prepared: &Prepared, ask: impl Fn(&Tracked, &[u32]) -> T) -> Option<T> {
        match &self.place {
            Some(tracked) => Some(ask(tracked, &self.ids)),
            None => {
                Tracked::new(prepared, &self.ids, self.prompt_len).map(|tracked| ask(&tracked, &self.ids))
            }
        }
    }

    /// Returns all ids, prompt first.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the last `window` ids, all if that is 0.
    #[must_use]
    pub fn last(&self, window: u32) -> &[u32] {
        let window = if window == 0 { self.ids.len() } else { self.ids.len().min(window as usize) };
        &self.ids[self.ids.len() - window..]
    }

    /// Returns the ids of the prompt.
    #[must_use]
    pub fn prompt(&self) -> &[u32] {
        &self.ids[..self.prompt_len]
    }

    /// Returns the ids of the output.
    #[must_use]
    pub fn output(&self) -> &[u32] {
        &self.ids[self.prompt_len..]
    }

    /// Returns the distinct ids with their counts, by id.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the distinct ids of the last `window` ids with their counts there, by id; of all ids if
    /// `window` is 0. Each call counts a window again, in `buffer`.
    pub fn entries_of<'a>(&'a self, window: u32, buffer: &'a mut Vec<Entry>) -> &'a [Entry] {
        let ids = self.last(window);
        let before = self.ids.len() - ids.len();
        if before == 0 {
            return &self.entries;
        }
        let (prompt, output) = ids.split_at(self.prompt_len.saturating_sub(before));
        buffer.clear();
        buffer.extend(prompt.iter().map(|id| Entry { id: *id, prompt: 1, output: 0 }));
        buffer.extend(output.iter().map(|id| Entry { id: *id, prompt: 0, output: 1 }));
        buffer.sort_unstable_by_key(|entry| entry.id);
        buffer.dedup_by(|next, entry| {
            let is_same = next.id == entry.id;
            if is_same {
                entry.prompt += next.prompt;
                entry.output += next.output;
            }
            is_same
        });
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_pushes_and_truncations() {
        let mut history = History::new(&[5, 3, 5]);
        for id in [9, 3, 9] {
            history.push(id);
        }
        let entry = |id, prompt, output| Entry { id, prompt, output };
        assert_eq!(history.entries(), [entry(3, 1, 1), entry(5, 2, 0), entry(9, 0, 2)]);
        history.truncate(1);
        assert_eq!(history.entries(), [entry(3, 1, 0), entry(5, 2, 0), entry(9, 0, 1)]);
        assert_eq!((history.prompt(), history.output()), (&[5, 3, 5][..], &[9][..]));
        let mut buffer = Vec::new();
        for window in [0, 4, 5, u32::MAX] {
            assert_eq!(history.entries_of(window, &mut buffer), history.entries());
        }
        assert_eq!(history.entries_of(1, &mut buffer), [entry(9, 0, 1)]);
        assert_eq!(history.entries_of(2, &mut buffer), [entry(5, 1, 0), entry(9, 0, 1)]);
        history.push(9);
        history.push(5);
        assert_eq!(history.entries_of(2, &mut buffer), [entry(5, 0, 1), entry(9, 0, 1)]);
        assert_eq!(history.entries_of(4, &mut buffer), [entry(5, 1, 1), entry(9, 0, 2)]);
    }
}
