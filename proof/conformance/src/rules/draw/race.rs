//! The race (N3, N4, N8, N9, D1, D2): the winner, by an f64 race from the same words.

use gumball_spec::draw::score;
use gumball_spec::survey::{Given, Measure};
use gumball_spec::{Kind, SamplingParams, Status};

use crate::case::{Case, UNIT};
use crate::reference;
use crate::rows;
use crate::rules::Check;

rules!(race_rules:
    N8 the_winner_is_that_of_an_f64_race,
    N8 places_beyond_the_vocabulary_never_win,
    N8 a_row_of_one_token_draws_it,
    N9 positions_wrap_modulo_2_to_the_32,
    N9 the_draw_index_gives_further_samples,
    N9 the_seed_counts_with_both_its_words,
    D1 tied_scores_go_to_the_smallest_id,
    D1 tied_scores_go_to_the_smallest_id_against_the_order,
    D1 scores_start_from_the_first_kept_token,
    D1 filters_only_narrow_who_may_win,
    D2 a_flat_row_is_drawn_like_any_other,
    D2 a_row_in_which_most_tiles_may_hold_the_winner_is_drawn_like_any_other,
    D2 rare_winners_are_not_pruned,
    D2 a_forced_token_is_emitted_whatever_is_drawn,
    D2 the_status_of_a_row_says_that_the_caller_forced_its_token,
    D2 a_forced_token_is_the_kept_set_of_its_row,
    D2 the_row_of_a_forced_token_is_read_for_logprobs_and_a_dynamic_temperature_alone,
    N4 both_words_of_a_tiles_arrival_count,
    N4 rare_tokens_are_as_rare_as_they_should_be,
);

fn plain() -> SamplingParams {
    SamplingParams::default()
}

/// Holds the draws of a row to the f64 race; returns how many it abstained from.
fn races(check: &Check<'_>, row: &[f32], params: &SamplingParams, seeds: std::ops::Range<u64>) -> usize {
    let mut abstained = 0;
    for seed in seeds {
        let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let position = (seed >> 40) as u32;
        let case = Case::of(row, params.clone()).at(seed, position);
        let mut kept: Vec<usize> = check.kept(&case).iter().map(|id| *id as usize).collect();
        kept.sort_unstable();
        let t = f64::from(params.temperature);
        match reference::race(row, &kept, t, seed, position, 0) {
            Some(winner) => check.draws(&case, winner as i32),
            None => abstained += 1,
        }
    }
    abstained
}

fn the_winner_is_that_of_an_f64_race(check: &Check<'_>) {
    let mut abstained = 0;
    for (vocab, temperature) in [(7, 1.0), (255, 0.5), (256, 2.0), (257, 1.0), (700, 0.8), (1030, 1.5)] {
        let params = SamplingParams { temperature, ..plain() };
        abstained += races(check, &rows::model_like(vocab, vocab as u64), &params, 1..40);
        abstained += races(check, &rows::bell(vocab, 1.0, vocab as u64), &params, 40..80);
    }
    assert!(abstained <= 2, "{abstained} of 480 within 2e-5");
}

fn places_beyond_the_vocabulary_never_win(check: &Check<'_>) {
    for vocab in 1..=9 {
        // Of so few tokens hardly one is its tile's chosen place.
        assert!(races(check, &vec![0.0; vocab], &plain(), 0..60) <= 1);
    }
    for vocab in [257, 258, 513] {
        // The last tile alone is likely, and all but its first places are empty.
        let mut row = vec![-20.0; vocab];
        row[vocab & !255..].fill(0.0);
        assert!(races(check, &row, &plain(), 0..60) <= 1);
    }
}

fn a_row_of_one_token_draws_it(check: &Check<'_>) {
    for position in 0..50 {
        check.draws(&Case::of(&[-3.0], plain()).at(u64::from(position), position), 0);
        check.draws(&Case::of(&[f32::MAX], SamplingParams { top_p: 0.1, ..plain() }).at(1, position), 0);
    }
}

