// judge.cuh: judges a tree of drafts by probabilities: by rejection (S5), as a block (S6), by thresholds (S7); device
// functions of a block, or of the blocks of a cluster.
//
// Computes   the rows of the walk and the accepted drafts, and one more token, drawn from the residual of the last row
// Never      writes a row: a residual is computed from the given rows each time they are read
// Twins      oracle spec/src/verify/by_probabilities.rs | CPU cpu/src/verify.rs | why docs/stages/judge.md
// Shapes     as in JudgeDrafts; of each tree records [tiles], tile_sums [2, tiles]
// Traffic    a few numbers per draft; with a drafter's row both rows once per refusal that a sibling follows (S5) or
//            per draft of a block (S6); the rows that the last token is drawn from once, and their open tiles again; of
//            a surveyed row without a drafter's, 16 bytes a tile and a few tiles
// Requires   whole warps, all threads of all blocks; 1 <= vocab <= 2^20; at most MAX_JUDGED drafts; 16-byte alignment
//            affects speed only
//
//     S5, S7: from row 0, for each child of the row: accept it and go to its row, or refuse it, which changes the
//             residual; until a row has no accepted child
//     S6:     for each draft, the sum of the residual of the row after it; the last draft after which the chain may
//             end
//     make the records of the last row's residual; if that is zero everywhere, make the records of the target's row
//     race the records' tokens
//
// The residual of a row is the row after its refusals (S5, S7), or what its ratio leaves of it (S6).
//
//  1. A residual is never written. A refusal is the id and the two sums that were divided by; the thread that reads a
//     number takes it through all refusals of the row. So k refusals cost k divisions a number, and no memory.
//  2. All threads of all blocks take each decision, from the same numbers, so none is sent. Only sums and records are
//     divided among them. The first block alone ends the draw.
//  3. The last refusal of a row is not summed, so that chains by rejection are read once. The sum would only say
//     whether anything is left of p, and so do the records (`is_unsettled`). Without a drafter's row nothing is summed.
//  4. A sum reads once: a warp weighs a tile relative to the tile's maximum while it is in registers. The factors,
//     which need the row's maximum, are applied after a barrier, to 16 bytes a tile.
//  5. Each thread makes the record of a tile at once, since that takes a thread as long as a warp several tiles.
//  6. Of a surveyed row without a drafter's, the survey's record says which token of a tile is the first. With its
//     probability and its arrival that is the residual's record, if no id of the tile was refused.
//
// Tried and left: one block for each tree with a sum after each refusal (8 requests of 3 drafts over 151,936 ids: 377
// us for 98); more than 512 threads, which had too few registers each; two tiles of a warp loaded at once (1 request
// of 3 drafts by its logits: 23.2 us for 21.2, since blocks wait most for instructions that they run once).
#pragma once

#include "block/row_blocks.cuh"
#include "stage/residual_records.cuh"
#include "stage/written_probability.cuh"

// The blocks that judge a tree, and which of them this is. Each has every `count`-th tile of a row.
struct JudgeBlocks {
    u32 rank;
    u32 count;

    // The blocks of the cluster.
    static DEVICE_MEMBER JudgeBlocks of_cluster() { return JudgeBlocks{cluster_ctarank(), cluster_nctarank()}; }

    // The tree of this block's cluster, among the launch's trees.
    DEVICE_MEMBER u32 tree_index() const { return blockIdx.x / count; }
    DEVICE_MEMBER bool is_first() const { return rank == 0; }

    // The block's tile of number `i`, and how many it has.
    DEVICE_MEMBER u32 tile(u32 i) const { return rank + i * count; }
    DEVICE_MEMBER u32 own_tiles(u32 tiles) const { return rank < tiles ? (tiles - rank - 1) / count + 1 : 0; }

    DEVICE_MEMBER void sync() const { sync_blocks(count); }
};

// A child that its row refused, and the sums of the row's two residuals before that, which divide them (S5).
struct Refusal {
    i64 id;
    float p_sum;
    float q_sum;
    // Whether the refusal changes the target's residual.
    bool changes_p;

    // Returns an id's p after the refusal, if the refusal reads the drafter's row.
    DEVICE_MEMBER float residual_of(float p, float q) const { return max_f32(p / p_sum - q / q_sum, 0.0f); }
};

// A row of logits that is read as the probabilities which they give (P4), in the layout of tiles of f32.
struct LogitProbs {
    // Null if the row is not one of logits.
    const void* logits;
    // One of JudgeTarget.
    u32 type;
    RowProbabilities probabilities;
    // The tokens that the row's filters keep; all others have the probability 0.
    Cut kept;
    // `[tiles]`: the records of the row, as a survey without scores makes them.
    const TileRecord* surveyed;

