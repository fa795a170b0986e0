// work_sharing.cuh: a long row's tiles dealt out among blocks: the row's own, and blocks that have no row.
//
// Computes   which tiles a block takes; which row has tiles to take; nothing of the row itself
// Never      lets a row wait for a block that has not begun: its own block takes what nobody else has
// Twins      none: who takes what never shows, as all that the parts come to is added up in integers
// Requires   blocks of whole warps, all threads of each; Step::help, whose first word the survey clears
//
//     the row's block: writes what is to be done, then how many parts are left   | a helper: sees that parts are left,
//                      takes parts until none is left                            | takes one, reads what is to be done,
//                      waits until those that others have taken are done         | takes more until none is left, writes
//                      adds what they found to its own                           | what it found, and says how many
//
// The number of parts left is only ever taken from, by atomics, until the row's block writes it anew, and that happens when all
// parts taken are done. So whoever takes a part finds the work it belongs to written down, and none of that changes before
// it says that it is done. A late helper takes a number below one, of which no sense is made.
//
// Blocks of lower numbers start first, so helpers take no room from rows. Nothing hangs on that: a helper leaves when all rows
// have declared that they need none, or else after a while.
#pragma once

#include "abi/step.cuh"
#include "warp/reduce.cuh"

// How often a helper looks for work in vain before it gives up, which is some milliseconds.
#define MAX_POLLS (1 << 13)

DEVICE int* chunks_left(const Step& step, u32 row) { return (int*)step.work_sharing + CHUNKS_LEFT + row; }

// Declares that the block's row needs no help any more; once. Nobody waits for that to arrive.
DEVICE void retire_row(const Step& step) {
    if (step.chunks != 0 && threadIdx.x == 0) {
        atomicAdd(step.work_sharing + RETIRED_ROWS, 1u);
    }
}

// Deals a row's tiles out but for the first part, which its own block takes. What is to be done must be written, with a barrier
// after that.
DEVICE void publish_chunks(const Step& step, u32 row) {
    if (threadIdx.x == 0) {
        // Without it a helper could see parts and not yet what is to be done.
        __threadfence();
        atomicExch(chunks_left(step, row), (int)step.chunks - 1);
    }
}

// Calls `work(chunk)` with a part of a row that is taken, and with more until none is left. Returns how many there were.
template <class ClusterWorker>
DEVICE u32 take_chunks(const Step& step, u32 row, u32 chunk, ClusterWorker work) {
    __shared__ u32 next[2];
    u32 sum = 0;
    for (u32 turn = 0; chunk < step.chunks; turn ^= 1) {
        sum++;
        work(chunk);
        if (threadIdx.x == 0) {
            int left = atomicAdd(chunks_left(step, row), -1);
            next[turn] = left > 0 ? step.chunks - (u32)left : step.chunks;
        }
        // Without it a part would be read that is not taken yet. The next one is written to the other place, so that a slower
        // warp may still read this.
        __syncthreads();
        chunk = next[turn];
    }
    return sum;
}

// Waits until helpers are done with so many parts; then what they found may be read.
DEVICE void wait_for_helpers(const u32& done, u32 chunks) {
    if (threadIdx.x == 0) {
        while (*(const volatile u32*)&done != chunks) {
            __nanosleep(20);
        }
        // Without it this multiprocessor could know older words of what helpers wrote.
        __threadfence();
    }
    // Without it others would read before helpers are done.
    __syncthreads();
}

// Says that a helper is done with parts; all that it found is written.
DEVICE void report_done(u32& done, u32 chunks) {
    // Without it parts would be done with what slower warps have not written yet.
    __syncthreads();
    if (threadIdx.x == 0) {
        // Without it the row's block could see that the parts are done, and not what was found.
        __threadfence();
        atomicAdd(&done, chunks);
    }
}

// A row with the part of it that a helper takes first; none, if that is beyond the last.
struct ClaimedChunk {
    u32 row;
    u32 chunk;
};

// Looks for a row that has parts left, and takes one, until no row needs help.
DEVICE ClaimedChunk claim_chunk(const Step& step) {
    __shared__ ClaimedChunk found;
    // Without it a slower warp would miss what was found before.
    __syncthreads();
    if (warp_id() == 0) {
        ClaimedChunk own{0, step.chunks};
        u32 lane = lane_id();
        for (u32 looks = 0; looks < MAX_POLLS; looks++) {
            u32 declared = *(volatile u32*)(step.work_sharing + RETIRED_ROWS), row = ~0u;
            for (u32 other = lane; other < step.rows; other += 32) {
                row = *(volatile int*)chunks_left(step, other) > 0 ? other : row;
            }
            u32 open = __ballot_sync(FULL_MASK, row != ~0u);
            if (open != 0) {
                // Helpers begin with different rows.
                u32 turn = blockIdx.x % 32, turned = open >> turn | (turn == 0 ? 0 : open << (32 - turn));
                u32 leader_lane = ((u32)__ffs((int)turned) - 1 + turn) % 32;
                own.row = __shfl_sync(FULL_MASK, row, (int)leader_lane);
                int left = __shfl_sync(FULL_MASK, lane == 0 ? atomicAdd(chunks_left(step, own.row), -1) : 0, 0);
                if (left > 0) {
                    own.chunk = step.chunks - (u32)left;
                    break;
                }
            } else if (__any_sync(FULL_MASK, declared >= step.rows)) {
                break;
            }
            __nanosleep(20);
        }
        if (lane == 0) {
            // Without it older words of what is to be done could be read than those that belong to the part.
            __threadfence();
            found = own;
        }
    }
    // Without it others would read before it is found.
    __syncthreads();
    return found;
}
