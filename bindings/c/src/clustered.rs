//! Clustered heads: how their clusters are built, given or read, and what is known of them.

use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::ptr;

use gumball_engine::head::artefact::open_clusters;
use gumball_engine::head::{
    ClusterBuild, ClusterProgress, Clustered, ClusteredOptions as Settings, Clusters, Exact, WeightsMut,
};
use gumball_engine::{Dtype as Type, Error, bf16, build_clusters, f16};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, make, optional_text, require, slice};
use crate::head::{Given, Head, HeadConfig, HeadKind, Inner, of_file, own_names, read_weights};
use crate::outputs::first;
use crate::versioned::{VersionedStruct, read, read_or_default};

/// What a clustered head has besides its clusters.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClusteredOptions {
    /// sizeof(gumball_clustered_options).
    pub struct_size: usize,
    /// How many clusters a hidden state probes, up to their number; 0: an eighth of them.
    pub probes: usize,
    /// Ids that are always computed, such as ends of text; they are copied.
    pub special_ids: *const u32,
    /// Their number, up to the vocabulary.
    pub special_ids_len: usize,
    /// 0: the head takes a copy of the weights, in the order of its clusters. 1: it permutes the rows where they lie, in memory that may be written
    /// and that it then reads as long as it lives; whoever else reads them, a tied embedding for instance, must read the row of an id at its
    /// gumball_head_places.
    pub is_in_place: u64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and a raw pointer, valid for all
// bytes.
unsafe impl VersionedStruct for ClusteredOptions {
    const NAME: &'static str = "gumball_clustered_options";
    const LEAST: usize = offset_of!(Self, is_in_place) + size_of::<u64>();
}

/// Receives how far a build of clusters is: `done` of `of` ids were compared in assignment `iteration`, from 0, of at most `iterations`. Returns 0 to go on,
/// anything else to stop. `user` is what the build was given.
///
/// It is called on a thread of the library, by one at a time. It must return, without longjmp or exception.
pub type ClusterProgressFn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        iteration: usize,
        iterations: usize,
        done: usize,
        of: usize,
    ) -> i32,
>;

/// A program's function that receives how far a build is.
struct Listener {
    function: unsafe extern "C" fn(*mut c_void, usize, usize, usize, usize) -> i32,
    user: *mut c_void,
}

// SAFETY: the header says that it is called on a thread of the library, so the C caller ensures that `user` may be used there.
unsafe impl Send for Listener {}

impl Listener {
    /// Tells it how far a build is; returns whether to go on.
    fn tell(&mut self, so_far: ClusterProgress) -> bool {
        let ClusterProgress { iteration, iterations, done, of, .. } = so_far;
        // SAFETY: the C caller ensures that `function` is one of this type that takes `user`.
        unsafe { (self.function)(self.user, iteration, iterations, done, of) == 0 }
    }
}

/// Makes a clustered head of clusters that are built of its weights: balanced ones, the same on every machine. It takes the time to compare each row with all
/// centroids, up to `iterations` times, over the threads that pools of the process share. NULL after an error.
///
/// `config`: of kind GUMBALL_HEAD_CLUSTERED, without a file. `options`: NULL for the defaults. `capacity`: how many ids a cluster has, up to the vocabulary; the last one
/// has what is left; 0: 16. `iterations`: how often all ids are assigned to clusters at most; 0: 10. `progress`: NULL: nobody is told. If it stops the build, the
/// error is GUMBALL_UNAVAILABLE. What is wrong with the arguments is found before anything is compared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_clustered_build(
    config: *const HeadConfig,
    options: *const ClusteredOptions,
    capacity: usize,
    iterations: usize,
    progress: ClusterProgressFn,
    user: *mut c_void,
) -> Option<Box<Head>> {
    make(|| {
        // SAFETY: the C caller ensures what `Call::read` asks for.
        let given = unsafe { Call::read(config, options) }?;
        given.no_file("clusters are built; gumball_head_clustered_open reads them from a file")?;
        let otherwise = ClusterBuild::default();
        let build = ClusterBuild {
            capacity: if capacity == 0 { otherwise.capacity } else { capacity },
            iterations: if iterations == 0 { otherwise.iterations } else { iterations },
        };
        given.make(|exact, settings| {
            let vocab = exact.vocab();
            settings.check(vocab, vocab.div_ceil(build.capacity))?;
            let mut listener = progress.map(|function| Listener { function, user });
            let mut report = |so_far| listener.as_mut().is_none_or(|listener| listener.tell(so_far));
            Ok(build_clusters(exact, build, &mut report)?)
        })
    })
}

