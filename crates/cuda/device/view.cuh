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

// A row of logits under the edits of its request.
template <class T, bool EDITED>
struct View {
    Row<T> row;
    const Params* params;
    const Request* request;
    Edits edits;
    u32 now;

    DEVICE_MEMBER View(const Step& step, u32 row, int slot) : row(step, row) {
        if (EDITED) {
            params = step.params + slot;
            request = step.requests + slot;
            edits = Edits(step, row, slot, params->asks);
            now = step.states[slot].step;
        }
    }

    // With edits, parameters and the request at hand.
    DEVICE_MEMBER View(const Step& step, u32 row, const Edits& edits, const Params& params, const Request& request, u32 now)
        : row(step, row), params(&params), request(&request), edits(edits), now(now) {}

    // A lane's share of a tile, edited. NaN and +inf are still there, but for edited logits. What is below `from` once edited
    // may be anything below it.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE], u32& odd, float from = -INFINITE) const {
        // The logits and what lies over them are on their way together.
        row.load(tile, lane, z);
        if (EDITED && edits.any()) {
            Shares over = shares(tile, lane);
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[j] = over.allowed >> j & 1 ? z[j] : NOTHING;
            }
            if (over.touched != 0) {
                float raise = params->raise;
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    over.touched &= z[j] + raise < from ? ~(1u << j) : ~0u;
                }
            }
            // A lane has few, so they are taken in turn and not unrolled.
#pragma unroll 1
            for (u32 rest = over.touched; rest != 0; rest &= rest - 1) {
                u32 j = __ffs((int)rest) - 1, id = tile * TILE + row.place(tile, lane, j);
                float own = edited_logit(Penalties(*params), *request, now, id, pick(z, j), odd);
#pragma unroll
                for (u32 k = 0; k < PER_LANE; k++) {
                    z[k] = k == j ? own : z[k];
                }
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
            if ((edits.mask && !(word < edits.mask_words && edits.mask[word] & bit)) ||
                (edits.allowed && !(edits.allowed[word] & bit))) {
                return NOTHING;
            }
            if (edits.touched && edits.touched[word] & bit) {
                return clean(edited_logit(Penalties(*params), *request, now, id, row.logit(id), odd));
            }
        }
        return row.logit(id);
    }

    // Whether a lane's logits are of four neighbours twice.
    DEVICE_MEMBER bool is_wide(u32 tile) const { return row.is_wide(tile); }

    // Bits for a lane's logits of a tile: whether mask and lists allow them, and whether those that they do have entries.
    struct Shares {
        u32 allowed;
        u32 touched;
    };

    DEVICE_MEMBER Shares shares(u32 tile, u32 lane) const {
        u32 word = tile * MASK_WORDS + lane, masked = ~0u, listed = ~0u, edited = 0;
        // A lane has a word: so each list is read once.
        if (lane < MASK_WORDS) {
            masked = edits.masked(word);
            listed = edits.allowed ? edits.allowed[word] : ~0u;
            edited = edits.touched ? edits.touched[word] : 0;
        }
        u32 allowed = masked & listed;
        return Shares{row.share(allowed, tile, lane), row.share(edited & allowed, tile, lane)};
    }

    // Where in the tile a lane's j-th logit lies.
    DEVICE_MEMBER u32 place(u32 tile, u32 lane, u32 j) const { return row.place(tile, lane, j); }
};
