// mass.cuh: the integer sums that filters and logprobs need (rules M1 to M5), computed by a block.
//
// Computes   visits to the tiles that can hold a part of a given set; mass, number of tokens and entropy of a part
// Never      adds floats; never reads a tile whose maximum is below the part's last logit
// Twins      oracle spec/src/survey.rs | CPU cpu/src/mass.rs | why docs/stages/survey.md
// Traffic    4 bytes per tile, and the logits of the tiles that are visited
// Requires   all threads of the block, whole warps; results are in every thread
#pragma once

#include "math/cut.cuh"
#include "warp/edited_row.cuh"
#include "block/row_blocks.cuh"

// For each tile, the largest logit among a given set's tokens. A tile without such tokens may have any value up to and
// including the set's last logit.
struct Maxima {
    // The first tile's maximum; each next one is `stride` floats further. Null: unknown, so every tile is visited.
    const float* first;
    u32 stride;
    u32 tiles;

    DEVICE_MEMBER float of(u32 tile) const { return first ? first[(u64)tile * stride] : MAX_F32; }

    // The largest of the thread's tiles, as ordered bits.
    DEVICE_MEMBER u32 own_bits() const {
        float most = -INF_F32;
#pragma unroll 1
        for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
            most = max_f32(most, of(tile));
        }
        return ordered_bits(most);
    }
};

// Returns the survey's maxima, of the whole edited row, which hold for its prefixes too.
DEVICE Maxima survey_maxima(const Step& step, u32 row) {
    return Maxima{&step.records[(u64)row * step.tiles].maximum, sizeof(TileRecord) / sizeof(float), step.tiles};
}

// Returns a row's scratch memory for the maxima of another set, one float per tile; `which` is 0 or 1.
DEVICE float* scratch_maxima(const Step& step, u32 row, u32 which) {
    return (float*)(step.scratch + (u64)row * step.scratch_words) + (u64)which * step.tiles;
}

// Returns a row's scratch memory for one 64-bit word per tile.
DEVICE u64* scratch_tile_words(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + step.tiles;
}

// Visits the ones of `tiles` that have a token and whose maximum is at least `low`, one warp per tile. For each of them
// all lanes call `inside(tile, maximum, z, owns_tile)`; `owns_tile` is true in one lane, the tile's owner. Afterwards
// the owner of each tile, visited or not, calls `after(tile, maximum, visited)`. With RAW_VALUES, `z` may hold NaN and
// +inf; otherwise it is clean. For a logit below `low` it may hold any value below `low`.
//
//     for each 32 tiles that the warp takes, one lane owning each:
//         visited = the tiles whose maximum reaches `low`, by a ballot
//         for each visited tile: load the tile that is AHEAD further on, then call `inside` for this one
//         each lane calls `after` for the tile that it owns
//
// One tile ahead suits reads that take about as long for a tile as its load; reads that do little with a tile need two.
template <bool RAW_VALUES = false, u32 AHEAD = 1, class V, class Inside, class After>
DEVICE void visit_tiles(const V& view, const Maxima& maxima, float low, Inside inside, After after,
                        StridedTiles tiles = StridedTiles{0, 1}) {
    const u32 NO_LANE = 32;
    u32 lane = lane_id(), warp_stride = tiles.tile_stride * warp_count();
    for (u32 start = tiles.first + tiles.tile_stride * warp_id(); start < maxima.tiles; start += 32 * warp_stride) {
        u32 own = start + lane * warp_stride;
        float own_maximum = own < maxima.tiles ? maxima.of(own) : -INF_F32;
        bool visited = own_maximum >= low && own_maximum > MASKED_VALUE;
        u32 left = __ballot_sync(FULL_MASK, visited), lanes[AHEAD];
        // The tiles that are loading, the next one first.
        float loading[AHEAD][ITEMS_PER_LANE] = {};
#pragma unroll
        for (u32 i = 0; i < AHEAD; i++) {
            lanes[i] = NO_LANE;
        }
        bool is_left = false;
        do {
            float z[ITEMS_PER_LANE];
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = RAW_VALUES ? loading[0][j] : clean(loading[0][j]);
            }
            u32 leader_lane = lanes[0], nonfinite_flags = 0;
#pragma unroll
            for (u32 i = 0; i + 1 < AHEAD; i++) {
                lanes[i] = lanes[i + 1];
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    loading[i][j] = loading[i + 1][j];
                }
            }
            lanes[AHEAD - 1] = left != 0 ? __ffs((int)left) - 1 : NO_LANE;
            if (left != 0) {
                left &= left - 1;
                view.load(start + lanes[AHEAD - 1] * warp_stride, lane, loading[AHEAD - 1], nonfinite_flags, low);
            }
            if (leader_lane != NO_LANE) {
                inside(start + leader_lane * warp_stride, __shfl_sync(FULL_MASK, own_maximum, (int)leader_lane), z,
                       lane == leader_lane);
            }
            is_left = false;
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                is_left |= lanes[i] != NO_LANE;
            }
        } while (is_left);
        if (own < maxima.tiles) {
            after(own, own_maximum, visited);
        }
    }
}

