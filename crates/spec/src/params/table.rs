//! Every filter, and every parameter: its name, type, neutral value, range, and its meaning in words for
//! every surface.
//!
//! A line makes the field, its default, what JSON, C and Python call it and refuse, and the command's flag;
//! pages and files in other languages are written of it
//! (`cargo test -p gumball-conformance --test generated`). Rules that no range of one number can say are in
//! `validate.rs`.

use super::names::{FilterKind, filters, named};
use super::parameter::{Range, Stage, setting, switch};
use super::{
    Field, FilterOrder, Holds, LogprobMode, LogprobModes, Mark, Parameter, Parameters, Scope, check, params,
};
use crate::error::Result;
use crate::row::MAX_VOCAB;

const P16: f64 = 65_536.0;
const P100: f64 = f64::from_bits((1023 + 100) << 52);
const LARGEST: f64 = f32::MAX as f64;
const DECAY: f64 = 0.99f32 as f64;

const fn from(least: f64, most: f64, words: &'static str) -> Range {
    Range { least, most, is_open: false, words }
}

const fn above(least: f64, most: f64, words: &'static str) -> Range {
    Range { least, most, is_open: true, words }
}

/// Starts the rule of a parameter that switches a filter on; `usual` is a usual value.
const fn filter(filter: Filter, usual: f64) -> Parameter {
    Parameter { filter: Some(filter), usual, ..switch(Stage::Filter).foreseen() }
}

const MASS: Range = from(0.0, 1.0, "in 0..=1 (1: off)");
const SHARE: Range = from(0.0, 1.0, "in 0..=1 (0: off)");
const PENALTY: Range = from(-P16, P16, "in -2^16..=2^16 (0: off)");
const COUNT: Range = from(0.0, u32::MAX as f64, "in 0..2^32");
const WINDOW: Range = from(0.0, u32::MAX as f64, "in 0..2^32 (0: all)");

filters! {
    /// A filter, under its parameter's name. [`Filter::ALL`] is the default filter chain.
    Filter:
    /// Keeps logits within n standard deviations of the best (arXiv:2411.07641).
    TopNSigma = "top_n_sigma";
    /// Keeps the first tokens that together have a share of the entropy of the first 100 (arXiv:2509.02510).
    TopH = "top_h" share listed counted(100);
    /// Keeps the first k tokens.
    TopK = "top_k" prefix listed counted(usize::MAX);
    /// Keeps the tokens whose surprise is nearest to the entropy (arXiv:2202.00666).
    TypicalP = "typical_p" share interval;
    /// Keeps the shortest prefix of mass p: nucleus sampling (arXiv:1904.09751).
    TopP = "top_p" share prefix listed;
    /// Keeps what is at least `min_p` times as likely as the best (arXiv:2407.01082).
    MinP = "min_p" log2 prefix listed;
    /// Keeps probabilities of at least `top_a` times the square of the best one's.
    TopA = "top_a" log2 listed;
    /// Keeps probabilities of at least the sum of the squares of all (arXiv:2509.23234).
    PLess = "p_less";
    /// Keeps probabilities of at least epsilon (arXiv:2210.15191).
    EpsilonCutoff = "epsilon_cutoff" log2 listed;
    /// Keeps probabilities of at least an entropy-dependent threshold (arXiv:2210.15191).
    EtaCutoff = "eta_cutoff" log2;
    /// Sometimes drops all likely tokens but the least likely of them: "exclude top choices".
    Xtc = "xtc" share listed interval;
}

