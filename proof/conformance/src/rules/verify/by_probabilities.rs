//! Trees by rejection (S5), blocks (S6) and thresholds (S7): the accepted drafts, and which law the emitted
//! tokens have.

use gumball_spec::num::{Tag, philox4x32_10};
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::verify::draft::DraftWords;
use gumball_spec::verify::{DraftChain, DraftTree};
use gumball_spec::{NONE, SamplingParams, Status};

use crate::backend::{Backend, Oracle};
use crate::case::Case;
use crate::rows::{self, Words};
use crate::rules::Check;
use crate::statistics::{ChiSquare, FALSE_ALARM, chi_square};

rules!(by_probabilities_rules:
    S5 a_chain_is_judged_as_by_s4,
    S5 siblings_of_the_targets_distribution_are_accepted_at_once,
    S5 a_refusal_leaves_the_residual_to_the_next_sibling,
    S5 without_q_a_refused_draft_is_taken_out_of_the_row,
    S5 siblings_that_cannot_have_been_drawn_are_passed_over,
    S5 a_tree_without_drafts_is_a_plain_draw,
    S5 tokens_follow_the_target_whatever_the_tree,
    S6 one_draft_is_accepted_by_one_comparison,
    S6 blocks_follow_the_target,
    S6 drafts_from_the_races_of_their_positions_bias_blocks,
    S6 blocks_emit_no_less_than_chains,
    S6 a_draft_that_was_not_drawn_ends_the_block_before_it,
    S6 a_tree_that_is_no_chain_is_refused,
    S7 thresholds_of_one_follow_the_target,
    S7 thresholds_have_the_stated_bias,
    S7 a_draft_of_probability_0_is_never_accepted,
    S7 thresholds_outside_their_range_are_refused,
    S5 any_tree_is_judged_as_defined,
    S6 any_block_is_judged_as_defined,
    S7 any_thresholds_judge_as_defined,
    S5 rows_that_do_not_fit_the_tree_are_refused,
);

const THRESHOLDS_OF_ONE: Judgement = Judgement::Threshold { single: 1.0, acc: 1.0 };

/// Four ids with a distribution that depends on the last token.
const V: usize = 4;

fn trial<'a>(tree: DraftTree<'a>, draft_probs: Option<&'a [f32]>, target_probs: &'a [f32]) -> Trial<'a> {
    let vocab = target_probs.len() / tree.rows();
    Trial { tree, draft_probs, target_probs, vocab, seed: 7, position: 3, draw: 0 }
}

/// The token that a row of probabilities yields plainly.
fn plainly(row: &[f32], seed: u64, position: u32) -> i32 {
    let case = Case::of_probabilities(row, SamplingParams::default()).at(seed, position);
    Oracle.sample(&case).expect("valid").token
}

/// The target's row after a token; none at the start.
fn target(last: Option<i32>) -> [f32; V] {
    match last {
        None => [0.1, 0.45, 0.25, 0.2],
        Some(0) => [0.25, 0.25, 0.25, 0.25],
        Some(1) => [0.7, 0.05, 0.25, 0.0],
        Some(2) => [0.05, 0.15, 0.2, 0.6],
        Some(_) => [0.4, 0.3, 0.2, 0.1],
    }
}

/// A drafter's row, of four drafters: the target itself, a flat one, one of its own, one that has no 1.
fn drafter(kind: usize, last: Option<i32>) -> [f32; V] {
    match (kind, last) {
        (0, _) => target(last),
        (1, _) => [0.25; V],
        (2, Some(2)) => [0.6, 0.2, 0.1, 0.1],
        (2, _) => [0.5, 0.1, 0.3, 0.1],
        _ => [0.3, 0.0, 0.4, 0.3],
    }
}

/// How drafts are made for a test of a law.
#[derive(Clone, Copy)]
struct Setup {
    judgement: Judgement,
    drafter: usize,
    /// The children of every node, level by level.
    widths: &'static [usize],
    has_q: bool,
    /// Whether drafts are the first tokens of the race of their position. If not, they have the words of
    /// blocks (S8).
    races: bool,
}