// Replaces +inf by the largest float in a tile as it came. Only a tile with such a maximum has any.
DEVICE void clamp_infinite(float maximum, float (&z)[ITEMS_PER_LANE]) {
    if (maximum >= MAX_F32) {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = min_or_nan(z[j], MAX_F32);
        }
    }
}

// Replaces the logits of a tile that are outside an interval by MASKED_VALUE; NaN may stay NaN. Only at the interval's
// ends do ids matter, so a tile that has neither of their logits is compared by logits alone.
template <class V>
DEVICE void mask_outside(const V& view, const Cut& set, u32 tile, float (&z)[ITEMS_PER_LANE]) {
    const float first = key_logit(set.first), last = set.low();
    bool at_end = false;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        at_end |= (z[j] == first) | (z[j] == last);
    }
    if (__any_sync(FULL_MASK, at_end)) {
#pragma unroll 1
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            float own = select_item(z, j) + 0.0f;
            bool member = set.contains(make_key(own, tile * TILE + view.offset(lane_id(), j)));
#pragma unroll
            for (u32 k = 0; k < ITEMS_PER_LANE; k++) {
                z[k] = k == j && !member ? MASKED_VALUE : z[k];
            }
        }
        return;
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        z[j] = z[j] > last && !(z[j] >= first) ? z[j] : MASKED_VALUE;
    }
}

// Visits the tiles that can hold tokens of `part`, an interval of a given set whose maxima are `maxima`, as visit_tiles
// does. `z` has no +inf, and is not above MASKED_VALUE where a logit is not in the part.
template <class V, class Inside, class After>
DEVICE void visit_set(const V& view, const Maxima& maxima, const GivenSet& given, const Cut& part, Inside inside,
                      After after, StridedTiles tiles) {
    const bool is_all = given.is_prefix && part.first == given.cut.first && part.last == full_cut().last;
    visit_tiles<true>(
        view, maxima, part.low(),
        [&](u32 tile, float maximum, float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            clamp_infinite(maximum, z);
            if (!is_all) {
                mask_outside(view, part, tile, z);
            }
            inside(tile, maximum, z, owns_tile);
        },
        after, tiles);
}

// Computes the maximum of a set's tokens in each tile and stores it in `to`. `bounds` bound the maxima, or are unknown.
template <class V>
DEVICE Maxima compute_maxima(const RowBlocks& blocks, const V& view, const Maxima& bounds, const Cut& set, float* to) {
    float found = -INF_F32;
    visit_tiles(
        view, bounds, set.low(),
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            float most = -INF_F32;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u64 key = make_key(z[j], tile * TILE + view.offset(lane_id(), j));
                most = set.contains(key) ? max_f32(most, z[j]) : most;
            }
            most = from_ordered_bits(__reduce_max_sync(FULL_MASK, ordered_bits(most)));
            found = owns_tile ? most : found;
        },
        [&](u32 tile, float, bool visited) INLINE { to[tile] = visited ? found : -INF_F32; }, blocks.tiles());
    // RAW on `to`: the owner of each tile stored its maximum, all threads may read all maxima.
    blocks.sync();
    return Maxima{to, 1, bounds.tiles};
}

// Returns the maxima of a given set's tokens; in a row's scratch memory if the set is no prefix of the row.
template <class V>
DEVICE Maxima maxima_of_set(const Step& step, u32 row, const RowBlocks& blocks, const V& view, const GivenSet& given) {
    const Maxima bounds = survey_maxima(step, row);
    return given.is_prefix ? bounds : compute_maxima(blocks, view, bounds, given.cut, scratch_maxima(step, row, 0));
}

// Returns the mass that the tokens kept by top-p or typical-p must reach: ceil(p total / 2^32) (F1).
DEVICE u64 target_mass(u32 p, u64 total) {
    u64 low = 0xFFFFFFFFull;
    return p * (total >> 32) + ((p * (total & low) + low) >> 32);
}

