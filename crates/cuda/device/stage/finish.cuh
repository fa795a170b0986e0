// finish.cuh: finishes rows: from the survey's records to the token, its logprobs and the request's next state; device
// functions of a block.
//
// Computes   a row's token, status, temperature and mu; logprobs, ranks and kept set as far as the policy supports
//            them; the request's next state
// Never      reads a padding row's logits; waits for the survey before it must
// Twins      oracle spec/src/oracle.rs | CPU cpu/src/draw.rs | why docs/architecture.md
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: the sections of Layout (spec/src/layout.rs)
// Requires   the survey of the same step before it on the stream, and the kernel `history_edits` if a row has history
//            edits
//
//     read the request, while the survey still runs; wait for the survey
//     padding: NO_TOKEN
//     summarise the row's records                                                empty: NO_TOKEN
//     the cut and the draw:
//         greedy: the row's first token
//         no filter, or min-p: the cut follows from the records; race
//         chains that usually keep few tokens: list candidates, filter the list, draw from it
//         all others, and rows whose list fails or leaves a doubt: filter and race over the whole row
//     a forced token replaces the drawn one
//     the end: logprobs and kept set; results; the request's next state
//
// A row takes little more than the latency of one warp's work, a chain of dependent instructions and loads, whose
// number decides the time. Hence:
//
//  1. All finish kernels share this body, each with a policy that says what the rows of its steps may need. The
//     compiler drops the rest: a kernel for less is faster.
//  2. The block reads the request before it waits for the survey, which does not write it; the dependent kernel may
//     begin at once.
//  3. Loops of one or two rounds are not unrolled. What few rows need is not inlined, so that its registers do not add
//     to the registers of the others.
//  4. Without logprobs and kept sets, thread 0 ends a listed row right after its draw; a thread of another warp
//     advances the request, since two warps do not wait for each other's memory accesses.
//  5. Of a cluster, only the first block draws; the others take part in what reads the whole row.
//
// Tried and left: several records per thread at one row (5.2 us for 4.9); records read again from the cache (5.5); a
// rehearsal on old records (7.7); only the first warp at work after the barrier (0.1 to 0.3 us slower). More is in
// docs/stages/draw.md and filter.md.
#pragma once

#include "math/edits.cuh"
#include "math/sections.cuh"
#include "block/bounded_race.cuh"
#include "stage/draw.cuh"
#include "stage/kept_bits.cuh"
#include "stage/row_result.cuh"
#include "stage/token_logprob.cuh"

// The policies, from the least to the most general; src/requests/step_features.rs chooses the least one that suffices
// for a step's rows. Members:
//     Records         the kind of records that the survey wrote
//     HELPERS         blocks beside the row's first one, which share open tiles if these are many
//     FILTERS         filters besides min-p
//     EDITS           edits and masks
//     TOKEN_LOGPROB   the logprob of the row's token alone, in the modes raw, edited and tempered
//     KEPT            kept sets, the logprob of a token that was drawn from its row's kept set over it, and its radius
//     EVERYTHING      dynamic temperature, mirostat, every filter chain, all logprobs
struct SimplePolicy {
    typedef SurveyRecords Records;
    static constexpr bool HELPERS = true, FILTERS = false;
    static constexpr bool EDITS = false, TOKEN_LOGPROB = false, KEPT = false, EVERYTHING = false;
};

struct SurveyDrawPolicy : SimplePolicy {
    typedef SurveyDrawRecords Records;
    static constexpr bool HELPERS = false;
};

struct CandidatesPolicy : SimplePolicy {
    static constexpr bool HELPERS = false, FILTERS = true;
};

struct CandidatesLogprobPolicy : CandidatesPolicy {
    static constexpr bool EDITS = true, TOKEN_LOGPROB = true;
};

struct CandidatesKeptPolicy : CandidatesLogprobPolicy {
    static constexpr bool KEPT = true;
};

struct GeneralPolicy : CandidatesPolicy {
    static constexpr bool EDITS = true, KEPT = true, EVERYTHING = true;
};

// The fields of its row's request that a block reads before the wait, and the values that it keeps for the row's end.
struct RowInputs {
    int slot;
    // NO_TOKEN if no token is forced.
    int forced;
    u32 features;
    // Of the state what the row's draw and its end use.
    State state;
    FilterChain filter_chain;
    Scales scales;
    RngStream rng;
    // The request's own temperature, which an empty row reports.
    float temperature;
    // The row's status bits.
    u32 status;

