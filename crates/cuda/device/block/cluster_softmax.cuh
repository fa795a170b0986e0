// cluster_softmax.cuh: softmax that reads each row once; a cluster keeps the row in shared memory until it is written.
//
// Computes   what softmax.cuh says; cluster c takes rows c, c + clusters, c + 2 * clusters and so on
// Never      lets more than one warp per block wait for other blocks, except at the start; never bulk-copies from or to
//            an address that is not a multiple of 16 bytes
// Twins      definition spec/src/outputs.rs | src/operators/softmax.rs | why docs/stages/softmax.md
// Requires   clusters of blocks_per_row blocks; one warp more than the workers that process tiles; dynamic shared
//            memory for the workers' pairs, mbarriers and tile sums; rows >= clusters
//
//     warp 0                                          | each worker warp
//     for each row:                                   | load pairs of tiles into all of its slots
//         wait until the workers have summed tiles    | for each row n:
//         exchange the keys of first tokens           |     sum the tiles of rows n to n + rows_ahead, and of the next
//         exchange masses relative to the row's first |         row those before `ahead`; signal each finished row
//         publish the row's result                    |     wait for the result of row n and write its tiles;
//                                                     |         load a later pair into each slot once it is read
//
// The workers therefore keep summing while warp 0 waits for the other blocks of the cluster.
#pragma once

#include "platform/sm90.cuh"
#include "warp/softmax.cuh"

// Warps load, await and process tiles in pairs: a single tile is too small to pay for one copy and one wait.
#define PAIR_TOKENS (2 * TILE)

// A block's state of the rows in flight, in shared memory; its n-th row uses slot n % MAX_ROWS_IN_FLIGHT.
struct ClusterState {
    // Completes when each worker warp of the block has summed its tiles of the row.
    Mbarrier tiles_summed[MAX_ROWS_IN_FLIGHT];
    // Complete when `keys` or `masses` has a word from each block of the cluster.
    Mbarrier keys_arrived[MAX_ROWS_IN_FLIGHT];
    Mbarrier masses_arrived[MAX_ROWS_IN_FLIGHT];
    // Completes when warp 0 has stored `probabilities`.
    Mbarrier result_ready[MAX_ROWS_IN_FLIGHT];
    // By rank of the block that sent it: the key of its first token, and its mass relative to the row's first token.
    u64 keys[MAX_ROWS_IN_FLIGHT][MAX_CLUSTER_BLOCKS];
    u64 masses[MAX_ROWS_IN_FLIGHT][MAX_CLUSTER_BLOCKS];
    TemperatureScale scales[MAX_ROWS_IN_FLIGHT];
    RowProbabilities probabilities[MAX_ROWS_IN_FLIGHT];
};

// Computes the maxima of two tiles together. Cleans non-finite logits in `z` and sets their bits in `nonfinite_flags`.
DEVICE void reduce_max_of_pair(float (&z)[2][ITEMS_PER_LANE], u32& nonfinite_flags, float (&maxima)[2]) {
    u32 bits[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        bits[half] = (u32)__reduce_max_sync(FULL_MASK, (int)float_bits(max_of_lane(z[half], AllMask())));
        maxima[half] = bits_float(bits[half]);
    }
    // As signed integers, the bits of positive floats have the order of the floats, and exceed the bits of negative
    // ones. NaN has no sign here, so it and +inf exceed all others. As unsigned integers, the bits of these and of
    // negative maxima are at least INF_F32's. The warp then cleans and reduces both tiles again.
    if ((bits[0] > bits[1] ? bits[0] : bits[1]) >= float_bits(INF_F32)) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            int lanes;
            maxima[half] = from_ordered_int(reduce_max(z[half], AllMask(), AllMask(), nonfinite_flags, lanes));
        }
    }
}

// An index into a ring of slots, with the parity of the mbarrier phase that the slot is in. Each wrap flips the parity.
struct RingIndex {
    u32 index;
    u32 phase_parity;

