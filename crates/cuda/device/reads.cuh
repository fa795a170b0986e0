// reads.cuh: the read that proves where a mass is reached, by a row's block and those that help it.
//
// Computes   the weights above an aim, tile by tile, and the tokens in it
// Never      decides anything: search.cuh does
// Traffic    one read of the tiles that the aim reaches, or of all if the mass of all is asked for
// Requires   as help.cuh; scratch of the row
#pragma once

#include "help.cuh"
#include "walk.cuh"

// What a thread knows of an aim.
struct Sums {
    // The mass above it; and that of the whole set, where it is asked for.
    u64 mass;
    u64 total;
    // As in `Search`.
    u32 most_bits;
    u32 least_bits;

    DEVICE_MEMBER void add(const Sums& other) {
        mass += other.mass;
        total += other.total;
        most_bits = other.most_bits > most_bits ? other.most_bits : most_bits;
        least_bits = other.least_bits > least_bits ? other.least_bits : least_bits;
    }
};

// Reads those of some tiles' tokens down to the aim's lower end: writes what each tile has above the aim and how many in it,
// and lists those, by value, as far as there is room. If the goal is not exact yet, all tokens are read and weighed.
template <bool PLAIN, class V>
DEVICE Sums read_tiles(const Step& step, u32 row, const V view, Tiles tiles) {
    const Searched<V> set{step, row, view};
    Search& search = set.search();
    u64* list = shared_list();
    u64* above = room_for_sums(set.step, set.row);
    const float lo = search.aim.lo, hi = search.aim.hi.value, s = search.s;
    const bool lists = search.lists(), by_mass = search.by_mass, share = search.share != 0;
    const Order order = search.order;
    u64 own = 0, own_all = 0;
    Sums sums{0, 0, 0, 0};
    set.template visit<PLAIN>(
        share ? LEAST : lo,
        [&](u32 tile, float maximum, const float(&z)[PER_LANE], bool mine) INLINE {
            u32 in = 0, reached = 0;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                float value = PLAIN ? z[j] : order.value(z[j]);
                reached |= value >= hi ? 1u << j : 0;
                in |= value >= lo ? 1u << j : 0;
            }
            in &= ~reached;
            u64 weights = 0;
            if (by_mass) {
                const Weigher weigher(maximum, s);
                // Eight weights of at most 2^28 fit.
                u32 q = 0, all = 0;
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    u32 own = weigher.of(z[j]);
                    q += reached >> j & 1 ? own : 0;
                    all += own;
                }
                weights = warp_sum_of_words(q);
                if (share) {
                    u64 sum = warp_sum_of_words(all);
                    own_all = mine ? sum : own_all;
                }
            }
            u32 count = __popc(in), start = 0;
            if (lists && in != 0) {
                start = atomicAdd(&search.listed, count);
            }
            // A lane has few, if any.
#pragma unroll 1
            for (; in != 0; in &= in - 1) {
                u32 j = (u32)__ffs((int)in) - 1;
                float z_own = pick(z, j);
                u64 key = key_of((PLAIN ? z_own : order.value(z_own)) + 0.0f, tile * TILE + set.view.place(tile, lane_id(), j));
                u32 bits = (u32)(key >> 32);
                sums.most_bits = bits > sums.most_bits ? bits : sums.most_bits;
                sums.least_bits = ~bits > sums.least_bits ? ~bits : sums.least_bits;
                if (lists && start < LISTED) {
                    list[start++] = key;
                }
            }
            count = __reduce_add_sync(ALL_LANES, count);
            own = mine ? Above::of(weights, count) : own;
        },
        [&](u32 tile, float maximum, bool visited) INLINE {
            above[tile] = visited ? own : 0;
            if (by_mass && visited) {
                float factor = search.factor(maximum);
                sums.mass += tile_mass(factor, Above::weights(own));
                sums.total += share ? tile_mass(factor, own_all) : 0;
            }
        },
        tiles);
    return sums;
}

// The same of a part of a row's tiles. Apart, so that its registers are its own.
template <class V>
DEVICE_APART Sums read_part(const Step& step, u32 row, u32 part) {
    return read_tiles<true>(step, row, V(step, row, step.slots[row]), Tiles{part, step.parts});
}

// What a row's block and its helpers hand each other, in the row's scratch.
struct Handed {
    Search search;
    // How many parts helpers are done with, and what they found.
    u32 done;
    u32 listed;
    u32 most_bits;
    u32 least_bits;
    u64 mass;
    u64 total;
};

// How many words of scratch it takes; src/filter.rs has the same.
#define HANDED_WORDS 64

DEVICE Handed& handed_of(const Step& step, u32 row) {
    static_assert(sizeof(Handed) <= HANDED_WORDS * sizeof(u64), "the scratch has room for what is handed on");
    return *(Handed*)(room_for_list(step, row) + 2 * LISTED);
}

