// logprobs.cuh: how likely the token, its rivals and given ids were (rules L1 to L3); device functions of a block.
//
// Computes   the sections of logprobs and ranks of a row, and the bits of its kept set
// Never      sorts a row: ranks are counts, and the top n are listed from a bound that the maxima give
// Twins      oracle spec/src/logprobs.rs | CPU cpu/src/logprobs.rs | why docs/stages/logprobs.md
// Traffic    the tiles of the mode's members once for the mass; those that reach a token for its rank; of a row
//            with edits, in mode raw, the whole row once more for its maxima
#pragma once

#include "block/ranks.cuh"
#include "stage/row_result.cuh"

// Where a row's logprobs go, as Layout has it. Places are worked out where they are needed: the kernel has no
// registers to spare for them.
struct LogprobSections {
    const Step& step;
    u32 row;

    // The token is entry 0, the ids follow.
    DEVICE_MEMBER void set(u32 entry, float logprob, u32 rank) const {
        u64 rows = step.rows, ids = step.ids_width;
        u64 first = (6 + 2ull * step.top_n_width) * rows + row * ids + entry - 1;
        step.outputs[entry == 0 ? 2 * rows + row : first] = float_bits(logprob);
        step.outputs[entry == 0 ? 3 * rows + row : first + rows * ids] = rank;
    }

    DEVICE_MEMBER void set_top(u32 index, int id, float logprob) const {
        u64 rows = step.rows, top = step.top_n_width;
        u64 first = 6 * rows + row * top + index;
        step.outputs[first] = (u32)id;
        step.outputs[first + rows * top] = float_bits(logprob);
    }

    // The places of the top list from one on stay empty.
    DEVICE_MEMBER void end_top(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.top_n_width; i += blockDim.x) {
            set_top(i, NO_TOKEN, -INF_F32);
        }
    }

    // The same for the ids.
    DEVICE_MEMBER void end_ids(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.ids_width; i += blockDim.x) {
            set(i + 1, -INF_F32, 0);
        }
    }
};

// Writes what stands where a row has no logprobs.
DEVICE void write_no_logprobs(const Step& step, u32 row) {
    LogprobSections sections{step, row};
    if (threadIdx.x == 0) {
        sections.set(0, -INF_F32, 0);
    }
    sections.end_top(0);
    sections.end_ids(0);
}

// Writes what stands in a row that is padding, the kept set aside.
DEVICE void write_padding(const Step& step, u32 row) {
    write_no_logprobs(step, row);
    if (threadIdx.x == 0) {
        write_result(step, row, RowResult{NO_TOKEN, step.tokens != nullptr ? STATUS_EMPTY : 0u, 0.0f, 0.0f});
    }
}

// ln 2, and log2 in its two parts, in f64.
DEVICE double ln_2() { return bits_double(0x3FE62E42FEFA39EFull); }

DEVICE double log2_in_double(float x, int max_raise = 0) {
    Log2Parts parts = log2_parts(x);
    float p = log2_one_plus(parts.f) * parts.f;
    return double_sum(float_to_double(int_to_float(parts.e + max_raise)), float_to_double(p));
}

#if GUMBALL_PROBABILITIES
// What of a logprob is the same for all members (P3), in f64.
struct LogprobTerms {
    double first;
    double log2_mass;

    DEVICE_MEMBER void set(float first_value, float, u64 mass) {
        first = log2_in_double(first_value);
        log2_mass = double_product(ln_2(), double_difference(log2_in_double(u64_to_float(mass)), 43.0));
    }

    DEVICE_MEMBER float of(float p) const {
        double own = double_product(ln_2(), double_difference(log2_in_double(p), first));
        return double_to_float(double_difference(own, log2_mass));
    }
};
#else
// What of a logprob is the same for all members (L3), in f64.
struct LogprobTerms {
    double first;
    double temperature;
    double log2_mass;

    DEVICE_MEMBER void set(float first_logit, float t, u64 mass) {
        first = float_to_double(first_logit);
        temperature = float_to_double(t);
        log2_mass = double_product(ln_2(), log2_in_double(u64_to_float(mass), -43));
    }

    DEVICE_MEMBER float of(float z) const {
        double difference = double_difference(float_to_double(z), first);
        // By 1 nothing changes, and division takes long.
        double ratio = temperature == 1.0 ? difference : double_ratio(difference, temperature);
        return double_to_float(double_difference(ratio, log2_mass));
    }
};
#endif

