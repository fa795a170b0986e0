// logprobs.cu: how likely the token, its rivals and given ids were (rules L1 to L3); device functions of a block.
//
// Computes   the sections of logprobs and ranks of a row, and the bits of its kept set
// Never      sorts a row: ranks are counts, and the top n are listed from a bound that the maxima give
// Twins      oracle spec/src/logprobs.rs | CPU cpu/src/logprobs.rs | why docs/stages/logprobs.md
// Traffic    the tiles of the mode's members once for the mass; those that reach a token for its rank; of a row
//            with edits, in mode raw, the whole row once more for its maxima
#pragma once

#include "chosen.cuh"
#include "members.cuh"

// Where a row's logprobs go, as Layout has it. Places are worked out where they are needed: the kernel has no
// registers to spare for them.
struct Entries {
    const Step& step;
    u32 row;

    // The token is entry 0, the ids follow.
    DEVICE_MEMBER void set(u32 entry, float logprob, u32 rank) const {
        u64 rows = step.rows, ids = step.ids_width;
        u64 first = (6 + 2ull * step.top_n_width) * rows + row * ids + entry - 1;
        step.outputs[entry == 0 ? 2 * rows + row : first] = float_bits(logprob);
        step.outputs[entry == 0 ? 3 * rows + row : first + rows * ids] = rank;
    }

    DEVICE_MEMBER void set_top(u32 place, int id, float logprob) const {
        u64 rows = step.rows, top = step.top_n_width;
        u64 first = 6 * rows + row * top + place;
        step.outputs[first] = (u32)id;
        step.outputs[first + rows * top] = float_bits(logprob);
    }

    // The places of the top list from one on stay empty.
    DEVICE_MEMBER void end_top(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.top_n_width; i += blockDim.x) {
            set_top(i, NONE, -INFINITE);
        }
    }

    // The same for the ids.
    DEVICE_MEMBER void end_ids(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.ids_width; i += blockDim.x) {
            set(i + 1, -INFINITE, 0);
        }
    }
};

// Writes what stands where a row has no logprobs.
DEVICE void write_no_logprobs(const Step& step, u32 row) {
    Entries entries{step, row};
    if (threadIdx.x == 0) {
        entries.set(0, -INFINITE, 0);
    }
    entries.end_top(0);
    entries.end_ids(0);
}

// Writes what stands in a row that is padding, the kept set aside.
DEVICE void write_padding(const Step& step, u32 row) {
    write_no_logprobs(step, row);
    if (threadIdx.x == 0) {
        write(step, row, Chosen{NONE, step.tokens != nullptr ? STATUS_EMPTY : 0u, 0.0f, 0.0f});
    }
}

// ln 2, and log2 in its two parts, in f64.
DEVICE double ln_2() { return bits_double(0x3FE62E42FEFA39EFull); }

DEVICE double log2_in_double(float x, int raise = 0) {
    Log2Parts parts = log2_parts(x);
    float p = log2_one_plus(parts.f) * parts.f;
    return double_sum(float_to_double(int_to_float(parts.e + raise)), float_to_double(p));
}

#if GUMBALL_PROBABILITIES
// What of a logprob is the same for all members (P3), in f64.
struct Likelihood {
    double first;
    double log_mass;

    DEVICE_MEMBER void set(float first_value, float, u64 mass) {
        first = log2_in_double(first_value);
        log_mass = double_product(ln_2(), double_difference(log2_in_double(u64_to_float(mass)), 43.0));
    }

    DEVICE_MEMBER float of(float p) const {
        double own = double_product(ln_2(), double_difference(log2_in_double(p), first));
        return double_to_float(double_difference(own, log_mass));
    }
};
#else
// What of a logprob is the same for all members (L3), in f64.
struct Likelihood {
    double first;
    double temperature;
    double log_mass;

    DEVICE_MEMBER void set(float first_logit, float t, u64 mass) {
        first = float_to_double(first_logit);
        temperature = float_to_double(t);
        log_mass = double_product(ln_2(), log2_in_double(u64_to_float(mass), -43));
    }

