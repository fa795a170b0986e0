//! The known name that a caller may have meant by one that is not known: a slip of the pen, or another
//! engine's word.

use crate::params::SamplingParams;

/// What other engines call parameters, and where each is here; [`docs/names.md`](../../../docs/names.md)
/// says what differs. Of several lines for a name the first one counts whose parameter is among the ones that
/// are known.
const PEERS: [(&str, &str); 54] = [
    ("adaptive_p", "adaptive_target"),
    ("adaptive_p_decay", "adaptive_decay"),
    ("adaptive_p_target", "adaptive_target"),
    ("all_stop_token_ids", "stop_ids"),
    ("allowed_token_ids", "allowed_ids"),
    ("bad_words_ids", "bad_words"),
    ("bad_words_token_ids", "bad_words"),
    ("do_sample", "temperature"),
    ("dry_penalty_last_n", "dry.window"),
    ("dry_range", "dry.window"),
    ("dry_seq_breakers", "dry.breakers"),
    ("dry_sequence_breakers", "dry.breakers"),
    ("dynatemp_range", "dynamic_temperature"),
    ("eos_token_id", "stop_ids"),
    ("filter_apply_order", "order"),
    ("freq_penalty", "frequency_penalty"),
    ("last_n_tokens_size", "penalty_window"),
    ("logprob_token_ids", "logprobs.ids"),
    ("logprobs_mode", "logprobs.mode"),
    ("max_pattern_size", "loops.max_period"),
    ("min_count", "loops.min_copies"),
    ("min_new_tokens", "min_tokens"),
    ("min_pattern_size", "loops.min_period"),
    ("mirostat_lr", "mirostat.eta"),
    ("mirostat_ent", "mirostat.tau"),
    ("mirostat_mode", "mirostat"),
    ("no_repeat_ngram_size", "no_repeat_ngram"),
    ("penalty_last_n", "penalty_window"),
    ("pres_penalty", "presence_penalty"),
    ("random_seed", "seed"),
    ("reasoning_budget", "section.budget"),
    ("rep_pen_range", "penalty_window"),
    ("repeat_last_n", "penalty_window"),
    ("repeat_penalty", "repetition_penalty"),
    ("repetition_detection", "loops"),
    ("repetition_penalty_range", "penalty_window"),
    ("return_logprob", "logprobs"),
    ("sampler_seq", "order"),
    ("samplers", "order"),
    ("sampling_seed", "seed"),
    ("sequence_bias", "logit_bias"),
    ("stop_token_ids", "stop_ids"),
    ("suppress_tokens", "banned_ids"),
    ("temp", "temperature"),
    ("thinking_budget", "section.budget"),
    ("thinking_token_budget", "section.budget"),
    ("token_ids_logprob", "logprobs.ids"),
    ("top_logprobs", "logprobs.top_n"),
    ("top_logprobs_num", "logprobs.top_n"),
    ("top_n", "logprobs.top_n"),
    ("top_n", "top_n_sigma"),
    ("typ_p", "typical_p"),
    ("typical", "typical_p"),
    ("whitelist_token_ids", "no_repeat_ngram_exempt_ids"),
];

/// What other engines take as parameters of a request, and is the caller's here: to end a text, and to have
/// several.
const CALLERS: [&str; 13] = [
    "best_of",
    "ignore_eos",
    "max_completion_tokens",
    "max_length",
    "max_new_tokens",
    "max_tokens",
    "n",
    "n_predict",
    "num_beams",
    "num_return_sequences",
    "stop",
    "stop_sequences",
    "stop_strings",
];

/// Returns what to say of a name that is none of the known ones: which was [`meant`], or who decides.
#[must_use]
pub fn advice<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<String> {
    let are_parameters = known.clone().into_iter().any(|known| known == USUAL[0]);
    if are_parameters && CALLERS.contains(&name) {
        return Some("to end a text and to draw several is the caller's part".to_owned());
    }
    meant(name, known).map(|near| format!("do you mean {near:?}?"))
}

/// Returns the known name that was meant by another: what an engine's word for it is here, a part's field
/// that was named flat (`dry.base` for `dry_base`), or else the [`nearest`]. A field is named with its part,
/// where that is known.
#[must_use]
pub fn meant<'a>(name: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let is_known = |ours: &&str| known.clone().into_iter().any(|known| Some(known) == ours.split('.').next());
    let flat = name.replace('-', "_");
    let theirs = PEERS.iter().filter(|(theirs, _)| theirs.eq_ignore_ascii_case(&flat)).map(|(_, ours)| *ours);
    let fields = SamplingParams::parameters().map(|parameter| parameter.name);
    let fields = fields.filter(|field| field.contains('.') && field.replace('.', "_") == flat);
    theirs.chain(fields).find(is_known).or_else(|| nearest(name, known))
}