    // The exponent of a clean logit: at most 0.
    DEVICE_MEMBER float exponent_of(float z) const {
        return (z - probabilities.row_max.maximum) * probabilities.scale.log2e_over_t;
    }

    // The probability that an exponent gives.
    DEVICE_MEMBER float of_exponent(float y) const { return exp2_rule(y) / probabilities.sum; }

    DEVICE_MEMBER bool keeps(float z, u32 id) const { return kept.contains(make_key(z, id)); }

    // The probability of an id.
    DEVICE_MEMBER float at(i64 id) const {
        const float z = type == JUDGE_F32    ? F32::convert(((const float*)logits)[id])
                        : type == JUDGE_BF16 ? Bf16::convert(((const unsigned short*)logits)[id])
                                             : F16::convert(((const unsigned short*)logits)[id]);
        return keeps(clean(z), (u32)id) ? of_exponent(exponent_of(clean(z))) : 0.0f;
    }

    // Makes the row one whose tokens are all kept, and have this mass.
    DEVICE_MEMBER void keep_all(const RowMax& row_max, const TemperatureScale& scale, u64 mass) {
        probabilities.set(row_max, scale, mass);
        kept = full_cut();
    }

    // Makes the row one of the tokens inside a cut.
    DEVICE_MEMBER void keep(const RowCut& cut) {
        set_probabilities(probabilities, cut);
        kept = cut.flags & CUT_EMPTY ? empty_cut() : Cut{cut.first_key, cut.last_key};
        if (cut.flags & CUT_FIRST_ONLY) {
            // Its exponent is 0. A scale of a temperature of 0 would make it NaN.
            probabilities.scale.log2e_over_t = 0.0f;
            probabilities.sum = 1.0f;
            probabilities.quarter_sum = Divisor(0.25f);
        }
    }

    // Loads the logits of a lane's slice of a tile, -inf beyond the vocabulary.
    DEVICE_MEMBER void load(u32 tile, u32 lane, u32 vocab, float (&z)[ITEMS_PER_LANE]) const {
        if (type == JUDGE_F32) {
            load_as<F32>(tile, lane, vocab, z);
        } else if (type == JUDGE_BF16) {
            load_as<Bf16>(tile, lane, vocab, z);
        } else {
            load_as<F16>(tile, lane, vocab, z);
        }
    }

    // Turns the loaded logits of a tile into probabilities.
    DEVICE_MEMBER void convert(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE]) const {
        clean_items(z, EmptyMask());
        float p[ITEMS_PER_LANE];
        probabilities.compute_divided(z, p);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = keeps(z[j], tile * TILE + offset_in_tile<F32>(lane, j)) ? p[j] : 0.0f;
        }
    }

  private:
    template <class T>
    DEVICE_MEMBER void load_as(u32 tile, u32 lane, u32 vocab, float (&z)[ITEMS_PER_LANE]) const {
        const typename T::Element* row = (const typename T::Element*)logits;
        const u32 start = tile * TILE;
        if (((u64)row & 15) == 0 && tile < vocab / TILE) {
            load_vectorized_as<T, F32>(row + start, lane, z);
        } else {
            load_single<T, F32>(row, start, 0, vocab, lane, z);
        }
    }
};

// A row and its residual, which the last token is drawn from. The target's row is `p`, or the row of `from_logits`.
struct JudgedRow : ProbRows {
    LogitProbs from_logits;
    u32 rule;
    // The ratio c of the row under S6 with a drafter's row.
    float ratio;
    u32 refused;
    // With a drafter's row: whether the last refusal counts as one that changes p, although its residual was not summed
    // and may be zero everywhere.
    bool is_unsettled;
    Refusal refusals[MAX_JUDGED];

    // Returns by how much the target's probability of an id exceeds the drafter's, at the row's ratio (S6).
    DEVICE_MEMBER float excess(float p, float q) const { return max_f32(ratio * p - q, 0.0f); }

    // The target's probability of an id.
    DEVICE_MEMBER float target_at(i64 id) const { return from_logits.logits ? from_logits.at(id) : p[id]; }

    // Whether the residual is the row without the refused ids, whose records a survey's give.
    DEVICE_MEMBER bool is_surveyed() const { return from_logits.logits && !q; }

    // Whether a refused id lies in a tile: one of the first `count`.
    DEVICE_MEMBER bool has_refused(u32 tile, u32 count) const {
        bool found = false;
#pragma unroll 1
        for (u32 k = 0; k < count; k++) {
            found |= refusals[k].id / TILE == tile;
        }
        return found;
    }

