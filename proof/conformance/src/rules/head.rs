//! Heads: from hidden states to logits (H1 to H9).

use gumball_spec::head::Scaling;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Filter, FilterOrder, LogprobMode, LogprobsParams, SamplingParams, Status};

use crate::case::{Case, Dtype};
use crate::drafted::Drafted;
use crate::head_case::HeadCase;
use crate::rows;
use crate::rules::Check;

rules!(head_rules:
    H1 partial_sums_are_taken_by_place_and_added_as_a_tree,
    H1 a_product_and_a_sum_are_rounded_once,
    H1 elements_beyond_the_width_are_zeros,
    H1 narrow_types_are_widened_exactly,
    H1 products_are_near_those_of_real_numbers,
    H2 the_bias_comes_before_the_scale_and_the_scale_before_the_cap,
    H2 a_cap_bounds_logits_by_a_hyperbolic_tangent,
    H2 a_nan_stays_one_whatever_its_sign,
    H2 a_scaling_outside_its_range_is_refused,
    H3 infinities_and_nan_go_their_way,
    H4 a_row_does_not_depend_on_its_batch,
    H5 a_certified_head_gives_what_the_whole_row_gives,
    H5 near_ties_go_to_the_token_of_the_whole_row,
    H5 weights_that_are_not_finite_change_no_other_token,
    H5 extreme_temperatures_and_logits_change_no_token,
    H6 drafts_are_verified_from_hidden_states_as_from_logits,
    H9 a_fast_head_is_near_real_numbers,
    H9 a_row_of_a_fast_head_does_not_depend_on_its_batch,
    H9 infinities_and_nan_go_their_way_through_a_fast_head,
);

/// Returns the logits of a case, after holding their bits to the definition.
fn sees(check: &Check<'_>, case: &HeadCase) -> Vec<f32> {
    let bits = check.head(case).unwrap_or_else(|error| panic!("refused: {error}"));
    bits.into_iter().map(f32::from_bits).collect()
}

/// The least number beside which a one is lost.
const LARGE: f32 = 16_777_216.0;

fn partial_sums_are_taken_by_place_and_added_as_a_tree(check: &Check<'_>) {
    // A partial sum of 2^24 takes up no 1. The ones that are added to it in the tree come as 1, 2, 4 and 8,
    // of which the 1 is lost.
    for place in 0..16 {
        let mut weights = vec![1.0f32; 32];
        weights[place] = LARGE;
        let case = HeadCase::new(Dtype::F32, &weights, &[1.0; 32], 32);
        // Its own sum loses the one of place + 16; every other sum is 2.
        assert_eq!(sees(check, &case), [LARGE + 30.0], "{place}");
        let case = HeadCase::new(Dtype::F32, &weights[..16], &[1.0; 16], 16);
        assert_eq!(sees(check, &case), [LARGE + 14.0], "{place}");
    }
}

fn a_product_and_a_sum_are_rounded_once(check: &Check<'_>) {
    // (1 + 2^-23)^2 - (1 + 2^-22) is 2^-46 if nothing is rounded in between; both meet in partial sum 0.
    let x = 1.0 + f32::EPSILON;
    let (mut weights, mut hidden) = (vec![0.0f32; 17], vec![0.0f32; 17]);
    (weights[0], hidden[0]) = (-(1.0 + 2.0 * f32::EPSILON), 1.0);
    (weights[16], hidden[16]) = (x, x);
    let case = HeadCase::new(Dtype::F32, &weights, &hidden, 17);
    assert_eq!(sees(check, &case), [f32::EPSILON * f32::EPSILON]);
}

fn elements_beyond_the_width_are_zeros(check: &Check<'_>) {
    for width in [1, 2, 3, 15, 16, 17, 31, 32, 33, 47] {
        for dtype in Dtype::ALL {
            let weights = rows::bell(7 * width, 1.0, width as u64);
            let hidden = rows::bell(3 * width, 2.0, 99);
            sees(check, &HeadCase::new(dtype, &weights, &hidden, width));
        }
    }
    // A sum that ends as -0, since what it holds is too small for a float, is +0 once a zero is added.
    let tiny = f32::from_bits(1);
    let case = HeadCase::new(Dtype::F32, &[-tiny], &[0.25], 1);
    assert_eq!(sees(check, &case)[0].to_bits(), 0);
}

