//! What a step hands to its kernels, as they lay it out: the twin of `device/step.cuh`.

use bytemuck::{Pod, Zeroable};

/// What a request asks for, prepared; see [`crate::Prepared`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct Params {
    pub(crate) seed: u64,
    pub(crate) draw: u32,
    pub(crate) asks: u32,
    pub(crate) temperature: f32,
    pub(crate) effective_temperature: f32,
    pub(crate) s: f32,
    pub(crate) filter_s: f32,
    pub(crate) min_p_threshold: f32,
    pub(crate) reserved: [u32; 3],
}

/// Bits of [`Params::asks`].
pub(crate) mod asks {
    pub const GREEDY: u32 = 1;
    pub const MIN_P: u32 = 2;
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C, align(8))]
pub struct State {
    /// The number of tokens before the next one, prompt and output, modulo 2^32.
    pub position: u32,
    /// Mirostat's limit, in bits.
    pub mu: f32,
}

/// What the survey learns of a tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C, align(16))]
pub struct Record {
    /// The largest logit, cleaned; -inf in a tile of nothing.
    pub maximum: f32,
    /// `log2` of the tile's first arrival.
    pub log_first: f32,
    /// `log2` of the arrival of the first token of the order.
    pub log_top: f32,
    /// The place of that token, in the low byte, and of the first arrival, in the next.
    pub places: u32,
}

/// A place in the pool, from 0; -1 stands for none.
pub type Slot = i32;

/// One step of a batch; addresses are the machine's.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Step {
    pub(crate) logits: u64,
    pub(crate) stride: u64,
    pub(crate) rows: u32,
    pub(crate) vocab: u32,
    pub(crate) tiles: u32,
    pub(crate) blocks_per_row: u32,
    pub(crate) slots: u64,
    pub(crate) forced: u64,
    pub(crate) params: u64,
    pub(crate) states: u64,
    pub(crate) records: u64,
    pub(crate) odd: u64,
    pub(crate) outputs: u64,
}

/// Returns sizes and offsets of what crosses between host and kernels, for a test to hold to the kernels' own.
#[cfg(feature = "emulator")]
#[must_use]
pub fn layout() -> Vec<u64> {
    macro_rules! layout {
        ($($type:ident: $($field:ident)*;)*) => {
            [$(size_of::<$type>(), $(std::mem::offset_of!($type, $field),)*)*]
        };
    }
    let layout = layout! {
        Params: seed draw asks temperature effective_temperature s filter_s min_p_threshold;
        State: position mu;
        Record: maximum log_first log_top places;
        Step: logits stride rows vocab tiles blocks_per_row slots forced params states records odd outputs;
    };
    layout.map(|value| value as u64).to_vec()
}
