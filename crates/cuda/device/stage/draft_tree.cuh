// draft_tree.cuh: the drafts of one request of a step, as all threads of a block read them.
//
// Computes   the drafts' ids and parents in shared memory, and whether they are a tree
// Never      trusts an id or a parent that the device alone has seen
// Twins      oracle spec/src/verify/tree.rs
// Traffic    the ids and parents of the request's drafts
// Requires   all threads of the block
#pragma once

#include "abi/drafts.cuh"
#include "platform/portability.cuh"

// The drafts of one request, in shared memory. An id or a parent that is no 32-bit number is -2, which is neither an id
// nor a parent.
struct DraftTree {
    int ids[MAX_DRAFTS];
    int parents[MAX_DRAFTS];
    u32 count;
    // Whether each parent is one that `may_follow` allows.
    u32 is_tree;
};

// An id or a parent as it was loaded, so that other loads need not wait for it.
struct LoadedNumber {
    int low, high;

    DEVICE_MEMBER void load(const void* numbers, bool is_64_bit, u64 index) {
        const int* words = (const int*)numbers + (is_64_bit ? 2 * index : index);
        low = words[0];
        high = is_64_bit ? words[1] : 0;
    }
    // Returns the number; -2 if it has more than 32 bits.
    DEVICE_MEMBER int value(bool is_64_bit) const { return is_64_bit && high != low >> 31 ? -2 : low; }
};

DEVICE int draft_number(const void* numbers, bool is_64_bit, u64 index) {
    LoadedNumber number;
    number.load(numbers, is_64_bit, index);
    return number.value(is_64_bit);
}

// Whether a draft may have a parent: the root or a draft before it, and in a block the draft before it.
DEVICE bool may_follow(const DraftStep& args, int parent, u32 draft) {
    return parent >= -1 && parent < (int)draft && (!(args.flags & DRAFTS_BLOCK) || parent == (int)draft - 1);
}

// Loads the drafts of a request; by all threads of a block.
DEVICE void load_tree(const DraftStep& args, u32 request, const DraftRequest& drafts, DraftTree& tree) {
    // In front of a request's drafts each request before has one row that is no draft's.
    const u64 first = drafts.first_row - request;
    if (threadIdx.x == 0) {
        tree.count = drafts.draft_count;
        tree.is_tree = 1;
    }
    // WAW on is_tree: thread 0 wrote its initial value, threads that find a wrong parent clear it.
    __syncthreads();
    for (u32 i = threadIdx.x; i < drafts.draft_count; i += blockDim.x) {
        tree.ids[i] = draft_number(args.ids, args.flags & DRAFTS_IDS_I64, first + i);
        int parent = args.parents == nullptr ? (int)i - 1
                                             : draft_number(args.parents, args.flags & DRAFTS_PARENTS_I64, first + i);
        tree.parents[i] = parent;
        if (!may_follow(args, parent, i)) {
            tree.is_tree = 0;
        }
    }
    // RAW on the tree: each thread loaded some drafts, all threads read all of them.
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
