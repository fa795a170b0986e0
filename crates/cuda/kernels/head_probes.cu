// head_probes.cu: finds the clusters that each hidden state probes, and lists the ids of its probed set (H7).
//
// Computes   the first `probes` clusters by score, of equal scores the clusters with the smaller numbers; their ids and
//            the special ones as a list; -inf as every logit of the row
// Never      writes rows of padding
// Twins      oracle spec/src/head/clusters.rs | CPU head/src/clustered.rs | why docs/heads.md
// Shapes     scores [rows, clusters]; probed [rows, probes]; contenders [rows, most_contenders]; logits [rows, vocab]
// Grid       x = rows * HEAD_PROBES_BLOCKS
// Traffic    in: the scores, which lie in a cache; out: 4 bytes a logit, and 4 for each id of the probed set
// Requires   head_logits before, with centroids as its weights
//
// An id may be listed twice, if it is special and in a probed cluster. Its logit is then computed twice, to the same
// bits.

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
    // RAW on probed: all threads read what some wrote. WAW on missing: thread 0 cleared it, all count in it.
    __syncthreads();
    u32* ids = args.contenders + (u64)row * args.most_contenders;
    const u32 of_clusters = args.probes * args.cluster_capacity;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < of_clusters; i += blockDim.x) {
        const u32 place = probed[i / args.cluster_capacity] * args.cluster_capacity + i % args.cluster_capacity;
        const bool has_id = place < args.step.vocab;
        ids[i] = has_id ? args.cluster_ids[place] : HEAD_NO_ID;
        if (!has_id) {
            atomicAdd(&missing, 1u);
        }
    }
    for (u32 i = threadIdx.x; i < args.special_count; i += blockDim.x) {
        ids[of_clusters + i] = args.special_ids[i];
    }
    // RAW on missing: all threads counted, thread 0 reads.
    __syncthreads();
    if (threadIdx.x == 0) {
        HeadRow& head_row = args.head_rows[row];
        const u32 listed = of_clusters + args.special_count;
        head_row.plan = PLAN_PROBED;
        head_row.contenders = listed;
        atomicAdd(&args.counts[1], (u64)1);
        atomicAdd(&args.counts[2], (u64)(listed - missing));
    }
}
