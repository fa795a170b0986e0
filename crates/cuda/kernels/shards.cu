// shards.cu: a step over rows of which each rank has a part, its shard: ranks send each other only the words that
// decide a row.
//
// Computes   survey_shards_*: the records of each shard's tiles, as survey.cu makes them of whole rows
//            finish_shards_*: a row's token, status and temperature, and the request's next state, on every rank. Rows
//            of drafts stand between begin_drafts and end_drafts of all requests, on every rank, and change no request
//            finish_shard_lists_*: the same, of rows with filter chains that begin with top-k too
//            survey_edited_shards_*, finish_edited_shards_*: the same, of rows with masks and edits too, which each
//                rank
//            applies to the ids of its shard
// Never      sends logits, except for the listed tokens; reads the padding after a shard; waits past the timeout
// Twins      CPU dist/src/survey.rs and engine/src/ranks/survey.rs | why docs/scaling.md
// Shapes     step.logits [rows, step.vocab] of T, from the start of the shard's first tile on; step.records [rows,
//            tiles]; step.outputs: the results of the batch in this rank's window
// Grid       survey_*: as survey.cu and survey_edited.cu. finish_*: x = row; whole warps up to FINISH_SHARDS_THREADS
//            threads. A block waits for the blocks of its row on the other ranks only, so blocks may run one after the
//            other. finish_*_many have so few registers that two blocks fit a multiprocessor: they are for more rows
//            than there are multiprocessors
// Traffic    out, for each row and other rank: 16 bytes for a greedy row, 24 for a sampled one; 16 and 16 for each of
//            the first k tokens, if a list decides
// Requires   windows of all ranks, mapped for writes; no kept sets; finish_shards_*: no chains that begin with top-k.
//            Other rows than is_decided accepts (stage/shard.cuh) are left out, if there are `swap_slots` to name them
//
//     greedy, forced: each rank sends its first token; the first of these is the row's
//     sampled:        each rank sends its maximum, as scores are relative to the row's (D1); races its shard;
//                     sends the winner
//     top-k:          each rank sends its first k tokens; each merges the lists, filters the first k of them and draws
//
// Each "sends" above is one latency of the links, and little else may take as long:
//
//  1. All ranks compute the same results from the same words, so no rank owns a row, and no rank sends results.
//  2. A word travels with its turn and is its own flag (stage/exchange.cuh). Lane i of the first warp waits for rank i,
//     so all ranks are waited for at once.
//  3. A list's keys are sent first, then their number, so that both are on the way at once. A thread per key finds the
//     key's place in the merged list, by a search of every other rank's list.
//  4. The request's fields, and the divisions that depend on them alone, come before the wait.

#include "block/bounded_race.cuh"
#include "math/sections.cuh"
#include "stage/draw.cuh"
#include "stage/first_tokens.cuh"
#include "stage/logprobs.cuh"
#include "stage/row_result.cuh"
#include "stage/shard.cuh"
#include "stage/survey_edited_rows.cuh"
#include "stage/survey_rows.cuh"
#include "warp/edited_row.cuh"

// The values that the first warp of a block computes from the words of all ranks, for all threads of the block.
struct Agreed {
    // The largest of the ranks' maxima, as ordered bits.
    u32 maximum;
    u32 nonfinite_flags;
    // The best of the ranks' keys or leaders, 0 if no rank has one.
    u64 best;
    bool has_failed;
};

static_assert(SHARD_WORD_KEYS + 2 * MAX_LISTED_TOP_K <= SHARD_WORDS, "a rank may send as many keys as a list has");

struct ListStorage {
    CandidateList list;
    // How many tokens each rank lists, and their keys.
    u32 counts[MAX_SURVEYED_RANKS];
    u64 keys[MAX_SURVEYED_RANKS][MAX_LISTED_TOP_K];
    ListDraw list_draw;
    u32 searched;
    ReduceStorage reduce;
};

template <bool LISTS>
struct ShardStorage {
    Request request;
    Agreed agreed;
    SummaryStorage summary;
    BoundedRaceStorage bounded_race;
    PartIf<LISTS, ListStorage> lists;
};

// A row's slot and forced token, and the fields of its request that a block reads before it waits.
struct ShardInputs {
    int slot;
    ForcedToken forced;
    u32 features;
    State state;
    FilterChain chain;
    Scales scales;
    // The request's own temperature, which a row without tokens reports.
    float temperature;
    // The result of min_p_offset.
    float min_p_offset;

