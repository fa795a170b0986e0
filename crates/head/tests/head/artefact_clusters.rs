//! Artefacts of clustered heads: the data that was written is read back, a build goes on where it stopped,
//! and clusters of others are read or refused.

use std::path::{Path, PathBuf};

use gumball_head::artefact::{ClusterInfo, Kind, build, build_clusters, open_clusters};
use gumball_head::{
    Artefact, ArtefactError, Certified, ClusterBuild, Clustered, ClusteredOptions, Clusters, Exact,
    HeadOptions,
};
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};

use crate::{folder, numbers};

const VOCAB: usize = 301;
const WIDTH: usize = 24;
const BUILD: ClusterBuild = ClusterBuild { capacity: 8, iterations: 5 };

fn head(weights: &[f32]) -> Exact<'_> {
    Exact::new(weights, weights.len() / WIDTH, WIDTH, HeadOptions::default()).expect("a head")
}

fn built(folder: &Path, weights: &[f32]) -> PathBuf {
    let path = folder.join("head.safetensors");
    build_clusters(&head(weights), "lm_head.weight", BUILD, &path, &mut |_| true).expect("it is built");
    path
}

#[test]
fn what_is_read_back_is_what_was_built() {
    let (folder, weights) = (folder(), numbers(VOCAB * WIDTH, 1));
    let path = built(folder.path(), &weights);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    let artefact = Artefact::open(&path).expect("an artefact");
    let info = artefact.info();
    // 37 clusters of 8, and one of 5.
    let clusters = ClusterInfo { clusters: 38, capacity: 8, iterations: Some(5) };
    assert_eq!(
        (info.kind, info.kind.name(), info.kind.screen()),
        (Kind::Clustered(clusters), "clustered", None)
    );
    assert_eq!((info.vocab, info.width, &*info.weights_name), (VOCAB, WIDTH, "lm_head.weight"));
    let read = artefact.clusters(&head(&weights)).expect("these weights");
    assert_eq!(read, Clusters::build(&head(&weights), BUILD, &mut |_| true).expect("clusters"));
    assert_eq!(read.build_of(), Some(BUILD));
    artefact.verify(&head(&weights)).expect("it is what these weights give");
    Clustered::new(&head(&weights), read, &ClusteredOptions::default()).expect("a head");
}

#[test]
fn a_clustered_head_writes_the_file_of_its_weights_as_they_were() {
    let (folder, weights) = (folder(), numbers(VOCAB * WIDTH, 1));
    let wide: Vec<bf16> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
    let bias = numbers(VOCAB, 2);
    let options = || HeadOptions { bias: Some((&bias).into()), ..HeadOptions::default() };
    let exact = Exact::new(&wide, VOCAB, WIDTH, options()).expect("a head");
    let clusters = Clusters::build(&exact, BUILD, &mut |_| true).expect("clusters");
    let (of_exact, path) = (folder.path().join("exact"), folder.path().join("clustered"));
    Artefact::write_clusters(&clusters, &exact, "w", &of_exact).expect("it is written");
    let info = |path: &Path| Artefact::open(path).expect("an artefact").info().clone();
    let mut moved = wide.clone();
    let settings = ClusteredOptions::default();
    for clustered in [
        Clustered::new(&exact, clusters.clone(), &settings),
        Clustered::in_place(&mut moved, options(), clusters.clone(), &settings),
    ] {
        Artefact::write_clustered(&clustered.expect("a head"), "w", &path).expect("it is written");
        assert_eq!(info(&path), info(&of_exact));
        assert_eq!(open_clusters(&path, &exact).expect("of these weights"), clusters);
    }
    let exact = head(&weights);
    assert!(matches!(open_clusters(&path, &exact), Err(ArtefactError::Source { .. })));
}

#[test]
fn a_build_that_was_stopped_goes_on_to_the_same_clusters() {
    let (folder, other, weights) = (folder(), crate::folder(), numbers(VOCAB * WIDTH, 1));
    let whole = built(other.path(), &weights);
    let path = folder.path().join("head");
    let part = folder.path().join("head.part");
    let run = |weights: &[f32], last: usize| {
        let mut first = None;
        let mut progress = |progress: gumball_head::ClusterProgress| {
            first.get_or_insert(progress.iteration);
            progress.iteration < last
        };
        let result = build_clusters(&head(weights), "lm_head.weight", BUILD, &path, &mut progress);
        (result, first)
    };
    let stopped = run(&weights, 2);
    assert!(matches!(stopped, (Err(ArtefactError::Interrupted), Some(0))), "{stopped:?}");
    assert!(part.exists() && !path.exists());
    // It goes on where it stopped, and begins again for other weights or a damaged file.
    assert!(matches!(run(&weights, 3), (Err(ArtefactError::Interrupted), Some(2))));
    let kept = std::fs::read(&part).expect("a file");
    assert!(matches!(run(&numbers(VOCAB * WIDTH, 2), 1), (Err(ArtefactError::Interrupted), Some(0))));
    for damaged in [kept.len() - 40, 30] {
        let mut bytes = kept.clone();
        bytes[damaged] ^= 1;
        std::fs::write(&part, bytes).expect("a file");
        assert!(matches!(run(&weights, 0), (Err(ArtefactError::Interrupted), Some(0))));
    }
    std::fs::write(&part, &kept).expect("a file");
    assert!(matches!(run(&weights, 9), (Ok(()), Some(3))));
    assert!(!part.exists());
    assert_eq!(std::fs::read(&path).expect("a file"), std::fs::read(&whole).expect("a file"));
}

