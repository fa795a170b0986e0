// softmax.cuh: rows of probabilities: what a row asks, what is known of it once it was read, and how its tiles are written.
//
// Computes   p_i = RN(exp2(y_i) / RN(RN(Z) 2^-43)), y relative to the row's first token, Z the integer mass (P4, M1 to M4)
// Never      decides by an approximate number what its bound does not prove; never writes beyond a row
// Twins      definition spec/src/outputs.rs, src/abi.rs for the argument | why docs/stages/softmax.md
// Requires   whole warps
#pragma once

#include "tile.cuh"

// Rows of logits to be turned into rows of probabilities.
struct Softmax {
    const void* logits;
    // Where the probabilities go: to the logits' own place, or apart from them.
    void* out;
    // In elements, between rows.
    u64 stride;
    u64 out_stride;
    // Of each row, or one for all if their stride is 0; null: `temperature` is that of all.
    const float* temperatures;
    // Of each row; null: nobody asks.
    u32* statuses;
    // [rows, tiles]: what the first of two reads of a row tells the second.
    TileWeights* told;
    u32 rows;
    u32 vocab;
    u32 tiles;
    // Into how many blocks a row is cut, and how many tiles each of them has at most.
    u32 blocks_per_row;
    u32 share;
    // On chip: how many pairs of tiles a warp has room for, and how many it has weighed, besides those of a row, when it writes that.
    u32 slots;
    u32 ahead;
    float temperature;
    u32 temperature_stride;
    u32 reserved;
};

// The temperature of a row. Those of rows cannot be refused: what is not 2^-100 or more counts as 0, what is more than 2^100 as that.
DEVICE float temperature_of(const Softmax& softmax, u32 row) {
    return softmax.temperatures ? softmax.temperatures[row * softmax.temperature_stride] : softmax.temperature;
}

// How a row's logits become exponents of two.
struct Scale {
    // The first token takes all.
    u32 greedy;
    float s;

    Scale() = default;
    DEVICE_MEMBER explicit Scale(float temperature) : greedy(!(temperature >= bits_float((127 - 100) << 23))) {
        s = log2_e() / (greedy ? 1.0f : fminf(temperature, bits_float((127 + 100) << 23)));
    }
};

// Some tiles of a row.
struct Span {
    u32 from;
    u32 to;

    // The `number`-th of its parts of `tiles` tiles.
    DEVICE_MEMBER Span part(u32 number, u32 tiles) const {
        u32 first = from + number * tiles, last = first + tiles;
        return Span{first < to ? first : to, last < to ? last : to};
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
struct Heard {
    float first;
    u32 tile;
    u32 odd;

    DEVICE_MEMBER bool empty() const { return !(first > -INFINITE); }
    DEVICE_MEMBER u32 status() const { return odd | (empty() ? STATUS_EMPTY : 0); }
};

// Words of which the largest names the first token's logit and tile. Their low 16 bits are for odd values.
DEVICE u64 key_of_tile(float maximum, u32 tile) { return (u64)ordered_bits(maximum) << 32 | (u64)(0xFFFF - tile) << 16; }

DEVICE Heard heard_of(u64 key, u32 odd) { return Heard{from_ordered_bits((u32)(key >> 32)), 0xFFFF - ((u32)key >> 16), odd}; }

// What a tile adds to the mass of its row (M3).
DEVICE u64 mass_of_tile(const TileWeights& tile, const Heard& whole, const Scale& scale) {
    return tile.maximum > -INFINITE ? tile_mass(exp2_rule((tile.maximum - whole.first) * scale.s), tile.weights) : 0;
}

// What tiles of a row were weighed to, every `step`-th of them; the first KEPT are read once.
template <u32 KEPT>
struct ToldTiles {
    const TileWeights* tiles;
    u32 size;
    u32 first;
    u32 step;
    TileWeights kept[KEPT];

    DEVICE_MEMBER ToldTiles(const TileWeights* tiles, u32 size, u32 first, u32 step) : tiles(tiles), size(size), first(first), step(step) {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            u32 i = first + k * step;
            kept[k] = i < size ? tiles[i] : TileWeights{0, -INFINITE, 0};
        }
    }

    // The largest key of them, the row's tile `from` being their first one; `odd` takes their odd values.
    DEVICE_MEMBER u64 key(u32 from, u32& odd) const {
        u64 key = 0;
        each([&](const TileWeights& tile, u32 i) INLINE {
            u64 other = key_of_tile(tile.maximum, from + i);
            key = other > key ? other : key;
            odd |= tile.reserved;
        });
        return key;
    }

    DEVICE_MEMBER u64 mass(const Heard& whole, const Scale& scale) const {
        u64 mass = 0;
        each([&](const TileWeights& tile, u32) INLINE { mass += mass_of_tile(tile, whole, scale); });
        return mass;
    }

  private:
    template <class F>
    DEVICE_MEMBER void each(F f) const {
#pragma unroll
        for (u32 k = 0; k < KEPT; k++) {
            f(kept[k], first + k * step);
        }
#pragma unroll 2
        for (u32 i = first + KEPT * step; i < size; i += step) {
            f(tiles[i], i);
        }
    }
};

// The probabilities of a row's tokens.
struct Probabilities {
    Heard whole;
    Scale scale;
    float sum;
    // Of the sum, which is 1 or more, by 4.
    Divisor quarter;
    // 1 by the sum, rounded once.
    float inverse;