    DEVICE_MEMBER void load(const Params& params, const State& own_state, int own_slot, ForcedToken own_forced,
                            const RngStream& own_rng) {
        slot = own_slot;
        forced = own_forced.id;
        status = own_forced.status;
        features = params.features;
        // Not the rest, so that it is not loaded.
        state.position = own_state.position;
        state.mirostat_mu = own_state.mirostat_mu;
        state.length = own_state.length;
        state.step = own_state.step;
        filter_chain = filter_chain_of(params);
        scales = Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
        rng = own_rng;
        temperature = params.temperature;
    }

    // Adds what the row's numbers say, if they are read.
    DEVICE_MEMBER void add_status(const RowSummary& summary) {
        if (!ForcedToken{forced, status}.leaves_unread(features)) {
            status |= summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
        }
    }
};

// A request's parameters and its edited row.
template <class T>
struct EditStorage {
    Params params;
    EditedRow<T, true> view;
};

// The shared memory of a block that finishes a row. Inputs and edited rows lie here because registers are scarce, and
// each read from global memory would add its latency; rows without filters keep their inputs in registers.
template <class Policy, class T>
struct FinishStorage {
    Request request;
    PartIf<Policy::FILTERS, RowInputs> inputs;
    PartIf<Policy::FILTERS, DrawStorage> draw;
    PartIf<!Policy::FILTERS, BoundedRaceStorage> bounded_race;
    PartIf<!Policy::FILTERS, SummaryStorage> summary;
    PartIf<Policy::EDITS, EditStorage<T>> edits;
    PartIf<Policy::FILTERS && !Policy::EDITS, EditedRow<T, false>> unedited;
    PartIf<Policy::TOKEN_LOGPROB, TokenLogprobStorage> token_logprob;
    PartIf<Policy::EVERYTHING, LogprobStorage> logprobs;
};

// A row, its request, and the block's shared memory. `slot`, `forced` and `features` are copies in registers, for use
// up to the draw; later code reads the ones in `inputs`.
template <class Policy, class T>
struct FinishedRow {
    const Step& step;
    u32 row;
    int slot;
    int forced;
    u32 features;
    const Params& params;
    RowInputs& inputs;
    FinishStorage<Policy, T>& storage;

    // Whether the kept set is the row's forced token. Reads the token again, since few rows ask.
    DEVICE_MEMBER bool keeps_forced() const { return forced >= 0 && forced_token(step, row, slot, features).is_kept(); }

    // The blocks that search the row, if its policy has filters.
    DEVICE_MEMBER RowBlocks blocks() const { return RowBlocks::of(storage.draw.filter.search.reduce); }
};

// The result of a row's draw, which its end needs.
struct RowOutcome {
    // The drawn token, or the forced one; NO_TOKEN if the row is empty and no token is forced.
    int token;
    // With EVERYTHING: the key of the row's first token, 0 in an empty row; and mirostat's next mu.
    u64 first_key;
    // The kept set, empty in an empty row.
    GivenSet kept;
    float mirostat_mu;
    // Whether the bits of the kept set, the token's logprob in the summed mode and that over the kept set are written;
    // and whether the whole row is ended.
    bool has_kept_bits;
    bool has_logprob;
    bool has_kept_logprob;
    bool is_ended;

    RowOutcome() = default;
    DEVICE_MEMBER RowOutcome(int token, u64 first_key, GivenSet kept, float mirostat_mu)
        : token(token), first_key(first_key), kept(kept), mirostat_mu(mirostat_mu), has_kept_bits(false),
          has_logprob(false), has_kept_logprob(false), is_ended(false) {}
};

// Writes the results of a row, except logprobs and kept set, and advances its request. Thread 0 writes, and thread
// `advancer` advances: threads of two warps do not wait for each other's memory accesses.
template <class Policy, class T>
DEVICE void write_and_advance(const FinishedRow<Policy, T>& f, int token, float mirostat_mu, u32 advancer) {
    const RowInputs& inputs = f.inputs;
    if (threadIdx.x == advancer && advances(f.step, token)) {
        if (Policy::EVERYTHING) {
            f.step.states[inputs.slot].mirostat_mu = mirostat_mu;
            f.step.states[inputs.slot].mu_before = inputs.state.mirostat_mu;
        }
        advance_request(f.step, f.storage.request, inputs.slot, inputs.features, inputs.state, (u32)token);
    }
    if (threadIdx.x == 0) {
        float temperature = inputs.status & STATUS_EMPTY ? inputs.temperature : inputs.scales.temperature;
        write_result(f.step, f.row, RowResult{token, inputs.status, temperature, mirostat_mu});
    }
}

