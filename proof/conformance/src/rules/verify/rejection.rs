//! Verify: chains of drafts, accepted or replaced by rejection (S4).

use gumball_spec::num::{Tag, philox4x32_10};
use gumball_spec::verify::{DraftChain, Verified};
use gumball_spec::{NONE, SamplingParams, Status};

use crate::case::Case;
use crate::rows::{self, Words};
use crate::rules::Check;
use crate::statistics::{FALSE_ALARM, chi_square};

rules!(rejection_rules:
    S4 drafts_of_the_targets_own_distribution_are_all_accepted,
    S4 a_draft_that_the_target_cannot_draw_is_replaced,
    S4 the_residual_is_what_the_target_has_more_of,
    S4 a_draft_that_was_not_drawn_ends_the_chain_with_a_plain_draw,
    S4 counts_tell_drafts_judged_alone_from_those_accepted,
    S4 acceptance_compares_one_uniform_with_two_probabilities,
    S4 where_nothing_is_left_the_target_itself_is_drawn_from,
    S4 a_chain_without_drafts_is_a_plain_draw,
    S4 odd_rows_say_so_and_yield_what_is_left,
    S4 emitted_tokens_follow_the_target_whatever_the_drafter,
    S4 any_chain_is_the_definitions,
);

fn chain<'a>(drafts: &'a [i32], draft_probs: &'a [f32], target_probs: &'a [f32]) -> DraftChain<'a> {
    let vocab = target_probs.len() / (drafts.len() + 1);
    DraftChain { drafts, draft_probs, target_probs, vocab, seed: 7, position: 3, draw: 0 }
}

/// The token that a row of probabilities yields plainly.
fn plainly(check: &Check<'_>, row: &[f32], position: u32) -> i32 {
    check.sees(&Case::of_probabilities(row, SamplingParams::default()).at(7, position)).token
}

fn drafts_of_the_targets_own_distribution_are_all_accepted(check: &Check<'_>) {
    let q = [0.5, 0.25, 0.25, 0.125, 0.5, 0.375];
    let p = [&q[..], &[0.25, 0.5, 0.25]].concat();
    for drafts in [[0, 1], [2, 2], [1, 0]] {
        let (tokens, verified) = check.verifies(&chain(&drafts, &q, &p));
        assert_eq!(tokens[..2], drafts);
        assert_eq!(
            tokens[2],
            plainly(check, &p[6..], 5),
            "the bonus row is drawn plainly, at its own position"
        );
        assert_eq!(verified, Verified { accepted: 2, accepted_alone: 2, status: Status::default() });
    }
}

fn a_draft_that_the_target_cannot_draw_is_replaced(check: &Check<'_>) {
    let (q, p) = ([0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.0, 0.5, 0.25, 0.25, 0.25, 0.25]);
    for seed in 0..50 {
        let (tokens, verified) = check.verifies(&DraftChain { seed, ..chain(&[0], &q, &p) });
        // The residual is all at id 3.
        assert_eq!((&tokens[..], verified.accepted), (&[3, NONE][..], 0));
    }
}

fn the_residual_is_what_the_target_has_more_of(check: &Check<'_>) {
    let (q, p) = ([0.75, 0.125, 0.125], [0.25, 0.5, 0.25, 1.0, 0.0, 0.0]);
    let (mut counts, chains) = ([0u64; 3], u64::from(check.backend.patience_one_by_one(6000)));
    for seed in 0..chains {
        let (tokens, verified) = check.verifies(&DraftChain { seed, ..chain(&[0], &q, &p) });
        if verified.accepted == 0 {
            counts[tokens[0] as usize] += 1;
        }
    }
    // 0.375 and 0.125 of it.
    let found = chi_square(&counts, &[0.0, 0.75, 0.25]);
    assert!(found.p_value > FALSE_ALARM, "{counts:?}: {found:?}");
    let rejected = counts.iter().sum::<u64>();
    let found = chi_square(&[rejected, chains - rejected], &[2.0 / 3.0, 1.0 / 3.0]);
    assert!(found.p_value > FALSE_ALARM, "{rejected} of {chains} rejected: {found:?}");
}

fn a_draft_that_was_not_drawn_ends_the_chain_with_a_plain_draw(check: &Check<'_>) {
    let (q, p) = ([0.5, 0.0, 0.5, 0.5, 0.5, 0.0], [0.2, 0.3, 0.5, 0.1, 0.1, 0.8, 1.0, 0.0, 0.0]);
    for draft in [NONE, 3, i32::MAX, i32::MIN, 1] {
        let (tokens, verified) = check.verifies(&chain(&[draft, 0], &q, &p));
        assert_eq!(tokens, [plainly(check, &p[..3], 3), NONE, NONE], "draft {draft}");
        assert_eq!(verified.accepted, 0);
    }
    for odd in [f32::NAN, -1.0] {
        let q = [q[0], odd, q[2], 0.5, 0.5, 0.0];
        let (tokens, verified) = check.verifies(&chain(&[1, 0], &q, &p));
        assert_eq!((tokens[0], verified.status), (plainly(check, &p[..3], 3), Status::default()));
    }
}