    DEVICE_MEMBER void advance(u32 count) {
        bool last = ++index == count;
        index = last ? 0 : index;
        phase_parity ^= last;
    }
};

// Loads a pair of tiles that may begin and end at any element; `size` elements are left from `from` on. Lane 0 starts a
// bulk copy of the whole 16-byte units; lanes copy the elements before and after them. `to` is misaligned as `from` is.
template <class Element>
DEVICE_NOINLINE void fetch_unaligned(const Element* from, Element* to, u32 size, Mbarrier* barrier) {
    constexpr u32 PER_QUAD = 16 / sizeof(Element);
    u32 lane = lane_id(), ahead = (u32)(-(u64)from % 16) / sizeof(Element);
    size = size < PAIR_TOKENS ? size : PAIR_TOKENS;
    ahead = ahead < size ? ahead : size;
    u32 middle = (size - ahead) / PER_QUAD * PER_QUAD, rest = size - ahead - middle;
    if (lane == 0) {
        mbarrier_arrive(barrier, middle * sizeof(Element));
        if (middle > 0) {
            bulk_copy_async(barrier, to + ahead, from + ahead, middle * sizeof(Element));
        }
    }
    if (lane < ahead) {
        to[lane] = from[lane];
    }
    if (lane < rest) {
        to[size - rest + lane] = from[size - rest + lane];
    }
}

// A warp's view of its block's work. The block divides its tiles of a row over its worker warps: each takes
// neighbouring pairs, at the same offsets in every row. A worker keeps its pairs in a ring of `pairs_in_smem` slots in
// shared memory. Once it has read a pair to write it, it loads into that slot the pair that comes as many slots later.
template <class T, class Out>
struct ClusterWorker {
    typedef typename T::Element Element;
    static constexpr u32 PER_QUAD = 16 / sizeof(Element);
    // One unit more than a pair has: a pair is as far from a multiple of 16 bytes in shared memory as in global memory.
    static constexpr u32 QUADS = PAIR_TOKENS / PER_QUAD + 1;

    const SoftmaxArgs& softmax;
    ClusterState& cluster_state;
    // The warp's ring of pairs, and one mbarrier per slot, whose phase completes when a pair has been loaded.
    U32x4* pair_buffer;
    Mbarrier* pair_barriers;
    // The sums of the block's tiles: `tiles_per_block` for each row in flight.
    TileSum* records;
    // The number of worker warps, and this warp's index among them; without meaning in warp 0, which is no worker.
    u32 workers;
    u32 worker;
    // The block's rank in its cluster.
    u32 rank;
    // The number of clusters, this one's index, and how many rows it takes.
    u32 clusters;
    u32 cluster;
    u32 count;
    // The tiles of the block and of the warp, in every row.
    TileSpan tiles;
    TileSpan own;
    // The end of the warp's tiles that form whole pairs. The vocabulary may end inside the last pair.
    u32 whole_end;

    // The next pair that a warp loads.
    struct Cursor {
        const Element* from;
        // How many of the warp's pairs of the row are still to be loaded, this one included.
        u32 left;
        // Whether all of them are whole and 16-byte aligned.
        u32 is_aligned;
        // The row, counted over the rows of the cluster.
        u32 n;
    };

    // Returns the cursor at the warp's first pair of the cluster's n-th row. Past the last row, `left` is 0.
    DEVICE_MEMBER Cursor start(u32 n) const {
        Cursor cursor{logits(n) + own.from * TILE, (own.to - own.from + 1) / 2, 0, n};
        cursor.left = n < count ? cursor.left : 0;
        cursor.is_aligned = vectorized_end(misalignment(logits(n))) == own.to;
        return cursor;
    }

