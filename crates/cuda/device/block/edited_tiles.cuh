// edited_tiles.cuh: a block's neighbouring tiles in shared memory, and which of their ids edits touch.
//
// Computes   which ids mask and lists allow; lists of the touched ids among them; the logits, for the caller to edit
// Never      visits an id that is not touched, or that mask or lists forbid
// Traffic    the logits; 4 bytes per 32 ids for each bitmap that the row has: mask, allowed ids, touched ids. The
//            caller reads an entry for each touched id
// Requires   all threads of the block; whole warps, of TILES_PER_WARP tiles each in a round; the kernel `history_edits`
//            before, if a request has edits that depend on its history
//
// While the logits of the first round load, the block's threads look up the edits of all rounds. That takes four
// dependent loads: slot, request, bitmaps, entries. In each round a thread reads the bits of 32 neighbouring ids and
// appends its touched ids to the round's list. The block then divides the list over its threads, one id per thread,
// wherever the ids are. So a few warps load all entries at once, with hardly a lane idle.
#pragma once

#include "block/survey_grid.cuh"
#include "math/edits.cuh"
#include "warp/tile.cuh"

// A block's tiles of all rounds and their edits, in shared memory. The logits are of one round at a time.
template <class T, u32 WARPS, u32 TILES_PER_WARP, u32 ROUNDS>
struct EditedTiles {
    // The tiles of a round, their words of 32 ids, and the block's threads.
    static constexpr u32 TILES = WARPS * TILES_PER_WARP, WORDS = TILES * MASK_WORDS, THREADS = 32 * WARPS;
    static_assert(WORDS <= THREADS && WORDS % 32 == 0, "a thread has a word at most, and all of a warp or none");
    // A list holds one id in sixteen; `each_touched` handles more. The list is short because shared memory limits how
    // many tiles a multiprocessor has in flight.
    static constexpr u32 TOUCHED_CAPACITY = TILES * TILE / 16;

    // By offset in the round's tiles.
    alignas(16) float logits[TILES * TILE];
    // The ids that mask and lists allow: one byte per tile and lane, with bit j for the lane's j-th logit.
    alignas(4) unsigned char allowed[ROUNDS * TILES * 32];
    // How many ids each round touches, and their offsets in its tiles, unordered. If there are more than the capacity,
    // the offsets are incomplete.
    u32 count[ROUNDS];
    unsigned short touched[ROUNDS][TOUCHED_CAPACITY];

