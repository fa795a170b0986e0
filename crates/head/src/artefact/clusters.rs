//! Artefacts of clustered heads: clusters with their centroids; and clusters that somebody else built, in any
//! safetensors file.

use std::path::Path;

use bytemuck::Pod;
use gumball_cpu::MappedFile;
use gumball_spec::hex::hex;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use sha2::{Digest, Sha256};

use super::{
    Artefact, ArtefactError, CLUSTERED, ClusterInfo, Kind, Part, Result, Source, bytes_of, not_so, sha256,
    write::write,
};
use crate::cluster_build::ClusterBuild;
use crate::clustered::Clustered;
use crate::clusters::Clusters;
use crate::exact::Exact;

pub(super) const IDS: &str = "clusters.ids";
pub(super) const CENTROIDS: &str = "clusters.centroids";

/// What stands in the last cluster of an artefact where there is no id.
const NO_ID: u32 = u32::MAX;

impl Artefact {
    /// Returns the clusters of a clustered head's artefact, after reading all of the file and all weights
    /// once, to see that the content is unchanged, and that it was built from these weights.
    /// `exact`: over the weights as they were, in the order of ids.
    ///
    /// # Errors
    /// - [`ArtefactError::Kind`] if it is of another kind of head.
    /// - [`ArtefactError::Checksum`] or [`ArtefactError::Header`] if the content is not what was written.
    /// - [`ArtefactError::Source`] if the head has another shape, type, weights or bias.
    /// - [`ArtefactError::Clusters`] if ids and centroids are no clusters of them.
    pub fn clusters(&self, exact: &Exact<'_>) -> Result<Clusters> {
        self.expect_head(CLUSTERED)?;
        self.check()?;
        self.check_source(exact)?;
        self.stored_clusters()
    }

    /// Writes the artefact of clusters to a file, which appears when it is whole. `exact`: over the weights
    /// in the order of ids. `name`: that of their tensor.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if it cannot be written.
    /// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
    /// - [`ArtefactError::Clusters`] if the clusters are of another vocabulary or width.
    pub fn write_clusters(clusters: &Clusters, exact: &Exact<'_>, name: &str, path: &Path) -> Result<()> {
        write_clusters(clusters, exact, &Source::of(exact, name), path)
    }

    /// Writes the artefact of a clustered head to a file, which appears when it is whole: that of its
    /// clusters and of its weights as they were, in the order of ids. `name`: that of their tensor.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if it cannot be written.
    /// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
    pub fn write_clustered(clustered: &Clustered<'_>, name: &str, path: &Path) -> Result<()> {
        let permuted = clustered.permuted();
        let mut weights = Sha256::new();
        for place in clustered.places() {
            weights.update(bytes_of(permuted.weights_of(*place as usize)));
        }
        let bias = permuted.bias().map(|bias| {
            let of_ids: Vec<f32> = clustered.places().iter().map(|place| bias[*place as usize]).collect();
            sha256(bytemuck::cast_slice(&of_ids))
        });
        let source = Source {
            name: name.to_owned(),
            weights_sha256: hex(&weights.finalize()),
            bias_sha256: bias,
            ..Source::of_shape(permuted)
        };
        write_clusters(clustered.clusters(), permuted, &source, path)
    }

    fn stored_clusters(&self) -> Result<Clusters> {
        let Kind::Clustered(ClusterInfo { capacity, iterations, .. }) = self.info.kind else {
            unreachable!("checked: of a clustered head")
        };
        let mut ids: Vec<u32> = numbers(self.data(IDS));
        // After the last id there is none; any other number there is seen when the clusters are made.
        while ids.len() > self.info.vocab && ids.last() == Some(&NO_ID) {
            ids.pop();
        }
        let centroids = numbers(self.data(CENTROIDS));
        let clusters = Clusters::with_short_last(ids, capacity, centroids, self.info.width)?;
        let build = iterations.map(|iterations| ClusterBuild { capacity, iterations });
        Ok(clusters.built_by(build))
    }

    /// Checks that the weights give these clusters; of given ones, that they are clusters.
    pub(super) fn verify_clusters(&self, exact: &Exact<'_>) -> Result<()> {
        let stored = self.stored_clusters()?;
        let Some(build) = stored.build_of() else { return Ok(()) };
        let built = Clusters::build(exact, build, &mut |_| true)?;
        for (name, is_same) in
            [(IDS, stored.ids() == built.ids()), (CENTROIDS, stored.centroids() == built.centroids())]
        {
            if !is_same {
                return Err(ArtefactError::Rebuilt { name: name.to_owned() });
            }
        }
        Ok(())
    }

    /// Checks that the tensors of clusters are there, with their types and shapes.
    pub(super) fn check_cluster_tensors(
        &self,
        ClusterInfo { clusters, capacity, .. }: ClusterInfo,
    ) -> Result<()> {
        let width = self.info.width;
        for (name, dtype, shape) in
            [(IDS, "U32", vec![clusters, capacity]), (CENTROIDS, "F32", vec![clusters, width])]
        {
            let found = self.info.tensors.iter().find(|tensor| tensor.name == name);
            if found.is_none_or(|found| found.dtype != dtype || found.shape != shape) {
                return Err(not_so(name, found, format!("{dtype} of shape {shape:?}")));
            }
        }
        Ok(())
    }
}

