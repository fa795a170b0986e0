// head_probes.cu: finds the clusters that each hidden state probes, and lists the ids of its probed set (H7).
//
// Computes   the first `probes` clusters by score, of equal scores the clusters with the smaller numbers; their ids and
//            the special ones as a list, or for a fast head the clusters as a bitmap; -inf as every logit of the row.
//            `list_probed`: the ids that are in the probed set of any row
// Never      writes rows of padding
// Twins      oracle spec/src/head/clusters.rs | CPU head/src/clustered.rs | why docs/heads.md
// Shapes     cluster_ids [clusters, cluster_capacity]; scores [rows, clusters]; probed [rows, probes]; contenders
//            [rows, most_contenders]; probed_bits [1 + rows, words of a bit for each cluster]; listed_ids [vocab];
//            logits [rows, vocab]
// Grid       x = rows * HEAD_PROBES_BLOCKS; of `list_probed` a warp for each tile of ids
// Traffic    in: the scores, which lie in a cache; out: 4 bytes a logit, and 4 for each id of the probed set, or a bit
//            for each cluster
// Requires   head_logits before, or fast_logits, with centroids as its weights; before `list_probed` head_probes.
//            head_states has cleared listed_count and the bitmap of any row's clusters
//
// An id may be listed twice in `contenders`, if it is special and in a probed cluster. Its logit is then computed
// twice, to the same bits.

#include "block/kth_largest.cuh"
#include "math/kind.cuh"
#include "stage/head.cuh"

// The row of logits without the logits that are to be computed. `part` of `parts` blocks does its share.
DEVICE void clear_row(const HeadStep& args, u32 row, u32 part, u32 parts) {
    float* logits = args.logits + (u64)row * args.step.vocab;
#pragma unroll 4
    for (u32 id = part * blockDim.x + threadIdx.x; id < args.step.vocab; id += parts * blockDim.x) {
        logits[id] = -INF_F32;
    }
}

// The score of a cluster, as clusters are compared by it (N7).
DEVICE float score_of(const float* scores, u32 cluster) { return clean(scores[cluster]); }

// Adds to `probed`, which has `taken` clusters, the first ones whose score is `score`, up to `probes` in all. A warp
// calls it.
DEVICE void add_equal(const HeadStep& args, const float* scores, float score, u32* probed, u32 taken) {
    for (u32 first = 0; first < args.clusters && taken < args.probes; first += 32) {
        const u32 cluster = first + lane_id();
        const bool is_equal = cluster < args.clusters && score_of(scores, cluster) == score;
        const u32 equal = __ballot_sync(FULL_MASK, is_equal);
        const u32 place = taken + (u32)__popc(equal & ((1u << lane_id()) - 1));
        if (is_equal && place < args.probes) {
            probed[place] = cluster;
        }
        taken += (u32)__popc(equal);
    }
}

// Finds the clusters that a row probes; the block calls it. They come in any order.
DEVICE void find_clusters(const HeadStep& args, u32 row, u32* probed) {
    __shared__ KthStorage storage;
    __shared__ u32 taken, equal;
    const float* scores = args.scores + (u64)row * args.clusters;
    if (threadIdx.x == 0) {
        taken = 0;
        equal = 0;
    }
    // Its barriers order this with what follows: WAW on taken and equal, which all threads count.
    const float last =
        kth_largest(storage, args.clusters, args.probes, [&](u32 i) INLINE { return score_of(scores, i); });
#pragma unroll 4
    for (u32 cluster = threadIdx.x; cluster < args.clusters; cluster += blockDim.x) {
        const float score = score_of(scores, cluster);
        if (score > last) {
            probed[atomicAdd(&taken, 1u)] = cluster;
        } else if (score == last) {
            atomicAdd(&equal, 1u);
        }
    }
    // RAW on taken and equal: all threads counted, all read.
    __syncthreads();
    const u32 before = taken;
    // WAR on taken: all threads have read it, some count on.
    __syncthreads();
    if (before + equal > args.probes) {
        if (warp_id() == 0) {
            add_equal(args, scores, last, probed, before);
        }
        return;
    }
#pragma unroll 4
    for (u32 cluster = threadIdx.x; cluster < args.clusters; cluster += blockDim.x) {
        if (score_of(scores, cluster) == last) {
            probed[atomicAdd(&taken, 1u)] = cluster;
        }
    }
}

