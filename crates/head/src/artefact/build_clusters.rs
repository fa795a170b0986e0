//! Building the artefact of a clustered head, so that it can be stopped and goes on.
//!
//! Beside the artefact lies a file of the finished part (`.part`), written again after each assignment: a
//! line that identifies the build; how often rows were assigned, their clusters, the next centroids; and the
//! SHA-256 of all that. When all is done the artefact is written, and the file goes.

use std::io::Read;
use std::path::Path;

use gumball_cpu::files;
use sha2::{Digest, Sha256};

use super::clusters::{numbers as stored_numbers, write_clusters};
use super::{ArtefactError, ClusterInfo, Kind, Result, Source, check_place, left_over};
use crate::cluster_build::{ClusterBuild, ClusterProgress};
use crate::exact::Exact;
use crate::grouping::Grouping;

/// Builds the artefact of a clustered head, over rayon's threads, and writes it to a file, which appears when
/// it is whole.
///
/// `name`: the name of the tensor of weights. `progress` is told how far it is, and returns whether to go on;
/// after it said no, or after the process ended, the same call goes on after the last assignment of all
/// rows.
///
/// # Errors
/// - [`ArtefactError::Clusters`] for a capacity outside 1..=vocab, or no iterations.
/// - [`ArtefactError::Io`] if a file cannot be written; and before anything is built for what [`check_place`]
///   refuses.
/// - [`ArtefactError::Interrupted`] if `progress` said so.
/// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
pub fn build_clusters(
    exact: &Exact<'_>,
    name: &str,
    build: ClusterBuild,
    path: &Path,
    progress: &mut dyn FnMut(ClusterProgress) -> bool,
) -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(ArtefactError::BigEndian);
    }
    let mut grouping = Grouping::new(exact, build)?;
    check_place(path)?;
    let source = Source::of(exact, name);
    let part = left_over::place(path);
    let failed = || ArtefactError::io(&part);
    let ClusterBuild { capacity, iterations } = build;
    let clusters = exact.vocab().div_ceil(capacity);
    let kind = Kind::Clustered(ClusterInfo { clusters, capacity, iterations: Some(iterations) });
    let line = left_over::line("clusters", &source, exact, kind);
    if let Some(mut file) = left_over::open(&part, &line).map_err(failed())? {
        let mut bytes = line.clone();
        file.read_to_end(&mut bytes).map_err(failed())?;
        take_up(&mut grouping, &line, &bytes);
    }
    while !grouping.is_done() {
        if !grouping.assign(progress)? {
            return Err(ArtefactError::Interrupted);
        }
        files::write(&part, &record(&grouping, &line)).map_err(failed())?;
    }
    write_clusters(&grouping.clusters()?, exact, &source, path)?;
    std::fs::remove_file(&part).map_err(failed())
}

/// Returns what is done, with its digest.
fn record(grouping: &Grouping<'_, '_>, line: &[u8]) -> Vec<u8> {
    let [iteration, is_settled] = [grouping.iteration as u32, u32::from(grouping.is_settled)];
    let numbers = [&[iteration, is_settled], &grouping.clusters[..]].concat();
    let mut bytes =
        [line, bytemuck::cast_slice(&numbers), bytemuck::cast_slice(&grouping.centroids)].concat();
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// Takes up what a file holds, if it is whole and of the same build.
fn take_up(grouping: &mut Grouping<'_, '_>, line: &[u8], bytes: &[u8]) {
    let whole = record(grouping, line).len();
    let Some((body, digest)) = bytes.split_last_chunk::<32>() else { return };
    if bytes.len() != whole || !body.starts_with(line) || Sha256::digest(body)[..] != *digest {
        return;
    }
    let (numbers, centroids) = body[line.len()..].split_at(size_of::<u32>() * (2 + grouping.clusters.len()));
    let numbers: Vec<u32> = stored_numbers(numbers);
    grouping.iteration = numbers[0] as usize;
    grouping.is_settled = numbers[1] != 0;
    grouping.clusters.copy_from_slice(&numbers[2..]);
    grouping.centroids = stored_numbers(centroids);
}
