//! LM heads: made, copied to a device, kept in files, and described.

use std::ffi::c_char;
use std::path::Path;

use gumball_engine::head::{Artefact, Auto, Weights};

use crate::clustered;
use crate::device::Device;
use crate::error::{Code, Failure, Result};
use crate::ffi::{Caller, DtypeNumber, HeadKindNumber, MemoryNumber, call, end, make, require};
use crate::head_config::{Head, HeadConfig, HeadKind, Inner, of_file};
use crate::info::Counts;
use crate::matrix::{Dtype, Matrix, Memory, memory};
use crate::outputs::first;
use crate::versioned::{versioned, zeroed};

/// The properties of a head, under the names of its config; of a head on a device dtype and kind are 0. The
/// lists are the head's; NULL if there are none.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadInfo {
    pub struct_size: usize,
    pub vocab: usize,
    pub width: usize,
    pub dtype: DtypeNumber,
    pub kind: HeadKindNumber,
    pub memory: MemoryNumber,
    /// 1 if logits are left out, so that tokens, kept sets and logprobs may be others, as with
    /// GUMBALL_HEAD_CLUSTERED.
    pub is_approximate: u32,
    /// How many bytes a call that screens rows reads before it reads weights; 0 without a screen.
    pub screen_bytes: usize,
    /// Of GUMBALL_HEAD_CLUSTERED: how many rows of a call are computed in part at most; SIZE_MAX where it
    /// does not matter how many there are.
    pub most_rows: usize,
    /// Of a head with a screen: the ids whose logits are always computed, since a weight or the bias is not
    /// finite or very large, ascending.
    pub unscreened: *const u32,
    pub unscreened_len: usize,
    pub clusters: usize,
    pub capacity: usize,
    pub probes: usize,
    /// How many bytes of centroids a call reads.
    pub centroid_bytes: usize,
    /// `clusters` maps of `capacity` ids, with UINT32_MAX after the ids of a cluster with fewer.
    pub vocab_maps: *const u32,
    pub centroids: *const f32,
    /// For each of `vocab` ids the row of the permuted weights that is its own.
    pub places: *const u32,
    pub special_ids: *const u32,
    pub special_ids_len: usize,
}

versioned!(HeadInfo, "gumball_head_info", special_ids_len: usize);

/// Returns how many rows a step has, by default as many as a pool's.
fn rows_of(rows: usize) -> usize {
    if rows == 0 { 256 } else { rows }
}

impl HeadConfig {
    fn on_device(&self, c: Caller<'static>) -> Result<Head> {
        let allowed =
            "GUMBALL_HEAD_AUTO over weights in a device's memory; gumball_head_copy copies clustered heads";
        if self.kind != 0 {
            return Err(Failure::out_of_range("kind", self.kind, allowed));
        }
        let reason = "it is for heads on the host; leave it zero";
        self.refuse(&["level", "no_screen", "file"], "device", reason)?;
        self.refuse_clusters()?;
        let device = require("device", c.handle(self.device))?.inner.clone();
        let (bias, scaling) = self.shape(c)?;
        let weights = self.weights.on_device(c, "weights")?;
        let head = gumball_engine::DeviceHead::over(&device, weights, bias, scaling, rows_of(self.rows))?;
        let head = if self.fast > 0 { head.fast()? } else { head };
        Ok(Head { inner: Inner::Device(Box::new(head), device) })
    }