impl Setup {
    /// Returns the tokens that one call emits after a token.
    fn emit(&self, check: &Check<'_>, seed: u64, position: u32, last: Option<i32>) -> Vec<i32> {
        let (mut drafts, mut parents) = (Vec::new(), Vec::new());
        let mut behind = vec![last];
        let mut level: Vec<i32> = vec![-1];
        for (depth, width) in self.widths.iter().enumerate() {
            let mut below = Vec::new();
            for parent in level {
                let q = drafter(self.drafter, behind[(parent + 1) as usize]);
                let depth = depth as u32;
                let words = if self.races { DraftWords::Position } else { DraftWords::Block { depth } };
                let case = Case::of_probabilities(&q, SamplingParams::default()).at(seed, position + depth);
                let tokens = Oracle.draft(&case, words, *width).expect("valid");
                for token in tokens.into_iter().filter(|token| *token != NONE) {
                    below.push(drafts.len() as i32);
                    drafts.push(token);
                    parents.push(parent);
                    behind.push(Some(token));
                }
            }
            level = below;
        }
        let p: Vec<f32> = behind.iter().flat_map(|last| target(*last)).collect();
        let q: Vec<f32> = behind.iter().flat_map(|last| drafter(self.drafter, *last)).collect();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        let trial = Trial { seed, position, ..trial(tree, self.has_q.then_some(&q[..]), &p) };
        check.backend.judge(&trial, self.judgement).expect("valid").tokens
    }

    /// Counts the first three tokens of streams, each of as many calls as it takes.
    fn counts(&self, check: &Check<'_>, streams: u32) -> Vec<u64> {
        let mut counts = vec![0; V * V * V];
        for seed in 0..u64::from(check.backend.patience_one_by_one(streams)) {
            let mut stream: Vec<i32> = Vec::new();
            while stream.len() < 3 {
                let more = self.emit(check, seed, 5 + stream.len() as u32, stream.last().copied());
                stream.extend(more);
            }
            counts[stream[..3].iter().fold(0, |cell, token| cell * V + *token as usize)] += 1;
        }
        counts
    }

    /// Holds the streams to the target's law.
    fn follows_the_target(&self, check: &Check<'_>) {
        let found = self.against_the_target(check, 8_000);
        let Self { judgement, drafter, widths, .. } = self;
        let p_value = found.map_or(1.0, |found| found.p_value);
        assert!(p_value > FALSE_ALARM, "{judgement:?}, drafter {drafter}, {widths:?}: {found:?}");
    }

    /// Compares the streams of the oracle with the target's law. Other backends equal it, as random trees
    /// show.
    fn against_the_target(&self, check: &Check<'_>, streams: u32) -> Option<ChiSquare> {
        if check.backend.name() != Oracle.name() {
            return None;
        }
        let counts = self.counts(check, streams);
        let p = |last: Option<i32>, id: usize| f64::from(target(last)[id]);
        let law: Vec<f64> = (0..V * V * V)
            .map(|cell| [cell / (V * V), cell / V % V, cell % V])
            .map(|[a, b, c]| p(None, a) * p(Some(a as i32), b) * p(Some(b as i32), c))
            .collect();
        Some(chi_square(&counts, &law))
    }
}