// As relist_by_first_arrivals does. Not inlined, so that its registers do not add to the registers of other rows' code.
template <class T>
DEVICE_NOINLINE u64 relist_of_row(const Step& step, u32 row, int slot, OpenTiles& open_tiles, RngStream rng, Cut cut,
                                  float first, float log2e_over_t, u64 leader, StridedTiles tiles) {
    return relist_by_first_arrivals(open_tiles, RowRecords(step, row, false), EditedRow<T, false>(step, row, slot), rng,
                                    cut, Origin(first), log2e_over_t, leader, tiles);
}

// Merges the leaders of a row's blocks; by a thread of each. Returns whether this one is the last, and has the best.
DEVICE bool merge_leaders(RowRace& race, u32 blocks, u64& leader) {
    atomicMax(&race.leader, leader);
    // The leader is there before the count.
    __threadfence();
    if (atomicAdd(&race.ended, 1u) + 1 < blocks) {
        return false;
    }
    __threadfence();
    leader = atomicMax(&race.leader, (u64)0);
    race = RowRace{};
    return true;
}

// Draws the token of a row without filters, or with min-p alone, from one reduction of its records. `offset` is the
// result of `min_p_offset`; `own`: which of the row's blocks this is, and of how many.
template <class Policy, class T, class V>
DEVICE RowOutcome draw_unfiltered(const FinishedRow<Policy, T>& f, const RowRecords& records, const V& view,
                                  float offset, const StridedTiles& own) {
    typedef typename Policy::Records Records;
    const Scales& scales = f.inputs.scales;
    RowOutcome outcome(f.forced, 0, GivenSet{}, f.inputs.state.mirostat_mu);
    outcome.is_ended = own.first != 0;
    if (Records::GREEDY && f.features & FEATURE_GREEDY) {
        RowSummary summary = summarise_row(f.storage.summary, records, true);
        f.inputs.add_status(summary);
        outcome.token = f.forced < 0 && summary.first_key != 0 ? (int)key_id(summary.first_key) : f.forced;
        return outcome;
    }
    WarpLeader warp_leader = reduce_warp_leaders<Records>(f.storage.bounded_race, records, scales.log2e_over_t);
    RowSummary summary = summarise_row(warp_leader);
    f.inputs.add_status(summary);
    if (summary.first_key == 0 || f.forced >= 0) {
        return outcome;
    }
    float first = key_logit(summary.first_key);
    const Origin origin(first);
    const FilterChain& chain = f.inputs.filter_chain;
    Cut cut = Records::MIN_P && chain.filters == FILTER_MIN_P
                  ? min_p_cut(first, scales.filter_log2e_over_t, chain.min_p, offset)
                  : full_cut();
    u64 leader = best_leader(warp_leader, cut, origin, scales.log2e_over_t);
    OpenTiles& open_tiles = f.storage.bounded_race.open_tiles;
    if (leader_is_certain(warp_leader, origin, scales.log2e_over_t, leader)) {
        outcome.token = (int)key_id(leader);
    } else if constexpr (!Policy::HELPERS) {
        outcome.token = (int)race_bounded<Records>(open_tiles, records, view, f.inputs.rng, cut, origin,
                                                   scales.log2e_over_t, leader);
    } else {
        list_by_bounds<Records>(open_tiles, records, cut, origin, scales.log2e_over_t, leader);
        // All blocks of the row have the same records, and so list as many tiles.
        const bool many = are_many(open_tiles);
        if (many) {
            leader = relist_of_row<T>(f.step, f.row, f.slot, open_tiles, f.inputs.rng, cut, first, scales.log2e_over_t,
                                      leader, own);
        } else if (own.first != 0) {
            return outcome;
        }
        leader =
            race_open_tiles<Records>(open_tiles, records, view, f.inputs.rng, cut, origin, scales.log2e_over_t, leader);
        if (many && own.tile_stride > 1) {
            outcome.is_ended = threadIdx.x != 0 || !merge_leaders(f.step.races[f.row], own.tile_stride, leader);
        }
        outcome.token = (int)key_id(leader);
    }
    return outcome;
}

