// help.cuh: a long row's tiles dealt out among blocks: the row's own, and blocks that have no row.
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

#include "mass.cuh"

// How often a helper looks for work in vain before it gives up, which is some milliseconds.
#define MOST_LOOKS (1 << 13)

DEVICE int* parts_left(const Step& step, u32 row) { return (int*)step.help + LEFT + row; }

// Declares that the block's row needs no help any more; once. Nobody waits for that to arrive.
DEVICE void need_no_help(const Step& step) {
    if (step.parts != 0 && threadIdx.x == 0) {
        atomicAdd(step.help + DECLARED, 1u);
    }
}

// Deals a row's tiles out but for the first part, which its own block takes. What is to be done must be written, with a barrier
// after that.
DEVICE void deal_out(const Step& step, u32 row) {
    if (threadIdx.x == 0) {
        // Without it a helper could see parts and not yet what is to be done.
        __threadfence();
        atomicExch(parts_left(step, row), (int)step.parts - 1);
    }
}

// Calls `work(part)` with a part of a row that is taken, and with more until none is left. Returns how many there were.
template <class Work>
DEVICE u32 take_parts(const Step& step, u32 row, u32 part, Work work) {
    __shared__ u32 next[2];
    u32 sum = 0;
    for (u32 turn = 0; part < step.parts; turn ^= 1) {
        sum++;
        work(part);
        if (threadIdx.x == 0) {
            int left = atomicAdd(parts_left(step, row), -1);
            next[turn] = left > 0 ? step.parts - (u32)left : step.parts;
        }
        // Without it a part would be read that is not taken yet. The next one is written to the other place, so that a slower
        // warp may still read this.
        __syncthreads();
        part = next[turn];
    }
    return sum;
}

// Waits until helpers are done with so many parts; then what they found may be read.
DEVICE void wait_for_helpers(const u32& done, u32 parts) {
    if (threadIdx.x == 0) {
        while (*(const volatile u32*)&done != parts) {
            __nanosleep(20);
        }
        // Without it this multiprocessor could know older words of what helpers wrote.
        __threadfence();
    }
    // Without it others would read before helpers are done.
    __syncthreads();
}

// Says that a helper is done with parts; all that it found is written.
DEVICE void say_done(u32& done, u32 parts) {
    // Without it parts would be done with what slower warps have not written yet.
    __syncthreads();
    if (threadIdx.x == 0) {
        // Without it the row's block could see that the parts are done, and not what was found.
        __threadfence();
        atomicAdd(&done, parts);
    }
}

// A row with the part of it that a helper takes first; none, if that is beyond the last.
struct Helped {
    u32 row;
    u32 part;
};

// Looks for a row that has parts left, and takes one, until no row needs help.
DEVICE Helped find_helped(const Step& step) {
    __shared__ Helped found;
    // Without it a slower warp would miss what was found before.
    __syncthreads();
    if (warp_id() == 0) {
        Helped own{0, step.parts};
        u32 lane = lane_id();
        for (u32 looks = 0; looks < MOST_LOOKS; looks++) {
            u32 declared = *(volatile u32*)(step.help + DECLARED), row = ~0u;
            for (u32 other = lane; other < step.rows; other += 32) {
                row = *(volatile int*)parts_left(step, other) > 0 ? other : row;
            }
            u32 open = __ballot_sync(ALL_LANES, row != ~0u);
            if (open != 0) {
                // Helpers begin with different rows.
                u32 turn = blockIdx.x % 32, turned = open >> turn | (turn == 0 ? 0 : open << (32 - turn));
                u32 who = ((u32)__ffs((int)turned) - 1 + turn) % 32;
                own.row = __shfl_sync(ALL_LANES, row, (int)who);
                int left = __shfl_sync(ALL_LANES, lane == 0 ? atomicAdd(parts_left(step, own.row), -1) : 0, 0);
                if (left > 0) {
                    own.part = step.parts - (u32)left;
                    break;
                }
            } else if (__any_sync(ALL_LANES, declared >= step.rows)) {
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
