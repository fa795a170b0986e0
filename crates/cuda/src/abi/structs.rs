//! The structs and flags that host and kernels share: the twin of `device/abi/step.cuh` and
//! `device/abi/operators.cuh`, which explain each field.
//!
//! `tests/abi.rs` compares sizes and offsets of both. Values of flags and constants are not compared.

use bytemuck::{Pod, Zeroable};

/// Bits of [`Params::features`].
pub(crate) mod features {
    pub const GREEDY: u32 = 1 << 0;
    pub const JOINT: u32 = 1 << 1;
    pub const DYNAMIC_TEMPERATURE: u32 = 1 << 2;
    pub const MIROSTAT: u32 = 1 << 3;
    pub const TEMPERATURE_LAST: u32 = 1 << 4;
    pub const EDITS: u32 = 1 << 5;
    pub const BANNED_IDS: u32 = 1 << 6;
    pub const HISTORY_EDITS: u32 = 1 << 7;
    pub const LOGPROBS: u32 = 1 << 8;
    pub const TOKEN_COUNTS: u32 = 1 << 9;
    pub const CANDIDATES: u32 = 1 << 10;
    pub const FILTER_SUMS: u32 = 1 << 11;
    pub const KEEP_HISTORY: u32 = 1 << 12;
    pub const LOGPROB_SUMS: u32 = 1 << 13;
    pub const TOKEN_LOGPROB_ONLY: u32 = 1 << 14;
}

/// Bits of [`Step::flags`].
pub(crate) mod flags {
    pub const SCORING: u32 = 1;
    pub const NO_CANDIDATES: u32 = 2;
    pub const TOKENS_I64: u32 = 4;
    pub const ZERO_FOR_NONE: u32 = 8;
    pub const SLOT_IS_ROW: u32 = 16;
}

/// Bits of [`ParamColumns::columns_64_bit`] and [`ParamColumns::per_row_columns`].
pub(crate) mod columns {
    pub const TEMPERATURE: u32 = 1;
    pub const TOP_K: u32 = 2;
    pub const TOP_P: u32 = 4;
    pub const MIN_P: u32 = 8;
    pub const SEED: u32 = 16;
    pub const POSITION: u32 = 32;
    pub const DRAW: u32 = 64;
    pub const ROW_INDEX: u32 = 128;
}

/// Bits of [`ParamColumns::flags`].
pub(crate) mod from_columns_flags {
    pub const SHARED_ROWS: u32 = 1;
    pub const ONE_DRAW: u32 = 2;
    pub const OFFSETS: u32 = 4;
}

/// Bits of [`Chains::flags`].
pub(crate) mod chain_flags {
    pub const DRAFTS_I64: u32 = 1;
    pub const TOKENS_I64: u32 = 2;
    pub const SEEDS_U64: u32 = 4;
    pub const POSITIONS_U64: u32 = 8;
    pub const DRAWS_U64: u32 = 16;
    pub const DRAW_IS_INDEX: u32 = 32;
    pub const ADD_COUNTS: u32 = 64;
    pub const SEED_PER_CHAIN: u32 = 128;
    pub const POSITION_PER_CHAIN: u32 = 256;
    pub const DRAW_PER_CHAIN: u32 = 512;
    pub const OFFSETS: u32 = 1024;
    pub const ZERO_FOR_NONE: u32 = 2048;
}

/// The index of a request in its workspace, from 0; -1 is padding, which belongs to no request.
pub type Slot = i32;