/// Reads the clusters of a head from a file: an artefact, with all the checks of [`Artefact::clusters`], or a
/// file of somebody else's, as [`Clusters::open`] reads it. `exact`: over the weights as they were, in the
/// order of ids.
///
/// # Errors
/// - The errors of [`Artefact::open`] and [`Artefact::clusters`], except for [`ArtefactError::NotAHead`].
/// - The errors of [`Clusters::open`], of a file that is no artefact.
/// - [`ArtefactError::Clusters`] if the clusters are of another vocabulary or width.
pub fn open_clusters(path: &Path, exact: &Exact<'_>) -> Result<Clusters> {
    let clusters = match Artefact::open(path) {
        Ok(artefact) => artefact.clusters(exact)?,
        Err(ArtefactError::NotAHead) => Clusters::open(path)?,
        Err(error) => return Err(error),
    };
    clusters.check_shape(exact.vocab(), exact.width())?;
    Ok(clusters)
}

/// Writes clusters of the weights of a source.
pub(super) fn write_clusters(
    clusters: &Clusters,
    exact: &Exact<'_>,
    source: &Source,
    path: &Path,
) -> Result<()> {
    clusters.check_shape(exact.vocab(), exact.width())?;
    let (count, capacity, width) = (clusters.count(), clusters.capacity(), clusters.width());
    let mut ids = clusters.ids().to_vec();
    ids.resize(count * capacity, NO_ID);
    let parts = vec![
        Part { name: IDS, dtype: Dtype::U32, shape: vec![count, capacity], data: bytemuck::cast_slice(&ids) },
        Part {
            name: CENTROIDS,
            dtype: Dtype::F32,
            shape: vec![count, width],
            data: bytemuck::cast_slice(clusters.centroids()),
        },
    ];
    let iterations = clusters.build_of().map(|build| build.iterations);
    let kind = Kind::Clustered(ClusterInfo { clusters: count, capacity, iterations });
    write(&source.fields(exact, kind), parts, path)
}

impl Clusters {
    /// Reads clusters that somebody else built from a safetensors file: the tensors `clusters.ids`,
    /// `[clusters, capacity]` of I64, I32 or U32, and `clusters.centroids`, `[clusters, width]` of F32, BF16
    /// or F16. What else the file holds is not read.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if it cannot be read.
    /// - [`ArtefactError::NotSafetensors`] or [`ArtefactError::Tensor`] if it is no such file.
    /// - [`ArtefactError::Clusters`] for what [`Clusters::new`] refuses, and ids that are negative.
    pub fn open(path: &Path) -> Result<Self> {
        let map = MappedFile::open(path).map_err(ArtefactError::io(path))?;
        Self::of_file(map.as_ref())
    }

    /// Reads clusters from the bytes of such a file.
    ///
    /// # Errors
    /// The errors of [`Clusters::open`].
    pub fn of_file(bytes: &[u8]) -> Result<Self> {
        super::read_header(bytes)?;
        let unread =
            |error: safetensors::SafeTensorError| ArtefactError::NotSafetensors { reason: error.to_string() };
        let tensors = SafeTensors::deserialize(bytes).map_err(unread)?;
        let find = |name: &'static str| {
            tensors.tensor(name).map_err(|_| not_so(name, None, "a tensor of two dimensions".to_owned()))
        };
        let (of_ids, of_centroids) = (find(IDS)?, find(CENTROIDS)?);
        let wrong = |name: &str, tensor: &TensorView<'_>, wanted: String| ArtefactError::Tensor {
            name: name.to_owned(),
            found: format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape()),
            wanted,
        };
        let &[clusters, capacity] = of_ids.shape() else {
            return Err(wrong(IDS, &of_ids, "of shape [clusters, capacity]".to_owned()));
        };
        let ids: Vec<i64> = match of_ids.dtype() {
            Dtype::I64 => numbers(of_ids.data()),
            Dtype::I32 => numbers::<i32>(of_ids.data()).into_iter().map(i64::from).collect(),
            Dtype::U32 => numbers::<u32>(of_ids.data()).into_iter().map(i64::from).collect(),
            _ => return Err(wrong(IDS, &of_ids, "I64, I32 or U32".to_owned())),
        };
        let id = |(place, id): (usize, i64)| {
            u32::try_from(id).map_err(|_| {
                let value = format!("{id} in cluster {}", place / capacity.max(1));
                gumball_spec::Error::out_of_range("cluster_ids", value, "ids from 0 on")
            })
        };
        let ids = ids.into_iter().enumerate().map(id).collect::<gumball_spec::Result<Vec<u32>>>()?;
        if of_centroids.shape().len() != 2 || of_centroids.shape()[0] != clusters {
            return Err(wrong(CENTROIDS, &of_centroids, format!("of shape [{clusters}, width]")));
        }
        let centroids = match of_centroids.dtype() {
            Dtype::F32 => numbers(of_centroids.data()),
            Dtype::BF16 => numbers::<bf16>(of_centroids.data()).into_iter().map(bf16::to_f32).collect(),
            Dtype::F16 => numbers::<f16>(of_centroids.data()).into_iter().map(f16::to_f32).collect(),
            _ => return Err(wrong(CENTROIDS, &of_centroids, "F32, BF16 or F16".to_owned())),
        };
        Ok(Self::new(ids, capacity, centroids)?)
    }
}

/// Copies numbers out of bytes at any address.
pub(super) fn numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