    fn on_host(&self, c: Caller<'static>) -> Result<Head> {
        match self.kind {
            0 => {}
            1 => {
                self.refuse(&["no_screen"], "kind", "only GUMBALL_HEAD_AUTO has a screen; leave it zero")?;
                return clustered::open(c, self);
            }
            other => return Err(Failure::out_of_range("kind", other, "a gumball_head_kind, 0 or 1")),
        }
        self.refuse_clusters()?;
        let has_screen = self.no_screen == 0;
        if !has_screen {
            self.refuse(&["file"], "no_screen", "the file has a screen; leave one of the two zero")?;
        }
        let file = c.optional_text("file", self.file)?;
        let exact = self.exact(c)?.0;
        let auto = match file {
            Some(file) => Auto::open(exact, Path::new(file)).map_err(|error| of_file("file", file, error))?,
            None if has_screen => Auto::new(exact),
            None => Auto::Exact(exact),
        };
        Ok(Head { inner: Inner::Auto(auto) })
    }
}

/// Makes a head. GUMBALL_HEAD_AUTO without a file takes a byte for each weight, and the time to read all of
/// them, unless `no_screen`; GUMBALL_HEAD_CLUSTERED that builds its clusters the time to compare each row
/// with all centroids, up to `iterations` times, over the threads that pools of the process share. Built
/// clusters are balanced, and the same on every machine.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_new(config: *const HeadConfig) -> Option<Box<Head>> {
    make(|c| {
        let given = c.read("config", config)?;
        match memory(given.weights.memory)? {
            Memory::GUMBALL_HOST => given.on_host(c),
            Memory::GUMBALL_DEVICE => given.on_device(c),
        }
    })
}

/// Copies a head of the host to a device: of the same kind, with the same results unless it is fast. Returns
/// when it is there; the head of the host may end then.
///
/// `rows`, `fast`: as in gumball_head_config; a clustered head may be fast, one with a screen may not.
/// `weights`: the same weights in the device's memory, of the same type and in the order of ids, which a head
/// then reads as long as it lives, one with a screen or clusters unchanged; only the data derived from them
/// is copied. NULL: all of the head is copied.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_copy(
    head: Option<&Head>,
    device: Option<&Device>,
    rows: usize,
    fast: u32,
    weights: *const Matrix,
) -> Option<Box<Head>> {
    make(|c| {
        let (device, head) = (require("device", device)?.inner.clone(), require("head", head)?);
        let rows = rows_of(rows);
        if fast > 0 {
            gumball_engine::DeviceHead::check_fast(head.get())?;
        }
        let copy = if weights.is_null() {
            gumball_engine::DeviceHead::new(&device, head.get(), rows)?
        } else {
            let there = c.plain("weights", weights)?;
            there.check_memory(Memory::GUMBALL_DEVICE, "a head there reads them")?;
            let there = there.on_device(c, "weights")?;
            gumball_engine::DeviceHead::over_weights_of(&device, head.get(), there, rows)?
        };
        let copy = if fast > 0 { copy.fast()? } else { copy };
        // Waits for the copies.
        copy.counts()?;
        Ok(Head { inner: Inner::Device(Box::new(copy), device) })
    })
}

/// Writes what a head has derived from its weights to a file, for `file` in gumball_head_config: its screen,
/// or a clustered head's clusters and centroids, with a checksum and the digest of the weights in the order
/// of ids, which are not in it. The file appears when it is whole.
///
/// `path`: where. `name`: the name of the tensor of weights, which is kept in the file; NULL: lm_head.weight.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_save(
    head: Option<&Head>,
    path: *const c_char,
    name: *const c_char,
) -> Code {
    call(|c| {
        let head = require("head", head)?;
        let path = c.text("path", path)?;
        let name = c.optional_text("name", name)?.unwrap_or("lm_head.weight");
        let written = match &head.inner {
            Inner::Auto(Auto::Certified(certified)) => Artefact::write(certified, name, Path::new(path)),
            Inner::Clustered(clustered) => Artefact::write_clustered(clustered, name, Path::new(path)),
            Inner::Auto(_) | Inner::Device(..) => {
                let allowed =
                    "one on the host with a screen or clusters: others derive nothing from their weights";
                return Err(Failure::out_of_range("head", head.kind(), allowed));
            }
        };
        written.map_err(|error| of_file("path", path, error))
    })
}