fn a_chain_is_judged_as_by_s4(check: &Check<'_>) {
    for seed in 0..300u64 {
        let mut words = Words(seed);
        let (n, vocab) = (words.below(5), [1, 3, 40, 257, 600][words.below(5)]);
        let odd = [0.0, -0.0, f32::NAN, -1.0, f32::INFINITY, 1e-45, 1e30];
        let mut row = |near: u64| -> Vec<f32> {
            let weights: Vec<f32> = rows::bell(vocab, 1.0, near).iter().map(|z| z.exp2()).collect();
            let sum: f32 = weights.iter().sum();
            let mut row: Vec<f32> = weights.iter().map(|w| w / sum).collect();
            for _ in 0..words.below(3) {
                row[words.below(vocab)] = odd[words.below(7)];
            }
            row
        };
        let mut q: Vec<f32> = (0..=n as u64).flat_map(|j| row(seed + j)).collect();
        let p: Vec<f32> = (0..=n as u64).flat_map(|j| row(seed + j + (seed + j) % 2)).collect();
        let drafts: Vec<i32> =
            (0..n).map(|_| words.below(vocab + 1) as i32 - words.below(2) as i32).collect();
        let has_q = words.below(3) > 0;
        if !has_q {
            q.fill(0.0);
            let tokens = drafts.iter().enumerate().filter(|(_, draft)| (0..vocab as i32).contains(*draft));
            tokens.for_each(|(row, draft)| q[row * vocab + *draft as usize] = 1.0);
        }
        let (draw, position) = (words.below(3) as u32, words.word() as u32);
        let (wanted, verified) = DraftChain {
            drafts: &drafts,
            draft_probs: &q[..n * vocab],
            target_probs: &p,
            vocab,
            seed,
            position,
            draw,
        }
        .verify()
        .expect("valid");
        let parents: Vec<i32> = (-1..n as i32 - 1).collect();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        let q = has_q.then_some(&q[..]);
        let trial = Trial { tree, draft_probs: q, target_probs: &p, vocab, seed, position, draw };
        let seen = check.judges(&trial, Judgement::Rejection).expect("valid");
        assert_eq!(seen.tokens, wanted[..seen.tokens.len()], "seed {seed}");
        assert_eq!(seen.rows.len(), verified.accepted as usize + 1, "seed {seed}");
        if has_q {
            assert_eq!(seen.status, verified.status, "seed {seed}");
        }
    }
}

fn siblings_of_the_targets_distribution_are_accepted_at_once(check: &Check<'_>) {
    let p = target(None);
    for first in 0..V as i32 {
        let drafts = [first, (first + 1) % V as i32];
        let tree = DraftTree { drafts: &drafts, parents: Some(&[-1, -1]) };
        let rows = [p, target(Some(0)), target(Some(1))].concat();
        let seen = check.judges(&trial(tree, Some(&rows), &rows), Judgement::Rejection).expect("valid");
        assert_eq!((seen.rows, seen.tokens[0]), (vec![0, 1], first));
        assert_eq!(
            seen.tokens[1],
            plainly(&target(Some(0)), 7, 4),
            "a row without children is drawn from plainly"
        );
    }
}

fn a_refusal_leaves_the_residual_to_the_next_sibling(check: &Check<'_>) {
    // Draft 0 is never accepted. Then p is 0, 0, 0.5, 0.5 and q 0, 0.5, 0.5, 0: draft 2 always is.
    let (p, q) = ([0.0, 0.25, 0.5, 0.25], [0.5, 0.25, 0.25, 0.0]);
    let tree = DraftTree { drafts: &[0, 2, 1], parents: Some(&[-1; 3]) };
    let (p, q) = (p.repeat(4), q.repeat(4));
    for seed in 0..50 {
        let seen = check.judges(&Trial { seed, ..trial(tree, Some(&q), &p) }, Judgement::Rejection);
        assert_eq!(seen.expect("valid").rows, [0, 2], "seed {seed}");
    }
    // Draft 1 is refused as well, and the last token is 2 or 3, which the residual has one half of each.
    let tree = DraftTree { drafts: &[0, 1], parents: Some(&[-1; 2]) };
    let (mut counts, trials) = ([0; 4], u64::from(check.backend.patience_one_by_one(4000)));
    for seed in 0..trials {
        let trial = Trial { seed, ..trial(tree, Some(&q[..12]), &p[..12]) };
        let Emitted { rows, tokens, .. } = check.judges(&trial, Judgement::Rejection).expect("valid");
        assert_eq!(rows, [0]);
        counts[tokens[0] as usize] += 1;
    }
    // Then q is 0, 0.5, 0.5, 0 and p 0, 0, 0, 0.5.
    assert_eq!(counts, [0, 0, 0, trials]);
}