// Finds the id of a row's first token, which `storage.tested.summary` then has, for all threads. Not inlined, as few
// rows need it.
DEVICE_NOINLINE void find_first_id(const Step& step, u32 row, DrawStorage& storage) {
    // WAR on storage.summary: slower warps may still read the row's first summary, which lacks the id.
    __syncthreads();
    const RowSummary summary = summarise_row(storage.summary, RowRecords(step, row, false), true);
    if (threadIdx.x == 0) {
        storage.tested.summary = summary;
    }
    // RAW on tested.summary: thread 0 wrote it, all threads read it.
    __syncthreads();
}

// Draws the token of a row whose candidate list failed or left a doubt, or whose filters are never tried on a list.
// `storage.tested` has the row's summary, its first token's id only with `has_id`. The results are in `storage`. Not
// inlined, so that its registers do not add to the registers of other rows' code.
template <class T, bool EDITED>
DEVICE_NOINLINE void draw_whole_row(const Step& step, u32 row, const EditedRow<T, EDITED>& view,
                                    const RowInputs& inputs, bool has_id, DrawStorage& storage) {
    TestedDraw& tested = storage.tested;
    const bool is_tested = inputs.forced < 0 && tested.chain.is_tested;
    // RAW on tested.summary: thread 0 wrote it, all threads read it.
    __syncthreads();
    // A chain that begins with the tested filters needs the row's first logit, but not its id.
    if (!has_id && !(is_tested && tested.chain.before == 0)) {
        find_first_id(step, row, storage);
        has_id = true;
    }
    if (is_tested && draw_and_test(step, row, inputs.slot, view, storage.filter, storage.race, tested)) {
        if (threadIdx.x == 0) {
            storage.row_draw = RowDraw{(int)tested.token, inputs.state.mirostat_mu};
        }
        // RAW on row_draw: thread 0 wrote it, all threads of the caller read it.
        __syncthreads();
        return;
    }
    if (!has_id) {
        find_first_id(step, row, storage);
    }
    filter_and_race<T, EDITED>(step, row, inputs.slot, inputs.forced < 0, tested.summary.first_key, inputs.scales,
                               storage);
}

