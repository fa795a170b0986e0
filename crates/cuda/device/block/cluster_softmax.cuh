// cluster_softmax.cuh: rows of probabilities by one read: a row lies in the shared memory of a cluster until it is known and written.
//
// Computes   what softmax.cuh says, for every so many-th row a cluster
// Never      waits for another block in more than one warp; never copies from or to what does not lie on 16 bytes
// Twins      definition spec/src/outputs.rs | src/softmax.rs | why docs/stages/softmax.md
// Requires   clusters of as many blocks as a row has; a warp more than work at tiles, and shared memory for theirs; rows >= clusters
#pragma once

#include "platform/sm90.cuh"
#include "warp/softmax.cuh"

#define MAX_ROWS_IN_FLIGHT 4
#define MAX_CLUSTER_BLOCKS 16
#define MAX_WORKER_WARPS 19
// A tile alone is too small to be fetched, awaited and gone on from: two neighbours are.
#define PAIR_TOKENS (2 * TILE)

// What a block knows of the rows that are under way; that of its n-th row lies in place n % MAX_ROWS_IN_FLIGHT.
struct ClusterState {
    // The block's tiles are weighed; the blocks of the cluster have told of their first tokens, and of their masses; all is known.
    Mbarrier tiles_summed[MAX_ROWS_IN_FLIGHT];
    Mbarrier keys_arrived[MAX_ROWS_IN_FLIGHT];
    Mbarrier masses_arrived[MAX_ROWS_IN_FLIGHT];
    Mbarrier result_ready[MAX_ROWS_IN_FLIGHT];
    u64 keys[MAX_ROWS_IN_FLIGHT][MAX_CLUSTER_BLOCKS];
    u64 masses[MAX_ROWS_IN_FLIGHT][MAX_CLUSTER_BLOCKS];
    TemperatureScale scales[MAX_ROWS_IN_FLIGHT];
    RowProbabilities probabilities[MAX_ROWS_IN_FLIGHT];
};

// The maxima of two tiles' logits, side by side; odd values are cleaned.
DEVICE void reduce_max_of_pair(float (&z)[2][ITEMS_PER_LANE], u32& nonfinite_flags, float (&maxima)[2]) {
    u32 bits[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        bits[half] = (u32)__reduce_max_sync(FULL_MASK, (int)float_bits(max_of_lane(z[half], AllMask())));
        maxima[half] = bits_float(bits[half]);
    }
    // Bits of positive floats compare as they do, above all with a sign; infinities and NaN, which has none here, are above them.
    if ((bits[0] > bits[1] ? bits[0] : bits[1]) >= float_bits(INF_F32)) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            int lanes;
            maxima[half] = from_ordered_int(reduce_max(z[half], AllMask(), AllMask(), nonfinite_flags, lanes));
        }
    }
}

// Goes round places that are used again and again, and knows which phase of theirs it is in.
struct RingIndex {
    u32 index;
    u32 phase_parity;

    DEVICE_MEMBER void advance(u32 count) {
        bool last = ++index == count;
        index = last ? 0 : index;
        phase_parity ^= last;
    }
};

// Fetches a pair that may begin anywhere, and end.
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

// A block at work. Its tiles of a row are dealt out to its warps in pairs, neighbours to each; a warp has the same of every row. Where
// they come to lie on chip goes round: a pair that is written makes room for the one that is that many pairs later.
template <class T, class Out>
struct ClusterWorker {
    typedef typename T::Element Element;
    static constexpr u32 PER_QUAD = 16 / sizeof(Element);
    // A pair lies on chip as far from a multiple of 16 bytes as it does in memory.
    static constexpr u32 QUADS = PAIR_TOKENS / PER_QUAD + 1;

    const SoftmaxArgs& softmax;
    ClusterState& cluster_state;
    // The warp's pairs, and whether they are there; the block's records of the rows under way.
    U32x4* pair_buffer;
    Mbarrier* pair_barriers;
    TileSum* records;
    // How many warps work at tiles, and which of them this one is; the first warp of the block is none.
    u32 workers;
    u32 worker;
    u32 rank;
    // Of all clusters, and this one; how many rows it has.
    u32 clusters;
    u32 cluster;
    u32 count;
    // Of every row, the block's tiles and the warp's.
    TileSpan tiles;
    TileSpan own;
    // Up to which of the warp's tiles they are pairs that are whole.
    u32 whole_end;

    // A pair to be fetched.
    struct Cursor {
        const Element* from;
        // How many of the warp's pairs of a row are to come, this one with them; whether all are whole and lie on 16 bytes.
        u32 left;
        u32 is_aligned;
        u32 n;
    };

    // At the warp's first pair of a row; nowhere if there is none.
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

    // How many elements after a multiple of 16 bytes the tiles of a row begin.
    static DEVICE_MEMBER u32 misalignment(const Element* row) { return (u32)(u64)row % 16 / sizeof(Element); }

