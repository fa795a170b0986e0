//! Drafts by the request's own race (S8): which tokens they are, by which words, and how often another row
//! draws the same.

use gumball_spec::verify::draft::DraftWords;
use gumball_spec::{Error, Kind, Mirostat, NONE, SamplingParams};

use crate::backend::{Backend, Oracle};
use crate::case::Case;
use crate::generate;
use crate::reference::arrival;
use crate::rows::{self, Words};
use crate::rules::Check;
use crate::statistics::{FALSE_ALARM, chi_square};

rules!(draft_rules:
    S8 the_first_draft_is_the_token_that_would_be_drawn,
    S8 further_drafts_are_the_runners_up,
    S8 at_temperature_0_drafts_are_the_first_of_the_order,
    S8 places_of_drafts_that_are_missing_hold_none,
    S8 drafts_of_blocks_have_words_that_no_other_step_uses,
    S8 siblings_are_drawn_without_replacement,
    S8 races_over_two_rows_agree_as_often_as_stated,
    S8 mirostat_is_refused,
    S8 any_drafts_are_the_definitions,
);

const POSITION: DraftWords = DraftWords::Position;

fn the_first_draft_is_the_token_that_would_be_drawn(check: &Check<'_>) {
    let params = SamplingParams { top_k: 40, top_p: 0.95, repetition_penalty: 1.2, ..Default::default() };
    for seed in 0..40 {
        let case = Case::of(&rows::model_like(1000, seed), params.clone()).after(&[1, 2], &[900, 4]);
        let case = case.at(seed, 4);
        let token = check.sees(&case).token;
        assert_eq!(check.drafts(&case, POSITION, 3).expect("valid")[0], token, "seed {seed}");
    }
}

fn further_drafts_are_the_runners_up(check: &Check<'_>) {
    let mut held = 0;
    for seed in 0..40 {
        let row = rows::model_like([40, 700][seed as usize % 2], seed);
        let mut scores: Vec<(f64, i32)> = (0..row.len() as u32)
            .map(|id| (f64::from(row[id as usize]) - arrival(seed, 9, 0, id).ln(), id as i32))
            .collect();
        scores.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        // Where f64 cannot tell two neighbours apart it says nothing.
        if scores[..9].windows(2).all(|pair| pair[0].0 - pair[1].0 > 1e-4) {
            let wanted: Vec<i32> = scores[..8].iter().map(|(_, id)| *id).collect();
            let case = Case::of(&row, SamplingParams::default()).at(seed, 9);
            assert_eq!(check.drafts(&case, POSITION, 8), Ok(wanted), "seed {seed}");
            held += 1;
        }
    }
    assert!(held > 30, "{held} of 40");
}

fn at_temperature_0_drafts_are_the_first_of_the_order(check: &Check<'_>) {
    let params = SamplingParams { temperature: 0.0, banned_ids: vec![3], top_k: 1, ..Default::default() };
    let case = Case::of(&[1.0, 4.0, 2.0, 9.0, 4.0], params);
    for words in [POSITION, DraftWords::Block { depth: 0 }] {
        assert_eq!(check.drafts(&case, words, 3), Ok(vec![1, 4, 2]));
        assert_eq!(check.drafts(&case, words, 5), Ok(vec![1, 4, 2, 0, NONE]));
    }
}

fn places_of_drafts_that_are_missing_hold_none(check: &Check<'_>) {
    let two = SamplingParams { top_k: 2, ..Default::default() };
    let drafts = check.drafts(&Case::of(&[1.0, 4.0, 2.0, 3.0], two), POSITION, 4).expect("valid");
    assert!(drafts[..2] == [1, 3] || drafts[..2] == [3, 1], "{drafts:?}");
    assert_eq!(drafts[2..], [NONE, NONE]);
    let empty = Case::of(&[f32::NEG_INFINITY; 3], SamplingParams::default());
    assert_eq!(check.drafts(&empty, POSITION, 2), Ok(vec![NONE; 2]));
    // Of probability 0, though top-k keeps it.
    let cold = SamplingParams { temperature: 1e-30, top_k: 2, ..Default::default() };
    assert_eq!(check.drafts(&Case::of(&[1e30, -1e30, 0.0], cold), POSITION, 2), Ok(vec![0, NONE]));
    let forced = Case { forced: Some(2), ..Case::of(&[1.0, 4.0, 2.0], SamplingParams::default()) };
    assert_eq!(check.drafts(&forced, POSITION, 2), Ok(vec![2, NONE]));
    assert_eq!(check.drafts(&forced, POSITION, 0), Ok(vec![]));
}

