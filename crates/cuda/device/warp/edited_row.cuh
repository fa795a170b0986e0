// edited_row.cuh: a row of logits with its edits applied, for the stages after the survey.
//
// Computes   a tile's 256 logits, spread over the lanes of a warp; one logit by its id
// Never      writes logits; never reads beyond the vocabulary
// Traffic    besides the logits: 32 bytes a tile for each of mask, allowed and touched ids that the row has, and
//            an entry for each touched id
// Requires   whole warps; EDITED if any request of the batch has edits or a mask; the kernel `history_edits` before, if
//            a request needs it
#pragma once

#include "math/edits.cuh"
#include "warp/row.cuh"

// A row of logits under the edits of its request; or a part of one, whose ids count from `row.first_id`, a multiple of
// 32.
template <class T, bool EDITED, class Row = LogitsRow<T>>
struct EditedRow {
    Row row;
    const Params* params;
    const Request* request;
    EditMasks edits;
    u32 current_step;

    EditedRow() = default;
    DEVICE_MEMBER EditedRow(const Step& step, u32 row, int slot) : row(step, row) {
        if (EDITED) {
            params = step.params + slot;
            request = step.requests + slot;
            edits = EditMasks(step, row, slot, params->features);
            current_step = step.states[slot].step;
        }
    }

    // For callers that have loaded the edits, the parameters and the request already.
    DEVICE_MEMBER EditedRow(const Row& row, const EditMasks& edits, const Params& params, const Request& request,
                            u32 current_step)
        : row(row), params(&params), request(&request), edits(edits), current_step(current_step) {}

    // Loads a lane's slice of a tile, edited but not cleaned; `nonfinite_flags` takes the status bits of the touched
    // logits. If an edited logit is below `from`, the result is any value below `from`.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE], u32& nonfinite_flags,
                            float from = -INF_F32) const {
        // The loads of the logits and of the bitmaps overlap.
        row.load(tile, lane, z);
        if (EDITED && edits.any()) {
            LaneBits bits = lane_bits_of(tile, lane);
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = bits.allowed >> j & 1 ? z[j] : MASKED_VALUE;
            }
            if (bits.touched != 0) {
                float max_raise = params->max_raise;
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    bits.touched &= z[j] + max_raise < from ? ~(1u << j) : ~0u;
                }
            }
            // A lane has few touched logits: the loop takes one at a time and is not unrolled.
#pragma unroll 1
            for (u32 rest = bits.touched; rest != 0; rest &= rest - 1) {
                u32 j = __ffs((int)rest) - 1, id = row.first_id + tile * TILE + row.offset(lane, j);
                float own =
                    edited_logit(Penalties(*params), *request, current_step, id, select_item(z, j), nonfinite_flags);
#pragma unroll
                for (u32 k = 0; k < ITEMS_PER_LANE; k++) {
                    z[k] = k == j ? own : z[k];
                }
            }
        }
    }

    // Loads a lane's slice of a tile, edited and cleaned.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE]) const {
        u32 nonfinite_flags = 0;
        load(tile, lane, z, nonfinite_flags);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = clean(z[j]);
        }
    }

    // The logit of an id, edited and cleaned.
    DEVICE_MEMBER float logit(u32 id) const {
        // Loaded before the bits are known, so that the loads overlap.
        const float z = row.logit(id);
        if (EDITED) {
            const u32 word = id / 32, bit = 1u << (id % 32);
            const u32 touched_bits = edits.touched ? edits.touched[word] : 0;
            if (!(edits.allowed_word(word) & bit)) {
                return MASKED_VALUE;
            }
            if (touched_bits & bit) {
                u32 nonfinite_flags = 0;
                return clean(
                    edited_logit(Penalties(*params), *request, current_step, row.first_id + id, z, nonfinite_flags));
            }
        }
        return z;
    }

    // Bits for a lane's logits of a tile: whether mask and lists allow each, and whether an allowed one has an entry.
    struct LaneBits {
        u32 allowed;
        u32 touched;
    };

    DEVICE_MEMBER LaneBits lane_bits_of(u32 tile, u32 lane) const {
        u32 word = tile * MASK_WORDS + lane, mask_bits = ~0u, allowed_bits = ~0u, touched_bits = 0;
        // Each of the first MASK_WORDS lanes loads a word, so the warp reads each bitmap once.
        if (lane < MASK_WORDS) {
            mask_bits = edits.mask_word(word);
            allowed_bits = edits.allowed ? edits.allowed[word] : ~0u;
            touched_bits = edits.touched ? edits.touched[word] : 0;
        }
        u32 allowed = mask_bits & allowed_bits;
        return LaneBits{lane_bits<T>(allowed, lane), lane_bits<T>(touched_bits & allowed, lane)};
    }

    static DEVICE_MEMBER u32 offset(u32 lane, u32 j) { return Row::offset(lane, j); }
};

// Those tokens of a row whose logits the request leaves as they are. In place of the others it has MASKED_VALUE.
template <class T, bool EDITED>
struct UntouchedRow {
    const EditedRow<T, EDITED>& row;

    // Loads a lane's slice of a tile, not cleaned, as EditedRow does.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE], u32&, float = -INF_F32) const {
        row.row.load(tile, lane, z);
        if (EDITED && row.edits.any()) {
            typename EditedRow<T, EDITED>::LaneBits bits = row.lane_bits_of(tile, lane);
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = (bits.allowed & ~bits.touched) >> j & 1 ? z[j] : MASKED_VALUE;
            }
        }
    }
};

// Calls `visit(z, id)` for the touched tokens that mask and lists allow, with their edited and clean logits. The lanes
// of a warp take one token each, wherever in 1024 neighbouring ids these are, so that the warp waits for 32 entries of
// the table at once. All threads of the row's blocks call it; warp `part` of `parts` takes its part.
template <class T, class Visit>
DEVICE void each_touched(const EditedRow<T, true>& view, u32 tiles, u32 part, u32 parts, Visit visit) {
    if (!view.edits.touched) {
        return;
    }
    const u32 lane = lane_id(), words = tiles * MASK_WORDS;
    const Penalties penalties(*view.params);
#pragma unroll 1
    for (u32 first_word = part * 32; first_word < words; first_word += parts * 32) {
        const u32 word = first_word + lane;
        u32 bits = 0;
        if (word < words) {
            bits = view.edits.touched[word] & view.edits.allowed_word(word);
        }
        // How many tokens there are in this word and the words before it.
        const u32 up_to = warp_scan((u32)__popc(bits));
        const u32 count = __shfl_sync(FULL_MASK, up_to, 31), before = up_to - (u32)__popc(bits);
#pragma unroll 1
        for (u32 start = 0; start < count; start += 32) {
            const u32 nth = start + lane;
            // The lane whose word has the nth token: the first one with more than nth up to its word.
            u32 owner = 0;
#pragma unroll
            for (u32 step = 16; step != 0; step /= 2) {
                owner += __shfl_sync(FULL_MASK, up_to, (int)(owner + step - 1)) <= nth ? step : 0;
            }
            u32 left = nth - __shfl_sync(FULL_MASK, before, (int)owner);
            u32 rest = __shfl_sync(FULL_MASK, bits, (int)owner);
            if (nth >= count) {
                continue;
            }
#pragma unroll 1
            for (; left != 0; left--) {
                rest &= rest - 1;
            }
            const u32 id = (first_word + owner) * 32 + (u32)__ffs((int)rest) - 1;
            u32 nonfinite_flags = 0;
            visit(clean(edited_logit(penalties, *view.request, view.current_step, id, view.row.logit(id),
                                     nonfinite_flags)),
                  id);
        }
    }
}
