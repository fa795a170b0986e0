// record.cuh: the packed word of a tile's record.
//
// Computes   one word from the offset of the tile's token, status bits, and a bound of the tile's other values
// Twins      src/abi/step.rs for the record
#pragma once

#include "abi/step.cuh"
#include "math/num.cuh"

#define OTHERS_BOUND_BITS 0xFFFFFC00u

static_assert(TILE <= 1 << 8 && (STATUS_NAN | STATUS_INF) < 1 << 2,
              "the offset and two status bits lie below the bound");

DEVICE u32 pack_record_bits(u32 offset, u32 nonfinite_flags, float bound) {
    return offset | nonfinite_flags << 8 | ((ordered_bits(bound) + ~OTHERS_BOUND_BITS) & OTHERS_BOUND_BITS);
}

DEVICE u32 unpack_nonfinite_flags(u32 packed) { return packed >> 8 & 3; }

// An upper bound of the tile's values, that of its first token aside.
DEVICE float record_others_bound(const TileRecord& record) {
    return from_ordered_bits(record.packed & OTHERS_BOUND_BITS);
}

// A lower bound of the largest value of the tile, that of its first token aside: `pack_record_bits` rounds up by less
// than is subtracted here. NaN if the tile has no other token.
DEVICE float record_others_lower_bound(const TileRecord& record) {
    return from_ordered_bits((record.packed & OTHERS_BOUND_BITS) - ~OTHERS_BOUND_BITS);
}