    DEVICE_MEMBER ClusterWorker(const SoftmaxArgs& softmax, ClusterState& cluster_state, U32x4* smem)
        : softmax(softmax), cluster_state(cluster_state) {
        workers = warp_count() - 1;
        worker = warp_id() - 1;
        pair_buffer = smem + worker * softmax.pairs_in_smem * QUADS;
        records = (TileSum*)(smem + workers * softmax.pairs_in_smem * QUADS);
        pair_barriers =
            (Mbarrier*)(records + MAX_ROWS_IN_FLIGHT * softmax.tiles_per_block) + worker * softmax.pairs_in_smem;
        rank = cluster_ctarank();
        clusters = gridDim.x / softmax.blocks_per_row;
        cluster = blockIdx.x / softmax.blocks_per_row;
        count = (softmax.rows - cluster + clusters - 1) / clusters;
        tiles = TileSpan{0, softmax.tiles}.nth_part(rank, softmax.tiles_per_block);
        own = tiles.nth_part(worker, (softmax.tiles_per_block / 2 + workers - 1) / workers * 2);
        u32 whole_tiles = softmax.vocab / PAIR_TOKENS * 2 < own.to ? softmax.vocab / PAIR_TOKENS * 2 : own.to / 2 * 2;
        whole_end = whole_tiles > own.from ? whole_tiles : own.from;
    }

    DEVICE_MEMBER u32 row(u32 n) const { return cluster + n * clusters; }

    DEVICE_MEMBER const Element* logits(u32 n) const {
        return (const Element*)softmax.logits + row(n) * softmax.stride;
    }

    // Returns how many elements a row starts after a multiple of 16 bytes. A tile's size is such a multiple, so each
    // tile of the row starts as far after one.
    static DEVICE_MEMBER u32 misalignment(const Element* row) { return (u32)(u64)row % 16 / sizeof(Element); }

    // Starts to load the cursor's pair into a slot, and advances the cursor.
    DEVICE_MEMBER void fetch(Cursor& cursor, u32 slot) const {
        if (cursor.left == 0) {
            return;
        }
        U32x4* to = pair_buffer + slot * QUADS;
        if (cursor.is_aligned) {
            if (elect_one()) {
                mbarrier_arrive(pair_barriers + slot, PAIR_TOKENS * sizeof(Element));
                bulk_copy_async(pair_barriers + slot, to, cursor.from, PAIR_TOKENS * sizeof(Element));
            }
        } else {
            u32 end = own.to * TILE < softmax.vocab ? own.to * TILE : softmax.vocab;
            u32 begin = (u32)(cursor.from - logits(cursor.n));
            fetch_unaligned(cursor.from, (Element*)to + misalignment(cursor.from), end - begin, pair_barriers + slot);
        }
        cursor.from += PAIR_TOKENS;
        if (--cursor.left == 0) {
            cursor = start(cursor.n + 1);
        }
    }

    // Returns the end of the warp's tiles that form whole, 16-byte aligned pairs: none in a misaligned row.
    DEVICE_MEMBER u32 vectorized_end(u32 misalignment) const { return misalignment == 0 ? whole_end : own.from; }

    // Returns the pair in a slot.
    DEVICE_MEMBER const Element* pair(const RingIndex& slot) const {
        return (const Element*)(pair_buffer + slot.index * QUADS);
    }

    // How far a warp has summed weights: it has done the rows before the n-th, and of that one its tiles before `tile`.
    struct SumProgress {
        u32 n;
        u32 tile;
        // Of the tiles of this row so far.
        u32 nonfinite_flags;
        // The slot of the next pair, and the row's slot in the block's state.
        RingIndex slot;
        RingIndex row_slot;
        TemperatureScale scale;
        // The temperature of this row, and of the next one.
        float temperature;
        float next;
    };

    DEVICE_MEMBER SumProgress start_sums() const {
        float temperature = temperature_of(softmax, row(0));
        return SumProgress{0,
                           own.from,
                           0,
                           RingIndex{0, 0},
                           RingIndex{0, 0},
                           TemperatureScale(temperature),
                           temperature,
                           next_temperature(0, temperature)};
    }

