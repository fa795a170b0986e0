//! Text that is not the program's own, shown so that it moves no terminal and fills no screen.

/// The longest message, in characters: a longer one loses its middle.
const LONGEST_MESSAGE: usize = 1500;

/// Returns text with its control characters, and the characters that turn the direction of writing, as
/// escapes.
#[must_use]
pub fn shown(text: &str) -> String {
    escaped(text, |_| false)
}

/// Returns a message as one line that is not too long, with its control characters as escapes.
#[must_use]
pub fn message(text: &str) -> String {
    shown(&without_middle(text, LONGEST_MESSAGE))
}

/// Returns a text of at most about `longest` characters: a longer one loses its middle.
#[must_use]
pub fn without_middle(text: &str, longest: usize) -> String {
    // A text has no more characters than bytes.
    let length = if text.len() <= longest { 0 } else { text.chars().count() };
    if length <= longest {
        return text.to_owned();
    }
    let tail = longest / 3;
    let head: String = text.chars().take(longest - tail).collect();
    let mut end: Vec<char> = text.chars().rev().take(tail).collect();
    end.reverse();
    format!("{head}\u{2026} ({} characters left out) \u{2026}{}", length - longest, String::from_iter(end))
}

/// Returns text with its control characters as escapes, except those that `as_is` lets through.
pub(crate) fn escaped(text: &str, as_is: impl Fn(char) -> bool) -> String {
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match (c.is_control() || turns(c)) && !as_is(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_of_bounded_length() {
        let name = "\u{1b}[2J".repeat(1 << 20) + "; choose another file\n";
        let line = message(&name);
        assert!(line.len() < 16 * LONGEST_MESSAGE && !line.contains(['\u{1b}', '\n']), "{line}");
        assert!(line.starts_with("\\u{1b}[2J") && line.ends_with("; choose another file\\n"), "{line}");
        assert_eq!(message("short"), "short");
    }
}