fn narrow_types_are_widened_exactly(check: &Check<'_>) {
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let narrow = HeadCase::new(dtype, &rows::bell(40 * 50, 1.0, 3), &rows::bell(2 * 50, 3.0, 4), 50);
        let exact = |of: &crate::case::Logits| -> Vec<f32> {
            let row = of.row();
            (0..row.vocab()).map(|i| row.logit(i)).collect()
        };
        let wide = HeadCase::new(Dtype::F32, &exact(&narrow.weights), &exact(&narrow.hidden), 50);
        assert_eq!(sees(check, &narrow), sees(check, &wide));
    }
}

fn products_are_near_those_of_real_numbers(check: &Check<'_>) {
    let width = 576;
    let (weights, hidden) = (rows::bell(100 * width, 0.1, 5), rows::bell(width, 3.0, 6));
    let case = HeadCase::new(Dtype::F32, &weights, &hidden, width);
    for (id, z) in sees(check, &case).into_iter().enumerate() {
        let terms = weights[id * width..].iter().zip(&hidden).map(|(w, h)| f64::from(*w) * f64::from(*h));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        // 36 fma and 4 additions, each rounded by 2^-24 at most.
        assert!((f64::from(z) - exact).abs() <= 41.0 * size * 2f64.powi(-24), "{id}: {z} for {exact}");
    }
}

fn the_bias_comes_before_the_scale_and_the_scale_before_the_cap(check: &Check<'_>) {
    let mut case = HeadCase::new(Dtype::F32, &[2.0, 3.0, -5.0], &[1.0], 1);
    case.bias = Some(vec![0.5, 1.0, 1.0]);
    assert_eq!(sees(check, &case), [2.5, 4.0, -4.0]);
    case.scaling.logit_scale = 0.25;
    assert_eq!(sees(check, &case), [0.625, 1.0, -1.0]);
    case.scaling.softcap = 1.0;
    let capped = sees(check, &case);
    assert!((capped[1] - 1f32.tanh()).abs() < 1e-6 && capped[2] == -capped[1]);
}

fn a_cap_bounds_logits_by_a_hyperbolic_tangent(check: &Check<'_>) {
    let values: Vec<f32> =
        (0..1000).map(|i| (i as f32 - 500.0) * 0.37).chain([0.0, -0.0, 1e30, 1e-30]).collect();
    for softcap in [0.5, 30.0, 65_536.0] {
        let mut case = HeadCase::new(Dtype::F32, &values, &[1.0], 1);
        case.scaling.softcap = softcap;
        for (z, capped) in values.iter().zip(sees(check, &case)) {
            let exact = f64::from(softcap) * (f64::from(*z) / f64::from(softcap)).tanh();
            let error = (f64::from(capped) - exact).abs() / f64::from(softcap);
            assert!(error <= gumball_spec::head::SOFTCAP_ERROR, "{z} below {softcap}: {capped} for {exact}");
        }
    }
}

fn a_nan_stays_one_whatever_its_sign(check: &Check<'_>) {
    let weights = [0x7FC0_0000, 0xFFC0_0000, 0x7FC0_1234, 0xFFFF_FFFF].map(f32::from_bits);
    for softcap in [0.0, 30.0] {
        let mut case = HeadCase::new(Dtype::F32, &weights, &[1.0], 1);
        case.scaling.softcap = softcap;
        assert_eq!(check.head(&case), Ok(vec![0x7FC0_0000; 4]));
    }
}

