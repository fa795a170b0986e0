//! Where an artefact is told to go: no writer of them harms what it did not make.

use std::path::Path;

use gumball_head::artefact::{build, build_clusters, check_place};
use gumball_head::{
    Artefact, ArtefactError, Certified, ClusterBuild, Clustered, ClusteredOptions, Clusters, Exact,
    HeadOptions,
};

use crate::paths::{refuses_all_but_files, spares_neighbours};

/// The names that builds leave what they have done so far under, and that they once wrote through.
const NEIGHBOURS: [&str; 3] = ["out.html.part", "out.html.new", "out.html.part.new"];

const BUILD: ClusterBuild = ClusterBuild { capacity: 4, iterations: 2 };

fn exact() -> Exact<'static> {
    let weights: Vec<f32> = (0..40 * 8).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    Exact::new(weights, 40, 8, HeadOptions::default()).expect("a head")
}

fn certified(path: &Path) -> Result<(), ArtefactError> {
    build(&exact(), "w", path, &mut |_| true)
}

fn clustered(path: &Path) -> Result<(), ArtefactError> {
    build_clusters(&exact(), "w", BUILD, path, &mut |_| true)
}

/// Saves, as a program that has the head does.
fn saved(path: &Path) -> Result<(), ArtefactError> {
    Artefact::write(&Certified::new(exact()), "w", path)
}

fn saved_clusters(path: &Path) -> Result<(), ArtefactError> {
    let exact = exact();
    let clusters = Clusters::new((0..40).collect(), 4, vec![0.5; 10 * 8], (40, 8)).expect("clusters");
    let head = Clustered::new(&exact, clusters, &ClusteredOptions::default()).expect("a head");
    Artefact::write_clustered(&head, "w", path)
}

type Writer = fn(&Path) -> Result<(), ArtefactError>;

const WRITERS: [Writer; 4] = [certified, clustered, saved, saved_clusters];

#[test]
fn an_artefact_replaces_a_plain_file_and_nothing_else() {
    for writer in WRITERS {
        refuses_all_but_files(move |path: &Path| writer(path).map_err(|error| error.to_string()));
    }
}

#[test]
fn what_lies_beside_an_artefact_is_harmed_by_no_writer() {
    for writer in WRITERS {
        spares_neighbours(&NEIGHBOURS, move |path: &Path| writer(path).map_err(|error| error.to_string()));
    }
}

#[test]
fn a_place_that_will_not_do_is_refused_before_anything_is_built() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut is_asked = false;
    let mut told = |path: &Path| {
        build(&exact(), "w", path, &mut |_| std::mem::replace(&mut is_asked, true)).expect_err("refused");
        build_clusters(&exact(), "w", BUILD, path, &mut |_| std::mem::replace(&mut is_asked, true))
            .expect_err("refused")
            .to_string()
    };
    for (path, says) in [
        (folder.path().to_owned(), "it is a folder, not a file"),
        (folder.path().join("none/out"), "No such file"),
        (folder.path().join("out/"), "it is no name of a file"),
        ("..".into(), "it is no name of a file"),
    ] {
        let told = told(&path);
        assert!(told.contains(says), "{path:?}: {told}");
    }
    std::fs::write(folder.path().join("a.part"), "").expect("a file");
    let told = told(&folder.path().join("a"));
    assert!(told.contains("no build of a head left this file; move it away"), "{told}");
    assert!(!is_asked);
    check_place(&folder.path().join("b")).expect("nothing is in the way");
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 1, "nothing was left there");
}
