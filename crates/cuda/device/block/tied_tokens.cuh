// tied_tokens.cuh: lists the first tokens of a row most of whose tiles begin with tokens of one logit; by a block.
//
// Computes   a list of a number of first tokens, in which equal tokens are taken by their ids, the smallest first
// Never      reads a tile after the last of them that begins with a token of that logit
// Traffic    16 bytes per tile, a few times; the logits of as many tiles as tokens, once, and of a few tiles again
// Requires   all threads of the block, whole warps
//
//     bins of ids: count the tiles' first tokens of that logit and above it; `last` = the end of the bin that reaches k
//     until a bin has one id:
//         list the tiles' first tokens up to `last`
//         finer bins of ids: count all tokens of these tiles up to `last`; `last` = the end of the bin that reaches k
//     gather_others
#pragma once

#include "block/candidates.cuh"

// Returns the first bin at which the tokens counted in bins reach a number, BINS or more if none does; in every thread.
// A barrier must follow before the bins are written to.
DEVICE u32 bin_of_count(CandidateList& list, u32 count) {
    // RAW on the bins: all warps added to them, warp 0 reads them.
    __syncthreads();
    if (warp_id() == 0) {
        store_bin(list.bins, count, list.bin);
    }
    // RAW on bin: one lane wrote it, all threads read it.
    __syncthreads();
    return list.bin;
}

// Returns the least power of two whose BINS-fold is at least `ids`, as its logarithm.
DEVICE u32 bits_above_bins(u32 ids) { return 64 - (u32)leading_zeros((ids - 1) / BINS); }

// Lists the first `count` tokens of a row of which `begin_alike` said that most tiles begin with tokens of the logit
// `list.middle`. Returns false if there are fewer of that logit and above it, or too many tiles begin with tokens above
// it. Not inlined, so that its registers do not add to the registers of other rows' code.
template <class V>
DEVICE_NOINLINE bool list_tied_tokens(CandidateList& list, RowRecords records, V view, u32 count, float first,
                                      float log2e_over_t) {
    const float tied = list.middle;
    // A bin has 2^shift ids, from `from` on; tokens before these, and tokens of higher logits, count in the first bin.
    u32 from = 0, shift = bits_above_bins(records.tiles * TILE);
    Threshold threshold(tied);
    auto add = [&](float z, u32 id) INLINE {
        const u32 bin = z > tied || id < from ? 0 : (id - from) >> shift;
        if (threshold.is_reached(z, id) && bin < BINS) {
            atomicAdd(&list.bins[bin], 1u);
        }
    };
    u32 open = 0;
#pragma unroll 1
    while (true) {
        clear_between_barriers(list);
        records.for_each([&](u32 tile, const TileRecord& record)
                             INLINE { add(record.maximum, tile * TILE + (record.packed & 255)); });
        for_each_other(list, view, open, add);
        const u32 bin = bin_of_count(list, count);
        if (bin >= BINS) {
            return false;
        }
        threshold.last_id = from + ((bin + 1) << shift) - 1;
        list_tile_firsts(list, records, threshold);
        // RAW on the list: all threads listed tokens, all threads read the counts.
        __syncthreads();
        if (list.first_count() > MAX_CANDIDATES) {
            return false;
        }
        if (list.open_count() == 0 || (open != 0 && shift == 0)) {
            break;
        }
        // At first the bins hold the tiles' first tokens alone, so that the end may come before.
        from = open != 0 ? from + (bin << shift) : 0;
        shift = bits_above_bins(threshold.last_id + 1 - from);
        open = list.open_count();
    }
    return gather_others(list, view, threshold, first, log2e_over_t);
}