    // Returns the temperature of row n + 1, or `otherwise` if there is none. It loads while the warp sums row n.
    DEVICE_MEMBER float next_temperature(u32 n, float otherwise) const {
        return n + 1 < count ? temperature_of(softmax, row(n + 1)) : otherwise;
    }

    // Sums the warp's tiles of all rows before the n-th, and of the n-th those before `end`. Signals each finished row.
    DEVICE_MEMBER void sum_rows(SumProgress& at, u32 n, u32 end) const {
        while (at.n < count) {
            sum_tiles(at, at.n < n ? own.to : end);
            if (at.n >= n) {
                return;
            }
            signal_summed(at);
            at.n++;
            at.tile = own.from;
            at.nonfinite_flags = 0;
            at.row_slot.advance(MAX_ROWS_IN_FLIGHT);
            if (at.next != at.temperature) {
                at.temperature = at.next;
                at.scale = TemperatureScale(at.next);
            }
            at.next = next_temperature(at.n, at.temperature);
        }
    }

    // Sums the warp's tiles of the current row up to `end`, which begins a pair or is the end of the warp's tiles.
    DEVICE_MEMBER void sum_tiles(SumProgress& at, u32 end) const {
        u32 misalignment = this->misalignment(logits(at.n)), vectorized_until = vectorized_end(misalignment),
            tile = at.tile;
        vectorized_until = vectorized_until < end ? vectorized_until : end;
        TileSum* to = records + at.row_slot.index * softmax.tiles_per_block + (tile - tiles.from);
        auto store_sum = [&](const SplitSum& sum, float maximum) INLINE {
            if (lane_id() == 0) {
                *to = TileSum{sum.total(), maximum, 0};
            }
            to++;
        };
#pragma unroll 1
        for (; tile < vectorized_until; tile += 2) {
            mbarrier_wait_parity(pair_barriers + at.slot.index, at.slot.phase_parity);
            float z[2][ITEMS_PER_LANE];
            load_vectorized<T>(pair(at.slot), lane_id(), z[0]);
            load_vectorized<T>(pair(at.slot) + TILE, lane_id(), z[1]);
            float maxima[2];
            reduce_max_of_pair(z, at.nonfinite_flags, maxima);
            SplitSum sums[2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                sums[half] = sum_weights(z[half], maxima[half], at.scale.log2e_over_t);
            }
            store_sum(sums[0], maxima[0]);
            store_sum(sums[1], maxima[1]);
            at.slot.advance(softmax.pairs_in_smem);
        }
#pragma unroll 1
        for (; tile < end; tile++) {
            bool second = (tile - own.from) % 2 != 0;
            if (!second) {
                mbarrier_wait_parity(pair_barriers + at.slot.index, at.slot.phase_parity);
                // RAW on the pair: lanes of this warp copied the elements at its ends, all lanes read them.
                __syncwarp();
            }
            float z[ITEMS_PER_LANE];
            load_scattered<T>(pair(at.slot) + misalignment + second * TILE, tile, softmax.vocab, z);
            int lanes;
            float maximum = from_ordered_int(reduce_max(z, AllMask(), AllMask(), at.nonfinite_flags, lanes));
            store_sum(sum_weights(z, maximum, at.scale.log2e_over_t), maximum);
            if (second || tile + 1 == own.to) {
                at.slot.advance(softmax.pairs_in_smem);
            }
        }
        at.tile = tile;
    }

    // Signals that the warp has summed its tiles of a row.
    DEVICE_MEMBER void signal_summed(const SumProgress& at) const {
        u32 nonfinite_flags = __reduce_or_sync(FULL_MASK, at.nonfinite_flags), row_slot = at.row_slot.index;
        if (lane_id() == 0) {
            // The record of the warp's first tile takes the non-finite flags of all of its tiles.
            if (nonfinite_flags != 0) {
                records[row_slot * softmax.tiles_per_block + (own.from - tiles.from)].reserved = nonfinite_flags;
            }
            if (worker == 0) {
                cluster_state.scales[row_slot] = at.scale;
            }
            mbarrier_arrive(&cluster_state.tiles_summed[row_slot]);
        }
    }