fn without_q_a_refused_draft_is_taken_out_of_the_row(check: &Check<'_>) {
    let p = [0.5, 0.25, 0.125, 0.125].repeat(3);
    let tree = DraftTree { drafts: &[0, 1], parents: Some(&[-1; 2]) };
    let (mut counts, mut both) = ([0; 4], 0);
    for seed in 0..u64::from(check.backend.patience_one_by_one(8000)) {
        let trial = Trial { seed, ..trial(tree, None, &p) };
        let Emitted { rows, tokens, .. } = check.judges(&trial, Judgement::Rejection).expect("valid");
        let word = |k| philox4x32_10(seed, [k, 3, Tag::Accept as u32, 0])[0];
        // Half of the time, and of the other half half of the time again.
        let (first, second) = (word(0) < 1 << 31, word(1) < 1 << 31);
        let wanted: &[usize] = if first {
            &[0, 1]
        } else if second {
            &[0, 2]
        } else {
            &[0]
        };
        assert_eq!(rows, wanted, "seed {seed}");
        counts[tokens[0] as usize] += 1;
        both += u64::from(!first && !second && tokens[0] < 2);
    }
    assert_eq!(both, 0, "a refused draft is not drawn");
    let found = chi_square(&counts, &[0.5, 0.25, 0.125, 0.125]);
    assert!(found.p_value > FALSE_ALARM, "{counts:?}: {found:?}");
    // A draft that stands there twice is refused twice.
    let twice = DraftTree { drafts: &[3, 3], parents: Some(&[-1; 2]) };
    for seed in 0..200 {
        let trial = Trial { seed, ..trial(twice, None, &p) };
        let seen = check.judges(&trial, Judgement::Rejection).expect("valid");
        assert_ne!(seen.rows, [0, 2]);
    }
}

fn siblings_that_cannot_have_been_drawn_are_passed_over(check: &Check<'_>) {
    let (p, q) = (target(None).repeat(4), drafter(3, None).repeat(4));
    for draft in [NONE, V as i32, i32::MIN, i32::MAX, 1] {
        // 1 has q = 0; alone, it leaves the row to a plain draw.
        let alone = DraftTree { drafts: &[draft], parents: None };
        let seen = check.judges(&trial(alone, Some(&q[..8]), &p[..8]), Judgement::Rejection).expect("valid");
        assert_eq!((seen.rows, seen.tokens), (vec![0], vec![plainly(&p[..4], 7, 3)]), "draft {draft}");
        // Before others it counts as a sibling, but nothing is taken away for it.
        let drafts = [draft, 3, 3];
        let tree = DraftTree { drafts: &drafts, parents: Some(&[-1; 3]) };
        for seed in 0..100 {
            let trial = Trial { seed, ..trial(tree, Some(&q), &p) };
            let seen = check.judges(&trial, Judgement::Rejection).expect("valid");
            let word = philox4x32_10(seed, [1, 3, Tag::Accept as u32, 0])[0];
            assert_eq!(seen.rows.len() == 2, f64::from(word) / 2f64.powi(32) * 0.3 < 0.2, "seed {seed}");
            assert_ne!(seen.rows, [0, 3], "q has nothing of it left");
        }
    }
}

fn a_tree_without_drafts_is_a_plain_draw(check: &Check<'_>) {
    let p: Vec<f32> = rows::bell(700, 2.0, 3).iter().map(|z| z.exp2()).collect();
    for judgement in [Judgement::Rejection, Judgement::Block, THRESHOLDS_OF_ONE] {
        let seen = check.judges(&trial(DraftTree::default(), None, &p), judgement).expect("valid");
        let (rows, tokens) = (vec![0], vec![plainly(&p, 7, 3)]);
        let wanted = Emitted { rows, tokens, status: Status::default(), accepted_alone: None };
        assert_eq!(seen, wanted);
        let empty = check.judges(&trial(DraftTree::default(), None, &[0.0; 5]), judgement).expect("valid");
        assert_eq!((empty.tokens, empty.status), (vec![NONE], Status::EMPTY));
    }
}

