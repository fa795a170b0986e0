// logprobs.cuh: logprobs and ranks of a row's token, of its top n and of requested ids (rules L1 to L3), by a block.
//
// Computes   a row's logprobs and ranks in the outputs
// Never      sorts a row: ranks are counts, and the top n come from tiles that reach a threshold from the maxima
// Twins      oracle spec/src/logprobs.rs | CPU cpu/src/logprobs.rs | why docs/stages/logprobs.md
// Traffic    for the mass: 16 bytes per tile if the survey summed it, otherwise the members' tiles; for each 16 ranks:
//            the tiles that reach one of the tokens; for the top n: the tiles that reach the threshold; for members
//            that are no prefix of the row: their tiles once more, for the maxima
#pragma once

#include "math/logprob_modes.cuh"
#include "block/ranks.cuh"
#include "stage/radius.cuh"
#include "stage/row_result.cuh"

// Returns the maxima that the survey stored with its sums for logprobs: of the members of the mode that it summed.
DEVICE Maxima summed_maxima(const Step& step, u32 row) {
    return Maxima{&step.logprob_sums[(u64)row * step.tiles].maximum, sizeof(TileSum) / sizeof(float), step.tiles};
}

// Stores a row's logprobs in their sections of the outputs, which lie as in Layout of spec/src/layout.rs. Each store
// computes its index again, as the kernel has no registers to spare for them.
struct LogprobSections {
    const Step& step;
    u32 row;

    // Stores an entry's logprob and rank: entry 0 is the row's token, entry i + 1 the i-th requested id.
    DEVICE_MEMBER void set(u32 entry, float logprob, u32 rank) const {
        u64 rows = step.rows, ids = step.ids_width;
        u64 first = (OUTPUT_SECTIONS + 2ull * step.top_n_width) * rows + row * ids + entry - 1;
        step.outputs[entry == 0 ? OUTPUT_LOGPROBS * rows + row : first] = float_bits(logprob);
        step.outputs[entry == 0 ? OUTPUT_RANKS * rows + row : first + rows * ids] = rank;
    }

    // Stores the token's logprob in the second mode.
    DEVICE_MEMBER void set_second(float logprob) const {
        step.outputs[OUTPUT_SECOND_LOGPROBS * (u64)step.rows + row] = float_bits(logprob);
    }

    DEVICE_MEMBER void set_top(u32 index, int id, float logprob) const {
        u64 rows = step.rows, top = step.top_n_width;
        u64 first = OUTPUT_SECTIONS * rows + row * top + index;
        step.outputs[first] = (u32)id;
        step.outputs[first + rows * top] = float_bits(logprob);
    }

    // Fills the top list from index `from` on with NO_TOKEN and -inf.
    DEVICE_MEMBER void end_top(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.top_n_width; i += blockDim.x) {
            set_top(i, NO_TOKEN, -INF_F32);
        }
    }

    // Fills the requested ids' entries from index `from` on with -inf and rank 0.
    DEVICE_MEMBER void end_ids(u32 from) const {
        for (u32 i = from + threadIdx.x; i < step.ids_width; i += blockDim.x) {
            set(i + 1, -INF_F32, 0);
        }
    }
};

// Stores the logprob of a row's token in one of the modes that its request names, and the rank if that is the first.
DEVICE void set_token_logprob(const LogprobSections& sections, const Params& params, u32 mode, float logprob,
                              u32 rank) {
    if (mode == first_logprob_mode(params)) {
        sections.set(0, logprob, rank);
    } else {
        sections.set_second(logprob);
    }
}

// Writes the outputs of a row without members: -inf, rank 0 and NO_TOKEN.
DEVICE void write_no_members(const LogprobSections& sections) {
    if (threadIdx.x == 0) {
        sections.set(0, -INF_F32, 0);
    }
    sections.end_top(0);
    sections.end_ids(0);
}

// Writes the outputs of a row without logprobs.
DEVICE void write_no_logprobs(const Step& step, u32 row) {
    LogprobSections sections{step, row};
    if (threadIdx.x == 0) {
        sections.set_second(-INF_F32);
    }
    write_no_members(sections);
}

// Writes the outputs of a padding row, but not its kept set. Among an operator's rows padding counts as an empty row.
DEVICE void write_padding(const Step& step, u32 row) {
    write_no_logprobs(step, row);
    if (threadIdx.x == 0) {
        write_result(step, row, RowResult{NO_TOKEN, step.tokens != nullptr ? STATUS_EMPTY : 0u, 0.0f, 0.0f});
    }
}

