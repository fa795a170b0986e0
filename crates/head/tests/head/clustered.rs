//! Clustered heads: rows of probed sets, permuted weights, refusals; and clusters as they are built.

use gumball_head::{
    ClusterBuild, Clustered, ClusteredOptions, Clusters, Exact, HeadOptions, HostMatrix, Level, Probes,
    Scaling, Spread, Weights, Widened,
};
use gumball_spec::head::clusters::Clusters as OfSpec;
use gumball_spec::num::philox4x32_10;
use gumball_spec::{Error, Row};
use half::bf16;

use crate::{bits, numbers};

/// Returns the ids below `vocab` in some order.
fn shuffled(vocab: usize, seed: u64) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..vocab as u32).collect();
    ids.sort_by_key(|id| philox4x32_10(seed, [*id, 0, 8, 0])[0]);
    ids
}

fn clusters(vocab: usize, capacity: usize, width: usize, seed: u64) -> Clusters {
    let centroids = numbers(vocab / capacity * width, seed + 1);
    Clusters::new(shuffled(vocab, seed), capacity, centroids, (vocab, width)).unwrap()
}

#[test]
fn rows_are_those_of_the_definition_over_any_threads_and_in_any_batch() {
    let (vocab, width) = (360, 37);
    let weights: Vec<bf16> = numbers(vocab * width, 1).into_iter().map(bf16::from_f32).collect();
    let bias = numbers(vocab, 2);
    let scaling = Scaling { logit_scale: 0.75, softcap: 20.0 };
    let hidden = numbers(9 * width, 3);
    for level in Level::ALL.into_iter().filter(|level| level.check().is_ok()) {
        let options = || HeadOptions { bias: Some((&bias).into()), scaling, level: Some(level) };
        let exact = Exact::new(&weights, vocab, width, options()).unwrap();
        for (capacity, probes) in [(12, 5), (360, 1), (1, 40), (8, 45)] {
            let clusters = clusters(vocab, capacity, width, 10);
            let special_ids = vec![7, 300, 7];
            let of = |most_rows| ClusteredOptions {
                probes: Some(probes),
                special_ids: special_ids.clone(),
                most_rows: Some(most_rows),
            };
            let by_definition = OfSpec {
                maps: clusters.maps(),
                capacity,
                centroids: clusters.centroids(),
                probes,
                special_ids: &special_ids,
            };
            for rows in [1, 3, 9] {
                let states = HostMatrix::new(&hidden[..rows * width], rows, width).unwrap();
                let row =
                    |row| by_definition.logits(Row::Bf16(&weights), states.row(row), Some(&bias), &scaling);
                let expected: Vec<f32> = (0..rows).flat_map(row).collect();
                let widened = Widened::of(states);
                let mut probes = Probes::default();
                for (spread, most_rows) in
                    [(Spread::Caller, 100), (Spread::Rayon, 100), (Spread::Caller, 0), (Spread::Rayon, 2)]
                {
                    let head = Clustered::new(&exact, clusters.clone(), &of(most_rows)).unwrap();
                    let mut out = vec![f32::NAN; rows * vocab];
                    let probed = head.rows(&widened, spread, &mut probes, &mut out).unwrap();
                    assert_eq!(
                        bits(&out),
                        bits(&expected),
                        "{level} {capacity} {rows} {spread:?} {most_rows}"
                    );
                    assert_eq!(probed.is_whole, rows > most_rows);
                    let logits = rows * (head.probes() * capacity + 2);
                    assert_eq!(probed.logits, if probed.is_whole { 0 } else { logits });
                }
            }
        }
    }
}