/// Defines the structs, and `layout`, by which a test compares them with the kernels' structs.
macro_rules! crossing {
    ($($(#[$attribute:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
            pub(crate) struct $name {
                $(pub(crate) $field: $type,)*
            }
        )*

        /// Returns the size of each struct that host and kernels share, followed by the offsets of its
        /// fields, in bytes.
        ///
        /// For tests, which compare them with [`Emulator::layout`](crate::Emulator::layout).
        #[cfg(feature = "emulator")]
        #[must_use]
        pub fn layout() -> Vec<u64> {
            let layout = [$(size_of::<$name>(), $(std::mem::offset_of!($name, $field),)*)*];
            layout.map(|value| value as u64).to_vec()
        }
    };
}

crossing! {
    /// A request's parameters, prepared for the kernels.
    #[repr(C, align(16))]
    struct Params {
        seed: u64,
        xtc_probability: u64,
        draw: u32,
        features: u32,
        filter_chain: u32,
        temperature: f32,
        effective_temperature: f32,
        log2e_over_t: f32,
        filter_log2e_over_t: f32,
        top_k: u32,
        top_p: u32,
        typical_p: u32,
        top_n_sigma: f32,
        min_p: f32,
        epsilon: f32,
        eta: f32,
        xtc_threshold: f32,
        dynamic_min: f32,
        dynamic_max: f32,
        dynamic_exponent: f32,
        mirostat_tau: f32,
        mirostat_eta: f32,
        repetition_penalty: f32,
        frequency_penalty: f32,
        presence_penalty: f32,
        repetition_scope: u32,
        penalty_scope: u32,
        dry_multiplier: f32,
        dry_base: f32,
        dry_allowed_length: u32,
        no_repeat_ngram: u32,
        min_tokens: u32,
        logprob_mode: u32,
        top_n: u32,
        logprob_log2e_over_t: f32,
        max_raise: f32,
        min_ratio: f32,
        reserved: u32,
    }

    /// The entry of an id that a request's edits may touch, in the request's hash table.
    #[repr(C, align(16))]
    struct TokenEntry {
        id_plus_1: u32,
        prompt_count: u32,
        output_count: u32,
        bias: f32,
        dry_stamp: u64,
        ban_step: u32,
        reserved: u32,
    }

    /// A request's lists; addresses are in the runtime's memory.
    #[repr(C, align(16))]
    struct Request {
        history: u64,
        entries: u64,
        touched: u64,
        allowed: u64,
        stop_ids: u64,
        breakers: u64,
        bad_words: u64,
        bad_word_ends: u64,
        logprob_ids: u64,
        history_capacity: u32,
        entries_mask: u32,
        stop_count: u32,
        breaker_count: u32,
        bad_word_count: u32,
        logprob_id_count: u32,
    }

    /// A request's state, which the kernels advance.
    #[repr(C, align(16))]
    struct State {
        position: u32,
        mirostat_mu: f32,
        length: u32,
        prompt_length: u32,
        step: u32,
        reserved: [u32; 3],
    }

    /// A tile's record, which the survey writes.
    #[repr(C, align(16))]
    struct TileRecord {
        maximum: f32,
        log2_first_arrival: f32,
        log2_max_arrival: f32,
        packed: u32,
    }

    /// A tile's sum of weights, for logprobs and softmax.
    #[repr(C, align(16))]
    struct TileSum {
        sum: u64,
        maximum: f32,
        reserved: u32,
    }

    /// The argument of a step's kernels; addresses are in the runtime's memory.
    #[repr(C)]
    struct Step {
        logits: u64,
        stride: u64,
        rows: u32,
        vocab: u32,
        tiles: u32,
        blocks_per_row: u32,
        flags: u32,
        mask_words: u32,
        mask_stride: u64,
        row_indices: u64,
        slots: u64,
        forced: u64,
        masks: u64,
        mask_present: u64,
        params: u64,
        requests: u64,
        states: u64,
        records: u64,
        filter_sums: u64,
        logprob_sums: u64,
        shared_records: u64,
        scratch: u64,
        scratch_words: u64,
        outputs: u64,
        top_n_width: u32,
        ids_width: u32,
        kept_bits: u64,
        blocks_per_row_inverse: u32,
        chunks: u32,
        work_sharing: u64,
        shared_filter_sums: u64,
        tokens: u64,
        statuses: u64,
        prefill_out: u64,
        prefill_stride_bytes: u64,
        prefill_element_bytes: u32,
        prefill_word: u32,
    }

    /// The argument of `params_from_columns`, which makes a step's requests from an operator's columns of
    /// parameters; addresses are in the runtime's memory.
    #[repr(C, align(16))]
    struct ParamColumns {
        base: Params,
        temperatures: u64,
        top_ks: u64,
        top_ps: u64,
        min_ps: u64,
        seeds: u64,
        positions: u64,
        draws: u64,
        row_indices: u64,
        params: u64,
        states: u64,
        slots: u64,
        forced: u64,
        row_indices_out: u64,
        rows: u32,
        first_output: u32,
        logits_rows: u32,
        vocab: u32,
        filter_chain: u32,
        columns_64_bit: u32,
        per_row_columns: u32,
        position: u32,
        mirostat_mu: f32,
        flags: u32,
    }

    /// The argument of `find_cut`, which finds the cut of each row.
    #[repr(C)]
    struct FindCut {
        step: Step,
        cuts: u64,
        mask_only: u32,
        reserved: u32,
    }

    /// A row's cut, and the mass of the tokens inside.
    #[repr(C, align(16))]
    struct RowCut {
        first_key: u64,
        last_key: u64,
        mass: u64,
        log2e_over_t: f32,
        flags: u32,
    }

    /// The argument of `write_rows`, which writes rows whose cuts are known; addresses are in the runtime's
    /// memory.
    #[repr(C)]
    struct WriteRows {
        logits: u64,
        out: u64,
        stride: u64,
        out_stride: u64,
        records: u64,
        cuts: u64,
        rows: u32,
        vocab: u32,
        tiles: u32,
        blocks_per_row: u32,
        tiles_per_block: u32,
        mask_only: u32,
    }

    /// The argument of the softmax kernels; addresses are in the runtime's memory.
    #[repr(C)]
    struct SoftmaxArgs {
        logits: u64,
        out: u64,
        stride: u64,
        out_stride: u64,
        temperatures: u64,
        statuses: u64,
        tile_sums: u64,
        rows: u32,
        vocab: u32,
        tiles: u32,
        blocks_per_row: u32,
        tiles_per_block: u32,
        pairs_in_smem: u32,
        pairs_ahead: u32,
        temperature: f32,
        temperature_stride: u32,
        reserved: u32,
    }

    /// The argument of the kernels that verify chains of drafts; addresses are in the runtime's memory.
    #[repr(C)]
    struct Chains {
        draft_probs: u64,
        draft_stride: u64,
        draft_row_stride: u64,
        target_probs: u64,
        target_stride: u64,
        target_row_stride: u64,
        drafts: u64,
        drafts_stride: u64,
        tokens: u64,
        tokens_stride: u64,
        accepted: u64,
        emitted: u64,
        statuses: u64,
        seeds: u64,
        positions: u64,
        draws: u64,
        seed: u64,
        position: u32,
        draw: u32,
        records: u64,
        draft_count: u32,
        vocab: u32,
        tiles: u32,
        blocks_per_chain: u32,
        tiles_per_warp: u32,
        flags: u32,
        first_chain: u32,
        reserved: u32,
    }
}

impl Step {
    /// Returns the step with `blocks_per_row` blocks for each row, at least one.
    pub(crate) fn cut(self, blocks_per_row: u32) -> Self {
        Self { blocks_per_row, blocks_per_row_inverse: u32::MAX / blocks_per_row, ..self }
    }
}
