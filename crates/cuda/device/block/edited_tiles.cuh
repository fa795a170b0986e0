// edited_tiles.cuh: the logits of a block's neighbouring tiles, and the edits that lie over them.
//
// Computes   which logits mask and lists allow; the logits on chip, those that have an entry edited
// Never      looks at an id that neither mask nor lists name
// Traffic    the logits; 4 bytes for each 32 ids and each of mask, allowed and touched ids that the row has; an entry for
//            each touched id
// Requires   all threads of the block, whole warps, TILES_PER_WARP tiles each in a round; the kernel `edit` before, where a request asks
//            for it
//
// The logits of the first round are on their way while the block's threads find out what lies over those of all rounds: that
// takes four trips to memory, one after the other. A thread has the bits of 32 neighbouring ids a round and puts its touched
// ids on the round's list. From there they are dealt out, one a thread, wherever they lie: so few warps wait for all the entries
// at once, with hardly a lane idle.
#pragma once

#include "math/edits.cuh"
#include "warp/tile.cuh"

// In shared memory.
template <class T, u32 WARPS, u32 TILES_PER_WARP, u32 ROUNDS>
struct EditedTiles {
    // In a round.
    static constexpr u32 TILES = WARPS * TILES_PER_WARP, WORDS = TILES * MASK_WORDS, THREADS = 32 * WARPS;
    static_assert(WORDS <= THREADS && WORDS % 32 == 0, "a thread has a word at most, and all of a warp or none");
    // Ids on a list: one in sixteen. What is kept on chip decides how many tiles a multiprocessor has on their way.
    static constexpr u32 TOUCHED_CAPACITY = TILES * TILE / 16;

    // By place in the round's tiles.
    alignas(16) float logits[TILES * TILE];
    // The ids that mask and lists allow: of each tile a byte for each lane, by its share.
    alignas(4) unsigned char allowed[ROUNDS * TILES * 32];
    // How many of a round's are touched, and their places in no order, if there are no more than fit.
    u32 count[ROUNDS];
    unsigned short touched[ROUNDS][TOUCHED_CAPACITY];

    // The tiles of the thread's warp begin to come; a barrier before they are edited, and `complete_fetch` before it.
    DEVICE_MEMBER void fetch(const LogitsRow<T>& row, u32 first_tile) {
        u32 lane = lane_id(), warp_tile = first_tile + warp_id() * TILES_PER_WARP,
            vectorized_tiles = row.vectorized ? row.vocab / TILE : 0;
        float* to = logits + warp_id() * TILES_PER_WARP * TILE;
        if (warp_tile + TILES_PER_WARP <= vectorized_tiles) {
            const U32x4* from = (const U32x4*)(row.logits + warp_tile * TILE) + lane;
#pragma unroll
            for (u32 i = 0; i < TILES_PER_WARP; i++) {
                copy_tile(to + i * TILE, from + i * QUADS);
            }
            return;
        }
#pragma unroll 1
        for (u32 i = 0; i < TILES_PER_WARP; i++, to += TILE) {
            u32 start = (warp_tile + i) * TILE;
            if (warp_tile + i < vectorized_tiles) {
                copy_tile(to, (const U32x4*)(row.logits + start) + lane);
                continue;
            }
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u32 offset = j * 32 + lane;
                to[offset] = start + offset < row.vocab ? T::convert(row.logits[start + offset]) : MASKED_VALUE;
            }
        }
    }

    // Waits for the tiles of the thread's warp.
    DEVICE_MEMBER void complete_fetch(const LogitsRow<T>& row, u32 first_tile) {
        cp_async_wait_all();
        if (sizeof(typename T::Element) == 4) {
            return;
        }
        // What came lies in the lower half of where it belongs.
        u32 lane = lane_id(), vectorized_tiles = row.vectorized ? row.vocab / TILE : 0;
#pragma unroll 1
        for (u32 i = 0; i < TILES_PER_WARP; i++) {
            u32 own = warp_id() * TILES_PER_WARP + i;
            if (first_tile + own < vectorized_tiles) {
                U32x4* quads = (U32x4*)(logits + own * TILE);
                float z[ITEMS_PER_LANE];
                unpack_16_bit<T>(quads[lane], z);
                // Without it a lane would write over what another one has not read yet.
                __syncwarp();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    quads[2 * lane + half] = U32x4{{float_bits(z[4 * half]), float_bits(z[4 * half + 1]),
                                                    float_bits(z[4 * half + 2]), float_bits(z[4 * half + 3])}};
                }
            }
        }
    }

    // Whether the thread has a word, and which of the row.
    static DEVICE_MEMBER bool has_word(u32 first_tile, u32 tiles) {
        return threadIdx.x < WORDS && first_tile * MASK_WORDS + threadIdx.x < tiles * MASK_WORDS;
    }

    // Lists the touched ids of the thread's words, a round's each, of which the mask allows `mask_bits`, none beyond the row; counts
    // are to be 0 before, and a barrier after it.
    DEVICE_MEMBER void list_touched(const EditMasks& edits, u32 first_tile, u32 tiles, const u32 (&mask_bits)[ROUNDS]) {
        u32 own = threadIdx.x, bits[ROUNDS], open[ROUNDS];
        if (own >= WORDS) {
            return;
        }
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            u32 tile = first_tile + round * TILES, word = tile * MASK_WORDS + own;
            bool has_bits = has_word(tile, tiles);
            bits[round] = has_bits && edits.touched ? edits.touched[word] : 0;
            open[round] = mask_bits[round] & (has_bits && edits.allowed ? edits.allowed[word] : ~0u);
        }
