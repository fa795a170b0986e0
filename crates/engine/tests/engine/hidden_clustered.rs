//! Steps, drafts and scores by a clustered head: what comes of the rows of the definition, in any batch, and
//! marked approximate.

use allocation_counter::measure;
use gumball_engine::head::{
    ClusterBuild, Clustered, ClusteredOptions, Clusters, Exact, HeadOptions, HostMatrix,
};
use gumball_engine::{
    Batch, Drafts, Head, HeadCounts, Masks, NONE, Outputs, PADDING, Place, Pool, PoolConfig, Proposals,
    Route, Row, RowHook, Rows, SamplingParams, Scored, Status, VerifyMode, Widths, bf16, build_clusters,
};
use gumball_spec::head::clusters::Clusters as OfSpec;
use gumball_spec::num::philox4x32_10;

use crate::cases::{KINDS, VOCAB, back_to, params, pool};
use crate::hidden::{WIDTH, mixture, numbers, scaling};

const CAPACITY: usize = 12;
const PROBES: usize = 9;
const SPECIAL: [u32; 2] = [3, 899];

/// A clustered head, with the weights and clusters that the definition needs.
struct Case {
    weights: Vec<bf16>,
    clusters: Clusters,
}

impl Case {
    fn new() -> Self {
        let weights = numbers(VOCAB * WIDTH, 1, 1.0);
        let mut ids: Vec<u32> = (0..VOCAB as u32).collect();
        ids.sort_by_key(|id| philox4x32_10(4, [*id, 0, 8, 0])[0]);
        let centroids = numbers(VOCAB / CAPACITY * WIDTH, 2, 1.0);
        let centroids = centroids.iter().map(|x| x.to_f32()).collect();
        Self { weights, clusters: Clusters::new(ids, CAPACITY, centroids, (VOCAB, WIDTH)).unwrap() }
    }

    fn exact(&self) -> Exact<'_> {
        let options = HeadOptions { scaling: scaling(), ..Default::default() };
        Exact::new(&self.weights, VOCAB, WIDTH, options).unwrap()
    }

    fn head(&self, most_rows: usize) -> Clustered<'static> {
        let options = ClusteredOptions {
            probes: Some(PROBES),
            special_ids: SPECIAL.to_vec(),
            most_rows: Some(most_rows),
        };
        Clustered::new(&self.exact(), self.clusters.clone(), &options).unwrap()
    }

    /// Returns the rows of hidden states by the definition.
    fn by_definition(&self, states: &HostMatrix<'_>) -> Vec<f32> {
        let clusters = OfSpec {
            maps: self.clusters.maps(),
            capacity: CAPACITY,
            centroids: self.clusters.centroids(),
            probes: PROBES,
            special_ids: &SPECIAL,
        };
        let row = |row| clusters.logits(Row::Bf16(&self.weights), states.row(row), None, &scaling());
        (0..states.rows()).flat_map(row).collect()
    }
}