/// The parameters that most requests have, the likelier ones first: of names that are equally near one of
/// these was meant.
pub const USUAL: [&str; 6] = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed"];

/// Names longer than this are not compared.
const LONGEST: usize = 80;

/// Returns the known name nearest to another: equal except for case and separators, or with one letter in six
/// (at least one) wrong, missing, added or changed with its neighbour. Of equally near ones it is the first
/// of [`USUAL`], or else the first.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = letters(name);
    if name.len() < 2 || name.len() > LONGEST {
        return None;
    }
    let most = (name.len() / 6).max(1);
    let distances = known.into_iter().map(|known| (distance(&name, &letters(known)), known));
    let rank = |known| USUAL.iter().position(|usual| letters(usual) == letters(known)).unwrap_or(USUAL.len());
    distances
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, known)| (*distance, rank(known)))
        .map(|(_, known)| known)
}

/// Returns the [`advice`] for an error, in brackets; nothing if there is none.
pub(crate) fn hint(name: &str, known: &str) -> String {
    let name = name.rsplit('.').next().unwrap_or(name);
    advice(name, known.split(", ")).map_or(String::new(), |advice| format!(" ({advice})"))
}

fn letters(name: &str) -> Vec<char> {
    name.chars()
        .filter(|letter| letter.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .take(LONGEST + 1)
        .collect()
}

/// Returns how many letters must be changed, added, dropped or exchanged with a neighbour to make one word
/// the other.
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
    use crate::params::Filter;

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

    #[test]
    fn what_the_caller_decides_is_said_of_no_other_names_than_parameters() {
        let known = ["temperature", "top_k", "min_tokens"];
        for name in CALLERS {
            assert_eq!(meant(name, known), None, "{name}");
            assert!(
                advice(name, known).is_some_and(|advice| advice.ends_with("the caller's part")),
                "{name}"
            );
            assert_eq!(advice(name, ["multiplier", "base"]), None, "{name}");
        }
        assert_eq!(advice("topk", known).as_deref(), Some("do you mean \"top_k\"?"));
    }

    #[test]
    fn of_equally_near_names_the_most_usual_one_was_meant() {
        let filters = || Filter::ALL.map(Filter::name);
        assert_eq!(
            filters().iter().filter(|name| distance(&letters("top_q"), &letters(name)) == 1).count(),
            4
        );
        for (name, expected) in
            [("top_q", "top_p"), ("top-q", "top_p"), ("top_n", "top_p"), ("toph", "top_h")]
        {
            assert_eq!(nearest(name, filters()), Some(expected), "{name}");
        }
        assert_eq!(nearest("top-q", ["top-a", "top-k"]), Some("top-k"));
        assert_eq!(nearest("top_q", ["top_h", "top_a"]), Some("top_h"), "the first");
    }

    #[test]
    fn the_words_of_other_engines_are_known_by_where_they_are_here() {
        let known = [
            "temperature",
            "top_p",
            "top_k",
            "typical_p",
            "top_n_sigma",
            "repetition_penalty",
            "penalty_window",
            "stop_ids",
            "dry",
            "logprobs",
        ];
        for (name, expected) in [
            ("typ_p", "typical_p"),
            ("top_n", "logprobs.top_n"),
            ("repeat_penalty", "repetition_penalty"),
            ("repeat-penalty", "repetition_penalty"),
            ("repeat-last-n", "penalty_window"),
            ("dry_penalty_last_n", "dry.window"),
            ("stop_token_ids", "stop_ids"),
            ("dry_multiplier", "dry.multiplier"),
            ("dry_sequence_breakers", "dry.breakers"),
            ("logprobs_ids", "logprobs.ids"),
            ("topp", "top_p"),
        ] {
            assert_eq!(meant(name, known), Some(expected), "{name}");
        }
        // Where parameters are not what is named.
        assert_eq!(meant("top_n", ["top_k", "top_n_sigma"]), Some("top_n_sigma"));
        assert_eq!(meant("repeat_penalty", ["gather", "swap"]), None);
    }
}
