// head.cuh: functions that the kernels of heads share.
//
// Computes   the logit of a product (H2), and bounds of it; how a request's rows find their logits
// Twins      oracle spec/src/head.rs, spec/src/params/reading.rs | CPU cpu/src/head | why docs/heads.md,
//            docs/stages/head.md
#pragma once

#include "abi/head.cuh"
#include "math/edits.cuh"
#include "math/num.cuh"
#include "platform/matrix.cuh"
#include "warp/reduce.cuh"

// The NaN of a logit (H3).
#define HEAD_NAN bits_float(0x7FC00000u)

// Twice the error of a softcap, and the rounding of a sum: how far a larger logit may come out of the cap below a
// smaller one, in units of the cap.
#define SOFTCAP_SLACK 1.104e-6f

// Applies a softcap above 0.
DEVICE float softcapped(float z, float softcap) {
    // 2 log2(e)
    const float k = bits_float(0x4038AA3Bu), magnitude = bits_float(float_bits(z) & 0x7FFFFFFFu);
    const float e = exp2_rule(-(magnitude / softcap * k));
    const float capped = softcap * ((1.0f - e) / (1.0f + e));
    return z != z ? z : bits_float(float_bits(capped) | (float_bits(z) & 0x80000000u));
}

// The same, for callers whose code stays short: few models have one.
DEVICE_NOINLINE float below_softcap(float z, float softcap) { return softcapped(z, softcap); }

// The logit of a product before its softcap (H2).
DEVICE float uncapped_logit(const HeadStep& args, float product, u32 id) {
    float z = product;
    if (args.bias != nullptr) {
        z = z + args.bias[id];
    }
    z = z * args.logit_scale;
    return z != z ? HEAD_NAN : z;
}

// The logit of a product (H2).
DEVICE float head_logit(const HeadStep& args, float product, u32 id) {
    const float z = uncapped_logit(args, product, id);
    return args.softcap > 0.0f ? below_softcap(z, args.softcap) : z;
}

// How rows, and the columns that they are multiplied with on tensor cores, lie in memory and in a stage: in pieces of
// QUADS quads of each. A stage has one or two pieces.
struct MatrixPiece {
#ifdef WARPGROUPS_MULTIPLY
    // As `wgmma_operand` says.
    static constexpr u32 QUADS = 8;
    static DEVICE_MEMBER u32 column_word(u32 column, u32 i) { return row_place(column, i / 4) * 4 + i % 4; }
#else
    static constexpr u32 QUADS = HEAD_STAGE_BYTES / 16;
    // Lane 4 g + t reads quad t of each 64 bytes of column g: the words that it multiplies by its words of a row.
    static DEVICE_MEMBER u32 column_place(u32 column, u32 quad) { return column * QUADS + (quad ^ column % 2 * 4); }
    // A quad has every fourth word of a chunk.
    static DEVICE_MEMBER u32 column_word(u32 column, u32 i) {
        return column_place(column, i / 16 * 4 + i % 4) * 4 + i % 16 / 4;
    }
#endif
    static constexpr u32 WORDS = QUADS * 4;

    // Eight neighbouring rows have their quads in different orders, so that lanes that read the same quad of them read
    // different banks.
    static DEVICE_MEMBER u32 row_place(u32 row, u32 quad) { return row * QUADS + (quad ^ row % 8); }

    // The words of a column of `bytes` bytes, which fill whole stages.
    static DEVICE_MEMBER u32 words(u32 bytes) {
        return (bytes + HEAD_STAGE_BYTES - 1) / HEAD_STAGE_BYTES * (HEAD_STAGE_BYTES / 4);
    }
    // How many quads lie in memory before the first quad of the piece `number` of `column`. MATRIX_GROUP_COLUMNS
    // columns, whose pieces lie together, are a multiple of any number of columns that are multiplied at once.
    static DEVICE_MEMBER u64 columns_before(u32 bytes, u32 column, u32 number) {
        const u64 pieces = (u64)(column / MATRIX_GROUP_COLUMNS) * (words(bytes) / WORDS) + number;
        return (pieces * MATRIX_GROUP_COLUMNS + column % MATRIX_GROUP_COLUMNS) * QUADS;
    }
    // Where the i-th word of a column lies in memory, in words.
    static DEVICE_MEMBER u64 word(u32 bytes, u32 column, u32 i) {
        return columns_before(bytes, column / 8 * 8, i / WORDS) * 4 + column_word(column % 8, i % WORDS);
    }
};

// Bitmaps have a bit for each cluster: the words of one, the bitmap of the clusters that any row probes, and a row's.
DEVICE u32 cluster_words(const HeadStep& args) { return (args.clusters + 31) / 32; }
DEVICE u32* probed_by_any(const HeadStep& args) { return args.probed_bits; }
DEVICE u32* probed_by_row(const HeadStep& args, u32 row) {
    return args.probed_bits + (u64)(1 + row) * cluster_words(args);
}

// Whether an id is in a probed set, given its cluster as `clusters_of_ids` has it.
DEVICE bool is_probed(const u32* bits, u32 cluster) {
    return cluster & ALWAYS_PROBED || bits[cluster / 32] >> cluster % 32 & 1;
}

// Which of 32 rows, from `first` on, `holds` is true of: a bit for each, in every lane of the warp.
template <class F>
DEVICE u32 rows_that(const HeadStep& args, u32 first, F holds) {
    const u32 row = first + lane_id();
    return __ballot_sync(FULL_MASK, row < args.step.rows && holds(args.head_rows[row].plan));
}

// How the rows of a request find their logits, and the numbers that go with it.
struct RowNeeds {
    u32 plan;
    // The k of PLAN_FIRST, and what PLAN_LIKELY adds to the first logit.
    u32 count;
    float offset;
};

// Which logits a request needs. `keeps_sets`: whether kept sets are recorded.
DEVICE RowNeeds needs_of_request(const Params& params, bool keeps_sets) {
    switch (params.reading) {
    case READING_FIRST:
        return RowNeeds{PLAN_FIRST, 1, 0.0f};
    case READING_TOP:
        return RowNeeds{PLAN_FIRST, params.first_tokens, 0.0f};
    case READING_LIKELY:
        // With min_p = 1 the filter keeps what lies so little below the first token that the distance times the scale
        // rounds to 0.
        return RowNeeds{PLAN_LIKELY, 0,
                        (filter_float(params, FILTER_MIN_P) - bits_float(1)) / params.filter_log2e_over_t};
    case READING_RACE:
        return RowNeeds{keeps_sets ? PLAN_WHOLE : PLAN_RACE, 0, 0.0f};
    default:
        return RowNeeds{PLAN_WHOLE, 0, 0.0f};
    }
}