    // Starts to load the tiles of the thread's warp. Before threads edit them, each warp calls `complete_fetch`, and
    // then the block meets at a barrier.
    template <class Place>
    DEVICE_MEMBER void fetch(const LogitsRow<T>& row, const Place& place, u32 first_tile) {
        u32 lane = lane_id(), warp_tile = first_tile + warp_id() * TILES_PER_WARP,
            vectorized_tiles = row.vectorized ? row.vocab / TILE : 0;
        float* to = logits + warp_id() * TILES_PER_WARP * TILE;
        if (warp_tile + TILES_PER_WARP <= vectorized_tiles && !place.cuts(warp_tile)) {
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
            if (warp_tile + i < vectorized_tiles && !place.cuts(warp_tile + i)) {
                copy_tile(to, (const U32x4*)(row.logits + start) + lane);
                continue;
            }
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                u32 offset = j * 32 + lane;
                bool is_here = start + offset - place.skipped < row.vocab - place.skipped;
                to[offset] = is_here ? T::convert(row.logits[start + offset]) : MASKED_VALUE;
            }
        }
    }

    // Waits for the tiles of the thread's warp, and converts 16-bit logits to f32.
    template <class Place>
    DEVICE_MEMBER void complete_fetch(const LogitsRow<T>& row, const Place& place, u32 first_tile) {
        cp_async_wait_all();
        if (sizeof(typename T::Element) == 4) {
            return;
        }
        // The copies put a tile's 16-bit logits into the lower half of its 1024 bytes; each tile is converted in place.
        u32 lane = lane_id(), vectorized_tiles = row.vectorized ? row.vocab / TILE : 0;
#pragma unroll 1
        for (u32 i = 0; i < TILES_PER_WARP; i++) {
            u32 own = warp_id() * TILES_PER_WARP + i;
            if (first_tile + own < vectorized_tiles && !place.cuts(first_tile + own)) {
                U32x4* quads = (U32x4*)(logits + own * TILE);
                float z[ITEMS_PER_LANE];
                unpack_16_bit<T>(quads[lane], z);
                // WAR on the tile: all lanes read their 16-bit logits, lanes write f32 over them.
                __syncwarp();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    quads[2 * lane + half] = quad_of(z, half);
                }
            }
        }
    }

    // Whether the thread has a word of 32 ids in the round whose first tile is `first_tile`, of a row of `tiles` tiles.
    static DEVICE_MEMBER bool has_word(u32 first_tile, u32 tiles) {
        return threadIdx.x < WORDS && first_tile * MASK_WORDS + threadIdx.x < tiles * MASK_WORDS;
    }

    // Stores which ids of the thread's words are allowed, one word per round, and lists the ones that are touched.
    // `mask_bits` are the mask's bits, 0 beyond the row. The counts must be 0 before; a barrier must follow.
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

    // Appends to a round's list the ids of the thread's word whose bits are set.
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

    // Returns the index in `allowed`, in words of four bytes, of the bytes that the thread of a word of 32 ids makes.
    static DEVICE_MEMBER u32 lane_byte_index(u32 word) { return word / 8 * 8 + word % 4 * 2 + word % 8 / 4; }

    // Returns the bytes of four lanes. A lane has four ids in one of a tile's first four words, and four in the word
    // four further on. The threads of these two words exchange them. The first thread makes the bytes of the first four
    // of the eight lanes, the other thread the bytes of the last four.
    static DEVICE_MEMBER u32 lane_bytes_of_half(u32 word) {
        bool last = threadIdx.x & 4;
        u32 other = __shfl_xor_sync(FULL_MASK, word, 4), shift = last ? 16 : 0;
        u32 low = (last ? other : word) >> shift, high = (last ? word : other) >> shift;
        // Swaps the two middle ones of each four half bytes, so that each byte has both half bytes of one lane.
        u32 bytes = (low & 0xFF) | (high & 0xFF) << 8 | (low >> 8 & 0xFF) << 16 | (high >> 8 & 0xFF) << 24;
        u32 change = (bytes ^ bytes >> 4) & 0x00F000F0;
        return bytes ^ change ^ change << 4;
    }

    // Returns which ids of a round's word are allowed: the word of 32 ids, made from the lanes' bytes again.
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

    // Calls `visit(offset)` for the thread's part of a round's touched ids. The last thread takes the first id, as warp
    // 0 has arrivals to draw. If the list has overflowed, each thread takes whole words of 32 ids instead, for which
    // `first_tile` counts from the start of the vocabulary.
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
                // Beyond the row no id is allowed, and `touched` has no words.
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

    // How many units of 16 bytes a tile has in global memory.
    static constexpr u32 QUADS = TILE * sizeof(typename T::Element) / sizeof(U32x4);

    // Starts to copy the lane's part of a 16-byte aligned tile.
    static DEVICE_MEMBER void copy_tile(float* to, const U32x4* from) {
#pragma unroll
        for (u32 i = 0; i < QUADS; i += 32) {
            cp_async((U32x4*)to + i + lane_id(), from + i);
        }
    }

    // Returns the address of the lane's first four logits of a tile, from which `load_vectorized` loads as for lane 0.
    DEVICE_MEMBER const U32x4* quads(u32 tile) const { return (const U32x4*)(logits + tile * TILE) + lane_id(); }

    // Returns which of a lane's logits are allowed; `tile` counts over the block's tiles of all rounds.
    DEVICE_MEMBER LaneMask lane_mask(u32 tile, u32 lane) const { return LaneMask(allowed + tile * 32 + lane); }
};
