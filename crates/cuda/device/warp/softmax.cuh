// softmax.cuh: the temperature, maximum and probabilities of a row, and how its probabilities are written.
//
// Computes   p_i = RN(exp2(y_i) / RN(RN(Z) 2^-43)), y relative to the first token, Z the integer mass (P4, M1 to M4)
// Never      decides by an approximate number what its bound does not prove; never writes beyond a row
// Twins      definition spec/src/outputs.rs | why docs/stages/softmax.md
// Requires   whole warps
#pragma once

#include "abi/operators.cuh"
#include "warp/tile.cuh"

// The temperature of a row. A kernel can refuse no temperature: TemperatureScale takes what is not at least 2^-100 as
// 0, and numbers above 2^100 as 2^100.
DEVICE float temperature_of(const SoftmaxArgs& softmax, u32 row) {
    return softmax.temperatures ? softmax.temperatures[(u64)row * softmax.temperature_stride] : softmax.temperature;
}

// The scale by which differences of a row's logits become exponents of two.
struct TemperatureScale {
    // 1 at temperature 0: the first token has probability 1.
    u32 greedy;
    float log2e_over_t;

    TemperatureScale() = default;
    DEVICE_MEMBER explicit TemperatureScale(float temperature)
        : greedy(!(temperature >= bits_float((127 - 100) << 23))) {
        log2e_over_t = log2_e() / (greedy ? 1.0f : fminf(temperature, bits_float((127 + 100) << 23)));
    }
};

// A range of a row's tiles: from `from` to `to`, which is excluded.
struct TileSpan {
    u32 from;
    u32 to;

    // The `number`-th part of `tiles` tiles; the last parts may be shorter or empty.
    DEVICE_MEMBER TileSpan nth_part(u32 number, u32 tiles) const {
        u32 first = from + number * tiles, last = first + tiles;
        return TileSpan{first < to ? first : to, last < to ? last : to};
    }
};

// Correctly rounded quotients by a constant D, here in [1, 2). Let high = RN(1/D), and low approximate 1/D - high. Let
// q = RN(p high + RN(p low)). It is within (1/2 + 2^-22) ulp of p/D, so its remainder r is exact. q + r high differs
// from p/D by |r| |high - 1/D| < D 2^-26 (1 + 2^-21) ulp. The midpoint of two floats is at least 2^-24/D ulp from p/D,
// because D is an integer in units of 2^-23. The two bounds are closest at D = 2 - 2^-23. There |high - 1/D| is less
// than 2^-25 by 2^-48, which is enough. Hence RN(q + r high) = RN(p/D).
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

// The maximum of a row that has been read completely: its first token's logit, that token's tile, and the status bits.
struct RowMax {
    float maximum;
    u32 tile;
    u32 nonfinite_flags;

    DEVICE_MEMBER bool empty() const { return !(maximum > -INF_F32); }
    DEVICE_MEMBER u32 status() const { return nonfinite_flags | (empty() ? STATUS_EMPTY : 0); }
};

// Packs a tile's maximum into a word: the largest word of a row names the first token's logit and tile. The low 16 bits
// are 0, for status bits.
static_assert(MAX_TILES + 4 * 1024 <= 1 << 16,
              "a half word numbers the tiles, and those that threads have beyond the row");

DEVICE u64 pack_row_max(float maximum, u32 tile) {
    return (u64)ordered_bits(maximum) << 32 | (u64)(0xFFFF - tile) << 16;
}

DEVICE RowMax unpack_row_max(u64 key, u32 nonfinite_flags) {
    return RowMax{from_ordered_bits((u32)(key >> 32)), 0xFFFF - ((u32)key >> 16), nonfinite_flags};
}

// The share of a tile in the mass of its row (M3).
DEVICE u64 mass_of_tile(const TileSum& tile, const RowMax& row_max, const TemperatureScale& scale) {
    return tile.maximum > -INF_F32
               ? tile_mass(exp2_rule((tile.maximum - row_max.maximum) * scale.log2e_over_t), tile.sum)
               : 0;
}

