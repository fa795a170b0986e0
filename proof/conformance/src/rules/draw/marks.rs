//! Watermarks: which words a marked race has (W1), which rows are marked (W2), and drafts of a marked text
//! (W3).

use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::draft::DraftWords;
use gumball_spec::{
    Error, Kind, LogprobMode, LogprobsParams, SamplingParams, Scope, Section, Status, Watermark,
};

use crate::case::Case;
use crate::drafted::Drafted;
use crate::generate::{KEYS, add_keys};
use crate::reference::{arrival, race, words, xtc_acts};
use crate::rows;
use crate::rules::Check;
use crate::statistics::{FALSE_ALARM, chi_square};

rules!(mark_rules:
    W1 the_words_of_a_marked_race_come_from_key_and_context,
    W1 seed_position_and_draw_index_do_not_enter_a_marked_race,
    W1 races_behind_other_contexts_and_of_other_keys_are_independent,
    W2 a_context_lies_whole_in_its_scope,
    W2 a_context_that_came_before_draws_by_the_seed,
    W2 a_context_that_came_before_the_window_is_marked_again,
    W2 what_is_not_drawn_is_not_marked,
    W2 xtc_decides_by_the_seed,
    W2 a_number_without_a_key_is_refused,
    W3 drafts_of_a_marked_text_are_those_of_decoding,
    W3 drafts_are_drawn_by_the_marked_words,
    W3 judged_drafts_and_blocks_are_refused,
);

fn marked(watermark: Watermark) -> SamplingParams {
    add_keys();
    SamplingParams { watermark: watermark.into(), ..SamplingParams::default() }
}

/// Holds whether a case is marked, and by which ids.
fn holds(check: &Check<'_>, case: &Case, context: Option<&[u32]>) {
    let seen = check.sees(case);
    assert_eq!(seen.status.contains(Status::MARKED), context.is_some(), "{context:?}");
    let key = case.params.watermark.own().expect("a watermark").key as usize;
    let (seed, position, draw) =
        context.map_or((case.seed, case.position, case.draw), |context| words(KEYS[key], context));
    let row: Vec<f32> = (0..case.vocab()).map(|id| case.logits.row().logit(id)).collect();
    let ids: Vec<usize> = (0..row.len()).collect();
    if let Some(winner) = race(&row, &ids, case.params.temperature.into(), seed, position, draw) {
        check.draws(case, winner as i32);
    }
}

fn flat(vocab: usize, params: SamplingParams) -> Case {
    Case::of(&vec![0.0; vocab], params)
}

fn the_words_of_a_marked_race_come_from_key_and_context(check: &Check<'_>) {
    for (seed, vocab) in [(0, 40), (1, 255), (2, 256), (3, 257), (4, 3000)] {
        for context in [1, 2, 3, 4, 5, 64] {
            let ids: Vec<u32> = (0..context + 3).map(|i| (i * i + 7 * seed) % 1000).collect();
            let key = (seed + context) % 4;
            let params = marked(Watermark { key, context, ..Watermark::default() });
            let case = Case::of(&rows::model_like(vocab, seed.into()), params).after(&[5], &ids);
            holds(check, &case.at(seed.into(), 9), Some(&ids[3..]));
        }
    }
    // Ids outside the vocabulary count as any others.
    let params = marked(Watermark { context: 2, ..Watermark::default() });
    holds(check, &flat(500, params).after(&[], &[7, u32::MAX, 5000]), Some(&[u32::MAX, 5000]));
}

fn seed_position_and_draw_index_do_not_enter_a_marked_race(check: &Check<'_>) {
    let params = marked(Watermark { key: 1, context: 2, ..Watermark::default() });
    let case = flat(4000, params).after(&[1, 2, 3], &[4, 5]);
    let token = check.sees(&case).token;
    for (seed, position, draw) in [(0, 0, 0), (u64::MAX, u32::MAX, u32::MAX), (77, 5, 3)] {
        check.draws(&Case { draw, ..case.clone().at(seed, position) }, token);
    }
    let unmarked = Case { params: SamplingParams::default(), ..case };
    let drawn: Vec<i32> = (0..4).map(|draw| check.sees(&Case { draw, ..unmarked.clone() }).token).collect();
    assert!(drawn.windows(2).any(|pair| pair[0] != pair[1]), "{drawn:?}");
}

fn races_behind_other_contexts_and_of_other_keys_are_independent(check: &Check<'_>) {
    // Each pair has the tokens that two races draw: all 64 pairs of eight tokens are equally likely.
    let mut counts = vec![0; 64];
    let count = check.backend.patience(20_000);
    for i in 0..count {
        let drawn = |key, id| {
            let params = marked(Watermark { key, context: 3, ..Watermark::default() });
            let case = flat(8, params).after(&[], &[i / 50, i % 50, id]);
            check.backend.sample(&case).expect("valid").token as usize
        };
        let other = if i % 2 == 0 { drawn(1, 0) } else { drawn(0, 1) };
        counts[8 * drawn(0, 0) + other] += 1;
    }
    let found = chi_square(&counts, &[1.0 / 64.0; 64]);
    assert!(found.p_value > FALSE_ALARM, "{found:?} of {counts:?}");
}

