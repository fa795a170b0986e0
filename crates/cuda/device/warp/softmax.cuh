// softmax.cuh: rows of probabilities: what a row asks, what is known of it once it was read, and how its tiles are written.
//
// Computes   p_i = RN(exp2(y_i) / RN(RN(Z) 2^-43)), y relative to the row's first token, Z the integer mass (P4, M1 to M4)
// Never      decides by an approximate number what its bound does not prove; never writes beyond a row
// Twins      definition spec/src/outputs.rs, src/abi.rs for the argument | why docs/stages/softmax.md
// Requires   whole warps
#pragma once

#include "abi/operators.cuh"
#include "warp/tile.cuh"

// The temperature of a row. Those of rows cannot be refused: what is not 2^-100 or more counts as 0, what is more than 2^100 as that.
DEVICE float temperature_of(const SoftmaxArgs& softmax, u32 row) {
    return softmax.temperatures ? softmax.temperatures[row * softmax.temperature_stride] : softmax.temperature;
}

// How a row's logits become exponents of two.
struct TemperatureScale {
    // The first token takes all.
    u32 greedy;
    float log2e_over_t;

    TemperatureScale() = default;
    DEVICE_MEMBER explicit TemperatureScale(float temperature)
        : greedy(!(temperature >= bits_float((127 - 100) << 23))) {
        log2e_over_t = log2_e() / (greedy ? 1.0f : fminf(temperature, bits_float((127 + 100) << 23)));
    }
};

// Some tiles of a row.
struct TileSpan {
    u32 from;
    u32 to;

    // The `number`-th of its parts of `tiles` tiles.
    DEVICE_MEMBER TileSpan nth_part(u32 number, u32 tiles) const {
        u32 first = from + number * tiles, last = first + tiles;
        return TileSpan{first < to ? first : to, last < to ? last : to};
    }
};

// Exact quotients by a constant. D in [1, 2) say, high = RN(1/D), low about 1/D - high: q = RN(p high + RN(p low)) is within
// (1/2 + 2^-22) ulp of p/D, so its remainder r is exact, and q + r high differs from p/D by |r| |high - 1/D| < D 2^-26 (1 + 2^-21)
// ulp. The middle of two floats is further from p/D than that: 2^-24/D ulp or more, D being whole in units of 2^-23. Where
// they come closest, at D = 2 - 2^-23, |high - 1/D| is less than 2^-25 by 2^-48, which is enough. Hence RN(q + r high) = RN(p/D).
struct Divisor {
    float d;
    float high;
    float low;

    Divisor() = default;
    DEVICE_MEMBER explicit Divisor(float d) : d(d), high(1.0f / d), low(fma_rn(-d, high, 1.0f) * high) {}

    DEVICE_MEMBER float quotient(float p) const {
        float q = fma_rn(p, high, p * low);
        return fma_rn(fma_rn(-d, q, p), high, q);
    }
};

// What a row came to, once all of it was read: its first token's logit, that token's tile, and its odd values.
struct RowMax {
    float maximum;
    u32 tile;
    u32 nonfinite_flags;

    DEVICE_MEMBER bool empty() const { return !(maximum > -INF_F32); }
    DEVICE_MEMBER u32 status() const { return nonfinite_flags | (empty() ? STATUS_EMPTY : 0); }
};

// Words of which the largest names the first token's logit and tile. Their low 16 bits are for odd values.
DEVICE u64 pack_row_max(float maximum, u32 tile) {
    return (u64)ordered_bits(maximum) << 32 | (u64)(0xFFFF - tile) << 16;
}

DEVICE RowMax unpack_row_max(u64 key, u32 nonfinite_flags) {
    return RowMax{from_ordered_bits((u32)(key >> 32)), 0xFFFF - ((u32)key >> 16), nonfinite_flags};
}

// What a tile adds to the mass of its row (M3).
DEVICE u64 mass_of_tile(const TileSum& tile, const RowMax& row_max, const TemperatureScale& scale) {
    return tile.maximum > -INF_F32
               ? tile_mass(exp2_rule((tile.maximum - row_max.maximum) * scale.log2e_over_t), tile.sum)
               : 0;
}

// What tiles of a row were weighed to, every `step`-th of them; the first CACHED are read once.
template <u32 CACHED>
struct CachedTileSums {
    const TileSum* tiles;
    u32 size;
    u32 first;
    u32 stride;
    TileSum cached[CACHED];

    DEVICE_MEMBER CachedTileSums(const TileSum* tiles, u32 size, u32 first, u32 stride)
        : tiles(tiles), size(size), first(first), stride(stride) {
#pragma unroll
        for (u32 k = 0; k < CACHED; k++) {
            u32 i = first + k * stride;
            cached[k] = i < size ? tiles[i] : TileSum{0, -INF_F32, 0};
        }
    }