    DEVICE_MEMBER float of(float z) const {
        double difference = double_difference(float_to_double(z), first);
        // By 1 nothing changes, and division takes long.
        double ratio = temperature == 1.0 ? difference : double_ratio(difference, temperature);
        return double_to_float(double_difference(ratio, log_mass));
    }
};
#endif

// What was asked for of a row: its token, then its ids.
struct Asked {
    int token;
    const u32* ids;
    u32 id_count;
    u32 top_n;

    DEVICE_MEMBER u32 count() const { return 1 + id_count; }
    // NONE for the token of a row that has none.
    DEVICE_MEMBER int id(u32 entry) const { return entry == 0 ? token : (int)ids[entry - 1]; }
};

// Logprobs where the first token is certain.
DEVICE void write_certain(const Entries& entries, const Asked& asked, int winner) {
    for (u32 entry = threadIdx.x; entry < asked.count(); entry += blockDim.x) {
        bool wins = asked.id(entry) == winner;
        entries.set(entry, wins ? 0.0f : -INFINITE, wins);
    }
    if (threadIdx.x == 0 && asked.top_n > 0) {
        entries.set_top(0, winner, 0.0f);
    }
    entries.end_top(asked.top_n > 0);
    entries.end_ids(asked.id_count);
}

// The token's and the ids' logprobs and ranks.
template <class V>
DEVICE void write_ranked(const Entries& entries, const Asked& asked, const V& row, const Members& members,
                         const Likelihood& likelihood, Sought& sought) {
    u32 own = threadIdx.x;
    for (u32 start = 0; start < asked.count(); start += SOUGHT) {
        u32 count = asked.count() - start < SOUGHT ? asked.count() - start : SOUGHT;
        float z = NOTHING;
        if (own < count) {
            int id = asked.id(start + own);
            z = id < 0 ? NOTHING : row.logit((u32)id);
            u64 key = key_of(z, (u32)id);
            bool inside = members.given.cut.contains(key);
            z = inside ? z : NOTHING;
            sought.keys[own] = inside ? key : ~0ull;
        }
        count_before(row, members, members.given.cut, sought, count);
        if (own < count) {
            bool inside = z > NOTHING;
            entries.set(start + own, inside ? likelihood.of(z) : -INFINITE, inside ? sought.before[own] + 1 : 0);
        }
    }
}

// The first n members with their logprobs.
template <class V>
DEVICE void write_top(const Entries& entries, u32 n, const V& row, const Members& members,
                      const Likelihood& likelihood, Sought& sought, List& list) {
    Cut rest = members.given.cut;
    u32 done = 0;
    float low = reached_by(members, n, list);
    while (done < n) {
        u64 bound = (u64)ordered_bits(low) << 32;
        Cut part = rest;
        part.last = bound > rest.last ? bound : rest.last;
        u32 count = gather(row, members, part, list);
        if (count > LIST_ROOM) {
            part.last = narrow(row, members, rest, sought);
            count = gather(row, members, part, list);
        }
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u64 own = list.keys[i];
            u32 place = done;
            for (u32 other = 0; other < count; other++) {
                place += list.keys[other] > own;
            }
            if (place < n) {
                entries.set_top(place, (int)key_id(own), likelihood.of(key_logit(own)));
            }
        }
        done += count;
        if (part.last <= rest.last) {
            break;
        }
        rest.first = part.last - 1;
        low = -INFINITE;
    }
    entries.end_top(done < n ? done : n);
}

// Shared memory of the stage.
struct LogprobsRoom {
    Asked asked;
    Members members;
    Likelihood likelihood;
    Sought sought;
    List list;
};

// What was asked for of the members in the room, at a temperature above 0.
template <class V>
DEVICE void write_members(const Entries& entries, const V& row, const Params& params, float temperature, LogprobsRoom& room) {
    const Members& members = room.members;
    const Given& given = members.given;
    const Step& step = entries.step;
    const TileWeights* told = step.told + (u64)entries.row * step.tiles;
    u64 mass = params.asks & ASKS_TOLD
                   ? mass_of_tiles(step.tiles, given.first, params.logprob_s, [&](u32 tile) INLINE { return told[tile]; })
                   : weigh(row, members.maxima, given, given.cut, log2_e() / temperature).mass;
    if (threadIdx.x == 0) {
        room.likelihood.set(given.first, temperature, mass);
    }
    // The barriers before the tokens' logprobs let every thread read it.
    write_ranked(entries, room.asked, row, members, room.likelihood, room.sought);
    entries.end_ids(room.asked.id_count);
    if (room.asked.top_n > 0) {
        write_top(entries, room.asked.top_n, row, members, room.likelihood, room.sought, room.list);
    } else {
        entries.end_top(0);
    }
}