// Bounds of a row's mass, given its mass by the survey's approximate sums, which are within 2^-19 of the exact ones.
DEVICE u64 mass_lower_bound(u64 approx) { return approx - (approx >> 19) - 1; }
DEVICE u64 mass_upper_bound(u64 approx) { return approx + (approx >> 19) + 1; }

// Returns the mass of a whole row from `tile_sum_of(tile)`, the sums of its tiles; it is as exact as those sums.
template <class TileSumOf>
DEVICE u64 row_mass(ReduceStorage& storage, u32 tiles, float first, float log2e_over_t, TileSumOf tile_sum_of) {
    u64 mass = 0;
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        TileSum own = tile_sum_of(tile);
        mass += own.maximum > MASKED_VALUE ? tile_mass(tile_factor(own.maximum, first, log2e_over_t), own.sum) : 0;
    }
    return block_sum(storage, mass);
}

// The mass of a part of a given set, in units of 2^-43 of the weight of the set's first token, and its token count.
struct SetMass {
    u64 mass;
    u64 count;
};

// Returns the mass of `part`, an interval inside a given set whose maxima are `maxima`, at the scale `log2e_over_t`.
template <class V>
DEVICE SetMass mass_of_set(const RowBlocks& blocks, const V& view, const Maxima& maxima, const GivenSet& given,
                           const Cut& part, float log2e_over_t) {
    u64 mass = 0, own = 0;
    u32 count = 0;
    visit_set(
        view, maxima, given, part,
        [&](u32 tile, float maximum, const float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            const TokenWeights token_weights(maximum, log2e_over_t);
            // Eight weights of at most 2^28 sum to at most 2^31, so 32 bits hold them. NaN weighs nothing.
            u32 q = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                q += token_weights.of(z[j]);
                count += z[j] > MASKED_VALUE;
            }
            u64 sum = warp_sum_u32(q);
            own = owns_tile ? sum : own;
        },
        [&](u32, float maximum, bool visited)
            INLINE { mass += visited ? tile_mass(tile_factor(maximum, given.first_value, log2e_over_t), own) : 0; },
        blocks.tiles());
    u64 sums[] = {mass, count};
    blocks.sum(sums);
    return SetMass{sums[0], sums[1]};
}

// The mass of a given set, in the units of SetMass, its number of tokens, and its entropy in bits.
struct SetEntropy {
    u64 mass;
    u64 count;
    float entropy;
};

// Returns a distance in units of 2^-20 bits, after capping it at 32 bits (M5).
DEVICE u32 fixed_distance(float d) { return float_to_u32(1048576.0f * fminf(d, 32.0f)); }

// Returns log2 of a mass, relative to the weight of the set's first token (M5).
DEVICE float log2_mass(u64 mass) { return log2_rule(relative_mass(mass)); }

// Returns the mass, number of tokens and entropy of a given set at the scale `log2e_over_t` (M5).
template <class V>
DEVICE SetEntropy entropy_of_set(const RowBlocks& blocks, const V& view, const Maxima& maxima, const GivenSet& given,
                                 float log2e_over_t) {
    u64 mass = 0, distances = 0, own_q = 0, own_r = 0;
    u32 count = 0;
    visit_set(
        view, maxima, given, given.cut,
        [&](u32 tile, float maximum, const float (&z)[ITEMS_PER_LANE], bool owns_tile) INLINE {
            const TokenWeights token_weights(maximum, log2e_over_t);
            u32 q_sum = 0;
            // Each token adds less than 2^49: a token d bits below the maximum adds about 2^48 d 2^-d.
            u64 r_sum = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                // A masked value weighs nothing, however far away it is.
                u32 q = token_weights.of(z[j]);
                q_sum += q;
                r_sum += (u64)q * fixed_distance(exponent(maximum, Origin(z[j]), log2e_over_t));
                count += z[j] > MASKED_VALUE;
            }
            u64 q = warp_sum_u32(q_sum), r = warp_sum(r_sum);
            own_q = owns_tile ? q : own_q;
            own_r = owns_tile ? r : own_r;
        },
        [&](u32, float maximum, bool visited) INLINE {
            if (visited) {
                float factor = tile_factor(maximum, given.first_value, log2e_over_t);
                u64 d = fixed_distance(exponent(given.first_value, Origin(maximum), log2e_over_t));
                mass += tile_mass(factor, own_q);
                distances += tile_mass(factor, (own_r + own_q * d) >> 24);
            }
        },
        blocks.tiles());
    u64 sums[] = {mass, distances, count};
    blocks.sum(sums);
    float part = u64_to_float(sums[1]) / u64_to_float(sums[0]);
    return SetEntropy{sums[0], sums[2], log2_mass(sums[0]) + 16.0f * part};
}