// Draws from the row's candidate list. Returns whether the list decides the row; otherwise the row must be searched.
// Without logprobs and kept sets thread 0 ends the row right after its draw. With TOKEN_LOGPROB the warps that have no
// part in the draw prepare the candidates' logprobs meanwhile; if the block is one warp, it does so after its draw.
template <class Policy, class T, class V>
DEVICE bool draw_from_list(const FinishedRow<Policy, T>& f, const RowRecords& records, const V& view,
                           const RowSummary& summary, RowOutcome& outcome) {
    RowInputs& inputs = f.inputs;
    DrawStorage& storage = f.storage.draw;
    CandidateList& list = storage.filter.search.candidates;
    constexpr bool ENDS_ROW = !Policy::TOKEN_LOGPROB && !Policy::EVERYTHING;
    u64 mass;
    if (!list_candidates<true>(storage.filter, f.step, records, view, inputs.filter_chain, inputs.rng, summary,
                               inputs.scales.filter_log2e_over_t, mass)) {
        if (threadIdx.x == 0) {
            storage.tested.mass = mass;
        }
        return false;
    }
    auto end = [&](u32 token, bool is_certain) INLINE {
        if (ENDS_ROW && is_certain) {
            write_and_advance(f, (int)token, inputs.state.mirostat_mu, 0);
        }
    };
    auto meanwhile = [&]() INLINE {
        if constexpr (Policy::TOKEN_LOGPROB) {
            u32 drawing = warp_count() > 1 ? 1 : 0;
            if (f.features & FEATURE_LOGPROB_SUMS && warp_id() >= drawing) {
                prepare_candidate_logprobs<T>(f.storage.token_logprob, list, f.step, f.row, f.params, view.row,
                                              warp_id() - drawing, warp_count() - drawing);
            }
        }
    };
    const ListDraw& drawn = storage.list_draw;
    draw_from_candidates(
        storage.list_draw, list, inputs.filter_chain, inputs.scales, mass,
        [&]() INLINE { return xtc_acts(f.params, inputs.state); }, end, meanwhile);
    outcome.token = (int)drawn.token;
    outcome.kept = drawn.kept;
    if constexpr (Policy::KEPT) {
        if (f.step.kept_bits != nullptr && drawn.is_certain) {
            set_listed_bits(kept_words(f.step, f.row), list, drawn.kept.cut);
        }
        outcome.has_kept_bits = true;
    }
    outcome.is_ended = ENDS_ROW;
    if constexpr (Policy::TOKEN_LOGPROB) {
        const Params& params = f.storage.edits.params;
        TokenLogprobStorage& token_logprob = f.storage.token_logprob;
        u32 before = token_logprob.ranks[drawn.index];
        outcome.has_logprob = drawn.is_certain && before < RANK_UNKNOWN;
        if (outcome.has_logprob && f.features & FEATURE_LOGPROB_SUMS && threadIdx.x == 0) {
            set_token_logprob(LogprobSections{f.step, f.row}, params, summed_logprob_mode(params),
                              token_logprob.terms.of(token_logprob.logits[drawn.index]), before + 1);
        }
        outcome.has_kept_logprob = !Policy::KEPT || (drawn.kept.is_prefix && !(f.features & FEATURE_TEMPERATURE_LAST));
        // Threads of two warps do not wait for each other's memory accesses.
        if (Policy::KEPT && f.features & FEATURE_LOGPROBS && outcome.has_kept_logprob && drawn.is_certain &&
            threadIdx.x == (warp_count() > 1 ? 32 : 0) && needs_kept_logprob(params)) {
            write_listed_logprob(f.step, f.row, params, list, drawn.index, drawn.end, inputs.scales.temperature);
        }
    }
    return drawn.is_certain;
}

// Finds the mass of a row, if its draw needs it, while the first block tries a list.
DEVICE void weigh_meanwhile(DrawStorage& storage) {
    TestedDraw& tested = storage.tested;
    // RAW on tested.summary: thread 0 wrote it, all threads read it.
    __syncthreads();
    if (tested.chain.is_tested && tested.chain.has_sums) {
        const u64 mass = survey_mass(tested, storage.filter.search.reduce);
        if (threadIdx.x == 0) {
            tested.mass = mass;
        }
    }
}

// Returns the row as its policy edits it, in shared memory.
template <class Policy, class T>
DEVICE const EditedRow<T, Policy::EDITS>& row_view(const FinishStorage<Policy, T>& storage) {
    if constexpr (Policy::EDITS) {
        return storage.edits.view;
    } else {
        return storage.unedited;
    }
}