params! {
    /// A request's parameters: they decide how its tokens are chosen.
    ///
    /// Plain data: build it with struct update syntax from `default()`, then hand it over; it is validated
    /// where it is admitted. Read from JSON, a name that is not known is an error: a misspelt filter would be
    /// a filter that is silently off.
    ///
    /// ```
    /// use gumball_spec::SamplingParams;
    /// let params = SamplingParams { temperature: 0.8, top_k: 50, top_p: 0.9, ..Default::default() };
    /// assert!(params.validate(32_000).is_ok());
    /// let error = SamplingParams { min_p: 1.5, ..Default::default() }.validate(32_000).unwrap_err();
    /// assert_eq!(error.to_string(), "min_p is 1.5, but must be in 0..=1 (0: off)");
    /// ```
    #[derive(Clone, Debug, PartialEq)]
    SamplingParams + Default: "", "an object of sampling parameters";

    /// Divides the logits; 0 is greedy, as is anything below 2^-100; at most 2^100.
    temperature: f32 = 1.0 => setting(Stage::Temperature).foreseen()
        .within(from(0.0, P100, "0 (greedy) or in (0, 2^100]"))
        .flag("T", "Divide the logits by T; 0 is greedy");

    /// Replaces a `temperature` above 0 by one that follows a row's entropy: certain rows get `min`, flat
    /// ones `max`.
    dynamic_temperature: Option<DynamicTemperature> = None => switch(Stage::Temperature).foreseen().of_logits()
        .flag("MIN,MAX[,EXP]", "Let the temperature follow the entropy of the row, from MIN (certain) to MAX (flat)");

    /// How many tokens to keep; at least -1, off if 0, -1 or at least the vocabulary.
    top_k: i64 = 0 => filter(Filter::TopK, 50.0)
        .within(from(-1.0, i64::MAX as f64, "at least -1 (0, -1: off)"))
        .flag("K", "Keep the K most likely tokens; 0 is off");

    /// The mass to keep; in 0..=1, 1 is off.
    top_p: f32 = 1.0 => filter(Filter::TopP, 0.9).within(MASS)
        .flag("P", "Keep the most likely tokens that together have probability P; 1 is off");

    /// The mass to keep around the entropy; in 0..=1, 1 is off.
    typical_p: f32 = 1.0 => filter(Filter::TypicalP, 0.9).within(MASS)
        .flag("P", "Keep the tokens of mass P whose surprise is nearest to the entropy; 1 is off");

    /// The least probability, relative to the best token's, that is kept; in 0..=1, 0 is off.
    min_p: f32 = 0.0 => filter(Filter::MinP, 0.05).within(SHARE)
        .flag("P", "Keep tokens at least P times as likely as the most likely one; 0 is off");

    /// How many standard deviations below the best logit are kept; finite and at least 0, 0 is off. Every
    /// logit above -inf counts in the deviation, one at the least finite number or with a bias of -100, too:
    /// ban by -inf.
    top_n_sigma: f32 = 0.0 => filter(Filter::TopNSigma, 1.0).of_logits()
        .within(from(0.0, LARGEST, "finite and at least 0 (0: off)"))
        .flag("N", "Keep logits within N standard deviations of the best; 0 is off");

    /// The largest share of the entropy of the first 100 tokens that is kept, likeliest first (F12); in
    /// 0..=1, 0 is off. 1 keeps up to 100 tokens.
    top_h: f32 = 0.0 => filter(Filter::TopH, 0.4).within(SHARE)
        .flag("H", "Keep the most likely tokens that have at most H of the entropy of the first 100; 0 is off");

    /// The least probability that is kept, as a multiple of the square of the best token's; in 0..=1, 0 is
    /// off.
    top_a: f32 = 0.0 => filter(Filter::TopA, 0.02).within(SHARE)
        .flag("A", "Keep tokens of at least A times the square of the best probability; 0 is off");

    /// Whether tokens less likely than two draws are to be equal are dropped: p-less sampling, which speaks
    /// of logits.
    p_less: bool = false => filter(Filter::PLess, 1.0).of_logits()
        .flag("", "Keep tokens that are at least as likely as two draws are to be equal");

    /// The least probability that is kept; in 0..=1, 0 is off.
    epsilon_cutoff: f32 = 0.0 => filter(Filter::EpsilonCutoff, 3e-4).within(SHARE)
        .flag("P", "Keep tokens of probability P and more; 0 is off");

    /// The entropy-dependent form of it; in 0..=1, 0 is off.
    eta_cutoff: f32 = 0.0 => filter(Filter::EtaCutoff, 2e-3).within(SHARE)
        .flag("P", "The same with a limit that falls with the entropy; 0 is off");

    /// How often XTC acts; in 0..=1, 0 is off.
    xtc_probability: f32 = 0.0 => filter(Filter::Xtc, 0.5).within(SHARE)
        .flag("P", "How often XTC drops the top choices; 0 is off");

    /// The probability from which a token counts as a top choice; in (0, 1].
    xtc_threshold: f32 = 0.1 => setting(Stage::Filter).foreseen()
        .within(above(0.0, 1.0, "in (0, 1]"))
        .flag("P", "The probability from which XTC calls a token a top choice");

    /// Ids that XTC never drops: it does nothing in a row in which it would drop one of them (F4); in the
    /// vocabulary. Usually the ends of a text and the newline.
    xtc_exempt_ids: Vec<u32> = Vec::new() => setting(Stage::Filter)
        .flag("IDS", "Let XTC do nothing where it would drop one of these ids");

    /// How many tokens a filter keeps at least: the first token that it keeps, and the next ones of its given
    /// set (F11); in 1..2^32.
    min_keep: u32 = 1 => setting(Stage::Filter).within(from(1.0, u32::MAX as f64, "in 1..2^32"))
        .flag("N", "Let each filter keep at least N tokens, counted from the first that it keeps");

    /// Mirostat v2, which stands alone: no filter beside it, and no drafts (F6). `mu` is the limit to start
    /// from, in bits; twice `tau` if left out.
    mirostat: Option<Mirostat> = None => switch(Stage::Filter).foreseen()
        .flag("TAU[,ETA[,MU]]", "Mirostat v2: keep the surprise near TAU bits, following it at rate ETA");

    /// The probability that adaptive-p keeps the drawn tokens near, on average (D3); in -1..=1, below 0 is
    /// off. It acts after all filters, and stands beside neither mirostat, drafts nor logprobs of the mode
    /// `processed`.
    adaptive_target: f32 = -1.0 => switch(Stage::Filter).within(from(-1.0, 1.0, "in -1..=1 (below 0: off)"))
        .flag("P", "Adaptive-p: draw tokens of about probability P on average, after the filters; below 0 is off");

    /// How much of adaptive-p's mean is kept at each token: it goes back over about 1 / (1 - decay) tokens;
    /// in 0..=0.99.
    adaptive_decay: f32 = 0.9 => setting(Stage::Filter).foreseen().within(from(0.0, DECAY, "in 0..=0.99"))
        .flag("D", "How much of its mean adaptive-p keeps at each token");

    /// Divides positive and multiplies negative logits of seen tokens; in (0, 2^16], 1 is off.
    repetition_penalty: f32 = 1.0 => switch(Stage::Edit).foreseen().of_logits().reads_history()
        .within(above(0.0, P16, "in (0, 2^16] (1: off)"))
        .flag("R", "Divide positive and multiply negative logits of seen tokens by R; 1 is off");

    /// The part of the history whose tokens the repetition penalty counts as seen.
    repetition_scope: Scope = Scope::Both => setting(Stage::Edit).foreseen()
        .flag("SCOPE", "What the repetition penalty counts: prompt, output or both");

    /// Subtracted once per occurrence; in -2^16..=2^16, 0 is off.
    frequency_penalty: f32 = 0.0 => switch(Stage::Edit).foreseen().of_logits().reads_history().within(PENALTY)
        .flag("F", "Subtract F for each occurrence of a token");

    /// Subtracted once if there is any occurrence; in -2^16..=2^16, 0 is off.
    presence_penalty: f32 = 0.0 => switch(Stage::Edit).foreseen().of_logits().reads_history().within(PENALTY)
        .flag("F", "Subtract F once from tokens that occur");

    /// The part of the history in which frequency and presence penalty count tokens.
    penalty_scope: Scope = Scope::Output => setting(Stage::Edit).foreseen()
        .flag("SCOPE", "What frequency and presence penalty count: prompt, output or both");

    /// How many of the history's last tokens repetition, frequency and presence penalty look at; in 0..2^32,
    /// 0 is all tokens. Of these tokens they count the ones in their scope.
    penalty_window: u32 = 0 => setting(Stage::Edit).foreseen().within(WINDOW)
        .flag("N", "Count for repetition, frequency and presence penalty only the last N tokens; 0 is all");

    /// The DRY repetition penalty.
    dry: Dry = Dry::default() => switch(Stage::Edit).foreseen().of_logits().reads_history();

    /// Bans every token that would complete an n-gram of this size a second time; 0 is off.
    no_repeat_ngram: u32 = 0 => switch(Stage::Edit).foreseen().reads_history().within(COUNT)
        .flag("N", "Never repeat an n-gram of N ids; 0 is off");

    /// The part of the history whose n-grams `no_repeat_ngram` does not repeat.
    no_repeat_ngram_scope: Scope = Scope::Both => setting(Stage::Edit).foreseen()
        .flag("SCOPE", "Whose n-grams are not repeated: prompt, output or both");

    /// How many of the history's last tokens `no_repeat_ngram` looks at; in 0..2^32, 0 is all tokens. An
    /// n-gram counts if it lies whole among these tokens.
    no_repeat_ngram_window: u32 = 0 => setting(Stage::Edit).foreseen().within(WINDOW)
        .flag("N", "Repeat no n-gram of the last N tokens; 0 is all");

    /// Ids that `no_repeat_ngram` never bans; in the vocabulary.
    no_repeat_ngram_exempt_ids: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen()
        .flag("IDS", "Let these ids complete an n-gram a second time");

    /// Added to the logits of ids, each named once and in the vocabulary; finite, or -inf for a ban.
    logit_bias: Vec<(u32, f32)> = Vec::new() => switch(Stage::Edit).foreseen().of_logits()
        .flag("ID=V", "Add V to the logit of an id, -inf bans it; may be repeated");

    /// Whether `logit_bias` is added before the penalties, which then act on the sum.
    bias_first: bool = false => setting(Stage::Edit).foreseen()
        .flag("", "Add the biases before the penalties instead of behind them");

    /// If present, all other ids are banned, so that an empty list bans everything; ids in the vocabulary.
    allowed_ids: Option<Vec<u32>> = None => switch(Stage::Edit).foreseen().flag("IDS", "Ban all other ids");

    /// Ids that are never drawn; in the vocabulary.
    banned_ids: Vec<u32> = Vec::new() => switch(Stage::Edit).foreseen().flag("IDS", "Never draw these ids");

    /// Sequences that are never completed, each of at least one id.
    bad_words: Vec<Vec<u32>> = Vec::new() => switch(Stage::Edit).foreseen().reads_history()
        .flag("IDS", "Never complete this sequence of ids; may be repeated");

    /// How many output tokens must exist before one of `stop_ids` may be drawn; without `stop_ids` it does
    /// nothing.
    min_tokens: u32 = 0 => switch(Stage::Edit).foreseen().reads_history().within(COUNT)
        .flag("N", "Ban the stop ids until N tokens are out");

    /// The ids that end the output; ending it is the caller's part.
    stop_ids: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen().flag("IDS", "The ids that end the output");

    /// A part of the text, such as a model's reasoning, that has a budget of tokens (B1).
    section: Option<Section> = None => switch(Stage::Edit).foreseen().reads_history();

    /// What ends an output that repeats itself without end (B4).
    loops: Option<Loops> = None => switch(Stage::Edit).foreseen().reads_history();

    /// Marks the text for the owner of a secret key (W1); absent: by the pool's default, if any (W5); false:
    /// not. The race then draws by that key and the last ids, in the place of the seed.
    watermark: Mark = Mark::Default => switch(Stage::Draw).foreseen().reads_history();

    /// The seed of all draws; absent: fresh entropy for each request, readable afterwards.
    seed: Option<u64> = None => setting(Stage::Draw).foreseen()
        .flag("SEED", "The seed of all draws; chosen and printed if absent");

    /// Which logprobs to report; absent: none. In JSON, Python and JavaScript a number n stands for an object
    /// whose `top_n` is n.
    logprobs: Option<LogprobsParams> = None => switch(Stage::Logprobs).foreseen();

    /// In which order the filters act.
    order: FilterOrder = FilterOrder::Default => setting(Stage::Filter).foreseen()
        .flag("ORDER", "Which filter acts on what: default, joint, or filter names in the order they act");

    /// Whether the filters see the row at temperature 1, and only the draw is tempered (F8).
    temperature_last: bool = false => setting(Stage::Temperature).foreseen()
        .flag("", "Let the filters see the row at temperature 1");

    /// Of this crate's unit tests: a parameter that nothing foresees.
    #[cfg(test)]
    imaginary: bool = false => setting(Stage::Filter);
}