// The sums of a row's tiles, of which a thread takes every `stride`-th one. It keeps the first CACHED of them in
// registers, and reads the others for each use.
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

    // The largest word of `pack_row_max` of these tiles; `from` is the number in the row of the first element of
    // `tiles`. `nonfinite_flags` takes the status bits of these tiles.
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

// Computes the probabilities of a row's tokens.
struct RowProbabilities {
    RowMax row_max;
    TemperatureScale scale;
    float sum;
    // Divides by sum / 4; the sum is at least 1.
    Divisor quarter_sum;
    // RN(1 / sum).
    float inverse;

    DEVICE_MEMBER void set(const RowMax& row, const TemperatureScale& at, u64 mass) {
        row_max = row;
        scale = at;
        sum = relative_mass(mass);
        quarter_sum = Divisor(sum * 0.25f);
        // The divisors sum / 4 and sum differ by a power of two, so their reciprocals round alike.
        inverse = quarter_sum.high * 0.25f;
    }

    // Whether the first token has probability 1, or the row has no token.
    DEVICE_MEMBER bool is_one_hot_or_empty() const { return scale.greedy || row_max.empty(); }

    // Computes the probabilities of a lane's slice of a tile of clean logits. `offset_in_tile(j)` is the offset of the
    // j-th.
    template <class OffsetOf>
    DEVICE_MEMBER void compute(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE], u32 tile,
                               OffsetOf offset_in_tile) const {
        if (is_one_hot_or_empty()) {
            compute_one_hot(z, p, tile, offset_in_tile);
        } else {
            compute_divided(z, p);
        }
    }

    // Computes the probabilities of a lane's slice of a tile, in a row that has tokens and is not greedy.
    DEVICE_MEMBER void compute_divided(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE]) const {
        if (compute_fast(z, p)) {
            return;
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            // Below -60 a quotient may be subnormal: the lane divides. Below -126 it is 0 (N2).
            float y = (z[j] - row_max.maximum) * scale.log2e_over_t;
            p[j] = y < -126.0f ? 0.0f : p[j];
            if (y < -60.0f && !(y < -126.0f)) {
                p[j] = exp2_scaled(y, 0) / sum;
            }
        }
    }

    // Computes the probabilities from approximate quotients and rounds them to bf16, in pairs. Returns whether all are
    // certainly equal to the exact ones, rounded once more. This fails if a quotient is small, or so near the midpoint
    // of two bf16s that the exact one may lie on its other side.
    DEVICE_MEMBER bool compute_bf16(const float (&z)[ITEMS_PER_LANE], u32 (&words)[ITEMS_PER_LANE / 2]) const {
        const u32 MIDDLE = 0x8000;
        u32 least = ~0u, nearest = ~0u;
        float p[ITEMS_PER_LANE];
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            p[j] = approx_quotient((z[j] - row_max.maximum) * scale.log2e_over_t, inverse);
            // The bits that rounding removes, counted from APPROX_QUOTIENT_ULPS below the midpoint.
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
    // Computes the probabilities if no exponent of two is below -62, so that no result is subnormal; returns whether
    // that is so. As in `weight_of_distance`, a distance is y / -128, and the product saturates at 1.
    DEVICE_MEMBER bool compute_fast(const float (&z)[ITEMS_PER_LANE], float (&p)[ITEMS_PER_LANE]) const {
        const float ROUNDING_MAGIC = (12582912.0f - 2.0f) / 128.0f;
        float scaled = scale.log2e_over_t * (1.0f / 128.0f);
        u32 bits_of_all = ~0u;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            float d = mul_saturate(row_max.maximum - z[j], scaled);
            // The low bits of the sum are the low bits of n - 2, where n is the integer nearest to y.
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
        // A number n - 2 in -64..=-2 has both of these bits, one in -130..=-65 lacks one of them.
        return (bits_of_all & 0xC0) == 0xC0;
    }

    // At temperature 0 the first token has probability 1. In a row without tokens all probabilities are 0.
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

// The type whose layout over the lanes a tile has when it is written: lanes write neighbouring elements.
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

// Whether probabilities of logits in bf16 are rounded to bf16.
template <class T, class Out>
struct RoundsToBf16 {
    static constexpr bool VALUE = false;
};
template <>
struct RoundsToBf16<Bf16, unsigned short> {
    static constexpr bool VALUE = true;
};

// Loads a lane's slice of a complete tile that starts at a multiple of 16 bytes, in the layout of tiles of Q.
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

// Loads a lane's slice of a tile at `from`, at any alignment: neighbouring lanes have neighbouring elements; -inf
// beyond the vocabulary.
template <class T>
DEVICE void load_scattered(const typename T::Element* from, u32 tile, u32 vocab, float (&z)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const u32 offset = j * 32 + lane_id();
        z[j] = tile * TILE + offset < vocab ? T::convert(from[offset]) : -INF_F32;
    }
}