#[test]
fn a_step_is_one_from_the_rows_of_probed_sets_in_any_batch() {
    const ROWS: usize = 18;
    let case = Case::new();
    for route in [Route::Race, Route::Oracle, Route::Probabilities] {
        for (threads, with_kept, most_rows) in [(1, false, 100), (3, true, 100), (3, false, 4), (1, true, 0)]
        {
            let widths = Widths { top_n: 3, ids: 2 };
            let config = || PoolConfig {
                place: Place::threads(threads),
                widths,
                kept: with_kept,
                route: route.clone(),
                ..PoolConfig::new(VOCAB)
            };
            let mut pools = [Pool::new(config()).unwrap(), Pool::new(config()).unwrap()];
            let kinds = (0..ROWS).filter(|kind| route != Route::Probabilities || kind % 6 < 5);
            let mut slots: Vec<i32> = Vec::new();
            for kind in kinds {
                let [a, b] = &mut pools;
                slots.push(a.admit(mixture(kind), &[1, 2, 1]).unwrap());
                assert_eq!(b.admit(mixture(kind), &[1, 2, 1]), Ok(slots[slots.len() - 1]));
            }
            slots.insert(3, PADDING);
            let words = [0xFFFF_FFF7; 29].repeat(slots.len());
            let masks = Masks::new(&words, slots.len(), 29, 29).unwrap();
            let hook = |z: &mut [f32]| z[3] += 0.5;
            let mut hooks: Vec<Option<RowHook<'_>>> = vec![None; slots.len()];
            if route == Route::Race {
                hooks[1] = Some(&hook);
            }
            let options = Batch { masks, hooks: &hooks, ..Batch::default() };
            let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
            let head = case.head(most_rows);
            for step in 0..6 {
                let mut data = numbers(slots.len() * WIDTH, 100 + step, 3.0);
                match step {
                    2 => data[0] = bf16::NAN,
                    3 => data[..WIDTH].fill(bf16::ZERO),
                    _ => {}
                }
                let states = HostMatrix::new(&data, slots.len(), WIDTH).unwrap();
                let z = case.by_definition(&states);
                let z = Rows::logits(&z, slots.len(), VOCAB).unwrap();
                let [of_logits, of_states] = &mut pools;
                of_logits.step(z, &Batch { slots: &slots, ..options }, &mut expected).unwrap();
                of_states
                    .step(Rows::hidden(&head, states), &Batch { slots: &slots, ..options }, &mut seen)
                    .unwrap();
                assert_eq!(
                    seen.words(),
                    expected.words(),
                    "{route}, {threads} threads, {most_rows}, step {step}"
                );
                assert!(!with_kept || (0..slots.len()).all(|row| seen.kept(row) == expected.kept(row)));
                assert_eq!((seen.is_approximate(), expected.is_approximate()), (true, false));
            }
            let (counts, rows) = (pools[1].head_counts(), 6 * (slots.len() as u64 - 1));
            let HeadCounts {
                whole_rows, clustered_rows, clustered_logits, centroid_reads, weight_reads, ..
            } = counts;
            let of_row = (PROBES * CAPACITY + SPECIAL.len()) as u64;
            let expected = match most_rows {
                100 => (0, rows, rows * of_row, 6, 0),
                _ => (rows, 0, 0, 6, 6),
            };
            assert_eq!(
                (whole_rows, clustered_rows, clustered_logits, centroid_reads, weight_reads),
                expected
            );
        }
    }
}

#[test]
fn a_row_that_a_mask_leaves_empty_can_be_stepped_by_the_exact_head() {
    let case = Case::new();
    let (exact, head) = (case.exact(), case.head(8));
    assert_eq!([Head::from(&exact).is_approximate(), Head::from(&head).is_approximate()], [false, true]);
    let mut pool = pool(1);
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let slot = pool.admit(greedy, &[1]).unwrap();
    let data = numbers(WIDTH, 5, 3.0);
    let states = HostMatrix::new(&data, 1, WIDTH).unwrap();
    let row = case.by_definition(&states);
    let outside = row.iter().position(|z| *z == f32::NEG_INFINITY).unwrap();
    let mut words = [0; 29];
    words[outside / 32] = 1 << (outside % 32);
    let options = Batch { masks: Masks::new(&words, 1, 29, 29).unwrap(), ..Batch::default() };
    let mut out = Outputs::new();
    pool.step(Rows::hidden(&head, states), &Batch { slots: &[slot], ..options }, &mut out).unwrap();
    assert_eq!((out.tokens(), out.status(0)), (&[NONE][..], Status::EMPTY));
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
    pool.step(Rows::hidden(&exact, states), &Batch { slots: &[slot], ..options }, &mut out).unwrap();
    assert_eq!(out.tokens(), [outside as i32]);
    assert!(!out.is_approximate());
}

