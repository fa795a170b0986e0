//! Artefacts of clustered heads: clusters with their centroids; and clusters that somebody else built, as
//! tensors of any safetensors file.

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

const IDS: &str = "clusters.ids";
const CENTROIDS: &str = "clusters.centroids";

/// The tensors of clusters that somebody else built.
const GIVEN_MAPS: &str = "vocab_maps";
const GIVEN_CENTROIDS: &str = "centroids";

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
        let (maps, centroids) = (numbers(self.data(IDS)), numbers(self.data(CENTROIDS)));
        let clusters = Clusters::new(maps, capacity, centroids, (self.info.vocab, self.info.width))?;
        let build = iterations.map(|iterations| ClusterBuild { capacity, iterations });
        Ok(clusters.built_by(build))
    }

    /// Checks that the weights give these clusters; of given ones, that they are clusters.
    pub(super) fn verify_clusters(&self, exact: &Exact<'_>) -> Result<()> {
        let stored = self.stored_clusters()?;
        let Some(build) = stored.build_of() else { return Ok(()) };
        let built = Clusters::build(exact, build, &mut |_| true)?;
        for (name, is_same) in
            [(IDS, stored.maps() == built.maps()), (CENTROIDS, stored.centroids() == built.centroids())]
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
pub fn open_clusters(path: &Path, exact: &Exact<'_>) -> Result<Clusters> {
    match Artefact::open(path) {
        Ok(artefact) => artefact.clusters(exact),
        Err(ArtefactError::NotAHead) => Clusters::open(path, (exact.vocab(), exact.width())),
        Err(error) => Err(error),
    }
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
    let parts = vec![
        Part {
            name: IDS,
            dtype: Dtype::U32,
            shape: vec![count, capacity],
            data: bytemuck::cast_slice(clusters.maps()),
        },
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
    /// Reads clusters that somebody else built, of a vocabulary and for hidden states of `width` elements,
    /// from a safetensors file: the tensors `vocab_maps`, `[clusters, capacity]` of I64, I32 or U32 with -1
    /// as padding, and `centroids`, `[clusters, width]` of F32, BF16 or F16. What else the file holds is not
    /// read.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if it cannot be read.
    /// - [`ArtefactError::NotSafetensors`] or [`ArtefactError::Given`] if it is no such file.
    /// - [`ArtefactError::Clusters`] for what [`Clusters::new`] refuses, and ids that are negative.
    pub fn open(path: &Path, shape: (usize, usize)) -> Result<Self> {
        let map = MappedFile::open(path).map_err(ArtefactError::io(path))?;
        Self::of_file(map.as_ref(), shape)
    }

    /// Reads clusters from the bytes of such a file.
    ///
    /// # Errors
    /// The errors of [`Clusters::open`].
    pub fn of_file(bytes: &[u8], (vocab, width): (usize, usize)) -> Result<Self> {
        super::read_header(bytes)?;
        let unread =
            |error: safetensors::SafeTensorError| ArtefactError::NotSafetensors { reason: error.to_string() };
        let tensors = SafeTensors::deserialize(bytes).map_err(unread)?;
        let find = |name| tensors.tensor(name).ok();
        let wrong = |name, tensor: Option<TensorView<'_>>, wanted: String| {
            let described =
                |tensor: TensorView<'_>| format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape());
            ArtefactError::Given { name, found: tensor.map_or("missing".to_owned(), described), wanted }
        };
        let wrong_maps = |tensor| {
            let wanted = "I64, I32 or U32 of shape [clusters, capacity], with -1 as padding";
            wrong(GIVEN_MAPS, tensor, wanted.to_owned())
        };
        let of_maps = find(GIVEN_MAPS).ok_or_else(|| wrong_maps(None))?;
        let &[clusters, capacity] = of_maps.shape() else { return Err(wrong_maps(Some(of_maps))) };
        let maps: Vec<i64> = match of_maps.dtype() {
            Dtype::I64 => numbers(of_maps.data()),
            Dtype::I32 => numbers::<i32>(of_maps.data()).into_iter().map(i64::from).collect(),
            Dtype::U32 => numbers::<u32>(of_maps.data()).into_iter().map(i64::from).collect(),
            _ => return Err(wrong_maps(Some(of_maps))),
        };
        let wrong_centroids = |tensor| {
            let wanted =
                format!("F32, BF16 or F16 of shape [{clusters}, {width}], a row for each of vocab_maps");
            wrong(GIVEN_CENTROIDS, tensor, wanted)
        };
        let of_centroids = find(GIVEN_CENTROIDS).ok_or_else(|| wrong_centroids(None))?;
        if of_centroids.shape() != [clusters, width] {
            return Err(wrong_centroids(Some(of_centroids)));
        }
        let centroids = match of_centroids.dtype() {
            Dtype::F32 => numbers(of_centroids.data()),
            Dtype::BF16 => numbers::<bf16>(of_centroids.data()).into_iter().map(bf16::to_f32).collect(),
            Dtype::F16 => numbers::<f16>(of_centroids.data()).into_iter().map(f16::to_f32).collect(),
            _ => return Err(wrong_centroids(Some(of_centroids))),
        };
        Ok(Self::of_signed(&maps, capacity, centroids, (vocab, width))?)
    }
}

/// Copies numbers out of bytes at any address.
pub(super) fn numbers<T: Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}