#[test]
fn a_permuted_head_has_the_ids_and_the_bits_of_the_exact_head() {
    let (vocab, width) = (96, 20);
    let weights = numbers(vocab * width, 4);
    let bias = numbers(vocab, 5);
    let options = || HeadOptions { bias: Some((&bias).into()), ..HeadOptions::default() };
    let exact = Exact::new(&weights, vocab, width, options()).unwrap();
    let clusters = clusters(vocab, 8, width, 6);
    let states = Widened::of(HostMatrix::new(&numbers(5 * width, 7), 5, width).unwrap());
    let mut expected = vec![0.0; 5 * vocab];
    exact.logits(&states, Spread::Caller, &mut expected).unwrap();

    let copy = Clustered::new(&exact, clusters.clone(), &ClusteredOptions::default()).unwrap();
    let mut own = weights.clone();
    let in_place =
        Clustered::in_place(&mut own, options(), clusters.clone(), &ClusteredOptions::default()).unwrap();
    let Weights::F32(permuted) = in_place.weights().clone() else { panic!("f32") };
    for head in [&copy, &in_place] {
        for spread in [Spread::Caller, Spread::Rayon] {
            let mut out = vec![0.0; 5 * vocab];
            head.logits(&states, spread, &mut Probes::default(), &mut out).unwrap();
            assert_eq!(bits(&out), bits(&expected));
        }
    }
    // An embedding that shares the buffer finds an id's row at its place.
    for (id, place) in in_place.places().iter().enumerate() {
        assert_eq!(permuted[*place as usize * width..][..width], weights[id * width..][..width]);
    }
    drop(in_place);
    // Another head over rows that lie so already.
    let other = Clustered::over_permuted(&own, options(), clusters.clone(), &ClusteredOptions::default());
    let mut out = vec![0.0; 5 * vocab];
    other.unwrap().logits(&states, Spread::Caller, &mut Probes::default(), &mut out).unwrap();
    assert_eq!(bits(&out), bits(&expected));

    // A refused call moves no row.
    let before = own.clone();
    let wrong = ClusteredOptions { special_ids: vec![96], ..ClusteredOptions::default() };
    assert!(Clustered::in_place(&mut own, options(), clusters.clone(), &wrong).is_err());
    let short = HeadOptions { bias: Some((&bias[1..]).into()), ..HeadOptions::default() };
    assert!(Clustered::in_place(&mut own, short, clusters, &ClusteredOptions::default()).is_err());
    assert_eq!(own, before);
}

#[test]
fn what_is_wrong_with_clusters_is_named() {
    // The definition's own tests hold which maps it refuses.
    let of = |maps: &[i64], capacity, centroids: usize| {
        Clusters::of_signed(maps, capacity, vec![0.0; centroids], (4, 2)).map_err(|error| error.to_string())
    };
    assert_eq!(of(&[0, 1], 0, 4).unwrap_err(), "capacity is 0, but must be in 1..=4, the vocabulary");
    assert_eq!(
        of(&[0, 1, 2, -2], 2, 4).unwrap_err(),
        "vocab_maps is -2 in cluster 1, but must be ids in 0..4, or -1: padding"
    );
    assert!(of(&[0, 1, 2, 1 << 32], 2, 4).unwrap_err().contains("4294967296 in cluster 1"));
    assert!(of(&[0, 1, 2, -1], 2, 4).unwrap_err().contains("vocab_maps is without 3"));
    assert!(of(&[0, 1, 2, 3], 2, 5).unwrap_err().contains("2 centroids of 2 elements"));
    assert!(of(&[], 2, 0).is_err());
    let uneven = of(&[2, -1, -1, 0, 3, 1], 3, 4).unwrap();
    assert_eq!((uneven.count(), uneven.capacity(), uneven.ids()), (2, 3, &[2, 0, 3, 1][..]));
    assert_eq!((uneven.ids_of(0), uneven.ids_of(1)), (&[2][..], &[0, 3, 1][..]));
    assert_eq!(uneven.maps(), [2, u32::MAX, u32::MAX, 0, 3, 1]);

    let weights = numbers(12 * 4, 1);
    let exact = Exact::new(&weights, 12, 4, HeadOptions::default()).unwrap();
    let new = |clusters, options| Clustered::new(&exact, clusters, &options).unwrap_err().to_string();
    let special = ClusteredOptions { special_ids: vec![3, 12, 40], ..ClusteredOptions::default() };
    assert_eq!(
        new(clusters(12, 3, 4, 1), special),
        "special_ids is 12, 40, but must be ids in 0..12, which stand in the maps of clusters"
    );
    let probes = ClusteredOptions { probes: Some(5), ..ClusteredOptions::default() };
    assert_eq!(
        new(clusters(12, 3, 4, 1), probes),
        "probes is 5, but must be in 1..=4, the number of clusters"
    );
    assert!(new(clusters(9, 3, 4, 1), ClusteredOptions::default()).contains("12 ids, as the head"));
    assert!(new(clusters(12, 3, 5, 1), ClusteredOptions::default()).contains("4 elements in a centroid"));
    let head = Clustered::new(&exact, clusters(12, 3, 4, 1), &ClusteredOptions::default()).unwrap();
    assert_eq!((head.probes(), head.most_rows()), (1, 16));
    assert!(head.clone().with_probes(0).is_err());
    let mut changed = head.clone();
    assert!(changed.set_probes(5).unwrap_err().to_string().starts_with("probes is 5"));
    assert_eq!(changed.probes(), 1);
    changed.set_probes(4).unwrap();
    assert_eq!(changed.probes(), 4);
    let states = Widened::of(HostMatrix::new(&weights[..5], 1, 5).unwrap());
    assert!(head.rows(&states, Spread::Caller, &mut Probes::default(), &mut [0.0; 12]).is_err());
    let states = Widened::of(HostMatrix::new(&weights[..4], 1, 4).unwrap());
    assert!(head.rows(&states, Spread::Caller, &mut Probes::default(), &mut [0.0; 11]).is_err());
}