    // Turns an id's two probabilities into their residuals.
    DEVICE_MEMBER void to_residual(u32 id, float& own_p, float& own_q) const {
        own_p = clean_probability(own_p);
        own_q = clean_probability(own_q);
        if (rule == JUDGE_BLOCK && q) {
            own_p = excess(own_p, own_q);
            return;
        }
#pragma unroll 1
        for (u32 k = 0; k < refused; k++) {
            const Refusal& refusal = refusals[k];
            if (rule == JUDGE_REJECTION && q) {
                own_p = refusal.changes_p ? refusal.residual_of(own_p, own_q) : own_p;
                own_q = id == refusal.id ? 0.0f : own_q;
            } else {
                own_p = refusal.changes_p && id == refusal.id ? 0.0f : own_p;
            }
        }
    }

    // Loads the residual of a lane's slice of a tile, as `to_residual` computes it. Returns the status bits of the
    // given numbers.
    DEVICE_MEMBER u32 load_residual(u32 tile, u32 lane, LaneProbs& probs) const {
        u32 nonfinite_flags = 0;
        if (from_logits.logits) {
            fetch_logits(tile, lane, probs);
        } else {
            fetch(tile, lane, probs);
            nonfinite_flags = clean_probs(probs.p);
        }
        nonfinite_flags |= q ? clean_probs(probs.q) : 0;
        auto is_at = [&](u32 j, i64 id) INLINE { return tile * TILE + offset_in_tile<F32>(lane, j) == id; };
        // Beyond the vocabulary both are 0, and stay so.
        if (rule == JUDGE_BLOCK && q) {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                probs.p[j] = excess(probs.p[j], probs.q[j]);
            }
        }
        const bool uses_drafter = rule == JUDGE_REJECTION && q;
#pragma unroll 1
        for (u32 k = 0; k < refused; k++) {
            const Refusal& refusal = refusals[k];
            if (uses_drafter) {
                apply_refusal(refusal, is_at, probs);
            } else if (refusal.changes_p && refusal.id / TILE == tile) {
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    probs.p[j] = is_at(j, refusal.id) ? 0.0f : probs.p[j];
                }
            }
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            probs.p[j] = fminf(probs.p[j], MAX_F32);
        }
        return nonfinite_flags;
    }

  private:
    // As `fetch`, of a target's row of logits.
    DEVICE_MEMBER void fetch_logits(u32 tile, u32 lane, LaneProbs& probs) const {
        from_logits.load(tile, lane, vocab, probs.p);
        LaneProbs drafter;
        if (q) {
            ProbRows{q, nullptr, vocab}.fetch(tile, lane, drafter);
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            probs.q[j] = q ? drafter.p[j] : 0.0f;
        }
        from_logits.convert(tile, lane, probs.p);
    }

    // Applies a refusal that reads both rows to a lane's slice.
    template <class IsAt>
    DEVICE_MEMBER static void apply_refusal(const Refusal& refusal, IsAt is_at, LaneProbs& probs) {
        if (refusal.changes_p) {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                probs.p[j] = refusal.residual_of(probs.p[j], probs.q[j]);
            }
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            probs.q[j] = is_at(j, refusal.id) ? 0.0f : probs.q[j];
        }
    }
};

// A row's residual as the race reads it: as logarithms to base 2.
struct LogJudgedRow {
    const JudgedRow& row;

    static DEVICE_MEMBER u32 offset(u32 lane, u32 j) { return offset_in_tile<F32>(lane, j); }
    // -inf where the residual is 0, and beyond the vocabulary.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE], u32&) const {
        LaneProbs probs;
        row.load_residual(tile, lane, probs);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = log2_rule(probs.p[j]);
        }
    }
};

struct JudgeStorage {
    ReduceStorage reduce;
    BoundedRaceStorage race;
    JudgedRow row;
    // Of a tile for each thread: its maximum, and the status bits of its numbers.
    TileReduction tile_max[JUDGE_DRAFTS_THREADS];
    u32 tile_flags[JUDGE_DRAFTS_THREADS];
    // The rows of the walk.
    u32 path[MAX_JUDGED + 1];
};

// The target's rows, if they are rows of logits.
struct TargetLogits {
    // Null if they are rows of probabilities.
    const char* rows;
    u64 row_bytes;
    // One of JudgeTarget.
    u32 type;
    float log2e_over_t;
    // `[rows, tiles]`: sums of the weights of each tile, and records, as a survey writes them.
    const TileSum* sums;
    const TileRecord* records;
    // `[rows]`: the rows' cuts. Null: the rows have no filters, and the sums give their masses.
    const RowCut* cuts;

    // Returns a row, for thread 0; by all threads of a block.
    DEVICE_MEMBER LogitProbs row(u32 index, u32 tiles, ReduceStorage& reduce) const {
        LogitProbs row{rows ? rows + index * row_bytes : nullptr, type, {}, {}, records + (u64)index * tiles};
        if (!rows) {
            return row;
        }
        if (cuts) {
            row.keep(cuts[index]);
            return row;
        }
        TemperatureScale scale;
        scale.greedy = 0;
        scale.log2e_over_t = log2e_over_t;
        const CachedTileSums<2> own(sums + (u64)index * tiles, tiles, threadIdx.x, blockDim.x);
        u32 nonfinite_flags = 0;
        const RowMax row_max = unpack_row_max(block_max(reduce, own.key(0, nonfinite_flags)), 0);
        const u64 mass = block_sum(reduce, own.mass(row_max, scale));
        row.keep_all(row_max, scale, mass);
        return row;
    }
};