params! {
    /// Entropy-based temperature: certain rows get `min`, uncertain ones `max` (F7).
    #[derive(Clone, Copy, Debug, PartialEq)]
    DynamicTemperature: "dynamic_temperature.", "an object with min and max";

    /// The temperature of a row of entropy 0; in 0..=2^100.
    min: f32 = f32::NAN => setting(Stage::Temperature).required().within(from(0.0, P100, "in 0..=2^100"));

    /// The temperature of a flat row; in `min`..=2^100.
    max: f32 = f32::NAN => setting(Stage::Temperature).required()
        .within(from(0.0, P100, "in dynamic_temperature.min..=2^100"));

    /// The power the normalised entropy is raised to; in (0, 2^16], 1 if left out.
    exponent: f32 = 1.0 => setting(Stage::Temperature).within(above(0.0, P16, "in (0, 2^16]"));
}

params! {
    /// Mirostat v2 (arXiv:2007.14966): keeps the surprise of the drawn tokens near `tau` (F6).
    #[derive(Clone, Copy, Debug, PartialEq)]
    Mirostat: "mirostat.", "an object with tau";

    /// The surprise aimed at, in bits; in (0, 2^16].
    tau: f32 = f32::NAN => setting(Stage::Filter).required().within(above(0.0, P16, "in (0, 2^16]"));

    /// How fast the limit follows; in 0..=2^16.
    eta: f32 = 0.1 => setting(Stage::Filter).within(from(0.0, P16, "in 0..=2^16"));

    /// The limit to start from, in bits; twice `tau` if absent.
    mu: Option<f32> = None => setting(Stage::Filter).within(from(-LARGEST, LARGEST, "finite"));
}