// Loads a lane's slice of a tile of a row as it came. With `vectorized` a lane has the ids that it has in tiles of Q.
template <class T, class Q>
DEVICE void load_tile(const typename T::Element* row, u32 vocab, u32 tile, bool vectorized,
                      float (&z)[ITEMS_PER_LANE]) {
    if (vectorized) {
        load_vectorized_as<T, Q>(row + tile * TILE, lane_id(), z);
    } else {
        load_scattered<T>(row + tile * TILE, tile, vocab, z);
    }
}

// Stores a lane's slice of a complete tile that starts at a multiple of 16 bytes: as f32, or rounded once to the
// logits' type.
template <class T>
DEVICE void store_vectorized(float* tile, u32 lane, const float (&p)[ITEMS_PER_LANE]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        ((U32x4*)tile)[half * 32 + lane] = quad_of(p, half);
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

// Stores the probabilities of a lane's slice of a complete tile that starts at a multiple of 16 bytes.
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

// The offset in a tile of a lane's j-th element in rows that are written: lanes write 16 bytes, in the layout of Q, or
// else neighbouring lanes neighbouring elements.
template <class Q>
DEVICE u32 written_offset(u32 lane, u32 j, bool vectorized) {
    return vectorized ? offset_in_tile<Q>(lane, j) : j * 32 + lane;
}

// Stores a lane's slice of a tile of a row, in the layout of a complete tile that starts at a multiple of 16 bytes if
// `vectorized`.
template <class T, class Out>
DEVICE void store_tile(Out* row, u32 vocab, u32 tile, bool vectorized, const float (&p)[ITEMS_PER_LANE]) {
    u32 lane = lane_id();
    Out* to = row + tile * TILE;
    if (vectorized) {
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

// A row of the output.
template <class T, class Out>
struct RowOutput {
    Out* row;
    u32 vocab;
    bool vectorized;

    DEVICE_MEMBER RowOutput(const SoftmaxArgs& softmax, u32 row)
        : row((Out*)softmax.out + row * softmax.out_stride), vocab(softmax.vocab),
          vectorized((u64)this->row % 16 == 0) {}

    // Writes a tile's probabilities. `z` is the lane's slice of its clean logits, in the layout of a vectorized tile if
    // `tile_is_vectorized`.
    DEVICE_MEMBER void write(const RowProbabilities& probabilities, u32 tile, bool tile_is_vectorized,
                             const float (&z)[ITEMS_PER_LANE]) const {
        u32 lane = lane_id();
        if (tile_is_vectorized && !probabilities.is_one_hot_or_empty()) {
            store_probabilities<T>(row + tile * TILE, lane, probabilities, z);
            return;
        }
        float p[ITEMS_PER_LANE];
        probabilities.compute(
            z, p, tile, [&](u32 j) INLINE { return written_offset<LaneLayout<T, Out>>(lane, j, tile_is_vectorized); });
        store_tile<T>(row, vocab, tile, tile_is_vectorized, p);
    }
};
