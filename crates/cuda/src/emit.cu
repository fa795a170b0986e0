// emit.cu: rows written: the probabilities of what is kept of them, or them with all else dropped.
//
// Computes   for each token kept RN(exp2(y) / RN(RN(Z) 2^-43)), of probabilities RN(p / first) for exp2(y) (P4), or its number as it
//            counts; 0, or -inf of logits, elsewhere
// Never      reads a tile without a token kept; never writes beyond a row, nor what the survey filled or keep.cu wrote
// Twins      oracle spec/src/outputs.rs | CPU cpu/src/outputs.rs | why docs/probabilities.md
// Shapes     logits [rows, vocab] of T, out [rows, vocab] of f32 or T; row strides in elements; records [rows, tiles]; kept [rows]
// Grid       x = (row, block), `share` tiles each, 8 warps
// Traffic    16 bytes a tile and the tiles that hold tokens kept in; these out, and in the logits' own place all others too
// Requires   keep.cu before it on the stream; out is the logits' place, or apart and filled

#include "kept.cuh"

#define EMIT_WARPS 8

template <class T, class Out>
struct Emitting {
    typedef typename T::Element Element;

    const Element* logits;
    Out* out;
    u32 vocab;
    bool wide;
    bool masks;
    Kept kept;
    Probabilities probabilities;
#if GUMBALL_PROBABILITIES
    // A power of two by which the first token's probability lies between 2^-22 and 4.
    float unit;
    Divisor first;
#endif

    DEVICE_MEMBER Emitting(const Emit& emit, u32 row)
        : logits((const Element*)emit.logits + row * emit.stride), out((Out*)emit.out + row * emit.out_stride), vocab(emit.vocab),
          wide(((u64)logits | (u64)out) % 16 == 0), masks(emit.masks) {}

    DEVICE_MEMBER bool is_wide(u32 tile) const { return wide && (tile + 1) * TILE <= vocab; }

    DEVICE_MEMBER float dropped() const { return masks ? NOTHING : 0.0f; }

    DEVICE_MEMBER void set(const Kept& of_row) {
        kept = of_row;
        probabilities.whole.first = key_logit(kept.first);
        probabilities.scale.s = kept.s;
        probabilities.sum = sum_of(kept);
        probabilities.quarter = Divisor(probabilities.sum * 0.25f);
#if GUMBALL_PROBABILITIES
        u32 exponent = float_bits(probabilities.whole.first) >> 23;
        unit = bits_float((exponent < 254 ? 254 - exponent : 1) << 23);
        first = Divisor(probabilities.whole.first * unit);
#endif
    }

    // The probabilities of those tokens of the lane's share that are kept.
    DEVICE_MEMBER void renormalise(const float (&z)[PER_LANE], u32 members, float (&p)[PER_LANE]) const {
#if GUMBALL_PROBABILITIES
        // Where no quotient of a member is less than 2^-60, nothing on the way to it is subnormal.
        float least = 1.0f;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            float quotient = first.quotient(z[j] * unit);
            least = members >> j & 1 ? fminf(least, quotient) : least;
            p[j] = probabilities.quarter.quotient(quotient) * 0.25f;
        }
        if (least < bits_float((127 - 60) << 23)) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                p[j] = (z[j] / probabilities.whole.first) / probabilities.sum;
            }
        }
#else
        probabilities.shared(z, p);