#[test]
fn no_damaged_byte_makes_an_artefact_a_file_of_others_that_has_no_checksum() {
    let (folder, weights) = (folder(), numbers(VOCAB * WIDTH, 1));
    let bytes = std::fs::read(built(folder.path(), &weights)).expect("a file");
    let path = folder.path().join("damaged");
    let refuses = |bytes: &[u8], what: &str| {
        std::fs::write(&path, bytes).expect("a file");
        assert!(open_clusters(&path, &head(&weights)).is_err(), "{what}");
    };
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    // By each bit, and from a blank to a tab.
    let flips = (0..8).map(|bit| 1 << bit).chain([b' ' ^ b'\t']);
    for flip in flips {
        for place in (0..header).chain((header..bytes.len()).step_by(61)) {
            let mut damaged = bytes.clone();
            damaged[place] ^= flip;
            refuses(&damaged, &format!("byte {place}, flipped by {flip}"));
        }
    }
    let text = String::from_utf8_lossy(&bytes[..header]).into_owned();
    let format = text.find("gumball-head").expect("the format");
    for place in (0..header).chain((header..bytes.len()).step_by(61)) {
        let mut damaged = bytes.clone();
        damaged[format] ^= 1;
        damaged[place] ^= 2;
        refuses(&damaged, &format!("the format and byte {place}"));
    }
}

#[test]
fn another_head_another_kind_and_a_damaged_file_are_refused() {
    let (folder, weights) = (folder(), numbers(VOCAB * WIDTH, 1));
    let path = built(folder.path(), &weights);
    let artefact = Artefact::open(&path).expect("an artefact");
    let message = |error: ArtefactError| error.to_string();
    let other = numbers(VOCAB * WIDTH, 2);
    let error = message(artefact.clusters(&head(&other)).expect_err("other weights"));
    assert!(error.contains("the weights it was built from: SHA-256"), "{error}");
    let error = message(artefact.certified(head(&weights)).expect_err("no certified head"));
    assert_eq!(error, "it holds a head of kind `clustered`, and this build knows certified");
    let certified = folder.path().join("certified");
    Artefact::write(&Certified::new(head(&weights)), "w", &certified).expect("it is written");
    let of_certified = Artefact::open(&certified).expect("an artefact");
    assert!(matches!(of_certified.clusters(&head(&weights)), Err(ArtefactError::Kind { what: "head", .. })));
    build(&head(&weights), "w", &certified, &mut |_| true).expect("another kind in its place");

    let mut bytes = std::fs::read(&path).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = Artefact::of(std::sync::Arc::new(bytes)).expect("an artefact");
    assert!(matches!(damaged.clusters(&head(&weights)), Err(ArtefactError::Checksum { .. })));

    // A file that someone made: its checksum holds, its clusters are not what the weights give, and not the
    // last one is short.
    let clusters = artefact.clusters(&head(&weights)).expect("clusters");
    let mut maps = clusters.maps().to_vec();
    maps.swap(0, 100);
    maps.rotate_right(8);
    let made = Clusters::new(maps, 8, clusters.centroids().to_vec(), (VOCAB, WIDTH)).expect("clusters");
    Artefact::write_clusters(&made, &head(&weights), "lm_head.weight", &path).expect("it is written");
    let given = Artefact::open(&path).expect("an artefact");
    let Kind::Clustered(info) = given.info().kind else { panic!("clusters") };
    assert_eq!(info.iterations, None);
    given.verify(&head(&weights)).expect("given clusters need only be clusters");
    assert_eq!(given.clusters(&head(&weights)).expect("clusters"), made);
    let narrow = Exact::new(&weights[..10 * 12], 10, 12, HeadOptions::default()).expect("a head");
    let error = Artefact::write_clusters(&made, &narrow, "w", &path).expect_err("another shape").to_string();
    assert!(error.starts_with("no clusters of this head: vocab_maps has length 301"), "{error}");
    let refused = ClusterBuild { capacity: 400, iterations: 1 };
    let error = build_clusters(&head(&weights), "w", refused, &path, &mut |_| true).expect_err("too large");
    assert!(error.to_string().contains("capacity is 400"), "{error}");
}