fn a_scaling_outside_its_range_is_refused(check: &Check<'_>) {
    let case = HeadCase::new(Dtype::F32, &[1.0], &[1.0], 1);
    for logit_scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let case = HeadCase { scaling: Scaling { logit_scale, softcap: 0.0 }, ..case.clone() };
        assert!(matches!(check.head(&case), Err(Error::OutOfRange { parameter: "logit_scale", .. })));
    }
    for softcap in [-1.0, f32::NAN, 65_537.0, 1e-30] {
        let case = HeadCase { scaling: Scaling { logit_scale: 1.0, softcap }, ..case.clone() };
        assert!(matches!(check.head(&case), Err(Error::OutOfRange { parameter: "softcap", .. })));
    }
}

fn infinities_and_nan_go_their_way(check: &Check<'_>) {
    const INF: f32 = f32::INFINITY;
    let weights = [1.0, 1.0, INF, 1.0, INF, -INF, f32::NAN, 0.0, f32::MAX, f32::MAX, -f32::MAX, -f32::MAX];
    let mut case = HeadCase::new(Dtype::F32, &weights, &[2.0, 2.0], 2);
    let z = sees(check, &case);
    assert_eq!((z[0], z[1], z[4], z[5]), (4.0, INF, INF, -INF));
    // A NaN of any origin has these bits.
    assert!([z[2], z[3]].iter().all(|z| z.to_bits() == 0x7FC0_0000));
    case.scaling.softcap = 30.0;
    let z = sees(check, &case);
    assert_eq!((z[1], z[5]), (30.0, -30.0));
    assert!([z[2], z[3]].iter().all(|z| z.to_bits() == 0x7FC0_0000));
    // A NaN in a hidden state is one in all of its logits, and in no other row.
    let case = HeadCase::new(Dtype::F32, &weights[..2], &[1.0, f32::NAN, 1.0, 1.0], 2);
    let z = sees(check, &case);
    assert!(z[0].is_nan() && z[1] == 2.0);
}

fn a_row_does_not_depend_on_its_batch(check: &Check<'_>) {
    let width = 33;
    let weights = rows::bell(21 * width, 1.0, 7);
    let states: Vec<Vec<f32>> = (0..9).map(|i| rows::bell(width, 1.0, 50 + i)).collect();
    let alone: Vec<Vec<f32>> =
        states.iter().map(|state| sees(check, &HeadCase::new(Dtype::Bf16, &weights, state, width))).collect();
    for count in [2, 4, 5, 9] {
        for first in [0, 9 - count] {
            let batch: Vec<f32> = states[first..first + count].concat();
            let z = sees(check, &HeadCase::new(Dtype::Bf16, &weights, &batch, width));
            assert_eq!(z, alone[first..first + count].concat(), "{count} from {first}");
        }
    }
}

/// Requests that some of a row's logits decide, and some that all of them do.
fn requests(seed: u64) -> Vec<SamplingParams> {
    let base = SamplingParams { seed: Some(seed), ..Default::default() };
    let logprobs = Some(LogprobsParams { mode: LogprobMode::Processed.into(), top_n: 3, ids: vec![0, 4] });
    vec![
        base.clone(),
        SamplingParams { temperature: 0.0, ..base.clone() },
        SamplingParams { temperature: 0.3, repetition_penalty: 1.5, frequency_penalty: -0.5, ..base.clone() },
        SamplingParams { top_k: 3, logprobs: logprobs.clone(), ..base.clone() },
        SamplingParams { top_k: 20, top_p: 0.8, min_p: 0.02, ..base.clone() },
        SamplingParams { min_p: 0.2, temperature: 2.0, temperature_last: true, ..base.clone() },
        SamplingParams {
            min_p: 0.1,
            typical_p: 0.9,
            order: FilterOrder::List(vec![Filter::MinP, Filter::TypicalP]),
            logprobs: logprobs.clone(),
            ..base.clone()
        },
        SamplingParams {
            logit_bias: vec![(2, 3.0), (3, f32::NEG_INFINITY)],
            banned_ids: vec![9],
            ..base.clone()
        },
        SamplingParams { top_p: 0.7, logprobs, ..base },
    ]
}