// A tree of drafts, as a block judges it.
struct JudgedTree {
    const JudgeDrafts& args;
    JudgeBlocks blocks;
    u32 tree_index;
    // The number of drafts; 0 if the parents are no tree.
    u32 drafts;
    RngStream rng;
    JudgeStorage& storage;
    TargetLogits logits;

    DEVICE_MEMBER const Chains& chains() const { return args.chains; }
    DEVICE_MEMBER i64 id(u32 node) const { return draft_id(chains(), tree_index, node); }
    DEVICE_MEMBER bool is_token(i64 id) const { return id >= 0 && id < chains().vocab; }
    // The id of a draft that was a token when it was read before, and is one here though it is written meanwhile.
    DEVICE_MEMBER i64 known_id(u32 node) const {
        const i64 read = id(node);
        return is_token(read) ? read : 0;
    }
    DEVICE_MEMBER i64 parent(u32 node) const {
        if (!args.parents) {
            return (i64)node - 1;
        }
        u64 index = tree_index * args.parents_stride + node;
        return args.flags & JUDGE_PARENTS_I64 ? ((const i64*)args.parents)[index] : ((const int*)args.parents)[index];
    }
    // Null if the target's rows are logits.
    DEVICE_MEMBER const float* target(u32 row) const {
        return logits.rows ? nullptr : target_row(chains(), tree_index, row);
    }
    // Null if the drafter has no probabilities.
    DEVICE_MEMBER const float* draft(u32 row) const {
        return chains().draft_probs ? draft_row(chains(), tree_index, row) : nullptr;
    }

    // A uniform number in (0, 1] of a word at the position `depth` tokens on.
    DEVICE_MEMBER float uniform(u32 index, u32 depth, u32 tag) const {
        u32 word = philox(rng.seed, index, rng.position + depth, tag, rng.draw).w[0];
        return u64_to_float(2 * (u64)word + 1) * bits_float((127 - 33) << 23);
    }

    // Makes a row the one that is judged. `drafter` is its drafter's row if that is read.
    DEVICE_MEMBER void take_row(u32 row, const float* drafter, float ratio) const {
        const LogitProbs from_logits = logits.row(row, chains().tiles, storage.reduce);
        // WAR on storage.row: threads may still read the row before, thread 0 overwrites it.
        __syncthreads();
        if (threadIdx.x == 0) {
            JudgedRow& judged = storage.row;
            judged.p = target(row);
            judged.from_logits = from_logits;
            judged.q = drafter;
            judged.vocab = chains().vocab;
            judged.rule = args.rule;
            judged.ratio = ratio;
            judged.refused = 0;
            judged.is_unsettled = false;
        }
        // RAW on storage.row: thread 0 wrote it, all threads read it.
        __syncthreads();
    }
};

// Whether each parent is the root or a draft before its child, and under S6 the draft before it.
DEVICE bool is_tree(const JudgedTree& tree, u32 drafts) {
    bool is_valid = true;
    for (u32 node = lane_id(); node < drafts; node += 32) {
        i64 parent = tree.parent(node);
        is_valid &= parent >= -1 && parent < (i64)node && (tree.args.rule != JUDGE_BLOCK || parent == (i64)node - 1);
    }
    return __ballot_sync(FULL_MASK, !is_valid) == 0;
}

// Stores the sum of a tile's weights relative to the largest of them (M3); by a warp.
DEVICE void store_tile_sum(const float (&weights)[ITEMS_PER_LANE], TileSum& out) {
    float maximum = bits_float(__reduce_max_sync(FULL_MASK, float_bits(max_of_probs(weights))));
    const QuotientWeights relative(max_f32(maximum, bits_float(1)));
    // Eight weights of at most 2^28 fit in 32 bits.
    u32 own = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        own += relative.of(weights[j]);
    }
    u64 sum = warp_sum_u32(own);
    if (lane_id() == 0) {
        out = TileSum{sum, maximum, 0};
    }
}

// The sum of a row of weights, and the largest weight.
struct WeightSum {
    float sum;
    float largest;
};