/// Makes a clustered head of clusters that the program has. NULL after an error.
///
/// `config`: of kind GUMBALL_HEAD_CLUSTERED, without a file. `options`: NULL for the defaults. `ids`: `clusters` lists of `capacity` ids, each id of the vocabulary
/// once. `centroids`: `width` floats for each cluster, finite. Both are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_clustered_new(
    config: *const HeadConfig,
    options: *const ClusteredOptions,
    ids: *const u32,
    clusters: usize,
    capacity: usize,
    centroids: *const f32,
) -> Option<Box<Head>> {
    make(|| {
        // SAFETY: the C caller ensures what `Call::read` asks for.
        let given = unsafe { Call::read(config, options) }?;
        given.no_file("clusters are given; gumball_head_clustered_open reads them from a file")?;
        let (vocab, width) = (given.weights.vocab, given.weights.width);
        if clusters.checked_mul(capacity) != Some(vocab) {
            let value = format!("{clusters} of {capacity} ids");
            let allowed = format!("so many that their ids are {vocab}, those of the vocabulary");
            return Err(Failure::out_of_range("clusters", value, &allowed));
        }
        // SAFETY: the C caller ensures that `ids` has `capacity` ids for each cluster, which are those of the vocabulary in number.
        let ids = unsafe { slice("ids", ids, vocab) }?;
        // SAFETY: the C caller ensures that `centroids` has `width` floats for each cluster.
        let centroids = unsafe { slice("centroids", centroids, clusters * width) }?;
        let clusters = Clusters::new(ids.to_vec(), capacity, centroids.to_vec()).map_err(list_names)?;
        given.make(|_, _| Ok(clusters))
    })
}

/// Makes a clustered head of clusters in a file: `file` of the config, which gumball_head_save, or the command `gumball head build`, wrote of these weights and
/// this bias, and whose content is checked; or which another program wrote, a safetensors file with the tensors clusters.ids, [clusters, capacity] of I64, I32 or U32,
/// and clusters.centroids, [clusters, width] of F32, BF16 or F16. NULL after an error.
///
/// `config`: of kind GUMBALL_HEAD_CLUSTERED. `options`: NULL for the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_clustered_open(
    config: *const HeadConfig,
    options: *const ClusteredOptions,
) -> Option<Box<Head>> {
    make(|| {
        // SAFETY: the C caller ensures what `Call::read` asks for.
        let given = unsafe { Call::read(config, options) }?;
        let path = given.file.ok_or_else(|| Failure::null("file"))?;
        given.make(|exact, _| {
            open_clusters(Path::new(path), exact).map_err(|error| of_file("file", path, error))
        })
    })
}

/// The arguments of a call that makes a clustered head, without its clusters.
struct Call<'a> {
    weights: Given,
    settings: Settings,
    file: Option<&'a str>,
    /// The rows, to be permuted where they lie, if they are to be.
    rows: Option<(*mut c_void, i32)>,
}

impl<'a> Call<'a> {
    /// Reads it.
    ///
    /// # Safety
    /// `config` and `options` are NULL or structs of their stated sizes. What they point to is NULL or has what the header says, which nobody frees or writes as
    /// long as it is said there; texts end with a NUL.
    unsafe fn read(config: *const HeadConfig, options: *const ClusteredOptions) -> Result<Self> {
        // SAFETY: the caller ensures that `config` is NULL or points to the bytes that its `struct_size` names.
        let config = unsafe { read("config", config) }?;
        if config.kind != HeadKind::GUMBALL_HEAD_CLUSTERED as i32 {
            return Err(Failure::out_of_range("kind", config.kind, "GUMBALL_HEAD_CLUSTERED"));
        }
        // SAFETY: the caller ensures that `options` is NULL or points to the bytes that its `struct_size` names.
        let options = unsafe { read_or_default("options", options) }?;
        if options.special_ids_len > config.vocab {
            let allowed = format!("at most {}, as many as there are ids", config.vocab);
            return Err(Failure::out_of_range("special_ids_len", options.special_ids_len, &allowed));
        }
        // SAFETY: the caller ensures that `special_ids` is NULL or has as many ids as is said.
        let special_ids = unsafe { slice("special_ids", options.special_ids, options.special_ids_len) }?;
        let settings = Settings {
            probes: Some(options.probes).filter(|probes| *probes > 0),
            special_ids: special_ids.to_vec(),
            most_rows: Some(config.most_rows).filter(|rows| *rows > 0),
        };
        // SAFETY: the caller ensures that `file` is NULL or ends with a NUL.
        let file = unsafe { optional_text("file", config.file) }?;
        // SAFETY: the caller ensures what the config says of `level`, `weights` and `bias`.
        let weights = unsafe { read_weights(&config) }?;
        let rows = match options.is_in_place {
            0 => None,
            1 => Some((config.weights.cast_mut(), config.dtype)),
            other => return Err(Failure::out_of_range("is_in_place", other, "0 or 1")),
        };
        Ok(Self { weights, settings, file, rows })
    }

