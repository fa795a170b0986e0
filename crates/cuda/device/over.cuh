// over.cuh: the edits of a warp's neighbouring tiles.
//
// Computes   which logits mask and lists allow, and what becomes of those that have an entry
// Never      looks at an id that neither mask nor lists name
// Traffic    4 bytes for each 32 ids and each of mask, allowed and touched ids that the row has; an entry and a
//            logit for each touched id
// Requires   whole warps; the kernel `edit` before, where a request asks for it
//
// A lane holds the bits of 32 neighbouring ids. Touched ids are dealt out, one a lane, wherever in the tiles they lie: so
// a warp waits for their entries once.
#pragma once

#include "entries.cuh"
#include "row.cuh"
#include "warp.cuh"

// What lies over a warp's TILES tiles.
template <class T, u32 TILES>
struct Over {
    static constexpr u32 WORDS = TILES * MASK_WORDS;
    static_assert(WORDS <= 32, "a lane has a word");

    // The lane's word, of those allowed and of those of them that have entries.
    u32 allowed;
    u32 touched;
    // A bit for each word: whether it allows all its ids, and whether some are touched.
    u32 whole;
    u32 edited;

    // As if there were no edits.
    DEVICE_MEMBER Over() : allowed(~0u), touched(0), whole(~0u), edited(0) {}

    DEVICE_MEMBER Over(const Edits& edits, u32 first_tile, u32 tiles) : allowed(~0u), touched(0) {
        u32 lane = lane_id(), word = first_tile * MASK_WORDS + lane;
        if (lane < WORDS && word < tiles * MASK_WORDS) {
            if (edits.mask) {
                allowed = word < edits.mask_words ? edits.mask[word] : 0;
            }
            if (edits.allowed) {
                allowed &= edits.allowed[word];
            }
            if (edits.touched) {
                touched = edits.touched[word] & allowed;
            }
        }
        whole = __ballot_sync(ALL_LANES, allowed == ~0u);
        edited = __ballot_sync(ALL_LANES, touched != 0);
    }

    DEVICE_MEMBER bool is_touched(u32 tile) const { return (edited >> tile * MASK_WORDS & 255) != 0; }
    DEVICE_MEMBER bool is_plain(u32 tile) const {
        return (whole >> tile * MASK_WORDS & 255) == 255 && !is_touched(tile);
    }

    // The lane's bits of a tile among the words that the lanes hold: bit j for its j-th logit.
    static DEVICE_MEMBER u32 share(u32 words, u32 tile, bool wide) {
        u32 lane = lane_id(), first = tile * MASK_WORDS;
        if (!wide) {
            u32 bits = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                bits |= (__shfl_sync(ALL_LANES, words, (int)(first + j)) >> lane & 1) << j;
            }
            return bits;
        }
        if (sizeof(typename T::Element) == 4) {
            u32 low = __shfl_sync(ALL_LANES, words, (int)(first + lane / 8));
            u32 high = __shfl_sync(ALL_LANES, words, (int)(first + 4 + lane / 8));
            u32 shift = lane % 8 * 4;
            return (low >> shift & 15) | (high >> shift & 15) << 4;
        }
        return __shfl_sync(ALL_LANES, words, (int)(first + lane / 4)) >> (lane % 4 * 8) & 255;
    }

    // Edits the touched ids: `own` gets their logits, clean, by place in the warp's tiles. Returns the status bits of those
    // that were odd.
    DEVICE_MEMBER u32 edit(const Penalties& penalties, const Request& request, u32 now, const Row<T>& row,
                           u32 first_tile, float* own) const {
        if (edited == 0) {
            return 0;
        }
        u32 lane = lane_id(), count = (u32)__popc(touched), upto = count, odd = 0;
#pragma unroll
        for (u32 apart = 1; apart < 32; apart *= 2) {
            u32 other = __shfl_up_sync(ALL_LANES, upto, apart);
            upto += lane >= apart ? other : 0;
        }
        u32 total = __shfl_sync(ALL_LANES, upto, 31);
        for (u32 start = 0; start < total; start += 32) {
            // The word with the touched id of this number.
            u32 number = start + lane, word = 0;
#pragma unroll
            for (u32 half = 16; half > 0; half /= 2) {
                u32 before = __shfl_sync(ALL_LANES, upto, (int)(word + half - 1));
                word += before <= number ? half : 0;
            }
            u32 bits = __shfl_sync(ALL_LANES, touched, (int)word);
            u32 rest = number - __shfl_sync(ALL_LANES, upto - count, (int)word);
            if (number < total) {
#pragma unroll 1
                for (; rest > 0; rest--) {
                    bits &= bits - 1;
                }
                u32 place = word * 32 + (u32)__ffs((int)bits) - 1, id = first_tile * TILE + place;
                own[place] = clean(edited_logit(penalties, request, now, id, T::convert(row.logits[id]), odd));
            }
        }
        // Without it a lane would read what another one has not written yet.
        __syncwarp();
        return odd;
    }

    // What the edits leave of the lane's share of a tile.
    DEVICE_MEMBER void apply(u32 tile, bool wide, const float* own, float (&z)[PER_LANE]) const {
        u32 lane = lane_id(), allows = share(allowed, tile, wide);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = allows >> j & 1 ? z[j] : -INFINITE;
        }
        if (!is_touched(tile)) {
            return;
        }
        u32 touches = share(touched, tile, wide);
        own += tile * TILE;
        float edited[PER_LANE];
        if (wide) {
            const Quad* quads = (const Quad*)own;
            bool narrow = sizeof(typename T::Element) == 2;
            Quad low = quads[narrow ? 2 * lane : lane], high = quads[narrow ? 2 * lane + 1 : 32 + lane];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                edited[j] = bits_float(low.word[j]);
                edited[4 + j] = bits_float(high.word[j]);
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                edited[j] = own[j * 32 + lane];
            }
        }
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = touches >> j & 1 ? edited[j] : z[j];
        }
    }
};