    DEVICE_MEMBER ShardInputs(const Step& step, u32 row, bool edited) : slot(step.slots[row]) {
        const Params& params = step.params[slot < 0 ? 0 : slot];
        features = params.features;
        forced = forced_token(step, row, slot, edited ? features : 0);
        state = step.states[slot < 0 ? 0 : slot];
        chain = filter_chain_of(params);
        scales = Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
        temperature = params.temperature;
        min_p_offset = opaque(::min_p_offset(chain.min_p, scales.filter_log2e_over_t));
    }
};

// Sends words to all other ranks, and receives theirs; by a warp. Lane i returns the words of rank i in `words`, and
// lanes beyond the last rank zeros. Returns false in every lane if a word does not come in time.
template <u32 COUNT>
DEVICE bool swap_words(const RowWords& row, u32 index, u32 (&words)[COUNT]) {
    const Peers& peers = row.args.peers;
    const u32 rank = lane_id();
    const bool is_peer = rank < peers.world && rank != peers.rank;
    for (u32 i = 0; is_peer && i < COUNT; i++) {
        row.send(rank, index + i, words[i]);
    }
    // No lane waits before all have sent.
    __syncwarp();
    bool has_come = true;
    for (u32 i = 0; i < COUNT; i++) {
        words[i] = rank < peers.world ? words[i] : 0;
        if (is_peer) {
            has_come &= row.receive(rank, index + i, words[i]);
        }
    }
    return __ballot_sync(FULL_MASK, !has_come) == 0;
}

// Bits 0 to 29 of the second word of a key or a leader are its id; bits 30 and 31 are status bits.
#define ID_WORD_BITS 30
static_assert(MAX_TILES * TILE <= 1u << ID_WORD_BITS && (STATUS_NAN | STATUS_INF) < 1u << (32 - ID_WORD_BITS),
              "an id and two status bits share a word");

// Finds the best of the ranks' keys or leaders, of which `own` is this rank's, with an id of the vocabulary; by the
// whole block. `own` and the flags are the same in all lanes of the first warp. A barrier must precede if threads still
// read `agreed`.
DEVICE void agree_on_best(const RowWords& row, Agreed& agreed, u64 own, u32 nonfinite_flags) {
    if (warp_id() == 0) {
        u32 words[] = {(u32)(own >> 32), (own != 0 ? key_id(own) : 0) | nonfinite_flags << ID_WORD_BITS};
        bool has_come = swap_words(row, SHARD_WORD_BEST, words);
        const u32 id = words[1] & ((1u << ID_WORD_BITS) - 1);
        const bool is_wrong = id >= row.args.vocab;
        if (is_wrong) {
            fail(window_header(row.args.peers, row.args.peers.rank), FAILURE_CORRUPT, lane_id());
        }
        has_come &= __ballot_sync(FULL_MASK, is_wrong) == 0;
        const u64 best = warp_max(words[0] != 0 ? (u64)words[0] << 32 | (u32)~id : 0);
        nonfinite_flags = __reduce_or_sync(FULL_MASK, words[1] >> ID_WORD_BITS);
        if (lane_id() == 0) {
            agreed.best = best;
            agreed.nonfinite_flags = nonfinite_flags;
            agreed.has_failed = !has_come;
        }
    }
    // RAW on agreed: the first warp wrote it, all threads read it.
    __syncthreads();
}

// Finds the row's maximum, of which `own` is the shard's, as ordered bits; by the whole block.
DEVICE void agree_on_maximum(const RowWords& row, Agreed& agreed, u32 own) {
    if (warp_id() == 0) {
        u32 words[] = {own};
        const bool has_come = swap_words(row, SHARD_WORD_MAXIMUM, words);
        const u32 maximum = __reduce_max_sync(FULL_MASK, words[0]);
        if (lane_id() == 0) {
            agreed.maximum = maximum;
            agreed.has_failed = !has_come;
        }
    }
    // RAW on agreed: the first warp wrote it, all threads read it.
    __syncthreads();
}

// Finds the row's first token among the first tokens of all shards.
template <class Storage>
DEVICE void agree_on_first(const RowWords& row, Storage& storage, const RowRecords& records) {
    const RowSummary summary = summarise_row(storage.summary, records, true);
    agree_on_best(row, storage.agreed, in_vocabulary(row.args, summary.first_key), summary.nonfinite_flags);
}

