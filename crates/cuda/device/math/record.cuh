// record.cuh: the packed word of a tile's record.
//
// Computes   the offset of the tile's token, non-finite flags, and a bound of the tile's other logits, in one word
// Twins      src/abi.rs for the record
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

#define OTHERS_BOUND_BITS 0xFFFFFC00u

DEVICE u32 pack_record_bits(u32 offset, u32 nonfinite_flags, float bound) {
    return offset | nonfinite_flags << 8 | ((ordered_bits(bound) + ~OTHERS_BOUND_BITS) & OTHERS_BOUND_BITS);
}

DEVICE u32 unpack_nonfinite_flags(u32 packed) { return packed >> 8 & 3; }

// What no logit of the tile exceeds, the first token's aside.
DEVICE float record_others_bound(const TileRecord& record) {
    return from_ordered_bits(record.packed & OTHERS_BOUND_BITS);
}

// What one of them surely reaches, having been rounded up by less than that. NaN if there are none.
DEVICE float record_others_lower_bound(const TileRecord& record) {
    return from_ordered_bits((record.packed & OTHERS_BOUND_BITS) - ~OTHERS_BOUND_BITS);
}
