//! LM heads over the program's own weights: from hidden states to logits.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use gumball_engine::head::{
    Artefact, ArtefactError, Certified, Clustered, Exact, HeadOptions, HiddenStates, MAX_HIDDEN, Scaling,
    Weights, WholeRow,
};
use gumball_engine::{Dtype as Type, Error, Head as EngineHead, Row, certify};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, end, make, optional_text, out_slice, require, text};
use crate::logits::{extent, read_row, stride};
use crate::options::list;
use crate::outputs::first;
use crate::versioned::{VersionedStruct, read, write};

/// What a head computes.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "constants of C")]
pub enum HeadKind {
    /// Every logit.
    GUMBALL_HEAD_EXACT = 0,
    /// The logits that could decide a row, found by a copy of the weights in 8 bits: the same tokens and logprobs, bit for bit.
    GUMBALL_HEAD_CERTIFIED = 1,
    /// The logits of the clusters of ids whose centroids look likeliest, all others being -inf: an approximation. Made by
    /// gumball_head_clustered_build, _new and _open.
    GUMBALL_HEAD_CLUSTERED = 2,
}

/// An LM head: it makes logits of hidden states, by weights that it borrows, or, of clusters, has copied.
///
/// Every logit is a sum in single precision in one order, the same bits on every machine and in every batch. Pools on the host take it;
/// several may share one, at the same time too. gumball_device_head_of copies it for pools on a device.
#[derive(Debug)]
pub struct Head {
    pub(crate) inner: Inner,
}

