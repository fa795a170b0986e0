// over.cuh: the logits of a block's neighbouring tiles, and the edits that lie over them.
//
// Computes   which logits mask and lists allow; the logits on chip, those that have an entry edited
// Never      looks at an id that neither mask nor lists name
// Traffic    the logits; 4 bytes for each 32 ids and each of mask, allowed and touched ids that the row has; an entry for
//            each touched id
// Requires   all threads of the block, whole warps, OWN tiles each; the kernel `edit` before, where a request asks for it
//
// All logits of the block are on their way while its threads find out what lies over them: that takes four trips to memory,
// one after the other. A thread has the bits of 32 neighbouring ids and puts its touched ids on the block's list. From there
// they are dealt out, one a thread, wherever they lie: so few warps wait for all the entries at once, with hardly a lane idle.
#pragma once

#include "entries.cuh"
#include "tile.cuh"

// In shared memory.
template <class T, u32 WARPS, u32 OWN>
struct Over {
    static constexpr u32 TILES = WARPS * OWN, WORDS = TILES * MASK_WORDS, THREADS = 32 * WARPS;
    static_assert(WORDS <= THREADS, "a thread has a word at most");
    // Ids on the list: one in eight. What is kept on chip decides how many tiles a multiprocessor has on their way.
    static constexpr u32 LISTED = TILES * TILE / 8;

    // By place in the block's tiles.
    alignas(16) float logits[TILES * TILE];
    // The ids that mask and lists allow.
    u32 allowed[WORDS];
    // How many of them are touched, and their places in no order, if there are no more than fit.
    u32 count;
    unsigned short touched[LISTED];

    // The tiles of the thread's warp begin to come; a barrier before they are edited, and `settle` before it.
    DEVICE_MEMBER void fetch(const Row<T>& row, u32 first_tile) {
        u32 lane = lane_id(), warp_tile = first_tile + warp_id() * OWN, wide_tiles = row.wide ? row.vocab / TILE : 0;
        float* to = logits + warp_id() * OWN * TILE;
        if (warp_tile + OWN <= wide_tiles) {
            const Quad* from = (const Quad*)(row.logits + warp_tile * TILE) + lane;
#pragma unroll
            for (u32 i = 0; i < OWN; i++) {
                copy_tile(to + i * TILE, from + i * QUADS);
            }
            return;
        }
#pragma unroll 1
        for (u32 i = 0; i < OWN; i++, to += TILE) {
            u32 start = (warp_tile + i) * TILE;
            if (warp_tile + i < wide_tiles) {
                copy_tile(to, (const Quad*)(row.logits + start) + lane);
                continue;
            }
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                u32 place = j * 32 + lane;
                to[place] = start + place < row.vocab ? T::convert(row.logits[start + place]) : -INFINITE;
            }
        }
    }

    // Waits for the tiles of the thread's warp.
    DEVICE_MEMBER void settle(const Row<T>& row, u32 first_tile) {
        copies_end();
        if (sizeof(typename T::Element) == 4) {
            return;
        }
        // What came lies in the lower half of where it belongs.
        u32 lane = lane_id(), wide_tiles = row.wide ? row.vocab / TILE : 0;
#pragma unroll 1
        for (u32 i = 0; i < OWN; i++) {
            u32 own = warp_id() * OWN + i;
            if (first_tile + own < wide_tiles) {
                Quad* quads = (Quad*)(logits + own * TILE);
                float z[PER_LANE];
                unpack<T>(quads[lane], z);
                // Without it a lane would write over what another one has not read yet.
                __syncwarp();
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    quads[2 * lane + half] = Quad{{float_bits(z[4 * half]), float_bits(z[4 * half + 1]),
                                                   float_bits(z[4 * half + 2]), float_bits(z[4 * half + 3])}};
                }
            }
        }
    }

    // Whether the thread has a word, and which of the row.
    static DEVICE_MEMBER bool has_word(u32 first_tile, u32 tiles) {
        return threadIdx.x < WORDS && first_tile * MASK_WORDS + threadIdx.x < tiles * MASK_WORDS;
    }

    // Lists the touched ids of the thread's word, of which the mask allows `masked`, none beyond the row; `count` is to be 0
    // before, and a barrier after it.
    DEVICE_MEMBER void list(const Edits& edits, u32 first_tile, u32 tiles, u32 masked) {
        u32 own = threadIdx.x, word = first_tile * MASK_WORDS + own, bits = 0;
        if (own >= WORDS) {
            return;
        }
        if (has_word(first_tile, tiles)) {
            bits = edits.touched ? edits.touched[word] : 0;
            masked &= edits.allowed ? edits.allowed[word] : ~0u;
        }
        allowed[own] = masked;
        bits &= masked;
        if (bits == 0) {
            return;
        }
        u32 to = atomicAdd(&count, (u32)__popc(bits));
#pragma unroll 1
        for (; bits != 0; bits &= bits - 1, to++) {
            if (to < LISTED) {
                touched[to] = (unsigned short)(own * 32 + (u32)__ffs((int)bits) - 1);
            }
        }
    }

    // Calls `with(place)` for each touched id that the thread is dealt, from the last thread on: the first warp has arrivals to
    // draw. If the list is too short, the ids are those of some words.
    template <class With>
    DEVICE_MEMBER void each_touched(const Request& request, u32 first_tile, With with) {
        const bool listed = count <= LISTED;
        const u32 end = listed ? count : WORDS;
        u32 at = THREADS - 1 - threadIdx.x, bits = 0;
#pragma unroll 1
        while (bits != 0 || at < end) {
            u32 place;
            if (listed) {
                place = touched[at];
                at += THREADS;
            } else if (bits == 0) {
                // Beyond the row nothing is allowed, and there are no words.
                bits = allowed[at] != 0 ? request.touched[first_tile * MASK_WORDS + at] & allowed[at] : 0;
                at += THREADS;
                continue;
            } else {
                place = (at - THREADS) * 32 + (u32)__ffs((int)bits) - 1;
                bits &= bits - 1;
            }
            with(place);
        }
    }

    // Quads of a tile where it comes from.
    static constexpr u32 QUADS = TILE * sizeof(typename T::Element) / sizeof(Quad);

    // The lane's part of a tile that lies on 16 bytes.
    static DEVICE_MEMBER void copy_tile(float* to, const Quad* from) {
#pragma unroll
        for (u32 i = 0; i < QUADS; i += 32) {
            copy_begins((Quad*)to + i + lane_id(), from + i);
        }
    }

    // The lane's share of a tile, as of wide tiles of f32.
    DEVICE_MEMBER void load(u32 tile, float (&z)[PER_LANE]) const {
        const Quad* quads = (const Quad*)(logits + tile * TILE);
        Quad low = quads[lane_id()], high = quads[32 + lane_id()];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            z[j] = bits_float(low.word[j]);
            z[4 + j] = bits_float(high.word[j]);
        }
    }

    // Which logits of a lane's share are allowed.
    DEVICE_MEMBER Share share(u32 tile, u32 lane) const { return Share(allowed + tile * MASK_WORDS, lane); }
};