fn tokens_follow_the_target_whatever_the_tree(check: &Check<'_>) {
    for (kind, widths) in [(0, &[2, 2][..]), (1, &[3, 1]), (2, &[2, 2]), (3, &[3, 2]), (2, &[1, 3, 1])] {
        for has_q in [true, false] {
            let judgement = Judgement::Rejection;
            Setup { judgement, drafter: kind, widths, has_q, races: true }.follows_the_target(check);
        }
    }
}

fn one_draft_is_accepted_by_one_comparison(check: &Check<'_>) {
    let (p, q) = ([0.4, 0.6, 0.5, 0.5], [0.8, 0.2, 0.0, 0.0]);
    for position in 0..200 {
        let trial = Trial { position, ..trial(DraftTree::chain(&[0]), Some(&q), &p) };
        let seen = check.judges(&trial, Judgement::Block).expect("valid");
        let [word, ..] = philox4x32_10(7, [0, position, Tag::Block as u32, 0]);
        assert_eq!(seen.rows.len() == 2, word < 1 << 31, "word {word:x}");
        // The residual is all at 1.
        assert!(seen.rows.len() == 2 || seen.tokens == [1]);
    }
}

fn blocks_follow_the_target(check: &Check<'_>) {
    for (kind, widths) in [(0, &[1, 1][..]), (1, &[1, 1, 1]), (2, &[1, 1]), (2, &[1, 1, 1]), (3, &[1, 1, 1])]
    {
        for has_q in [true, false] {
            let judgement = Judgement::Block;
            Setup { judgement, drafter: kind, widths, has_q, races: false }.follows_the_target(check);
        }
    }
}

/// Why drafts of a block need words of their own.
fn drafts_from_the_races_of_their_positions_bias_blocks(check: &Check<'_>) {
    let judgement = Judgement::Block;
    let setup = Setup { judgement, drafter: 2, widths: &[1, 1, 1], has_q: true, races: true };
    if let Some(found) = setup.against_the_target(check, 20_000) {
        assert!(found.p_value < FALSE_ALARM, "{found:?}");
    }
}

fn blocks_emit_no_less_than_chains(check: &Check<'_>) {
    let calls = u64::from(check.backend.patience_one_by_one(3000).max(1000));
    let emitted = |judgement| {
        let setup = Setup { judgement, drafter: 2, widths: &[1, 1, 1], has_q: true, races: false };
        (0..calls).map(|seed| setup.emit(check, seed, 5, None).len()).sum::<usize>()
    };
    let (blocks, chains) = (emitted(Judgement::Block), emitted(Judgement::Rejection));
    assert!(blocks > chains, "{blocks} and {chains} tokens of {calls} calls");
}

fn a_draft_that_was_not_drawn_ends_the_block_before_it(check: &Check<'_>) {
    let p = [0.25, 0.25, 0.25, 0.25].repeat(4);
    for draft in [NONE, V as i32, i32::MAX] {
        let drafts = [0, draft, 1];
        let seen =
            check.judges(&trial(DraftTree::chain(&drafts), Some(&p), &p), Judgement::Block).expect("valid");
        assert_eq!((seen.rows, seen.tokens), (vec![0, 1], vec![0, plainly(&p[..4], 7, 4)]), "draft {draft}");
    }
    // A draft that the target cannot draw ends it too, but then a residual is drawn from.
    let mut without = p.clone();
    without[4] = 0.0;
    let seen = check.judges(&trial(DraftTree::chain(&[1, 0, 1]), Some(&p), &without), Judgement::Block);
    let seen = seen.expect("valid");
    assert!(seen.rows.len() < 3 && seen.tokens[seen.tokens.len() - 1] >= 0);
}