    fn no_file(&self, reason: &'static str) -> Result<()> {
        if self.file.is_none() {
            return Ok(());
        }
        Err(Error::Conflict { parameter: "file", other: "clusters", reason }.into())
    }

    /// Makes the head. `clusters` returns its clusters, from an exact head over the rows in the order of ids.
    fn make(self, clusters: impl FnOnce(&Exact<'_>, &Settings) -> Result<Clusters>) -> Result<Head> {
        let Self { weights, settings, rows, .. } = self;
        let (options, vocab, width) = (weights.options.clone(), weights.vocab, weights.width);
        let exact = weights.exact()?;
        let clusters = clusters(&exact, &settings)?;
        clusters.check_shape(vocab, width).map_err(list_names)?;
        let made = match rows {
            None => Clustered::new(&exact, clusters, &settings),
            Some((rows, dtype)) => {
                // Nobody reads the rows any more.
                drop(exact);
                // SAFETY: `read_weights` found `rows` not NULL and aligned, with so many weights of this type; the C caller ensures that they may be written and are
                // used by nobody else as long as the head lives.
                let rows = unsafe { writable(rows, dtype, vocab * width) };
                Clustered::in_place(rows, options, clusters, &settings)
            }
        };
        Ok(Head { inner: Inner::Clustered(Box::new(made.map_err(list_names)?)) })
    }
}

/// Returns weights that may be written.
///
/// # Safety
/// `rows` points to `len` weights of a type that `read_weights` took, which nobody else uses as long as what is returned lives.
unsafe fn writable(rows: *mut c_void, dtype: i32, len: usize) -> WeightsMut<'static> {
    if dtype == Type::F32 as i32 {
        // SAFETY: the caller ensures that these are f32.
        return unsafe { std::slice::from_raw_parts_mut(rows.cast::<f32>(), len) }.into();
    }
    if dtype == Type::Bf16 as i32 {
        // SAFETY: the caller ensures that these are bf16.
        return unsafe { std::slice::from_raw_parts_mut(rows.cast::<bf16>(), len) }.into();
    }
    // SAFETY: the caller ensures that these are f16, the only other type.
    unsafe { std::slice::from_raw_parts_mut(rows.cast::<f16>(), len) }.into()
}

/// Calls clusters by the names of C's arguments.
fn list_names(error: Error) -> Failure {
    own_names(error).with_parameter(|name| if name == "cluster_ids" { "ids" } else { name }).into()
}

/// Sets how many clusters a clustered head probes for a hidden state from now on, 1 to their number. No other thread may use the head meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_set_probes(head: Option<&mut Head>, probes: usize) -> Code {
    call(|| match &mut require("head", head)?.inner {
        Inner::Clustered(clustered) => Ok(clustered.set_probes(probes)?),
        other => {
            let kind = if matches!(other, Inner::Exact(_)) { "EXACT" } else { "CERTIFIED" };
            let kind = format!("GUMBALL_HEAD_{kind}");
            Err(Failure::out_of_range("head", kind, "of kind GUMBALL_HEAD_CLUSTERED, which has probes"))
        }
    })
}

/// Returns a list of a clustered head, and its length; NULL for other heads.
fn list_of<T>(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
    list: impl for<'a> FnOnce(&'a Clustered<'static>) -> &'a [T],
) -> *const T {
    call_or(ptr::null(), || {
        let (head, len) = (require("head", head)?, require("len", len)?);
        let found = if let Inner::Clustered(clustered) = &head.inner { list(clustered) } else { &[] };
        len.write(found.len());
        Ok(first(found))
    })
}

/// Returns the ids of all clusters, those of the first one first, and their number. NULL if the head has no clusters, and after an error. They are the head's,
/// as are those of the following functions.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_cluster_ids(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    list_of(head, len, |clustered| clustered.clusters().ids())
}

/// Returns the centroids, `width` floats for each cluster, and how many floats there are. NULL if the head has no clusters, and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_centroids(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const f32 {
    list_of(head, len, |clustered| clustered.clusters().centroids())
}

/// Returns for each id the row of the permuted weights that is its own, and the number of ids. NULL if the head has no clusters, and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_places(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    list_of(head, len, Clustered::places)
}

/// Returns the ids that a clustered head always computes, ascending, and their number. NULL if there are none, and after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_special_ids(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    list_of(head, len, Clustered::special_ids)
}