/// Ends a head, on a device when its steps are done; its weights can go then. Graphs that have it must not be
/// replayed any more.
///
/// Cost: setup.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_free(head: Option<Box<Head>>) {
    end(head);
}

/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_describe(head: Option<&Head>, out: *mut HeadInfo) -> Code {
    call(|c| {
        let head = require("head", head)?;
        let engine = head.get();
        let mut info = HeadInfo {
            vocab: engine.vocab(),
            width: engine.width(),
            is_approximate: engine.is_approximate().into(),
            ..zeroed()
        };
        let dtype_of = |weights: &Weights<'_>| match weights {
            Weights::F32(_) => Dtype::GUMBALL_F32 as i32,
            Weights::Bf16(_) => Dtype::GUMBALL_BF16 as i32,
            Weights::F16(_) => Dtype::GUMBALL_F16 as i32,
        };
        match &head.inner {
            Inner::Auto(auto) => {
                info.dtype = dtype_of(auto.exact().weights());
                if let Some(certified) = auto.certified() {
                    info.screen_bytes = certified.screen_bytes();
                    let unscreened = certified.unscreened();
                    (info.unscreened, info.unscreened_len) = (first(unscreened), unscreened.len());
                }
            }
            Inner::Clustered(clustered) => {
                let clusters = clustered.clusters();
                info.dtype = dtype_of(clustered.weights());
                info.kind = HeadKind::GUMBALL_HEAD_CLUSTERED as i32;
                (info.most_rows, info.probes) = (clustered.most_rows(), clustered.probes());
                (info.clusters, info.capacity) = (clusters.count(), clusters.capacity());
                info.centroid_bytes = clustered.centroid_bytes();
                (info.vocab_maps, info.centroids) = (first(clusters.maps()), first(clusters.centroids()));
                info.places = first(clustered.places());
                let special = clustered.special_ids();
                (info.special_ids, info.special_ids_len) = (first(special), special.len());
            }
            Inner::Device(head, _) => {
                info.memory = Memory::GUMBALL_DEVICE as i32;
                info.screen_bytes = head.screen_bytes();
            }
        }
        c.write("out", out, info)
    })
}

/// Computes all logits of hidden states of the host, whichever kind the head is. `logits`: memory for a float
/// for each id and hidden state.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_logits(
    head: Option<&Head>,
    hidden: *const Matrix,
    logits: *mut f32,
) -> Code {
    call(|c| {
        let head = require("head", head)?;
        let given = c.plain("hidden", hidden)?;
        let states = given.hidden(c)?;
        let len = states.rows().saturating_mul(head.get().vocab());
        let out = c.zeroed_slice("logits", logits, len)?;
        Ok(head.get().logits(states, out)?)
    })
}

/// Waits for the device, and writes the rows and logits that a head there has computed for all pools. On the
/// host pools count: gumball_pool_counts.
///
/// Cost: wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_counts(head: Option<&Head>, out: *mut Counts) -> Code {
    call(|c| {
        let head = require("head", head)?;
        let Inner::Device(there, _) = &head.inner else {
            let allowed = "on a device; gumball_pool_counts tells what heads of the host have done";
            return Err(Failure::out_of_range("head", head.kind(), allowed));
        };
        let seen = there.counts()?;
        c.write("out", out, Counts::of_heads(&seen))
    })
}

/// Sets how many clusters a clustered head of the host probes for a hidden state from now on, 1 to their
/// number. No other thread may use the head meanwhile.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_set_probes(head: Option<&mut Head>, probes: usize) -> Code {
    call(|_| {
        let head = require("head", head)?;
        let kind = head.kind();
        match &mut head.inner {
            Inner::Clustered(clustered) => Ok(clustered.set_probes(probes)?),
            _ => Err(Failure::out_of_range("head", kind, "of kind GUMBALL_HEAD_CLUSTERED, which has probes")),
        }
    })
}
