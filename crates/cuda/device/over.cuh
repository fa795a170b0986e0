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
    // Of a thread.
    static constexpr u32 OWN_WORDS = (WORDS + THREADS - 1) / THREADS;
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
        u32 lane = lane_id(), wide_tiles = row.wide ? row.vocab / TILE : 0;
#pragma unroll 1
        for (u32 i = 0; i < OWN; i++) {
            u32 own = warp_id() * OWN + i, start = (first_tile + own) * TILE;
            float* to = logits + own * TILE;
            if (first_tile + own < wide_tiles) {
                const Quad* from = (const Quad*)(row.logits + start) + lane;
                copy_begins((Quad*)to + lane, from);
                if (sizeof(typename T::Element) == 4) {
                    copy_begins((Quad*)to + 32 + lane, from + 32);
                }
            } else {
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    u32 place = j * 32 + lane;
                    to[place] = start + place < row.vocab ? T::convert(row.logits[start + place]) : -INFINITE;
                }
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

    // What lies over the ids of the thread's words.
    struct Words {
        u32 allowed[OWN_WORDS];
        u32 touched[OWN_WORDS];
    };

    // What the mask allows; nothing beyond the row.
    static DEVICE_MEMBER void read_mask(const Edits& edits, u32 first_tile, u32 tiles, Words& words) {
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = threadIdx.x + i * THREADS, word = first_tile * MASK_WORDS + own;
            words.allowed[i] = own < WORDS && word < tiles * MASK_WORDS ? edits.masked(word) : 0;
        }
    }

    // What the lists say besides.
    static DEVICE_MEMBER void read_lists(const Edits& edits, u32 first_tile, u32 tiles, Words& words) {
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = threadIdx.x + i * THREADS, word = first_tile * MASK_WORDS + own;
            bool is = own < WORDS && word < tiles * MASK_WORDS;
            words.touched[i] = is && edits.touched ? edits.touched[word] : 0;
            words.allowed[i] &= is && edits.allowed ? edits.allowed[word] : ~0u;
        }
    }

    // Lists the touched ids of the thread's words; `count` is to be 0 before, and a barrier after it.
    DEVICE_MEMBER void list(const Words& words) {
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = threadIdx.x + i * THREADS, rest = words.touched[i] & words.allowed[i];
            if (own < WORDS) {
                allowed[own] = words.allowed[i];
            }
            if (rest != 0) {
                u32 to = atomicAdd(&count, (u32)__popc(rest));
#pragma unroll 1
                do {
                    if (to < LISTED) {
                        touched[to] = (unsigned short)(own * 32 + (u32)__ffs((int)rest) - 1);
                    }
                    to++;
                    rest &= rest - 1;
                } while (rest != 0);
            }
        }
    }

    // Calls `with(place)` for each touched id that the thread is dealt: from the last thread on, as the first warp has other
    // things to do. If the list is too short, each thread takes those of its words.
    template <class With>
    DEVICE_MEMBER void each_touched(const Edits& edits, u32 first_tile, With with) {
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
                bits = allowed[at] != 0 ? edits.touched[first_tile * MASK_WORDS + at] & allowed[at] : 0;
                at += THREADS;
                continue;
            } else {
                place = (at - THREADS) * 32 + (u32)__ffs((int)bits) - 1;
                bits &= bits - 1;
            }
            with(place);
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
