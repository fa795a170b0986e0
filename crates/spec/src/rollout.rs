//! Seeds of rollouts: of the prompts, turns and samples of a run (N10).

use crate::num::{Tag, philox4x32_10};

/// Returns the seed of the requests that sample one prompt in one turn of a run.
///
/// `run` is the seed of the run, `prompt` the prompt's number in it (a prompt that comes again in a later
/// epoch has a new number), `turn` how many answers of the conversation came before. The samples of a group
/// share the seed, and sample j has the draw index j.
///
/// ```
/// assert_eq!(gumball_spec::prompt_seed(7, 41, 0), 2531525297277587429);
/// ```
#[must_use]
pub fn prompt_seed(run: u64, prompt: u64, turn: u32) -> u64 {
    seed(run, [prompt as u32, (prompt >> 32) as u32, Tag::PromptSeed as u32, turn])
}

/// Returns the seed of one sample of a group whose seed is `seed`, for engines that make a request of each
/// sample, with draw index 0.
///
/// The text is another than that of `seed` with the draw index `sample`.
#[must_use]
pub fn sample_seed(seed: u64, sample: u32) -> u64 {
    self::seed(seed, [sample, 0, Tag::SampleSeed as u32, 0])
}

fn seed(key: u64, counter: [u32; 4]) -> u64 {
    let [low, high, ..] = philox4x32_10(key, counter);
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_seed_is_two_words_under_the_run() {
        let words = philox4x32_10(5, [0x89AB_CDEF, 0x0123_4567, 10, 3]);
        let group = prompt_seed(5, 0x0123_4567_89AB_CDEF, 3);
        assert_eq!([group as u32, (group >> 32) as u32], words[..2]);
        let words = philox4x32_10(group, [9, 0, 11, 0]);
        let sample = sample_seed(group, 9);
        assert_eq!([sample as u32, (sample >> 32) as u32], words[..2]);
    }

    #[test]
    fn runs_prompts_turns_and_samples_have_seeds_of_their_own() {
        let (mut seeds, mut count) = (HashSet::new(), 0);
        for run in [0, 1, 1 << 32, u64::MAX] {
            for prompt in [0, 1, 2, 1 << 32, u64::MAX] {
                for turn in [0, 1, u32::MAX] {
                    let group = prompt_seed(run, prompt, turn);
                    seeds.insert(group);
                    seeds.extend([0, 1, 7, u32::MAX].map(|sample| sample_seed(group, sample)));
                    count += 5;
                }
            }
        }
        assert_eq!(seeds.len(), count);
    }
}
