// write_rows.cu: writes rows in which only the kept tokens remain, as probabilities or with their own numbers.
//
// Computes   for each kept token RN(exp2(y) / RN(RN(Z) 2^-43)) (P4), with RN(p / first) for exp2(y) if rows hold
//            probabilities; or, in masked rows, its cleaned number. Elsewhere 0, or -inf in masked logits
// Never      reads a tile without a kept token; writes beyond a row, or tiles that the survey's pre-fill has completed,
//            or rows that find_cut.cu has written
// Twins      oracle spec/src/outputs.rs | CPU cpu/src/outputs.rs | why docs/probabilities.md
// Shapes     logits [rows, vocab] of T; out [rows, vocab] of f32 or T; row strides in elements; records [rows, tiles];
//            cuts [rows]
// Grid       x = rows * blocks_per_row, `tiles_per_block` tiles each; 8 warps; no dynamic shared memory
// Traffic    in: 16 bytes per tile, and the tiles that may hold kept tokens; out: these tiles, and in place all others
// Requires   find_cut.cu before it on the stream; `out` is the logits' memory, or separate and pre-filled by the survey

#include "stage/written_probability.cuh"

template <class T, class Out>
struct RowWriter {
    typedef typename T::Element Element;

    const Element* logits;
    Out* out;
    u32 vocab;
    bool vectorized;
    bool mask_only;
    RowCut cut;
    RowProbabilities probabilities;
#if GUMBALL_PROBABILITIES
    // A power of two; times this, the first token's probability lies between 2^-22 and 4.
    float unit;
    Divisor first_divisor;
#endif

    DEVICE_MEMBER RowWriter(const WriteRows& args, u32 row)
        : logits((const Element*)args.logits + row * args.stride), out((Out*)args.out + row * args.out_stride),
          vocab(args.vocab), vectorized(((u64)logits | (u64)out) % 16 == 0), mask_only(args.mask_only) {}

    DEVICE_MEMBER bool is_vectorized(u32 tile) const { return vectorized && (tile + 1) * TILE <= vocab; }

    DEVICE_MEMBER float dropped() const { return mask_only ? MASKED_VALUE : 0.0f; }

    DEVICE_MEMBER void set(const RowCut& of_row) {
        cut = of_row;
        set_probabilities(probabilities, cut);
#if GUMBALL_PROBABILITIES
        u32 exponent = float_bits(probabilities.row_max.maximum) >> 23;
        unit = bits_float((exponent < 254 ? 254 - exponent : 1) << 23);
        first_divisor = Divisor(probabilities.row_max.maximum * unit);
#endif
    }

    // Computes the probabilities of the kept tokens in the lane's slice; bit j of `members` says that token j is kept.
    DEVICE_MEMBER void renormalise(const float (&z)[ITEMS_PER_LANE], u32 members, float (&p)[ITEMS_PER_LANE]) const {
#if GUMBALL_PROBABILITIES
        // If each member's quotient is at least 2^-60, no intermediate result is subnormal, and `Divisor` rounds
        // correctly. Otherwise the lane divides.
        float least = 1.0f;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            float quotient = first_divisor.quotient(z[j] * unit);
            least = members >> j & 1 ? fminf(least, quotient) : least;
            p[j] = probabilities.quarter_sum.quotient(quotient) * 0.25f;
        }
        if (least < bits_float((127 - 60) << 23)) {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                p[j] = (z[j] / probabilities.row_max.maximum) / probabilities.sum;
            }
        }
#else
        probabilities.compute_divided(z, p);