fn a_context_lies_whole_in_its_scope(check: &Check<'_>) {
    let row = rows::model_like(300, 3);
    let case = |scope, prompt: &[u32], output: &[u32]| {
        let params = marked(Watermark { context: 3, scope, ..Watermark::default() });
        Case::of(&row, params).after(prompt, output)
    };
    holds(check, &case(Scope::Output, &[1, 2, 3, 4], &[]), None);
    holds(check, &case(Scope::Output, &[1, 2, 3, 4], &[5, 6]), None);
    holds(check, &case(Scope::Output, &[1, 2, 3, 4], &[5, 6, 7]), Some(&[5, 6, 7]));
    holds(check, &case(Scope::Both, &[1, 2], &[]), None);
    holds(check, &case(Scope::Both, &[1, 2, 3], &[]), Some(&[1, 2, 3]));
    holds(check, &case(Scope::Both, &[1, 2, 3, 4], &[5]), Some(&[3, 4, 5]));
    holds(check, &case(Scope::Both, &[], &[5, 6, 7]), Some(&[5, 6, 7]));
}

fn a_context_that_came_before_draws_by_the_seed(check: &Check<'_>) {
    let row = rows::model_like(300, 5);
    let case = |scope, prompt: &[u32], output: &[u32]| {
        let params = marked(Watermark { context: 2, scope, ..Watermark::default() });
        Case::of(&row, params).after(prompt, output)
    };
    holds(check, &case(Scope::Output, &[], &[1, 2, 9, 1, 2]), None);
    holds(check, &case(Scope::Output, &[], &[1, 2, 9, 2, 1]), Some(&[2, 1]));
    holds(check, &case(Scope::Output, &[], &[8, 8, 8]), None);
    holds(check, &case(Scope::Output, &[8], &[8, 8]), Some(&[8, 8]));
    holds(check, &case(Scope::Both, &[8], &[8, 8]), None);
    holds(check, &case(Scope::Both, &[1, 2, 9], &[1, 2]), None);
    holds(check, &case(Scope::Output, &[1, 2, 9], &[1, 2]), Some(&[1, 2]));
    // Long histories, in which the context came at each distance from every boundary of a search.
    for length in [31, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1025, 2049] {
        for place in [0, 1, length / 2, length - 4, length - 3] {
            let mut ids: Vec<u32> = (10..10 + length as u32).collect();
            ids.extend([1, 2]);
            holds(check, &case(Scope::Output, &[], &ids), Some(&[1, 2]));
            (ids[place], ids[place + 1]) = (1, 2);
            holds(check, &case(Scope::Output, &[], &ids), None);
            ids[place] = 3;
            holds(check, &case(Scope::Output, &[], &ids), Some(&[1, 2]));
        }
    }
}

fn a_context_that_came_before_the_window_is_marked_again(check: &Check<'_>) {
    let row = rows::model_like(300, 6);
    let ids = [1, 2, 9, 7, 1, 2];
    for (window, is_marked) in [(0, false), (1, true), (3, true), (4, false), (5, false), (u32::MAX, false)] {
        let params = marked(Watermark { context: 2, window, scope: Scope::Both, ..Watermark::default() });
        let case = Case::of(&row, params);
        let context = is_marked.then_some(&ids[4..]);
        holds(check, &case.clone().after(&ids[..3], &ids[3..]), context);
        holds(check, &case.after(&[], &ids), context);
    }
}

fn what_is_not_drawn_is_not_marked(check: &Check<'_>) {
    let mark = Watermark { context: 2, ..Watermark::default() };
    let case = Case::of(&rows::model_like(300, 7), marked(mark)).after(&[], &[1, 2, 3]);
    holds(check, &case, Some(&[2, 3]));
    let status = |case: &Case| check.sees(case).status;
    let with = |params: SamplingParams| Case { params, ..case.clone() };
    for temperature in [0.0, 1e-35] {
        let greedy = with(SamplingParams { temperature, ..case.params.clone() });
        assert_eq!(status(&greedy), Status::default());
    }
    assert_eq!(status(&Case { forced: Some(4), ..case.clone() }), Status::FORCED);
    let section = Section { open: vec![3], close: vec![8], budget: 0, ..Section::default() };
    let ends = with(SamplingParams { section: Some(section.clone()), ..case.params.clone() });
    assert_eq!(status(&ends), Status::SECTION);
    let goes_on = Section { budget: 9, ..section };
    let goes_on = with(SamplingParams { section: Some(goes_on), ..case.params.clone() });
    assert_eq!(status(&goes_on), Status::MARKED);
    // Filters, logprobs and edits are as they were.
    let logprobs = LogprobsParams { mode: LogprobMode::Processed.into(), top_n: 3, ids: vec![4] };
    let params = SamplingParams {
        top_k: 40,
        top_p: 0.9,
        repetition_penalty: 1.2,
        logprobs: Some(logprobs),
        ..case.params.clone()
    };
    assert_eq!(status(&with(params)), Status::MARKED);
    let probabilities = Case::of_probabilities(&[0.1, 0.4, 0.0, 0.5], marked(mark)).after(&[], &[1, 2, 3]);
    assert_eq!((status(&probabilities), probabilities.kind), (Status::MARKED, Kind::Probabilities));
}

