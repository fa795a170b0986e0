//! Words into HTML: escaping, tokens as chips, numbers as people write them.

use serde::Serialize;

use crate::text::count;

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    let one = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        '\'' => "&#39;".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// Writes a value as JSON that may stand inside a script element.
pub(super) fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("plain data");
    text.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Names a token by its text with blanks made visible, else by its id.
pub(super) fn plain_label(id: u32, text: Option<&str>) -> String {
    let one = |c: char| match c {
        ' ' => "\u{2423}".to_owned(),
        '\n' => "\u{21b5}".to_owned(),
        '\t' => "\u{21e5}".to_owned(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.map_or_else(|| format!("#{id}"), |text| text.chars().map(one).collect())
}

/// Shows a token as a chip.
pub(super) fn chip(id: u32, text: Option<&str>) -> String {
    format!("<code class=\"tok\" title=\"id {id}\">{}</code>", escape(&plain_label(id, text)))
}

/// Writes a probability in per cent, a small one as a chance.
pub(super) fn percent(p: f64) -> String {
    match p * 100.0 {
        100.0 => "100\u{202f}%".to_owned(),
        x if x >= 99.95 => "nearly 100\u{202f}%".to_owned(),
        x if x >= 10.0 => format!("{x:.1}\u{202f}%"),
        x if x >= 0.1 => format!("{x:.2}\u{202f}%"),
        0.0 => "0\u{202f}%".to_owned(),
        _ if p >= 1e-9 => format!("1 in {}", count((1.0 / p).round() as u64)),
        _ => format!("{p:.0e}"),
    }
}

/// Writes a count with its noun.
pub(super) fn tokens(n: usize) -> String {
    if n == 1 { "1 token".to_owned() } else { format!("{} tokens", count(n as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_token_can_neither_open_a_tag_nor_end_the_script() {
        assert_eq!(chip(7, Some("</b>\"")), "<code class=\"tok\" title=\"id 7\">&lt;/b&gt;&quot;</code>");
        assert_eq!(json(&"</script>"), "\"\\u003c/script>\"");
    }

    #[test]
    fn small_probabilities_are_chances() {
        assert_eq!(
            [0.5, 0.0123, 0.000_25, 0.0].map(percent),
            ["50.0\u{202f}%", "1.23\u{202f}%", "1 in 4,000", "0\u{202f}%"]
        );
    }
}