// Draws the token of a row by its filters: finds the cut, from the records, from a candidate list or by a search, and
// races what it keeps. All blocks of the row call it; its result is valid in the first one. The others take part
// in what reads the whole row, and otherwise return at once.
template <class Policy, class T, class V>
DEVICE RowOutcome draw_filtered(const FinishedRow<Policy, T>& f, const RowRecords& records, const V& view) {
    const Step& step = f.step;
    RowInputs& inputs = f.inputs;
    DrawStorage& storage = f.storage.draw;
    // The barrier inside also serves what was loaded before the wait: all threads wrote parts of it, and all read it
    // from here on (RAW).
    const bool has_id = Policy::EVERYTHING || f.features & FEATURE_GREEDY || !(f.features & FEATURE_CANDIDATES);
    RowSummary summary = summarise_row(storage.summary, records, has_id);
    const u64 first = summary.first_key;
    if (threadIdx.x == 0) {
        inputs.add_status(summary);
        storage.tested.summary = summary;
    }
    RowOutcome outcome(f.forced, first, GivenSet{empty_cut(), 0.0f, true}, inputs.state.mirostat_mu);
    const bool keeps_forced = Policy::KEPT && f.keeps_forced();
    if (keeps_forced) {
        const u64 key = make_key(view.logit((u32)f.forced), (u32)f.forced);
        outcome.kept = GivenSet{Cut{key, key}, key_logit(key), true};
    }
    if (first == 0) {
        return outcome;
    }
    if (!Policy::EVERYTHING && f.forced >= 0) {
        // Nothing is drawn, and no output needs what the filters keep.
        return outcome;
    }
    const RowBlocks blocks = f.blocks();
    u32 calls = 0;
    if (Policy::EVERYTHING && f.features & FEATURE_DYNAMIC_TEMPERATURE) {
        blocks.join(++calls);
        find_temperature<T, Policy::EDITS>(step, f.row, f.slot, first, storage.filter);
        if (threadIdx.x == 0) {
            inputs.scales = storage.tested.scales = storage.filter.scales;
        }
        // RAW on inputs.scales: thread 0 wrote them, all threads read them.
        __syncthreads();
    }
    if (keeps_forced) {
        return outcome;
    }
    const bool uses_lists = !(step.flags & STEP_NO_CANDIDATES);
    const u64 filters = inputs.filter_chain.filters;
    outcome.kept = GivenSet{Cut{first, first}, key_logit(first), true};
    if (f.features & FEATURE_GREEDY || (Policy::EVERYTHING && inputs.scales.temperature == 0.0f)) {
        outcome.token = (int)key_id(first);
    } else if ((filters == 0 || filters == FILTER_MIN_P) && uses_lists &&
               !(Policy::EVERYTHING && f.params.chain == CHAIN_GENERAL)) {
        float threshold = inputs.filter_chain.min_p, log2e_over_t = inputs.scales.filter_log2e_over_t;
        GivenSet kept{filters == 0 ? full_cut() : min_p_cut(outcome.kept.first_value, log2e_over_t, threshold),
                      outcome.kept.first_value, true};
        outcome.kept.cut.last = kept.cut.last;
        if (f.forced < 0 && blocks.is_first()) {
            outcome.token = (int)race(RowBlocks::alone(blocks.storage), storage.race, records, view, inputs.rng, kept,
                                      inputs.scales.log2e_over_t);
        }
    } else {
        bool is_listed = false;
        if (f.features & FEATURE_CANDIDATES && uses_lists) {
            if (blocks.is_first()) {
                is_listed = draw_from_list(f, records, view, summary, outcome);
            } else {
                weigh_meanwhile(storage);
            }
            is_listed = is_listed || !f.blocks().join(++calls);
        }
        if (!is_listed) {
            draw_whole_row(step, f.row, row_view<Policy, T>(f.storage), inputs, has_id, storage);
            outcome = RowOutcome(storage.row_draw.token, first, storage.filter.kept, storage.row_draw.mirostat_mu);
        } else {
            // The row's list decides it, and its first block does all that is left.
            outcome.has_kept_bits = true;
        }
    }
    if (Policy::EVERYTHING && inputs.forced >= 0) {
        // A known token replaces the drawn one.
        outcome.token = inputs.forced;
    }
    return outcome;
}

// Writes the logprobs that a row's request needs. Not inlined, so that its registers do not add to the kernel's.
template <class T>
DEVICE_NOINLINE void write_row_logprobs(const Step& step, u32 row, int slot, int token, float temperature, u64 first,
                                        GivenSet kept, LogprobStorage& storage, RowReduceStorage& reduce) {
    RowContext<T, true> context(step, row, slot);
    LogprobRow<T> target{step, row, context.view, !context.view.edits.any(), token, temperature, first, kept};
    write_logprobs(storage, reduce, target, context.params, step.requests[slot]);
}

