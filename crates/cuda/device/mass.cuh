// mass.cuh: the integer sums that filters and logprobs are made of (rules M1 to M5), by a block.
//
// Computes   visits to the tiles that a part of a given set reaches; mass, number and entropy of a part
// Never      adds floats; never reads a tile whose maximum the part does not reach
// Twins      oracle spec/src/survey.rs | CPU cpu/src/mass.rs | why docs/stages/survey.md
// Traffic    4 bytes per tile, and the logits of the tiles that are visited
// Requires   all threads of the block, whole warps; results are in every thread
#pragma once

#include "cut.cuh"
#include "view.cuh"
#include "warp.cuh"

// The maxima of a given set's tokens in each tile. A tile that has none of them may have any maximum below the
// set's last logit, or that logit itself.
struct Maxima {
    // The first tile's, and how many floats further each next one is; null: unknown, so every tile is visited.
    const float* first;
    u32 stride;
    u32 tiles;

    DEVICE_MEMBER float of(u32 tile) const { return first ? first[(u64)tile * stride] : LARGEST; }
};

// Those of the whole edited row and of its prefixes, as the survey found them.
DEVICE Maxima surveyed_maxima(const Step& step, u32 row) {
    return Maxima{&step.records[(u64)row * step.tiles].maximum, sizeof(Record) / sizeof(float), step.tiles};
}

// A row's room for maxima of other sets: two lists of them.
DEVICE float* room_for_maxima(const Step& step, u32 row, u32 which) {
    return (float*)(step.scratch + (u64)row * step.scratch_words) + (u64)which * step.tiles;
}

// A row's room for a word for each tile.
DEVICE u64* room_for_sums(const Step& step, u32 row) {
    return step.scratch + (u64)row * step.scratch_words + step.tiles;
}

// Every `every`-th tile of a row, from one on.
struct Tiles {
    u32 first;
    u32 every;
};

// Visits those of some tiles whose maximum reaches `low`, a warp each: `inside(tile, maximum, z, mine)` in all lanes, `mine` in
// the one lane that answers for the tile; then `after(tile, maximum, visited)` in the lane that answers for it, for each.
// NaN and +inf are still among the logits if they come `AS_THEY_ARE`.
template <bool AS_THEY_ARE = false, class V, class Inside, class After>
DEVICE void visit_tiles(const V& view, const Maxima& maxima, float low, Inside inside, After after, Tiles tiles = Tiles{0, 1}) {
    const u32 NO_LANE = 32;
    u32 lane = lane_id(), apart = tiles.every * warps();
    for (u32 start = tiles.first + tiles.every * warp_id(); start < maxima.tiles; start += 32 * apart) {
        u32 own = start + lane * apart;
        float own_maximum = own < maxima.tiles ? maxima.of(own) : -INFINITE;
        bool visited = own_maximum >= low && own_maximum > NOTHING;
        u32 left = __ballot_sync(ALL_LANES, visited), who = NO_LANE;
        float next[PER_LANE] = {};
        // The next tile is on its way while one is worked on: what a warp does with one takes as long as that.
        do {
            float z[PER_LANE];
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = AS_THEY_ARE ? next[j] : clean(next[j]);
            }
            u32 coming = left != 0 ? __ffs((int)left) - 1 : NO_LANE, odd = 0;
            if (left != 0) {
                left &= left - 1;
                view.load(start + coming * apart, lane, next, odd);
            }
            if (who != NO_LANE) {
                inside(start + who * apart, __shfl_sync(ALL_LANES, own_maximum, (int)who), z, lane == who);
            }
            who = coming;
        } while (who != NO_LANE);
        if (own < maxima.tiles) {
            after(own, own_maximum, visited);
        }
    }
}

// Finds the maxima of a set's tokens in each tile and writes them to `to`. `bounds` are maxima at or above them, or unknown.
template <class V>
DEVICE Maxima give(const V& view, const Maxima& bounds, const Cut& set, float* to) {
    float found = -INFINITE;
    visit_tiles(
        view, bounds, set.low(),
        [&](u32 tile, float, const float(&z)[PER_LANE], bool mine) INLINE {
            float most = -INFINITE;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u64 key = key_of(z[j], tile * TILE + view.place(tile, lane_id(), j));
                most = set.contains(key) ? larger(most, z[j]) : most;
            }
            most = from_ordered_bits(__reduce_max_sync(ALL_LANES, ordered_bits(most)));
            found = mine ? most : found;
        },
        [&](u32 tile, float, bool visited) INLINE { to[tile] = visited ? found : -INFINITE; });
    // Without it a warp would read the maxima of tiles that others have not written yet.
    __syncthreads();
    return Maxima{to, 1, bounds.tiles};
}

