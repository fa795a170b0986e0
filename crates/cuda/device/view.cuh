// view.cuh: a row with its edits, as the stages after them see it.
//
// Computes   a tile's 256 logits over the lanes of a warp; one logit by its id
// Never      writes logits; never reads beyond the vocabulary; reads no logits where a lane's are all banned
// Traffic    besides the logits 32 bytes a tile for each of mask, allowed and touched ids that the row has, and
//            an entry for each touched id
// Requires   whole warps; EDITED wherever a request of the batch has edits or a mask; the kernel `edit` before, where
//            one asks for it
#pragma once

#include "entries.cuh"
#include "row.cuh"

// What lies over a lane's share of a tile: a bit for each of its logits, in one word as registers are dear.
struct Over {
    u32 bits;

    DEVICE_MEMBER Over() : bits(255) {}
    DEVICE_MEMBER Over(u32 allowed, u32 touched) : bits(allowed | (allowed & touched) << 8) {}
    DEVICE_MEMBER u32 allowed() const { return bits & 255; }
    // Those allowed that have an entry.
    DEVICE_MEMBER u32 touched() const { return bits >> 8; }
};

// A row of logits under the edits of its request.
template <class T, bool EDITED>
struct View {
    Row<T> row;
    const Params* params;
    // Null where the row has none.
    const u32* mask;
    const u32* allowed;
    const u32* touched;
    Entry* entries;
    u32 entries_mask;
    u32 mask_words;
    u32 step;

    DEVICE_MEMBER View(const Step& step, u32 row, int slot) : row(step, row) {
        if (EDITED) {
            params = step.params + slot;
            const Request& request = step.requests[slot];
            bool masked = step.masks && (!step.masked || step.masked[row]);
            mask = masked ? step.masks + row * step.mask_stride : nullptr;
            mask_words = step.mask_words;
            allowed = params->asks & ASKS_ALLOWED ? request.allowed : nullptr;
            touched = params->asks & ASKS_EDITS ? request.touched : nullptr;
            entries = request.entries;
            entries_mask = request.entries_mask;
            this->step = step.states[slot].step;
        }
    }

    // A lane's share of neighbouring tiles, -inf beyond the vocabulary and where mask and lists ban, not edited yet. Returns
    // which of them are to be edited: bit i * 8 + j is that of the i-th tile's j-th logit.
    template <u32 TILES>
    DEVICE_MEMBER u32 load(u32 first_tile, u32 tiles, u32 lane, float (&z)[TILES][PER_LANE]) const {
        Over over[TILES];
        u32 edits = 0;
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            if (first_tile + i < tiles) {
                over[i] = this->over(first_tile + i, lane);
                edits |= over[i].touched() << (i * PER_LANE);
            }
        }
        for (u32 rest = EDITED ? edits : 0; rest != 0; rest &= rest - 1) {
            // Entries lie anywhere: they come while the logits do.
            u32 id = id_of(first_tile, lane, __ffs((int)rest) - 1);
            prefetch(entries + home_of(id, entries_mask));
        }
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            if (first_tile + i < tiles) {
                load(first_tile + i, lane, over[i], z[i]);
            }
        }
        return edits;
    }

    // Edits what was loaded. What edits make of +inf says nothing of it any more, so `odd` does. `own` has a place for each
    // of the lane's logits, 32 apart: registers cannot be chosen by number.
    template <u32 TILES>
    DEVICE_MEMBER void edit(u32 first_tile, u32 lane, u32 edits, float* own, float (&z)[TILES][PER_LANE],
                            u32& odd) const {
        // A lane has few, in whichever tiles: lanes take theirs side by side, and those with none wait for one or two.
        for (u32 rest = edits; rest != 0; rest &= rest - 1) {
            u32 i = __ffs((int)rest) - 1, id = id_of(first_tile, lane, i);
            own[i * 32] = edit(id, T::convert(row.logits[id]), odd);
        }
        if (edits != 0) {
#pragma unroll
            for (u32 i = 0; i < TILES * PER_LANE; i++) {
                float& place = z[i / PER_LANE][i % PER_LANE];
                place = edits >> i & 1 ? own[i * 32] : place;
            }
        }
    }

    // A lane's share of a tile, edited. NaN and +inf are still there, but for edited logits, whose bits `odd` takes.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE], u32& odd) const {
        Over over = this->over(tile, lane);
        load(tile, lane, over, z);
        // A lane has few, so they are taken in turn and not unrolled.
        for (u32 rest = EDITED ? over.touched() : 0; rest != 0; rest &= rest - 1) {
            u32 j = __ffs((int)rest) - 1, id = id_of(tile, lane, j);
            float own = edit(id, T::convert(row.logits[id]), odd);
#pragma unroll
            for (u32 k = 0; k < PER_LANE; k++) {
                z[k] = k == j ? own : z[k];
            }
        }
    }

    // The same, cleaned.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE]) const {
        u32 odd = 0;
        load(tile, lane, z, odd);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = clean(z[j]);
        }
    }

    // The logit of an id, edited and cleaned.
    DEVICE_MEMBER float logit(u32 id) const {
        if (EDITED) {
            u32 word = id / 32, bit = 1u << (id % 32), odd = 0;
            if ((mask && !(word < mask_words && mask[word] & bit)) || (allowed && !(allowed[word] & bit))) {
                return -INFINITE;
            }
            if (touched && touched[word] & bit) {
                return clean(edit(id, row.logit(id), odd));
            }
        }
        return row.logit(id);
    }

    // Where in the tile a lane's j-th logit lies.
    DEVICE_MEMBER u32 place(u32 tile, u32 lane, u32 j) const { return row.place(tile, lane, j); }

  private:
    // The id of a lane's i-th logit from a tile on.
    DEVICE_MEMBER u32 id_of(u32 tile, u32 lane, u32 i) const {
        tile += i / PER_LANE;
        return tile * TILE + row.place(tile, lane, i % PER_LANE);
    }

    // What lies over a lane's share of a tile.
    DEVICE_MEMBER Over over(u32 tile, u32 lane) const {
        u32 words = (tile + 1) * MASK_WORDS;
        u32 allowed = 255, touched = 0;
        if (EDITED && mask) {
            allowed = row.bits(mask, mask_words, tile, lane);
        }
        if (EDITED && this->allowed) {
            allowed &= row.bits(this->allowed, words, tile, lane);
        }
        if (EDITED && this->touched) {
            touched = row.bits(this->touched, words, tile, lane);
        }
        return Over(allowed, touched);
    }

    // A lane's share of a tile, -inf where mask and lists ban; not edited yet.
    DEVICE_MEMBER void load(u32 tile, u32 lane, const Over& over, float (&z)[PER_LANE]) const {
        if (EDITED && over.allowed() == 0) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = -INFINITE;
            }
            return;
        }
        row.load(tile, lane, z);
        if (EDITED && over.allowed() != 255) {
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = over.allowed() >> j & 1 ? z[j] : -INFINITE;
            }
        }
    }

    // What becomes of the logit of a touched id that mask and lists allow.
    DEVICE_MEMBER float edit(u32 id, float z, u32& odd) const {
        const Entry& entry = *entry_of(entries, entries_mask, id);
        if (params->asks & ASKS_SEARCH && entry.ban_step == step) {
            return -INFINITE;
        }
        odd |= z > LARGEST ? STATUS_INF : 0;
        // NaN is not above -inf either, and stays for the caller to see.
        return z > -INFINITE ? edited(*params, entry, step, fminf(z, LARGEST)) : z;
    }
};
