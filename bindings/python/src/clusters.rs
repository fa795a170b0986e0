//! Clusters of a clustered head: given as arrays, read from a file, or built while Python looks on.
//!
//! A build may take minutes. It runs on a thread of its own, and the thread that asked for it calls
//! `progress` and looks for signals meanwhile; an exception of either stops the build.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use gumball_engine::head::artefact::open_clusters;
use gumball_engine::head::{ClusterBuild, ClusterProgress, ClusteredOptions, Clusters, Exact};
use gumball_engine::{Row, build_clusters};
use pyo3::prelude::*;

use crate::arrays::{self, Matrix};
use crate::errors::{InvalidValueError, UnavailableError, of_file, out_of_range, to_py_err, wrong_type};
use crate::hooks::caught;
use crate::lists::{extract_int, integer_lists};
use crate::signals::LOOK;

/// The arguments of a head that say which clusters it has.
#[derive(Clone, Copy)]
pub struct ClusterArguments<'a, 'py> {
    pub vocab_maps: Option<&'a Bound<'py, PyAny>>,
    pub centroids: Option<&'a Bound<'py, PyAny>>,
    pub capacity: Option<&'a Bound<'py, PyAny>>,
    pub iterations: Option<&'a Bound<'py, PyAny>>,
    pub progress: Option<&'a Bound<'py, PyAny>>,
}

/// Where the clusters of a head come from.
pub enum Source<'py> {
    Given(Clusters),
    File(PathBuf),
    Built(ClusterBuild, Option<Bound<'py, PyAny>>),
}

impl<'py> ClusterArguments<'_, 'py> {
    /// Returns the arguments that are set, by their names.
    pub fn set(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("vocab_maps", self.vocab_maps),
            ("centroids", self.centroids),
            ("capacity", self.capacity),
            ("iterations", self.iterations),
            ("progress", self.progress),
        ];
        all.into_iter().filter(|(_, given)| given.is_some()).map(|(name, _)| name)
    }

    /// Reads what they say of a head of `shape`, which is [vocab, width].
    ///
    /// # Errors
    /// - `ValueError` for arguments that exclude each other, and for clusters that are none.
    /// - `TypeError` for objects of other types.
    pub fn source(&self, file: Option<PathBuf>, shape: (usize, usize)) -> PyResult<Source<'py>> {
        let excluded = |name: &str, other: &str| {
            let text = format!("{name} is for clusters that are built, but {other} is given");
            Err(InvalidValueError::new_err(text))
        };
        if let Some(file) = file {
            return match self.set().next() {
                Some(name @ ("vocab_maps" | "centroids")) => Err(InvalidValueError::new_err(format!(
                    "{name} and file are given, but must be one of the two"
                ))),
                Some(name) => excluded(name, "file"),
                None => Ok(Source::File(file)),
            };
        }
        match (self.vocab_maps, self.centroids) {
            (Some(maps), Some(centroids)) => {
                match self.set().find(|name| !matches!(*name, "vocab_maps" | "centroids")) {
                    Some(name) => excluded(name, "vocab_maps"),
                    None => read_given(maps, centroids, shape).map(Source::Given),
                }
            }
            (None, None) => {
                let ClusterBuild { capacity, iterations } = ClusterBuild::default();
                let read = |given: Option<&Bound<'py, PyAny>>, name, otherwise| {
                    given.map_or(Ok(otherwise), |given| extract_int(given, name))
                };
                let capacity = read(self.capacity, "capacity", capacity)?;
                let iterations = read(self.iterations, "iterations", iterations)?;
                if let Some(progress) = self.progress.filter(|progress| !progress.is_callable()) {
                    return Err(wrong_type("progress", "callable", progress));
                }
                Ok(Source::Built(ClusterBuild { capacity, iterations }, self.progress.cloned()))
            }
            (Some(_), None) => Err(InvalidValueError::new_err(
                "vocab_maps is given without centroids, which must be given too: [clusters, width], a row for each map",
            )),
            (None, Some(_)) => Err(InvalidValueError::new_err(
                "centroids is given without vocab_maps, which must be given too: [clusters, capacity] of ids, with -1 as padding",
            )),
        }
    }
}