fn a_tree_that_is_no_chain_is_refused(check: &Check<'_>) {
    let p = [0.25; 12];
    let tree = DraftTree { drafts: &[0, 1], parents: Some(&[-1, -1]) };
    let error = check.judges(&trial(tree, Some(&p), &p), Judgement::Block).expect_err("no chain");
    assert_eq!(error.to_string(), "parents is -1 for node 1, but must be 0 in a chain");
}

fn thresholds_of_one_follow_the_target(check: &Check<'_>) {
    for (kind, widths) in [(0, &[2, 2][..]), (1, &[3, 1]), (3, &[1, 1])] {
        let judgement = THRESHOLDS_OF_ONE;
        Setup { judgement, drafter: kind, widths, has_q: false, races: true }.follows_the_target(check);
    }
}

fn thresholds_have_the_stated_bias(check: &Check<'_>) {
    let p = [0.1, 0.45, 0.25, 0.2];
    let tree = DraftTree { drafts: &[2, 0], parents: Some(&[-1; 2]) };
    let rows = p.repeat(3);
    // F is 0.25 / 0.5 and 0.35 / 0.5; then 1 from the first draft on; then 0.25 / 0.4 and 1 from a coin
    // alone.
    for (single, acc, law) in [
        (1.0, 0.5, [0.2, 0.3 * 0.45 / 0.65, 0.5, 0.3 * 0.2 / 0.65]),
        (0.25, 1.0, [0.0, 0.0, 1.0, 0.0]),
        (0.1, 0.5, [0.0, 0.0, 1.0, 0.0]),
        (1.0, 0.3, [1.0 / 6.0, 0.0, 5.0 / 6.0, 0.0]),
        (0.3, 1.0, [0.1, 0.45, 0.25, 0.2]),
    ] {
        let mut counts = [0; 4];
        for seed in 0..u64::from(check.backend.patience_one_by_one(8000)) {
            let trial = Trial { seed, ..trial(tree, None, &rows) };
            let seen = check.judges(&trial, Judgement::Threshold { single, acc }).expect("valid");
            counts[seen.tokens[0] as usize] += 1;
        }
        let found = chi_square(&counts, &law);
        assert!(found.p_value > FALSE_ALARM, "{single}, {acc} gives {counts:?}: {found:?}");
    }
}

fn a_draft_of_probability_0_is_never_accepted(check: &Check<'_>) {
    let p = [0.0, 0.5, 0.5, f32::NAN].repeat(3);
    let tree = DraftTree { drafts: &[0, 3], parents: Some(&[-1; 2]) };
    for seed in 0..100 {
        let trial = Trial { seed, ..trial(tree, None, &p) };
        let seen = check.judges(&trial, Judgement::Threshold { single: 0.0, acc: 0.0 }).expect("valid");
        assert_eq!((seen.rows, seen.status), (vec![0], Status::NAN));
    }
}

fn thresholds_outside_their_range_are_refused(check: &Check<'_>) {
    let p = [0.25; 4];
    for (single, acc, message) in [
        (1.5, 1.0, "threshold_single is 1.5, but must be in 0..=1"),
        (1.0, -0.5, "threshold_acc is -0.5, but must be in 0..=1"),
        (f32::NAN, 1.0, "threshold_single is NaN, but must be in 0..=1"),
    ] {
        let judged =
            check.backend.judge(&trial(DraftTree::default(), None, &p), Judgement::Threshold { single, acc });
        assert_eq!(judged.expect_err("out of range").to_string(), message);
    }
}

