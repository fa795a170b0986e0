// behind.cu: the race of a row that asks for no more, begun with the first look at its records; device functions of a block.
//
// Computes   by one reduction the row's first logit, its odd values, the token that leads and what bounds all others; the token
//            that wins
// Traffic    16 bytes per tile; the logits of the tiles that stay open
// Requires   the row's survey; whole warps, all threads of the block
//
// Scores hang on the row's first logit, which no warp knows alone. So each warp picks the token to go by its score without it,
// y = z s: where the picks differ from those of the scores as they are defined, the race finds the better one behind.
#pragma once

#include "draw.cu"

// What a warp's tiles say of their row.
struct alignas(16) Front {
    // The token that leads: its logit, -inf if there is none, log2 of its arrival, and its id.
    float z;
    float log_arrival;
    u32 id;
    // What no other token's z s - log2(arrival) exceeds, rounding aside; as ordered bits.
    u32 rest;
    // The largest logit, as ordered bits.
    u32 most;
    u32 places;
};

// What the warps of a block say of it: lane i of each warp has what warp i says.
template <class Kind>
DEVICE Front front_of(const Records& records, float s) {
    __shared__ Front fronts[32];
    Front own{-INFINITE, 0.0f, 0, 0, 0, 0};
    float lead = -INFINITE, rest = -INFINITE;
    records.each_of_three([&](u32 tile, const Record& record) INLINE {
        u32 bits = ordered_bits(record.maximum);
        own.most = bits > own.most ? bits : own.most;
        own.places |= record.places;
        float z = Kind::logit(record), about = scaled(z, s) - record.log_top;
        // NaN, in a tile of nothing, counts nowhere.
        rest = larger(larger(rest, Kind::rest(record, s)), about < lead ? about : lead);
        if (about > lead) {
            lead = about;
            own.z = z;
            own.log_arrival = record.log_top;
            own.id = tile * TILE + (record.places & 255);
        }
    });
    u32 bits = ordered_bits(lead), top = __reduce_max_sync(ALL_LANES, bits);
    bool leads = is_first_of(bits == top);
    own.rest = __reduce_max_sync(ALL_LANES, ordered_bits(leads ? rest : larger(rest, lead)));
    own.most = __reduce_max_sync(ALL_LANES, own.most);
    own.places = __reduce_or_sync(ALL_LANES, own.places);
    if (leads) {
        fronts[warp_id()] = own;
    }
    if (threadIdx.x == 0) {
        block_opened().clear();
    }
    // Without it a warp reads what others have not said yet, or adds to a count that is not zero yet.
    __syncthreads();
    return lane_id() < warps() ? fronts[lane_id()] : Front{-INFINITE, 0.0f, 0, 0, 0, 0};
}

// The row as a whole, without its first token's id and its least maximum.
DEVICE Whole whole_of(const Front& front) {
    u32 most = __reduce_max_sync(ALL_LANES, front.most), places = __reduce_or_sync(ALL_LANES, front.places);
    return Whole{most < LEAST_ORDERED ? 0 : ((u64)most << 32) | ~0u, 0.0f, odd_of(places)};
}

// The best of what the warps picked, in a cut of all logits from one on; at most what leads the race.
DEVICE u64 leader_of(const Front& front, const Cut& cut, const Origin& first, float s) {
    u64 own = leader_of(exponent(front.z, first, s) - front.log_arrival, front.id);
    return warp_max(front.z >= cut.low() ? own : 0);
}

// Whether no token but the leader can win.
DEVICE bool is_sure(const Front& front, const Origin& first, float s, u64 leader) {
    float rest = from_ordered_bits(__reduce_max_sync(ALL_LANES, front.rest));
    return most_of(rest, first, s) < from_ordered_bits((u32)(leader >> 32));
}

// Records as raced.cu makes them: of the token that leads a tile, or nearly, and of what the scores of the others are at most.
struct Raced {
    static constexpr bool GREEDY = false, MIN_P = false;

    static DEVICE_MEMBER float logit(const Record& record) {
        return record.maximum > -INFINITE ? record.log_first : -INFINITE;
    }

    static DEVICE_MEMBER float rest(const Record& record, float) { return others_of(record); }

    static DEVICE_MEMBER bool opens(const Record& record, const Cut& cut, const Origin& first, float s, u32 score) {
        bool below = most_of(others_of(record), first, s) < from_ordered_bits(score);
        return (record.maximum >= cut.low()) & !below;
    }
};

// The kept token that wins the race, in every thread, where `leader` is at most what leads.
template <class Kind, class V, class S>
DEVICE u32 race_behind(const Records& records, const V& row, const S& stream, const Cut& cut, const Origin& first, float s,
                       u64 leader) {
    Opened& opened = block_opened();
    records.each([&](u32 tile, const Record& record) INLINE {
        float z = Kind::logit(record);
        u32 id = tile * TILE + (record.places & 255);
        u64 own = leader_of(exponent(z, first, s) - record.log_top, id);
        if ((own > leader) & cut.contains(key_of(z, id))) {
            atomicMax(&opened.raised, own);
        }
        if (Kind::opens(record, cut, first, s, (u32)(leader >> 32))) {
            opened.add(tile);
        }
    });
    // Without it warps would miss tiles that others have not listed yet.
    __syncthreads();
    return run_opened<Kind>(records, row, stream, cut, first, s, leader);
}
