// view.cuh: a row with its edits, as the stages after them see it.
//
// Computes   a tile's 256 logits over the lanes of a warp; one logit by its id
// Never      writes logits; never reads beyond the vocabulary
// Requires   whole warps; EDITED wherever a request of the batch has edits or a mask
#pragma once

#include "row.cuh"

// A row of logits under the edits of its request.
template <class T, bool EDITED>
struct View {
    Row<T> row;

    DEVICE_MEMBER View(const Step& step, u32 row, int slot) : row(step, row) {}

    // A lane's share of a tile, -inf beyond the vocabulary and where banned. NaN and +inf are still there, but for
    // edited logits, whose bits `odd` takes instead.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE], u32& odd) const { row.load(tile, lane, z); }

    // The same, cleaned.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE]) const {
        u32 odd = 0;
        load(tile, lane, z, odd);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = clean(z[j]);
        }
    }

    // The logit of an id, cleaned.
    DEVICE_MEMBER float logit(u32 id) const { return row.logit(id); }

    // Where in the tile a lane's j-th logit lies.
    DEVICE_MEMBER u32 place(u32 tile, u32 lane, u32 j) const { return row.place(tile, lane, j); }
};