fn xtc_decides_by_the_seed(check: &Check<'_>) {
    for seed in 0..20 {
        let mut case = Case::of(
            &[3.0, 2.9, 0.0, 0.0],
            SamplingParams {
                xtc_probability: 0.5,
                xtc_threshold: 0.1,
                ..marked(Watermark { context: 1, ..Watermark::default() })
            },
        )
        .after(&[], &[2]);
        case.seed = seed;
        let kept: &[u32] = if xtc_acts(0.5, seed, 0, 0) { &[1, 2, 3] } else { &[0, 1, 2, 3] };
        check.keeps(&case, kept);
    }
}

fn a_number_without_a_key_is_refused(check: &Check<'_>) {
    let params = marked(Watermark { key: 1_000_000, ..Watermark::default() });
    let error = check.attempt(&flat(10, params)).expect_err("no key");
    assert!(matches!(error, Error::OutOfRange { parameter: "watermark.key", .. }), "{error}");
    let params = marked(Watermark { scope: Scope::Prompt, ..Watermark::default() });
    let error = check.attempt(&flat(10, params)).expect_err("no scope");
    assert!(matches!(error, Error::OutOfRange { parameter: "watermark.scope", .. }), "{error}");
}

/// The tokens and statuses of a text that goes on for `count` tokens, with the same row throughout.
fn decoded(check: &Check<'_>, case: &Case, count: u32) -> Vec<(i32, Status)> {
    let mut case = case.clone();
    let mut text = Vec::new();
    for _ in 0..count {
        let seen = check.sees(&case);
        text.push((seen.token, seen.status));
        case.output.push(seen.token as u32);
        case.position += 1;
    }
    text
}

fn drafts_of_a_marked_text_are_those_of_decoding(check: &Check<'_>) {
    for (seed, vocab) in [(1, 4), (2, 4), (3, 300), (4, 300)] {
        let params = marked(Watermark { key: 2, context: 2, scope: Scope::Both, ..Watermark::default() });
        let row = rows::model_like(vocab, seed);
        let root = Case::of(&row, params).after(&[3, 1], &[0]).at(seed, 3);
        let text = decoded(check, &root, 6);
        let drafts: Vec<_> = text[..5].iter().map(|(token, _)| (*token, root.logits.clone())).collect();
        let drafted = Drafted::chain(root.clone(), drafts);
        let walked: Vec<_> =
            check.walks(&drafted).iter().map(|(_, seen)| (seen.token, seen.status)).collect();
        assert_eq!(walked, text, "seed {seed}");
        assert!(text.iter().any(|(_, status)| status.contains(Status::MARKED)), "seed {seed}");
    }
}

fn drafts_are_drawn_by_the_marked_words(check: &Check<'_>) {
    for seed in 0..8 {
        let row = rows::model_like(700, seed);
        let params = marked(Watermark { context: 2, ..Watermark::default() });
        let case = Case::of(&row, params).after(&[], &[1, 2, seed as u32]).at(seed, 3);
        let (seed, position, draw) = words(KEYS[0], &case.output[1..]);
        let mut scores: Vec<(f64, i32)> = (0..row.len() as u32)
            .map(|id| (f64::from(row[id as usize]) - arrival(seed, position, draw, id).ln(), id as i32))
            .collect();
        scores.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        if scores[..5].windows(2).all(|pair| pair[0].0 - pair[1].0 > 1e-4) {
            let wanted = scores[..4].iter().map(|(_, id)| *id).collect();
            assert_eq!(check.drafts(&case, DraftWords::Position, 4), Ok(wanted));
        }
    }
}

fn judged_drafts_and_blocks_are_refused(check: &Check<'_>) {
    let root = flat(10, marked(Watermark { context: 1, ..Watermark::default() })).after(&[], &[3]);
    let error = check.drafts(&root, DraftWords::Block { depth: 0 }, 1).expect_err("a block");
    assert!(matches!(error, Error::Conflict { parameter: "watermark", .. }), "{error}");
    for judgement in [Judgement::Rejection, Judgement::Block, Judgement::Threshold { single: 1.0, acc: 1.0 }]
    {
        let mut drafted = Drafted::chain(root.clone(), vec![(4, root.logits.clone())]);
        drafted.judgement = Some(judgement);
        let error = check.attempts(&drafted).expect_err("a watermark");
        assert!(matches!(error, Error::Conflict { parameter: "watermark", .. }), "{error}");
        drafted.nodes.clear();
        assert_eq!(check.walks(&drafted)[0].1.status, Status::MARKED);
    }
}