// ln 2, in f64.
DEVICE double ln_2() { return bits_double(0x3FE62E42FEFA39EFull); }

// Returns log2(x) + `exponent_offset` in f64: the exponent and P(f) f of L3, added with one rounding.
DEVICE double log2_in_double(float x, int exponent_offset = 0) {
    Log2Parts parts = log2_parts(x);
    float p = log2_one_plus(parts.f) * parts.f;
    return double_sum(float_to_double(int_to_float(parts.e + exponent_offset)), float_to_double(p));
}

#if GUMBALL_PROBABILITIES
// The terms that the logprobs of all members share (P3), in f64.
struct LogprobTerms {
    // log2 of the first member's probability.
    double first;
    // ln 2 times log2 of the mass, in units of the first member's weight.
    double ln_mass;

    DEVICE_MEMBER void set(float first_value, float, u64 mass) {
        first = log2_in_double(first_value);
        ln_mass = double_product(ln_2(), double_difference(log2_in_double(u64_to_float(mass)), 43.0));
    }

    DEVICE_MEMBER float of(float p) const {
        double own = double_product(ln_2(), double_difference(log2_in_double(p), first));
        return double_to_float(double_difference(own, ln_mass));
    }
};
#else
// The terms that the logprobs of all members share (L3), in f64.
struct LogprobTerms {
    // The first member's logit.
    double first;
    double temperature;
    // ln 2 times log2 of the mass, in units of the first member's weight.
    double ln_mass;

    DEVICE_MEMBER void set(float first_logit, float t, u64 mass) {
        first = float_to_double(first_logit);
        temperature = float_to_double(t);
        ln_mass = double_product(ln_2(), log2_in_double(u64_to_float(mass), -43));
    }

    DEVICE_MEMBER float of(float z) const {
        double difference = double_difference(float_to_double(z), first);
        // Dividing by 1 changes nothing, and f64 division is slow.
        double ratio = temperature == 1.0 ? difference : double_ratio(difference, temperature);
        return double_to_float(double_difference(ratio, ln_mass));
    }
};
#endif

// The entries of a row's logprobs: its token first, then the requested ids; and how many top tokens it lists.
struct LogprobQuery {
    int token;
    const u32* ids;
    u32 id_count;
    u32 top_n;

    DEVICE_MEMBER u32 count() const { return 1 + id_count; }
    // Returns an entry's id; NO_TOKEN for the token of a row that has none.
    DEVICE_MEMBER int id(u32 entry) const { return entry == 0 ? token : (int)ids[entry - 1]; }
};

// Writes the logprobs of a row at temperature 0: logprob 0 and rank 1 for the winner, -inf and rank 0 for other tokens.
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

// Writes logprobs and ranks of the token and the requested ids, MAX_QUERIES of them per pass over the tiles.
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

// Writes the first n members with their logprobs.
//
//     rest = the members; low = a logit that at least n of them reach, from the maxima
//     until n members are written, or rest is empty:
//         list the part of rest from `low` on; if a list cannot hold it, list a shorter part, from narrow_cut
//         a member's index = the members written before + the listed keys that are larger
//         remove the part from rest; low = -inf
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
            // They are more if the row is written meanwhile.
            count = count < KEY_LIST_CAPACITY ? count : KEY_LIST_CAPACITY;
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

// The shared memory of a row's logprobs.
struct LogprobStorage {
    LogprobQuery query;
    SetWithMaxima members;
    LogprobTerms terms;
    RankQueries queries;
    KeyList list;
};

// Writes the logprobs that a request needs, given its members and query in `storage`, at a temperature above 0.
// `has_sums` says whether the survey summed the weights of the members.
template <class V>
DEVICE void write_members(const LogprobSections& sections, const V& row, const Params& params, bool has_sums,
                          float temperature, LogprobStorage& storage, RowReduceStorage& reduce) {
    const SetWithMaxima& members = storage.members;
    const GivenSet& given = members.given;
    const Step& step = sections.step;
    const TileSum* logprob_sums = step.logprob_sums + (u64)sections.row * step.tiles;
    u64 mass =
        has_sums
            ? row_mass(reduce, step.tiles, given.first_value, params.logprob_log2e_over_t,
                       [&](u32 tile) INLINE { return logprob_sums[tile]; })
            : mass_of_set(RowBlocks::alone(reduce), row, members.maxima, given, given.cut, log2_e() / temperature).mass;
    if (threadIdx.x == 0) {
        storage.terms.set(given.first_value, temperature, mass);
    }
    // RAW on storage.terms: thread 0 wrote them, all threads read them after the barriers inside write_ranked.
    write_ranked(sections, storage.query, row, members, storage.terms, storage.queries);
    sections.end_ids(storage.query.id_count);
    if (storage.query.top_n > 0) {
        write_top_n(sections, storage.query.top_n, row, members, storage.terms, storage.queries, storage.list);
    } else {
        sections.end_top(0);
    }
}

