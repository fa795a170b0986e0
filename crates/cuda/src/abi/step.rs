//! The argument of a step's kernels: `abi/step.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory.

use gumball_spec::Filter;
use gumball_spec::layout::{Layout, Widths};

use crate::abi::header::{Value, shared};

/// The index of a request in its workspace, from 0; -1 is padding, which belongs to no request.
pub type Slot = i32;

/// Returns a filter's code in `Params::filter_chain`; 0 ends a chain.
pub(crate) const fn filter_code(filter: Filter) -> u64 {
    filter as u64 + 1
}

// A filter chain has four bits for each code; another filter needs a wider field on both sides.
const _: () = assert!(Filter::ALL.len() < 1 << 4);

const FILTER_CODES: [Value; Filter::ALL.len()] = of_filters(false);
const FILTER_COUNTS: [Value; Filter::ALL.len()] = of_filters(true);

/// Returns for each filter its code, or how many first tokens of its given set it looks at.
const fn of_filters(counts: bool) -> [Value; Filter::ALL.len()] {
    let mut values = [const { Value { about: &[], name: "", value: 0 } }; Filter::ALL.len()];
    let mut i = 0;
    while i < values.len() {
        let filter = Filter::ALL[i];
        let value = match filter.kind().counted {
            _ if !counts => filter_code(filter) as i64,
            Some(usize::MAX) | None => 0,
            Some(count) => count as i64,
        };
        values[i] = Value { about: &[], name: filter.name(), value };
        i += 1;
    }
    values
}

/// The outputs of one row, in which each section begins at the word of its index.
const ONE_ROW: Layout = Layout { rows: 1, widths: Widths { top_n: 0, ids: 0 } };

