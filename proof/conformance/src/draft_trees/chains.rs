//! Random chains, laid out at random.

use std::sync::Arc;

use gumball_cuda::{IntType, Runtime};
use gumball_spec::Error;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Judgement, Trial};

use super::{Gaps, Judger, Layout};
use crate::rows::{self, Words};

/// Widths around the borders of tiles and of units that are loaded at once, and some of several blocks.
const VOCABS: [usize; 12] = [1, 2, 3, 9, 255, 256, 257, 600, 2048, 2049, 5000, 20_000];

/// How many drafts a long chain has at least.
const LONG: usize = 30;

/// Returns a row of the drafter's and one of the target's.
fn pair(words: &mut Words, vocab: usize) -> [Vec<f32>; 2] {
    let [seed, other] = [words.word(), words.word()];
    let spread = [0.01, 1.0, 4.0, 30.0][words.below(4)];
    let bell =
        |seed| -> Vec<f32> { rows::bell(vocab, spread, seed).iter().map(|z| (z - 8.0).exp2()).collect() };
    let mut p = bell(seed);
    let mut q = match words.below(6) {
        // All of the residual is 0, or all but few.
        0 => p.clone(),
        1 => p.iter().map(|p| p * 1.5).collect(),
        2 => {
            let mut q: Vec<f32> = p.iter().map(|p| p * 1.25).collect();
            (0..words.below(3)).for_each(|_| q[words.below(vocab)] = 0.0);
            q
        }
        3 => vec![1.0; vocab],
        _ => bell(other),
    };
    match words.below(12) {
        0 => p.fill(0.0),
        1 => p.iter_mut().for_each(|p| *p *= f32::from_bits(1 << 23)),
        2 => [&mut p, &mut q].into_iter().for_each(|row| row.iter_mut().for_each(|p| *p *= 1e30)),
        3 => {
            // Few values, so that there are ties.
            [&mut p, &mut q]
                .into_iter()
                .for_each(|row| row.iter_mut().for_each(|p| *p = (*p * 64.0).round()));
        }
        _ => {}
    }
    let odd = [0.0, -0.0, f32::NAN, -1.0, f32::INFINITY, f32::NEG_INFINITY, 1e-45, f32::MAX];
    for row in [&mut p, &mut q] {
        if words.below(3) == 0 {
            (0..=words.below(4)).for_each(|_| row[words.below(vocab)] = odd[words.below(odd.len())]);
        }
    }
    [q, p]
}

/// A chain with the memory that it points to.
#[derive(Debug)]
struct Own {
    drafts: Vec<i32>,
    draft_probs: Vec<f32>,
    target_probs: Vec<f32>,
    /// Its seed, position and draw index.
    numbers: [u64; 3],
}

/// Chains of one length and vocabulary, and how they are handed in.
#[derive(Debug)]
struct Made {
    vocab: usize,
    layout: Layout,
    chains: Vec<Own>,
    /// How many are launched at a time, if not all.
    at_a_time: Option<usize>,
}

impl Made {
    fn new(seed: u64) -> Self {
        let mut words = Words(seed);
        let vocab = VOCABS[words.below(VOCABS.len())];
        Self::of(&mut words, vocab)
    }

    /// Makes chains over a vocabulary, everything else at random.
    fn of(words: &mut Words, vocab: usize) -> Self {
        let long = vocab < 600 && words.below(8) == 0;
        let n = if long { LONG + words.below(60) } else { words.below(5) };
        let count = 1 + words.below(if vocab > 2000 { 3 } else { 9 });
        let mut gaps = || Gaps {
            start: [0, 0, 1, 3][words.below(4)],
            row: [0, 0, 1, 3][words.below(4)] + (vocab.next_multiple_of(4) - vocab) * words.below(2),
            tree: [0, 0, 2, 5][words.below(4)],
        };
        let (draft, target) = (gaps(), gaps());
        let mut int = || [IntType::I32, IntType::I64][words.below(2)];
        let (drafts, tokens) = (int(), int());
        let mut number = |least: Option<IntType>| [None, least, Some(IntType::I64)][words.below(3)];
        let numbers = [number(None), number(Some(IntType::I32)), number(Some(IntType::I32))];
        let layout = Layout {
            draft,
            target,
            drafts,
            tokens,
            numbers,
            alone: words.below(4) == 0,
            own_draws: words.below(3) == 0,
            adds: words.below(2) == 0,
        };
        let at_a_time = (words.below(3) == 0).then(|| 1 + words.below(3));
        let undrawn = if long { 200 } else { 10 };
        let mut chains: Vec<Own> = (0..count).map(|_| Own::new(words, n, vocab, undrawn)).collect();
        for which in 0..3 {
            let all_have = |chain: &mut Own, number| chain.numbers[which] = number;
            if which == 2 && layout.own_draws {
                chains.iter_mut().zip(0..).for_each(|(chain, number)| all_have(chain, number));
            } else if layout.numbers[which].is_none() {
                let of_all = chains[0].numbers[which];
                chains.iter_mut().for_each(|chain| all_have(chain, of_all));
            }
        }
        Self { vocab, layout, chains, at_a_time }
    }