#[test]
fn drafts_and_scores_are_those_of_the_rows_of_probed_sets() {
    let case = Case::new();
    for (threads, most_rows) in [(1, 100), (3, 100), (1, 2)] {
        let head = case.head(most_rows);
        for mode in [VerifyMode::Coupled, VerifyMode::Greedy, VerifyMode::Rejection] {
            let mut pools = [pool(threads), pool(threads)];
            let kinds: Vec<usize> = (0..KINDS).filter(|kind| *kind != 4).collect();
            let mut slots = vec![PADDING];
            for kind in &kinds {
                let [a, b] = &mut pools;
                slots.push(a.admit(params(*kind, 3), &[1, 2, 1]).unwrap());
                assert_eq!(b.admit(params(*kind, 3), &[1, 2, 1]), Ok(slots[slots.len() - 1]));
            }
            let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
            for pass in 0..3 {
                let counts: Vec<u32> = (0..slots.len() as u32).map(|i| (i + pass) % 3).collect();
                let rows = slots.len() + counts.iter().sum::<u32>() as usize;
                let data = numbers(rows * WIDTH, 300 + u64::from(pass), 4.0);
                let states = HostMatrix::new(&data, rows, WIDTH).unwrap();
                let z = case.by_definition(&states);
                // Drafts are the likeliest tokens of the rows before them, most of which are accepted by
                // greedy requests.
                let best = |row: usize| {
                    let z = &z[row * VOCAB..][..VOCAB];
                    (0..VOCAB).max_by(|a, b| z[*a].total_cmp(&z[*b])).unwrap() as i32
                };
                let (mut ids, mut row) = (Vec::new(), 0);
                for count in &counts {
                    ids.extend((0..*count as usize).map(|draft| best(row + draft)));
                    row += *count as usize + 1;
                }
                let (counts, drafts) = (&counts, Drafts::chain(&ids));
                let options = Batch::default();
                let z = Rows::logits(&z, rows, VOCAB).unwrap();
                let [a, b] = &mut pools;
                a.verify(z, &Batch { slots: &slots, counts, mode, ..options }, &drafts, &mut expected)
                    .unwrap();
                b.verify(
                    Rows::hidden(&head, states),
                    &Batch { slots: &slots, counts, mode, ..options },
                    &drafts,
                    &mut seen,
                )
                .unwrap();
                assert_eq!(seen.words(), expected.words(), "{mode:?}, pass {pass}");
                assert_eq!(seen.accepted(), expected.accepted());
                assert!(seen.is_approximate() && !expected.is_approximate());
            }
            // Drafts of the head's own.
            let data = numbers(slots.len() * WIDTH, 9, 4.0);
            let states = HostMatrix::new(&data, slots.len(), WIDTH).unwrap();
            let z = case.by_definition(&states);
            let z = Rows::logits(&z, slots.len(), VOCAB).unwrap();
            let options = Batch::default();
            let (mut expected, mut seen) = (Proposals::new(2), Proposals::new(2));
            let [a, b] = &mut pools;
            a.draft(z, &Batch { slots: &slots, mode, ..options }, &[], &mut expected).unwrap();
            b.draft(Rows::hidden(&head, states), &Batch { slots: &slots, mode, ..options }, &[], &mut seen)
                .unwrap();
            assert!((0..slots.len()).all(|row| seen.row(row) == expected.row(row)));
        }
        let mut pool = pool(threads);
        let (ids, rows) = ([3, 5, 899, 3, 7, 12, 3], 6);
        let data = numbers(rows * WIDTH, 11, 4.0);
        let states = HostMatrix::new(&data, rows, WIDTH).unwrap();
        let z = case.by_definition(&states);
        for kind in (0..KINDS).filter(|kind| *kind != 4 && *kind != 5) {
            let params = params(kind, 3);
            let scored = Scored { params: &params, ids: &ids, prompt_len: 2, start: 1, chunk_rows: None };
            let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
            let options = Batch::default();
            pool.score(Rows::logits(&z, rows, VOCAB).unwrap(), &options, &scored, &mut expected).unwrap();
            for chunk_rows in [1, 4, 100] {
                pool.score(
                    Rows::hidden(&head, states),
                    &options,
                    &Scored { chunk_rows: Some(chunk_rows), ..scored },
                    &mut seen,
                )
                .unwrap();
                assert_eq!(seen.words(), expected.words(), "kind {kind} in chunks of {chunk_rows}");
                assert!(seen.is_approximate());
            }
        }
    }
}

