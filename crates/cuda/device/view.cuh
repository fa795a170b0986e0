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
            touched = row.bits(this->touched, words, tile, lane) & allowed;
            for (u32 rest = touched; rest != 0; rest &= rest - 1) {
                // Entries lie anywhere: they come while the logits do.
                prefetch(entries + home_of(id_of(tile, lane, __ffs((int)rest) - 1), entries_mask));
            }
        }
        return Over(allowed, touched);
    }

    // A lane's share of a tile, -inf beyond the vocabulary and where mask and lists ban; not edited yet.
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

    // Edits a lane's share of a tile. What edits make of +inf says nothing of it any more, so `odd` does.
    DEVICE_MEMBER void edit(u32 tile, u32 lane, const Over& over, float (&z)[PER_LANE], u32& odd) const {
        // A lane has few, so they are taken in turn and not unrolled: lanes with none wait for one or two.
        for (u32 rest = EDITED ? over.touched() : 0; rest != 0; rest &= rest - 1) {
            u32 j = __ffs((int)rest) - 1;
            float own = 0.0f;
#pragma unroll
            for (u32 k = 0; k < PER_LANE; k++) {
                own = k == j ? z[k] : own;
            }
            own = edit(id_of(tile, lane, j), own, odd);
#pragma unroll
            for (u32 k = 0; k < PER_LANE; k++) {
                z[k] = k == j ? own : z[k];
            }
        }
    }

    // A lane's share of a tile, edited. NaN and +inf are still there, but for edited logits, whose bits `odd` takes.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE], u32& odd) const {
        Over over = this->over(tile, lane);
        load(tile, lane, over, z);
        edit(tile, lane, over, z, odd);
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
    DEVICE_MEMBER u32 id_of(u32 tile, u32 lane, u32 j) const { return tile * TILE + row.place(tile, lane, j); }

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