params! {
    /// The DRY repetition penalty: the longer the repeat a token would continue, the larger (E3).
    #[derive(Clone, Debug, PartialEq)]
    Dry + Default: "dry.", "an object of DRY's parameters";

    /// The penalty of a repeat of `allowed_length`; in 0..=2^16, 0 is off.
    multiplier: f32 = 0.0 => switch(Stage::Edit).foreseen().within(from(0.0, P16, "in 0..=2^16 (0: off)"))
        .flag("M", "The DRY penalty of a repeat of the allowed length; 0 is off");

    /// By how much each further token multiplies it; in 1..=2^16.
    base: f32 = 1.75 => setting(Stage::Edit).foreseen().within(from(1.0, P16, "in 1..=2^16"))
        .flag("B", "By how much each further repeated token multiplies it");

    /// The shortest repeat that is penalised; at least 1.
    allowed_length: u32 = 2 => setting(Stage::Edit).foreseen().within(from(1.0, u32::MAX as f64, "at least 1"))
        .flag("N", "The shortest repeat that DRY penalises");

    /// Ids that no repeat reaches across.
    breakers: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen().flag("IDS", "Ids that no repeat reaches across");

    /// How many of the last tokens of the history DRY looks at: a repeat lies whole among them; in 0..2^32, 0
    /// is all.
    window: u32 = 0 => setting(Stage::Edit).foreseen().within(WINDOW)
        .flag("N", "Let DRY look at the last N tokens; 0 is all");
}