#endif
    }

    DEVICE_MEMBER void load(u32 tile, float (&z)[PER_LANE]) const {
        u32 lane = lane_id(), start = tile * TILE;
        if (is_wide(tile)) {
            load_wide_as<T, Placed<T, Out>>(logits + start, lane, z);
            return;
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 id = start + j * 32 + lane;
            z[j] = id < vocab ? T::convert(logits[id]) : -INFINITE;
        }
    }

    DEVICE_MEMBER void store(u32 tile, const float (&p)[PER_LANE]) const {
        u32 lane = lane_id();
        Out* to = out + tile * TILE;
        if (is_wide(tile)) {
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

    // What becomes of the lane's share of a tile.
    DEVICE_MEMBER void change(u32 tile, float (&z)[PER_LANE]) const {
        u32 lane = lane_id(), first_id = key_id(kept.first), last_id = key_id(kept.last), members = 0;
        float low = key_logit(kept.last), high = key_logit(kept.first);
        bool is_wide = this->is_wide(tile), prefix = kept.flags & KEPT_PREFIX;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 id = tile * TILE + place_of<Placed<T, Out>>(lane, j, is_wide);
            z[j] = clean(z[j]);
            bool member = z[j] > low || (z[j] == low && id <= last_id);
            member = member && (prefix || z[j] < high || (z[j] == high && id >= first_id));
            members |= member ? 1u << j : 0;
        }
        float p[PER_LANE];
        if (masks) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                p[j] = z[j];
            }
        } else if (kept.flags & KEPT_CERTAIN) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                p[j] = 1.0f;
            }
        } else {
            renormalise(z, members, p);
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = members >> j & 1 ? p[j] : dropped();
        }
    }
};

template <class T, class Out>
DEVICE void emit_tiles(const Emit& emit) {
    u32 row = blockIdx.x / emit.blocks_per_row, part = blockIdx.x % emit.blocks_per_row, lane = lane_id();
    Span span = Span{0, emit.tiles}.part(part, emit.share);
    Emitting<T, Out> emitting(emit, row);
    float nothing[PER_LANE];
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        nothing[j] = emitting.dropped();
    }
    const bool apart = emit.logits != emit.out;
    wait_for_previous();
    const Kept kept = emit.kept[row];
    if (kept.flags & KEPT_WRITTEN) {
        return;
    }
    emitting.set(kept);
    const Record* records = emit.records + (u64)row * emit.tiles;
    float low = key_logit(kept.last);
    bool empty = kept.flags & KEPT_NOTHING;
    // A lane answers for a tile: which of them are read is known at once.
#pragma unroll 1
    for (u32 start = span.from + warp_id(); start < span.to; start += 32 * EMIT_WARPS) {
        u32 own = start + lane * EMIT_WARPS;
        float maximum = own < span.to ? records[own].maximum : -INFINITE;
        u32 there = __ballot_sync(ALL_LANES, own < span.to);
        u32 read = __ballot_sync(ALL_LANES, !empty && maximum >= low && maximum > NOTHING);
        // The tiles that hold nothing are written while the first that does is on its way.
        float next[PER_LANE] = {}, z[PER_LANE];
        u32 left = read;
        if (left != 0) {
            emitting.load(start + ((u32)__ffs((int)left) - 1) * EMIT_WARPS, next);
        }
#pragma unroll 1
        for (u32 rest = apart ? 0 : there & ~read; rest != 0; rest &= rest - 1) {
            emitting.store(start + ((u32)__ffs((int)rest) - 1) * EMIT_WARPS, nothing);
        }
#pragma unroll 1
        while (left != 0) {
            u32 tile = start + ((u32)__ffs((int)left) - 1) * EMIT_WARPS;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = next[j];
            }
            left &= left - 1;
            if (left != 0) {
                emitting.load(start + ((u32)__ffs((int)left) - 1) * EMIT_WARPS, next);
            }
            emitting.change(tile, z);
            emitting.store(tile, z);
        }
    }
}

// Named by the logits' type, and that of what is written if it is another.
#define EMIT(name, T, Out) \
    KERNEL_BESIDE(emit_##name, 32 * EMIT_WARPS, 4, Emit, emit) { emit_tiles<T, Out>(emit); }

EMIT(f32, F32, float)
EMIT(bf16, Bf16, unsigned short)
EMIT(f16, F16, unsigned short)
EMIT(bf16_f32, Bf16, float)
EMIT(f16_f32, F16, float)
