//! What the page says about each filter and edit to someone who meets it for the first time.

/// Returns a filter's name as people write it, and what it is for.
pub(super) fn filter(name: &str) -> (&'static str, &'static str) {
    match name {
        "top_k" => (
            "Top-k",
            "The bluntest filter: count off the k likeliest tokens and forget the rest. It does not ask how likely \
             they are, so it lets nonsense in when the model is sure of itself and cuts good words when it is not.",
        ),
        "top_p" => (
            "Top-p",
            "Also called nucleus sampling. Walk down the list, likeliest first, and stop as soon as the tokens \
             walked past hold a share p of all the probability. A sure model leaves a handful of tokens, an unsure \
             one leaves hundreds.",
        ),
        "min_p" => (
            "Min-p",
            "Compares every token with the likeliest one. Whatever is less than the given fraction as likely goes. \
             The bar is high when one token stands out, and low when many are about equal.",
        ),
        "typical_p" => (
            "Typical-p",
            "Keeps the tokens that would surprise about as much as the model expects to be surprised. It can drop \
             the likeliest token for being too obvious, as well as the unlikely ones.",
        ),
        "top_n_sigma" => (
            "Top-n\u{3c3}",
            "Looks at the logits themselves. Most of them form a bell-shaped heap of noise, and the sensible \
             tokens stand clear of it. Whatever is more than n standard deviations below the best is taken for noise.",
        ),
        "top_a" => (
            "Top-a",
            "A bar at a multiple of the square of the best token's probability. It is high when one token stands out, and \
             falls twice as fast as that of min-p when many are about equal.",
        ),
        "p_less" => (
            "P-less",
            "A bar without a knob: the probability that two draws from the row would be the same token. It is high when the model is \
             sure, and as low as the tokens themselves when all are equal.",
        ),
        "epsilon_cutoff" => ("Epsilon cutoff", "A fixed bar: whatever is less likely than epsilon goes."),
        "eta_cutoff" => (
            "Eta cutoff",
            "A bar like epsilon's that gets lower the more undecided the model is, so that it does not empty a flat row.",
        ),
        "xtc" => (
            "XTC",
            "\u{201c}Exclude top choices\u{201d}: now and then, as a coin decides, all tokens above a threshold go \
             except the least likely of them. It makes text less predictable without letting nonsense in.",
        ),
        "mirostat" => (
            "Mirostat",
            "A thermostat. It keeps what surprises by at most \u{3bc} bits, and moves \u{3bc} after every token so \
             that the surprise stays near a target on average.",
        ),
        _ => ("Filter", ""),
    }
}

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
        "mask" => ("Grammar mask", "rules out whatever the grammar does not allow here"),
        _ => ("Edit", ""),
    }
}
