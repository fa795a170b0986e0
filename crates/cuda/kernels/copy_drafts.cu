// copy_drafts.cu: copies the drafts of a batch into columns of a matrix, where the next batch's paths and a
// verification read them.
//
// Computes   to[row][sibling] = drafts[row][sibling], in 32 or 64 bits
// Never      waits for the host
// Twins      why docs/speculation.md
// Shapes     drafts [rows, siblings]; to [rows, siblings], rows stride ids apart
// Grid       x = ceil(rows * siblings / 128); 128 threads
// Traffic    4 bytes read and 4 or 8 written for each draft
// Requires   no other kernel that reads or writes the columns meanwhile; no dependent launch

#include "abi/drafts.cuh"
#include "platform/portability.cuh"

KERNEL(copy_drafts, COPY_DRAFTS_THREADS, DraftCopy, args) {
    const u64 index = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (u64)args.rows * args.siblings) {
        return;
    }
    const u64 place = index / args.siblings * args.stride + index % args.siblings;
    if (args.flags & COPY_IDS_I64) {
        ((long long*)args.to)[place] = args.drafts[index];
    } else {
        ((int*)args.to)[place] = args.drafts[index];
    }
}
