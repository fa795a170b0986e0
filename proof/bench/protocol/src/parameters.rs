//! A task spelled out: every number an engine needs, with nothing left to its defaults.
//!
//! The words are the engine's own (`temperature`, `top_k`, ...). "Off" is spelled 0 for `top_k`
//! and `min_p`, 1 for `top_p` and `repetition_penalty`, and empty for lists.

use serde::{Deserialize, Serialize};

use crate::{Task, Words};

/// How many tokens of history the penalties of [`Task::Everything`] look at.
const HISTORY: usize = 2000;
/// How many tokens the bias of [`Task::Everything`] touches.
const BIASED: usize = 100;

/// What an engine is asked to do with each row of a definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep this many of the first tokens; 0 is off.
    pub top_k: usize,
    /// Keep the shortest prefix of at least this mass; 1 is off.
    pub top_p: f32,
    /// Keep what is at least this many times as likely as the most likely token; 0 is off.
    pub min_p: f32,
    /// Over the whole history; 1 is off.
    pub repetition_penalty: f32,
    /// Over the whole history; 0 is off.
    pub frequency_penalty: f32,
    /// Over the whole history; 0 is off.
    pub presence_penalty: f32,
    /// The ids that came before, oldest first; repeats are usual.
    pub history: Vec<u32>,
    /// The biases of some ids, which are distinct and ascend.
    pub logit_bias: Vec<(u32, f32)>,
    /// One bit an id, bit `id % 32` of word `id / 32`, 1 is allowed; empty allows all.
    pub mask: Vec<u32>,
    /// How many of the most likely tokens want a logprob beside the drawn one; none is off.
    pub logprobs: Option<usize>,
}

impl Parameters {
    /// The parameters of a task over rows of `vocab` tokens, always the same.
    pub fn of(task: Task, vocab: usize) -> Self {
        let plain = Self {
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            history: Vec::new(),
            logit_bias: Vec::new(),
            mask: Vec::new(),
            logprobs: None,
        };
        match task {
            Task::Greedy => Self { temperature: 0.0, ..plain },
            Task::Plain => plain,
            Task::MinP => Self { min_p: 0.05, ..plain },
            Task::TopKTopP => Self { top_k: 50, top_p: 0.9, ..plain },
            Task::TopP => Self { top_p: 0.9, ..plain },
            Task::Everything => Self {
                top_k: 50,
                top_p: 0.9,
                min_p: 0.05,
                repetition_penalty: 1.1,
                frequency_penalty: 0.1,
                presence_penalty: 0.1,
                history: history(vocab),
                logit_bias: logit_bias(vocab),
                mask: mask(vocab),
                logprobs: Some(5),
                ..plain
            },
        }
    }
}

/// Ids as text has them: low ones are frequent, most appear more than once or not at all.
fn history(vocab: usize) -> Vec<u32> {
    let mut words = Words(0x4157);
    (0..HISTORY)
        .map(|_| ((f64::from(words.fraction()).powi(4) * vocab as f64) as usize).min(vocab - 1) as u32)
        .collect()
}

fn logit_bias(vocab: usize) -> Vec<(u32, f32)> {
    let mut words = Words(0xb1a5);
    let mut ids: Vec<u32> = (0..BIASED).map(|_| words.below(vocab) as u32).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|id| (id, words.fraction() * 4.0 - 2.0)).collect()
}

/// Allows seven ids of eight, at random.
fn mask(vocab: usize) -> Vec<u32> {
    let mut words = Words(0x3a5c);
    (0..vocab.div_ceil(32)).map(|_| (words.word() | words.word() | words.word()) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_touches_ids_of_the_vocabulary_and_is_always_the_same() {
        let vocab = 32000;
        let all = Parameters::of(Task::Everything, vocab);
        assert_eq!(all, Parameters::of(Task::Everything, vocab));
        assert_eq!(all.history.len(), HISTORY);
        assert!(all.history.iter().all(|&id| (id as usize) < vocab));
        let mut distinct = all.history.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!((500..HISTORY).contains(&distinct.len()), "{}", distinct.len());
        assert!(all.logit_bias.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(all.logit_bias.iter().all(|&(id, bias)| (id as usize) < vocab && bias.abs() <= 2.0));
        assert_eq!(all.mask.len(), 1000);
        let allowed: u32 = all.mask.iter().map(|word| word.count_ones()).sum();
        assert!((27000..29000).contains(&allowed), "{allowed}");
    }

    #[test]
    fn a_vocabulary_of_one_token_has_parameters_too() {
        let all = Parameters::of(Task::Everything, 1);
        assert_eq!((all.logit_bias.len(), all.mask.len()), (1, 1));
    }
}