// A row whose token is known, as its logprobs need it.
template <class T>
struct Told {
    const Step& step;
    u32 row;
    View<T, true> view;
    // Whether its edits leave every logit as it came.
    bool unedited;
    int token;
    float temperature;
    // The key of its first token; 0 if it has none.
    u64 first;
    // What its filters kept, if it has a token.
    Given kept;
};

// Writes a row's logprobs, as its request asked for them.
template <class T>
DEVICE void write_logprobs(const Told<T>& told, const Params& params, const Request& request) {
    __shared__ LogprobsRoom room;
    const Step& step = told.step;
    Entries entries{step, told.row};
    u32 mode = params.logprob_mode;
    Maxima maxima = surveyed_maxima(step, told.row);
    Given given = mode == MODE_PROCESSED ? told.kept : Given{cut_all(), key_logit(told.first), true};
    bool empty = told.first == 0;
    if (mode == MODE_RAW && !told.unedited) {
        maxima = Maxima{&step.told[(u64)told.row * step.tiles].maximum, sizeof(TileWeights) / sizeof(float), step.tiles};
        u32 most = 0;
        for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
            u32 bits = ordered_bits(maxima.of(tile));
            most = bits > most ? bits : most;
        }
        given.first = from_ordered_bits((u32)block_largest(most));
        empty = !(given.first > NOTHING);
    } else if (!empty && !given.prefix) {
        maxima = give(told.view, maxima, given.cut, room_for_maxima(step, told.row, 0));
    }
    if (empty) {
        write_no_logprobs(step, told.row);
        return;
    }
    if (threadIdx.x == 0) {
        room.asked = Asked{told.token, request.logprob_ids, request.logprob_id_count, params.top_n};
        room.members = Members{given, maxima};
    }
    // Without it a thread reads the members before they are written.
    __syncthreads();
    float temperature = mode == MODE_RAW || mode == MODE_EDITED ? 1.0f : told.temperature;
    if (temperature == 0.0f) {
        write_certain(entries, room.asked, (int)key_id(told.first));
    } else if (mode == MODE_RAW) {
        View<T, false> raw(step, told.row, step.slots[told.row]);
        write_members(entries, raw, params, temperature, room);
    } else {
        write_members(entries, told.view, params, temperature, room);
    }
}

// Writes that a row keeps no token, if anyone asks.
DEVICE void write_nothing_kept(const Step& step, u32 row) {
    u64 words = step.kept == nullptr ? 0 : (u64)step.tiles * MASK_WORDS;
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) {
        step.kept[row * words + i] = 0;
    }
}

// Writes a bit for each kept token of a row, 0 for the others, if anyone asks.
template <class T>
DEVICE void write_kept(const Step& step, u32 row, const View<T, true>& view, const Cut& kept) {
    if (step.kept == nullptr) {
        return;
    }
    u32* words = step.kept + (u64)row * step.tiles * MASK_WORDS;
    // All tiles have words to be written.
    visit_tiles(
        view, Maxima{nullptr, 0, step.tiles}, -INFINITE,
        [&](u32 tile, float, const float(&z)[PER_LANE], bool) INLINE {
            u32 lane = lane_id();
            for (u32 word = 0; word < MASK_WORDS; word++) {
                u32 bits = 0;
#pragma unroll
                for (u32 j = 0; j < PER_LANE; j++) {
                    u32 place = view.place(tile, lane, j);
                    bool member = kept.contains(key_of(z[j], tile * TILE + place));
                    bits |= member && place / 32 == word ? 1u << place % 32 : 0;
                }
                bits = __reduce_or_sync(ALL_LANES, bits);
                if (lane == 0) {
                    words[tile * MASK_WORDS + word] = bits;
                }
            }
        },
        [](u32, float, bool) INLINE {});
}