    DEVICE_MEMBER void set(const Heard& row, const Scale& at, u64 mass) {
        whole = row;
        scale = at;
        sum = u64_to_float(mass) * bits_float((127 - 43) << 23);
        quarter = Divisor(sum * 0.25f);
        // Both are powers of two apart, hence rounded alike.
        inverse = quarter.high * 0.25f;
    }

    // Whether the first token takes all, or there is none.
    DEVICE_MEMBER bool is_all_or_nothing() const { return scale.greedy || whole.empty(); }

    // Of a lane's share of a tile of clean logits, of which its j-th lies at `place_of(j)`.
    template <class PlaceOf>
    DEVICE_MEMBER void of(const float (&z)[PER_LANE], float (&p)[PER_LANE], u32 tile, PlaceOf place_of) const {
        if (is_all_or_nothing()) {
            winner(z, p, tile, place_of);
        } else {
            shared(z, p);
        }
    }

    // The same where it is neither.
    DEVICE_MEMBER void shared(const float (&z)[PER_LANE], float (&p)[PER_LANE]) const {
        if (ordinary(z, p)) {
            return;
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            float y = (z[j] - whole.first) * scale.s;
            p[j] = y < -126.0f ? 0.0f : p[j];
            if (y < -60.0f && !(y < -126.0f)) {
                p[j] = exp2_scaled(y, 0) / sum;
            }
        }
    }

    // The same rounded once more, to bf16, two by two, if numbers about them tell all: none of those may be so near the middle of two
    // bf16s that it could lie on the other side, or be small. Returns whether it is so.
    DEVICE_MEMBER bool shared_as_bf16(const float (&z)[PER_LANE], u32 (&words)[PER_LANE / 2]) const {
        const u32 MIDDLE = 0x8000;
        u32 least = ~0u, nearest = ~0u;
        float p[PER_LANE];
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            p[j] = about_quotient((z[j] - whole.first) * scale.s, inverse);
            // What is left of the word after rounding, counted from as far below the middle as matters.
            u32 bits = float_bits(p[j]), left = (bits << 16) + ((ABOUT_QUOTIENT - MIDDLE) << 16);
            least = bits < least ? bits : least;
            nearest = left < nearest ? left : nearest;
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE / 2; j++) {
            words[j] = Bf16::round_two(p[2 * j], p[2 * j + 1]);
        }
        return least >= (127 - 100) << 23 && nearest > (2 * ABOUT_QUOTIENT) << 16;
    }

  private:
    // Where no exponent of two is below -62, so that no result is subnormal. As `weight_below` does: distances are taken as y / -128,
    // held to 1. Returns whether it is so.
    DEVICE_MEMBER bool ordinary(const float (&z)[PER_LANE], float (&p)[PER_LANE]) const {
        const float WHOLE = (12582912.0f - 2.0f) / 128.0f;
        float scaled = scale.s * (1.0f / 128.0f);
        u32 bits_of_all = ~0u;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            float d = product_within_1(whole.first - z[j], scaled);
            // Its low bits are those of n - 2, n being y's nearest integer.
            float sum = WHOLE - d;
            float f = d - (WHOLE - sum);
            float e = 0.000153290152f * 4398046511104.0f;
            e = fma_rn(e, f, 0.00133909716f * -34359738368.0f);
            e = fma_rn(e, f, 0.00961850025f * 268435456.0f);
            e = fma_rn(e, f, 0.0555035956f * -2097152.0f);
            e = fma_rn(e, f, 0.240226477f * 16384.0f);
            e = fma_rn(e, f, 0.693147182f * -128.0f);
            e = fma_rn(e, f, 1.0f);
            bits_of_all &= float_bits(sum);
            p[j] = bits_float(float_bits(quarter.quotient(e)) + (float_bits(sum) << 23));
        }
        // Of -64..=-2 these two bits are set, of -130..=-65 one of them is not.
        return (bits_of_all & 0xC0) == 0xC0;
    }

    // At temperature 0 the first token has 1; in a row of nothing nobody has anything.
    template <class PlaceOf>
    DEVICE_MEMBER void winner(const float (&z)[PER_LANE], float (&p)[PER_LANE], u32 tile, PlaceOf place_of) const {
        u32 place = TILE;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            bool here = tile == whole.tile && z[j] == whole.first && !whole.empty();
            place = here && place_of(j) < place ? place_of(j) : place;
        }
        u32 least = __reduce_min_sync(ALL_LANES, place);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            p[j] = least < TILE && place_of(j) == least ? 1.0f : 0.0f;
        }
    }
};

