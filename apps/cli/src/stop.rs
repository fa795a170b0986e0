//! Stop strings in a stream of text: what might become one is held back until it is clear.

/// Strings at which a text ends; they are not part of it.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Takes the strings; empty ones stop nothing.
    #[must_use]
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    /// Takes more text and returns what is surely part of it, and whether a stop string ended it.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let keep = (0..self.held.len()).filter(|at| self.held.is_char_boundary(*at)).find(|at| begins(*at));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Ends the text and returns what was held back.
    #[must_use]
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<_> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut stop = StopStrings::new(&stops);
        let mut text = String::new();
        for piece in pieces {
            let (more, over) = stop.push(piece);
            text.push_str(&more);
            if over {
                return (text, true);
            }
        }
        (text + &stop.finish(), false)
    }

    #[test]
    fn a_stop_string_across_pieces_ends_the_text_before_it() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".to_owned(), true));
        assert_eq!(run(&["\u{e9}t\u{e9}", "x"], &["l\u{e9}", "t\u{e9}"]), ("l".to_owned(), true));
    }

    #[test]
    fn what_only_began_like_one_is_given_out() {
        assert_eq!(run(&["END", "ENG"], &["EN", "EN", "X"]), ("ENENX".to_owned(), false));
        assert_eq!(run(&["END"], &["the E", "N"]), ("the EN".to_owned(), false));
        assert_eq!(run(&[""], &["a"]), ("a".to_owned(), false));
    }

    #[test]
    fn the_first_of_several_stops_counts() {
        assert_eq!(run(&["bc", "b"], &["abcd"]), ("a".to_owned(), true));
    }
}