#[test]
fn a_step_allocates_nothing_after_warm_up() {
    let case = Case::new();
    for most_rows in [100, 2] {
        let head = case.head(most_rows);
        let mut pool = pool(1);
        let slots: Vec<_> = (0..KINDS).map(|kind| pool.admit(params(kind, 3), &[1, 2]).unwrap()).collect();
        let data: Vec<_> = (0..8).map(|step| numbers(KINDS * WIDTH, step % 3, 3.0)).collect();
        let mut out = Outputs::new();
        let mut run = |pool: &mut Pool| {
            for data in &data {
                let states = HostMatrix::new(data, KINDS, WIDTH).unwrap();
                pool.step(Rows::hidden(&head, states), &Batch::of(&slots), &mut out).unwrap();
            }
        };
        run(&mut pool);
        back_to(&mut pool, &slots, 0);
        assert_eq!(measure(|| run(&mut pool)).count_total, 0);
    }
}

#[test]
fn a_clustered_head_of_another_shape_is_refused() {
    let case = Case::new();
    let head = case.head(8);
    let mut pool = Pool::new(PoolConfig { place: Place::threads(1), ..PoolConfig::new(VOCAB - 1) }).unwrap();
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let data = numbers(WIDTH, 1, 1.0);
    let (options, mut out) = (Batch::default(), Outputs::new());
    let states = HostMatrix::new(&data, 1, WIDTH).unwrap();
    let error = pool
        .step(Rows::hidden(&head, states), &Batch { slots: &[slot], ..options }, &mut out)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("logits has length 900, but must have 899"), "{error}");
    let mut pool = crate::cases::pool(1);
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let states = HostMatrix::strided(&data, 1, WIDTH - 1, WIDTH).unwrap();
    let error = pool
        .step(Rows::hidden(&head, states), &Batch { slots: &[slot], ..options }, &mut out)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("hidden has length 36"), "{error}");
}

#[test]
fn clusters_that_shared_threads_build_are_those_of_one_thread() {
    let case = Case::new();
    let exact = case.exact();
    let build = ClusterBuild { capacity: 13, iterations: 4 };
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let expected = one.install(|| Clusters::build(&exact, build, &mut |_| true)).unwrap();
    let mut reports = 0;
    let mut count = |so_far: gumball_engine::head::ClusterProgress| {
        reports += 1;
        so_far.iteration < 4
    };
    assert_eq!(build_clusters(&exact, build, &mut count).unwrap(), expected);
    assert!(reports >= 4);
    let stopped = build_clusters(&exact, build, &mut |so_far| so_far.iteration < 2).unwrap_err();
    assert_eq!(stopped.to_string(), "no clusters: the caller stopped the build");
    for (capacity, iterations) in [(0, 1), (901, 1), (1, 0)] {
        let never = &mut |_| panic!("nothing is compared");
        assert!(build_clusters(&exact, ClusterBuild { capacity, iterations }, never).is_err());
    }
}

#[test]
fn a_chunk_of_a_score_holds_what_is_said() {
    // Rows that are computed whole: 8 bytes for each id and 12 for each cluster, besides the hidden states
    // and what each row takes whatever the head.
    const ROWS: usize = 64;
    let case = Case::new();
    let head = case.head(0);
    let data = numbers(ROWS * WIDTH, 5, 1.0);
    let states = HostMatrix::new(&data, ROWS, WIDTH).unwrap();
    let ids: Vec<u32> = (0..=ROWS as u32).collect();
    let params = SamplingParams::default();
    let score = |head: Head<'_>, chunk_rows| {
        let mut pool = pool(1);
        let (options, mut out) = (Batch::default(), Outputs::new());
        let scored = Scored { params: &params, ids: &ids, prompt_len: 1, start: 1, chunk_rows: None };
        measure(|| {
            pool.score(
                Rows::hidden(head, states),
                &options,
                &Scored { chunk_rows: Some(chunk_rows), ..scored },
                &mut out,
            )
            .unwrap()
        })
        .bytes_max
    };
    let exact = case.exact();
    let by_exact = score((&exact).into(), ROWS) as i64 - score((&exact).into(), 1) as i64;
    let by_clusters = score((&head).into(), ROWS) as i64 - score((&head).into(), 1) as i64;
    let rows = ROWS as i64 - 1;
    let said = rows * (4 * VOCAB as i64 + 12 * (VOCAB / CAPACITY) as i64);
    assert!((by_clusters - by_exact - said).abs() < said / 20, "{by_clusters} - {by_exact}, not {said}");
}