// Draws the token of a row without filters, or with min-p alone: the best of the winners of all shards.
template <class Storage, class Shard>
DEVICE void agree_on_winner(const RowWords& row, Storage& storage, const RowRecords& records, const Shard& shard,
                            const ShardStream& rng, const ShardInputs& inputs) {
    const float log2e_over_t = inputs.scales.log2e_over_t;
    const WarpLeader warp_leader = reduce_warp_leaders<SurveyRecords>(storage.bounded_race, records, log2e_over_t);
    const RowSummary summary = summarise_row(warp_leader);
    agree_on_maximum(row, storage.agreed, (u32)(summary.first_key >> 32));
    const float first = from_ordered_bits(storage.agreed.maximum);
    u64 leader = 0;
    // All threads see one summary and one maximum: barriers follow.
    if (summary.first_key != 0 && !storage.agreed.has_failed) {
        const Origin origin(first);
        const Cut cut = inputs.chain.filters == FILTER_MIN_P ? min_p_cut(first, inputs.scales.filter_log2e_over_t,
                                                                         inputs.chain.min_p, inputs.min_p_offset)
                                                             : full_cut();
        if (key_logit(summary.first_key) >= cut.low()) {
            leader = best_leader(warp_leader, cut, origin, log2e_over_t);
            if (!leader_is_certain(warp_leader, origin, log2e_over_t, leader)) {
                leader = bounded_race_leader<SurveyRecords>(storage.bounded_race.open_tiles, records, shard, rng, cut,
                                                            origin, log2e_over_t, leader);
            }
        }
    }
    const bool has_failed = storage.agreed.has_failed;
    // WAR on agreed: all threads read it, the first warp writes it.
    __syncthreads();
    if (!has_failed) {
        agree_on_best(row, storage.agreed, in_vocabulary(row.args, leader), summary.nonfinite_flags);
    }
}

// Receives the other ranks' lists; by the whole block. Returns false if a key does not come in time, or has an id
// outside the vocabulary.
DEVICE bool receive_lists(const RowWords& row, ListStorage& lists) {
    const Peers& peers = row.args.peers;
    bool succeeds = true;
    for (u32 rank = 0; rank < peers.world; rank++) {
        const u32 count = rank == peers.rank ? 0 : lists.counts[rank];
        for (u32 i = threadIdx.x; i < count && succeeds; i += blockDim.x) {
            u32 words[2];
            succeeds = row.receive(rank, SHARD_WORD_KEYS + 2 * i, words[0]) &&
                       row.receive(rank, SHARD_WORD_KEYS + 2 * i + 1, words[1]);
            const u64 key = (u64)words[0] << 32 | words[1];
            if (succeeds && key_id(key) >= row.args.vocab) {
                fail(window_header(peers, peers.rank), FAILURE_CORRUPT, rank);
                succeeds = false;
            }
            lists.keys[rank][i] = key;
        }
    }
    return !__syncthreads_or(!succeeds);
}

// Returns how many keys of a list in falling order are larger than a key.
DEVICE u32 count_larger(const u64* keys, u32 count, u64 key) {
    u32 low = 0;
    while (low < count) {
        const u32 middle = (low + count) / 2;
        if (keys[middle] > key) {
            low = middle + 1;
        } else {
            count = middle;
        }
    }
    return low;
}

// Merges the ranks' lists: the first k tokens of the row, or all if there are fewer, in order in `list.keys`. Returns
// their number. In some thread `wrong` becomes a rank, other than `own` if that is right, whose list does not fall or
// has a token of another: the merged list would have places without a token. A barrier must follow before it is read.
DEVICE u32 merge_lists(ListStorage& lists, u32 world, u32 own, u32 k, u32& wrong) {
    u32 total = 0;
    for (u32 rank = 0; rank < world; rank++) {
        total += lists.counts[rank];
        for (u32 i = threadIdx.x; i < lists.counts[rank]; i += blockDim.x) {
            const u64 key = lists.keys[rank][i];
            u32 before = i;
            wrong = i > 0 && lists.keys[rank][i - 1] <= key ? rank : wrong;
            for (u32 other = 0; other < world; other++) {
                if (other != rank) {
                    const u32 larger = count_larger(lists.keys[other], lists.counts[other], key);
                    const bool is_twice = larger < lists.counts[other] && lists.keys[other][larger] == key;
                    wrong = is_twice ? (other != own ? other : rank) : wrong;
                    before += larger;
                }
            }
            if (before < k) {
                lists.list.keys[before] = key;
            }
        }
    }
    return total < k ? total : k;
}

