//! Bans: ids that must not come next, found in the history (rule E4).

use crate::task::Task;

/// Calls `ban` for every id that a list, a bad word, an n-gram, or the least length of the output or a
/// section bans; ids may repeat and may lie outside the vocabulary. Allowed ids are a mask and not handled
/// here.
pub fn bans(task: &Task<'_>, mut ban: impl FnMut(u32)) {
    let params = task.prepared.params();
    let history = task.history.ids();
    params.banned_ids.iter().for_each(|id| ban(*id));
    params.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY).for_each(|(id, _)| ban(*id));
    for word in &params.bad_words {
        let (last, before) = word.split_last().expect("validated: at least one id");
        if history.ends_with(before) {
            ban(*last);
        }
    }
    let n = params.no_repeat_ngram as usize;
    if n > 0 && n <= history.len() {
        let tail = &history[history.len() - (n - 1)..];
        let before = history.len() - task.history.last(params.no_repeat_ngram_window).len();
        let part = params.no_repeat_ngram_scope.part(task.history.prompt().len(), history.len());
        let grams = history.get(part.start.max(before)..part.end).unwrap_or_default().windows(n);
        let repeated = grams.filter(|gram| gram[..n - 1] == *tail).map(|gram| gram[n - 1]);
        repeated.filter(|id| !params.no_repeat_ngram_exempt_ids.contains(id)).for_each(&mut ban);
    }
    if task.history.output().len() < params.min_tokens as usize {
        params.stop_ids.iter().for_each(|id| ban(*id));
    }
    task.history.too_early(task.prepared).into_iter().for_each(ban);
}