// Lists the ids of a row's probed clusters and the special ones; the block calls it.
DEVICE void list_ids(const HeadStep& args, u32 row, const u32* probed) {
    u32* ids = args.contenders + (u64)row * args.most_contenders;
    const u32 of_clusters = args.probes * args.cluster_capacity;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < of_clusters; i += blockDim.x) {
        const u32 place = probed[i / args.cluster_capacity] * args.cluster_capacity + i % args.cluster_capacity;
        ids[i] = args.cluster_ids[place];
    }
    for (u32 i = threadIdx.x; i < args.special_count; i += blockDim.x) {
        ids[of_clusters + i] = args.special_ids[i];
    }
}

// Sets the bits of a row's probed clusters; the block calls it.
DEVICE void mark_clusters(const HeadStep& args, u32 row, const u32* probed) {
    u32 *of_row = probed_by_row(args, row), *of_any = probed_by_any(args);
    for (u32 i = threadIdx.x; i < cluster_words(args); i += blockDim.x) {
        of_row[i] = 0;
    }
    // WAW on of_row: all threads cleared it, some set bits in it.
    __syncthreads();
    for (u32 i = threadIdx.x; i < args.probes; i += blockDim.x) {
        const u32 word = probed[i] / 32, bit = 1u << probed[i] % 32;
        atomicOr(of_row + word, bit);
        atomicOr(of_any + word, bit);
    }
}

KERNEL(head_probes, HEAD_PROBES_THREADS, HeadStep, args) {
    __shared__ u32 missing;
    grid_dependency_wait();
    trigger_dependents();
    const u32 row = blockIdx.x / HEAD_PROBES_BLOCKS, part = blockIdx.x % HEAD_PROBES_BLOCKS;
    if (args.step.slots[row] < 0) {
        return;
    }
    if (part > 0) {
        clear_row(args, row, part - 1, HEAD_PROBES_BLOCKS - 1);
        return;
    }
    if (threadIdx.x == 0) {
        missing = 0;
    }
    u32* probed = args.probed + (u64)row * args.probes;
    find_clusters(args, row, probed);
    // RAW on probed: all threads read what some wrote. WAW on missing: thread 0 cleared it, threads that
    // see a cluster with fewer ids add to it.
    __syncthreads();
    if (args.probed_bits == nullptr) {
        list_ids(args, row, probed);
    } else {
        mark_clusters(args, row, probed);
    }
    for (u32 i = threadIdx.x; i < args.probes; i += blockDim.x) {
        const u32* ids = args.cluster_ids + probed[i] * args.cluster_capacity;
        u32 last = args.cluster_capacity;
        while (ids[last - 1] == HEAD_NO_ID) {
            last--;
        }
        if (last < args.cluster_capacity) {
            atomicAdd(&missing, args.cluster_capacity - last);
        }
    }
    // RAW on missing: threads added to it, thread 0 reads.
    __syncthreads();
    if (threadIdx.x == 0) {
        HeadRow& head_row = args.head_rows[row];
        const u32 listed = args.probes * args.cluster_capacity + args.special_count;
        head_row.plan = PLAN_PROBED;
        head_row.contenders = listed;
        atomicAdd(&args.counts[1], (u64)1);
        atomicAdd(&args.counts[2], (u64)(listed - missing));
    }
}

// A warp has a tile of ids.
KERNEL(list_probed, LIST_PROBED_THREADS, HeadStep, args) {
    grid_dependency_wait();
    trigger_dependents();
    const u32 first = (blockIdx.x * (LIST_PROBED_THREADS / 32) + warp_id()) * TILE + lane_id();
    u32 listed[TILE / 32], count = 0;
#pragma unroll
    for (u32 i = 0; i < TILE / 32; i++) {
        const u32 id = first + i * 32;
        listed[i] =
            __ballot_sync(FULL_MASK, id < args.step.vocab && is_probed(probed_by_any(args), args.clusters_of_ids[id]));
        count += (u32)__popc(listed[i]);
    }
    u32 place = 0;
    if (lane_id() == 0) {
        place = atomicAdd(args.listed_count, count);
    }
    place = __shfl_sync(FULL_MASK, place, 0);
#pragma unroll
    for (u32 i = 0; i < TILE / 32; i++) {
        if (listed[i] >> lane_id() & 1) {
            args.listed_ids[place + (u32)__popc(listed[i] & ((1u << lane_id()) - 1))] = first + i * 32;
        }
        place += (u32)__popc(listed[i]);
    }
}