// Computes how much each of the row's first tokens adds to the mass (M4). The first token of a token's tile precedes it
// on the list.
DEVICE void compute_gains(CandidateList& list, u32 count, float log2e_over_t) {
    const float first = key_logit(list.keys[0]);
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 own = list.keys[i];
        const u32 tile = key_id(own) / TILE;
        u32 leader = 0;
        while (key_id(list.keys[leader]) / TILE != tile) {
            leader++;
        }
        const float maximum = key_logit(list.keys[leader]), factor = tile_factor(maximum, first, log2e_over_t);
        const TokenWeights token_weights(maximum, log2e_over_t);
        u64 q = leader < i ? MAX_WEIGHT : 0;
        for (u32 j = leader + 1; j < i; j++) {
            const u64 key = list.keys[j];
            q += key_id(key) / TILE == tile ? token_weights.of(key_logit(key)) : 0;
        }
        const u64 weight = leader < i ? token_weights.of(key_logit(own)) : MAX_WEIGHT;
        list.gains[i] = tile_mass(factor, q + weight) - tile_mass(factor, q);
    }
}

// Draws the token of a row whose first filter looks at the first k tokens alone, from the first k tokens of all shards.
// Returns false if a word does not come in time, or is wrong.
template <class Shard>
DEVICE bool draw_from_lists(const RowWords& row, ShardStorage<true>& storage, const RowRecords& records,
                            const Shard& shard, const ShardInputs& inputs) {
    const Step& step = row.args.step;
    const Peers& peers = row.args.peers;
    const Params& params = step.params[inputs.slot];
    ListStorage& lists = storage.lists;
    CandidateList& list = lists.list;
    const u32 listed = inputs.chain.first_tokens, k = listed < MAX_LISTED_TOP_K ? listed : MAX_LISTED_TOP_K;
    const float log2e_over_t = inputs.scales.filter_log2e_over_t;
    const RowSummary summary = summarise_row(storage.summary, records, false);
    u32 count = 0;
    if (summary.first_key != 0) {
        list_first_tokens(list, lists.searched, lists.reduce, records, shard, summary, step.vocab, k, log2e_over_t);
        count = list.count() < k ? list.count() : k;
    }
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        const u64 key = in_vocabulary(row.args, list.ordered[i]);
        lists.keys[peers.rank][i] = key;
        for (u32 rank = 0; rank < peers.world; rank++) {
            if (rank != peers.rank) {
                row.send(rank, SHARD_WORD_KEYS + 2 * i, (u32)(key >> 32));
                row.send(rank, SHARD_WORD_KEYS + 2 * i + 1, (u32)key);
            }
        }
    }
    if (warp_id() == 0) {
        u32 words[] = {count, summary.nonfinite_flags};
        const bool has_come = swap_words(row, SHARD_WORD_BEST, words);
        const u32 nonfinite_flags = __reduce_or_sync(FULL_MASK, words[1]);
        if (lane_id() < MAX_SURVEYED_RANKS) {
            lists.counts[lane_id()] = words[0] < k ? words[0] : k;
        }
        if (lane_id() == 0) {
            storage.agreed = Agreed{0, nonfinite_flags & (STATUS_NAN | STATUS_INF), 0, !has_come};
        }
    }
    // RAW on agreed and counts: the first warp wrote them, all threads read them. WAR on the list: all threads read it
    // in order, and write the merged one.
    __syncthreads();
    if (storage.agreed.has_failed || !receive_lists(row, lists)) {
        return false;
    }
    u32 wrong = MAX_RANKS;
    const u32 total = merge_lists(lists, peers.world, peers.rank, k, wrong);
    if (wrong < MAX_RANKS) {
        fail(window_header(peers, peers.rank), FAILURE_CORRUPT, wrong);
    }
    if (threadIdx.x == 0) {
        list.packed_counts = 0;
        list.other_count = total;
    }
    // RAW on the merged list: all threads wrote it, all threads read it.
    if (__syncthreads_or(wrong < MAX_RANKS)) {
        return false;
    }
    if (total == 0) {
        return true;
    }
    compute_gains(list, total, log2e_over_t);
    draw_arrivals(list, race_stream(params, inputs.state), threadIdx.x, blockDim.x);
    // The merged list is in order.
    for (u32 i = threadIdx.x; i < total; i += blockDim.x) {
        list.ordered[i] = list.keys[i];
        list.from[i] = (unsigned short)i;
    }
    // RAW on gains, arrivals, ordered, from: all threads wrote them, all threads read them.
    __syncthreads();
    weigh_prefixes(lists.reduce, list);
    draw_from_candidates(
        lists.list_draw, list, inputs.chain, inputs.scales, 0, [&]() INLINE { return xtc_acts(params, inputs.state); },
        [](u32, bool) INLINE {}, []() INLINE {});
    if (threadIdx.x == 0) {
        // Only the id counts: the row has a token.
        storage.agreed.best = (u64)~0u << 32 | (u32)~lists.list_draw.token;
    }
    // RAW on agreed: thread 0 wrote it, all threads read it.
    __syncthreads();
    return true;
}

