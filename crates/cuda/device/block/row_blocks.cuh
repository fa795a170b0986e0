// row_blocks.cuh: the blocks of a cluster that search one row together.
//
// Computes   which tiles of the row each block reads; sums, maxima and lists over all of these blocks
// Never      lets the blocks' branches differ: after each exchange, all of them know the same numbers
// Twins      none: all sums are integer sums, so results do not depend on the number of blocks
// Requires   all threads of all blocks, each block of whole warps; clusters, or a single block per row
//
// A row that a candidate list does not decide is read as a whole, several times. All blocks of the row's cluster then
// run the same code on it: each reads its own tiles, and they exchange what they found through distributed shared
// memory. Work that is too short to share, such as sorting the list, the first block (rank 0) does alone; it sends the
// result to the others. It alone writes the row's outputs.
//
// A step may run each row by one block. Then there is nothing to exchange, and the functions below are those of a
// block.
#pragma once

#include "abi/step.cuh"
#include "platform/sm90.cuh"
#include "block/reduce.cuh"

// Every `tile_stride`-th tile of a row, from `first` on.
struct StridedTiles {
    u32 first;
    u32 tile_stride;
};

// Waits until all threads of the `count` blocks of a cluster, or of a single block, have called it. They then see what
// each wrote before to global memory and to shared memory.
DEVICE void sync_blocks(u32 count) {
    if (count > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

// The most numbers of an exchange, and of one without a cluster's barrier.
#define MAX_EXCHANGED 5
#define MAX_SHARED 4

// The shared memory of a block that may search a row together with others.
struct RowReduceStorage : ReduceStorage {
    // Per warp of this block: its part of each number.
    u64 parts[MAX_EXCHANGED][32];
    static_assert(MAX_SHARED <= MAX_EXCHANGED, "numbers that are shared have parts, too");
    // The numbers that each block of the row sent. Two sets take turns: a block may send the numbers of the next
    // exchange while another one still reads the numbers of the last.
    u64 received[2][MAX_EXCHANGED][MAX_ROW_BLOCKS];
    // The set that the next exchange uses.
    u32 turn;
    // How often the first block has called the other blocks to search (`join`).
    u32 calls;
    // As `received`, the numbers of `share`. Each mbarrier completes a phase once all blocks have sent to one set, or
    // their words (`share_words`).
    u64 numbers[2][MAX_SHARED][MAX_ROW_BLOCKS];
    Mbarrier shared[2];
    Mbarrier words_shared;
};

// The blocks that work on a row, as one of them sees them.
struct RowBlocks {
    RowReduceStorage& storage;
    // This block's rank, and the number of blocks.
    u32 rank;
    u32 count;

    // The blocks of the cluster.
    static DEVICE_MEMBER RowBlocks of(RowReduceStorage& storage) {
        return RowBlocks{storage, cluster_ctarank(), cluster_nctarank()};
    }
    // This block alone, without the others.
    static DEVICE_MEMBER RowBlocks alone(RowReduceStorage& storage) { return RowBlocks{storage, 0, 1}; }

    DEVICE_MEMBER bool is_first() const { return rank == 0; }

    // The tiles that this block reads.
    DEVICE_MEMBER StridedTiles tiles() const { return StridedTiles{rank, count}; }

    DEVICE_MEMBER void sync() const { sync_blocks(count); }

    // Replaces each of the threads' numbers by its sum over all threads of all blocks, modulo 2^64.
    template <u32 N>
    DEVICE_MEMBER void sum(u64 (&x)[N]) const {
        reduce<N>(x);
    }

    // Replaces each of the threads' numbers by the largest one of all threads of all blocks.
    template <u32 N>
    DEVICE_MEMBER void max(u64 (&x)[N]) const {
        reduce<0>(x);
    }

    // Does both at once: sums the first SUMS numbers, and takes the largest of each other one.
    template <u32 SUMS, u32 N>
    DEVICE_MEMBER void reduce(u64 (&x)[N]) const {
        static_assert(N <= MAX_EXCHANGED, "there is space for MAX_EXCHANGED numbers");
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            x[i] = (int)i < (int)SUMS ? warp_sum(x[i]) : warp_max(x[i]);
        }
        // WAR on parts: warps may still read the previous call's parts, lane 0 of each warp overwrites them. RAW on
        // storage.turn: thread 0 wrote it after the last exchange, all threads read it below.
        __syncthreads();
        if (lane_id() == 0) {
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                storage.parts[i][warp_id()] = x[i];
            }
        }
        // RAW on parts: lane 0 of each warp wrote its warp's, all warps read all of them.
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            u64 part = lane_id() < warp_count() ? storage.parts[i][lane_id()] : 0;
            x[i] = (int)i < (int)SUMS ? warp_sum(part) : warp_max(part);
        }
        if (count == 1) {
            return;
        }
        const u32 turn = storage.turn;
        send(x, turn);
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            u64 part = lane_id() < count ? storage.received[turn][i][lane_id()] : 0;
            x[i] = (int)i < (int)SUMS ? warp_sum(part) : warp_max(part);
        }
    }

    // Replaces the numbers by the numbers of the first block's threads, which all have the same ones.
    template <u32 N>
    DEVICE_MEMBER void broadcast(u64 (&x)[N]) const {
        if (count == 1) {
            return;
        }
        // RAW on storage.turn: thread 0 wrote it after the last exchange, all threads read it.
        __syncthreads();
        const u32 turn = storage.turn;
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            if (is_first() && threadIdx.x < count) {
                *map_shared_rank(&storage.received[turn][i][0], threadIdx.x) = x[i];
            }
        }
        end_exchange(turn);
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            x[i] = storage.received[turn][i][0];
        }
    }

    // Sends a warp's numbers, the same in all its lanes, to all blocks. Lane i then has the numbers of block i, and 0
    // where there is no such block. It orders no other memory accesses of the blocks. `nth` counts these exchanges from
    // 0; a barrier lies between two of them (WAR on numbers: the set is used again by the one after the next, in which
    // no block sends before all have sent in the next one).
    template <u32 N>
    DEVICE_MEMBER void share(u64 (&x)[N], u32 nth) const {
        static_assert(N <= MAX_SHARED, "there is space for MAX_SHARED numbers");
        if (count > 1) {
            const u32 set = nth & 1;
            if (threadIdx.x == 0) {
                mbarrier_arrive(&storage.shared[set], N * 8 * count);
            }
            if (threadIdx.x < count) {
#pragma unroll
                for (u32 i = 0; i < N; i++) {
                    st_async_remote(threadIdx.x, &storage.numbers[set][i][rank], x[i], &storage.shared[set]);
                }
            }
            mbarrier_wait_parity(&storage.shared[set], nth >> 1 & 1);
        }
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            x[i] = lane_id() >= count ? 0 : count > 1 ? storage.numbers[nth & 1][i][lane_id()] : x[i];
        }
    }

    // Sends N words to all blocks, `word(i)` the i-th one. The words of block `from` then lie in `to` from N * from on.
    template <u32 N, class Word>
    DEVICE_MEMBER void share_words(u64* to, u32 nth, Word word) const {
        if (count == 1) {
            for (u32 i = threadIdx.x; i < N; i += blockDim.x) {
                to[i] = word(i);
            }
            // RAW on `to`: all threads wrote words, all threads read them.
            __syncthreads();
            return;
        }
        if (threadIdx.x == 0) {
            mbarrier_arrive(&storage.words_shared, N * 8 * count);
        }
#pragma unroll 1
        for (u32 i = threadIdx.x; i < N * count; i += blockDim.x) {
            st_async_remote(i / N, &to[rank * N + i % N], word(i % N), &storage.words_shared);
        }
        mbarrier_wait_parity(&storage.words_shared, nth & 1);
    }

    // Returns the sum of the i-th numbers that the blocks before this one sent in the last exchange, a `reduce`.
    DEVICE_MEMBER u64 sum_before(u32 i) const {
        if (count == 1) {
            return 0;
        }
        // RAW on storage.turn: thread 0 wrote it after the exchange, all threads read it.
        __syncthreads();
        return warp_sum(lane_id() < rank ? storage.received[storage.turn ^ 1][i][lane_id()] : 0);
    }

    // Prepares `storage`, once per kernel and before anything else of it is used. Returns when all blocks have begun,
    // so that their shared memory may be written to. If the block is alone, a barrier must follow.
    static DEVICE_MEMBER void begin(RowReduceStorage& storage) {
        if (threadIdx.x == 0) {
            storage.turn = 0;
            storage.calls = 0;
            if (cluster_nctarank() > 1) {
                mbarrier_init(&storage.shared[0], 1);
                mbarrier_init(&storage.shared[1], 1);
                mbarrier_init(&storage.words_shared, 1);
                fence_mbarrier_init();
            }
        }
        if (cluster_nctarank() > 1) {
            cluster_sync();
        }
    }

    // The first block calls the other blocks to work on the row, for the `nth` time, from 1. The others wait until it
    // does, or until it ends; they return false if it has ended.
    DEVICE_MEMBER bool join(u32 nth) const {
        if (count == 1) {
            return true;
        }
        if (is_first() && threadIdx.x < count) {
            *map_shared_rank(&storage.calls, threadIdx.x) = nth;
        }
        cluster_sync();
        return storage.calls >= nth;
    }

  private:
    // Sends a block's numbers to all blocks, and waits until all have sent theirs.
    template <u32 N>
    DEVICE_MEMBER void send(const u64 (&x)[N], u32 turn) const {
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            if (threadIdx.x < count) {
                *map_shared_rank(&storage.received[turn][i][rank], threadIdx.x) = x[i];
            }
        }
        end_exchange(turn);
    }

    // RAW on received: threads of all blocks wrote it, all threads read it. A set is written again only in the exchange
    // after the next one, so the barrier of the next one separates these reads from that (WAR).
    DEVICE_MEMBER void end_exchange(u32 turn) const {
        cluster_sync();
        if (threadIdx.x == 0) {
            storage.turn = turn ^ 1;
        }
    }
};
