// pack_kept.cu: the kept sets of a step as lists, or as bitmasks where these are shorter, one set after the other.
//
// Computes   count_kept: how many ids each row has
//            pack_kept: the ids of each row, ascending; of a row with more ids than a bitmask has words its bitmask
// Never      leaves a gap, so that the host copies what it needs and no more
// Twins      host src/pipeline/packed_sets.rs
// Shapes     as in PackKept
// Grid       x = rows; a block takes a row
// Traffic    in: the bits twice, the second time from the cache if it holds all, and in pack_kept the lengths of the
//            rows before; out: the sets, and a word per row
// Requires   count_kept: the step's kernels are complete; pack_kept: count_kept is

#include "abi/kept.cuh"
#include "block/reduce.cuh"

// Calls `visit` with the index and the bits of each of the thread's words. A thread's words are neighbours, and words
// of later threads come after them.
template <class Visit>
DEVICE void for_each_word(const PackKept& args, Visit visit) {
    const U32x4* quads = (const U32x4*)(args.bits + (u64)blockIdx.x * args.stride);
    const u32 count = (args.words + 3) / 4, own = (count + blockDim.x - 1) / blockDim.x;
    const u32 first = threadIdx.x * own, end = first + own < count ? first + own : count;
    for (u32 i = first; i < end; i++) {
        const U32x4 quad = quads[i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            visit(i * 4 + j, quad.word[j]);
        }
    }
}

// Returns how many ids the thread's words hold.
DEVICE u32 count_own_ids(const PackKept& args) {
    u32 count = 0;
    for_each_word(args, [&](u32, u32 bits) INLINE { count += (u32)__popc(bits); });
    return count;
}

KERNEL(count_kept, PACK_KEPT_THREADS, PackKept, args) {
    __shared__ ReduceStorage storage;
    const u64 count = block_sum(storage, count_own_ids(args));
    if (threadIdx.x == 0) {
        args.lengths[blockIdx.x] = (u32)count;
    }
}

KERNEL(pack_kept, PACK_KEPT_THREADS, PackKept, args) {
    __shared__ ReduceStorage storage;
    const u32 row = blockIdx.x, length = args.lengths[row];
    if (length == 0) {
        return;
    }
    u64 before = 0;
    for (u32 i = threadIdx.x; i < row; i += blockDim.x) {
        before += args.lengths[i] < args.words ? args.lengths[i] : args.words;
    }
    u32* to = args.packed + block_sum(storage, before);
    if (length > args.words) {
        const u32* words = args.bits + (u64)row * args.stride;
        for (u32 i = threadIdx.x; i < args.words; i += blockDim.x) {
            to[i] = words[i];
        }
        return;
    }
    const u64 own = block_scan(storage, count_own_ids(args)).before;
    // Bits that change meanwhile write into no other row.
    u32 left = own < length ? length - (u32)own : 0;
    to += own;
    for_each_word(args, [&](u32 index, u32 bits) INLINE {
        for (; bits != 0 && left != 0; bits &= bits - 1, left--) {
            *to++ = index * 32 + (u32)__ffs((int)bits) - 1;
        }
    });
}