// Signals to the other ranks that this one takes a turn, and waits until they do; by a whole block. Returns false if a
// rank does not signal in time, or takes another step.
DEVICE bool begin_turn(const ShardStep& args, u32 turn, u32 digest, bool has_failed) {
    const Peers& peers = args.peers;
    const u32 rank = threadIdx.x;
    WindowHeader& own = window_header(peers, peers.rank);
    if (rank < peers.world && !has_failed) {
        if (blockIdx.x == 0) {
            // Rows in windows are read in other turns only: the kernels that read them have ended.
            store_relaxed_system(window_header(peers, rank).results_sent + peers.rank, flag_of(turn, digest));
        }
        u64 flag = 0;
        has_failed = rank != peers.rank && !(wait_for_flag(peers, rank, own.results_sent + rank, turn, flag) &&
                                             is_same_step(peers, rank, flag, flag_of(turn, digest)));
    }
    return !__syncthreads_or(has_failed);
}

// Ends a row: writes its results, and the request's next state.
DEVICE void end_row(const Step& step, u32 result_row, const ShardInputs& inputs, const Request& request,
                    const Agreed& agreed) {
    const u32 read = inputs.forced.leaves_unread(inputs.features) ? 0 : ~0u;
    const u32 status = inputs.forced.status | ((agreed.nonfinite_flags | (agreed.best == 0 ? STATUS_EMPTY : 0)) & read);
    const int drawn = agreed.best != 0 ? (int)key_id(agreed.best) : NO_TOKEN,
              token = inputs.forced.id >= 0 ? inputs.forced.id : drawn;
    // Two warps do not wait for each other's memory accesses.
    if (threadIdx.x == blockDim.x - 32 && advances(step, token)) {
        advance_request(step, request, inputs.slot, inputs.features, inputs.state, (u32)token);
    }
    if (threadIdx.x == 0) {
        const float temperature = status & STATUS_EMPTY ? inputs.temperature : inputs.scales.temperature;
        write_result(step, result_row, RowResult{token, status, temperature, inputs.state.mirostat_mu});
    }
}