#[derive(Debug)]
pub(crate) enum Inner {
    Exact(Exact<'static>),
    Certified(Certified<'static>),
    Clustered(Box<Clustered<'static>>),
}

/// The weights of a head, what follows their product, and which kind of head computes it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadConfig {
    /// sizeof(gumball_head_config).
    pub struct_size: usize,
    /// `vocab` rows of `width` weights, each behind the one before it. The head reads them as long as it lives; nobody may free
    /// or write them meanwhile. A clustered head reads them while it is made alone, unless its options say that it permutes them.
    pub weights: *const c_void,
    /// The number of ids, in 1..=2^20.
    pub vocab: usize,
    /// The number of elements of a hidden state, in 1..=2^16.
    pub width: usize,
    /// `vocab` floats that are added to the products, which the head reads as long as it lives; NULL: none.
    pub bias: *const f32,
    /// GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16: the type of the weights.
    pub dtype: i32,
    /// A gumball_head_kind.
    pub kind: i32,
    /// The factor of every logit, above 0 and up to 2^16; 0: 1.
    pub logit_scale: f32,
    /// The bound that a hyperbolic tangent keeps logits below, 2^-64 to 2^16; 0: none.
    pub softcap: f32,
    /// The SIMD level, by its name; NULL: the machine's best. The logits are the same.
    pub level: *const c_char,
    /// Not for GUMBALL_HEAD_EXACT: how many rows of a call are computed in part at most; in a call that has more, every logit is computed, which is
    /// faster then. 0: 8 for GUMBALL_HEAD_CERTIFIED; for GUMBALL_HEAD_CLUSTERED 16 if more than a sixth of the clusters are probed, else no number.
    pub most_rows: usize,
    /// For GUMBALL_HEAD_CERTIFIED: the path of a file that gumball_head_save, or the command `gumball head build`, wrote of these weights and this
    /// bias. It is mapped instead of making the copy; nobody may write it as long as the head lives. NULL: none. For gumball_head_clustered_open: the
    /// path of the file of clusters.
    pub file: *const c_char,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for HeadConfig {
    const NAME: &'static str = "gumball_head_config";
    const LEAST: usize = offset_of!(Self, file) + size_of::<*const c_char>();
}

/// What is known of a head.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HeadInfo {
    /// sizeof(gumball_head_info).
    pub struct_size: usize,
    /// The number of ids.
    pub vocab: usize,
    /// The number of elements of a hidden state.
    pub width: usize,
    /// The gumball_dtype of the weights.
    pub dtype: i32,
    /// The gumball_head_kind.
    pub kind: i32,
    /// How many bytes a call that screens rows reads before it reads weights; 0 but for GUMBALL_HEAD_CERTIFIED.
    pub screen_bytes: usize,
    /// How many rows of a call are computed in part at most; 0 for GUMBALL_HEAD_EXACT, SIZE_MAX where it does not matter how many there are.
    pub most_rows: usize,
    /// Of GUMBALL_HEAD_CLUSTERED, else 0: how many clusters there are.
    pub clusters: usize,
    /// How many ids a cluster has; the last one may have fewer.
    pub capacity: usize,
    /// How many clusters a hidden state probes.
    pub probes: usize,
    /// How many bytes of centroids a call reads.
    pub centroid_bytes: usize,
    /// 1 if tokens, kept sets and logprobs may be others than the exact head's: those of GUMBALL_HEAD_CLUSTERED may.
    pub is_approximate: u64,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers, valid for all bytes.
unsafe impl VersionedStruct for HeadInfo {
    const NAME: &'static str = "gumball_head_info";
    const LEAST: usize = offset_of!(Self, most_rows) + size_of::<usize>();
}

/// A batch of hidden states in host memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Hidden {
    /// sizeof(gumball_hidden).
    pub struct_size: usize,
    /// The first element of the first hidden state.
    pub data: *const c_void,
    /// Their number.
    pub rows: usize,
    /// The number of elements of one.
    pub width: usize,
    /// How many elements after a hidden state the next one begins; 0: width.
    pub stride: usize,
    /// GUMBALL_F32, GUMBALL_BF16 or GUMBALL_F16; it need not be that of the weights.
    pub dtype: i32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and a raw pointer, valid for all
// bytes.
unsafe impl VersionedStruct for Hidden {
    const NAME: &'static str = "gumball_hidden";
    const LEAST: usize = offset_of!(Self, dtype) + size_of::<i32>();
}

/// Calls widths by the names of the structs' fields.
pub(crate) fn own_names(error: Error) -> Error {
    error.with_parameter(|name| if name == "hidden.width" { "width" } else { name })
}

fn check_width(width: usize) -> Result<()> {
    if (1..=MAX_HIDDEN).contains(&width) {
        return Ok(());
    }
    Err(Failure::out_of_range("width", width, "in 1..=2^16"))
}

/// Returns hidden states as the engine takes them.
///
/// # Safety
/// `given` is NULL or a struct with the size it states, whose hidden states nobody writes for `'a`.
pub(crate) unsafe fn read_hidden<'a>(given: *const Hidden) -> Result<HiddenStates<'a>> {
    // SAFETY: the caller ensures that `given` is NULL or points to the bytes that its `struct_size` names.
    let given = unsafe { read("hidden", given) }?;
    let (rows, width, stride) = (given.rows, given.width, stride(given.stride, given.width));
    check_width(width)?;
    let len = match rows {
        0 => Some(0),
        rows => (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(width)),
    };
    let Some(len) = len.filter(|_| rows <= 1 || stride >= width) else {
        return Err(Failure::out_of_range("stride", stride, &format!("at least {width}, inside memory")));
    };
    // SAFETY: the caller ensures that `data` has the hidden states that the struct describes, which end after `len`
    // elements.
    let data = unsafe { read_row("hidden", given.data, given.dtype, len) }?;
    Ok(HiddenStates::strided(data, rows, width, stride).map_err(own_names)?)
}

impl Head {
    /// Returns it as the engine takes it.
    pub(crate) fn get(&self) -> EngineHead<'_> {
        match &self.inner {
            Inner::Exact(exact) => exact.into(),
            Inner::Certified(certified) => certified.into(),
            Inner::Clustered(clustered) => (&**clustered).into(),
        }
    }

    /// Returns the type of the weights.
    pub(crate) fn dtype(&self) -> Type {
        let weights = match &self.inner {
            Inner::Exact(exact) => exact.weights(),
            Inner::Certified(certified) => certified.exact().weights(),
            Inner::Clustered(clustered) => clustered.weights(),
        };
        match weights {
            Weights::F32(_) => Type::F32,
            Weights::Bf16(_) => Type::Bf16,
            Weights::F16(_) => Type::F16,
        }
    }
}

/// Weights of the program and what follows their product, checked.
pub(crate) struct Given {
    pub(crate) weights: Weights<'static>,
    pub(crate) options: HeadOptions<'static>,
    pub(crate) vocab: usize,
    pub(crate) width: usize,
}

impl Given {
    pub(crate) fn exact(self) -> Result<Exact<'static>> {
        Ok(Exact::new(self.weights, self.vocab, self.width, self.options).map_err(own_names)?)
    }
}

/// What follows the product with weights, and the vocabulary and width of these, checked.
pub(crate) struct GivenShape {
    pub(crate) bias: Option<&'static [f32]>,
    pub(crate) scaling: Scaling,
    pub(crate) shape: (usize, usize),
}

/// Reads what follows the product with weights.
///
/// # Safety
/// `bias` is NULL or has a float for each id. The program neither frees nor writes it as long as the head that reads it.
pub(crate) unsafe fn read_shape(given: &HeadConfig) -> Result<GivenShape> {
    let logit_scale = if given.logit_scale == 0.0 { 1.0 } else { given.logit_scale };
    let scaling = Scaling { logit_scale, softcap: given.softcap };
    extent(1, given.vocab, 0)?;
    check_width(given.width)?;
    // SAFETY: the caller ensures that `bias` is NULL or has a float for each id, which nobody frees or writes meanwhile.
    let bias = unsafe { list::<f32>("bias", given.bias, given.vocab) }?;
    Ok(GivenShape { bias, scaling, shape: (given.vocab, given.width) })
}

/// Reads the weights of a head, and what follows their product.
///
/// # Safety
/// `level` is NULL or ends with a NUL. `weights` and `bias` are NULL or have as many elements as the config says, which nobody frees or writes as
/// long as what is returned, and what is made of it, lives.
pub(crate) unsafe fn read_weights(given: &HeadConfig) -> Result<Given> {
    // SAFETY: the caller ensures that `level` is NULL or ends with a NUL.
    let level = unsafe { optional_text("level", given.level) }?;
    let level = level.map(str::parse).transpose()?;
    // SAFETY: the caller ensures what `bias` has.
    let GivenShape { bias, scaling, shape: (vocab, width) } = unsafe { read_shape(given) }?;
    // SAFETY: the caller ensures that `weights` is NULL or has as many rows as are said, which nobody frees or writes meanwhile.
    let weights = unsafe { read_row("weights", given.weights, given.dtype, vocab * width) };
    let weights: Weights<'static> = match weights? {
        Row::F32(all) => all.into(),
        Row::Bf16(all) => all.into(),
        Row::F16(all) => all.into(),
    };
    let options = HeadOptions { bias: bias.map(Into::into), scaling, level };
    Ok(Given { weights, options, vocab, width })
}