    // The largest key of them, the row's tile `from` being their first one; `nonfinite_flags` takes their odd values.
    DEVICE_MEMBER u64 key(u32 from, u32& nonfinite_flags) const {
        u64 key = 0;
        for_each([&](const TileSum& tile, u32 i) INLINE {
            u64 other = pack_row_max(tile.maximum, from + i);
            key = other > key ? other : key;
            nonfinite_flags |= tile.reserved;
        });
        return key;
    }

    DEVICE_MEMBER u64 mass(const RowMax& row_max, const TemperatureScale& scale) const {
        u64 mass = 0;
        for_each([&](const TileSum& tile, u32) INLINE { mass += mass_of_tile(tile, row_max, scale); });
        return mass;
    }

  private:
    template <class F>
    DEVICE_MEMBER void for_each(F f) const {
#pragma unroll
        for (u32 k = 0; k < CACHED; k++) {
            f(cached[k], first + k * stride);
        }
#pragma unroll 2
        for (u32 i = first + CACHED * stride; i < size; i += stride) {
            f(tiles[i], i);
        }
    }
};

// The probabilities of a row's tokens.
struct RowProbabilities {
    RowMax row_max;
    TemperatureScale scale;
    float sum;
    // Of the sum, which is 1 or more, by 4.
    Divisor quarter_sum;
    // 1 by the sum, rounded once.
    float inverse;

    DEVICE_MEMBER void set(const RowMax& row, const TemperatureScale& at, u64 mass) {
        row_max = row;
        scale = at;
        sum = u64_to_float(mass) * bits_float((127 - 43) << 23);
        quarter_sum = Divisor(sum * 0.25f);
        // Both are powers of two apart, hence rounded alike.
        inverse = quarter_sum.high * 0.25f;
    }

    // Whether the first token takes all, or there is none.
    DEVICE_MEMBER bool is_one_hot_or_empty() const { return scale.greedy || row_max.empty(); }

    // Of a lane's share of a tile of clean logits, of which its j-th lies at `offset_in_tile(j)`.
    template <class OffsetOf>
    DEVICE_MEMBER void compute(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE], u32 tile,
                               OffsetOf offset_in_tile) const {
        if (is_one_hot_or_empty()) {
            compute_one_hot(z, p, tile, offset_in_tile);
        } else {
            compute_divided(z, p);
        }
    }

    // The same where it is neither.
    DEVICE_MEMBER void compute_divided(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE]) const {
        if (compute_fast(z, p)) {
            return;
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            float y = (z[j] - row_max.maximum) * scale.log2e_over_t;
            p[j] = y < -126.0f ? 0.0f : p[j];
            if (y < -60.0f && !(y < -126.0f)) {
                p[j] = exp2_scaled(y, 0) / sum;
            }
        }
    }

    // The same rounded once more, to bf16, two by two, if numbers about them tell all: none of those may be so near the middle of two
    // bf16s that it could lie on the other side, or be small. Returns whether it is so.
    DEVICE_MEMBER bool compute_bf16(const float (&z)[ITEMS_PER_LANE], u32 (&words)[ITEMS_PER_LANE / 2]) const {
        const u32 MIDDLE = 0x8000;
        u32 least = ~0u, nearest = ~0u;
        float p[ITEMS_PER_LANE];
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            p[j] = approx_quotient((z[j] - row_max.maximum) * scale.log2e_over_t, inverse);
            // What is left of the word after rounding, counted from as far below the middle as matters.
            u32 bits = float_bits(p[j]), left = (bits << 16) + ((APPROX_QUOTIENT_ULPS - MIDDLE) << 16);
            least = bits < least ? bits : least;
            nearest = left < nearest ? left : nearest;
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE / 2; j++) {
            words[j] = Bf16::pack_two(p[2 * j], p[2 * j + 1]);
        }
        return least >= (127 - 100) << 23 && nearest > (2 * APPROX_QUOTIENT_ULPS) << 16;
    }

  private:
    // Where no exponent of two is below -62, so that no result is subnormal. As `weight_of_distance` does: distances are taken as y / -128,
    // held to 1. Returns whether it is so.
    DEVICE_MEMBER bool compute_fast(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE]) const {
        const float ROUNDING_MAGIC = (12582912.0f - 2.0f) / 128.0f;
        float scaled = scale.log2e_over_t * (1.0f / 128.0f);
        u32 bits_of_all = ~0u;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            float d = mul_saturate(row_max.maximum - z[j], scaled);
            // Its low bits are those of n - 2, n being y's nearest integer.
            float sum = ROUNDING_MAGIC - d;
            float f = d - (ROUNDING_MAGIC - sum);
            float e = 0.000153290152f * 4398046511104.0f;
            e = fma_rn(e, f, 0.00133909716f * -34359738368.0f);
            e = fma_rn(e, f, 0.00961850025f * 268435456.0f);
            e = fma_rn(e, f, 0.0555035956f * -2097152.0f);
            e = fma_rn(e, f, 0.240226477f * 16384.0f);
            e = fma_rn(e, f, 0.693147182f * -128.0f);
            e = fma_rn(e, f, 1.0f);
            bits_of_all &= float_bits(sum);
            p[j] = bits_float(float_bits(quarter_sum.quotient(e)) + (float_bits(sum) << 23));
        }
        // Of -64..=-2 these two bits are set, of -130..=-65 one of them is not.
        return (bits_of_all & 0xC0) == 0xC0;
    }

    // At temperature 0 the first token has 1; in a row of nothing nobody has anything.
    template <class OffsetOf>
    DEVICE_MEMBER void compute_one_hot(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE], u32 tile,
                                       OffsetOf offset_in_tile) const {
        u32 offset = TILE;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            bool here = tile == row_max.tile && z[j] == row_max.maximum && !row_max.empty();
            offset = here && offset_in_tile(j) < offset ? offset_in_tile(j) : offset;
        }
        u32 least = __reduce_min_sync(FULL_MASK, offset);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            p[j] = least < TILE && offset_in_tile(j) == least ? 1.0f : 0.0f;
        }
    }
};