/// Returns the case of a request for a vocabulary; its logits are of no matter.
fn request(vocab: usize, params: SamplingParams) -> Case {
    let mut case = Case::of(&vec![0.0; vocab], params);
    (case.prompt, case.output) = (vec![1, 2, 3, 1], vec![4, 2]);
    case
}

fn a_certified_head_gives_what_the_whole_row_gives(check: &Check<'_>) {
    for (shape, (vocab, width)) in [(600, 48), (40, 5), (1, 1), (257, 33)].into_iter().enumerate() {
        for seed in 0..6 {
            let (weights, hidden) = (rows::bell(vocab * width, 0.4, seed), rows::bell(width, 3.0, 90 + seed));
            let mut head = HeadCase::new(Dtype::ALL[seed as usize % 3], &weights, &hidden, width);
            if seed % 2 == 1 {
                head.bias = Some(rows::bell(vocab, 1.0, 7));
                head.scaling = Scaling { logit_scale: 0.5, softcap: 6.0 };
            }
            for mut params in check.by_turns(shape + seed as usize, requests(seed)) {
                params.logit_bias.retain(|(id, _)| (*id as usize) < vocab);
                params.banned_ids.retain(|id| (*id as usize) < vocab);
                if let Some(logprobs) = &mut params.logprobs {
                    logprobs.ids.retain(|id| (*id as usize) < vocab);
                }
                check.certifies(&head, &request(vocab, params));
            }
        }
    }
}

fn near_ties_go_to_the_token_of_the_whole_row(check: &Check<'_>) {
    // All rows are one row, except for a last bit here and there, or equal: codes of 8 bits cannot tell them
    // apart.
    let (vocab, width) = (300, 24);
    let row = rows::bell(width, 1.0, 3);
    for step in [0.0, 1e-7, 1e-5, 1e-3] {
        let weights: Vec<f32> = (0..vocab * width)
            .map(|place| row[place % width] * (1.0 + step * ((place / width * 7 % 11) as f32)))
            .collect();
        let head = HeadCase::new(Dtype::F32, &weights, &rows::bell(width, 2.0, 4), width);
        for params in requests(5) {
            check.certifies(&head, &request(vocab, params));
        }
    }
}

fn weights_that_are_not_finite_change_no_other_token(check: &Check<'_>) {
    let (vocab, width) = (300, 24);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e25] {
        let mut weights = rows::bell(vocab * width, 0.4, 3);
        weights[11 * width + 2] = odd;
        let mut hidden = rows::bell(width, 2.0, 4);
        hidden[2] = 1.5;
        let head = HeadCase::new(Dtype::F32, &weights, &hidden, width);
        for params in requests(5) {
            let banned = SamplingParams { banned_ids: vec![11], ..params.clone() };
            let seen = check.certifies(&head, &request(vocab, params));
            assert_eq!(seen.status.contains(Status::NAN), odd.is_nan());
            // A banned logit sets no status (E7).
            assert_eq!(check.certifies(&head, &request(vocab, banned)).status, Status::default());
        }
        // A hidden state that is not finite, or zero.
        for state in [f32::NAN, f32::INFINITY, 0.0] {
            let head = HeadCase::new(Dtype::F32, &weights, &vec![state; width], width);
            requests(6).into_iter().for_each(|params| drop(check.certifies(&head, &request(vocab, params))));
        }
    }
}