params! {
    /// A section of the text, between ids that open it and ids that close it (B1 to B3).
    #[derive(Clone, Debug, PartialEq, Eq)]
    Section + Default: "section.", "an object with close and budget";

    /// The ids that open a section, at most 256; without any there is one section alone, which begins where
    /// the output does.
    open: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen().flag("IDS", "The ids that open a section of the text");

    /// The ids that close a section, 1 to 256 of them.
    close: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen().flag("IDS", "The ids that close a section of the text");

    /// The ids that are forced when the budget is used up, at most 256, in the vocabulary; those of `close`
    /// if there are none.
    end: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen()
        .flag("IDS", "The ids that are forced when a section's budget is used up, instead of those that close it");

    /// How many tokens a section may have before its end is forced; in 0..2^32. Left out it is 2^32 - 1,
    /// which no section reaches.
    budget: u32 = u32::MAX => setting(Stage::Edit).foreseen().within(COUNT)
        .flag("N", "How many tokens a section may have before its end is forced");

    /// How many tokens a section must have before the last id of `close` may complete it; in
    /// 0..=section.budget.
    min: u32 = 0 => setting(Stage::Edit).foreseen().within(COUNT)
        .flag("N", "How many tokens a section must have before it may be closed");
}

params! {
    /// When an output is a loop, and what ends it (B4, B5).
    #[derive(Clone, Debug, PartialEq, Eq)]
    Loops + Default: "loops.", "an object of the rules of loops";

    /// The least period of a loop, in tokens; in 1..=128.
    min_period: u32 = 1 => setting(Stage::Edit).foreseen().within(from(1.0, 128.0, "in 1..=128"))
        .flag("N", "The least period of a loop, in tokens");

    /// The largest period of a loop, in tokens; in `min_period`..=128.
    max_period: u32 = 128 => setting(Stage::Edit).foreseen().within(from(1.0, 128.0, "in loops.min_period..=128"))
        .flag("N", "The largest period of a loop, in tokens");

    /// How many copies of its period a loop has at least; in 2..=2^16.
    min_copies: u32 = 4 => setting(Stage::Edit).foreseen().within(from(2.0, P16, "in 2..=2^16"))
        .flag("N", "How many copies of its period a loop has at least");

    /// How many tokens a loop has at least; in 0..2^32. A table or a listing repeats itself as exactly, but
    /// seldom for so long.
    min_tokens: u32 = 256 => setting(Stage::Edit).foreseen().within(COUNT)
        .flag("N", "How many tokens a loop has at least");

    /// Loops are looked for where this divides the number of output tokens; in 1..2^32.
    every: u32 = 16 => setting(Stage::Edit).foreseen().within(from(1.0, u32::MAX as f64, "in 1..2^32"))
        .flag("N", "Look for loops whenever N more tokens are out");

    /// Whether a loop in a section ends it, as a used up budget does; outside sections nothing is looked for
    /// then.
    close: bool = false => setting(Stage::Edit).foreseen().flag("", "Force the end of a section that loops");

    /// The ids that are forced where a loop is found, at most 256, in the vocabulary; none beside `close`.
    /// Without both the row's status tells of the loop, and nothing is forced.
    end: Vec<u32> = Vec::new() => setting(Stage::Edit).foreseen().flag("IDS", "Force these ids where a loop is found");
}