shared! {
    /// the argument of a step's kernels, and what its kernels and the host must agree on.
    ///
    /// Requires   slots are -1 or below the pool's; pointers are aligned to their types
    header STEP = "abi/step.cuh" includes "platform/portability.cuh";

    constants {
        /// Ids per tile, and how many of them each lane of a warp has.
        TILE: usize = gumball_spec::TILE;
        ITEMS_PER_LANE: usize = TILE / 32;

        /// Words of a bitmask per tile.
        MASK_WORDS: usize = TILE / 32;

        /// The most tiles of a row.
        MAX_TILES: usize = gumball_spec::MAX_VOCAB / TILE;

        /// The token of a row that has none.
        NO_TOKEN: i32 = gumball_spec::NONE;

        /// The host adds this to the id of a token that the caller forces.
        FORCED_BY_CALLER: i32 = 1 << 30;

        /// The largest top-k for which a candidate list is tried first.
        MAX_LISTED_TOP_K: i64 = gumball_spec::MOST_LISTED as i64;

        /// The factor of an id's hash: its high bits choose where the search for the id's entry begins.
        ENTRY_HASH: u32 = 0x9E37_79B1;
    }

    constants {
        /// The usual number of threads of a block that handles a row.
        ROW_THREADS: u32 = 512;

        /// The most threads of a block of each kernel.
        HISTORY_EDITS_THREADS: u32 = ROW_THREADS;
        FINISH_GENERAL_THREADS: u32 = ROW_THREADS;
        FINISH_SIMPLE_THREADS: u32 = 2 * ROW_THREADS;
        FINISH_CANDIDATES_THREADS: u32 = 2 * ROW_THREADS;
        FINISH_CANDIDATES_LOGPROB_THREADS: u32 = 640;

        /// The warps of a block of survey, and how many tiles each takes if tiles are few or many.
        SURVEY_BLOCK_WARPS: usize = 8;
        SURVEY_FEW_TILES: usize = 1;
        SURVEY_MANY_TILES: usize = 4;

        /// The warps of a block of survey_edited, and how many tiles each takes, if tiles are few, some or
        /// many.
        EDITED_FEW_WARPS: usize = 8;
        EDITED_FEW_TILES: usize = 1;
        EDITED_MEDIUM_WARPS: usize = 4;
        EDITED_MEDIUM_TILES: usize = 4;
        EDITED_MANY_WARPS: usize = 4;
        EDITED_MANY_TILES: usize = 8;

        /// The warps of a block of survey_draw; each takes one tile.
        SURVEY_DRAW_WARPS: usize = 8;

        /// The threads of a block of records_from_shared_rows; each makes the record of one tile.
        SHARED_ROWS_THREADS: usize = 256;
    }

    /// The sections of the outputs that have a word for each row, and the number of such sections. The others
    /// follow: see `Layout` in gumball-spec.
    codes output_sections = OutputSection "OUTPUT_" {
        TOKENS = super::ONE_ROW.tokens().start as u32;
        STATUSES = super::ONE_ROW.statuses().start as u32;
        LOGPROBS = super::ONE_ROW.logprobs().start as u32;
        RANKS = super::ONE_ROW.ranks().start as u32;
        TEMPERATURES = super::ONE_ROW.temperatures().start as u32;
        MIROSTAT_MU = super::ONE_ROW.mirostat_mu().start as u32;
        SECOND_LOGPROBS = super::ONE_ROW.second_logprobs().start as u32;
        SECTIONS = super::ONE_ROW.top_ids().start as u32;
    }

    /// Status bits of a row.
    bits statuses = Status "STATUS_" {
        NAN = gumball_spec::Status::NAN.0;
        INF = gumball_spec::Status::INF.0;
        EMPTY = gumball_spec::Status::EMPTY.0;
        NO_TREE = gumball_spec::Status::NO_TREE.0;
        SECTION = gumball_spec::Status::SECTION.0;
        FORBIDDEN = gumball_spec::Status::FORBIDDEN.0;
        LOOP = gumball_spec::Status::LOOP.0;
        FORCED = gumball_spec::Status::FORCED.0;
        MARKED = gumball_spec::Status::MARKED.0;
    }

    /// What a request needs, as bits of `Params::features`.
    bits features = Features "FEATURE_" {
        GREEDY = 1 << 0;
        /// Each filter acts on the whole row, and the intervals that they keep are intersected (F9).
        JOINT = 1 << 1;
        DYNAMIC_TEMPERATURE = 1 << 2;
        MIROSTAT = 1 << 3;
        /// The filters compute at temperature 1 (F8).
        TEMPERATURE_LAST = 1 << 4;
        /// The request edits single ids: `Request::entries` exists.
        EDITS = 1 << 5;
        /// The request bans ids permanently: `Request::allowed` exists.
        BANNED_IDS = 1 << 6;
        /// The kernel `history_edits` reads the history in each step: some edits depend on its end, namely
        /// DRY, the bans of E4 and penalties of a window, or SECTION or WATERMARK is set.
        HISTORY_EDITS = 1 << 7;
        LOGPROBS = 1 << 8;
        /// Every id of the history has an entry; an emitted token gets one if it has none.
        TOKEN_COUNTS = 1 << 9;
        /// The filters usually keep few tokens, so kernels try them on a candidate list first.
        CANDIDATES = 1 << 10;
        /// The first filter, or joint top-p, needs the mass of the whole row: the survey writes approximate
        /// sums.
        FILTER_SUMS = 1 << 11;
        /// The history is kept although no edit reads it.
        KEEP_HISTORY = 1 << 12;
        /// The logprobs need the mass of the whole row at `Params::logprob_log2e_over_t`: the survey writes
        /// exact sums.
        LOGPROB_SUMS = 1 << 13;
        /// Logprobs are reported for the row's own token only, neither for the top n nor for given ids: in
        /// the mode that the survey sums, over the kept set, or in both.
        TOKEN_LOGPROB_ONLY = 1 << 14;
        /// The row follows drafts and shares the entries of its request. `Request::history` has the drafts
        /// before the row, `Request::history_capacity` of them; they count as output, beside what the entries
        /// count.
        DRAFT_PATH = 1 << 15;
        /// The winner of a race can be tested against what one filter keeps (stage/tested_draw.cuh): the mass
        /// of top-p, or with `TESTED_COUNT` the tokens of top-k.
        TESTED_DRAW = 1 << 16;
        /// The penalties count the last `Params::penalty_window` ids. The kernel `history_edits` counts them
        /// in each step, so the counts of other entries mean nothing.
        PENALTY_WINDOW = 1 << 17;
        /// The text has a section or its loops end: `Request::section` exists. The kernel `history_edits`
        /// finds in each step the id that they force, or ban if EDITS is set too.
        SECTION = 1 << 18;
        /// The request has a watermark: `Request::watermark` exists. The kernel `history_edits` finds in each
        /// step whether the row is marked, and the words of its race.
        WATERMARK = 1 << 19;
        /// Tokens race by the exponents of adaptive-p (D3).
        ADAPTIVE = 1 << 20;
        /// The tested filter of `TESTED_DRAW` is top-k.
        TESTED_COUNT = 1 << 21;
    }

    /// Which logits choose a request's token and give its logprobs: values of `Params::reading`, of which the
    /// least is right for every request.
    codes readings = Reading "READING_" {
        /// All, for anything.
        WHOLE = 0;
        /// All, for a mass of the whole row at a scale that the request fixes.
        MASS = 1;
        /// The logits of the tokens that min-p keeps.
        LIKELY = 2;
        /// The logits of the tokens that could win the race over the whole row.
        RACE = 3;
        /// The logits of the first `Params::first_tokens` tokens.
        TOP = 4;
        /// The logit of the first token.
        FIRST = 5;
    }

    /// By which short way a request's filters can be taken: values of `Params::chain`, of which the least is
    /// right for every request.
    codes chains = Chain "CHAIN_" {
        GENERAL = gumball_spec::Chain::General as u32;
        JOINT = gumball_spec::Chain::Joint as u32;
        NUCLEUS = gumball_spec::Chain::Nucleus as u32;
        SHORT_LIST = gumball_spec::Chain::ShortList as u32;
        MIN_P = gumball_spec::Chain::MinP as u32;
        NONE = gumball_spec::Chain::None as u32;
    }

    /// Filters, as codes in `Params::filter_chain`.
    codes = Filter "FILTER_" { of FILTER_CODES }

    /// How many first tokens of its given set each filter looks at; 0 if it looks at any, or if its parameter
    /// is their number.
    codes = FilterCount "COUNTED_" { of FILTER_COUNTS }

    /// Which tokens a penalty counts: values of `Params::repetition_scope` and `Params::penalty_scope`.
    codes scopes = Scope "SCOPE_" {
        NONE = 0;
        PROMPT = 1;
        OUTPUT = 2;
        BOTH = 3;
    }

    /// Which distribution logprobs are of: as codes in `Params::logprob_modes`.
    codes logprob_modes = LogprobMode "MODE_" {
        RAW = 0;
        EDITED = 1;
        TEMPERED = 2;
        PROCESSED = 3;
        RADIUS = 4;
    }

    /// The list `Request::section`: the place of each word in it. The ids that open a section come
    /// first, then the ids that close it, the ids that are forced at its end, and those at the end of a loop.
    /// Without a section no id closes one; without loops they are looked for every 0 tokens.
    codes section_words = SectionWord "SECTION_" {
        BUDGET = 0;
        MIN = 1;
        OPEN_COUNT = 2;
        CLOSE_COUNT = 3;
        END_COUNT = 4;
        LOOP_EVERY = 5;
        LOOP_MIN_PERIOD = 6;
        LOOP_MAX_PERIOD = 7;
        LOOP_MIN_COPIES = 8;
        LOOP_MIN_TOKENS = 9;
        LOOP_CLOSES = 10;
        LOOP_END_COUNT = 11;
        IDS = 12;
    }

    /// The list `Request::watermark`: the place of each word in it. The four words of the key come first.
    codes watermark_words = WatermarkWord "WATERMARK_" {
        CONTEXT = 4;
        /// 1 if contexts are of the output alone, 0 if they are of prompt and output.
        OF_OUTPUT = 5;
        WINDOW = 6;
    }

    /// The parameters of a request. The host prepares them, so that kernels read them and compute nothing.
    struct Params align(16) {
        seed: u64;
        /// The filters that are on, in the order they act, four bits each from the lowest; 0 ends the list.
        filter_chain: u64;
        draw: u32;
        /// Bits of `Features`.
        features: u32;
        /// As given.
        temperature: f32;
        /// The temperature of the draw; 0 in a greedy request, and under dynamic temperature, where kernels
        /// compute it (F7).
        effective_temperature: f32;
        /// log2(e) / T of the draw and of the filters (N6, F8).
        log2e_over_t: f32;
        filter_log2e_over_t: f32;
        /// The number of each filter, by its code: in units of 2^-32 (1 as 0), as L of a threshold, as a
        /// number of tokens, or as given, as the table of parameters says; floats as bits.
        filter_numbers: [u32; 16];
        /// How many first tokens of the row the first filter looks at; 0 if it looks at any.
        first_tokens: u32;
        /// L of the threshold (F4).
        xtc_threshold: f32;
        dynamic_min: f32;
        dynamic_max: f32;
        dynamic_exponent: f32;
        /// Mirostat's `tau` and `eta`, or the target and the decay of adaptive-p.
        mu_target: f32;
        mu_rate: f32;
        repetition_penalty: f32;
        frequency_penalty: f32;
        presence_penalty: f32;
        /// Scope of the repetition penalty, and of the other two; `SCOPE_NONE` if the penalty is off.
        repetition_scope: u32;
        penalty_scope: u32;
        dry_multiplier: f32;
        dry_base: f32;
        dry_allowed_length: u32;
        no_repeat_ngram: u32;
        min_tokens: u32;
        /// Values of `LogprobMode`, four bits each from the lowest: the first mode, the second one or the
        /// first again, and of the two the one whose members the survey sums (math/logprob_modes.cuh).
        logprob_modes: u32;
        top_n: u32;
        /// The scale of the logprobs, with `FEATURE_LOGPROB_SUMS`.
        logprob_log2e_over_t: f32;
        /// The most by which edits raise a logit; infinite if the host knows no bound.
        max_raise: f32;
        /// min_p itself. Rows of probabilities compare with it times the first probability, and never read
        /// L of it (P1a).
        min_ratio: f32;
        /// 1 if biases are added before the penalties, 0 behind DRY.
        bias_first: u32;
        /// A value of `Reading`.
        reading: u32;
        /// A value of `Chain`.
        chain: u32;
        /// How many tokens a filter keeps at least (F11).
        min_keep: u32;
        /// How many ids `Request::xtc_exempt_ids` has.
        xtc_exempt_count: u32;
        /// How many of the last ids of the history the penalties and DRY look at; 0 for all.
        penalty_window: u32;
        dry_window: u32;
        /// The scope of `no_repeat_ngram`, how many of the last ids of the history it looks at, 0 for all,
        /// and how many ids `Request::no_repeat_ngram_exempt_ids` has.
        no_repeat_ngram_scope: u32;
        no_repeat_ngram_window: u32;
        no_repeat_ngram_exempt_count: u32;
        /// How large the intermediate results of edits are, beside the row's own logits; below 0 if rows have
        /// the radius 0 (L7).
        radius_size: f32;
        reserved: u32;
    }

    /// What a request's edits know of one id: an entry of a hash table with open addressing.
    struct TokenEntry align(16) {
        /// The id plus 1; 0 in an empty entry.
        id_plus_1: u32;
        /// How often the id occurs in the prompt and in the output.
        prompt_count: u32;
        output_count: u32;
        bias: f32;
        /// The high word is a step. If it equals `State::step`, the low word is the f32 that DRY subtracts
        /// (E3), as bits.
        dry_stamp: u64;
        /// The id is banned (E4) if this equals `State::step`.
        ban_step: u32;
        /// The counts are of the step's window if this equals `State::step` (`FEATURE_PENALTY_WINDOW`).
        count_step: u32;
    }

    /// The lists of a request. Each is an array of its own.
    struct Request align(16) {
        /// Prompt, then output; capacity for `history_capacity` ids. Exists with `FEATURE_TOKEN_COUNTS`,
        /// `FEATURE_HISTORY_EDITS` or `FEATURE_KEEP_HISTORY`.
        history: (u32*);
        /// `entries_mask + 1` entries, a power of two, of which at most half are used.
        entries: (TokenEntry*);
        /// A bit per id, set if the id has an entry; covers whole tiles.
        touched: (u32*);
        /// A bit per id, set unless the id is banned permanently; covers whole tiles.
        allowed: (const u32*);
        stop_ids: (const u32*);
        breakers: (const u32*);
        /// The bad words, one after the other, and the index at which each ends.
        bad_words: (const u32*);
        bad_word_ends: (const u32*);
        /// Ids that XTC never drops (F4).
        xtc_exempt_ids: (const u32*);
        /// Ids that `no_repeat_ngram` never bans (E4).
        no_repeat_ngram_exempt_ids: (const u32*);
        logprob_ids: (const u32*);
        /// The section of the text, as `SectionWord` says.
        section: (const u32*);
        /// The watermark, as `WatermarkWord` says.
        watermark: (const u32*);
        history_capacity: u32;
        entries_mask: u32;
        stop_count: u32;
        breaker_count: u32;
        bad_word_count: u32;
        logprob_id_count: u32;
    }

    /// The state of a request. A step advances it.
    struct State align(16) {
        position: u32;
        /// Mirostat's limit, or the mean of adaptive-p.
        mirostat_mu: f32;
        /// Ids in the history, and how many of them are prompt.
        length: u32;
        prompt_length: u32;
        /// Counts the request's steps: 1 in the first. Kernels compare the stamps of TokenEntry with it.
        step: u32;
        /// `mirostat_mu` before the last output token; NaN if it is not known.
        mu_before: f32;
        /// How many ids of the history the next three words are of; never more than it has.
        section_length: u32;
        /// Whether they end in a section: 0 or 1; and the index of its first token, or of the first id in
        /// which the next opening is looked for (B1).
        section_is_open: u32;
        section_start: u32;
        /// The index behind what the last loop forces, or behind a loop that forces nothing; 0 if there was
        /// none (B5).
        loop_end: u32;
        /// What `history_edits` found for the row of this step: in bits 10 to 31 the id that a section or a
        /// loop forces plus 1, or 0; in bits 0 to 9 the row's status bits for them, and `STATUS_MARKED`.
        history_row: u32;
        /// The words of the row's race in the place of seed, position and draw index, if the row is marked
        /// (W1).
        mark_position: u32;
        mark_seed: u64;
        mark_draw: u32;
        reserved: u32;
    }

    /// The survey's result for a tile.
    struct TileRecord align(16) {
        /// The maximum of the edited values; `MASKED_VALUE` in a tile without tokens.
        maximum: f32;
        /// log2 of the tile's first arrival.
        log2_first_arrival: f32;
        /// log2 of the arrival of the tile's first token in the order.
        log2_max_arrival: f32;
        /// Bits 0 to 7: the offset of that token in the tile. Bits 8 and 9: status bits of the values in this
        /// tile or a neighbouring one. Bits 10 to 31: the upper bits of a bound that no other value of the
        /// tile exceeds, as ordered bits.
        packed: u32;
    }

    /// A tile's sum of weights, for logprobs and for the softmax.
    struct TileSum align(16) {
        /// The sum of the weights of its tokens (M3), relative to the maximum.
        sum: u64;
        /// `MASKED_VALUE` in a tile without tokens.
        maximum: f32;
        /// 0; in the softmax kernels the status bits of the tile, or of all tiles of its warp.
        reserved: u32;
    }

    /// The state of a row that blocks race together; all zeros before and after a step.
    struct RowRace {
        /// The best leader of the blocks that have ended.
        leader: u64;
        /// How many blocks have ended.
        ended: u32;
        reserved: u32;
    }

    /// Bits of `Step::flags`.
    bits flags = StepFlags "STEP_" {
        /// Forced tokens are known ones: row i is i tokens further on than its request, which does not
        /// advance.
        KNOWN_TOKENS = 1 << 0;
        /// For tests: no candidate lists, so that rows take the path of those whose candidates are too many.
        NO_CANDIDATES = 1 << 1;
        /// `Step::tokens` has elements of 64 bits.
        TOKENS_I64 = 1 << 2;
        /// `Step::tokens` gets 0 for a row without a token.
        ZERO_FOR_NONE = 1 << 3;
        /// Row i has slot i or is padding, and slot i has a request in either case: the survey need not wait
        /// for `slots`.
        SLOT_IS_ROW = 1 << 4;
        /// No row advances its request.
        NO_ADVANCE = 1 << 5;
    }

    /// The argument of the kernels of a step.
    struct Step {
        /// Rows of vocab elements, `stride` elements apart.
        logits: (const void*);
        stride: u64;
        rows: u32;
        vocab: u32;
        tiles: u32;
        blocks_per_row: u32;
        flags: u32;
        /// Words per row of the mask; ids beyond them are banned.
        mask_words: u32;
        mask_stride: u64;
        /// `[rows]`: the row of logits that each row reads. Null: row i reads row i of the logits.
        row_indices: (const u32*);
        /// `[rows]`; -1 is padding.
        slots: (const int*);
        /// `[rows]`; -1 where no token is forced, FORCED_BY_CALLER more than the id where the caller forces
        /// it.
        forced: (const int*);
        /// `[rows]` rows of `mask_words` words, `mask_stride` words apart; null if no row has a mask.
        masks: (const u32*);
        /// `[rows]`; 0 for a row without a mask. Null: every row has one.
        mask_present: (const u32*);
        /// Indexed by slot.
        params: (const Params*);
        requests: (const Request*);
        states: (State*);
        /// `[rows, tiles]`
        records: (TileRecord*);
        /// `[rows, tiles]`, in rows with `FEATURE_FILTER_SUMS`: the sum of the weights of a tile's tokens at
        /// the scale of the filters. It is within 2^-19 of the exact sum.
        filter_sums: (u64*);
        /// `[rows, tiles]`, in rows with `FEATURE_LOGPROB_SUMS`: exact sums, of the raw logits in mode raw,
        /// otherwise of the edited ones.
        logprob_sums: (TileSum*);
        /// `[rows of logits, tiles]`: records without arrivals, if several rows read one row of logits;
        /// otherwise null.
        shared_records: (const TileRecord*);
        /// `[rows, scratch_words]`: for what does not fit shared memory.
        scratch: (u64*);
        scratch_words: u64;
        /// `[rows]`
        races: (RowRace*);
        /// All outputs of the step; `Layout` in gumball-spec defines the sections.
        outputs: (u32*);
        top_n_width: u32;
        ids_width: u32;
        /// `[rows, tiles * MASK_WORDS]`: the kept set, a bit per id; null if no caller wants it.
        kept_bits: (u32*);
        /// (2^32 - 1) / blocks_per_row: a block divides its index by a multiplication.
        blocks_per_row_inverse: u32;
        reserved: u32;
        /// `[rows of logits, tiles]`: the sums that belong to `shared_records`, in rows with
        /// `FEATURE_FILTER_SUMS`.
        shared_filter_sums: (const u64*);
        /// `[rows]` each: copies of the tokens and statuses, if an operator's caller wants them; otherwise
        /// null. With `tokens`, padding is a row whose index is out of range; its status is EMPTY.
        tokens: (void*);
        statuses: (u32*);
        /// `[rows, vocab]`: output rows that the survey pre-fills with 0 or -inf. An element has
        /// `prefill_element_bytes` bytes, and rows start `prefill_stride_bytes` bytes apart. `prefill_word`
        /// holds the bits of an element, in both halves if it has 16. Null: the survey pre-fills nothing.
        prefill_out: (void*);
        prefill_stride_bytes: u64;
        prefill_element_bytes: u32;
        prefill_word: u32;
    }

    constants {
        /// How many keys the list of a bracket holds, which a block sorts at once.
        LIST_CAPACITY: usize = 2048;

        /// The most blocks of a cluster that work on one row.
        MAX_ROW_BLOCKS: usize = 8;
    }
}

impl Step {
    /// Returns the number of 64-bit scratch words of a row: two for each tile and two for each key of the
    /// list.
    pub(crate) const fn scratch_words(tiles: usize) -> usize {
        2 * tiles + 2 * LIST_CAPACITY
    }

    /// Returns the step over a part of its rows: what lies on the device for each row begins with that of the
    /// part's first one.
    pub(crate) fn with_rows(self, rows: std::ops::Range<usize>) -> Self {
        let from =
            |address: u64, bytes: u64| if address == 0 { 0 } else { address + rows.start as u64 * bytes };
        Self {
            rows: rows.len() as u32,
            row_indices: from(self.row_indices, 4),
            slots: from(self.slots, 4),
            forced: from(self.forced, 4),
            masks: from(self.masks, 4 * self.mask_stride),
            mask_present: from(self.mask_present, 4),
            ..self
        }
    }

    /// Returns the step with `blocks_per_row` blocks for each row, at least one.
    pub(crate) fn with_blocks_per_row(self, blocks_per_row: u32) -> Self {
        Self { blocks_per_row, blocks_per_row_inverse: u32::MAX / blocks_per_row, ..self }
    }
}