/// Makes a head. GUMBALL_HEAD_CERTIFIED takes a byte for each weight, and the time to read all of them, over the threads that pools of
/// the process share. NULL after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_new(config: *const HeadConfig) -> Option<Box<Head>> {
    make(|| {
        // SAFETY: the C caller ensures that `config` is NULL or points to the bytes that its `struct_size`
        // names.
        let given = unsafe { read("config", config) }?;
        let is_certified = match given.kind {
            0 => false,
            1 => true,
            other => {
                let allowed = "GUMBALL_HEAD_EXACT or GUMBALL_HEAD_CERTIFIED; clustered heads have functions of their own";
                return Err(Failure::out_of_range("kind", other, allowed));
            }
        };
        if given.most_rows > 0 && !is_certified {
            let reason = "an exact head screens no rows; leave it 0";
            return Err(Error::Conflict { parameter: "most_rows", other: "kind", reason }.into());
        }
        // SAFETY: the C caller ensures that `file` is NULL or ends with a NUL.
        let file = unsafe { optional_text("file", given.file) }?;
        if file.is_some() && !is_certified {
            let reason = "an exact head derives nothing from its weights; leave it NULL";
            return Err(Error::Conflict { parameter: "file", other: "kind", reason }.into());
        }
        // SAFETY: the C caller ensures what the config says of `level`, `weights` and `bias`, as long as the head lives.
        let exact = unsafe { read_weights(&given) }?.exact()?;
        if !is_certified {
            return Ok(Head { inner: Inner::Exact(exact) });
        }
        let certified = match file {
            Some(file) => {
                let read = Artefact::open(Path::new(file)).and_then(|artefact| artefact.certified(exact));
                read.map_err(|error| of_file("file", file, error))?
            }
            None => certify(exact),
        };
        let most_rows = if given.most_rows == 0 { certified.most_rows() } else { given.most_rows };
        Ok(Head { inner: Inner::Certified(certified.with_most_rows(most_rows)) })
    })
}

/// Says what is wrong with a file.
pub(crate) fn of_file(parameter: &str, path: &str, error: ArtefactError) -> Failure {
    match error {
        ArtefactError::Io { source, path } => {
            let reason = format!("{}: {source}", path.display());
            Error::Unavailable { resource: "file of a head", reason }.into()
        }
        error => Failure::out_of_range(parameter, path, &format!("a file of this head: {error}")),
    }
}