// Ends a row whose token is known: logprobs, results, the request's next state.
template <class Policy, class T>
DEVICE void end_row(const FinishedRow<Policy, T>& f, const RowOutcome& outcome) {
    if constexpr (Policy::TOKEN_LOGPROB) {
        if (f.features & FEATURE_LOGPROBS && outcome.token != NO_TOKEN) {
            const u32 id = (u32)outcome.token;
            const Params& params = f.storage.edits.params;
            const bool keeps_forced = f.keeps_forced();
            if (keeps_forced && has_logprob_mode(params, MODE_PROCESSED)) {
                if (threadIdx.x == 0) {
                    set_token_logprob(LogprobSections{f.step, f.row}, params, MODE_PROCESSED, 0.0f, 1);
                }
            } else if (Policy::KEPT && !outcome.has_kept_logprob && needs_kept_logprob(params)) {
                write_kept_logprob<T>(f.step, f.row, f.slot, id, f.inputs.scales.temperature, outcome.kept,
                                      f.storage.token_logprob, f.storage.draw.filter.search.reduce);
            }
            if (f.features & FEATURE_LOGPROB_SUMS && !outcome.has_logprob &&
                !(keeps_forced && summed_logprob_mode(params) == MODE_PROCESSED)) {
                write_token_logprob<T>(f.step, f.row, f.slot, id, f.storage.token_logprob);
            }
            if (Policy::KEPT && has_logprob_mode(params, MODE_RADIUS)) {
                const float radius =
                    row_radius<T>(f.step, f.row, f.slot, outcome.token, f.inputs.scales.temperature,
                                  key_logit(outcome.first_key), outcome.kept, f.storage.draw.filter.search.reduce);
                if (threadIdx.x == 0) {
                    LogprobSections{f.step, f.row}.set_second(radius);
                }
                // WAR on the token counts: slower warps still read logits edited by them, one thread then counts the
                // token.
                __syncthreads();
            }
        }
    }
    if constexpr (Policy::EVERYTHING) {
        if (f.features & FEATURE_LOGPROBS) {
            write_row_logprobs<T>(f.step, f.row, f.slot, outcome.token, f.inputs.scales.temperature, outcome.first_key,
                                  outcome.kept, f.storage.logprobs, f.storage.draw.filter.search.reduce);
        }
        // WAR on the token counts: slower warps still read logits edited by them, one thread then counts the token.
        __syncthreads();
    }
    const float mirostat_mu = Policy::EVERYTHING ? outcome.mirostat_mu : f.inputs.state.mirostat_mu;
    write_and_advance(f, outcome.token, mirostat_mu, Policy::FILTERS ? blockDim.x - 32 : 0);
}

// Reads what a row needs of its request, before the wait: the survey does not write it, so these loads overlap with it.
// With filters this takes about as long as the survey's end, so what can wait is left for later.
template <class Policy, class T>
DEVICE void begin_row(const FinishedRow<Policy, T>& f, ForcedToken forced, bool is_first) {
    const Step& step = f.step;
    const int source = f.slot < 0 ? 0 : f.slot;
    const Params& params = step.params[source];
    FinishStorage<Policy, T>& storage = f.storage;
    if constexpr (Policy::EDITS) {
        if (threadIdx.x < sizeof(Params) / 4) {
            ((u32*)&storage.edits.params)[threadIdx.x] = ((const u32*)&params)[threadIdx.x];
        }
    }
    if (!Policy::FILTERS || threadIdx.x == 0) {
        State state = step.states[source];
        if (Policy::EVERYTHING) {
            // In a step of known tokens the rows are consecutive positions of one request.
            state.position += step.flags & STEP_KNOWN_TOKENS ? f.row : 0;
        }
        // Where no filter acts, no row is marked: such a row's step has kernels that filter.
        const RngStream own = own_stream(params, state);
        f.inputs.load(params, state, f.slot, forced, Policy::FILTERS ? race_stream(params, state) : own);
        if constexpr (Policy::EDITS) {
            EditMasks edits(step, f.row, source, f.features);
            storage.edits.view =
                EditedRow<T, true>(LogitsRow<T>(step, f.row), edits, storage.edits.params, storage.request, state.step);
        }
    }
    if constexpr (Policy::KEPT) {
        // Nothing reads these bits any more: kernels and copies from before this step are done.
        clear_kept_bits(step, f.row);
    }
    if constexpr (Policy::FILTERS) {
        if (threadIdx.x == 0) {
            storage.draw.tested.chain = TestedChain(step, params);
            storage.draw.tested.rng = f.inputs.rng;
            storage.draw.tested.scales = f.inputs.scales;
            storage.draw.tested.records = step.records + (u64)f.row * step.tiles;
            storage.draw.tested.filter_sums =
                f.features & FEATURE_FILTER_SUMS ? step.filter_sums + (u64)f.row * step.tiles : nullptr;
            storage.draw.tested.tiles = step.tiles;
            storage.draw.tested.mass = 0;
            if constexpr (!Policy::EDITS) {
                (EditedRow<T, false>&)storage.unedited = EditedRow<T, false>(step, f.row, source);
            }
        }
        // Before the other blocks may write words to where the candidates lie.
        clear(storage.draw.filter.search.candidates);
        RowBlocks::begin(storage.draw.filter.search.reduce);
    }
    if constexpr (Policy::TOKEN_LOGPROB) {
        clear(storage.token_logprob);
    }
    // Last, as it depends on `features`, which is loaded by now.
    load_request(storage.request, step, source, f.features);
    if (!Policy::FILTERS && is_first && f.slot >= 0) {
        // Nothing reads these outputs any more: kernels and copies from before this step are done.
        write_no_logprobs(step, f.row);
    }
}

