//! How clusters are built, and how far a build is.

/// Ids in a cluster, by default.
const CAPACITY: usize = 16;

/// How often rows are assigned, by default.
const ITERATIONS: usize = 10;

/// How clusters are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterBuild {
    /// Ids in a cluster, in 1..=vocab; the last cluster has what is left.
    pub capacity: usize,
    /// How often rows are assigned to clusters, 1 or more; fewer times if nothing changes any more.
    pub iterations: usize,
}

impl Default for ClusterBuild {
    fn default() -> Self {
        Self { capacity: CAPACITY, iterations: ITERATIONS }
    }
}

/// How far a build of clusters is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterProgress {
    /// Which time rows are assigned, from 0.
    pub iteration: usize,
    /// How many times they will be at most.
    pub iterations: usize,
    /// Rows that were compared with all centroids this time.
    pub done: usize,
    /// Rows in all.
    pub of: usize,
}
