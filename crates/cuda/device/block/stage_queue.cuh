// stage_queue.cuh: how one block on a multiprocessor streams rows of weights or codes through shared memory.
//
// Computes   which of a block's stages is next, when it is empty and when it is full; which ids a block has
// Requires   sm_80, or a host; HEAD_COPY_WARPS warps that only copy to stages, in front of warps that only read them;
//            whole warps
//
// Warps that copy run as many stages ahead as shared memory holds, also beyond the end of one set of ids into the next,
// so that memory is never idle while other warps multiply and finish. Two mbarriers a stage tell when it is full and
// when it is empty.
#pragma once

#include "abi/head.cuh"
#include "platform/sm90.cuh"
#include "warp/reduce.cuh"

struct StageMbarriers {
    Mbarrier full[HEAD_MOST_STAGES], empty[HEAD_MOST_STAGES];
};

// The stages as a warp goes through them: all warps go through the same ones. A stage has `stage_quads` quads.
struct StageQueue {
    StageMbarriers& mbarriers;
    U32x4* smem;
    u32 stages, stage_quads = 0;
    u32 stage = 0, parity = 0;

    // All threads of the block call it.
    DEVICE_MEMBER StageQueue(StageMbarriers& mbarriers, U32x4* smem, u32 stages)
        : mbarriers(mbarriers), smem(smem), stages(stages) {
        if (threadIdx.x < stages) {
            mbarrier_init(mbarriers.full + threadIdx.x, HEAD_COPY_WARPS * 32);
            mbarrier_init(mbarriers.empty + threadIdx.x, warp_count() - HEAD_COPY_WARPS);
        }
        // RAW on mbarriers: all threads use what some have initialised.
        __syncthreads();
    }

    DEVICE_MEMBER U32x4* quads() const { return smem + stage * stage_quads; }

    // A copying thread waits until the stage may be written; in the first round the phase before the first one has
    // passed. WAR on the stage: the other warps have read what it held.
    DEVICE_MEMBER void acquire_empty() const { mbarrier_wait_parity(mbarriers.empty + stage, parity ^ 1); }
    // A copying thread has started its copies to the stage, and goes on to the next one. `has_stored`: it has also
    // stored there by itself.
    DEVICE_MEMBER void fill(bool has_stored) {
        if (has_stored) {
            cp_async_wait_all();
            mbarrier_arrive(mbarriers.full + stage);
        } else {
            cp_async_mbarrier_arrive(mbarriers.full + stage);
        }
        advance();
    }

    // Another warp waits until the stage may be read. RAW on the stage: the copies to it are complete.
    DEVICE_MEMBER void acquire_full() const { mbarrier_wait_parity(mbarriers.full + stage, parity); }
    // Such a warp has read the stage, and goes on to the next one.
    DEVICE_MEMBER void release() {
        __syncwarp();
        if (lane_id() == 0) {
            mbarrier_arrive(mbarriers.empty + stage);
        }
        advance();
    }

    DEVICE_MEMBER void advance() {
        stage++;
        if (stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// The ids of a block, at most `most` at a time. Each block has as many sets of them as every other, and all sets are of
// about the same size, so no multiprocessor works longer than the others.
struct IdSets {
    u32 count, ids;

    // `ids` are a multiple of `multiple`, and `most` is one, too.
    DEVICE_MEMBER IdSets(u32 vocab, u32 most, u32 multiple = HEAD_WARP_IDS) {
        count = (vocab + gridDim.x * most - 1) / (gridDim.x * most);
        const u32 sets = count * gridDim.x, share = (vocab + sets - 1) / sets;
        ids = (share + multiple - 1) / multiple * multiple;
    }
    DEVICE_MEMBER u32 first(u32 set) const { return (set * gridDim.x + blockIdx.x) * ids; }
};