// A row whose token is known, with everything that its logprobs depend on.
template <class T>
struct LogprobRow {
    const Step& step;
    u32 row;
    EditedRow<T, true> view;
    // Whether the row has neither edits nor a mask.
    bool unedited;
    int token;
    float temperature;
    // The key of the row's first token; 0 if the row has none.
    u64 first_key;
    // The row's kept set, if the row has a token.
    GivenSet kept;
};

// Writes the logprobs that `query` lists, in one mode. In mode raw of an edited row, the members' maxima are the maxima
// of the raw logits, which the survey stored with its sums for logprobs.
template <class T>
DEVICE void write_mode(LogprobStorage& storage, RowReduceStorage& reduce, const LogprobRow<T>& target,
                       const Params& params, u32 mode, const LogprobQuery& query) {
    const Step& step = target.step;
    LogprobSections sections{step, target.row};
    Maxima maxima;
    GivenSet given = mode == MODE_PROCESSED ? target.kept : GivenSet{full_cut(), key_logit(target.first_key), true};
    // The only token of a kept set has all of the probability; a forced token has it even at -inf.
    const bool is_alone = mode == MODE_PROCESSED && given.cut.first == given.cut.last;
    bool empty = target.first_key == 0 && !is_alone;
    if (mode == MODE_RAW && !target.unedited) {
        maxima = summed_maxima(step, target.row);
        given.first_value = from_ordered_bits((u32)block_max(reduce, maxima.own_bits()));
        empty = !(given.first_value > MASKED_VALUE);
    } else if (!empty) {
        maxima = maxima_of_set(step, target.row, RowBlocks::alone(reduce), target.view, given);
    }
    if (empty) {
        write_no_members(sections);
        return;
    }
    if (threadIdx.x == 0) {
        storage.query = query;
        storage.members = SetWithMaxima{given, maxima};
    }
    // RAW on storage: thread 0 wrote query and members, all threads read them.
    __syncthreads();
    float temperature = mode == MODE_RAW || mode == MODE_EDITED ? 1.0f : target.temperature;
    bool has_sums = params.features & FEATURE_LOGPROB_SUMS && mode == summed_logprob_mode(params);
    if (temperature == 0.0f || is_alone) {
        write_certain(sections, storage.query, (int)key_id(is_alone ? given.cut.first : target.first_key));
    } else if (mode == MODE_RAW) {
        EditedRow<T, false> raw(step, target.row, step.slots[target.row]);
        write_members(sections, raw, params, has_sums, temperature, storage, reduce);
    } else {
        write_members(sections, target.view, params, has_sums, temperature, storage, reduce);
    }
}

// Writes a row's logprobs in its request's mode, and the token's in its second mode if it has two.
template <class T>
DEVICE void write_logprobs(LogprobStorage& storage, RowReduceStorage& reduce, const LogprobRow<T>& target,
                           const Params& params, const Request& request) {
    const Step& step = target.step;
    float second = -INF_F32;
    bool is_second = has_second_logprob_mode(params);
#pragma unroll 1
    while (true) {
        LogprobQuery query{target.token, request.logprob_ids, request.logprob_id_count, params.top_n};
        if (is_second) {
            query = LogprobQuery{target.token, nullptr, 0, 0};
        }
        const u32 mode = is_second ? second_logprob_mode(params) : first_logprob_mode(params);
        if (mode == MODE_RADIUS) {
            second = row_radius<T>(step, target.row, step.slots[target.row], target.token, target.temperature,
                                   key_logit(target.first_key), target.kept, reduce);
        } else {
            write_mode(storage, reduce, target, params, mode, query);
        }
        if (!is_second) {
            break;
        }
        if (mode != MODE_RADIUS && threadIdx.x == 0) {
            // This thread wrote it where the first mode's logprob is to stand.
            second = bits_float(step.outputs[OUTPUT_LOGPROBS * (u64)step.rows + target.row]);
        }
        // WAR on storage: all threads read it for the second mode, thread 0 then writes it for the first.
        __syncthreads();
        is_second = false;
    }
    if (threadIdx.x == 0) {
        LogprobSections{step, target.row}.set_second(second);
    }
}
