//! Is a chat template simple enough to be parsed and run? Parsers and compilers go as deep as expressions
//! nest.
//!
//! minijinja bounds the depth of brackets and blocks by itself. It recurses without a bound over the tokens
//! of a tag (`not not x`, `1 + 1 + 1`, `x | a | a`) and over branches (`elif`), so this module counts those
//! before minijinja parses anything.

/// The most bytes of a template; models' templates have up to twenty thousand.
const MOST_BYTES: usize = 1 << 20;
/// The most tokens of a tag; tags in models' templates have up to two hundred.
const MOST_TOKENS: usize = 1000;
/// The most branches by `elif` of a template.
const MOST_BRANCHES: usize = 300;

/// Returns why a template is too much, if it is.
pub(super) fn excess(source: &str) -> Option<String> {
    if source.len() > MOST_BYTES {
        return Some(format!("it has {} bytes, more than {MOST_BYTES}", source.len()));
    }
    let (mut rest, mut branches) = (source, 0);
    while let Some(start) = rest.find(['{']) {
        rest = &rest[start + 1..];
        let Some(kind) = rest.chars().next().filter(|kind| matches!(kind, '{' | '%')) else { continue };
        let tag = Tag::of(&rest[1..], kind);
        if tag.tokens > MOST_TOKENS {
            return Some(format!("a tag of it has more than {MOST_TOKENS} words and signs"));
        }
        branches += usize::from(tag.is_branch);
        rest = &rest[1 + tag.bytes..];
    }
    (branches > MOST_BRANCHES)
        .then(|| format!("it has {branches} branches by elif, more than {MOST_BRANCHES}"))
}

/// The inside of a tag.
struct Tag {
    bytes: usize,
    tokens: usize,
    is_branch: bool,
}

impl Tag {
    /// Reads a tag up to its end, or up to the first token beyond the limit. `text`: what follows the two
    /// characters, `{` and `kind`, with which the tag begins.
    fn of(text: &str, kind: char) -> Self {
        let end = if kind == '{' { "}}" } else { "%}" };
        let first = text.trim_start_matches(['-', '+']).trim_start();
        let mut tag = Tag { bytes: 0, tokens: 0, is_branch: kind == '%' && first.starts_with("elif") };
        while tag.bytes < text.len() && tag.tokens <= MOST_TOKENS {
            let rest = &text[tag.bytes..];
            if rest.starts_with(end) {
                tag.bytes += end.len();
                break;
            }
            let (bytes, counts) = token(rest);
            tag.bytes += bytes;
            tag.tokens += usize::from(counts);
        }
        tag
    }
}

/// Returns the length of the token that a text begins with, and whether it is more than blanks.
fn token(text: &str) -> (usize, bool) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let length = |more: &dyn Fn(char) -> bool| text.find(|c| !more(c)).unwrap_or(text.len());
    match text.chars().next() {
        Some(c) if c.is_whitespace() => (length(&char::is_whitespace), false),
        Some(c) if is_word(c) => (length(&is_word), true),
        Some(quote @ ('"' | '\'')) => (quoted(text, quote), true),
        Some(c) => (c.len_utf8(), true),
        None => (0, false),
    }
}

/// Returns the length of a string with its quotes; all of the text if it does not end.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (place, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return place + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_models_have_passes_and_endless_expressions_do_not() {
        let sound = "{% for m in messages %}{{ '<|' + m['role'] + '|>' }}{# no tag #}{ {% endfor %}";
        assert_eq!(excess(sound), None);
        assert_eq!(excess(&sound.repeat(200)), None, "a template may have many tags");
        assert_eq!(excess(&format!("{{{{ '{}' }}}}", "a }} ' + 1".replace('\'', "\\'").repeat(2000))), None);
        for deep in ["not ", "1+", "-", "x|", "a.", "[", "(", "x if y else ", "é+"] {
            assert!(excess(&format!("{{{{ {} 1 }}}}", deep.repeat(50_000))).is_some(), "{deep}");
            assert!(excess(&format!("{{%- set x = {}", deep.repeat(50_000))).is_some(), "{deep}");
        }
        let branches = format!("{{% if 0 %}}{}{{% endif %}}", "{%- elif 0 %}".repeat(10_000));
        assert!(excess(&branches).is_some());
        assert!(excess(&"a".repeat(2 << 20)).is_some());
    }
}