fn drafts_are_verified_from_hidden_states_as_from_logits(check: &Check<'_>) {
    let (vocab, width) = (300, 24);
    let thresholds = Judgement::Threshold { single: 0.6, acc: 0.7 };
    let modes = [None, None, Some(Judgement::Rejection), Some(Judgement::Block), Some(thresholds)];
    for seed in 0..4 {
        let weights = rows::bell(vocab * width, 0.5, seed);
        for (i, params) in check.by_turns(seed as usize, requests(seed).into_iter().enumerate()) {
            // A chain, a tree, and no drafts at all; drafts are what the rows draw if nothing stands before
            // them, or no token.
            let (mode, parents) = (modes[i % modes.len()], [&[-1, 0, 1, 2][..], &[-1, -1, 0, 2], &[]]);
            let is_block = mode == Some(Judgement::Block);
            let parents = parents[if is_block { 0 } else { (i + seed as usize) % 3 }];
            let hidden = rows::bell((parents.len() + 1) * width, 3.0, 40 + seed);
            let head = HeadCase::new(Dtype::Bf16, &weights, &hidden, width);
            let state =
                |row: usize| HeadCase::new(Dtype::Bf16, &weights, &hidden[row * width..][..width], width);
            let request = request(vocab, params);
            let node = |(node, parent): (usize, &i32)| {
                let row = (*parent + 1) as usize;
                let drawn = check.certifies(&state(row), &request).token;
                let odd = [-1, vocab as i32, 7][(seed as usize + i) % 3];
                (if node == 3 { odd } else { drawn }, *parent, request.logits.clone())
            };
            let mut drafted = Drafted::new(request.clone(), parents.iter().enumerate().map(node));
            (drafted.judgement, drafted.greedy) = (mode, mode.is_none() && i % modes.len() == 1);
            let walked = check.walks_hidden(&head, &drafted);
            assert!(!walked.is_empty() && walked.len() <= parents.len() + 1);
        }
    }
}

fn extreme_temperatures_and_logits_change_no_token(check: &Check<'_>) {
    // Scores beyond the range of floats: large logits, above and below 0, at low temperatures.
    let (vocab, width) = (300, 24);
    let (weights, hidden) = (rows::bell(vocab * width, 0.4, 3), rows::bell(width, 2.0, 4));
    for bias in [0.0f32, 1e9, -1e9, 1e20, -1e20] {
        let mut head = HeadCase::new(Dtype::F32, &weights, &hidden, width);
        head.bias = Some((0..vocab).map(|id| bias + bias.abs() * 1e-3 * (id % 7) as f32).collect());
        for temperature in [f32::MIN_POSITIVE, 1e-30, 1e-20, 1e-3, 1.0, 1e20] {
            let base = SamplingParams { temperature, seed: Some(5), ..Default::default() };
            for params in [
                base.clone(),
                SamplingParams { logit_bias: vec![(2, 3.0)], ..base.clone() },
                SamplingParams { min_p: 0.1, ..base },
            ] {
                check.certifies(&head, &request(vocab, params));
            }
        }
    }
    // With min_p = 1 tokens stay whose distance to the first one times the scale rounds to 0, though their
    // logits differ.
    let near = [2f32.powi(-40), 2f32.powi(-40) - 2f32.powi(-52)];
    let weights = [&near[..], &[2f32.powi(-41); 30]].concat();
    let head = HeadCase::new(Dtype::F32, &weights, &[1.0], 1);
    for seed in 0..6 {
        let logprobs =
            Some(LogprobsParams { mode: LogprobMode::Processed.into(), top_n: 3, ids: vec![0, 1] });
        let base = SamplingParams { min_p: 1.0, temperature: 2f32.powi(100), ..Default::default() };
        let params = SamplingParams { seed: Some(seed), ..base };
        check.certifies(&head, &request(weights.len(), params.clone()));
        check.certifies(&head, &request(weights.len(), SamplingParams { logprobs, ..params }));
    }
}

/// The elements of numbers as a type holds them.
fn held(numbers: &crate::case::Logits) -> Vec<f64> {
    let row = numbers.row();
    (0..row.vocab()).map(|i| f64::from(row.logit(i))).collect()
}

