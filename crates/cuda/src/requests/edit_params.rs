//! Edits: turns penalties, bias and bans from parameters into what `history_edits.cu` and `edited_row.cuh`
//! read.
//!
//! Bans that never change form a bitmap. Every other edit is a number in the entry of the id that it touches.
//! A tile without touched ids therefore costs only a look at its bits. DRY, most bans and the counts of a
//! window depend on how the history ends: the kernel `history_edits` finds these before the survey and stamps
//! them into entries.

use gumball_spec::watermark::Key;
use gumball_spec::{Loops, SamplingParams, Scope, Section, TILE, Watermark};

use crate::abi::{Params, features, scopes, section_words, watermark_words};

/// The lists of a request's edits; scalar edit parameters are in [`Params`].
#[derive(Clone, Debug, Default)]
pub(crate) struct EditLists {
    /// Finite biases, by id.
    pub bias: Vec<(u32, f32)>,
    /// One bit per id, padded to whole tiles; 0 if a ban that never changes forbids the id. `None`: no such
    /// ban.
    pub allowed: Option<Vec<u32>>,
    /// The stop ids in the vocabulary, which are banned until the output has `min_tokens` tokens; empty if
    /// that is 0.
    pub stop_ids: Vec<u32>,
    /// Ids that no DRY repeat reaches across.
    pub breakers: Vec<u32>,
    /// The bad words of two or more ids, concatenated.
    pub bad_words: Vec<u32>,
    /// For each of these words, the index in `bad_words` after its last id.
    pub bad_word_ends: Vec<u32>,
    /// Ids that XTC never drops, which is no edit.
    pub xtc_exempt_ids: Vec<u32>,
    /// Ids that n-grams never ban.
    pub no_repeat_ngram_exempt_ids: Vec<u32>,
    /// The section of the text and what ends its loops, in the words that kernels read; empty if there is
    /// neither.
    pub section: Vec<u32>,
    /// The watermark and its key.
    pub watermark: Option<(Watermark, Key)>,
    /// The last id that closes the section, if that may come too early.
    pub last_of_close: Option<u32>,
}

fn scope(scope: Scope, on: bool) -> u32 {
    match scope {
        _ if !on => scopes::NONE,
        Scope::Prompt => scopes::PROMPT,
        Scope::Output => scopes::OUTPUT,
        Scope::Both => scopes::BOTH,
    }
}