/// Writes what a head has derived from its weights to a file, for `file` in gumball_head_config: a certified head's copy of them, a clustered head's
/// clusters and centroids, with a checksum and the digest of the weights in the order of ids, which are not in it. The file appears when it is whole.
///
/// `path`: where. `name`: what the tensor of weights is called, which the file says of itself; NULL: lm_head.weight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_save(
    head: Option<&Head>,
    path: *const c_char,
    name: *const c_char,
) -> Code {
    call(|| {
        let head = require("head", head)?;
        // SAFETY: the C caller ensures that `path` is NULL or ends with a NUL.
        let path = unsafe { text("path", path) }?;
        // SAFETY: the C caller ensures that `name` is NULL or ends with a NUL.
        let name = unsafe { optional_text("name", name) }?.unwrap_or("lm_head.weight");
        let written = match &head.inner {
            Inner::Exact(_) => {
                let allowed = "of kind GUMBALL_HEAD_CERTIFIED or GUMBALL_HEAD_CLUSTERED: an exact head derives nothing from its weights";
                return Err(Failure::out_of_range("head", "GUMBALL_HEAD_EXACT", allowed));
            }
            Inner::Certified(certified) => Artefact::write(certified, name, Path::new(path)),
            Inner::Clustered(clustered) => Artefact::write_clustered(clustered, name, Path::new(path)),
        };
        written.map_err(|error| of_file("path", path, error))
    })
}

/// Ends a head; its weights can go then. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_free(head: Option<Box<Head>>) {
    end(head);
}

/// Writes what is known of a head. Set the `struct_size` of `info` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_describe(head: Option<&Head>, info: *mut HeadInfo) -> Code {
    call(|| {
        let head = require("head", head)?;
        let engine = head.get();
        let (kind, most_rows) = match &head.inner {
            Inner::Exact(_) => (HeadKind::GUMBALL_HEAD_EXACT, 0),
            Inner::Certified(certified) => (HeadKind::GUMBALL_HEAD_CERTIFIED, certified.most_rows()),
            Inner::Clustered(clustered) => (HeadKind::GUMBALL_HEAD_CLUSTERED, clustered.most_rows()),
        };
        let screen_bytes =
            if let Inner::Certified(certified) = &head.inner { certified.screen_bytes() } else { 0 };
        let [clusters, capacity, probes, centroid_bytes] = match &head.inner {
            Inner::Clustered(clustered) => {
                let clusters = clustered.clusters();
                [clusters.count(), clusters.capacity(), clustered.probes(), clustered.centroid_bytes()]
            }
            _ => [0; 4],
        };
        let value = HeadInfo {
            struct_size: 0,
            vocab: engine.vocab(),
            width: engine.width(),
            dtype: head.dtype() as i32,
            kind: kind as i32,
            screen_bytes,
            most_rows,
            clusters,
            capacity,
            probes,
            centroid_bytes,
            is_approximate: u64::from(engine.is_approximate()),
        };
        // SAFETY: the C caller ensures that `info` is NULL or points to the bytes that its `struct_size` names,
        // which nobody else uses.
        unsafe { write("info", info, value) }
    })
}

/// Returns the ids whose logits a certified head always computes, since a weight or the bias is not finite or very large, ascending, and
/// their number. NULL if there are none, and after an error. They are the head's.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_head_unscreened(
    head: Option<&Head>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    call_or(ptr::null(), || {
        let (head, len) = (require("head", head)?, require("len", len)?);
        let ids = match &head.inner {
            Inner::Certified(certified) => certified.unscreened(),
            _ => &[][..],
        };
        len.write(ids.len());
        Ok(first(ids))
    })
}

/// Computes all logits of hidden states, whichever kind the head is. `logits`: memory for `vocab` floats for each hidden state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_head_logits(
    head: Option<&Head>,
    hidden: *const Hidden,
    logits: *mut f32,
) -> Code {
    call(|| {
        let head = require("head", head)?;
        // SAFETY: the C caller ensures that `hidden` is NULL or a struct of its stated size, whose hidden states
        // nobody writes meanwhile.
        let states = unsafe { read_hidden(hidden) }?;
        let len = states.rows().saturating_mul(head.get().vocab());
        // SAFETY: the C caller ensures that `logits` has memory for `vocab` floats for each hidden state.
        let out = unsafe { out_slice("logits", logits, len) }?;
        out.iter_mut().for_each(|logit| _ = logit.write(0.0));
        // SAFETY: every element was just written.
        let out = unsafe { out.assume_init_mut() };
        Ok(head.get().logits(states, out).map_err(own_names)?)
    })
}

/// Returns the name of a reason, for C. Each is made once and stays.
pub(crate) fn reason(reason: WholeRow) -> &'static CStr {
    static NAMES: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let (name, mut names) = (reason.name(), NAMES.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(known) = names.iter().find(|known| known.to_bytes() == name.as_bytes()) {
        return known;
    }
    let made: &CStr = Box::leak(CString::new(name).expect("names have no NUL").into_boxed_c_str());
    names.push(made);
    made
}