fn a_fast_head_is_near_real_numbers(check: &Check<'_>) {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let drawn = SamplingParams { top_k: 7, top_p: 0.9, seed: Some(5), ..SamplingParams::default() };
    // Around the ids of a warp and of a block, the elements of a chunk and of a stage, and rows that are not
    // aligned to 16 bytes.
    let shapes = [
        (1, 1),
        (15, 7),
        (16, 8),
        (17, 31),
        (40, 32),
        (33, 33),
        (191, 127),
        (192, 128),
        (193, 136),
        (209, 300),
        // On a GPU of 132 multiprocessors: nearly all ids that a block has at once, and two sets of fewer.
        (25_001, 72),
        (25_500, 72),
    ];
    for (n, (vocab, width)) in shapes.into_iter().enumerate() {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            let weights = rows::bell(vocab * width, 0.3, n as u64);
            let mut case = HeadCase::new(dtype, &weights, &rows::bell(3 * width, 2.0, 77), width);
            if n % 3 == 1 {
                // Hidden states of another type are rounded to the weights' type.
                let rounded: Vec<f32> = held(&case.hidden).into_iter().map(|h| h as f32).collect();
                case.hidden = crate::case::Logits::new(Dtype::F32, &rounded);
            }
            let params = if n % 2 == 0 { &greedy } else { &drawn };
            let Some(seen) = check.fast_head(&case, params) else { return };
            hold_to_real_numbers(&case, &seen);
        }
    }
    // Terms that are each lost beside a one.
    let small = [&[1.0][..], &[2f32.powi(-12) * 0.99; 511]].concat();
    let case = HeadCase::new(Dtype::Bf16, &small, &small, 512);
    hold_to_real_numbers(&case, &check.fast_head(&case, &greedy).expect("a fast head"));
}

/// Holds the logits of a fast head to the products of real numbers.
fn hold_to_real_numbers(case: &HeadCase, seen: &[f32]) {
    let (vocab, width) = (case.vocab(), case.width);
    let (weights, hidden) = (held(&case.weights), held(&case.hidden));
    for (i, z) in seen.iter().enumerate() {
        let (state, row) = (&hidden[i / vocab * width..], &weights[i % vocab * width..][..width]);
        let terms = row.iter().zip(state).map(|(w, h)| w * h);
        let (real, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        let most = (width as f64 / 2.0 + 16.0) * size * 2f64.powi(-22);
        assert!((f64::from(*z) - real).abs() <= most, "{vocab} x {width}, {i}: {z} for {real}");
    }
}

fn a_row_of_a_fast_head_does_not_depend_on_its_batch(check: &Check<'_>) {
    let (vocab, width, most) = (205, 136, 323);
    let (weights, states) = (rows::bell(vocab * width, 0.3, 7), rows::bell(most * width, 1.0, 50));
    let params = SamplingParams { min_p: 0.1, seed: Some(9), ..SamplingParams::default() };
    let batch = |count: usize| {
        let mut case = HeadCase::new(Dtype::Bf16, &weights, &states[..count * width], width);
        case.bias = Some(rows::bell(vocab, 1.0, 3));
        case.scaling = Scaling { logit_scale: 0.5, softcap: 30.0 };
        check.fast_head(&case, &params)
    };
    let Some(all) = batch(most) else { return };
    // The numbers of hidden states that are multiplied at once and their neighbours, also where 256 come
    // first.
    for count in [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 320, 321] {
        let seen = batch(count).expect("a fast head");
        let differ = seen.iter().zip(&all).position(|(seen, other)| seen.to_bits() != other.to_bits());
        assert_eq!(differ, None, "{count} rows");
    }
}

fn infinities_and_nan_go_their_way_through_a_fast_head(check: &Check<'_>) {
    const INF: f32 = f32::INFINITY;
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let weights = [1.0, 1.0, INF, 1.0, INF, -INF, f32::NAN, 0.0];
    let case = HeadCase::new(Dtype::Bf16, &weights, &[2.0, 2.0, 2.0, f32::NAN], 2);
    let Some(z) = check.fast_head(&case, &greedy) else { return };
    assert_eq!((z[0], z[1]), (4.0, INF));
    // A NaN of any origin has these bits: infinities of both signs, a NaN among the weights, or one in
    // the hidden state.
    assert!(z[2..].iter().all(|z| z.to_bits() == 0x7FC0_0000), "{z:?}");
}
