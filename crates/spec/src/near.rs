//! The known name that a caller may have meant by one that is not known.

/// Names longer than this are not compared.
const LONGEST: usize = 80;

/// Returns the known name nearest to another: equal except for case and separators, or with one letter in six (at least one)
/// wrong, missing, added or changed with its neighbour.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = letters(name);
    if name.len() < 2 || name.len() > LONGEST {
        return None;
    }
    let most = (name.len() / 6).max(1);
    let distances = known.into_iter().map(|known| (distance(&name, &letters(known)), known));
    distances
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Returns what is said of an unknown name: the one that was meant, if any is near.
pub(crate) fn hint(name: &str, known: &str) -> String {
    let name = name.rsplit('.').next().unwrap_or(name);
    nearest(name, known.split(", ")).map_or(String::new(), |near| format!("; do you mean {near:?}?"))
}

fn letters(name: &str) -> Vec<char> {
    name.chars()
        .filter(|letter| letter.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .take(LONGEST + 1)
        .collect()
}

/// Returns how many letters must be changed, added, dropped or exchanged with a neighbour to make one word the other.
fn distance(one: &[char], other: &[char]) -> usize {
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                let least = changed.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                let crossed = i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                if crossed { least.min(rows[i - 2][j - 2] + 1) } else { least }
            };
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_near_and_another_word_is_not() {
        let known = ["temperature", "top_k", "top_p", "min_tokens", "repetition_penalty", "seed"];
        for (name, expected) in [
            ("topp", Some("top_p")),
            ("topK", Some("top_k")),
            ("tpo_p", Some("top_p")),
            ("repetiton_penalyt", Some("repetition_penalty")),
            ("temprature", Some("temperature")),
            ("max_tokens", None),
            ("repeat_penalty", None),
            ("frequency", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
    }
}