    // Begins to fetch the pair of the cursor, and moves that on: whole quads by one copy, what is left at the ends by lanes.
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

    // A lane's share of a tile on chip that may lie anywhere, -inf beyond the vocabulary.
    DEVICE_MEMBER void load_scalar(const Element* at, u32 tile, float (&z)[ITEMS_PER_LANE]) const {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            u32 offset = j * 32 + lane_id();
            z[j] = tile * TILE + offset < softmax.vocab ? T::convert(at[offset]) : -INF_F32;
        }
    }

    // Up to which of the warp's tiles of a row they are pairs that are whole and lie on 16 bytes.
    DEVICE_MEMBER u32 vectorized_end(u32 misalignment) const { return misalignment == 0 ? whole_end : own.from; }

    // The pair that lies in a place.
    DEVICE_MEMBER const Element* pair(const RingIndex& slot) const {
        return (const Element*)(pair_buffer + slot.index * QUADS);
    }

    // Where a warp is with weighing: at a tile of its n-th row, which lies in a place.
    struct SumProgress {
        u32 n;
        u32 tile;
        u32 nonfinite_flags;
        RingIndex slot;
        RingIndex row_slot;
        TemperatureScale scale;
        // That of the row, and of the next one.
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

    // It comes while the row before is worked on.
    DEVICE_MEMBER float next_temperature(u32 n, float otherwise) const {
        return n + 1 < count ? temperature_of(softmax, row(n + 1)) : otherwise;
    }

    // Weighs the warp's tiles of rows before the n-th, and those of that before `end`.
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

    // Weighs the warp's tiles of a row up to one that begins a pair, or all.
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
                // Without it a lane would miss logits that others copied.
                __syncwarp();
            }
            float z[ITEMS_PER_LANE];
            load_scalar(pair(at.slot) + misalignment + second * TILE, tile, z);
            int lanes;
            float maximum = from_ordered_int(reduce_max(z, AllMask(), AllMask(), at.nonfinite_flags, lanes));
            store_sum(sum_weights(z, maximum, at.scale.log2e_over_t), maximum);
            if (second || tile + 1 == own.to) {
                at.slot.advance(softmax.pairs_in_smem);
            }
        }
        at.tile = tile;
    }

    // The warp's tiles of a row are weighed.
    DEVICE_MEMBER void signal_summed(const SumProgress& at) const {
        u32 nonfinite_flags = __reduce_or_sync(FULL_MASK, at.nonfinite_flags), row_slot = at.row_slot.index;
        if (lane_id() == 0) {
            // The odd values of all of the warp's tiles stand in the record of the first.
            if (nonfinite_flags != 0) {
                records[row_slot * softmax.tiles_per_block + (own.from - tiles.from)].reserved = nonfinite_flags;
            }
            if (worker == 0) {
                cluster_state.scales[row_slot] = at.scale;
            }
            mbarrier_arrive(&cluster_state.tiles_summed[row_slot]);
        }
    }

    // Writes the warp's tiles of a row, once that is known, and fetches others in their stead.
    DEVICE_MEMBER void write_row(u32 n, RingIndex& slot, const RingIndex& row_slot, Cursor& next) const {
        RowOutput<T, Out> row_output(softmax, row(n));
        u32 misalignment = this->misalignment(logits(n));
        mbarrier_wait_parity(&cluster_state.result_ready[row_slot.index], row_slot.phase_parity);
        const RowProbabilities probabilities = cluster_state.probabilities[row_slot.index];
        bool nonfinite_flags = own.from < own.to &&
                               records[row_slot.index * softmax.tiles_per_block + own.from - tiles.from].reserved != 0;
        // Almost all tiles of almost all rows.
        u32 vectorized_until = row_output.vectorized && !nonfinite_flags && !probabilities.is_one_hot_or_empty()
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
            // Without it a copy would overwrite what a lane has not read yet.
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
            load_scalar(pair(slot) + misalignment + second * TILE, tile, z);
            if (last) {
                // As above.
                __syncwarp();
                fetch(next, slot.index);
            }
            if (nonfinite_flags) {
                clean_items(z, EmptyMask());
            }
            row_output.write(probabilities, tile, false, z);
            if (last) {
                slot.advance(softmax.pairs_in_smem);
            }
        }
    }

    // Tells the other blocks of a row what this one has, and hears of them: first of the first token of each, then of its mass relative
    // to the first of all.
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
    // Each block tells all blocks a word; lanes get the word of the block of their number, those beyond any.
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

template <class T, class Out>
DEVICE void softmax_cluster(const SoftmaxArgs& softmax) {
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
    // Without it a warp, or another block, would use flights that are not made yet.
    cluster_sync();
    RingIndex row_slot{0, 0};
    if (warp_id() == 0) {
        // One warp hears of other blocks, so that no other waits for anybody.
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
    // A warp has weighed so many rows besides the one that it writes, and of the next one the tiles before `ahead`.
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
