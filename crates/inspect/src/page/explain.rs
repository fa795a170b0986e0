//! The page's words on each edit, for someone who meets it for the first time.

/// Returns what an edit does, in a clause.
pub(super) fn edit(name: &str) -> (&'static str, &'static str) {
    match name {
        "repetition_penalty" => {
            ("Repetition penalty", "pushes tokens that were seen before towards less likely")
        }
        "frequency_penalty" => ("Frequency penalty", "takes something off for every time a token was used"),
        "presence_penalty" => ("Presence penalty", "takes something off once if a token was used at all"),
        "dry" => ("DRY", "pushes down whatever would continue a passage that was said before"),
        "logit_bias" => ("Logit bias", "adds what the caller asked for to single tokens"),
        "allowed_ids" => ("Allowed ids", "rules out everything that is not on a list"),
        "banned_ids" => ("Banned ids", "rules out single tokens"),
        "bad_words" => ("Bad words", "rules out the token that would complete a forbidden sequence"),
        "no_repeat_ngram" => ("No repeated n-gram", "rules out whatever would repeat a sequence of n tokens"),
        "min_tokens" => ("Minimum length", "rules out ending the text too early"),
        "section" => ("Section", "rules out closing it before its least length"),
        "mask" => ("Grammar mask", "rules out whatever the grammar does not allow here"),
        _ => ("Edit", ""),
    }
}