fn drafts_of_blocks_have_words_that_no_other_step_uses(check: &Check<'_>) {
    // Of 1000 equal tokens two independent draws agree once in 1000: of 400 pairs 10 do with a probability
    // below 1e-10.
    let row = vec![0.0; 1000];
    let drawn = |position: u32, words| {
        let case = Case::of(&row, SamplingParams::default()).after(&[1], &[0; 3]).at(5, position);
        check.drafts(&case, words, 1).expect("valid")[0]
    };
    let agree = |other: &dyn Fn(u32) -> i32| {
        let is_like = |base: &u32| drawn(base + 2, DraftWords::Block { depth: 2 }) == other(*base);
        (0..check.backend.patience(400)).filter(is_like).count()
    };
    for (name, other) in [
        ("the race of its position", &(|base: u32| drawn(base + 2, POSITION)) as &dyn Fn(u32) -> i32),
        ("a block a token further on", &|base| drawn(base + 2, DraftWords::Block { depth: 1 })),
        ("another draft of its block", &|base| drawn(base + 1, DraftWords::Block { depth: 1 })),
        ("the first draft of its block", &|base| drawn(base, DraftWords::Block { depth: 0 })),
    ] {
        let agree = agree(other);
        assert!(agree < 10, "{agree} drafts of blocks equal those of {name}");
    }
}

fn siblings_are_drawn_without_replacement(check: &Check<'_>) {
    let p = [0.5, 0.25, 0.15, 0.1];
    let mut counts = vec![0; 16];
    let count = check.backend.patience(20_000);
    for seed in 0..u64::from(count) {
        let case = Case::of_probabilities(&p, SamplingParams::default()).at(seed, 3);
        let drafts = check.backend.draft(&case, POSITION, 2).expect("valid");
        counts[(drafts[0] * 4 + drafts[1]) as usize] += 1;
    }
    let law = |pair: usize| match [pair / 4, pair % 4].map(|id| f64::from(p[id])) {
        _ if pair / 4 == pair % 4 => 0.0,
        [first, second] => first * second / (1.0 - first),
    };
    let found = chi_square(&counts, &(0..16).map(law).collect::<Vec<_>>());
    assert!(found.p_value > FALSE_ALARM, "{found:?} of {counts:?}");
}

fn races_over_two_rows_agree_as_often_as_stated(check: &Check<'_>) {
    let (p, q) = ([0.5, 0.25, 0.15, 0.1], [0.3, 0.3, 0.3, 0.1]);
    let tv: f64 = p.iter().zip(q).map(|(p, q): (&f32, f32)| f64::from((p - q).abs()) / 2.0).sum();
    let count = check.backend.patience(4_000);
    let agree = (0..u64::from(count)).filter(|seed| {
        let drawn = |row: &[f32]| {
            let case = Case::of_probabilities(row, SamplingParams::default()).at(*seed, 3);
            check.backend.draft(&case, POSITION, 1).expect("valid")
        };
        drawn(&p) == drawn(&q)
    });
    let (least, share) = ((1.0 - tv) / (1.0 + tv), agree.count() as f64 / f64::from(count));
    // Five standard deviations of a share of `count` trials, each at most 1 / (2 sqrt(count)).
    let slack = 2.5 / f64::from(count).sqrt();
    assert!(
        share > least - slack && share < 1.0 - tv + slack,
        "{share}: at least {least}, at most {}",
        1.0 - tv
    );
}

fn mirostat_is_refused(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 3.0, eta: 0.1, mu: None });
    let case = Case::of(&[0.0; 4], SamplingParams { mirostat, ..Default::default() });
    let refused = check.drafts(&case, POSITION, 1);
    assert!(matches!(refused, Err(Error::Conflict { parameter: "mirostat", .. })), "{refused:?}");
}

fn any_drafts_are_the_definitions(check: &Check<'_>) {
    let (mut drawn, cases) = (0, check.backend.patience(400) as usize);
    for seed in 0..cases as u64 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
        let mut case = generate::case(&data);
        (case.params.mirostat, case.params.adaptive_target) = (None, -1.0);
        if case.kind == Kind::Probabilities {
            generate::speak_of_probabilities(&mut case.params);
        }
        let depth = words.below(3) as u32;
        for draft in [POSITION, DraftWords::Block { depth }] {
            let count = [1, 2, 7, 40][words.below(4)];
            let drafts = check.drafts(&case, draft, count);
            let is_refused = draft != POSITION && case.params.watermark.own().is_some();
            assert_eq!(drafts.is_ok(), Oracle.sample(&case).is_ok() && !is_refused);
            drawn += drafts.map_or(0, |drafts| drafts.iter().filter(|id| **id != NONE).count());
        }
    }
    assert!(drawn > 3 * cases, "{drawn} drafts from {cases} rows");
}