fn rows_that_do_not_fit_the_tree_are_refused(check: &Check<'_>) {
    let p = [0.25; 12];
    let refused = |drafts: &[i32], parents: &[i32], q: Option<&[f32]>, vocab| {
        let tree = DraftTree { drafts, parents: Some(parents) };
        let trial = Trial { tree, draft_probs: q, target_probs: &p, vocab, seed: 7, position: 3, draw: 0 };
        check.judges(&trial, Judgement::Rejection).expect_err("refused").to_string()
    };
    assert_eq!(
        refused(&[0, 1], &[1, -1], None, 4),
        "parents is 1 for node 0, but must be in -1..0, a node before it"
    );
    assert_eq!(
        refused(&[0; 65], &[-1; 65], None, 4),
        "drafts has length 65, but must have at most 64 drafts for a request"
    );
    assert_eq!(
        refused(&[0], &[-1], None, 4),
        "target_probs has length 12, but must have 8 for 2 rows of 4 ids"
    );
    assert_eq!(
        refused(&[0, 1], &[-1, 0], Some(&p[1..]), 4),
        "draft_probs has length 11, but must have 12 for 3 rows of 4 ids, or 4 less without the last row"
    );
    assert_eq!(refused(&[0, 1], &[-1, 0], None, 0), "vocab is 0, but must be in 1..=2^20");
}

/// Holds random trees to the oracle, of rows with odd numbers and with many zeros.
fn random_trials(check: &Check<'_>, judgement: impl Fn(&mut Words) -> Judgement) {
    let mut accepted = 0;
    for seed in 0..300u64 {
        let mut words = Words(seed);
        let (n, vocab) = (words.below(7), [1, 3, 40, 255, 257, 600][words.below(6)]);
        let judgement = judgement(&mut words);
        let parents: Vec<i32> = (0..n).map(|node| words.below(node + 1) as i32 - 1).collect();
        let chain: Vec<i32> = (-1..n as i32 - 1).collect();
        let parents = if judgement == Judgement::Block { chain } else { parents };
        let odd = [0.0, -0.0, f32::NAN, -1.0, f32::INFINITY, 1e-45, 1e30];
        let (spread, zeros) = ([0.3, 3.0][words.below(2)], words.below(3));
        let mut row = |near: u64| -> Vec<f32> {
            let weights: Vec<f32> = rows::bell(vocab, spread, near).iter().map(|z| z.exp2()).collect();
            let sum: f32 = weights.iter().sum();
            let mut row: Vec<f32> = weights.iter().map(|w| w / sum).collect();
            (0..vocab).filter(|id| zeros == 2 && id % 5 > 0).for_each(|id| row[id] = 0.0);
            if zeros == 1 {
                row[words.below(vocab)] = odd[words.below(7)];
            }
            row
        };
        let q: Vec<f32> = (0..=n as u64).flat_map(|j| row(seed + j)).collect();
        let p: Vec<f32> = (0..=n as u64).flat_map(|j| row(seed + j + (seed + j) % 2)).collect();
        // Small rows have drafts that repeat, larger ones likely drafts.
        let likely = |row: usize, words: &mut Words| {
            plainly(&p[row * vocab..][..vocab], words.word(), 0).max(words.below(2) as i32 - 1)
        };
        let drafts: Vec<i32> =
            parents.iter().map(|parent| likely((parent + 1) as usize, &mut words)).collect();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        let draft_probs = (words.below(3) > 0).then_some(&q[..]);
        let (seed, position, draw) = (words.word(), words.word() as u32, words.below(3) as u32);
        let trial = Trial { tree, draft_probs, target_probs: &p, vocab, seed, position, draw };
        accepted += check.judges(&trial, judgement).expect("valid").rows.len() - 1;
    }
    assert!((100..1000).contains(&accepted), "{accepted} drafts accepted");
}

fn any_tree_is_judged_as_defined(check: &Check<'_>) {
    random_trials(check, |_| Judgement::Rejection);
}

fn any_block_is_judged_as_defined(check: &Check<'_>) {
    random_trials(check, |_| Judgement::Block);
}

fn any_thresholds_judge_as_defined(check: &Check<'_>) {
    let thresholds = [0.0, 0.01, 0.2, 0.7, 1.0];
    random_trials(check, |words| Judgement::Threshold {
        single: thresholds[words.below(5)],
        acc: thresholds[words.below(5)],
    });
}
