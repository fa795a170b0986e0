//! The arguments of the operators' kernels: `abi/operators.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use crate::abi::header::shared;
use crate::abi::step::{Params, ROW_THREADS, Step};

shared! {
    /// the arguments of the operators' kernels, and what these kernels and the host must agree on.
    ///
    /// Requires   pointers are aligned to their types
    header OPERATORS = "abi/operators.cuh" includes "abi/step.cuh";

    constants {
        /// The most threads of a block of find_cut.
        FIND_CUT_THREADS: u32 = 2 * ROW_THREADS;

        /// The threads of a block of params_from_columns: it makes the request of one row per thread.
        COLUMNS_THREADS: u32 = 128;

        /// The warps of a block of write_rows, of the softmax kernels that read rows twice, and of
        /// verify_survey.
        WRITE_ROWS_WARPS: usize = 8;
        TWO_PASS_WARPS: usize = 8;
        SURVEY_WARPS: usize = 8;

        /// The most tiles that a warp of verify_survey takes, and the most threads of a block of
        /// verify_finish.
        MAX_TILES_PER_WARP: usize = 4;
        VERIFY_FINISH_THREADS: u32 = 2 * ROW_THREADS;

        /// The threads of a block of judge_drafts: more would leave each too few registers.
        JUDGE_DRAFTS_THREADS: u32 = ROW_THREADS;

        /// The most drafts of a tree that judge_drafts judges.
        MAX_JUDGED: usize = gumball_spec::verify::MAX_DRAFTS;

        /// Of softmax_cluster: the most blocks of a cluster, the most warps of a block that work on tiles,
        /// the most rows that a block has in flight, and the most bytes of its static shared memory.
        MAX_CLUSTER_BLOCKS: usize = 16;
        MAX_WORKER_WARPS: usize = 19;
        MAX_ROWS_IN_FLIGHT: usize = 4;
        CLUSTER_STATIC_SMEM_BYTES: usize = 1536;

        /// The threads of a block of numbers: it computes one result per thread.
        NUMERIC_CHECK_THREADS: u32 = 256;
    }

    /// The argument of the softmax kernels: rows of logits become rows of probabilities.
    struct SoftmaxArgs {
        logits: (const void*);
        /// The rows of probabilities: at the logits' address (in place), or in memory that does not overlap
        /// the logits.
        out: (void*);
        /// Elements from the start of a row to the start of the next.
        stride: u64;
        out_stride: u64;
        /// `[rows]`, `temperature_stride` elements apart; one for all rows if that is 0. Null: `temperature`
        /// applies to all rows.
        temperatures: (const float*);
        /// `[rows]`; null: the kernels write no statuses.
        statuses: (u32*);
        /// `[rows, tiles]`: softmax_reduce writes them, softmax_write reads them.
        tile_sums: (TileSum*);
        rows: u32;
        vocab: u32;
        tiles: u32;
        /// Blocks of a row, and the most tiles that each of them has.
        blocks_per_row: u32;
        tiles_per_block: u32;
        /// For softmax_cluster: `pairs_in_smem` pairs of tiles fit a warp's share of the shared memory. When
        /// a warp writes a row, it has already summed `pairs_ahead` pairs of later rows.
        pairs_in_smem: u32;
        pairs_ahead: u32;
        temperature: f32;
        temperature_stride: u32;
        reserved: u32;
    }

    /// Bits of `RowCut::flags`.
    bits cut_flags = RowCutFlags "CUT_" {
        /// No token is kept.
        EMPTY = 1 << 0;
        /// Only the first token is kept, with probability 1, as at temperature 0.
        FIRST_ONLY = 1 << 1;
        /// The first token kept is the row's first token.
        IS_PREFIX = 1 << 2;
        /// The row is complete: find_cut wrote the kept tokens, the survey all others.
        WRITTEN = 1 << 3;
    }

    /// The tokens that the filters keep of a row.
    struct RowCut align(16) {
        first_key: u64;
        last_key: u64;
        /// The mass of the kept tokens at the scale `log2e_over_t`, relative to the first of them. Set if the
        /// output is probabilities.
        mass: u64;
        log2e_over_t: f32;
        flags: u32;
    }

    /// The argument of find_cut, which finds each row's cut. If the survey pre-fills the output, find_cut
    /// also completes the rows that keep no token, one token, or a candidate list of tokens.
    struct FindCut {
        step: Step;
        cuts: (RowCut*);
        /// 1 if the output is masked numbers, which need no mass.
        mask_only: u32;
        reserved: u32;
    }

    /// The argument of write_rows, which writes rows whose cuts are known.
    struct WriteRows {
        logits: (const void*);
        out: (void*);
        /// Elements from the start of a row to the start of the next.
        stride: u64;
        out_stride: u64;
        records: (const TileRecord*);
        cuts: (const RowCut*);
        rows: u32;
        vocab: u32;
        tiles: u32;
        /// Blocks of a row, and the most tiles that each of them has.
        blocks_per_row: u32;
        tiles_per_block: u32;
        mask_only: u32;
    }

    /// Columns, as bits of `ParamColumns::columns_64_bit` and `ParamColumns::per_row_columns`.
    bits columns = ColumnBit "COLUMN_" {
        TEMPERATURE = 1 << 0;
        TOP_K = 1 << 1;
        TOP_P = 1 << 2;
        MIN_P = 1 << 3;
        SEED = 1 << 4;
        POSITION = 1 << 5;
        DRAW = 1 << 6;
        ROW_INDEX = 1 << 7;
        SLOT = 1 << 8;
    }

    /// Bits of `ParamColumns::flags`.
    bits from_columns_flags = ParamColumnsFlags "FROM_COLUMNS_" {
        /// The requests serve the survey of rows of logits that several outputs read: they are greedy and
        /// draw nothing.
        SHARED_ROWS = 1 << 0;
        /// All outputs have the draw index of `base`. Otherwise, without a column, an output's draw index is
        /// the index of the output.
        ONE_DRAW = 1 << 1;
        /// Positions of 64 bits are offsets: the low word is the position, the high word changes the seed.
        OFFSETS = 1 << 2;
        /// The high word of a position of 64 bits is the draw index.
        HIGH_DRAWS = 1 << 3;
    }

    /// The filters with a column that are on, as bits of an index of `ParamColumns::filters`.
    bits row_filters = RowFilter "ROW_" {
        TOP_K = 1 << 0;
        /// Top-k is on and above `MAX_LISTED_TOP_K`.
        LONG_TOP_K = 1 << 1;
        TOP_P = 1 << 2;
        MIN_P = 1 << 3;
    }

    /// The filters of a row, as the host orders them.
    struct RowFilters align(16) {
        filter_chain: u64;
        /// Those bits of `Features` that the chain decides.
        features: u32;
        /// A value of `Chain`.
        chain: u32;
        first_tokens: u32;
        reserved: [u32; 3];
    }

    /// The argument of params_from_columns, which makes a step's requests from columns of parameters in
    /// device memory.
    struct ParamColumns align(16) {
        /// The parameters that all rows share. A column that is not null replaces its parameter.
        base: Params;
        /// What replaces the filters of `base`, by which columns have values that switch their filters on.
        filters: [RowFilters; 16];
        /// Columns of temperatures and filters have an element per row of logits, the others one per output.
        /// A column without its bit in `per_row_columns` has one element for all.
        temperatures: (const float*);
        top_ks: (const void*);
        top_ps: (const float*);
        min_ps: (const float*);
        seeds: (const void*);
        positions: (const void*);
        draws: (const void*);
        row_indices: (const void*);
        /// For each request, which has `rows_per_slot` outputs and rows of logits, the element of the other
        /// columns that these read; the column of positions has that of its first output. Null if the other
        /// columns are of rows and outputs themselves.
        pool_slots: (const void*);
        /// `[rows]`: the requests that the kernel writes and the step reads.
        params: (Params*);
        states: (State*);
        slots: (int*);
        forced: (int*);
        /// `[rows]`: the row of logits that each row reads. Null if row i reads row i of the logits.
        row_indices_out: (u32*);
        rows: u32;
        /// The index of the first output of this launch.
        first_output: u32;
        logits_rows: u32;
        vocab: u32;
        /// Bits of ColumnBit: which columns have elements of 64 bits, and which have an element per row or
        /// output.
        columns_64_bit: u32;
        per_row_columns: u32;
        /// The position of all outputs if `positions` is null.
        position: u32;
        mirostat_mu: f32;
        flags: u32;
        /// The elements of a column that slots are indices of, and the outputs of a slot.
        pool_size: u32;
        rows_per_slot: u32;
        reserved: u32;
    }

    /// Bits of `Chains::flags`.
    bits chain_flags = ChainFlags "CHAIN_" {
        /// Elements have 64 bits instead of 32.
        DRAFTS_I64 = 1 << 0;
        TOKENS_I64 = 1 << 1;
        SEEDS_U64 = 1 << 2;
        POSITIONS_U64 = 1 << 3;
        DRAWS_U64 = 1 << 4;
        /// A chain's draw index is the index of the chain.
        DRAW_IS_INDEX = 1 << 5;
        /// The kernel adds its counts to those in memory.
        ADD_COUNTS = 1 << 6;
        /// The column has an element for each chain; otherwise one for all.
        SEED_PER_CHAIN = 1 << 7;
        POSITION_PER_CHAIN = 1 << 8;
        DRAW_PER_CHAIN = 1 << 9;
        /// The high words of positions change the seeds, as with `FROM_COLUMNS_OFFSETS`.
        OFFSETS = 1 << 10;
        /// A chain whose last row has no token ends with 0 instead of `NO_TOKEN`.
        ZERO_FOR_NONE = 1 << 11;
    }

    /// The argument of the kernels of verify.cu: chains of n = `draft_count` drafts each. Strides are in
    /// elements: from chain to chain, and from row to row.
    struct Chains {
        /// `[chains, n, vocab]`, or with a row more for each chain
        draft_probs: (const float*);
        draft_stride: u64;
        draft_row_stride: u64;
        /// `[chains, n + 1, vocab]`
        target_probs: (const float*);
        target_stride: u64;
        target_row_stride: u64;
        /// `[chains, n]`
        drafts: (const void*);
        drafts_stride: u64;
        /// `[chains, n + 1]`
        tokens: (void*);
        tokens_stride: u64;
        /// `[chains, n + 1]`: the rows that the tokens come from, then -1. Null: the kernels do not write
        /// them.
        rows: (int*);
        rows_stride: u64;
        /// `[chains]` each; null: the kernels do not write it.
        accepted: (u32*);
        accepted_alone: (u32*);
        statuses: (u32*);
        /// `[chains]` or one element each. Null: `seed`, `position` or `draw` below applies to all chains.
        seeds: (const void*);
        positions: (const void*);
        draws: (const void*);
        seed: u64;
        position: u32;
        draw: u32;
        /// `[chains, tiles]`
        records: (TileRecord*);
        draft_count: u32;
        vocab: u32;
        tiles: u32;
        blocks_per_chain: u32;
        /// Tiles that each warp of the survey takes.
        tiles_per_warp: u32;
        flags: u32;
        /// The index of the first chain of this launch.
        first_chain: u32;
        reserved: u32;
    }

    /// The rules by which drafts are judged: values of `JudgeDrafts::rule`.
    codes judge_rules = JudgeRule "JUDGE_" {
        /// By rejection, sibling after sibling (S5).
        REJECTION = 0;
        /// A chain as a whole (S6).
        BLOCK = 1;
        /// By thresholds (S7).
        THRESHOLD = 2;
    }

    /// What rows drafts are judged by: probabilities in f32, or logits of a type.
    codes judge_targets = JudgeTarget "JUDGE_" {
        PROBABILITIES = 0;
        F32 = 1;
        BF16 = 2;
        F16 = 3;
    }

    /// Bits of `JudgeDrafts::flags`.
    bits judge_flags = JudgeFlags "JUDGE_" {
        /// Parents have 64 bits instead of 32.
        PARENTS_I64 = 1 << 0;
    }

    /// The argument of judge_drafts: trees of n = `chains.draft_count` drafts each.
    struct JudgeDrafts {
        /// The trees' drafts, rows, random numbers and results. `draft_probs` is null if the drafter has no
        /// probabilities; `accepted_alone` is null.
        chains: Chains;
        /// `[trees, n]`; -1 is the root. Null: the parent of each draft is the one before it.
        parents: (const void*);
        parents_stride: u64;
        /// `[trees, 2, tiles]`
        tile_sums: (TileSum*);
        /// In units of 2^-32.
        threshold_acc: u64;
        threshold_single: f32;
        /// One of JudgeRule.
        rule: u32;
        flags: u32;
        reserved: u32;
    }

    /// The argument of the kernel numbers, which evaluates a function of number `which` on an arithmetic
    /// sequence of inputs.
    struct Sweep {
        from: u64;
        step: u64;
        count: u64;
        which: u64;
        out: (u64*);
    }
}
