//! Clustered heads: which ids a hidden state probes, and the results of a row that has their logits alone
//! (H7, H8, H10).

use gumball_spec::head::Scaling;
use gumball_spec::head::clusters::NO_ID;
use gumball_spec::{DynamicTemperature, LogprobMode, LogprobsParams, Mirostat, NONE, SamplingParams, Status};

use crate::case::{CallerEdit, Case, Dtype};
use crate::head_case::{ClusterCase, HeadCase};
use crate::rows;
use crate::rules::Check;

rules!(clustered_head_rules:
    H7 the_clusters_with_the_largest_scores_are_probed,
    H7 clusters_of_equal_scores_are_probed_by_number,
    H7 a_score_that_overflows_is_the_largest_float,
    H7 special_ids_are_always_in_the_probed_set,
    H7 a_hidden_state_that_is_not_finite_probes_clusters_too,
    H8 a_clustered_head_gives_what_the_row_of_its_probed_set_gives,
    H8 edits_and_masks_act_within_the_probed_set,
    H10 a_fast_clustered_head_has_the_logits_of_the_fast_one_in_any_batch,
);

/// Returns the clusters of ids in their own order, with centroids.
fn clusters(vocab: usize, capacity: usize, centroids: &[f32], probes: usize) -> ClusterCase {
    let maps = (0..vocab as u32).collect();
    ClusterCase { maps, capacity, centroids: centroids.to_vec(), probes, special_ids: Vec::new() }
}

/// Returns the request of a case that asks for the logprobs of all ids, of which those outside the probed set
/// have none.
fn all_logprobs(vocab: usize, params: SamplingParams) -> Case {
    let logprobs =
        LogprobsParams { mode: LogprobMode::Raw.into(), top_n: 0, ids: (0..vocab as u32).collect() };
    let logprobs = Some(logprobs);
    Case::of(&vec![0.0; vocab], SamplingParams { logprobs, seed: Some(3), ..params })
}

/// Holds the ids of the probed set of the first hidden state.
fn probes(check: &Check<'_>, head: &HeadCase, clusters: &ClusterCase, ids: &[i32]) {
    let case = all_logprobs(head.vocab(), SamplingParams::default());
    let seen = check.clusters(head, clusters, &case);
    let logprobs = seen.logprobs.expect("asked for").ids;
    let probed: Vec<i32> =
        logprobs.iter().filter(|of_id| of_id.logprob > f32::NEG_INFINITY).map(|of_id| of_id.id).collect();
    assert_eq!(probed, ids, "{clusters:?}");
}

fn the_clusters_with_the_largest_scores_are_probed(check: &Check<'_>) {
    // Seven ids in clusters of two; the last one has one. The logits have nothing to do with the scores.
    let head = HeadCase::new(Dtype::F32, &[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], &[2.0], 1);
    let of = |probes| clusters(7, 2, &[-1.0, 3.0, 1.0, 2.0], probes);
    probes(check, &head, &of(1), &[2, 3]);
    probes(check, &head, &of(2), &[2, 3, 6]);
    probes(check, &head, &of(3), &[2, 3, 4, 5, 6]);
    probes(check, &head, &of(4), &[0, 1, 2, 3, 4, 5, 6]);
    // A negative hidden state turns them round.
    let head = HeadCase::new(Dtype::F32, &[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], &[-2.0], 1);
    probes(check, &head, &of(2), &[0, 1, 4, 5]);
    // Ids stand in clusters in any order.
    let shuffled = ClusterCase { maps: vec![6, 0, 3, 5, 1, 4, 2], ..of(2) };
    probes(check, &head, &shuffled, &[0, 1, 4, 6]);
    // Of one id, of three, of two and of one, by scores of 2, -6, -2 and -4.
    let maps = [&[6, NO_ID, NO_ID][..], &[0, 3, 5], &[1, 4, NO_ID], &[2]].concat();
    let of = |probes| ClusterCase { maps: maps.clone(), ..clusters(7, 3, &[-1.0, 3.0, 1.0, 2.0], probes) };
    probes(check, &head, &of(1), &[6]);
    probes(check, &head, &of(2), &[1, 4, 6]);
    probes(check, &head, &of(3), &[1, 2, 4, 6]);
    probes(check, &head, &of(4), &[0, 1, 2, 3, 4, 5, 6]);
}