// Returns the sum of a row from the sums of its tiles; in every thread. 0 if no weight is above 0.
DEVICE WeightSum sum_of_tiles(ReduceStorage& reduce, const TileSum* tile_sums, u32 tiles) {
    u64 largest = 0, mass = 0;
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        u64 own = float_bits(tile_sums[tile].maximum);
        largest = own > largest ? own : largest;
    }
    float first = bits_float((u32)block_max(reduce, largest));
    if (first == 0.0f) {
        return WeightSum{0.0f, 0.0f};
    }
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        mass += tile_mass(tile_sums[tile].maximum / first, tile_sums[tile].sum);
    }
    mass = block_sum(reduce, mass);
    return WeightSum{first * relative_mass(mass), first};
}

// The sums of the residuals of the target's row, and of the drafter's row if refusals read it.
struct ResidualSums {
    WeightSum p;
    WeightSum q;
};

// Sums the residual of the judged row; in every thread of every block.
DEVICE ResidualSums sum_residual(const JudgedTree& tree) {
    const JudgedRow& row = tree.storage.row;
    const u32 tiles = tree.chains().tiles, own_tiles = tree.blocks.own_tiles(tiles);
    const bool uses_drafter = row.rule == JUDGE_REJECTION && row.q;
    TileSum* sums = tree.args.tile_sums + (u64)tree.tree_index * 2 * tiles;
#pragma unroll 1
    for (u32 i = warp_id(); i < own_tiles; i += warp_count()) {
        const u32 tile = tree.blocks.tile(i);
        LaneProbs probs;
        row.load_residual(tile, lane_id(), probs);
        store_tile_sum(probs.p, sums[tile]);
        if (uses_drafter) {
            store_tile_sum(probs.q, sums[tiles + tile]);
        }
    }
    // RAW on sums: lane 0 of each warp stored its tiles' sums, all threads of all blocks read them.
    tree.blocks.sync();
    ResidualSums residual_sums{sum_of_tiles(tree.storage.reduce, sums, tiles), WeightSum{1.0f, 1.0f}};
    if (uses_drafter) {
        residual_sums.q = sum_of_tiles(tree.storage.reduce, sums + tiles, tiles);
    }
    // WAR on sums: all threads of all blocks read them, the next call overwrites them.
    tree.blocks.sync();
    return residual_sums;
}

// Refuses a child of the judged row, and records the sums of the residuals before that. With a drafter's row the new
// residuals are summed only if a sibling follows, by `sum_after_refusal`.
DEVICE void refuse(const JudgedTree& tree, i64 id, float p_sum, float q_sum) {
    JudgedRow& row = tree.storage.row;
    // WAR on row: all threads read its refusals, thread 0 adds one.
    __syncthreads();
    if (threadIdx.x == 0) {
        row.refusals[row.refused++] = Refusal{id, p_sum, q_sum, true};
        row.is_unsettled = row.rule == JUDGE_REJECTION && row.q;
    }
    // RAW on row: thread 0 changed it, all threads read it.
    __syncthreads();
}

// If the last refusal makes p zero everywhere, only rounding led there: then p stays as it was before (S5). By thread
// 0.
DEVICE void settle_refusal(JudgedRow& row, bool has_residual) {
    row.refusals[row.refused - 1].changes_p = has_residual;
    row.is_unsettled = false;
}

// Sums the residuals after the last refusal.
DEVICE void sum_after_refusal(const JudgedTree& tree, float& p_sum, float& q_sum) {
    const ResidualSums residual_sums = sum_residual(tree);
    const bool has_residual = residual_sums.p.largest > 0.0f;
    p_sum = has_residual ? residual_sums.p.sum : p_sum;
    q_sum = residual_sums.q.sum;
    // sum_residual ends with a barrier, so no thread reads the refusal now.
    if (threadIdx.x == 0) {
        settle_refusal(tree.storage.row, has_residual);
    }
    // RAW on row: thread 0 changed it, all threads read it.
    __syncthreads();
}