    // Waits for the result of the n-th row and writes the warp's tiles. Loads a later pair into each slot once read.
    DEVICE_MEMBER void write_row(u32 n, RingIndex& slot, const RingIndex& row_slot, Cursor& next) const {
        RowOutput<T, Out> row_output(softmax, row(n));
        u32 misalignment = this->misalignment(logits(n));
        mbarrier_wait_parity(&cluster_state.result_ready[row_slot.index], row_slot.phase_parity);
        const RowProbabilities probabilities = cluster_state.probabilities[row_slot.index];
        bool has_nonfinite = own.from < own.to &&
                             records[row_slot.index * softmax.tiles_per_block + own.from - tiles.from].reserved != 0;
        // The loop below takes almost all tiles of almost all rows; the loop after it takes the rest.
        u32 vectorized_until = row_output.vectorized && !has_nonfinite && !probabilities.is_one_hot_or_empty()
                                   ? vectorized_end(misalignment)
                                   : own.from;
        u32 tile = own.from;
        Out* to = row_output.row + tile * TILE;
#pragma unroll 1
        for (; tile < vectorized_until; tile += 2) {
            float z[2][ITEMS_PER_LANE];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                load_vectorized_as<T, LaneLayout<T, Out>>(pair(slot) + half * TILE, lane_id(), z[half]);
            }
            // WAR on the slot: all lanes read their logits of the pair, the next copy overwrites them.
            __syncwarp();
            fetch(next, slot.index);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                store_probabilities<T>(to + half * TILE, lane_id(), probabilities, z[half]);
            }
            to += PAIR_TOKENS;
            slot.advance(softmax.pairs_in_smem);
        }
#pragma unroll 1
        for (; tile < own.to; tile++) {
            bool second = (tile - own.from) % 2 != 0, last = second || tile + 1 == own.to;
            float z[ITEMS_PER_LANE];
            load_scattered<T>(pair(slot) + misalignment + second * TILE, tile, softmax.vocab, z);
            if (last) {
                // WAR on the slot: all lanes read their logits of both tiles, the next copy overwrites them.
                __syncwarp();
                fetch(next, slot.index);
            }
            if (has_nonfinite) {
                clean_items(z, EmptyMask());
            }
            row_output.write(probabilities, tile, false, z);
            if (last) {
                slot.advance(softmax.pairs_in_smem);
            }
        }
    }

    // Combines a row over the blocks of the cluster, and publishes the result to the block's workers; run by warp 0.
    // The blocks exchange the keys of their first tokens, then their masses relative to the row's first token.
    DEVICE_MEMBER void exchange_with_cluster(u32 n, const RingIndex& row_slot) const {
        u32 lane = lane_id(), size = tiles.to - tiles.from, blocks = softmax.blocks_per_row;
        mbarrier_wait_parity(&cluster_state.tiles_summed[row_slot.index], row_slot.phase_parity);
        CachedTileSums<4> tile_sums(records + row_slot.index * softmax.tiles_per_block, size, lane, 32);
        TemperatureScale scale = cluster_state.scales[row_slot.index];
        u32 nonfinite_flags = 0;
        u64 key = tile_sums.key(tiles.from, nonfinite_flags);
        key = warp_max(key) | __reduce_or_sync(FULL_MASK, nonfinite_flags);
        key = all_gather(key, cluster_state.keys[row_slot.index], &cluster_state.keys_arrived[row_slot.index],
                         row_slot.phase_parity);
        key = lane < blocks ? key : 0;
        nonfinite_flags = __reduce_or_sync(FULL_MASK, (u32)key & 0xFFFF);
        RowMax row_max = unpack_row_max(warp_max(key), nonfinite_flags);
        u64 mass = all_gather(warp_sum(tile_sums.mass(row_max, scale)), cluster_state.masses[row_slot.index],
                              &cluster_state.masses_arrived[row_slot.index], row_slot.phase_parity);
        mass = warp_sum(lane < blocks ? mass : 0);
        if (lane == 0) {
            cluster_state.probabilities[row_slot.index].set(row_max, scale, mass);
            mbarrier_arrive(&cluster_state.result_ready[row_slot.index]);
            if (softmax.statuses && rank == 0) {
                softmax.statuses[row(n)] = row_max.status();
            }
        }
    }

  private:
    // Sends `word` to all blocks of the cluster. Lane i returns the word of block i; callers ignore further lanes.
    DEVICE_MEMBER u64 all_gather(u64 word, u64* words, Mbarrier* all_arrived, u32 phase_parity) const {
        u32 lane = lane_id(), blocks = softmax.blocks_per_row;
        if (blocks == 1) {
            return word;
        }
        if (lane == 0) {
            mbarrier_arrive(all_arrived, blocks * sizeof(u64));
        }
        if (lane < blocks) {
            st_async_remote(lane, words + rank, word, all_arrived);
        }
        mbarrier_wait_parity(all_arrived, phase_parity);
        return words[lane % MAX_CLUSTER_BLOCKS];
    }
};

