// cut.cuh: cuts and given sets, intervals of the order (M1).
#pragma once

#include "math/measure.cuh"

// An interval of the order, by the keys of its ends, which need not be tokens.
struct Cut {
    u64 first;
    u64 last;

    DEVICE_MEMBER bool contains(u64 key) const { return last <= key && key <= first; }
    DEVICE_MEMBER bool is_empty() const { return last > first; }
    DEVICE_MEMBER bool operator==(const Cut& other) const { return first == other.first && last == other.last; }
    // The least logit inside, as far as the keys tell.
    DEVICE_MEMBER float low() const { return key_logit(last); }
};

// Every token.
DEVICE Cut full_cut() { return Cut{~0ull, (u64)MIN_TOKEN_ORDERED << 32}; }

// Nothing.
DEVICE Cut empty_cut() { return Cut{0, ~0ull}; }

// What two cuts share.
DEVICE Cut intersect(const Cut& a, const Cut& b) {
    return Cut{a.first < b.first ? a.first : b.first, a.last > b.last ? a.last : b.last};
}

// The least key that a token of this logit can have.
DEVICE u64 last_key_at(float z) { return (u64)ordered_bits(z) << 32; }

// A cut with at least one token, whose first end is one.
struct GivenSet {
    Cut cut;
    // The logit of its first token.
    float first_value;
    // Whether its first token is the row's: then its tiles' maxima are the row's too.
    bool is_prefix;
};
