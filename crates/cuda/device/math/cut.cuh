// cut.cuh: cuts and given sets, intervals of the order (M1).
#pragma once

#include "math/kind.cuh"

// An interval of the order, from the key of its first to the key of its last token. No token need have these keys.
struct Cut {
    u64 first;
    u64 last;

    DEVICE_MEMBER bool contains(u64 key) const { return last <= key && key <= first; }
    DEVICE_MEMBER bool is_empty() const { return last > first; }
    // The logit of the last key: no token inside has a smaller one.
    DEVICE_MEMBER float low() const { return key_logit(last); }
};

// The cut that keeps every token.
DEVICE Cut full_cut() { return Cut{~0ull, (u64)MIN_TOKEN_ORDERED << 32}; }

// The cut that keeps no token.
DEVICE Cut empty_cut() { return Cut{0, ~0ull}; }

// The intersection of two cuts.
DEVICE Cut intersect(const Cut& a, const Cut& b) {
    return Cut{a.first < b.first ? a.first : b.first, a.last > b.last ? a.last : b.last};
}

// The smallest key that a token with this logit can have.
DEVICE u64 last_key_at(float z) { return (u64)ordered_bits(z) << 32; }

// A cut that holds at least one token, and whose first key is a token's.
struct GivenSet {
    Cut cut;
    // The logit of its first token.
    float first_value;
    // Whether its first token is the row's: then its tiles' maxima are the row's, too.
    bool is_prefix;
};