fn counts_tell_drafts_judged_alone_from_those_accepted(check: &Check<'_>) {
    // Certain acceptance except for the second, which the target cannot draw; the fourth was not drawn.
    let q = [0.5f32, 0.5].repeat(4);
    let p = [0.5, 0.5, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5];
    let (tokens, verified) = check.verifies(&chain(&[0, 0, 1, NONE], &q, &p));
    assert_eq!((verified.accepted_alone, verified.accepted), (2, 1));
    assert_eq!(tokens, [0, 1, NONE, NONE, NONE]);
}

fn acceptance_compares_one_uniform_with_two_probabilities(check: &Check<'_>) {
    let (q, p) = ([0.8, 0.2], [0.4, 0.6, 0.5, 0.5]);
    let mut accepted = 0;
    for position in 0..400 {
        let chain = DraftChain { position, draw: 5, ..chain(&[0], &q, &p) };
        let [word, ..] = philox4x32_10(7, [0, position, Tag::Accept as u32, 5]);
        let (_, verified) = check.verifies(&chain);
        assert_eq!(verified.accepted == 1, f64::from(word) < 2f64.powi(31), "word {word:x}");
        accepted += verified.accepted;
    }
    assert!((150..250).contains(&accepted), "{accepted}");
}

fn where_nothing_is_left_the_target_itself_is_drawn_from(check: &Check<'_>) {
    // Unnormalised: the drafter has more of everything.
    let (q, p) = ([1.0, 0.75, 0.5], [0.0, 0.5, 0.0, 1.0, 0.0, 0.0]);
    let (tokens, verified) = check.verifies(&chain(&[0], &q, &p));
    assert_eq!((&tokens[..], verified.accepted), (&[1, NONE][..], 0));
    let (tokens, verified) = check.verifies(&chain(&[0], &q, &[0.0; 6]));
    assert_eq!((&tokens[..], verified.status), (&[NONE, NONE][..], Status::EMPTY));
}

fn a_chain_without_drafts_is_a_plain_draw(check: &Check<'_>) {
    let p: Vec<f32> = rows::bell(700, 2.0, 3).iter().map(|z| z.exp2()).collect();
    let (tokens, verified) = check.verifies(&chain(&[], &[], &p));
    assert_eq!(tokens, [plainly(check, &p, 3)]);
    assert_eq!(verified, Verified::default());
}

fn odd_rows_say_so_and_yield_what_is_left(check: &Check<'_>) {
    let (q, p) = ([1.0, f32::NAN, 0.0], [0.0, 0.5, f32::INFINITY, 1.0, 0.0, 0.0]);
    let (tokens, verified) = check.verifies(&chain(&[0], &q, &p));
    assert!(tokens[0] == 1 || tokens[0] == 2);
    assert_eq!(verified.status, Status(Status::NAN.0 | Status::INF.0));
    // Rows that are not drawn from are not spoken of.
    let (_, verified) = check.verifies(&chain(&[0], &[1.0, f32::NAN], &[1.0, f32::NAN, 0.5, 0.5]));
    assert_eq!((verified.accepted, verified.status), (1, Status::default()));
}

/// Drafts are drawn from the drafter's row as an engine draws them, by a race of the same seed and position.
fn emitted_tokens_follow_the_target_whatever_the_drafter(check: &Check<'_>) {
    let p = [0.05, 0.3, 0.0, 0.25, 0.2, 0.2];
    let flat = [1.0 / 6.0; 6];
    let drafters = [p, flat, [0.6, 0.02, 0.1, 0.08, 0.2, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]];
    for q in drafters {
        let target = [p, flat].concat();
        let mut counts = [0u64; 6];
        for position in 0..check.backend.patience(20_000) {
            let drawn = Case::of_probabilities(&q, SamplingParams::default()).at(7, position);
            let draft = crate::backend::Backend::sample(&crate::Oracle, &drawn).expect("valid").token;
            let chain = DraftChain { position, ..chain(&[0], &q, &target) };
            let drafts = [draft];
            let chain = DraftChain { drafts: &drafts, ..chain };
            let (tokens, _) = check.verified(&chain);
            counts[tokens[0] as usize] += 1;
        }
        let found = chi_square(&counts, &p.map(f64::from));
        assert!(found.p_value > FALSE_ALARM, "{q:?} gives {counts:?}: {found:?}");
    }
}

fn any_chain_is_the_definitions(check: &Check<'_>) {
    for seed in 0..300u64 {
        let mut words = Words(seed);
        let (n, vocab) = (words.below(4), [1, 3, 40, 255, 257, 600][words.below(6)]);
        let odd = [0.0, -0.0, f32::NAN, -1.0, f32::INFINITY, 1e-45, 1e30];
        let spread = [0.3, 3.0][words.below(2)];
        let mut row = |near: u64| -> Vec<f32> {
            let mut row: Vec<f32> = rows::bell(vocab, spread, near).iter().map(|z| z.exp2()).collect();
            for _ in 0..words.below(4) {
                row[words.below(vocab)] = odd[words.below(7)];
            }
            row
        };
        let q: Vec<f32> = (0..n as u64).flat_map(|j| row(seed + j)).collect();
        let p: Vec<f32> = (0..=n as u64).flat_map(|j| row(seed + j + (seed + j) % 2)).collect();
        let drafts: Vec<i32> = (0..n).map(|_| words.below(vocab + 1) as i32).collect();
        let draw = words.below(3) as u32;
        check.verifies(&DraftChain {
            drafts: &drafts,
            draft_probs: &q,
            target_probs: &p,
            vocab,
            seed: words.word(),
            position: words.word() as u32,
            draw,
        });
    }
}