// The mass that top-p and typical-p aim at, of a total (F1).
DEVICE u64 target_mass(u32 p, u64 total) {
    u64 low = 0xFFFFFFFFull;
    return p * (total >> 32) + ((p * (total & low) + low) >> 32);
}

// What the mass of a row is at least and at most, of which the survey tells what its tiles weigh within 2^-19.
DEVICE u64 least_of(u64 about) { return about - (about >> 19) - 1; }
DEVICE u64 most_of(u64 about) { return about + (about >> 19) + 1; }

// The mass of a whole row from what its tiles weigh, which `weights_of(tile)` says; as exact as that is.
template <class WeightsOf>
DEVICE u64 mass_of_tiles(u32 tiles, float first, float s, WeightsOf weights_of) {
    u64 mass = 0;
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        TileWeights own = weights_of(tile);
        mass += own.maximum > NOTHING ? tile_mass(factor_of(own.maximum, first, s), own.weights) : 0;
    }
    return block_sum(mass);
}

// What a part of a given set comes to: its mass, in units of 2^-43 of the weight of the set's first token.
struct Weighed {
    u64 mass;
    u64 count;
};

// Weighs a part of a given set, an interval inside it, at a scale. `maxima` are the given set's.
template <class V>
DEVICE Weighed weigh(const V& view, const Maxima& maxima, const Given& given, const Cut& part, float s) {
    u64 mass = 0, own = 0;
    u32 count = 0;
    visit_tiles(
        view, maxima, part.low(),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            const Weigher weigher(maximum, s);
            // Eight weights of at most 2^28 fit.
            u32 q = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                bool member = part.contains(key_of(z[j], tile * TILE + view.place(tile, lane_id(), j)));
                q += member ? weigher.of(z[j]) : 0;
                count += member;
            }
            u64 sum = warp_sum_of_words(q);
            own = mine ? sum : own;
        },
        [&](u32, float maximum, bool visited) INLINE {
            mass += visited ? tile_mass(factor_of(maximum, given.first, s), own) : 0;
        });
    return Weighed{block_sum(mass), block_sum(count)};
}

// A mass with the entropy of the set, in bits.
struct WeighedEntropy {
    u64 mass;
    u64 count;
    float entropy;
};

// A distance in units of 2^-20, capped at 32 (M5).
DEVICE u32 fixed_distance(float d) {
    return float_to_u32(1048576.0f * fminf(d, 32.0f));
}

// log2 of a mass in units of its first token's weight (M5).
DEVICE float log_mass(u64 mass) {
    return log2_rule(u64_to_float(mass) * bits_float((127 - 43) << 23));
}

// Weighs a given set at a scale, and finds its entropy (M5).
template <class V>
DEVICE WeighedEntropy weigh_with_entropy(const V& view, const Maxima& maxima, const Given& given, float s) {
    u64 mass = 0, distances = 0, own_q = 0, own_r = 0;
    u32 count = 0;
    visit_tiles(
        view, maxima, given.cut.low(),
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            const Weigher weigher(maximum, s);
            u32 q_sum = 0;
            // Below 2^49 a token.
            u64 r_sum = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                bool member = given.cut.contains(key_of(z[j], tile * TILE + view.place(tile, lane_id(), j)));
                u32 q = member ? weigher.of(z[j]) : 0;
                q_sum += q;
                r_sum += (u64)q * (member ? fixed_distance(exponent(maximum, Origin(z[j]), s)) : 0);
                count += member;
            }
            u64 q = warp_sum_of_words(q_sum), r = warp_sum(r_sum);
            own_q = mine ? q : own_q;
            own_r = mine ? r : own_r;
        },
        [&](u32, float maximum, bool visited) INLINE {
            if (visited) {
                float factor = factor_of(maximum, given.first, s);
                u64 d = fixed_distance(exponent(given.first, Origin(maximum), s));
                mass += tile_mass(factor, own_q);
                distances += tile_mass(factor, (own_r + own_q * d) >> 24);
            }
        });
    mass = block_sum(mass);
    float part = u64_to_float(block_sum(distances)) / u64_to_float(mass);
    return WeighedEntropy{mass, block_sum(count), log_mass(mass) + 16.0f * part};
}