/// Rows that lie around some directions, in an order that says nothing of them; returns for each row its
/// direction.
fn rows_around(directions: usize, rows: usize, width: usize) -> (Vec<f32>, Vec<usize>) {
    let centers = numbers(directions * width, 20);
    let of_row: Vec<usize> = shuffled(rows, 21).iter().map(|place| *place as usize % directions).collect();
    let near = numbers(rows * width, 22);
    let row = |id: usize| {
        let center = &centers[of_row[id] * width..][..width];
        let length = 1.0 + (id % 5) as f32;
        let row = center.iter().zip(&near[id * width..]).map(|(c, x)| (c + 0.1 * x) * length);
        row.collect::<Vec<f32>>()
    };
    ((0..rows).flat_map(row).collect(), of_row)
}

fn built(exact: &Exact<'_>, capacity: usize) -> Clusters {
    Clusters::build(exact, ClusterBuild { capacity, iterations: 12 }, &mut |_| true).unwrap()
}

#[test]
fn built_clusters_have_every_id_once_and_find_what_lies_together() {
    let (directions, capacity, width) = (24, 10, 32);
    let (weights, of_row) = rows_around(directions, directions * capacity, width);
    let exact = Exact::new(&weights, directions * capacity, width, HeadOptions::default()).unwrap();
    let clusters = built(&exact, capacity);
    assert_eq!((clusters.count(), clusters.vocab(), clusters.width()), (directions, 240, width));
    let pure = |cluster: &usize| {
        let ids = clusters.ids_of(*cluster);
        ids.iter().all(|id| of_row[*id as usize] == of_row[ids[0] as usize])
    };
    let pure = (0..clusters.count()).filter(pure).count();
    assert!(pure >= directions * 3 / 4, "{pure} of {directions} clusters have rows of one direction");
    // The row of the largest logit is found by few probes.
    let options = ClusteredOptions { probes: Some(3), ..ClusteredOptions::default() };
    let head = Clustered::new(&exact, clusters, &options).unwrap();
    let first = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let (mut probes, mut found) = (Probes::default(), 0);
    for seed in 0..200 {
        let states = Widened::of(HostMatrix::new(&numbers(width, 100 + seed), 1, width).unwrap());
        let (mut whole, mut row) = (vec![0.0; 240], vec![0.0; 240]);
        exact.logits(&states, Spread::Caller, &mut whole).unwrap();
        head.rows(&states, Spread::Caller, &mut probes, &mut row).unwrap();
        found += usize::from(first(&whole) == first(&row));
    }
    assert!(found >= 170, "{found} of 200");
}

#[test]
fn a_build_does_not_depend_on_threads_or_level() {
    let (vocab, width) = (1003, 21);
    let weights: Vec<bf16> = numbers(vocab * width, 30).into_iter().map(bf16::from_f32).collect();
    let build = |threads, level| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = HeadOptions { level: Some(level), ..HeadOptions::default() };
        let exact = Exact::new(&weights, vocab, width, options).unwrap();
        pool.install(|| built(&exact, 16))
    };
    let first = build(1, Level::Scalar);
    // 62 clusters of 16, and one of 11.
    assert_eq!((first.count(), first.ids_of(62).len()), (63, 11));
    for level in Level::ALL.into_iter().filter(|level| level.check().is_ok()) {
        assert_eq!(build(3, level), first);
    }
}

