//! What a head is made of: the program's own weights, what follows their product, and its clusters.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use gumball_engine::head::{
    ArtefactError, Auto, Clustered, Exact, HeadOptions, MAX_HIDDEN, Scaling, Weights,
};
use gumball_engine::{Device as EngineDevice, Error, Head as EngineHead, MAX_VOCAB, Row};

use crate::device::Device;
use crate::error::{Failure, Result, refuse};
use crate::ffi::{Caller, HeadKindNumber};
use crate::matrix::{Matrix, Memory, extent};
use crate::versioned::versioned;

#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Gives the tokens and logprobs that follow from all logits, bit for bit. Where that is faster it
    /// computes only the logits that could decide a row, which a screen finds: a copy of the weights in 8
    /// bits.
    GUMBALL_HEAD_AUTO = 0,
    /// The logits of the clusters of ids whose centroids look likeliest, all others being -inf: an
    /// approximation.
    GUMBALL_HEAD_CLUSTERED = 1,
}

/// An LM head: it makes logits of hidden states (gumball_heads.h).
///
/// On the host every logit is a sum in single precision in one order, the same bits on every machine and in
/// every batch; pools of the host take it, and several may share one, at the same time too. A head on a
/// device computes the tokens and logprobs of the head of the same kind on the host; only a fast one has
/// logits of its own. It is for pools that were made with the same gumball_device, and one thread at a time
/// uses it.
#[derive(Debug)]
pub struct Head {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Auto(Auto<'static>),
    Clustered(Box<Clustered<'static>>),
    Device(Box<gumball_engine::DeviceHead<'static>>, EngineDevice),
}

/// The weights of a head, what follows their product, and which kind of head computes it, where. Fields of
/// another kind or place stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadConfig {
    pub struct_size: usize,
    /// A row for each id, 1..=2^20 of them, of as many weights as a hidden state has elements, 1..=2^16,
    /// without gaps. The head reads them as long as it lives; they must not be freed or written meanwhile,
    /// but weights in a device's memory may be written between steps. A clustered head reads them only while
    /// it is made, unless it permutes them.
    pub weights: Matrix,
    /// A float for each id that is added to the products, which a head of the host reads as long as it lives;
    /// NULL: none.
    pub bias: *const f32,
    /// The factor of every logit, above 0 and up to 2^16; 0: 1.
    pub logit_scale: f32,
    /// The bound that a hyperbolic tangent keeps logits below, 2^-64 to 2^16; 0: none.
    pub softcap: f32,
    /// Which logits it computes; over weights in a device's memory all, and gumball_head_copy brings screens
    /// and clusters there.
    pub kind: HeadKindNumber,
    /// Over weights in a device's memory, above 0: the tensor cores compute the logits; not of weights in
    /// GUMBALL_F32.
    pub fast: u32,
    /// The device of weights in its memory; else NULL.
    pub device: *const Device,
    /// On a device: how many hidden states a step may have, in 1..2^31; 0: 256. The head has memory for their
    /// logits, 4 bytes for each id of each.
    pub rows: usize,
    /// Of the host: the SIMD level, by its name; NULL: the machine's best. The logits are the same.
    pub level: *const c_char,
    /// Of GUMBALL_HEAD_AUTO on the host, above 0: the head has no screen, which saves a byte for each weight
    /// and the time to make it; every logit is computed.
    pub no_screen: u64,
    /// Of GUMBALL_HEAD_CLUSTERED: how many rows of a call are computed in part at most; in a call that has
    /// more, every logit is computed, which is faster then. 0: 16 if more than a sixth of the clusters are
    /// probed, else no number.
    pub most_rows: usize,
    /// The path of a file that gumball_head_save, or the command `gumball head build`, wrote of these weights
    /// and this bias: its copy is mapped instead of made, so it must not be written as long as the head
    /// lives; its clusters are read. Clusters may also be of another program: a safetensors file with the
    /// tensors vocab_maps, [clusters, capacity] of I64, I32 or U32 with -1 as padding, and centroids,
    /// [clusters, width] of F32, BF16 or F16. NULL: none.
    pub file: *const c_char,
    /// Of GUMBALL_HEAD_CLUSTERED without a file: `clusters` maps of `capacity` ids, each id of the
    /// vocabulary once, and UINT32_MAX after the ids of a cluster with fewer, which are copied.
    pub vocab_maps: *const u32,
    /// With these: for each cluster as many floats as a hidden state has, finite, which are copied.
    pub centroids: *const f32,
    pub clusters: usize,
    /// How many ids a cluster has at most, up to the vocabulary; the last of clusters that are built has the
    /// ids that are left. 0 for these: 16.
    pub capacity: usize,
    /// Of GUMBALL_HEAD_CLUSTERED without a file and `vocab_maps`, whose clusters are built: how often all
    /// ids are assigned to clusters at most; 0: 10.
    pub iterations: usize,
    /// Receives how far the build is; if it stops the build, the error is GUMBALL_UNAVAILABLE. NULL: no
    /// function.
    pub progress: ClusterProgressFn,
    pub user: *mut c_void,
    /// Of GUMBALL_HEAD_CLUSTERED: how many clusters a hidden state probes, up to their number; 0: an eighth
    /// of them.
    pub probes: usize,
    /// Of GUMBALL_HEAD_CLUSTERED: ids that are always computed, such as ends of text, up to as many as the
    /// vocabulary has; they are copied.
    pub special_ids: *const u32,
    pub special_ids_len: usize,
    /// Of GUMBALL_HEAD_CLUSTERED. 0: the head takes a copy of the weights, in the order of its clusters. 1:
    /// it permutes the rows where they lie, in memory that may be written and that it then reads as long as
    /// it lives; another reader, a tied embedding for instance, must read the row of an id at its place
    /// (`places` of gumball_head_info).
    pub is_in_place: u64,
}

versioned!(HeadConfig, "gumball_head_config", is_in_place: u64);

/// Receives how far a build of clusters is: `done` of `of` ids were compared in assignment `iteration`, from
/// 0, of at most `iterations`. Returns 0 to go on, another number to stop. `user`: the pointer of the config.
/// It is called on a thread of the library, by one at a time.
pub type ClusterProgressFn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        iteration: usize,
        iterations: usize,
        done: usize,
        of: usize,
    ) -> i32,
>;

impl Head {
    pub(crate) fn get(&self) -> EngineHead<'_> {
        match &self.inner {
            Inner::Auto(auto) => auto.into(),
            Inner::Clustered(clustered) => (&**clustered).into(),
            Inner::Device(head, _) => (&**head).into(),
        }
    }