// Judges the children of a row, one after the other (S5, S7). Returns the row of the first that is accepted, or 0. The
// row becomes the judged one.
DEVICE u32 judge_children(const JudgedTree& tree, u32 row, u32 depth) {
    const bool by_rejection = tree.args.rule == JUDGE_REJECTION;
    tree.take_row(row, by_rejection ? tree.draft(row) : nullptr, 1.0f);
    const JudgedRow& judged = tree.storage.row;
    u64 threshold_mass = 0;
    if (!by_rejection) {
        const u32 word = philox(tree.rng.seed, 0, tree.rng.position + depth, TAG_THRESHOLD, tree.rng.draw).w[0];
        threshold_mass = (word * tree.args.threshold_acc) >> 16;
    }
    float p_sum = 1.0f, q_sum = 1.0f;
    u64 reached_mass = 0;
    u32 siblings = 0;
#pragma unroll 1
    for (u32 node = row; node < tree.drafts; node++) {
        if (tree.parent(node) + 1 != (i64)row) {
            continue;
        }
        const u32 sibling = siblings++;
        const i64 id = tree.id(node);
        if (!tree.is_token(id)) {
            continue;
        }
        if (judged.is_unsettled) {
            sum_after_refusal(tree, p_sum, q_sum);
        }
        float p = judged.target_at(id), q = judged.q ? judged.q[id] : 0.0f;
        judged.to_residual((u32)id, p, q);
        if (by_rejection) {
            float q_share = !judged.q ? 1.0f : q > 0.0f ? q / q_sum : 0.0f;
            // The threads decide together: each has read p and q by itself, and they may be written meanwhile.
            if (!__syncthreads_or(q_share > 0.0f)) {
                continue;
            }
            float p_share = p > 0.0f ? p / p_sum : 0.0f;
            if (__syncthreads_or(p_share >= q_share || tree.uniform(sibling, depth, TAG_ACCEPT) * q_share < p_share)) {
                return node + 1;
            }
        } else {
            reached_mass += (u64)(fminf(p, 1.0f) * bits_float((127 + 48) << 23));
            if (__syncthreads_or(p > 0.0f && (threshold_mass < reached_mass || p >= tree.args.threshold_single))) {
                return node + 1;
            }
        }
        refuse(tree, id, p_sum, q_sum);
        p_sum = judged.q ? p_sum : p_sum - p;
    }
    return 0;
}

// The rules of a walk besides the judgement: none, for trees that belong to no request.
struct NoWalkRules {
    // Returns the token that a row must emit, whichever drafts are accepted; -1 for none.
    DEVICE_MEMBER i64 forced(u32) const { return -1; }
    // Whether a token is the last one wherever it is emitted.
    DEVICE_MEMBER bool stops(i64) const { return false; }
};

// Returns the row of the first child of a row that has a token, or 0.
DEVICE u32 child_with(const JudgedTree& tree, u32 row, i64 id) {
#pragma unroll 1
    for (u32 node = row; node < tree.drafts; node++) {
        if (tree.parent(node) + 1 == (i64)row && tree.id(node) == id) {
            return node + 1;
        }
    }
    return 0;
}

// Walks from row 0 to the rows of accepted drafts. Returns how many drafts were accepted; `storage.path` has the rows.
// `decided` is the last row's token if it was forced or is a draft after which the walk stops, else -1.
template <class Rules>
DEVICE u32 walk_tree(const JudgedTree& tree, const Rules& rules, i64& decided) {
    u32 row = 0, depth = 0;
    while (true) {
        if (threadIdx.x == 0) {
            tree.storage.path[depth] = row;
        }
        decided = rules.forced(row);
        u32 next = decided >= 0 ? child_with(tree, row, decided) : judge_children(tree, row, depth);
        if (next == 0) {
            return depth;
        }
        decided = tree.id(next - 1);
        if (rules.stops(decided)) {
            return depth;
        }
        row = next;
        depth++;
    }
}

// Makes a row of a chain before a draft the judged one, at the ratio c (S6).
DEVICE void take_block_row(const JudgedTree& tree, u32 row, float ratio) { tree.take_row(row, tree.draft(row), ratio); }

// Judges a chain as a whole (S6). Returns how many drafts were accepted; the row after them becomes the judged one.
// `residual` says whether its last token comes from a residual: not if all drafts were accepted that can have been
// drawn.
DEVICE u32 judge_block(const JudgedTree& tree, bool& residual) {
    u32 drawable = 0;
    while (drawable < tree.drafts && tree.is_token(tree.id(drawable)) &&
           (!tree.draft(drawable) || clean_probability(tree.draft(drawable)[tree.known_id(drawable)]) > 0.0f)) {
        drawable++;
    }
    drawable = (u32)block_max(tree.storage.reduce, drawable);
    float ratio = 1.0f, accepted_ratio = 1.0f;
    u32 accepted = 0;
    if (drawable > 0) {
        take_block_row(tree, 0, ratio);
    }
#pragma unroll 1
    for (u32 node = 0; node < drawable; node++) {
        const i64 id = tree.known_id(node);
        // The judged row is the one before the draft.
        float p = clean_probability(tree.storage.row.target_at(id)),
              q = tree.draft(node) ? clean_probability(tree.draft(node)[id]) : 1.0f;
        ratio = fminf(ratio * p / q, 1.0f);
        const float u = tree.uniform(node, 0, TAG_BLOCK);
        const u32 row = node + 1;
        bool may_end;
        if (row == drawable) {
            may_end = ratio == 1.0f || u < ratio;
        } else {
            take_block_row(tree, row, ratio);
            const float draft_p = clean_probability(tree.storage.row.target_at(tree.known_id(row)));
            const float sum = tree.draft(row) ? sum_residual(tree).p.sum : max_f32(ratio * (1.0f - draft_p), 0.0f);
            may_end = sum > 0.0f && (ratio == 1.0f || u * (sum + (1.0f - ratio)) < sum);
        }
        // The threads decide together, as in judge_children.
        may_end = __syncthreads_or(may_end);
        accepted = may_end ? row : accepted;
        accepted_ratio = may_end ? ratio : accepted_ratio;
    }
    residual = accepted < drawable;
    if (residual) {
        take_block_row(tree, accepted, accepted_ratio);
        if (!tree.draft(accepted)) {
            refuse(tree, tree.known_id(accepted), 1.0f, 1.0f);
        }
    } else {
        tree.take_row(accepted, nullptr, 1.0f);
    }
    for (u32 row = threadIdx.x; row <= accepted; row += blockDim.x) {
        tree.storage.path[row] = row;
    }
    return accepted;
}