    fn trials(&self) -> Vec<Trial<'_>> {
        self.chains.iter().map(|own| own.trial(self.vocab)).collect()
    }
}

impl Own {
    fn trial(&self, vocab: usize) -> Trial<'_> {
        Trial {
            tree: DraftTree { drafts: &self.drafts, parents: None },
            draft_probs: Some(&self.draft_probs),
            target_probs: &self.target_probs,
            vocab,
            seed: self.numbers[0],
            position: self.numbers[1] as u32,
            draw: self.numbers[2] as u32,
        }
    }

    /// Makes a chain of n drafts, of which one in `undrawn` is none.
    fn new(words: &mut Words, n: usize, vocab: usize, undrawn: usize) -> Self {
        let [mut draft_probs, mut target_probs] = [const { Vec::new() }; 2];
        for _ in 0..n {
            let [q, p] = if n >= LONG && words.below(60) > 0 {
                // Accepted in any case: long chains go on, mostly.
                let row: Vec<f32> = rows::bell(vocab, 1.0, words.word()).iter().map(|z| z.exp2()).collect();
                [row.clone(), row]
            } else {
                pair(words, vocab)
            };
            draft_probs.extend(q);
            target_probs.extend(p);
        }
        target_probs.extend_from_slice(&pair(words, vocab)[1]);
        let odd = [-1, vocab as i32, i32::MAX, i32::MIN];
        let draft = |_| match words.below(undrawn) {
            0 => odd[words.below(odd.len())],
            _ => words.below(vocab) as i32,
        };
        let drafts = (0..n).map(draft).collect();
        Self { drafts, draft_probs, target_probs, numbers: [words.word(), words.word(), words.word()] }
    }
}

/// Holds random chains, laid out at random.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<(), String> {
    hold_made(runtime, seed, &Made::new(seed))
}

/// Verifies chains over a vocabulary, random except for that, as [`hold`] does.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold_vocab(runtime: &Arc<dyn Runtime>, seed: u64, vocab: usize) -> Result<(), String> {
    hold_made(runtime, seed, &Made::of(&mut Words(seed), vocab))
}

fn hold_made(runtime: &Arc<dyn Runtime>, seed: u64, made: &Made) -> Result<(), String> {
    let (layout, trials) = (&made.layout, made.trials());
    let text = |error: Error| format!("seed {seed}: {error}\n{layout:?}");
    let mut judger = Judger::new(runtime).map_err(text)?;
    judger.judge = judger.judge.few_at_a_time(made.at_a_time.unwrap_or(usize::MAX));
    // Twice: the memory after a launch meets the next.
    judger.run(&trials, Judgement::Rejection, layout).map_err(text)?;
    let seen = judger.run(&trials, Judgement::Rejection, layout).map_err(text)?;
    for (i, (trial, seen)) in trials.iter().zip(&seen).enumerate() {
        let wanted = trial.judge(Judgement::Rejection).map_err(text)?;
        if *seen != wanted {
            let n = trial.tree.drafts.len();
            let what = format!("seed {seed}, chain {i} of {}, {n} drafts", trials.len());
            return Err(format!("{what} of {} ids: {seen:?} instead of {wanted:?}\n{layout:?}", made.vocab));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gumball_spec::Status;
    use gumball_spec::verify::{DraftChain, counted};

    use super::*;

    /// How a chain ends.
    fn ending(chain: &DraftChain<'_>) -> &'static str {
        let (judged, n) = (chain.judge(), chain.drafts.len());
        let row = judged.accepted as usize;
        let less = |p: &f32, q: &f32| counted(*p) <= counted(*q);
        match () {
            () if row == n => "all accepted",
            () if !judged.rejected => "not drawn",
            () if chain.target(row).iter().zip(chain.draft(row)).all(|(p, q)| less(p, q)) => "nothing left",
            () => "rejected",
        }
    }

    #[test]
    fn random_chains_end_in_every_way() {
        let mut endings = std::collections::BTreeMap::new();
        let (mut odd, mut empty, mut long) = (0, 0, 0);
        for made in (0..400).map(Made::new) {
            for trial in made.trials() {
                let chain = trial.chain(Judgement::Rejection).expect("a chain");
                *endings.entry(ending(&chain)).or_insert(0) += 1;
                let status = chain.verify().expect("valid").1.status;
                odd += usize::from(status.0 & (Status::NAN.0 | Status::INF.0) != 0);
                empty += usize::from(status.0 & Status::EMPTY.0 != 0);
                long += usize::from(chain.judge().accepted >= 32);
            }
        }
        println!("{endings:?}, odd {odd}, empty {empty}, long {long}");
        assert!(endings.len() == 4 && endings.values().all(|count| *count > 50), "{endings:?}");
        assert!(odd > 50 && empty > 20 && long > 0, "odd {odd}, empty {empty}, long {long}");
    }
}