#[test]
fn clusters_of_others_are_read_whatever_their_types_and_refused_with_names() {
    let folder = folder();
    let path = folder.path().join("clusters.safetensors");
    let ids: Vec<i64> = vec![4, 0, -1, 1, 2, 3];
    let centroids: Vec<f32> = vec![0.5, -1.0, 2.0, 0.25];
    let write = |tensors: &[(&str, Dtype, &[usize], Vec<u8>)]| {
        let view = |(name, dtype, shape, data): &'_ (&str, Dtype, &[usize], Vec<u8>)| {
            let bytes: &'static [u8] = data.clone().leak();
            ((*name).to_owned(), TensorView::new(*dtype, shape.to_vec(), bytes).expect("a tensor"))
        };
        let bytes = safetensors::serialize(tensors.iter().map(view), None).expect("bytes");
        std::fs::write(&path, bytes).expect("a file");
        Clusters::open(&path, (5, 2))
    };
    let wide: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let narrow: Vec<u8> = ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect();
    let floats: Vec<u8> = centroids.iter().flat_map(|x| x.to_le_bytes()).collect();
    let halves: Vec<u8> = centroids.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
    let expected = Clusters::of_signed(&ids, 3, centroids.clone(), (5, 2)).expect("clusters");
    for (of_ids, of_centroids) in [
        ((Dtype::I64, wide.clone()), (Dtype::F32, floats.clone())),
        ((Dtype::I32, narrow.clone()), (Dtype::BF16, halves)),
        ((Dtype::U32, narrow.clone()), (Dtype::F32, floats.clone())),
    ] {
        let read = write(&[
            ("vocab_maps", of_ids.0, &[2, 3], of_ids.1),
            ("centroids", of_centroids.0, &[2, 2], of_centroids.1),
        ]);
        assert_eq!(read.expect("clusters"), expected);
    }
    let of = |ids: (Dtype, &[usize], Vec<u8>), shape: &[usize]| {
        let tensors = [("vocab_maps", ids.0, ids.1, ids.2), ("centroids", Dtype::F32, shape, floats.clone())];
        write(&tensors).expect_err("no clusters").to_string()
    };
    assert!(
        of((Dtype::I64, &[6], wide.clone()), &[2, 2])
            .contains("`vocab_maps` is I64 of shape [6], but must be I64, I32")
    );
    assert!(of((Dtype::F32, &[2, 3], narrow.clone()), &[2, 2]).contains("must be I64, I32 or U32"));
    assert!(
        of((Dtype::I64, &[2, 3], wide.clone()), &[4, 1])
            .contains("`centroids` is F32 of shape [4, 1], but must be F32, BF16 or F16 of shape [2, 2]")
    );
    let twice: Vec<u8> = [4i32, 0, -1, 1, 2, 4].iter().flat_map(|id| id.to_le_bytes()).collect();
    let error = of((Dtype::I32, &[2, 3], twice), &[2, 2]);
    assert!(error.contains("vocab_maps is 4 in cluster 0 and in cluster 1, and lacks 3"), "{error}");
    let error = write(&[("vocab_maps", Dtype::I64, &[2, 3], wide)]).expect_err("no centroids").to_string();
    assert_eq!(
        error,
        "its tensor `centroids` is missing, but must be F32, BF16 or F16 of shape [2, 2], a row for each of vocab_maps"
    );
    let error =
        write(&[("centroids", Dtype::F32, &[2, 2], floats.clone())]).expect_err("no maps").to_string();
    assert!(error.starts_with("its tensor `vocab_maps` is missing, but must be I64, I32 or U32"), "{error}");
    assert!(Clusters::open(&folder.path().join("none"), (5, 2)).is_err());
    let header = r#"{"vocab_maps":{"dtype":"I64","shape":[0,0],"data_offsets":[0,0]},"vocab_maps":{"dtype":"I64","shape":[0,0],"data_offsets":[0,0]}}"#;
    let twice = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let error = Clusters::of_file(&twice, (5, 2)).expect_err("a name twice").to_string();
    assert!(error.contains("\"vocab_maps\" stands twice"), "{error}");

    // Clusters of others say nothing of the weights, but must be of their shape.
    let ids = ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect();
    write(&[("vocab_maps", Dtype::I32, &[2, 3], ids), ("centroids", Dtype::F32, &[2, 2], floats.clone())])
        .expect("clusters");
    let of = |vocab, width| {
        let weights = numbers(vocab * width, 3);
        let exact = Exact::new(weights, vocab, width, HeadOptions::default()).expect("a head");
        open_clusters(&path, &exact).map_err(|error| error.to_string())
    };
    assert_eq!(of(5, 2), Ok(expected));
    assert!(of(7, 2).unwrap_err().contains("vocab_maps is without 5, 6, but must be each id in 0..7 once"));
    assert!(of(5, 3).unwrap_err().contains("F16 of shape [2, 3]"));
}