// What was asked for of a row: its token, then its ids.
struct LogprobQuery {
    int token;
    const u32* ids;
    u32 id_count;
    u32 top_n;

    DEVICE_MEMBER u32 count() const { return 1 + id_count; }
    // NO_TOKEN for the token of a row that has none.
    DEVICE_MEMBER int id(u32 entry) const { return entry == 0 ? token : (int)ids[entry - 1]; }
};

// Logprobs where the first token is certain.
DEVICE void write_certain(const LogprobSections& sections, const LogprobQuery& query, int winner) {
    for (u32 entry = threadIdx.x; entry < query.count(); entry += blockDim.x) {
        bool wins = query.id(entry) == winner;
        sections.set(entry, wins ? 0.0f : -INF_F32, wins);
    }
    if (threadIdx.x == 0 && query.top_n > 0) {
        sections.set_top(0, winner, 0.0f);
    }
    sections.end_top(query.top_n > 0);
    sections.end_ids(query.id_count);
}

// The token's and the ids' logprobs and ranks.
template <class V>
DEVICE void write_ranked(const LogprobSections& sections, const LogprobQuery& query, const V& row,
                         const SetWithMaxima& members, const LogprobTerms& terms, RankQueries& queries) {
    u32 own = threadIdx.x;
    for (u32 start = 0; start < query.count(); start += MAX_QUERIES) {
        u32 count = query.count() - start < MAX_QUERIES ? query.count() - start : MAX_QUERIES;
        float z = MASKED_VALUE;
        if (own < count) {
            int id = query.id(start + own);
            z = id < 0 ? MASKED_VALUE : row.logit((u32)id);
            u64 key = make_key(z, (u32)id);
            bool inside = members.given.cut.contains(key);
            z = inside ? z : MASKED_VALUE;
            queries.keys[own] = inside ? key : ~0ull;
        }
        count_before(row, members, members.given.cut, queries, count);
        if (own < count) {
            bool inside = z > MASKED_VALUE;
            sections.set(start + own, inside ? terms.of(z) : -INF_F32, inside ? queries.before[own] + 1 : 0);
        }
    }
}

// The first n members with their logprobs.
template <class V>
DEVICE void write_top_n(const LogprobSections& sections, u32 n, const V& row, const SetWithMaxima& members,
                        const LogprobTerms& terms, RankQueries& queries, KeyList& list) {
    Cut rest = members.given.cut;
    u32 done = 0;
    float low = threshold_from_maxima(members, n, list);
    while (done < n) {
        u64 bound = (u64)ordered_bits(low) << 32;
        Cut part = rest;
        part.last = bound > rest.last ? bound : rest.last;
        u32 count = list_members(row, members, part, list);
        if (count > KEY_LIST_CAPACITY) {
            part.last = narrow_cut(row, members, rest, queries);
            count = list_members(row, members, part, list);
        }
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            u64 own = list.keys[i];
            u32 index = done;
            for (u32 other = 0; other < count; other++) {
                index += list.keys[other] > own;
            }
            if (index < n) {
                sections.set_top(index, (int)key_id(own), terms.of(key_logit(own)));
            }
        }
        done += count;
        if (part.last <= rest.last) {
            break;
        }
        rest.first = part.last - 1;
        low = -INF_F32;
    }
    sections.end_top(done < n ? done : n);
}

// Shared memory of the stage.
struct LogprobStorage {
    LogprobQuery query;
    SetWithMaxima members;
    LogprobTerms terms;
    RankQueries queries;
    KeyList list;
};

// What was asked for of the members in the room, at a temperature above 0.
template <class V>
DEVICE void write_members(const LogprobSections& sections, const V& row, const Params& params, float temperature,
                          LogprobStorage& storage) {
    const SetWithMaxima& members = storage.members;
    const GivenSet& given = members.given;
    const Step& step = sections.step;
    const TileSum* logprob_sums = step.logprob_sums + (u64)sections.row * step.tiles;
    u64 mass = params.features & FEATURE_LOGPROB_SUMS
                   ? row_mass(step.tiles, given.first_value, params.logprob_log2e_over_t,
                              [&](u32 tile) INLINE { return logprob_sums[tile]; })
                   : mass_of_set(row, members.maxima, given, given.cut, log2_e() / temperature).mass;
    if (threadIdx.x == 0) {
        storage.terms.set(given.first_value, temperature, mass);
    }
    // The barriers before the tokens' logprobs let every thread read it.
    write_ranked(sections, storage.query, row, members, storage.terms, storage.queries);
    sections.end_ids(storage.query.id_count);
    if (storage.query.top_n > 0) {
        write_top_n(sections, storage.query.top_n, row, members, storage.terms, storage.queries, storage.list);
    } else {
        sections.end_top(0);
    }
}

