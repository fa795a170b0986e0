// work_sharing.cuh: shares a long row's tiles among its own block and helpers, which are blocks without a row.
//
// Computes   which chunk of tiles a block takes, and which row has chunks left; nothing of the row itself
// Never      lets a row wait for a block that has not begun: its own block takes every chunk that nobody has claimed
// Twins      none: all sums of chunks are integer sums, so results do not depend on who takes which chunk
// Requires   blocks of whole warps, all threads of each; Step::work_sharing, whose first word the survey clears
//
//     the row's block: publishes a search, then the number of chunks left | a helper: sees that a row has chunks left
//                      claims chunks until none is left                   | claims one, reads the search
//                      waits until the chunks that helpers claimed        | claims more until none is left
//                      are done                                           | publishes its results, then the number
//                      adds the helpers' results to its own               | of chunks that it has done
//
// Atomics decrease the number of chunks left, until the row's block publishes its next search. The block does that only
// once all claimed chunks are done. So a block that claims a chunk finds the search that the chunk belongs to. The
// search stays unchanged until the block reports the chunk done. A helper that comes too late reads a number below one
// and takes nothing.
//
// Blocks with lower indices start first, so helpers do not take multiprocessors from rows. Correctness does not depend
// on that: a helper leaves once all rows are retired, or after MAX_POLLS polls.
#pragma once

#include "abi/step.cuh"
#include "warp/reduce.cuh"

// How often a helper looks for a chunk before it gives up: some milliseconds.
#define MAX_POLLS (1 << 13)

DEVICE int* chunks_left(const Step& step, u32 row) { return (int*)step.work_sharing + CHUNKS_LEFT + row; }

// Counts the block's row as retired: it publishes no more chunks, as far as is known. Usually called once a row. A row
// with a candidate list retires early, before the list is filtered; if the filters then leave a doubt, it still
// publishes a search, and retires again. Nothing waits for the atomic.
DEVICE void retire_row(const Step& step) {
    if (step.chunks != 0 && threadIdx.x == 0) {
        atomicAdd(step.work_sharing + RETIRED_ROWS, 1u);
    }
}

// Lets helpers claim a row's chunks, except for the first one, which its own block takes. The caller must have
// published the search, with a barrier after that.
DEVICE void publish_chunks(const Step& step, u32 row) {
    if (threadIdx.x == 0) {
        // Release: the search must be visible to helpers before the number of chunks left is.
        __threadfence();
        atomicExch(chunks_left(step, row), (int)step.chunks - 1);
    }
}

// A row and the chunk of it that a helper claimed. `chunk` is Step::chunks if there is none.
struct ClaimedChunk {
    u32 row;
    u32 chunk;
};

// The shared memory of a block that shares work.
struct WorkSharingStorage {
    // The chunk that the block claimed last, and the one before.
    u32 next_chunk[2];
    ClaimedChunk claimed;
};

// Calls `work(chunk)` for a chunk that the block has, and then claims further chunks of the row until none is left.
// Returns how many chunks the block has done.
template <class Work>
DEVICE u32 take_chunks(WorkSharingStorage& storage, const Step& step, u32 row, u32 chunk, Work work) {
    u32 sum = 0;
    for (u32 turn = 0; chunk < step.chunks; turn ^= 1) {
        sum++;
        work(chunk);
        if (threadIdx.x == 0) {
            int left = atomicAdd(chunks_left(step, row), -1);
            storage.next_chunk[turn] = left > 0 ? step.chunks - (u32)left : step.chunks;
        }
        // RAW on next_chunk[turn]: thread 0 wrote the claimed chunk, all threads read it. The next claim goes to the other
        // element, so a slower warp can still read this one.
        __syncthreads();
        chunk = storage.next_chunk[turn];
    }
    return sum;
}

// Waits until helpers have done `chunks` chunks. Then the block may read their results.
DEVICE void wait_for_helpers(const u32& done, u32 chunks) {
    if (threadIdx.x == 0) {
        while (*(const volatile u32*)&done != chunks) {
            __nanosleep(20);
        }
        // Acquire: without this fence, this multiprocessor could read older words than those that helpers wrote.
        __threadfence();
    }
    // RAW on the helpers' results: thread 0 saw that they are complete, all threads read them.
    __syncthreads();
}

// Reports that a helper has done some chunks, and has written all its results.
DEVICE void report_done(u32& done, u32 chunks) {
    // RAW on the results: all threads of the helper wrote them, the row's block reads them once thread 0 has counted.
    __syncthreads();
    if (threadIdx.x == 0) {
        // Release: the results must be visible to the row's block before the number of chunks done is.
        __threadfence();
        atomicAdd(&done, chunks);
    }
}

// Looks for a row that has chunks left and claims one; gives up once all rows are retired, or after MAX_POLLS polls.
DEVICE ClaimedChunk claim_chunk(WorkSharingStorage& storage, const Step& step) {
    // WAR on claimed: all threads read the previous claim, warp 0 overwrites it.
    __syncthreads();
    if (warp_id() == 0) {
        ClaimedChunk own{0, step.chunks};
        u32 lane = lane_id();
        for (u32 looks = 0; looks < MAX_POLLS; looks++) {
            u32 retired = *(volatile u32*)(step.work_sharing + RETIRED_ROWS), row = ~0u;
            for (u32 other = lane; other < step.rows; other += 32) {
                row = *(volatile int*)chunks_left(step, other) > 0 ? other : row;
            }
            u32 open = __ballot_sync(FULL_MASK, row != ~0u);
            if (open != 0) {
                // Helpers prefer different lanes, and so different rows.
                u32 turn = blockIdx.x % 32, turned = open >> turn | (turn == 0 ? 0 : open << (32 - turn));
                u32 leader_lane = ((u32)__ffs((int)turned) - 1 + turn) % 32;
                own.row = __shfl_sync(FULL_MASK, row, (int)leader_lane);
                int left = __shfl_sync(FULL_MASK, lane == 0 ? atomicAdd(chunks_left(step, own.row), -1) : 0, 0);
                if (left > 0) {
                    own.chunk = step.chunks - (u32)left;
                    break;
                }
            } else if (__any_sync(FULL_MASK, retired >= step.rows)) {
                break;
            }
            __nanosleep(20);
        }
        if (lane == 0) {
            // Acquire: without this fence, the block could read older words of the search than those that belong to
            // the chunk.
            __threadfence();
            storage.claimed = own;
        }
    }
    // RAW on claimed: a lane of warp 0 wrote it, all threads read it.
    __syncthreads();
    return storage.claimed;
}
