// parents_of_links.cu: turns trees of drafts that are held as links between rows into the parents that other kernels
// read.
//
// Computes   for each draft its parent: the row that its eldest sibling is the first child of
// Never      trusts a link; writes a parent that `may_follow` allows where the links are no tree
// Twins      host engine/src/verify.rs (`Drafts::parents_of`) | why docs/stages/coupled.md
// Shapes     first_child, next_sibling [rows]; requests [requests]; parents [drafts]
// Grid       x = requests; a thread for each row that a request may have
// Traffic    in: 8 or 16 bytes a row; out: 4 bytes a draft
// Requires   requests that the host has written; links that the kernels before have written
//
//     each row follows its two links: it marks its first child, and its next sibling
//     the links are a tree if each leads to a row after its own, one to each draft's row, and the root has no sibling
//     each draft's row goes back to its eldest sibling, whose parent is its own

#include "stage/lane_drafts.cuh"

// The links to a request's rows, in shared memory.
struct LinkedRows {
    // The row whose first child a row is, and the one whose next sibling; -1 if no link says so.
    int parents[MAX_DRAFTS + 1];
    int elders[MAX_DRAFTS + 1];
    // How many links lead to a row.
    u32 links[MAX_DRAFTS + 1];
    u32 is_wrong;
};

// Follows a link from a row, if there is one, and notes in `sources` where it comes from.
DEVICE void follow_link(LinkedRows& tree, int (&sources)[MAX_DRAFTS + 1], int to, u32 from, u32 rows) {
    if (to == -1) {
        return;
    }
    if (to <= (int)from || to >= (int)rows) {
        tree.is_wrong = 1;
        return;
    }
    sources[to] = (int)from;
    atomicAdd(&tree.links[to], 1u);
}

KERNEL(parents_of_links, PARENTS_OF_LINKS_THREADS, DraftLinks, args) {
    static_assert(PARENTS_OF_LINKS_THREADS > MAX_DRAFTS, "a thread has a row");
    __shared__ LinkedRows tree;
    const DraftRequest request = args.requests[blockIdx.x];
    const u32 row = threadIdx.x, rows = request.draft_count + 1;
    if (row < rows) {
        tree.parents[row] = tree.elders[row] = -1;
        tree.links[row] = 0;
    }
    if (row == 0) {
        tree.is_wrong = 0;
    }
    // WAW on the tree: threads wrote its initial values, threads note links to any row.
    __syncthreads();
    if (row < rows) {
        const u64 at = (u64)request.batch_row + row;
        const int child = draft_number(args.first_child, args.flags & LINKS_FIRST_CHILD_I64, at),
                  sibling = draft_number(args.next_sibling, args.flags & LINKS_NEXT_SIBLING_I64, at);
        follow_link(tree, tree.parents, child, row, rows);
        follow_link(tree, tree.elders, row == 0 && sibling != -1 ? 0 : sibling, row, rows);
    }
    // RAW on the links: all threads counted those to any row, each reads that to its own.
    __syncthreads();
    const bool is_draft = row > 0 && row < rows;
    if (is_draft && tree.links[row] != 1) {
        tree.is_wrong = 1;
    }
    // RAW on is_wrong: threads set it, all threads read it.
    __syncthreads();
    if (is_draft) {
        // Links lead to rows after their own, so this ends.
        int eldest = (int)row;
        while (!tree.is_wrong && tree.elders[eldest] >= 0) {
            eldest = tree.elders[eldest];
        }
        args.parents[request.first_draft + row - 1] = tree.is_wrong ? -2 : tree.parents[eldest] - 1;
    }
}
