// judge_drafts.cu: judges trees of drafts by probabilities: by rejection (S5), as a block (S6), by thresholds (S7).
//
// Computes   for each tree the rows that are walked, the accepted drafts, and one more token, drawn from the residual
//            of the last row
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

// One block a multiprocessor is enough: for two of them some compilers keep part of the registers in memory.
KERNEL_MIN_BLOCKS(judge_drafts, JUDGE_DRAFTS_THREADS, 1, JudgeDrafts, args) {
    __shared__ JudgeStorage storage;
    // The preceding kernel may belong to another program and write what this one reads.
    grid_dependency_wait();
    const JudgeBlocks blocks = JudgeBlocks::of_cluster();
    const u32 tree_index = blocks.tree_index();
    JudgedTree tree{args,    blocks, tree_index, args.chains.draft_count, chain_stream(args.chains, tree_index),
                    storage, {}};
    u32 status = 0;
    if (!is_tree(tree, tree.drafts)) {
        tree.drafts = 0;
        status = STATUS_NO_TREE;
    }
    const Judgement judged = judge_tree(tree, NoWalkRules());
    if (blocks.is_first()) {
        write_judgement(args.chains, tree_index, judged.accepted, judged.token, judged.status | status,
                        [&](u32 j) INLINE { return storage.path[j]; });
    }
}
