// lane_drafts.cuh: the drafts of one request of a step, as the lanes of a warp hold them: no barrier, no shared memory.
//
// Computes   the drafts' ids and parents, and whether they are a tree; the drafts on the path to one; which ids are
//            stop ids
// Never      trusts an id or a parent that the device alone has seen
// Twins      oracle spec/src/verify/tree.rs | stage/draft_tree.cuh puts them into shared memory
// Traffic    the ids and parents of the request's drafts; its stop ids
// Requires   whole warps; at most 64 drafts
#pragma once

#include "abi/drafts.cuh"
#include "warp/reduce.cuh"

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

static_assert(MAX_DRAFTS <= 64, "a lane has two drafts");

DEVICE u32 count_bits(u64 bits) { return __popc((u32)bits) + __popc((u32)(bits >> 32)); }

// A request's stop ids. Each lane keeps one of the first 32, so that these are loaded before they are needed.
struct LaneStopIds {
    const u32* ids;
    u32 count;
    u32 own;

    DEVICE_MEMBER explicit LaneStopIds(const DraftRequest& drafts)
        : ids(drafts.stop_ids), count(drafts.stop_count), own(lane_id() < count ? ids[lane_id()] : 0) {}

    // Sets which of a lane's two ids are stop ids; by all lanes.
    DEVICE_MEMBER void find(const int (&searched)[2], bool (&found)[2]) const {
        found[0] = found[1] = false;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            const u32 stop_id = i < 32 ? __shfl_sync(FULL_MASK, own, (int)i) : ids[i];
            found[0] |= stop_id == (u32)searched[0];
            found[1] |= stop_id == (u32)searched[1];
        }
    }
};

// Of the lane l the drafts l and 32 + l. An id or a parent that is no 32-bit number is -2, which is neither an id nor a
// parent, and so are the parents of drafts that the request does not have.
struct LaneDrafts {
    int ids[2];
    int parents[2];
    u32 count;

    DEVICE_MEMBER LaneDrafts(const DraftStep& args, u32 request, const DraftRequest& drafts)
        : count(drafts.draft_count) {
        // Paths lie in a matrix.
        const u64 first = args.flags & DRAFTS_PROPOSED ? (u64)request * args.path_stride : drafts.first_draft;
        const bool ids_64_bit = args.flags & DRAFTS_IDS_I64, parents_64_bit = args.flags & DRAFTS_PARENTS_I64;
        LoadedNumber loaded_ids[2], loaded_parents[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 draft = number(i);
            loaded_ids[i] = LoadedNumber{-2, -1};
            loaded_parents[i] = LoadedNumber{(int)draft - 1, 0};
            if (draft < count) {
                loaded_ids[i].load(args.ids, ids_64_bit, first + draft);
                if (args.parents != nullptr) {
                    loaded_parents[i].load(args.parents, parents_64_bit, first + draft);
                }
            }
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            ids[i] = loaded_ids[i].value(ids_64_bit);
            parents[i] = number(i) < count ? loaded_parents[i].value(parents_64_bit && args.parents != nullptr) : -2;
        }
    }

    // The number of the lane's draft `i`.
    DEVICE_MEMBER static u32 number(u32 i) { return lane_id() + 32 * i; }

    // Whether each parent is one that `may_follow` allows.
    DEVICE_MEMBER bool is_tree(const DraftStep& args) const {
        bool wrong = false;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            wrong |= number(i) < count && !may_follow(args, parents[i], number(i));
        }
        return !__any_sync(FULL_MASK, wrong);
    }

    // Returns a bit for each draft on the path to a draft, with that draft's own. The drafts are a tree, whose parents
    // lie before their children: so the walk ends, and the path is in the order of the bits.
    DEVICE_MEMBER u64 path_to(const DraftStep& args, u32 draft) const {
        if (args.parents == nullptr) {
            return ~0ull >> (63 - draft);
        }
        u64 path = 0;
        for (int at = (int)draft; at >= 0; at = __shfl_sync(FULL_MASK, at < 32 ? parents[0] : parents[1], at % 32)) {
            path |= 1ull << at;
        }
        return path;
    }

    // Returns the row after the first of the drafts that `is_chosen` marks and whose parent has the row `row`, or 0.
    DEVICE_MEMBER u32 child_row(u32 row, const bool (&is_chosen)[2]) const {
        const u32 low = __ballot_sync(FULL_MASK, is_chosen[0] && parents[0] + 1 == (int)row);
        if (low != 0 || count <= 32) {
            return low != 0 ? (u32)__ffs((int)low) : 0;
        }
        const u32 high = __ballot_sync(FULL_MASK, is_chosen[1] && parents[1] + 1 == (int)row);
        return high != 0 ? 32 + (u32)__ffs((int)high) : 0;
    }
};