fn clusters_of_equal_scores_are_probed_by_number(check: &Check<'_>) {
    // Scores of 0, of both signs, and one below.
    let zeros = [0.0, -0.0, -1.0, 0.0, 1.0, -1.0, -0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    for (count, ids) in [(1, &[0, 1][..]), (2, &[0, 1, 4, 5]), (5, &[0, 1, 4, 5, 6, 7, 8, 9, 10, 11])] {
        probes(
            check,
            &HeadCase::new(Dtype::F32, &[1.0; 24], &[1.0, 1.0], 2),
            &clusters(12, 2, &zeros, count),
            ids,
        );
    }
    // A centroid that is larger by a last bit comes first.
    let head = HeadCase::new(Dtype::F32, &[1.0; 12], &[1.0, 0.0], 2);
    let mut near = [1.0f32; 12];
    near[8] = 1.0f32.next_up();
    probes(check, &head, &clusters(6, 1, &near, 2), &[0, 4]);
}

fn a_score_that_overflows_is_the_largest_float(check: &Check<'_>) {
    // Cluster 1 has a score of f32::MAX, cluster 2 one of +inf, which counts as f32::MAX: the smaller number
    // comes first.
    let head = HeadCase::new(Dtype::F32, &[1.0; 12], &[1.0, 1.0], 2);
    let centroids = [1.0, 0.0, f32::MAX, 0.0, f32::MAX, f32::MAX];
    probes(check, &head, &clusters(6, 2, &centroids, 1), &[2, 3]);
    probes(check, &head, &clusters(6, 2, &centroids, 2), &[2, 3, 4, 5]);
}

fn special_ids_are_always_in_the_probed_set(check: &Check<'_>) {
    let head = HeadCase::new(Dtype::Bf16, &[7.0, 6.0, 5.0, 4.0, 3.0, 2.0], &[2.0], 1);
    for (special_ids, ids) in [
        (vec![5], &[2, 3, 5][..]),
        (vec![0, 2, 2], &[0, 2, 3]),
        (vec![5, 4, 3, 2, 1, 0], &[0, 1, 2, 3, 4, 5]),
    ] {
        let clusters = ClusterCase { special_ids, ..clusters(6, 2, &[0.0, 1.0, -1.0], 1) };
        probes(check, &head, &clusters, ids);
    }
}

fn a_hidden_state_that_is_not_finite_probes_clusters_too(check: &Check<'_>) {
    let weights = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, -1.0];
    let clusters = clusters(4, 1, &[0.0, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, 0.0], 2);
    // Scores of NaN count as -inf, so the first clusters are probed; their logits are NaN, too.
    for state in [[f32::NAN, 0.0], [f32::NAN; 2]] {
        let head = HeadCase::new(Dtype::F32, &weights, &state, 2);
        let seen = check.clusters(&head, &clusters, &all_logprobs(4, SamplingParams::default()));
        assert_eq!((seen.token, seen.status), (NONE, Status(Status::NAN.0 | Status::EMPTY.0)));
    }
    // Infinite times 0 is NaN, of a centroid as of a row.
    let head = HeadCase::new(Dtype::F32, &weights, &[f32::INFINITY, 1.0], 2);
    let seen = check.clusters(&head, &clusters, &all_logprobs(4, SamplingParams::default()));
    assert_eq!(seen.token, 3);
}

/// Requests of all kinds: some that a certified head could decide by a part, and some that read whole rows.
fn requests(seed: u64) -> Vec<SamplingParams> {
    let base = SamplingParams { seed: Some(seed), ..Default::default() };
    let logprobs = |mode: LogprobMode| Some(LogprobsParams { mode: mode.into(), top_n: 5, ids: vec![0, 4] });
    vec![
        base.clone(),
        SamplingParams {
            temperature: 0.0,
            repetition_penalty: 1.5,
            logprobs: logprobs(LogprobMode::Edited),
            ..base.clone()
        },
        SamplingParams { temperature: 0.3, frequency_penalty: -0.5, top_k: 9, ..base.clone() },
        SamplingParams { top_p: 0.8, logprobs: logprobs(LogprobMode::Tempered), ..base.clone() },
        SamplingParams {
            min_p: 0.05,
            typical_p: 0.9,
            logprobs: logprobs(LogprobMode::Processed),
            ..base.clone()
        },
        SamplingParams { top_n_sigma: 1.0, ..base.clone() },
        SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.1, mu: None }), ..base.clone() },
        SamplingParams {
            dynamic_temperature: Some(DynamicTemperature { min: 0.5, max: 1.5, exponent: 1.0 }),
            logit_bias: vec![(2, 3.0), (3, f32::NEG_INFINITY)],
            banned_ids: vec![9],
            ..base
        },
    ]
}