impl Source<'_> {
    /// Returns the clusters of a head. Options are checked before anything is built.
    pub fn clusters(
        self,
        py: Python<'_>,
        exact: &Exact<'_>,
        options: &ClusteredOptions,
    ) -> PyResult<Clusters> {
        match self {
            Source::Given(clusters) => Ok(clusters),
            Source::File(path) => {
                let read = py.detach(|| caught(UNBUILT, || open_clusters(&path, exact)))?;
                read.map_err(|error| of_file("file", error))
            }
            Source::Built(build, progress) => {
                let vocab = exact.vocab();
                // A capacity of 0 is refused when the build begins, before anything is compared.
                options.check(vocab, vocab.div_ceil(build.capacity.max(1))).map_err(to_py_err)?;
                built(py, exact, build, progress.as_ref())
            }
        }
    }
}

/// The state after a panic, for the message.
const UNBUILT: &str = "no clusters were made";

/// Takes the maps of clusters, `[clusters, capacity]`, or a list of ids for each, with centroids `[clusters,
/// width]`.
fn read_given(
    maps: &Bound<'_, PyAny>,
    centroids: &Bound<'_, PyAny>,
    shape: (usize, usize),
) -> PyResult<Clusters> {
    let mut lists: Vec<Vec<i64>> = integer_lists(maps, "vocab_maps")?;
    let (_array, matrix) = arrays::host_floats(centroids, "centroids")?;
    if (matrix.rows, matrix.width) != (lists.len(), shape.1) {
        let allowed = format!("({}, {}), a row for each map", lists.len(), shape.1);
        return Err(out_of_range("centroids.shape", format!("({}, {})", matrix.rows, matrix.width), allowed));
    }
    let capacity = lists.iter().map(Vec::len).max().unwrap_or(0);
    lists.iter_mut().for_each(|list| list.resize(capacity, -1));
    let read = Clusters::of_signed(&lists.concat(), capacity, widened(&matrix), shape);
    read.map_err(|error| {
        to_py_err(error.with_parameter(|name| if name == "capacity" { "vocab_maps.shape[1]" } else { name }))
    })
}

/// Copies the rows of a matrix, as float32.
fn widened(matrix: &Matrix) -> Vec<f32> {
    // SAFETY: the elements lie on the host, as the caller checked, and the caller holds the array; Python's
    // callers do not write it during the call.
    let all = unsafe { matrix.floats() };
    let of_row = |row: usize| (0..matrix.width).map(move |i| row * matrix.stride + i);
    let places = (0..matrix.rows).flat_map(of_row);
    match all {
        Row::F32(all) => places.map(|place| all[place]).collect(),
        Row::Bf16(all) => places.map(|place| all[place].to_f32()).collect(),
        Row::F16(all) => places.map(|place| all[place].to_f32()).collect(),
    }
}

/// Builds clusters on another thread. This one calls `progress` and looks for signals.
fn built(
    py: Python<'_>,
    exact: &Exact<'_>,
    build: ClusterBuild,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Clusters> {
    let is_stopped = AtomicBool::new(false);
    let (sender, mut receiver) = mpsc::channel();
    let is_stopped = &is_stopped;
    thread::scope(|scope| {
        let work = move || {
            let mut report = |so_far: ClusterProgress| {
                // A receiver that is gone has stopped the build.
                sender.send(so_far).is_ok() && !is_stopped.load(Ordering::Relaxed)
            };
            caught(UNBUILT, || build_clusters(exact, build, &mut report))
        };
        let named = thread::Builder::new().name("gumball-clusters".to_owned());
        let builder = named.spawn_scoped(scope, work).map_err(|error| {
            UnavailableError::new_err(format!("a thread for clusters is not available: {error}"))
        })?;
        let mut failure = None;
        loop {
            let waiting = &mut receiver;
            let looked = match py.detach(move || waiting.recv_timeout(LOOK)) {
                Ok(ClusterProgress { iteration, iterations, done, of, .. }) => match progress {
                    Some(progress) if failure.is_none() => {
                        progress.call1((iteration, iterations, done, of)).map(|_| ())
                    }
                    _ => Ok(()),
                },
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Err(error) = looked.and_then(|()| py.check_signals()) {
                is_stopped.store(true, Ordering::Relaxed);
                failure.get_or_insert(error);
            }
        }
        let built = py.detach(|| builder.join()).expect("panics are caught in it");
        match failure {
            Some(error) => Err(error),
            None => built?.map_err(to_py_err),
        }
    })
}