fn positions_wrap_modulo_2_to_the_32(check: &Check<'_>) {
    let row = rows::bell(500, 1.0, 3);
    let mut drawn = Vec::new();
    for position in [0, 1, u32::MAX - 1, u32::MAX] {
        let case = Case::of(&row, plain()).at(5, position);
        let kept: Vec<usize> = (0..500).collect();
        let winner = reference::race(&row, &kept, 1.0, 5, position, 0).expect("well apart");
        check.draws(&case, winner as i32);
        drawn.push(winner);
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert!(drawn.len() > 2, "positions draw apart: {drawn:?}");
}

fn the_draw_index_gives_further_samples(check: &Check<'_>) {
    let row = vec![0.0; 400];
    let kept: Vec<usize> = (0..400).collect();
    let mut drawn = Vec::new();
    for draw in [0, 1, 2, 3, u32::MAX] {
        let winner = reference::race(&row, &kept, 1.0, 5, 17, draw).expect("well apart");
        check.draws(&Case { draw, ..Case::of(&row, plain()).at(5, 17) }, winner as i32);
        drawn.push(winner);
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 5);
}

fn the_seed_counts_with_both_its_words(check: &Check<'_>) {
    let row = vec![0.0; 900];
    let kept: Vec<usize> = (0..900).collect();
    let mut drawn = Vec::new();
    for seed in [1u64, 1 << 32, 1 << 32 | 1, u64::MAX, 0] {
        let winner = reference::race(&row, &kept, 1.0, seed, 0, 0).expect("well apart");
        check.draws(&Case::of(&row, plain()).at(seed, 0), winner as i32);
        drawn.push(winner);
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 5);
}

/// Holds that two tokens tie for the win, and that the smaller id has it.
fn ties(check: &Check<'_>, case: &Case, low: u32, high: u32) {
    let z = case.logits.row().logits();
    let order = gumball_spec::survey::order(&z);
    let given = Given::new(&z, &order, Measure::new(Kind::Logits, case.params.temperature));
    let score = |id| score(&case.request(), &given, id);
    assert_eq!(score(low).to_bits(), score(high).to_bits(), "found by search, must tie");
    check.draws(case, low as i32);
}

fn tied_scores_go_to_the_smallest_id(check: &Check<'_>) {
    // Found by search: the first arrivals of two of four tiles have the same log2.
    let found =
        [(8_546_211, 298, 592), (13_126_408, 133, 704), (13_862_143, 196, 960), (19_105_269, 514, 962)];
    for (position, low, high) in found {
        let case = Case::of(&[0.25; 1024], plain()).at(77, position);
        ties(check, &case, low, high);
        // Each alone would win.
        let mut row = [0.25; 1024];
        row[low as usize] = f32::NEG_INFINITY;
        check.draws(&Case::of(&row, plain()).at(77, position), high as i32);
    }
}

fn tied_scores_go_to_the_smallest_id_against_the_order(check: &Check<'_>) {
    // Found by search: a token one below the best arrives twice as early, up to the last bit.
    for (position, low, high) in [(5_318_716, 215, 1011), (17_920_789, 41, 994)] {
        let mut row = [f32::NEG_INFINITY; 1024];
        row[..256].fill(-1.0);
        row[768..].fill(0.0);
        ties(check, &Case::unit(&row, plain()).at(78, position), low, high);
    }
}

fn scores_start_from_the_first_kept_token(check: &Check<'_>) {
    // XTC drops the first token, 2^100 times likelier than what is left to race.
    let mut row = rows::bell(500, 2.0, 12);
    row[77] = 100.0;
    let params = SamplingParams {
        temperature: UNIT,
        xtc_probability: 1.0,
        xtc_threshold: f32::from_bits((127 - 100) << 23),
        ..plain()
    };
    let case = Case::of(&row, params.clone());
    let kept = check.kept(&case);
    assert!(!kept.contains(&77) && kept.len() > 100, "{} kept", kept.len());
    assert!(races(check, &row, &params, 0..60) <= 1);
}

fn filters_only_narrow_who_may_win(check: &Check<'_>) {
    let row = rows::model_like(800, 21);
    for params in [
        SamplingParams { top_k: 7, ..plain() },
        SamplingParams { top_p: 0.8, ..plain() },
        SamplingParams { min_p: 0.05, ..plain() },
        SamplingParams { typical_p: 0.5, temperature: 2.0, ..plain() },
    ] {
        for position in 0..60 {
            let filtered = Case::of(&row, params.clone()).at(4, position);
            let open = Case::of(&row, SamplingParams { temperature: params.temperature, ..plain() });
            let free = check.sees(&open.at(4, position)).token;
            // Who wins among all and is kept, wins among the kept.
            if check.kept(&filtered).contains(&(free as u32)) {
                check.draws(&filtered, free);
            }
        }
    }
}

fn a_flat_row_is_drawn_like_any_other(check: &Check<'_>) {
    for vocab in [255, 256, 257, 1030, 5000] {
        assert!(races(check, &vec![-7.5; vocab], &plain(), 0..25) <= 1);
        let nucleus = SamplingParams { top_p: 0.999, ..plain() };
        assert!(races(check, &vec![-7.5; vocab], &nucleus, 25..50) <= 1);
    }
}

fn a_row_in_which_most_tiles_may_hold_the_winner_is_drawn_like_any_other(check: &Check<'_>) {
    let min_p = SamplingParams { min_p: 0.003, ..plain() };
    let nucleus = SamplingParams { top_p: 0.97, ..plain() };
    for (params, seeds) in [(plain(), 0..6), (min_p, 6..9), (nucleus, 9..12)] {
        for vocab in [30_000, 100_277] {
            assert!(races(check, &rows::hundredth(vocab, seeds.start), &params, seeds.clone()) <= 1);
        }
    }
}

fn rare_winners_are_not_pruned(check: &Check<'_>) {
    // A thousand unlikely tokens that win together about as often as the likely one.
    let mut row = vec![-10.0; 1030];
    row[1029] = 0.0;
    let params = SamplingParams { temperature: UNIT, ..plain() };
    assert!(races(check, &row, &params, 0..200) <= 1);
}

fn a_forced_token_is_emitted_whatever_is_drawn(check: &Check<'_>) {
    let row = rows::model_like(300, 2);
    for params in
        [plain(), SamplingParams { temperature: 0.0, ..plain() }, SamplingParams { top_k: 1, ..plain() }]
    {
        for id in [0, 255, 299] {
            check.draws(&Case { forced: Some(id), ..Case::of(&row, params.clone()) }, id as i32);
        }
    }
    // Even a banned one.
    let params = SamplingParams { banned_ids: vec![5], ..plain() };
    check.draws(&Case { forced: Some(5), ..Case::of(&row, params) }, 5);
}

fn the_status_of_a_row_says_that_the_caller_forced_its_token(check: &Check<'_>) {
    use gumball_spec::{LogprobMode, LogprobsParams};
    let asks = |mode: LogprobMode, top_n| {
        Some(LogprobsParams { mode: mode.into(), top_n, ..LogprobsParams::default() })
    };
    let row = rows::model_like(300, 2);
    // Each is finished by another kernel, or by another way through one.
    for params in [
        plain(),
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { min_p: 0.1, ..plain() },
        SamplingParams { top_k: 5, ..plain() },
        SamplingParams { top_k: 5, logprobs: asks(LogprobMode::Raw, 0), ..plain() },
        SamplingParams { top_p: 0.9, logprobs: asks(LogprobMode::Processed, 3), ..plain() },
        SamplingParams { typical_p: 0.9, banned_ids: vec![299], ..plain() },
        SamplingParams { frequency_penalty: 0.5, ..plain() },
        SamplingParams { allowed_ids: Some(vec![]), ..plain() },
    ] {
        let odd = if params.allowed_ids.is_some() { Status::EMPTY.0 } else { 0 };
        let case = Case::of(&row, params).after(&[7], &[9]);
        assert_eq!(check.sees(&case).status.0, odd);
        for id in [0, 299] {
            let seen = check.sees(&Case { forced: Some(id), ..case.clone() });
            assert_eq!((seen.token, seen.status), (id as i32, Status::FORCED), "{case:?}");
        }
    }
    let weights = Case { forced: Some(1), ..Case::of_probabilities(&[0.5, 0.0], plain()) };
    assert_eq!((check.sees(&weights).token, check.sees(&weights).status), (1, Status::FORCED));
}

fn the_row_of_a_forced_token_is_read_for_logprobs_and_a_dynamic_temperature_alone(check: &Check<'_>) {
    use gumball_spec::{DynamicTemperature, LogprobMode, LogprobsParams};
    let logprobs = LogprobMode::OF_LOGPROBS
        .map(|mode| Some(LogprobsParams { mode: mode.into(), ..LogprobsParams::default() }));
    let dynamic_temperature = Some(DynamicTemperature { min: 0.2, max: 2.0, exponent: 0.3 });
    let temperatures = [0.0, 1e-35, 0.7].map(|temperature| SamplingParams { temperature, ..plain() });
    let unread = [
        SamplingParams { top_p: 0.9, ..plain() },
        SamplingParams { frequency_penalty: 0.5, top_k: 3, ..plain() },
        SamplingParams { dynamic_temperature, temperature: 0.0, ..plain() },
    ];
    let read = logprobs
        .map(|logprobs| SamplingParams { logprobs, ..plain() })
        .into_iter()
        .chain([SamplingParams { dynamic_temperature, ..plain() }]);
    let unread = temperatures.into_iter().chain(unread);
    let both = unread.map(|params| (params, false)).chain(read.map(|params| (params, true)));
    let (nan, inf, empty) = (Status::NAN.0, Status::INF.0, Status::EMPTY.0);
    for (params, is_read) in both {
        for (row, odd) in [
            ([1.0, f32::NAN, 0.0], nan),
            ([f32::INFINITY, f32::NAN, 0.0], nan | inf),
            ([f32::NEG_INFINITY; 3], empty),
        ] {
            let case = Case { forced: Some(2), ..Case::of(&row, params.clone()) };
            let seen = check.sees(&case);
            let told = if is_read { odd } else { 0 };
            assert_eq!((seen.token, seen.status.0), (2, Status::FORCED.0 | told), "{case:?}");
            if !is_read {
                assert_eq!(seen.temperature, SamplingParams::zero_if_greedy(params.temperature), "{case:?}");
            }
        }
    }
}

fn a_forced_token_is_the_kept_set_of_its_row(check: &Check<'_>) {
    use gumball_spec::{DynamicTemperature, Mirostat, Section};
    let row = rows::model_like(300, 2);
    let section = Some(Section { close: vec![299], budget: 0, ..Section::default() });
    let dynamic_temperature = Some(DynamicTemperature { min: 0.2, max: 2.0, exponent: 0.3 });
    for params in [
        plain(),
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { top_k: 2, ..plain() },
        SamplingParams { min_p: 0.3, ..plain() },
        SamplingParams { top_p: 0.5, dynamic_temperature, ..plain() },
        SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.2, mu: None }), ..plain() },
        SamplingParams { banned_ids: vec![255, 299], typical_p: 0.5, ..plain() },
        SamplingParams { allowed_ids: Some(vec![]), ..plain() },
    ] {
        for id in [0, 255, 299] {
            check.keeps(&Case { forced: Some(id), ..Case::of(&row, params.clone()) }, &[id]);
        }
        check.keeps(&Case::of(&row, SamplingParams { section: section.clone(), ..params }), &[299]);
    }
    let zero = Case { forced: Some(1), ..Case::of_probabilities(&[0.5, 0.0], plain()) };
    check.keeps(&zero, &[1]);
}

