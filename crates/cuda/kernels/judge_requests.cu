// judge_requests.cu: judges the drafts of a step's requests by probabilities (S5 to S7), and says which tokens its rows
// emit.
//
// Computes   for each row of a request's walk the token to emit: an accepted draft, the token drawn last, or one that
//            the caller forces. All other rows of the request become padding
// Never      changes a request, its history or its counts: end_drafts does, once the step has emitted the tokens
// Twins      oracle spec/src/verify/by_probabilities.rs | host engine/src/walk.rs | why docs/stages/judge.md
// Shapes     as in JudgeRequests
// Grid       x = requests, or requests * blocks of a cluster; whole warps, up to 512 threads; no dynamic shared memory
// Traffic    that of stage/judge.cuh, for each request
// Requires   begin_drafts before, and rows of probabilities wherever judged_slots has a slot; or a survey that summed
//            the logits, or a survey and find_cut, after which it may be a dependent launch; the next kernel is none
//
// A request without drafts takes an ordinary step, and so does one whose parents are no tree. A draft after which the
// walk stops, a stop id, is emitted from the row before it.

#include "math/sections.cuh"
#include "stage/draft_tree.cuh"
#include "stage/judge.cuh"

// The forced tokens and stop ids of a request's rows.
struct RequestRules {
    const int* forced_tokens;
    const DraftRequest& request;

    DEVICE_MEMBER i64 forced(u32 row) const { return listed_token(forced_tokens[row]).id; }
    DEVICE_MEMBER bool stops(i64 id) const { return is_stop_id(request, (int)id); }
};

// Returns a request's drafts as a tree alone in its launch.
DEVICE JudgeDrafts tree_of(const JudgeRequests& args, const DraftTree& tree, u32 first, u32 batch_row) {
    const Step& step = args.drafts.step;
    JudgeDrafts of{};
    if (args.target == JUDGE_PROBABILITIES) {
        of.chains.target_probs = (const float*)args.target_rows + first * args.target_stride;
    }
    of.chains.target_row_stride = args.target_stride;
    of.chains.draft_probs = args.draft_probs ? args.draft_probs + batch_row * args.draft_stride : nullptr;
    of.chains.draft_row_stride = args.draft_stride;
    of.chains.drafts = tree.ids;
    of.chains.records = args.records + first * args.scratch_stride;
    of.chains.draft_count = tree.count;
    of.chains.vocab = step.vocab;
    of.chains.tiles = step.tiles;
    of.parents = tree.parents;
    of.tile_sums = args.tile_sums + first * args.scratch_stride;
    of.threshold_acc = args.threshold_acc;
    of.threshold_single = args.threshold_single;
    of.rule = args.rule;
    return of;
}

// Returns a request's rows, if they are rows of logits.
DEVICE TargetLogits logits_of(const JudgeRequests& args, u32 first, const Params& params) {
    if (args.target == JUDGE_PROBABILITIES) {
        return TargetLogits{};
    }
    const u64 row_bytes = args.target_stride * (args.target == JUDGE_F32 ? 4 : 2);
    return TargetLogits{(const char*)args.target_rows + first * row_bytes,
                        row_bytes,
                        args.target,
                        params.log2e_over_t,
                        args.drafts.step.logprob_sums + (u64)first * args.drafts.step.tiles,
                        args.drafts.step.records + (u64)first * args.drafts.step.tiles,
                        args.cuts ? args.cuts + first : nullptr};
}

// One block a multiprocessor is enough: for two of them some compilers keep part of the registers in memory.
KERNEL_MIN_BLOCKS(judge_requests, JUDGE_DRAFTS_THREADS, 1, JudgeRequests, args) {
    __shared__ JudgeStorage storage;
    __shared__ DraftTree tree;
    __shared__ JudgeDrafts as_tree;
    const DraftStep& drafts = args.drafts;
    const JudgeBlocks blocks = JudgeBlocks::of_cluster();
    const u32 index = drafts.first_request + blocks.tree_index();
    const DraftRequest request = drafts.requests[index];
    const int slot = drafts.slots[index];
    const u32 first = request.first_row - drafts.first_row;
    load_tree(drafts, index, request, tree);
    // RAW on the sums and on row_slots: the survey and kernels before it wrote them, this kernel reads and writes them.
    // The loads above are of numbers that were there before the survey.
    grid_dependency_wait();
    if (slot < 0) {
        return;
    }
    if (tree.count == 0 || !tree.is_tree) {
        if (blocks.is_first() && threadIdx.x == 0) {
            args.forced[first] = args.caller_forced[first];
        }
        return;
    }
    if (threadIdx.x == 0) {
        as_tree = tree_of(args, tree, first, request.batch_row);
    }
    const Params& params = drafts.slot_params[slot];
    // RAW on as_tree: thread 0 wrote it, all threads read it.
    __syncthreads();
    const RngStream rng{params.seed, drafts.slot_states[slot].position, params.draw};
    const JudgedTree judged_tree{as_tree, blocks, 0, tree.count, rng, storage, logits_of(args, first, params)};
    const Judgement judged = judge_tree(judged_tree, RequestRules{args.caller_forced + first, request});
    if (!blocks.is_first()) {
        return;
    }
    for (u32 row = threadIdx.x; row <= tree.count; row += blockDim.x) {
        drafts.row_slots[first + row] = -1;
    }
    // WAW on row_slots: all threads wrote -1, threads write the rows of the walk.
    __syncthreads();
    for (u32 j = threadIdx.x; j <= judged.accepted; j += blockDim.x) {
        const u32 row = storage.path[j];
        drafts.row_slots[first + row] = (int)(first + row);
        const int by_caller = args.caller_forced[first + row];
        const int decided = j < judged.accepted ? tree.ids[storage.path[j + 1] - 1] : judged.token;
        args.forced[first + row] = by_caller >= 0 ? by_caller : decided;
    }
}
