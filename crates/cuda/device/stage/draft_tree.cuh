// draft_tree.cuh: the drafts of one request of a step, as all threads of a block read them.
//
// Computes   the drafts' ids and parents in shared memory, and whether they are a tree
// Requires   all threads of the block; whole warps
#pragma once

#include "stage/lane_drafts.cuh"

// The drafts of one request, in shared memory, as LaneDrafts has them.
struct DraftTree {
    int ids[MAX_DRAFTS];
    int parents[MAX_DRAFTS];
    u32 count;
    // Whether each parent is one that `may_follow` allows.
    u32 is_tree;
};

// Loads the drafts of a request; by all threads of a block.
DEVICE void load_tree(const DraftStep& args, u32 request, const DraftRequest& drafts, DraftTree& tree) {
    if (warp_id() == 0) {
        const LaneDrafts own(args, request, drafts);
        const bool is_tree = own.is_tree(args);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 draft = LaneDrafts::number(i);
            if (draft < own.count) {
                tree.ids[draft] = own.ids[i];
                tree.parents[draft] = own.parents[i];
            }
        }
        if (lane_id() == 0) {
            tree.count = own.count;
            tree.is_tree = is_tree;
        }
    }
    // RAW on the tree: the first warp wrote it, all threads read it.
    __syncthreads();
}

// Whether a token is one of the request's stop ids.
DEVICE bool is_stop_id(const DraftRequest& drafts, int id) {
    for (u32 i = 0; i < drafts.stop_count; i++) {
        if (drafts.stop_ids[i] == (u32)id) {
            return true;
        }
    }
    return false;
}