#endif
    }

    DEVICE_MEMBER void load(u32 tile, float (&z)[ITEMS_PER_LANE]) const {
        load_tile<T, LaneLayout<T, Out>>(logits, vocab, tile, is_vectorized(tile), z);
    }

    DEVICE_MEMBER void store(u32 tile, const float (&p)[ITEMS_PER_LANE]) const {
        store_tile<T>(out, vocab, tile, is_vectorized(tile), p);
    }

    // Replaces the lane's slice of a tile by the output: numbers for kept tokens, `dropped()` for others.
    DEVICE_MEMBER void keep_members(u32 tile, float (&z)[ITEMS_PER_LANE]) const {
        u32 lane = lane_id(), first_id = key_id(cut.first_key), last_id = key_id(cut.last_key), members = 0;
        float low = key_logit(cut.last_key), high = key_logit(cut.first_key);
        bool is_vectorized = this->is_vectorized(tile), prefix = cut.flags & CUT_IS_PREFIX;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            u32 id = tile * TILE + written_offset<LaneLayout<T, Out>>(lane, j, is_vectorized);
            z[j] = clean(z[j]);
            bool member = z[j] > low || (z[j] == low && id <= last_id);
            member = member && (prefix || z[j] < high || (z[j] == high && id >= first_id));
            members |= member ? 1u << j : 0;
        }
        float p[ITEMS_PER_LANE];
        if (mask_only) {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                p[j] = z[j];
            }
        } else if (cut.flags & CUT_FIRST_ONLY) {
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                p[j] = 1.0f;
            }
        } else {
            renormalise(z, members, p);
        }
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = members >> j & 1 ? p[j] : dropped();
        }
    }
};

// Writes a block's tiles of a row. Of each eight tiles a warp takes one, and it handles 32 of its tiles at a time:
//
//     read their records, one per lane; a tile is read if its maximum reaches the cut's last logit
//     in place: write 0 or -inf to the tiles that are not read
//     for each tile to read: load the next one, then write this one's numbers
template <class T, class Out>
DEVICE void write_row_tiles(const WriteRows& args) {
    u32 row = blockIdx.x / args.blocks_per_row, block_in_row = blockIdx.x % args.blocks_per_row, lane = lane_id();
    TileSpan span = TileSpan{0, args.tiles}.nth_part(block_in_row, args.tiles_per_block);
    RowWriter<T, Out> writer(args, row);
    float nothing[ITEMS_PER_LANE];
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        nothing[j] = writer.dropped();
    }
    const bool separate_out = args.logits != args.out;
    grid_dependency_wait();
    const RowCut cut = args.cuts[row];
    if (cut.flags & CUT_WRITTEN) {
        return;
    }
    writer.set(cut);
    const TileRecord* records = args.records + (u64)row * args.tiles;
    float low = key_logit(cut.last_key);
    bool empty = cut.flags & CUT_EMPTY;
    // Each lane reads one tile's record. The ballots then give all lanes the tiles that exist and the tiles to read.
#pragma unroll 1
    for (u32 start = span.from + warp_id(); start < span.to; start += 32 * WRITE_ROWS_WARPS) {
        u32 own = start + lane * WRITE_ROWS_WARPS;
        float maximum = own < span.to ? records[own].maximum : -INF_F32;
        u32 there = __ballot_sync(FULL_MASK, own < span.to);
        u32 read = __ballot_sync(FULL_MASK, !empty && maximum >= low && maximum > MASKED_VALUE);
        // The first tile to read is in flight while the warp writes the tiles without kept tokens.
        float next[ITEMS_PER_LANE] = {}, z[ITEMS_PER_LANE];
        u32 left = read;
        if (left != 0) {
            writer.load(start + ((u32)__ffs((int)left) - 1) * WRITE_ROWS_WARPS, next);
        }
#pragma unroll 1
        for (u32 rest = separate_out ? 0 : there & ~read; rest != 0; rest &= rest - 1) {
            writer.store(start + ((u32)__ffs((int)rest) - 1) * WRITE_ROWS_WARPS, nothing);
        }
#pragma unroll 1
        while (left != 0) {
            u32 tile = start + ((u32)__ffs((int)left) - 1) * WRITE_ROWS_WARPS;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = next[j];
            }
            left &= left - 1;
            if (left != 0) {
                writer.load(start + ((u32)__ffs((int)left) - 1) * WRITE_ROWS_WARPS, next);
            }
            writer.keep_members(tile, z);
            writer.store(tile, z);
        }
    }
}

// Kernel names end in the logits' type, then in the output's type if it differs.
#define WRITE_ROWS(name, T, Out) \
    KERNEL_MIN_BLOCKS(write_rows_##name, 32 * WRITE_ROWS_WARPS, 4, WriteRows, args) { write_row_tiles<T, Out>(args); }

WRITE_ROWS(f32, F32, float)
WRITE_ROWS(bf16, Bf16, unsigned short)
WRITE_ROWS(f16, F16, unsigned short)
WRITE_ROWS(bf16_f32, Bf16, float)
WRITE_ROWS(f16_f32, F16, float)