// Of which type the tiles lie over the lanes as they are written: lanes write side by side.
template <class T, class Out>
struct PlacedAs {
    typedef T Type;
};
template <class T>
struct PlacedAs<T, float> {
    typedef F32 Type;
};
template <class T, class Out>
using Placed = typename PlacedAs<T, Out>::Type;

// Whether probabilities are rounded to bf16.
template <class T, class Out>
struct Narrow {
    static constexpr bool TO_BF16 = false;
};
template <>
struct Narrow<Bf16, unsigned short> {
    static constexpr bool TO_BF16 = true;
};

// A lane's share of a whole tile that lies on 16 bytes, as tiles of Q lie over the lanes.
template <class T, class Q>
DEVICE void load_wide_as(const typename T::Element* tile, u32 lane, float (&z)[PER_LANE]) {
    if constexpr (sizeof(typename T::Element) == sizeof(typename Q::Element)) {
        load_wide<T>(tile, lane, z);
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
DEVICE void store_wide(float* tile, u32 lane, const float (&p)[PER_LANE]) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        Quad quad;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            quad.word[j] = float_bits(p[half * 4 + j]);
        }
        ((Quad*)tile)[half * 32 + lane] = quad;
    }
}

template <class T>
DEVICE void store_wide(unsigned short* tile, u32 lane, const float (&p)[PER_LANE]) {
    Quad quad;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
        quad.word[j] = T::round_two(p[2 * j], p[2 * j + 1]);
    }
    ((Quad*)tile)[lane] = quad;
}

// Stores a lane's share of the probabilities of a whole tile that lies on 16 bytes.
template <class T, class Out>
DEVICE void store_shared(Out* tile, u32 lane, const Probabilities& probabilities, const float (&z)[PER_LANE]) {
    if constexpr (Narrow<T, Out>::TO_BF16) {
        Quad quad;
        if (probabilities.shared_as_bf16(z, quad.word)) {
            ((Quad*)tile)[lane] = quad;
            return;
        }
    }
    float p[PER_LANE];
    probabilities.shared(z, p);
    store_wide<T>(tile, lane, p);
}

template <class T>
DEVICE void store_one(float* to, float p) { *to = p; }
template <class T>
DEVICE void store_one(unsigned short* to, float p) { *to = (unsigned short)T::round_two(p, 0.0f); }

// Where a row of probabilities goes.
template <class T, class Out>
struct Sink {
    Out* row;
    u32 vocab;
    bool wide;

    DEVICE_MEMBER Sink(const Softmax& softmax, u32 row)
        : row((Out*)softmax.out + row * softmax.out_stride), vocab(softmax.vocab), wide((u64)this->row % 16 == 0) {}

    // Writes a tile, a lane's share of whose clean logits is given, as wide tiles have it or not.
    DEVICE_MEMBER void write(const Probabilities& probabilities, u32 tile, bool wide_tile, const float (&z)[PER_LANE]) const {
        u32 lane = lane_id();
        Out* to = row + tile * TILE;
        if (wide_tile && !probabilities.is_all_or_nothing()) {
            store_shared<T>(to, lane, probabilities, z);
            return;
        }
        float p[PER_LANE];
        probabilities.of(z, p, tile, [&](u32 j) INLINE { return place_of<Placed<T, Out>>(lane, j, wide_tile); });
        if (wide_tile) {
            store_wide<T>(to, lane, p);
            return;
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 place = j * 32 + lane;
            if (tile * TILE + place < vocab) {
                store_one<T>(to + place, p[j]);
            }
        }
    }
};