/// Writes a request's edit parameters into `prepared`, and returns the lists of its edits.
pub(crate) fn prepare(params: &SamplingParams, vocab: usize, prepared: &mut Params) -> EditLists {
    let inside = |id: &u32| (*id as usize) < vocab;
    let mut edits = EditLists { allowed: allowed(params, vocab), ..EditLists::default() };
    prepared.bias_first = u32::from(params.bias_first);
    edits.xtc_exempt_ids.clone_from(&params.xtc_exempt_ids);
    prepared.xtc_exempt_count = edits.xtc_exempt_ids.len() as u32;
    edits.bias = params.logit_bias.iter().copied().filter(|(_, bias)| bias.is_finite()).collect();
    for word in params.bad_words.iter().filter(|word| word.len() > 1 && word.last().is_some_and(inside)) {
        edits.bad_words.extend(word);
        edits.bad_word_ends.push(edits.bad_words.len() as u32);
    }
    if params.min_tokens > 0 {
        edits.stop_ids = params.stop_ids.iter().copied().filter(inside).collect();
        prepared.min_tokens = params.min_tokens;
    }

    let has_section = params.section.is_some() || params.loops.is_some();
    if has_section {
        let none = (Section::default(), Loops { every: 0, ..Loops::default() });
        let section = params.section.as_ref().unwrap_or(&none.0);
        let loops = params.loops.as_ref().unwrap_or(&none.1);
        let lists = [&section.open, &section.close, section.end(), &loops.end];
        let [open, close, end, of_loop] = lists.map(|ids| ids.len() as u32);
        let periods = [loops.every, loops.min_period, loops.max_period, loops.min_copies, loops.min_tokens];
        edits.section = vec![section.budget, section.min, open, close, end];
        edits.section.extend(periods.into_iter().chain([u32::from(loops.close), of_loop]));
        assert_eq!(edits.section.len(), section_words::IDS as usize, "the words that kernels read");
        edits.section.extend(lists.into_iter().flatten());
        edits.last_of_close = section.close.last().copied().filter(inside).filter(|_| section.min > 0);
    }

    let others = params.frequency_penalty != 0.0 || params.presence_penalty != 0.0;
    prepared.repetition_penalty = params.repetition_penalty;
    prepared.frequency_penalty = params.frequency_penalty;
    prepared.presence_penalty = params.presence_penalty;
    prepared.repetition_scope = scope(params.repetition_scope, params.repetition_penalty != 1.0);
    prepared.penalty_scope = scope(params.penalty_scope, others);
    let dry = &params.dry;
    if dry.multiplier != 0.0 {
        prepared.dry_multiplier = dry.multiplier;
        prepared.dry_base = dry.base;
        prepared.dry_allowed_length = dry.allowed_length;
        prepared.dry_window = dry.window;
        edits.breakers.clone_from(&dry.breakers);
    }
    if params.no_repeat_ngram > 0 {
        edits.no_repeat_ngram_exempt_ids.clone_from(&params.no_repeat_ngram_exempt_ids);
        prepared.no_repeat_ngram = params.no_repeat_ngram;
        prepared.no_repeat_ngram_scope = scope(params.no_repeat_ngram_scope, true);
        prepared.no_repeat_ngram_window = params.no_repeat_ngram_window;
        prepared.no_repeat_ngram_exempt_count = edits.no_repeat_ngram_exempt_ids.len() as u32;
    }
    // Each edit is monotone in the logit. Under these conditions only a bias can raise a logit, so the
    // largest bias bounds how much edits raise one.
    let lowers = params.repetition_penalty >= 1.0
        && params.frequency_penalty >= 0.0
        && params.presence_penalty >= 0.0
        && dry.multiplier >= 0.0;
    prepared.max_raise = match lowers {
        true => edits.bias.iter().map(|(_, bias)| *bias).fold(0.0, f32::max),
        false => f32::INFINITY,
    };

    let repeats = dry.multiplier != 0.0 || params.no_repeat_ngram != 0;
    let penalties = prepared.repetition_scope != scopes::NONE || others;
    let counts = repeats || penalties;
    let has_window = penalties && params.penalty_window > 0;
    prepared.penalty_window = params.penalty_window;
    let may_ban = !edits.bad_words.is_empty() || !edits.stop_ids.is_empty() || edits.last_of_close.is_some();
    let stamps = repeats || has_window || may_ban;
    for (bit, set) in [
        (features::EDITS, counts || stamps || !edits.bias.is_empty()),
        (features::TOKEN_COUNTS, counts),
        (features::HISTORY_EDITS, stamps || has_section || params.watermark.own().is_some()),
        (features::PENALTY_WINDOW, has_window),
        (features::SECTION, has_section),
        (features::WATERMARK, params.watermark.own().is_some()),
        (features::BANNED_IDS, edits.allowed.is_some()),
    ] {
        prepared.features |= if set { bit } else { 0 };
    }
    edits
}

impl EditLists {
    /// Returns the words of the watermark that kernels read; none if there is no watermark.
    pub fn watermark_words(&self) -> Vec<u32> {
        let Some((watermark, key)) = &self.watermark else { return Vec::new() };
        let of_output = u32::from(watermark.scope == Scope::Output);
        let mut words = key.secret_words().to_vec();
        assert_eq!(words.len(), watermark_words::CONTEXT as usize, "the words that kernels read");
        words.extend([watermark.context, of_output, watermark.window]);
        words
    }
}

/// Returns a bit per id that is 0 if the id is banned permanently, or `None` if no id is.
fn allowed(params: &SamplingParams, vocab: usize) -> Option<Vec<u32>> {
    let by_bias = params.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).map(|(id, _)| id);
    let words = params.bad_words.iter().filter(|word| word.len() == 1).flatten();
    let banned = params.banned_ids.iter().chain(by_bias).chain(words);
    let mut banned = banned.filter(|id| (**id as usize) < vocab).peekable();
    if params.allowed_ids.is_none() && banned.peek().is_none() {
        return None;
    }
    let words = vocab.div_ceil(TILE) * TILE / 32;
    let mut allowed = vec![if params.allowed_ids.is_some() { 0 } else { u32::MAX }; words];
    params.allowed_ids.iter().flatten().for_each(|id| allowed[*id as usize / 32] |= 1 << (id % 32));
    banned.for_each(|id| allowed[*id as usize / 32] &= !(1 << (id % 32)));
    Some(allowed)
}