#[test]
fn many_rows_are_computed_whole_where_many_clusters_are_probed() {
    let weights = numbers(48 * 4, 1);
    let exact = Exact::new(&weights, 48, 4, HeadOptions::default()).unwrap();
    let of = |probes, most_rows| {
        let options = ClusteredOptions { probes: Some(probes), most_rows, ..ClusteredOptions::default() };
        Clustered::new(&exact, clusters(48, 2, 4, 1), &options).unwrap()
    };
    // Of 24 clusters.
    let most = [(4, None), (5, None), (4, Some(7)), (24, Some(0))]
        .map(|(probes, most)| of(probes, most).most_rows());
    assert_eq!(most, [usize::MAX, 16, 7, 0]);
    assert_eq!(of(4, None).with_probes(24).unwrap().most_rows(), 16);
}

#[test]
fn odd_rows_are_clustered_too() {
    // Rows of zeros, equal rows, and rows that are not finite.
    let (vocab, width) = (60, 8);
    let mut weights = numbers(vocab * width, 40);
    weights[..10 * width].fill(0.0);
    weights[10 * width..12 * width].fill(f32::NAN);
    weights[12 * width] = f32::INFINITY;
    for id in 20..40 {
        weights.copy_within(20 * width..21 * width, id * width);
    }
    let exact = Exact::new(&weights, vocab, width, HeadOptions::default()).unwrap();
    for capacity in [1, 7, 59, 60] {
        let clusters = built(&exact, capacity);
        let mut ids = clusters.ids().to_vec();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..60));
        assert!(clusters.centroids().iter().all(|x| x.is_finite()));
    }
    let refused = |build| Clusters::build(&exact, build, &mut |_| true).unwrap_err().to_string();
    assert!(refused(ClusterBuild { capacity: 61, iterations: 1 }).starts_with("capacity is 61"));
    assert!(refused(ClusterBuild { capacity: 6, iterations: 0 }).starts_with("iterations is 0"));
    let mut reports = 0;
    let stopped = Clusters::build(&exact, ClusterBuild::default(), &mut |progress| {
        reports += 1;
        progress.iteration < 1
    });
    assert!(stopped.is_err() && reports > 1);
}

#[test]
fn rows_without_a_direction_take_what_room_is_left() {
    // All rows equal the mean, so the second assignment would be the first again: the build makes one, and
    // progress reports no other.
    let (vocab, width) = (1000, 4);
    let weights = vec![1.5f32; vocab * width];
    let exact = Exact::new(&weights[..], vocab, width, HeadOptions::default()).unwrap();
    let mut reports = 0;
    let build = ClusterBuild { capacity: 16, ..ClusterBuild::default() };
    let clusters = Clusters::build(&exact, build, &mut |_| {
        reports += 1;
        true
    });
    let ids: Vec<u32> = (0..vocab as u32).collect();
    assert_eq!(clusters.unwrap().ids(), ids);
    assert!(reports <= 4, "{reports}");
}

#[test]
fn a_row_that_is_the_mean_counts_in_its_centroid() {
    let weights = [-2.0f32, -1.0, 0.0];
    let exact = Exact::new(&weights[..], 3, 1, HeadOptions::default()).unwrap();
    let clusters = built(&exact, 1);
    let mut of_ids: Vec<_> = clusters.ids().iter().copied().zip(clusters.centroids().to_vec()).collect();
    of_ids.sort_by_key(|(id, _)| *id);
    assert_eq!(of_ids, [(0, -2.0), (1, -1.0), (2, 0.0)]);
}

#[test]
fn widths_that_no_head_has_are_refused() {
    for width in [0, (1 << 16) + 1, 1 << 63] {
        let refused = Clusters::new(vec![0, 1], 1, Vec::new(), (2, width));
        assert!(matches!(refused, Err(Error::OutOfRange { parameter: "width", .. })), "{width}");
    }
}