params! {
    /// A watermark: whose key, and of which ids a context is made (W1, W2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Watermark + Default: "watermark.", "an object with key, context, scope and window";

    /// The number of a key that was added to the process.
    key: u32 = 0 => setting(Stage::Draw).foreseen().within(COUNT)
        .flag("NUMBER", "Mark the text by the key of this number; see --watermark-keys");

    /// How many ids a context has; in 1..=64.
    context: u32 = 4 => setting(Stage::Draw).foreseen().within(from(1.0, 64.0, "in 1..=64"))
        .flag("N", "How many of the last ids choose a token's words");

    /// The ids of which contexts are made: of the output, or of prompt and output (both).
    scope: Scope = Scope::Output => setting(Stage::Draw).foreseen()
        .flag("SCOPE", "The ids of which contexts are made: output or both");

    /// How many rows back a context must not have come; in 0..2^32, 0 is all.
    window: u32 = 8192 => setting(Stage::Draw).foreseen().within(WINDOW)
        .flag("N", "Mark no token whose context came in the last N rows; 0 is all");
}

params! {
    /// Which logprobs to report with the token.
    #[derive(Clone, Debug, PartialEq, Eq)]
    LogprobsParams + Default: "logprobs.", "an object with mode, top_n and ids";

    /// The distribution that the logprobs speak of (L1). It is the row as it came at temperature 1 (raw),
    /// after penalties and bans (edited), at the temperature (tempered), or after the filters (processed). Of
    /// two different modes, ranks and lists follow the first; of the second only the token's logprob is
    /// reported. As the second, radius is how far all logits may move before another token is drawn (L7).
    mode: LogprobModes = LogprobModes { first: LogprobMode::Raw, second: None } => setting(Stage::Logprobs).foreseen()
        .flag_named("logprobs", "MODE[,MODE]", "Report logprobs: raw, edited, tempered or processed; a second mode gives the token's besides, or the row's radius; a number: --top-logprobs");

    /// How many of the most likely tokens to list; at most 2^20.
    top_n: u32 = 0 => setting(Stage::Logprobs).foreseen().within(from(0.0, MAX_VOCAB as f64, "in 0..=2^20"))
        .flag_named("top-logprobs", "N", "Report the N most likely tokens besides");

    /// Ids to report besides; each in the vocabulary.
    ids: Vec<u32> = Vec::new() => setting(Stage::Logprobs).foreseen().flag_named("logprob-ids", "IDS", "Report these ids besides");
}
