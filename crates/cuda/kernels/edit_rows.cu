// edit_rows.cu: writes the rows of a step under their edits, of which probabilities are made (P4).
//
// Computes   each logit or probability of a row, edited and cleaned, in f32
// Never      reads or writes a row without a slot; writes beyond the vocabulary
// Twins      oracle spec/src/edit.rs | CPU cpu/src/edit | why docs/stages/judge.md
// Shapes     logits [rows, vocab] of T; out [rows, vocab] of f32; row strides in elements
// Grid       x = rows * blocks_per_row, `tiles_per_block` tiles each; whole warps; no dynamic shared memory
// Traffic    in: a row's elements, and edits as in warp/edited_row.cuh; out: 4 bytes an element
// Requires   the kernel `history_edits` before, if a request has edits that depend on its history; no dependent launch;
//            rows of `out` begin at multiples of 16 bytes

#include "abi/drafts.cuh"
#include "warp/edited_row.cuh"

// Writes a lane's slice of a tile.
template <class T>
DEVICE void store_edited(float* tile, u32 left, const float (&z)[ITEMS_PER_LANE]) {
    const u32 lane = lane_id();
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        const u32 start = offset_in_tile<T>(lane, 4 * half);
        if (start + 4 > left) {
            for (u32 j = 0; start + j < left; j++) {
                tile[start + j] = select_item(z, 4 * half + j);
            }
            continue;
        }
        *(U32x4*)(tile + start) = quad_of(z, half);
    }
}

template <class T>
DEVICE void edit_row_tiles(const EditRows& args) {
    const Step& step = args.step;
    const u32 row = blockIdx.x / args.blocks_per_row, block_in_row = blockIdx.x % args.blocks_per_row;
    const int slot = step.slots[row];
    if (slot < 0) {
        return;
    }
    const EditedRow<T, true> view(step, row, slot);
    const u32 first = block_in_row * args.tiles_per_block, end = first + args.tiles_per_block;
#pragma unroll 1
    for (u32 tile = first + warp_id(); tile < end && tile < step.tiles; tile += warp_count()) {
        float z[ITEMS_PER_LANE];
        view.load(tile, lane_id(), z);
        store_edited<T>(args.out + row * args.out_stride + tile * TILE, step.vocab - tile * TILE, z);
    }
}

#define EDIT_ROWS_OF(type, T) \
    KERNEL(edit_rows_##type, EDIT_ROWS_THREADS, EditRows, args) { edit_row_tiles<T>(args); }

FOR_EACH_TYPE(EDIT_ROWS_OF)
