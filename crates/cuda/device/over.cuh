// over.cuh: the edits of a block's neighbouring tiles.
//
// Computes   which logits mask and lists leave as they are, and what becomes of those that have an entry
// Never      looks at an id that neither mask nor lists name; never writes an edited logit: each goes to its tile's maximum
// Traffic    4 bytes for each 32 ids and each of mask, allowed and touched ids that the row has; an entry and a
//            logit for each touched id
// Requires   all threads of the block, a word of 32 ids for each; the kernel `edit` before, where a request asks for it
//
// A thread holds the bits of 32 neighbouring ids and puts its touched ids on the block's list. From there they are dealt out,
// one a thread, wherever in the tiles they lie: so few warps wait for all the entries at once, with hardly a lane idle.
#pragma once

#include "entries.cuh"
#include "tile.cuh"

// What a block knows of the edits of its TILES tiles, in shared memory.
template <u32 TILES, u32 THREADS>
struct Over {
    static constexpr u32 WORDS = TILES * MASK_WORDS;
    // Of a thread.
    static constexpr u32 OWN_WORDS = (WORDS + THREADS - 1) / THREADS;

    // The ids that are allowed and have no entry.
    u32 kept[WORDS];
    // How many ids are touched, and their places in the block's tiles, in no order.
    u32 count;
    unsigned short touched[TILES * TILE];
    // Of the touched ids of each tile: the key of the first, by place, 0 if there is none above -inf; what none of the others
    // exceeds, as ordered bits.
    u64 first[TILES];
    u32 others[TILES];

    // To be done before, and a barrier after it.
    DEVICE_MEMBER void clear() {
        if (threadIdx.x < TILES) {
            first[threadIdx.x] = 0;
            others[threadIdx.x] = ordered_bits(-INFINITE);
            count = 0;
        }
    }

    // The ids that the mask allows in the thread's words, in `allowed`.
    static DEVICE_MEMBER void read_mask(const Edits& edits, u32 first_tile, u32 tiles, u32 (&allowed)[OWN_WORDS]) {
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = THREADS - 1 - threadIdx.x + i * THREADS, word = first_tile * MASK_WORDS + own;
            allowed[i] = own < WORDS && word < tiles * MASK_WORDS ? edits.masked(word) : ~0u;
        }
    }

    // Lists the touched ids of the thread's words, of which the mask allows `allowed`; a barrier after it.
    DEVICE_MEMBER void list(const Edits& edits, u32 first_tile, u32 tiles, u32 (&allowed)[OWN_WORDS]) {
        u32 bits[OWN_WORDS];
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = THREADS - 1 - threadIdx.x + i * THREADS, word = first_tile * MASK_WORDS + own;
            bool is = own < WORDS && word < tiles * MASK_WORDS;
            bits[i] = is && edits.touched ? edits.touched[word] : 0;
            allowed[i] &= is && edits.allowed ? edits.allowed[word] : ~0u;
        }
#pragma unroll
        for (u32 i = 0; i < OWN_WORDS; i++) {
            u32 own = THREADS - 1 - threadIdx.x + i * THREADS, rest = bits[i] & allowed[i];
            if (own < WORDS) {
                kept[own] = allowed[i] & ~rest;
            }
            if (rest != 0) {
                u32 to = atomicAdd(&count, (u32)__popc(rest));
#pragma unroll 1
                do {
                    touched[to++] = (unsigned short)(own * 32 + (u32)__ffs((int)rest) - 1);
                    rest &= rest - 1;
                } while (rest != 0);
            }
        }
    }

    // Takes an edited logit into its tile's maximum.
    DEVICE_MEMBER void take(u32 place, float z) {
        if (z > -INFINITE) {
            // Each time one of two keys is left behind, so all but the first are once.
            u32 tile = place / TILE;
            u64 key = key_of(z, place % TILE), old = atomicMax(first + tile, key);
            atomicMax(others + tile, (u32)((old < key ? old : key) >> 32));
        }
    }

    // The larger of a maximum of a tile's kept logits and that of the touched.
    DEVICE_MEMBER float maximum_with(u32 tile, float maximum) const {
        u64 key = first[tile];
        return key == 0 ? maximum : larger(maximum, key_logit(key));
    }

    // What there is to know of a tile, the touched ids with the kept.
    DEVICE_MEMBER Top top_with(u32 tile, const Top& kept) const {
        u64 key = first[tile];
        if (key == 0) {
            return kept;
        }
        Top top{key_logit(key), key_id(key), from_ordered_bits(others[tile])};
        bool ahead = top.maximum > kept.maximum || (top.maximum == kept.maximum && top.place < kept.place);
        float others = larger(larger(kept.others, top.others), ahead ? kept.maximum : top.maximum);
        return ahead ? Top{top.maximum, top.place, others} : Top{kept.maximum, kept.place, others};
    }
};