// Exponents whose difference is at least this have weights in their order: exp2 is not monotone to the last bit.
#define ORDERED_EXPONENTS (1.0f / 65536.0f)

// Makes the record of a tile without refused ids from the survey's record. That names the tile's first token; if this
// one is not kept, the tile has no kept token, since it has none before the cut.
DEVICE TileRecord record_from_survey(const LogitProbs& probs, const TileRecord& surveyed, const LastTokenStream& rng,
                                     u32 tile) {
    const FirstArrival first = first_arrival(rng, tile);
    const u32 offset = surveyed.packed & 255;
    const bool is_kept = probs.keeps(surveyed.maximum, tile * TILE + offset);
    const float log2_p = is_kept ? log2_rule(probs.of_exponent(probs.exponent_of(surveyed.maximum))) : -INF_F32;
    const float others = fminf(record_others_bound(surveyed), surveyed.maximum);
    float others_bound = -INF_F32;
    if (is_kept && others >= probs.kept.low()) {
        const float y = fminf(probs.exponent_of(others) + ORDERED_EXPONENTS, 0.0f);
        others_bound = log2_rule(probs.of_exponent(y)) + ORDERED_EXPONENTS - log2_of_normal(first.e);
    }
    return TileRecord{log2_p, log2_p, log2_of_normal(token_arrival(rng, first, tile, offset)),
                      pack_record_bits(offset, 0, others_bound)};
}

// Makes records of a surveyed row from the survey's records, and lists this block's other tiles, whose logits are to be
// loaded: tiles with refused ids, tiles with tokens before the cut, and tiles of which a token besides the named one
// may have the largest probability of the residual.
DEVICE void make_surveyed_records(const JudgedTree& tree, const LastTokenStream& rng, TileRecord* records,
                                  OpenTiles& others) {
    const JudgedRow& row = tree.storage.row;
    const LogitProbs& probs = row.from_logits;
    const u32 tiles = tree.chains().tiles, own_tiles = tree.blocks.own_tiles(tiles), refused = row.refused;
    if (threadIdx.x == 0) {
        others.clear();
    }
    auto first_key = [&](u32 tile, const TileRecord& surveyed)
                         INLINE { return make_key(surveyed.maximum, tile * TILE + (surveyed.packed & 255)); };
    u64 largest = 0;
#pragma unroll 1
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        const u64 own = first_key(tile, probs.surveyed[tile]);
        if (own > largest && probs.kept.contains(own) && !row.has_refused(tile, refused)) {
            largest = own;
        }
    }
    // RAW on `others`, too: thread 0 cleared it before a barrier in here, threads add tiles.
    const float top = key_logit(block_max(tree.storage.reduce, largest));
    const float near_top = probs.exponent_of(top) - ORDERED_EXPONENTS;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < own_tiles; i += blockDim.x) {
        const u32 tile = tree.blocks.tile(i);
        const TileRecord surveyed = probs.surveyed[tile];
        const u64 key = first_key(tile, surveyed);
        const bool is_near = key >= probs.kept.last && probs.exponent_of(record_others_bound(surveyed)) >= near_top;
        if (is_near || key > probs.kept.first || row.has_refused(tile, refused)) {
            others.add(tile);
        } else {
            records[tile] = record_from_survey(probs, surveyed, rng, tile);
        }
    }
    // RAW on `others`: threads added tiles, all threads read them.
    __syncthreads();
}

