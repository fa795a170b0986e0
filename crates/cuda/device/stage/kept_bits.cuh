// kept_bits.cuh: a row's kept set as a bitmap, one bit per id; device functions of the blocks that finish the row.
//
// Computes   the bits of a row in `Step::kept_bits`: first zeros, then ones for the tokens of the kept set
// Never      reads a tile whose maximum is below the cut
// Traffic    out: a bit per id; in: the tiles that reach the cut, none if the tokens are on a candidate list
// Requires   the row's cut: candidate_filter.cuh or kept_set.cuh; a barrier between the zeros and the ones
#pragma once

#include "block/candidates.cuh"
#include "block/mass.cuh"

// Returns a row's words of the kept set; null if the step stores none.
DEVICE u32* kept_words(const Step& step, u32 row) {
    return step.kept_bits == nullptr ? nullptr : step.kept_bits + (u64)row * step.tiles * MASK_WORDS;
}

// Clears a row's bits; by all threads of the row's blocks.
DEVICE void clear_kept_bits(const Step& step, u32 row) {
    U32x4* quads = (U32x4*)kept_words(step, row);
    const u32 count = quads == nullptr ? 0 : step.tiles * (MASK_WORDS / 4);
    for (u32 i = cluster_ctarank() * blockDim.x + threadIdx.x; i < count; i += cluster_nctarank() * blockDim.x) {
        quads[i] = U32x4{};
    }
}

// Sets the bit of a token.
DEVICE void set_kept_bit(u32* words, u32 id) { atomicOr(words + id / 32, 1u << (id % 32)); }

// Sets the bits of the tokens of an ordered list that a cut keeps; by all threads of a block.
DEVICE void set_listed_bits(u32* words, const CandidateList& list, const Cut& kept) {
    for (u32 i = threadIdx.x; i < list.count(); i += blockDim.x) {
        if (kept.contains(list.ordered[i])) {
            set_kept_bit(words, key_id(list.ordered[i]));
        }
    }
}

// Sets the bits of the tokens that a cut keeps; by all threads of the row's blocks, each of which reads its part of the
// tiles. Not inlined, so that its registers do not add to the kernel's.
template <class T, bool EDITED>
DEVICE_NOINLINE void set_kept_bits(const Step& step, u32 row, int slot, Cut kept, RowReduceStorage& storage) {
    u32* words = kept_words(step, row);
    const RowBlocks blocks = RowBlocks::of(storage);
    if (kept.first == kept.last) {
        // A forced token is kept even if it is masked.
        if (blocks.is_first() && threadIdx.x == 0) {
            set_kept_bit(words, key_id(kept.first));
        }
        return;
    }
    const EditedRow<T, EDITED> view(step, row, slot);
    visit_tiles<false, 2>(
        view, survey_maxima(step, row), kept.low(),
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
            const u32 lane = lane_id();
            u32 bits = 0;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                bits |= (u32)kept.contains(make_key(z[j], tile * TILE + view.offset(lane, j))) << j;
            }
            bits = tile_words<T>(bits, lane);
            if (lane < MASK_WORDS) {
                words[tile * MASK_WORDS + lane] = bits;
            }
        },
        [](u32, float, bool) INLINE {}, blocks.tiles());
    // WAR on the token counts: slower warps still read logits edited by them, a thread of the first block then counts
    // the row's token.
    blocks.sync();
}