/// Returns the case of a request after a history; its logits are of no matter.
fn request(vocab: usize, params: SamplingParams) -> Case {
    let mut case = Case::of(&vec![0.0; vocab], params);
    (case.prompt, case.output) = (vec![1, 2, 3, 1], vec![4, 2]);
    case
}

/// Returns the ids below `vocab` in some order.
fn shuffled(vocab: usize, seed: u64) -> Vec<u32> {
    let order = rows::bell(vocab, 1.0, seed);
    let mut ids: Vec<u32> = (0..vocab as u32).collect();
    ids.sort_by(|a, b| order[*a as usize].total_cmp(&order[*b as usize]));
    ids
}

/// Puts ids into clusters of `capacity` to one, again and again.
fn uneven(ids: &[u32], capacity: usize) -> Vec<u32> {
    let (mut maps, mut rest) = (Vec::new(), ids);
    for size in (1..=capacity).rev().cycle() {
        let (map, after) = rest.split_at(size.min(rest.len()));
        maps.extend_from_slice(map);
        maps.resize(maps.len().next_multiple_of(capacity), NO_ID);
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    maps
}

fn a_clustered_head_gives_what_the_row_of_its_probed_set_gives(check: &Check<'_>) {
    let mut turns = 0..;
    for (vocab, width, capacity) in [(600, 48, 16), (257, 33, 7), (40, 5, 1), (40, 5, 40), (600, 17, 299)] {
        for seed in 0..4u64 {
            let (weights, hidden) = (rows::bell(vocab * width, 0.4, seed), rows::bell(width, 3.0, 90 + seed));
            let mut head = HeadCase::new(Dtype::ALL[seed as usize % 3], &weights, &hidden, width);
            if seed % 2 == 1 {
                head.bias = Some(rows::bell(vocab, 1.0, 7));
                head.scaling = Scaling { logit_scale: 0.5, softcap: 6.0 };
            }
            let ids = shuffled(vocab, seed);
            let maps = if seed < 2 { ids } else { uneven(&ids, capacity) };
            let count = maps.len().div_ceil(capacity);
            for probes in [1, count.div_ceil(5), count] {
                let clusters = ClusterCase {
                    maps: maps.clone(),
                    capacity,
                    centroids: rows::bell(count * width, 1.0, 60 + seed),
                    probes,
                    special_ids: vec![2, vocab as u32 - 1],
                };
                for params in check.by_turns(turns.next().expect("endless"), requests(seed)) {
                    check.clusters(&head, &clusters, &request(vocab, params));
                }
            }
        }
    }
}

fn edits_and_masks_act_within_the_probed_set(check: &Check<'_>) {
    // Ids 2 and 3 are probed, 2 with the larger logit.
    let head = HeadCase::new(Dtype::F32, &[7.0, 6.0, 5.0, 4.0, 3.0, 2.0], &[2.0], 1);
    let of = clusters(6, 2, &[0.0, 1.0, -1.0], 1);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let case = |params: &SamplingParams| Case::of(&[0.0; 6], params.clone());
    let token = |case: &Case| check.clusters(&head, &of, case).token;
    assert_eq!(token(&case(&greedy)), 2);
    // A bias of an id outside changes nothing, a ban of the first id leaves the second, and a ban of both
    // none.
    let params = SamplingParams { logit_bias: vec![(0, 100.0)], ..greedy.clone() };
    assert_eq!(token(&case(&params)), 2);
    let params = SamplingParams { banned_ids: vec![2], ..greedy.clone() };
    assert_eq!(token(&case(&params)), 3);
    let params = SamplingParams { allowed_ids: Some(vec![0, 4]), ..greedy.clone() };
    let seen = check.clusters(&head, &of, &case(&params));
    assert_eq!((seen.token, seen.status), (NONE, Status::EMPTY));
    // So does a bitmask, unless a special id is left.
    let masked = Case { mask: Some(vec![0b10_0001]), ..case(&greedy) };
    assert_eq!(token(&masked), NONE);
    let special = ClusterCase { special_ids: vec![5], ..of.clone() };
    assert_eq!(check.clusters(&head, &special, &masked).token, 5);
    // A forced token is emitted wherever it stands; a hook sees -inf outside.
    assert_eq!(token(&Case { forced: Some(0), ..case(&greedy) }), 0);
    let hooked = Case { hook: Some(CallerEdit::AddToMultiples(3, 1.0)), ..case(&greedy) };
    assert_eq!(token(&hooked), 2);
    // A token outside is no member of any mode.
    let forced = Case { forced: Some(0), ..all_logprobs(6, SamplingParams::default()) };
    let own = check.clusters(&head, &of, &forced).logprobs.expect("asked for").token;
    assert_eq!((own.logprob, own.rank), (f32::NEG_INFINITY, 0));
}

fn a_fast_clustered_head_has_the_logits_of_the_fast_one_in_any_batch(check: &Check<'_>) {
    // Around the ids of a warp and of a block, rows of weights that are aligned to 16 bytes and that are not,
    // and on a GPU of 132 multiprocessors two sets of ids a block. The last number: one in how many clusters
    // is probed.
    let shapes = [
        (1, 1, 1, Dtype::Bf16, 1),
        (33, 33, 7, Dtype::F16, 9),
        (209, 136, 16, Dtype::Bf16, 9),
        (208, 136, 1, Dtype::F16, 9),
        (600, 300, 5, Dtype::F16, 9),
        (25_500, 72, 16, Dtype::Bf16, 1),
    ];
    for (n, (vocab, width, capacity, dtype, part)) in (0..).zip(shapes) {
        let most = if vocab > 1000 { 65 } else { 323 };
        let weights = rows::bell(vocab * width, 0.3, n);
        let mut states = rows::bell(most * width, 1.0, 50 + n);
        if n == 2 {
            (states[width], states[2 * width]) = (f32::NAN, f32::INFINITY);
        }
        let of = |count: usize| {
            let mut case = HeadCase::new(dtype, &weights, &states[..count * width], width);
            case.bias = Some(rows::bell(vocab, 1.0, 3));
            case.scaling = Scaling { logit_scale: 0.5, softcap: 30.0 };
            case
        };
        let ids = shuffled(vocab, n);
        let maps = if n == 2 { uneven(&ids, capacity) } else { ids };
        let count = maps.len().div_ceil(capacity);
        // Every other shape has centroids that bf16 holds.
        let held = |x: f32| if n % 2 == 0 { x } else { half::bf16::from_f32(x).to_f32() };
        let clusters = ClusterCase {
            maps,
            capacity,
            centroids: rows::bell(count * width, 1.0, 60 + n).into_iter().map(held).collect(),
            probes: count.div_ceil(part),
            special_ids: if n == 3 { Vec::new() } else { vec![vocab as u32 - 1] },
        };
        let params = SamplingParams { min_p: 0.1, seed: Some(9), ..SamplingParams::default() };
        let Some(mut expected) = check.fast_head(&of(most), &params) else { return };
        let centroids = HeadCase::new(dtype, &clusters.centroids, &states, width);
        let scores = check.fast_head(&centroids, &params).expect("a fast head");
        for (z, scores) in expected.chunks_mut(vocab).zip(scores.chunks(count)) {
            let outside = z.iter_mut().zip(clusters.clusters().is_probed(scores, vocab));
            outside.filter(|(_, is_probed)| !is_probed).for_each(|(z, _)| *z = f32::NEG_INFINITY);
        }
        // The numbers of hidden states that are multiplied at once, the most whose probed ids are listed
        // together, and their neighbours.
        let rows = [1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 321, 323];
        let few = [1, 9, 64, 65];
        for rows in if vocab > 1000 { &few[..] } else { &rows } {
            let seen = check.fast_clusters(&of(*rows), Some(&clusters), &params).expect("a fast head");
            let differ =
                seen.iter().zip(&expected).position(|(seen, other)| seen.to_bits() != other.to_bits());
            assert_eq!(differ, None, "{rows} rows, {vocab} x {width}");
        }
    }
}