// The body of a kernel: the softmax of all rows, as the head of this file outlines it.
template <class T, class Out>
DEVICE void softmax_cluster(const SoftmaxArgs& softmax) {
    static_assert(sizeof(ClusterState) <= CLUSTER_STATIC_SMEM_BYTES, "the host leaves space for it");
    __shared__ ClusterState cluster_state;
    DYNAMIC_SMEM(smem);
    ClusterWorker<T, Out> work(softmax, cluster_state, smem);
    u32 count = work.count;
    if (warp_id() != 0 && lane_id() < softmax.pairs_in_smem) {
        mbarrier_init(work.pair_barriers + lane_id(), 1);
    }
    if (threadIdx.x < MAX_ROWS_IN_FLIGHT) {
        mbarrier_init(&cluster_state.tiles_summed[threadIdx.x], work.workers);
        mbarrier_init(&cluster_state.keys_arrived[threadIdx.x], 1);
        mbarrier_init(&cluster_state.masses_arrived[threadIdx.x], 1);
        mbarrier_init(&cluster_state.result_ready[threadIdx.x], 1);
    }
    fence_mbarrier_init();
    // RAW on the mbarriers: threads of this block initialised them, all warps and other blocks of the cluster use them.
    cluster_sync();
    RingIndex row_slot{0, 0};
    if (warp_id() == 0) {
        // Only this warp waits for other blocks.
        for (u32 n = 0; n < count; n++) {
            work.exchange_with_cluster(n, row_slot);
            row_slot.advance(MAX_ROWS_IN_FLIGHT);
        }
        return;
    }
    auto next_pair = work.start(0);
    for (u32 slot = 0; slot < softmax.pairs_in_smem; slot++) {
        work.fetch(next_pair, slot);
    }
    // When a warp writes a row, it has summed the next `rows_ahead` rows as well, and of the row after those the tiles
    // before `ahead`. Row slots limit `rows_ahead`: one is being written, and one is partly summed.
    u32 pairs = (work.own.to - work.own.from + 1) / 2, rows_ahead = MAX_ROWS_IN_FLIGHT - 2, ahead = work.own.from;
    if (softmax.pairs_ahead < rows_ahead * pairs) {
        rows_ahead = softmax.pairs_ahead / pairs;
        ahead += 2 * (softmax.pairs_ahead % pairs);
    }
    auto progress = work.start_sums();
    RingIndex slot{0, 0};
    for (u32 n = 0; n < count; n++) {
        work.sum_rows(progress, n + 1 + rows_ahead, ahead);
        work.write_row(n, slot, row_slot, next_pair);
        row_slot.advance(MAX_ROWS_IN_FLIGHT);
    }
}