// A row whose token is known, as its logprobs need it.
template <class T>
struct LogprobRow {
    const Step& step;
    u32 row;
    EditedRow<T, true> view;
    // Whether its edits leave every logit as it came.
    bool unedited;
    int token;
    float temperature;
    // The key of its first token; 0 if it has none.
    u64 first_key;
    // What its filters kept, if it has a token.
    GivenSet kept;
};

// Writes a row's logprobs, as its request asked for them.
template <class T>
DEVICE void write_logprobs(const LogprobRow<T>& target, const Params& params, const Request& request) {
    __shared__ LogprobStorage storage;
    const Step& step = target.step;
    LogprobSections sections{step, target.row};
    u32 mode = params.logprob_mode;
    Maxima maxima = survey_maxima(step, target.row);
    GivenSet given = mode == MODE_PROCESSED ? target.kept : GivenSet{full_cut(), key_logit(target.first_key), true};
    bool empty = target.first_key == 0;
    if (mode == MODE_RAW && !target.unedited) {
        maxima = Maxima{&step.logprob_sums[(u64)target.row * step.tiles].maximum, sizeof(TileSum) / sizeof(float),
                        step.tiles};
        u32 most = 0;
        for (u32 tile = threadIdx.x; tile < step.tiles; tile += blockDim.x) {
            u32 bits = ordered_bits(maxima.of(tile));
            most = bits > most ? bits : most;
        }
        given.first_value = from_ordered_bits((u32)block_max(most));
        empty = !(given.first_value > MASKED_VALUE);
    } else if (!empty && !given.is_prefix) {
        maxima = compute_maxima(target.view, maxima, given.cut, scratch_maxima(step, target.row, 0));
    }
    if (empty) {
        write_no_logprobs(step, target.row);
        return;
    }
    if (threadIdx.x == 0) {
        storage.query = LogprobQuery{target.token, request.logprob_ids, request.logprob_id_count, params.top_n};
        storage.members = SetWithMaxima{given, maxima};
    }
    // Without it a thread reads the members before they are written.
    __syncthreads();
    float temperature = mode == MODE_RAW || mode == MODE_EDITED ? 1.0f : target.temperature;
    if (temperature == 0.0f) {
        write_certain(sections, storage.query, (int)key_id(target.first_key));
    } else if (mode == MODE_RAW) {
        EditedRow<T, false> raw(step, target.row, step.slots[target.row]);
        write_members(sections, raw, params, temperature, storage);
    } else {
        write_members(sections, target.view, params, temperature, storage);
    }
}

// Writes that a row keeps no token, if anyone asks.
DEVICE void clear_kept_bits(const Step& step, u32 row) {
    u64 words = step.kept_bits == nullptr ? 0 : (u64)step.tiles * MASK_WORDS;
    for (u64 i = threadIdx.x; i < words; i += blockDim.x) {
        step.kept_bits[row * words + i] = 0;
    }
}

// Writes a bit for each kept token of a row, 0 for the others, if anyone asks.
template <class T>
DEVICE void write_kept_bits(const Step& step, u32 row, const EditedRow<T, true>& view, const Cut& kept) {
    if (step.kept_bits == nullptr) {
        return;
    }
    u32* words = step.kept_bits + (u64)row * step.tiles * MASK_WORDS;
    // All tiles have words to be written.
    visit_tiles(
        view, Maxima{nullptr, 0, step.tiles}, -INF_F32,
        [&](u32 tile, float, const float (&z)[ITEMS_PER_LANE], bool) INLINE {
            u32 lane = lane_id();
            for (u32 word = 0; word < MASK_WORDS; word++) {
                u32 bits = 0;
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    u32 offset = view.offset(tile, lane, j);
                    bool member = kept.contains(make_key(z[j], tile * TILE + offset));
                    bits |= member && offset / 32 == word ? 1u << offset % 32 : 0;
                }
                bits = __reduce_or_sync(FULL_MASK, bits);
                if (lane == 0) {
                    words[tile * MASK_WORDS + word] = bits;
                }
            }
        },
        [](u32, float, bool) INLINE {});
}