#pragma unroll
        for (u32 round = 0; round < ROUNDS; round++) {
            ((u32*)allowed)[round * WORDS + lane_byte_index(own)] = lane_bytes_of_half(open[round]);
            list_touched_word(round, bits[round] & open[round]);
        }
    }

    // Lists those whose bits are set in the thread's word.
    DEVICE_MEMBER void list_touched_word(u32 round, u32 bits) {
        if (bits == 0) {
            return;
        }
        u32 to = atomicAdd(&count[round], (u32)__popc(bits));
#pragma unroll 1
        for (; bits != 0; bits &= bits - 1, to++) {
            if (to < TOUCHED_CAPACITY) {
                touched[round][to] = (unsigned short)(threadIdx.x * 32 + (u32)__ffs((int)bits) - 1);
            }
        }
    }

    // Of a tile, lanes' bytes lie four by four: where those are that a thread makes of its word and another one's.
    static DEVICE_MEMBER u32 lane_byte_index(u32 word) { return word / 8 * 8 + word % 4 * 2 + word % 8 / 4; }

    // The bytes of four lanes, from words by a thread each: a lane has four ids in a word of a tile's first four, and four in
    // that of the last four that stands as far behind.
    static DEVICE_MEMBER u32 lane_bytes_of_half(u32 word) {
        bool last = threadIdx.x & 4;
        u32 other = __shfl_xor_sync(FULL_MASK, word, 4), shift = last ? 16 : 0;
        u32 low = (last ? other : word) >> shift, high = (last ? word : other) >> shift;
        // Half bytes in turn.
        u32 bytes = (low & 0xFF) | (high & 0xFF) << 8 | (low >> 8 & 0xFF) << 16 | (high >> 8 & 0xFF) << 24;
        u32 change = (bytes ^ bytes >> 4) & 0x00F000F0;
        return bytes ^ change ^ change << 4;
    }

    // Which ids of a round's word are allowed.
    DEVICE_MEMBER u32 allowed_word(u32 round, u32 word) const {
        u32 bits = 0;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 bytes =
                ((const u32*)allowed)[round * WORDS + word / 8 * 8 + word % 4 * 2 + half] >> (word % 8 / 4 * 4) &
                0x0F0F0F0F;
            bytes = (bytes | bytes >> 4) & 0x00FF00FF;
            bits |= ((bytes | bytes >> 8) & 0xFFFF) << 16 * half;
        }
        return bits;
    }

    // Calls `visit(offset)` for each of a round's touched ids that the thread is dealt, from the last thread on: the first warp has
    // arrivals to draw. If the list is too short, the ids are those of some words.
    template <class Visit>
    DEVICE_MEMBER void each_touched(const Request& request, u32 first_tile, u32 round, Visit visit) {
        const bool fits = count[round] <= TOUCHED_CAPACITY;
        const u32 end = fits ? count[round] : WORDS;
        u32 at = THREADS - 1 - threadIdx.x, bits = 0;
#pragma unroll 1
        while (bits != 0 || at < end) {
            u32 offset;
            if (fits) {
                offset = touched[round][at];
                at += THREADS;
            } else if (bits == 0) {
                bits = allowed_word(round, at);
                // Beyond the row nothing is allowed, and there are no words.
                bits &= bits != 0 ? request.touched[(first_tile + round * TILES) * MASK_WORDS + at] : 0;
                at += THREADS;
                continue;
            } else {
                offset = (at - THREADS) * 32 + (u32)__ffs((int)bits) - 1;
                bits &= bits - 1;
            }
            visit(offset);
        }
    }

    // Quads of a tile where it comes from.
    static constexpr u32 QUADS = TILE * sizeof(typename T::Element) / sizeof(U32x4);

    // The lane's part of a tile that lies on 16 bytes.
    static DEVICE_MEMBER void copy_tile(float* to, const U32x4* from) {
#pragma unroll
        for (u32 i = 0; i < QUADS; i += 32) {
            cp_async((U32x4*)to + i + lane_id(), from + i);
        }
    }

    // Where the lane's share of a tile lies.
    DEVICE_MEMBER const U32x4* quads(u32 tile) const { return (const U32x4*)(logits + tile * TILE) + lane_id(); }

    // The lane's share of a tile, as of wide tiles of f32.
    static DEVICE_MEMBER void load(const U32x4* quads, float (&z)[ITEMS_PER_LANE]) {
        U32x4 low = quads[0], high = quads[32];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    }

    // Which logits of a lane's share are allowed, of any of the block's tiles.
    DEVICE_MEMBER LaneMask lane_mask(u32 tile, u32 lane) const { return LaneMask(allowed + tile * 32 + lane); }
};