// Of which type the tiles lie over the lanes as they are written: lanes write side by side.
template <class T, class Out>
struct LaneLayoutOf {
    typedef T Type;
};
template <class T>
struct LaneLayoutOf<T, float> {
    typedef F32 Type;
};
template <class T, class Out>
using LaneLayout = typename LaneLayoutOf<T, Out>::Type;

// Whether probabilities are rounded to bf16.
template <class T, class Out>
struct RoundsToBf16 {
    static constexpr bool VALUE = false;
};
template <>
struct RoundsToBf16<Bf16, unsigned short> {
    static constexpr bool VALUE = true;
};

// A lane's share of a whole tile that lies on 16 bytes, as tiles of Q lie over the lanes.
template <class T, class Q>
DEVICE void load_vectorized_as(const typename T::Element* tile, u32 lane, float (&z)[ITEMS_PER_LANE]) {
    if constexpr (sizeof(typename T::Element) == sizeof(typename Q::Element)) {
        load_vectorized<T>(tile, lane, z);
    } else {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u64 four = ((const u64*)tile)[half * 32 + lane];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                z[half * 4 + j] = T::convert((unsigned short)(four >> (16 * j)));
            }
        }
    }
}

// Stores such a share: as it is, or rounded once to the logits' type.
template <class T>
DEVICE void store_vectorized(float* tile, u32 lane, const float (&p)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        U32x4 quad;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            quad.word[j] = float_bits(p[half * 4 + j]);
        }
        ((U32x4*)tile)[half * 32 + lane] = quad;
    }
}

template <class T>
DEVICE void store_vectorized(unsigned short* tile, u32 lane, const float (&p)[ITEMS_PER_LANE]) {
    U32x4 quad;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        quad.word[j] = T::pack_two(p[2 * j], p[2 * j + 1]);
    }
    ((U32x4*)tile)[lane] = quad;
}

// Stores a lane's share of the probabilities of a whole tile that lies on 16 bytes.
template <class T, class Out>
DEVICE void store_probabilities(Out* tile, u32 lane, const RowProbabilities& probabilities,
                                const float (&z)[ITEMS_PER_LANE]) {
    if constexpr (RoundsToBf16<T, Out>::VALUE) {
        U32x4 quad;
        if (probabilities.compute_bf16(z, quad.word)) {
            ((U32x4*)tile)[lane] = quad;
            return;
        }
    }
    float p[ITEMS_PER_LANE];
    probabilities.compute_divided(z, p);
    store_vectorized<T>(tile, lane, p);
}

template <class T>
DEVICE void store_one(float* to, float p) {
    *to = p;
}
template <class T>
DEVICE void store_one(unsigned short* to, float p) {
    *to = (unsigned short)T::pack_two(p, 0.0f);
}

// Where a row of probabilities goes.
template <class T, class Out>
struct RowOutput {
    Out* row;
    u32 vocab;
    bool vectorized;

    DEVICE_MEMBER RowOutput(const SoftmaxArgs& softmax, u32 row)
        : row((Out*)softmax.out + row * softmax.out_stride), vocab(softmax.vocab),
          vectorized((u64)this->row % 16 == 0) {}

    // Writes a tile, a lane's share of whose clean logits is given, as wide tiles have it or not.
    DEVICE_MEMBER void write(const RowProbabilities& probabilities, u32 tile, bool tile_is_vectorized,
                             const float (&z)[ITEMS_PER_LANE]) const {
        u32 lane = lane_id();
        Out* to = row + tile * TILE;
        if (tile_is_vectorized && !probabilities.is_one_hot_or_empty()) {
            store_probabilities<T>(to, lane, probabilities, z);
            return;
        }
        float p[ITEMS_PER_LANE];
        probabilities.compute(
            z, p, tile, [&](u32 j) INLINE { return offset_in_tile<LaneLayout<T, Out>>(lane, j, tile_is_vectorized); });
        if (tile_is_vectorized) {
            store_vectorized<T>(to, lane, p);
            return;
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            u32 offset = j * 32 + lane;
            if (tile * TILE + offset < vocab) {
                store_one<T>(to + offset, p[j]);
            }
        }
    }
};