    /// Refuses a head of a device for a pool that was made with another one, on whose stream nothing would
    /// wait for the head's other steps.
    pub(crate) fn check(&self, pool: Option<&EngineDevice>) -> Result<()> {
        match (&self.inner, pool) {
            (Inner::Device(_, device), Some(pool)) if !Arc::ptr_eq(device.runtime(), pool.runtime()) => {
                let allowed = "one that was made with the gumball_device of the pool";
                Err(Failure::out_of_range("head", "made with another gumball_device", allowed))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match &self.inner {
            Inner::Auto(_) => "GUMBALL_HEAD_AUTO",
            Inner::Clustered(_) => "GUMBALL_HEAD_CLUSTERED",
            Inner::Device(..) => "on a device",
        }
    }
}

/// The fields of clusters that a program has, and of clusters that are built; both read `capacity`.
pub(crate) const CLUSTERS: [&str; 4] = ["vocab_maps", "centroids", "clusters", "capacity"];
pub(crate) const BUILD: [&str; 3] = ["iterations", "progress", "user"];

impl HeadConfig {
    /// Returns what follows the product with weights, once their shape is checked.
    pub(crate) fn shape(&self, c: Caller<'static>) -> Result<(Option<&'static [f32]>, Scaling)> {
        let Matrix { rows: vocab, width, stride, .. } = self.weights;
        if !(1..=MAX_VOCAB).contains(&vocab) {
            return Err(Failure::out_of_range("weights.rows", vocab, "in 1..=2^20"));
        }
        if !(1..=MAX_HIDDEN).contains(&width) {
            return Err(Failure::out_of_range("width", width, "in 1..=2^16"));
        }
        if extent(vocab, width, stride)?.0 != width {
            return Err(Failure::out_of_range("stride", stride, &format!("0 or {width}, without gaps")));
        }
        let logit_scale = if self.logit_scale == 0.0 { 1.0 } else { self.logit_scale };
        let bias = c.list::<f32>("bias", self.bias, vocab)?;
        Ok((bias, Scaling { logit_scale, softcap: self.softcap }))
    }

    /// Returns an exact head of the host, and its settings besides the weights.
    pub(crate) fn exact(&self, c: Caller<'static>) -> Result<(Exact<'static>, HeadOptions<'static>)> {
        self.weights.check_memory(Memory::GUMBALL_HOST, "a head of this kind reads them there")?;
        let reason = "only a head over weights in a device's memory reads it; leave it zero";
        self.refuse(&["device", "rows", "fast"], "weights.memory", reason)?;
        let level = c.optional_text("level", self.level)?;
        let level = level.map(str::parse).transpose()?;
        let (bias, scaling) = self.shape(c)?;
        let Matrix { rows: vocab, width, .. } = self.weights;
        let weights: Weights<'static> = match self.weights.elements(c, "weights", vocab * width)? {
            Row::F32(all) => all.into(),
            Row::Bf16(all) => all.into(),
            Row::F16(all) => all.into(),
        };
        let options = HeadOptions { bias: bias.map(Into::into), scaling, level };
        Ok((Exact::new(weights, vocab, width, options.clone())?, options))
    }

    pub(crate) fn refuse(&self, fields: &[&str], other: &'static str, reason: &'static str) -> Result<()> {
        let given = [
            ("device", !self.device.is_null()),
            ("rows", self.rows > 0),
            ("fast", self.fast > 0),
            ("level", !self.level.is_null()),
            ("no_screen", self.no_screen > 0),
            ("most_rows", self.most_rows > 0),
            ("file", !self.file.is_null()),
            ("vocab_maps", !self.vocab_maps.is_null()),
            ("centroids", !self.centroids.is_null()),
            ("clusters", self.clusters > 0),
            ("capacity", self.capacity > 0),
            ("iterations", self.iterations > 0),
            ("progress", self.progress.is_some()),
            ("user", !self.user.is_null()),
            ("probes", self.probes > 0),
            ("special_ids", !self.special_ids.is_null() || self.special_ids_len > 0),
            ("is_in_place", self.is_in_place > 0),
        ];
        refuse(given.into_iter().filter(|(name, _)| fields.contains(name)), other, reason)
    }

    /// Refuses the fields of clustered heads.
    pub(crate) fn refuse_clusters(&self) -> Result<()> {
        for fields in [&CLUSTERS[..], &BUILD, &["most_rows", "probes", "special_ids", "is_in_place"]] {
            self.refuse(fields, "kind", "only GUMBALL_HEAD_CLUSTERED has clusters; leave it zero")?;
        }
        Ok(())
    }
}

pub(crate) fn of_file(parameter: &str, path: &str, error: ArtefactError) -> Failure {
    match error {
        ArtefactError::Io { source, path } => {
            let reason = format!("{}: {source}", path.display());
            Error::Unavailable { resource: "file of a head", reason }.into()
        }
        error => Failure::out_of_range(parameter, path, &format!("a file of this head: {error}")),
    }
}
