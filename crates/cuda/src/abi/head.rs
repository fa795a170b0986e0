//! The arguments of the kernels of LM heads: `abi/head.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;
use crate::abi::step::Step;

shared! {
    /// the arguments of the kernels that make rows of logits from hidden states, and what these kernels and
    /// the host must agree on.
    ///
    /// Requires   pointers are aligned to their types
    header HEAD = "abi/head.cuh" includes "abi/step.cuh";

    constants {
        /// The threads of a block of each kernel.
        HEAD_STATES_THREADS: u32 = 1024;
        HEAD_RACE_THREADS: u32 = 256;
        HEAD_CONTENDERS_THREADS: u32 = 1024;
        HEAD_PROBES_THREADS: u32 = 1024;
        LIST_PROBED_THREADS: u32 = 128;
        LISTED_LOGITS_THREADS: u32 = 256;

        /// A block of head_logits, probed_logits, fast_logits, fast_probed or head_bounds copies this many
        /// bytes of each of its rows of weights or codes to shared memory at a time, or half as many for many
        /// columns, some copies ahead of the products. Longer pieces come faster from memory than short ones
        /// do.
        HEAD_STAGE_BYTES: u32 = 256;

        /// The hidden states that head_logits multiplies at once, and the ids of two lanes: in `_few` and in
        /// `_many`, whose threads have more registers.
        HEAD_FEW_STATES: u32 = 1;
        HEAD_FEW_IDS: u32 = 1;
        HEAD_MANY_STATES: u32 = 4;
        HEAD_MANY_IDS: u32 = 2;
        HEAD_MANY_THREADS: u32 = 384;

        /// A block of head_logits, probed_logits, fast_logits, fast_probed or head_bounds: HEAD_COPY_WARPS
        /// warps copy to shared memory, and up to HEAD_PRODUCT_WARPS warps, as many as the launch has
        /// besides, multiply HEAD_WARP_IDS ids each, or twice as many; in probed_logits four. There are at
        /// most HEAD_MOST_STAGES stages.
        HEAD_QUEUE_THREADS: u32 = 512;
        HEAD_COPY_WARPS: u32 = 4;
        HEAD_PRODUCT_WARPS: u32 = 12;
        HEAD_WARP_IDS: u32 = 16;
        HEAD_MOST_STAGES: u32 = 8;

        /// The static shared memory of such a block, at most.
        HEAD_STATIC_SMEM: u32 = 2048;

        /// Tensor cores multiply rows and columns in chunks of this many bytes, to which rows are padded.
        MATRIX_CHUNK_BYTES: usize = 64;

        /// The columns that fast_logits and head_bounds multiply at once, at most, where warps do and where
        /// warpgroups do; there is memory for a multiple of the latter.
        MATRIX_WARP_COLUMNS: usize = 64;
        MATRIX_GROUP_COLUMNS: usize = 256;

        /// The ids of a warpgroup, and the alignment of its stages in shared memory, in bytes.
        MATRIX_GROUP_IDS: u32 = 64;
        MATRIX_ALIGNMENT: u32 = 1024;

        /// The bytes of a row of weights that half a warp of listed_logits copies to shared memory at a time,
        /// and those from its copy to that of the next half. Behind the copies of all halves lie the elements
        /// of a hidden state that meet them.
        LISTED_BYTES: u32 = 4096;
        LISTED_STRIDE: u32 = 4160;

        /// The blocks of head_probes that a row has: one finds its clusters, the others clear the row.
        HEAD_PROBES_BLOCKS: u32 = 8;

        /// The most ids that a block of probed_logits has at a time.
        PROBED_IDS: u32 = 48;

        /// Marks the cluster of an id that is in every probed set.
        ALWAYS_PROBED: u32 = 1 << 31;

        /// The most rows whose probed ids are listed together; of more rows all ids are multiplied.
        LISTED_TOGETHER: usize = MATRIX_WARP_COLUMNS;

        /// Stands for no id, where a cluster has fewer ids than others.
        HEAD_NO_ID: u32 = gumball_spec::head::clusters::NO_ID;

        /// The neighbouring ids that a warp of head_bounds bounds; their bounds have common maxima.
        BOUND_IDS: u32 = 16;

        /// The most rows that a screen has at once; a hidden state has two columns of digits.
        SCREENED_STATES: usize = MATRIX_GROUP_COLUMNS / 2;
    }

    /// How the logits of a row are found: `HeadRow::plan`.
    codes row_plan = RowPlan "PLAN_" {
        /// The row is padding: no logits are needed.
        NONE = 0;
        /// All logits are computed.
        WHOLE = 1;
        /// Those that could be among the first `HeadRow::count`.
        FIRST = 2;
        /// The logits that could reach the first one plus `HeadRow::offset`.
        LIKELY = 3;
        /// Those that could win the race.
        RACE = 4;
        /// Those of the probed set.
        PROBED = 5;
    }

    /// Bits of `HeadStep::flags`.
    bits head_flags = HeadFlags "HEAD_" {
        /// The weights begin at a multiple of 16 bytes, and so does each row of them.
        ALIGNED = 1 << 0;
        /// A screen bounds logits; otherwise all are computed.
        SCREENED = 1 << 1;
        /// Tensor cores multiply: hidden states are rounded to `short_states`, to bf16 or f16 as the weights
        /// have it.
        FAST_BF16 = 1 << 2;
        FAST_F16 = 1 << 3;
        /// The logits of probed sets are computed, and no others.
        CLUSTERED = 1 << 4;
    }

    /// A hidden state as a screen has it, and what its row needs.
    struct HeadRow align(16) {
        /// What a digit is worth, a power of two.
        unit: f32;
        /// The product of the mean row of weights and the hidden state, about.
        mean: f32;
        /// The length of the hidden state, and that of what its digits leave out, or a little more.
        norm: f32;
        rest: f32;
        /// How far `mean` may be off.
        slack: f32;
        /// One of RowPlan.
        plan: u32;
        /// Whether bitmasks or edits exclude ids from bounds.
        has_exclusions: u32;
        count: u32;
        /// Which race the row's is, and log2(e) / T.
        seed: u64;
        position: u32;
        draw: u32;
        log2e_over_t: f32;
        /// At most 0.
        offset: f32;
        /// How many ids are listed in `HeadStep::contenders`: those whose logits decide the row, or its
        /// probed set; of a fast head how many it would list. Written by head_contenders or head_probes.
        contenders: u32;
        /// The largest lower bound of a score that head_race has found, as ordered bits; 0 before it.
        best_score: u32;
        reserved: [u32; 2];
        /// The bitmaps that apply to the row, as EditMasks has them; null if it has none.
        mask: (const u32*);
        allowed: (const u32*);
        touched: (const u32*);
    }

    /// The argument of the kernels of a head.
    struct HeadStep {
        /// The step whose rows are computed. It reads them from `logits`.
        step: Step;
        /// `[vocab, width]`
        weights: (const void*);
        /// `[vocab]`; null without biases.
        bias: (const float*);
        /// `[rows]` rows of `width` elements, `hidden_stride` elements apart.
        hidden: (const void*);
        hidden_stride: u64;
        /// `[rows, padded_width]`: hidden states as f32, zeros after the width.
        states: (float*);
        /// `[rows]`
        head_rows: (HeadRow*);
        /// `[rows, vocab]`: the logits; -inf for those that do not decide their row, or lie outside its
        /// probed set.
        logits: (float*);
        width: u32;
        /// The width, rounded up to a multiple of 16.
        padded_width: u32;
        logit_scale: f32;
        softcap: f32;
        /// Bits of HeadFlags.
        flags: u32;
        /// The most contenders of a row: with more, all of its logits are computed. With clusters the length
        /// of a probed set's list, which a fast head has not.
        most_contenders: u32;
        /// The screen. `[vocab, codes_width]`: codes from -127 to 127, zeros after the width.
        codes: (const void*);
        /// `[vocab]` each: what a code is worth; what a bound grows by for a hidden state of length 1,
        /// infinite for an id that is not screened; the length of the codes times the scale.
        scales: (const float*);
        own: (const float*);
        code_norms: (const float*);
        /// `[width]`, and its length or a little more.
        mean: (const float*);
        mean_norm: f64;
        codes_width: u32;
        reserved: u32;
        /// `[groups of SCREENED_STATES rows, pieces, MATRIX_GROUP_COLUMNS, bytes of a piece]`: the digits of
        /// hidden states, two columns each, as they lie in a stage of head_bounds.
        digits: (void*);
        /// The ids that are not screened.
        unscreened: (const u32*);
        /// `[rows, bounds_stride]`: bounds of logits; in rows of PLAN_RACE, the only ones whose lower
        /// bounds are read again, head_race replaces the upper ones by bounds of scores.
        upper: (float*);
        lower: (float*);
        /// `[rows, bound_tiles]`: the largest of `BOUND_IDS` neighbouring ones.
        upper_maxima: (float*);
        lower_maxima: (float*);
        /// `[rows, most_contenders]`
        contenders: (u32*);
        /// How many rows were computed whole, how many were not, and how many logits these took, since the
        /// head was made.
        counts: (u64*);
        bounds_stride: u32;
        bound_tiles: u32;
        unscreened_count: u32;
        /// The width, rounded up to whole chunks of MATRIX_CHUNK_BYTES.
        short_width: u32;
        /// `[groups of MATRIX_GROUP_COLUMNS rows, pieces, MATRIX_GROUP_COLUMNS, bytes of a piece]`: hidden
        /// states in the type of the weights, zeros after the width, as they lie in a stage of fast_logits.
        short_states: (void*);
        /// The most ids that a block of head_logits, probed_logits, fast_logits, fast_probed or head_bounds
        /// has at a time, a multiple of the ids of a warp, or of a warpgroup, and the stages in its shared
        /// memory.
        queue_ids: u32;
        queue_stages: u32;
        /// The clusters. `[clusters, cluster_capacity]`: the ids of each, and HEAD_NO_ID after them where it
        /// has fewer.
        cluster_ids: (const u32*);
        /// The ids that are in every probed set.
        special_ids: (const u32*);
        /// `[rows, clusters]`: the scores of centroids.
        scores: (float*);
        /// `[rows, probes]`: the clusters that a row probes.
        probed: (u32*);
        /// Of a fast head: `[1 + rows]` bitmaps with a bit for each cluster: of the clusters that any row
        /// probes, then of each row's clusters.
        probed_bits: (u32*);
        /// `[vocab]`: the cluster of each id, with ALWAYS_PROBED if it is special.
        clusters_of_ids: (const u32*);
        /// `[vocab]`: the ids that are in the probed set of any row, in no order, and how many. Null if the
        /// rows are more than LISTED_TOGETHER.
        listed_ids: (u32*);
        listed_count: (u32*);
        cluster_capacity: u32;
        clusters: u32;
        probes: u32;
        special_count: u32;
    }
}