fn both_words_of_a_tiles_arrival_count(check: &Check<'_>) {
    // Found by search: the first word of tile 0 is so small, that the second moves the score by more than
    // 2^-12.
    let (seed, position) = (80, 1_476_073);
    let [w0, w1, w2, _] = reference::philox(seed, [0, position, 1, 0]);
    assert!(w0 < 1 << 11 && w1 > 1 << 31, "{w0:x} {w1:x}");
    let place = w2 >> 24;
    let even =
        (reference::arrival(seed, position, 0, place) / reference::arrival(seed, position, 0, 256)).log2();
    for (by, winner) in [(-1e-4, 256), (1e-4, place)] {
        let mut row = vec![f32::NEG_INFINITY; 257];
        row[256] = 0.0;
        row[place as usize] = (even + by) as f32;
        let params = SamplingParams { temperature: UNIT, ..plain() };
        check.draws(&Case::of(&row, params).at(seed, position), winner as i32);
    }
}

fn rare_tokens_are_as_rare_as_they_should_be(check: &Check<'_>) {
    // 256 tokens of 2^-16 in a tile of their own: they win with probability 1/257 together. Only the tile's
    // 64-bit arrival, or the few that follow it, can be early enough.
    let mut row = vec![f32::NEG_INFINITY; 512];
    row[0] = 0.0;
    row[256..].fill(-16.0);
    let params = SamplingParams { temperature: UNIT, ..plain() };
    let case = Case::of(&row, params).at(11, 0);
    let tokens = check.backend.draws(&case, 30_000, &|case, i| case.position = i).expect("valid");
    let won = tokens.iter().filter(|token| **token != 0).count();
    // 256/65792 of 30000: 116.7, deviation 10.8; 5.3 deviations are a false alarm in 10^7.
    assert!((60..175).contains(&won), "{won}");
}
