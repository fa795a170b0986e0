//! Clustered heads: how their clusters are built, given or read.

use std::ffi::c_void;
use std::path::Path;

use gumball_engine::head::artefact::open_clusters;
use gumball_engine::head::{
    ClusterBuild, ClusterProgress, Clustered, ClusteredOptions as Settings, Clusters, Exact, WeightsMut,
};
use gumball_engine::{Dtype as Type, bf16, build_clusters, f16};

use crate::error::{Failure, Result};
use crate::ffi::Caller;
use crate::head_config::{BUILD, CLUSTERS, Head, HeadConfig, Inner, of_file};
use crate::matrix::dtype;

/// A program's function that receives how far a build is.
struct Listener {
    function: unsafe extern "C" fn(*mut c_void, usize, usize, usize, usize) -> i32,
    user: *mut c_void,
}

// SAFETY: the header says that it is called on a thread of the library, so the C caller ensures that `user`
// may be used there.
unsafe impl Send for Listener {}

impl Listener {
    /// Tells it how far a build is; returns whether to go on.
    fn tell(&mut self, so_far: ClusterProgress) -> bool {
        let ClusterProgress { iteration, iterations, done, of, .. } = so_far;
        // SAFETY: the C caller ensures that `function` is one of this type that takes `user`.
        unsafe { (self.function)(self.user, iteration, iterations, done, of) == 0 }
    }
}

/// Makes a head of the clusters that are in a config's file, or that the config has, or that are built of its
/// weights.
pub(crate) fn open(c: Caller<'static>, config: &HeadConfig) -> Result<Head> {
    if let Some(path) = c.optional_text("file", config.file)? {
        config.refuse(&CLUSTERS, "file", "the file has clusters; leave it zero")?;
        config.refuse(&BUILD, "file", "the file has clusters, and none are built; leave it zero")?;
        return make(c, config, |exact, _| {
            open_clusters(Path::new(path), exact).map_err(|error| of_file("file", path, error))
        });
    }
    if config.vocab_maps.is_null() {
        let reason = "without maps clusters are built; give the ids of each, with UINT32_MAX as padding";
        config.refuse(&["centroids", "clusters"], "vocab_maps", reason)?;
        return build(c, config);
    }
    config.refuse(&BUILD, "vocab_maps", "none are built of the weights then; leave it zero")?;
    let (shape, clusters, capacity) =
        ((config.weights.rows, config.weights.width), config.clusters, config.capacity);
    for (name, number) in [("clusters", clusters), ("capacity", capacity)] {
        if !(1..=shape.0).contains(&number) {
            let allowed = format!("in 1..={}, the vocabulary", shape.0);
            return Err(Failure::out_of_range(name, number, &allowed));
        }
    }
    let maps = c.slice("vocab_maps", config.vocab_maps, clusters.saturating_mul(capacity))?;
    let centroids = c.slice("centroids", config.centroids, clusters.saturating_mul(shape.1))?;
    let clusters = Clusters::new(maps.to_vec(), capacity, centroids.to_vec(), shape)?;
    make(c, config, |_, _| Ok(clusters))
}

fn build(c: Caller<'static>, config: &HeadConfig) -> Result<Head> {
    let HeadConfig { capacity, iterations, progress, user, .. } = *config;
    let mut build = ClusterBuild::default();
    build.capacity = if capacity == 0 { build.capacity } else { capacity };
    build.iterations = if iterations == 0 { build.iterations } else { iterations };
    make(c, config, |exact, settings| {
        let vocab = exact.vocab();
        settings.check(vocab, vocab.div_ceil(build.capacity))?;
        let mut listener = progress.map(|function| Listener { function, user });
        let mut report = |so_far| listener.as_mut().is_none_or(|listener| listener.tell(so_far));
        Ok(build_clusters(exact, build, &mut report)?)
    })
}

/// Makes a head. `clusters` returns its clusters, from an exact head over the rows in the order of ids.
fn make(
    c: Caller<'static>,
    config: &HeadConfig,
    clusters: impl FnOnce(&Exact<'_>, &Settings) -> Result<Clusters>,
) -> Result<Head> {
    if config.special_ids_len > config.weights.rows {
        let allowed = format!("at most {}, as many as there are ids", config.weights.rows);
        return Err(Failure::out_of_range("special_ids_len", config.special_ids_len, &allowed));
    }
    let special_ids = c.slice("special_ids", config.special_ids, config.special_ids_len)?;
    let settings = Settings {
        probes: Some(config.probes).filter(|probes| *probes > 0),
        special_ids: special_ids.to_vec(),
        most_rows: Some(config.most_rows).filter(|rows| *rows > 0),
    };
    if config.is_in_place > 1 {
        return Err(Failure::out_of_range("is_in_place", config.is_in_place, "0 or 1"));
    }
    let (exact, options) = config.exact(c)?;
    let (vocab, width) = (exact.vocab(), exact.width());
    let clusters = clusters(&exact, &settings)?;
    clusters.check_shape(vocab, width)?;
    let made = if config.is_in_place == 0 {
        Clustered::new(&exact, clusters, &settings)
    } else {
        // The rows are no longer read.
        drop(exact);
        let (rows, len) = (config.weights.data.cast_mut(), vocab * width);
        let rows: WeightsMut<'static> = match dtype(config.weights.dtype)? {
            Type::F32 => c.slice_mut::<f32>("weights", rows.cast(), len)?.into(),
            Type::Bf16 => c.slice_mut::<bf16>("weights", rows.cast(), len)?.into(),
            Type::F16 => c.slice_mut::<f16>("weights", rows.cast(), len)?.into(),
        };
        Clustered::in_place(rows, options, clusters, &settings)
    };
    Ok(Head { inner: Inner::Clustered(Box::new(made?)) })
}