// Copies a search, by all threads; a barrier must follow.
DEVICE void copy_search(Search& to, const Search& from) {
    for (u32 i = threadIdx.x; i < sizeof(Search) / sizeof(u32); i += blockDim.x) {
        ((u32*)&to)[i] = ((const u32*)&from)[i];
    }
}

// Reads all of a row's tiles, but for those that helpers take; what they found is added in one thread, and to the list.
// Apart, so that its registers are its own.
template <class V>
DEVICE_APART Sums read_with_help(const Step& step, u32 row) {
    Search& search = block_search();
    Handed& handed = handed_of(step, row);
    copy_search(handed.search, search);
    if (threadIdx.x == 0) {
        handed.done = 0;
        handed.listed = 0;
        handed.most_bits = 0;
        handed.least_bits = 0;
        handed.mass = 0;
        handed.total = 0;
    }
    // Without it helpers could see what slower warps have not written yet.
    __syncthreads();
    deal_out(step, row);
    Sums sums{0, 0, 0, 0};
    u32 own = take_parts(step, row, 0, [&](u32 part) INLINE { sums.add(read_part<V>(step, row, part)); });
    if (own == step.parts) {
        return sums;
    }
    wait_for_helpers(handed.done, step.parts - own);
    // Of its own tokens the block has listed all by now.
    u32 start = search.listed, count = handed.listed;
    for (u32 i = threadIdx.x; i < count && start + i < LISTED; i += blockDim.x) {
        shared_list()[start + i] = room_for_list(step, row)[i];
    }
    // Without it the count would change while slower warps still read it.
    __syncthreads();
    if (threadIdx.x == 0) {
        search.listed = start + count;
        sums.add(Sums{handed.mass, handed.total, handed.most_bits, handed.least_bits});
    }
    return sums;
}

// Reads a row's tokens down to the aim's lower end, whose count becomes that of those listed. Returns the mass above the aim. If
// the goal is not exact yet, it becomes so.
template <bool PLAIN, class V>
DEVICE u64 read_aim(const Step& step, u32 row, const V view) {
    Search& search = block_search();
    if (threadIdx.x == 0) {
        search.listed = 0;
        search.most_bits = 0;
        search.least_bits = 0;
    }
    // Without it tokens could be counted before the count is zero.
    __syncthreads();
    Sums sums = PLAIN && step.parts != 0 ? read_with_help<V>(step, row) : read_tiles<PLAIN>(step, row, view, Tiles{0, 1});
    atomicMax(&search.most_bits, sums.most_bits);
    atomicMax(&search.least_bits, sums.least_bits);
    u32 share = search.share;
    if (share) {
        u64 total = block_sum(sums.total);
        if (threadIdx.x == 0) {
            search.goal = target_mass(share, total);
            search.doubt = 0;
            search.lo.mass = total;
            search.share = 0;
        }
    }
    // Asked before the barriers, by all threads: some could otherwise still ask while one writes the count.
    const bool lists = search.lists();
    // Its barriers also complete the list, and let the goal be read.
    u64 mass = block_sum(sums.mass);
    if (threadIdx.x == 0 && lists) {
        search.aim.count = search.listed;
    }
    return mass;
}

// Helps rows until none needs it any more. Apart, so that its registers are its own.
template <class V>
DEVICE_APART void help(const Step& step) {
    while (true) {
        const Helped helped = find_helped(step);
        if (helped.part >= step.parts) {
            return;
        }
        Search& search = block_search();
        Handed& handed = handed_of(step, helped.row);
        copy_search(search, handed.search);
        // Without it the search would be read before it is there.
        __syncthreads();
        Sums sums{0, 0, 0, 0};
        u32 parts = take_parts(step, helped.row, helped.part,
                               [&](u32 part) INLINE { sums.add(read_part<V>(step, helped.row, part)); });
        atomicMax(&search.most_bits, sums.most_bits);
        atomicMax(&search.least_bits, sums.least_bits);
        // Their barriers also complete the list.
        u64 mass = block_sum(sums.mass), total = block_sum(sums.total);
        u32 listed = search.listed < LISTED ? search.listed : LISTED;
        if (threadIdx.x == 0) {
            // More than there is room for are counted and not listed.
            search.place = atomicAdd(&handed.listed, search.listed);
            atomicAdd(&handed.mass, mass);
            atomicAdd(&handed.total, total);
            atomicMax(&handed.most_bits, search.most_bits);
            atomicMax(&handed.least_bits, search.least_bits);
        }
        // Without it the place would be read before it is there.
        __syncthreads();
        for (u32 i = threadIdx.x; i < listed && search.place + i < LISTED; i += blockDim.x) {
            room_for_list(step, helped.row)[search.place + i] = shared_list()[i];
        }
        say_done(handed.done, parts);
    }
}