// The body of a kernel that finishes rows: a block finishes one.
template <bool LISTS, bool EDITED, class T>
DEVICE void finish_shards(const ShardStep& args) {
    __shared__ ShardStorage<LISTS> storage;
    const Step& step = args.step;
    const u32 row = blockIdx.x, result_row = args.batch_rows != nullptr ? args.batch_rows[row] : row;
    warm_constant_bank(args);
    // A dependent kernel waits for this grid before it reads or writes what this one does.
    trigger_dependents();
    WindowHeader& own = window_header(args.peers, args.peers.rank);
    const u32 turn = own.turn + 1;
    const ShardInputs inputs(step, row, EDITED);
    load_request(storage.request, step, inputs.slot < 0 ? 0 : inputs.slot, inputs.features);
    if constexpr (LISTS) {
        clear(storage.lists.list);
    }
    const bool is_elsewhere = args.swap_slots != nullptr && inputs.slot >= 0 && !is_decided(step.params[inputs.slot]);
    bool succeeds = begin_turn(args, turn, step_digest(own, args.row_digest), own.failure != 0);
    grid_dependency_wait();
    if (args.swap_slots != nullptr && threadIdx.x == 0) {
        args.swap_slots[row] = is_elsewhere ? inputs.slot : SLOT_ELSEWHERE;
    }
    if (succeeds && is_elsewhere) {
        // The kernels that follow swap the row.
    } else if (succeeds && inputs.slot >= 0) {
        write_no_logprobs(step, result_row);
        const RowRecords records(step, row, false);
        const RowWords words{args, row, turn};
        const Params& params = step.params[inputs.slot];
        EditMasks edits;
        if constexpr (EDITED) {
            edits = EditMasks(step, row, inputs.slot, inputs.features, args.first_tile * MASK_WORDS);
        }
        const EditedRow<T, EDITED, ShardRow<T>> shard(ShardRow<T>(args, row), edits, params, storage.request,
                                                      inputs.state.step);
        if (inputs.features & FEATURE_GREEDY || inputs.forced.id >= 0) {
            agree_on_first(words, storage, records);
        } else if (!LISTS || inputs.chain.filters == 0 || inputs.chain.filters == FILTER_MIN_P) {
            const RngStream rng = race_stream(params, inputs.state);
            agree_on_winner(words, storage, records, shard, ShardStream{rng, args.first_tile}, inputs);
        } else if constexpr (LISTS) {
            succeeds = draw_from_lists(words, storage, records, shard, inputs);
        }
        succeeds = succeeds && !storage.agreed.has_failed;
        if (succeeds) {
            end_row(step, result_row, inputs, storage.request, storage.agreed);
        }
    } else if (succeeds) {
        write_padding(step, result_row);
    }
    if (!succeeds) {
        write_padding(step, result_row);
        // The next steps of a graph change no request.
        args.slots[row] = -1;
    }
    if (threadIdx.x == 0 && atomicAdd(&own.blocks_done, 1u) + 1 == gridDim.x) {
        // Each block read the turn before it counted itself.
        end_turn(own, turn);
    }
}

#define SHARDS(type, T) \
    KERNEL_MIN_BLOCKS(survey_shards_##type##_few, 32 * SURVEY_BLOCK_WARPS, 5, ShardStep, args) { \
        survey<T, SURVEY_FEW_TILES, 1, 1, true, false>(args.step, place_of(args)); \
    } \
    KERNEL_MIN_BLOCKS(survey_shards_##type##_many, 32 * SURVEY_BLOCK_WARPS, 6, ShardStep, args) { \
        survey<T, SURVEY_MANY_TILES / 2, 2, 2, false, false>(args.step, place_of(args)); \
    } \
    KERNEL_MIN_BLOCKS(survey_edited_shards_##type##_few, 32 * EDITED_FEW_WARPS, 5, ShardStep, args) { \
        survey_edited<T, EDITED_FEW_WARPS, EDITED_FEW_TILES, 1, true, false>(args.step, place_of(args)); \
    } \
    KERNEL_MIN_BLOCKS(survey_edited_shards_##type##_medium, 32 * EDITED_MEDIUM_WARPS, 10, ShardStep, args) { \
        survey_edited<T, EDITED_MEDIUM_WARPS, EDITED_MEDIUM_TILES, 1, false, false>(args.step, place_of(args)); \
    } \
    KERNEL_MIN_BLOCKS(survey_edited_shards_##type##_many, 32 * EDITED_MANY_WARPS, 10, ShardStep, args) { \
        survey_edited<T, EDITED_MANY_WARPS, EDITED_MANY_TILES / 2, 2, false, false>(args.step, place_of(args)); \
    } \
    KERNEL(finish_shards_##type, FINISH_SHARDS_THREADS, ShardStep, args) { finish_shards<false, false, T>(args); } \
    KERNEL(finish_shard_lists_##type##_few, FINISH_SHARDS_THREADS, ShardStep, args) { \
        finish_shards<true, false, T>(args); \
    } \
    KERNEL_MIN_BLOCKS(finish_shard_lists_##type##_many, FINISH_SHARDS_THREADS, 2, ShardStep, args) { \
        finish_shards<true, false, T>(args); \
    } \
    KERNEL(finish_edited_shards_##type##_few, FINISH_SHARDS_THREADS, ShardStep, args) { \
        finish_shards<true, true, T>(args); \
    } \
    KERNEL_MIN_BLOCKS(finish_edited_shards_##type##_many, FINISH_SHARDS_THREADS, 2, ShardStep, args) { \
        finish_shards<true, true, T>(args); \
    }

FOR_EACH_TYPE(SHARDS)