// Makes the records of the judged row's residual. The warps find the maxima of as many tiles as the block has threads;
// then each thread makes the record of one. Of a surveyed row only a few tiles are loaded.
DEVICE void make_records(const JudgedTree& tree, const LastTokenStream& rng, TileRecord* records) {
    const TileRace not_raced{0.0f, TILE, 0.0f, 0};
    const JudgedRow& row = tree.storage.row;
    OpenTiles& loaded = tree.storage.race.open_tiles;
    const bool is_surveyed = row.is_surveyed();
    if (is_surveyed) {
        make_surveyed_records(tree, rng, records, loaded);
    }
    auto tile_of = [&](u32 i) INLINE { return is_surveyed ? (u32)loaded.tiles[i] : tree.blocks.tile(i); };
    const u32 count = is_surveyed ? loaded.count : tree.blocks.own_tiles(tree.chains().tiles);
    TileReduction* maxima = tree.storage.tile_max;
    u32* flags = tree.storage.tile_flags;
#pragma unroll 1
    for (u32 start = 0; start < count; start += blockDim.x) {
        const u32 end = start + blockDim.x < count ? start + blockDim.x : count;
#pragma unroll 1
        for (u32 i = start + warp_id(); i < end; i += warp_count()) {
            LaneProbs probs;
            const u32 nonfinite_flags = __reduce_or_sync(FULL_MASK, row.load_residual(tile_of(i), lane_id(), probs));
            reduce_probs_tile(probs.p, maxima[i - start]);
            if (lane_id() == 0) {
                flags[i - start] = nonfinite_flags;
            }
        }
        // RAW on maxima and flags: all warps wrote their tiles' entries, each thread reads the entries of one tile.
        __syncthreads();
        if (start + threadIdx.x < end) {
            const u32 tile = tile_of(start + threadIdx.x);
            const FirstArrival first = first_arrival(rng, tile);
            records[tile] = make_chain_record(maxima[threadIdx.x], not_raced, flags[threadIdx.x], rng, first, tile);
        }
        // WAR on maxima and flags: each thread has read its tile's entries, the warps overwrite them.
        __syncthreads();
    }
    // RAW on records: a thread of each block wrote its tiles' records, all threads of all blocks read them.
    tree.blocks.sync();
}

// Draws from the residual of the judged row, or from the target's row if the residual is zero everywhere. Adds to
// `status`. Only the first block returns the token.
DEVICE int draw_last(const JudgedTree& tree, const LastTokenStream& rng, u32& status) {
    TileRecord* own = tree.chains().records + (u64)tree.tree_index * tree.chains().tiles;
    JudgedRow& row = tree.storage.row;
#pragma unroll 1
    for (bool is_whole = false;;) {
        make_records(tree, rng, own);
        const RowRecords records(own, nullptr, tree.chains().tiles);
        WarpLeader warp_leader = reduce_warp_leaders<SurveyDrawRecords>(tree.storage.race, records, 1.0f);
        RowSummary summary = summarise_row(warp_leader);
        status |= summary.nonfinite_flags;
        if (summary.first_key != 0) {
            if (!tree.blocks.is_first()) {
                return NO_TOKEN;
            }
            return race_weights(tree.storage.race, records, warp_leader, summary, LogJudgedRow{row}, rng);
        }
        if (is_whole) {
            status |= STATUS_EMPTY;
            return NO_TOKEN;
        }
        const bool is_unsettled = row.is_unsettled;
        is_whole = !is_unsettled;
        // WAR on storage.row and records: all threads of all blocks read them, thread 0 and make_records overwrite
        // them.
        tree.blocks.sync();
        if (threadIdx.x == 0) {
            if (is_unsettled) {
                settle_refusal(row, false);
            } else {
                row.q = nullptr;
                row.refused = 0;
            }
        }
        // RAW on storage.row: thread 0 wrote it, all threads read it.
        __syncthreads();
    }
}

// The judgement of a tree: the number of accepted drafts, the token after them, and the status of the rows that this
// token was drawn from.
struct Judgement {
    u32 accepted;
    int token;
    u32 status;
};

// Judges a tree whose parents are one, and under S6 a chain. `storage.path` has the rows of the walk, which all threads
// may read.
template <class Rules>
DEVICE Judgement judge_tree(const JudgedTree& tree, const Rules& rules) {
    Judgement judged{0, NO_TOKEN, 0};
    i64 decided = -1;
    bool residual = false;
    if (tree.args.rule == JUDGE_BLOCK) {
        judged.accepted = judge_block(tree, residual);
#pragma unroll 1
        for (u32 node = 0; node < judged.accepted && decided < 0; node++) {
            if (rules.stops(tree.id(node))) {
                decided = tree.id(node);
                judged.accepted = node;
            }
        }
    } else {
        judged.accepted = walk_tree(tree, rules, decided);
    }
    if (decided >= 0) {
        // RAW on storage.path: thread 0 wrote it, all threads read it.
        __syncthreads();
        judged.token = (int)decided;
        return judged;
    }
    if (tree.args.rule != JUDGE_BLOCK) {
        residual = tree.storage.row.refused > 0;
        if (!residual) {
            // The drafter's row has no part in the draw.
            tree.take_row(tree.storage.path[judged.accepted], nullptr, 1.0f);
        }
    }
    const LastTokenStream rng{{tree.rng.seed, tree.rng.position + judged.accepted, tree.rng.draw}, residual};
    judged.token = draw_last(tree, rng, judged.status);
    return judged;
}