// Returns where a row's inputs lie: in shared memory, or in the thread's registers.
template <class Policy, class T>
DEVICE RowInputs& row_inputs(FinishStorage<Policy, T>& storage, RowInputs& in_registers) {
    if constexpr (Policy::FILTERS) {
        return storage.inputs;
    } else {
        return in_registers;
    }
}

// Finishes a row. Without filters `own` is which of the row's blocks this is, and of how many.
template <class Policy, class T>
DEVICE void finish_row(const Step& step, u32 row, const StridedTiles& own, FinishStorage<Policy, T>& storage) {
    const int slot = step.slots[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    const ForcedToken forced = forced_token(step, row, slot, Policy::FILTERS ? params.features : 0);
    RowInputs in_registers;
    RowInputs& inputs = row_inputs<Policy, T>(storage, in_registers);
    const FinishedRow<Policy, T> f{step, row, slot, forced.id, params.features, params, inputs, storage};
    const bool is_first = Policy::FILTERS ? cluster_ctarank() == 0 : own.first == 0;
    if (!is_first && Policy::HELPERS && (slot < 0 || forced.id >= 0 || f.features & FEATURE_GREEDY)) {
        return;
    }
    begin_row(f, forced, is_first);
    const EditedRow<T, false> unedited(step, row, slot);
    float offset = 0.0f;
    if (!Policy::FILTERS && Policy::Records::MIN_P) {
        // The division inside overlaps with the survey; `opaque` keeps the compiler from moving it after the wait.
        offset = opaque(min_p_offset(inputs.filter_chain.min_p, inputs.scales.filter_log2e_over_t));
    }
    grid_dependency_wait();
    if (slot < 0) {
        if (is_first) {
            write_padding(step, row);
        }
        return;
    }

    const RowRecords records(step, row, Policy::FILTERS && f.features & FEATURE_FILTER_SUMS);
    if (Policy::FILTERS && is_first && !(Policy::EVERYTHING && f.features & FEATURE_LOGPROBS)) {
        // This overlaps with the loads of the records.
        write_no_logprobs(step, row);
    }
    RowOutcome outcome;
    if constexpr (!Policy::FILTERS) {
        outcome = draw_unfiltered(f, records, unedited, offset, own);
    } else {
        if constexpr (Policy::TOKEN_LOGPROB) {
            if (is_first && f.features & FEATURE_LOGPROB_SUMS) {
                store_warp_maxima(storage.token_logprob, step, row);
            }
        }
        if constexpr (Policy::EDITS) {
            outcome = draw_filtered(f, records, storage.edits.view);
        } else {
            outcome = draw_filtered(f, records, unedited);
        }
    }
    if constexpr (Policy::KEPT) {
        if (step.kept_bits != nullptr && !outcome.has_kept_bits && !outcome.kept.cut.is_empty()) {
            set_kept_bits<T, Policy::EDITS>(step, row, slot, outcome.kept.cut, storage.draw.filter.search.reduce);
        }
    }
    if ((is_first || Policy::HELPERS) && !outcome.is_ended) {
        end_row(f, outcome);
    }
}

// The body of a finish kernel: one block per row, or one cluster if the policy has filters. With HELPERS the first
// blocks of all rows come first, then their second ones, and so on.
template <class Policy, class T>
DEVICE void finish_rows(const Step& step) {
    __shared__ FinishStorage<Policy, T> storage;
    // A dependent kernel may begin now. params_from_columns.cu, which writes the next requests, waits for this grid
    // first.
    trigger_dependents();
    const u32 rank = Policy::HELPERS ? blockIdx.x / step.rows : 0, count = Policy::HELPERS ? gridDim.x / step.rows : 1;
    const u32 row = Policy::FILTERS ? blockIdx.x / cluster_nctarank() : blockIdx.x - rank * step.rows;
    finish_row<Policy, T>(step, row, StridedTiles{rank, count}, storage);
}
