//! Edits: penalties, bias and bans, from parameters to what `edit.cu` and `edited_row.cuh` read.
//!
//! Bans that never change are a bitmap. Every other edit is a number in the entry of the id it touches, so that a tile
//! without touched ids costs a look at its bits. What hangs on the history's end, DRY and most bans, a kernel of its
//! own finds before the survey, and stamps into entries.

use gumball_spec::{SamplingParams, Scope, TILE};

use crate::abi::{self, Params, features};
use crate::error::Result;
use crate::runtime::{Grid, Kernel, Runtime};

const EDIT: Kernel = Kernel::named("edit");

/// What edits go by besides numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Edits {
    /// Finite biases.
    pub bias: Vec<(u32, f32)>,
    /// A bit for each id that is not banned for good, over whole tiles.
    pub allowed: Option<Vec<u32>>,
    /// Those in the vocabulary, if they wait for `min_tokens`.
    pub stop_ids: Vec<u32>,
    /// Ids that no repeat reaches across.
    pub breakers: Vec<u32>,
    /// Bad words of several ids, one after the other.
    pub bad_words: Vec<u32>,
    /// Where each of them ends.
    pub bad_word_ends: Vec<u32>,
}

fn scope(scope: Scope, on: bool) -> u32 {
    match scope {
        _ if !on => 0,
        Scope::Prompt => 1,
        Scope::Output => 2,
        Scope::Both => 3,
    }
}

/// Writes the edits of a request, and returns their lists.
pub(crate) fn prepare(params: &SamplingParams, vocab: usize, prepared: &mut Params) -> Edits {
    let inside = |id: &u32| (*id as usize) < vocab;
    let mut edits = Edits { allowed: allowed(params, vocab), ..Edits::default() };
    edits.bias = params.logit_bias.iter().copied().filter(|(_, bias)| bias.is_finite()).collect();
    for word in params.bad_words.iter().filter(|word| word.len() > 1 && word.last().is_some_and(inside)) {
        edits.bad_words.extend(word);
        edits.bad_word_ends.push(edits.bad_words.len() as u32);
    }
    if params.min_tokens > 0 {
        edits.stop_ids = params.stop_ids.iter().copied().filter(inside).collect();
        prepared.min_tokens = params.min_tokens;
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
        edits.breakers.clone_from(&dry.breakers);
    }
    prepared.no_repeat_ngram = params.no_repeat_ngram;
    // Each operation is monotone, and but for a bias these lower a logit or leave it.
    let lowers = params.repetition_penalty >= 1.0
        && params.frequency_penalty >= 0.0
        && params.presence_penalty >= 0.0
        && dry.multiplier >= 0.0;
    prepared.max_raise = match lowers {
        true => edits.bias.iter().map(|(_, bias)| *bias).fold(0.0, f32::max),
        false => f32::INFINITY,
    };

    let repeats = dry.multiplier != 0.0 || params.no_repeat_ngram != 0;
    let counts = repeats || prepared.repetition_scope != 0 || others;
    let search = repeats || !edits.bad_words.is_empty() || !edits.stop_ids.is_empty();
    for (bit, set) in [
        (features::EDITS, counts || search || !edits.bias.is_empty()),
        (features::TOKEN_COUNTS, counts),
        (features::HISTORY_EDITS, search),
        (features::BANNED_IDS, edits.allowed.is_some()),
    ] {
        prepared.features |= if set { bit } else { 0 };
    }
    edits
}

/// Returns the ids that no list bans for good, if one does.
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

/// Enqueues the search of the histories' ends, before the survey of the step.
///
/// # Safety
/// As for [`Runtime::launch`].
pub(crate) unsafe fn enqueue(machine: &dyn Runtime, step: &abi::Step) -> Result<()> {
    let grid = Grid::new(step.rows, machine.threads_per_row());
    // SAFETY: the grid is edit.cu's; for what `step` points to, the caller vouches; its layout is held to the
    // kernels' in tests/abi.rs.
    unsafe { machine.launch(EDIT, grid, bytemuck::bytes_of(step)) }
}
