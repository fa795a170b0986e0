// judge_drafts.cu: judges trees of drafts by probabilities: by rejection (S5), as a block (S6), by thresholds (S7).
//
// Computes   for each tree the rows that are walked, the accepted drafts, and one more token, drawn from what is left of the last
//            row
// Never      writes a row
// Twins      oracle spec/src/verify/by_probabilities.rs | CPU cpu/src/verify.rs | why docs/stages/judge.md
// Shapes     as in JudgeDrafts; records [trees, tiles]; tile_sums [trees, 2, tiles]
// Grid       x = trees, or trees * blocks of a cluster; whole warps, up to 512 threads; no dynamic shared memory
// Traffic    that of stage/judge.cuh, for each tree
// Requires   what stage/judge.cuh requires
//
//     if the parents are no tree, or no chain under S6: there are no drafts
//     judge the tree: stage/judge.cuh
//     write the drafts on the path, the token, the rows of the path, their number, the status

#include "stage/judge.cuh"

// Writes the judgement of a tree.
DEVICE void write_judgement(const JudgedTree& tree, u32 accepted, int token, u32 status) {
    const Chains& chains = tree.chains();
    const int last = token < 0 && chains.flags & CHAIN_ZERO_FOR_NONE ? 0 : token;
    const u32* path = tree.storage.path;
#pragma unroll 1
    for (u32 j = threadIdx.x; j <= chains.draft_count; j += blockDim.x) {
        i64 id = j < accepted ? tree.id(path[j + 1] - 1) : j == accepted ? last : NO_TOKEN;
        u64 offset = tree.tree_index * chains.tokens_stride + j;
        if (chains.flags & CHAIN_TOKENS_I64) {
            ((i64*)chains.tokens)[offset] = id;
        } else {
            ((int*)chains.tokens)[offset] = (int)id;
        }
        if (tree.args.rows) {
            tree.args.rows[tree.tree_index * tree.args.rows_stride + j] = j <= accepted ? (int)path[j] : -1;
        }
    }
    if (threadIdx.x == 0) {
        if (chains.emitted) {
            chains.emitted[tree.tree_index] =
                chains.flags & CHAIN_ADD_COUNTS ? chains.emitted[tree.tree_index] + accepted : accepted;
        }
        if (chains.statuses) {
            chains.statuses[tree.tree_index] = status;
        }
    }
}

// One block a multiprocessor is enough: for two of them some compilers keep part of the registers in memory.
KERNEL_MIN_BLOCKS(judge_drafts, JUDGE_DRAFTS_THREADS, 1, JudgeDrafts, args) {
    __shared__ JudgeStorage storage;
    // The preceding kernel may belong to another program and write what this one reads.
    grid_dependency_wait();
    const JudgeBlocks blocks = JudgeBlocks::of_cluster();
    const u32 tree_index = blocks.tree_index();
    JudgedTree tree{args, blocks, tree_index, args.chains.draft_count, chain_stream(args.chains, tree_index), storage};
    u32 status = 0;
    if (!is_tree(tree, tree.drafts)) {
        tree.drafts = 0;
        status = STATUS_NO_TREE;
    }
    const Judgement judged = judge_tree(tree, NoWalkRules());
    if (blocks.is_first()) {
        write_judgement(tree, judged.accepted, judged.token, judged.status | status);
    }
}
