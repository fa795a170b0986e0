// draft_race.cu: draws drafts from rows of a draft model: the first tokens that arrive in each request's race (S8).
//
// Computes   per row: the kept tokens with the largest scores, the largest first; at temperature 0 the row's first
//            tokens; a forced token alone; NO_TOKEN in the place of each draft that is missing
// Never      changes a request; reads a tile whose bound is below the best draft that is still to be had
// Twins      oracle spec/src/verify/draft.rs | CPU cpu/src/draft.rs | why docs/speculation.md
// Shapes     logits [rows, vocab] of T; records [rows, tiles]; drafts [rows, siblings]
// Grid       x = rows; whole warps, up to 512 threads; no dynamic shared memory
// Traffic    in: 16 bytes per tile for each draft; logits as filter.cuh states; for each draft a logit of each tile
//            that may hold it, and the tiles that still may
// Requires   begin_drafts and the survey of the same rows before it on the stream; the kernel `history_edits` before
//            the survey, if a request has edits that depend on its history
//
// Siblings are few, so the block finds each by a pass over the records: the best word below the word of the sibling
// before.
//
//     padding and empty rows have no drafts; a forced token is the only one
//     drafts of blocks: replace the records' arrivals by the arrivals of their own words
//     at temperature 0 the order is the keys'; otherwise find the kept set, and the order is that of the
//         scores
//     for each draft: the best word among the tiles' first tokens and first arrivals; then read the tiles that may hold
//         a better one

#include "abi/drafts.cuh"
#include "block/race.cuh"
#include "math/sections.cuh"
#include "stage/kept_set.cuh"

// Names the random words of a race for drafts.
struct DraftStream : RngStream {
    // Of drafts of a block 1 more than the number of drafts in front, else 0.
    u32 block_depth;

    DEVICE_MEMBER u32 tile_tag() const { return block_depth > 0 ? TAG_DRAFT_TILE + 256 * (block_depth - 1) : TAG_TILE; }
    DEVICE_MEMBER u32 token_tag() const {
        return block_depth > 0 ? TAG_DRAFT_TOKEN + 256 * (block_depth - 1) : TAG_TOKEN;
    }
};

// The tokens of a row from the largest key on.
struct KeyOrder {
    // The fields that the tokens of a tile share.
    struct OfTile {};

    DEVICE_MEMBER OfTile begin(u32) const { return OfTile{}; }

    // Returns a token's word, the larger the earlier; 0 for an id that is no token.
    DEVICE_MEMBER u64 word(const OfTile&, u32 tile, u32 offset, float z) const {
        return z > MASKED_VALUE ? make_key(z, tile * TILE + offset) : 0;
    }
    // Returns the best of the tokens of a tile that its record names.
    DEVICE_MEMBER u64 named(u32 tile, const TileRecord& record) const {
        return word(OfTile{}, tile, record.packed & 255, record.maximum);
    }
    DEVICE_MEMBER u64 arriving(u32, const TileRecord&) const { return 0; }
    // Whether a token of a tile that its record does not name may have a larger word than `best`.
    DEVICE_MEMBER bool may_hold(const TileRecord& record, u64 best) const {
        const float others = record_others_bound(record);
        // Without a best word any number would do, so a tile without tokens is told from the others.
        return others > MASKED_VALUE && ordered_bits(others) >= (u32)(best >> 32);
    }
};

// The kept tokens of a row from the largest score on. Words are made by `make_leader`.
template <class V>
struct ScoreOrder {
    typedef FirstArrival OfTile;
    const V& view;
    DraftStream rng;
    Cut cut;
    Origin first;
    float log2e_over_t;

    DEVICE_MEMBER OfTile begin(u32 tile) const { return first_arrival(rng, tile); }

    // Returns the word of a token with the logit `z`; 0 if it is not kept, or its score is -inf.
    DEVICE_MEMBER u64 leader(u32 id, float z, float log2_arrival) const {
        if (!(z > MASKED_VALUE) || !cut.contains(make_key(z, id))) {
            return 0;
        }
        const float score = exponent(z, first, log2e_over_t) - log2_arrival;
        return score > -INF_F32 ? make_leader(score, id) : 0;
    }
    DEVICE_MEMBER u64 word(const OfTile& of_tile, u32 tile, u32 offset, float z) const {
        return leader(tile * TILE + offset, z, log2_of_normal(token_arrival(rng, of_tile, tile, offset)));
    }
    DEVICE_MEMBER u64 named(u32 tile, const TileRecord& record) const {
        return leader(tile * TILE + (record.packed & 255), record.maximum, record.log2_max_arrival);
    }
    // Returns the word of the token that arrives first in a tile: in a flat row one of these likely is the best.
    DEVICE_MEMBER u64 arriving(u32 tile, const TileRecord& record) const {
        const u32 id = tile * TILE + first_offset(tile_words(rng, tile));
        // Beyond the vocabulary there is no token.
        return id < view.row.vocab ? leader(id, view.logit(id), record.log2_first_arrival) : 0;
    }
    DEVICE_MEMBER bool may_hold(const TileRecord& record, u64 best) const {
        return SurveyRecords::may_hold_winner(record, cut, first, log2e_over_t, (u32)(best >> 32));
    }
};

// Returns the larger of two words if it is below `limit`.
DEVICE u64 better_word(u64 best, u64 own, u64 limit) { return own < limit && own > best ? own : best; }

// One warp returns in every lane the best word below `limit` among the tokens of a tile; 0 if there is none.
template <class V, class Order>
DEVICE u64 best_word_in_tile(const V& view, const Order& order, u32 tile, u64 limit) {
    float z[ITEMS_PER_LANE];
    view.load(tile, lane_id(), z);
    const typename Order::OfTile of_tile = order.begin(tile);
    u64 best = 0;
    // Not unrolled: few tiles are read.
#pragma unroll 1
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const u32 offset = view.offset(lane_id(), j);
        best = better_word(best, order.word(of_tile, tile, offset, select_item(z, j)), limit);
    }
    return warp_max(best);
}

// Returns the best word below `limit` in every thread, 0 if there is none; by all threads of a block.
template <class V, class Order>
DEVICE u64 best_word(RaceStorage& storage, const RowRecords& records, const V& view, const Order& order, u64 limit) {
    OpenTiles& open_tiles = storage.open_tiles;
    // WAR on open_tiles: threads may still read the result of the call before.
    __syncthreads();
    if (threadIdx.x == 0) {
        open_tiles.clear();
    }
    // WAW on open_tiles.best: thread 0 cleared it, all threads raise it.
    __syncthreads();
    u64 own = 0;
    records.for_each([&](u32 tile, const TileRecord& record)
                         INLINE { own = better_word(own, order.named(tile, record), limit); });
    raise_by_warp(open_tiles.best, own);
    // RAW on open_tiles.best: all warps raised it, all threads read it.
    __syncthreads();
    u64 best = open_tiles.best;
    own = 0;
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        if (order.may_hold(record, best)) {
            own = better_word(own, order.arriving(tile, record), limit);
        }
    });
    // WAR on open_tiles.best: all threads read it, all warps raise it.
    __syncthreads();
    raise_by_warp(open_tiles.best, own);
    // RAW on open_tiles.best: all warps raised it, all threads read it.
    __syncthreads();
    best = open_tiles.best;
    records.for_each([&](u32 tile, const TileRecord& record) INLINE {
        if (order.may_hold(record, best)) {
            open_tiles.add(tile);
        }
    });
    // RAW on the list: all threads added tiles, all warps read them. WAR on open_tiles.best, as above.
    __syncthreads();
    for (u32 i = warp_id(); i < open_tiles.count; i += warp_count()) {
        const u32 tile = open_tiles.tiles[i];
        // Other warps raise `best` meanwhile; an older value is only a lower bound.
        const u64 known = __shfl_sync(FULL_MASK, *(volatile u64*)&open_tiles.best, 0);
        if (order.may_hold(records.records[tile], known)) {
            own = best_word_in_tile(view, order, tile, limit);
            if (lane_id() == 0 && own > known) {
                atomicMax(&open_tiles.best, own);
            }
        }
    }
    // RAW on open_tiles.best: all warps raised it, all threads read the final value.
    __syncthreads();
    return open_tiles.best;
}

// Writes the drafts of a row in their order; by all threads of a block.
template <class V, class Order>
DEVICE void write_drafts(RaceStorage& storage, const RowRecords& records, const V& view, const Order& order,
                         u32 siblings, int* drafts) {
    u64 limit = ~0ull;
#pragma unroll 1
    for (u32 i = 0; i < siblings; i++) {
        limit = limit == 0 ? 0 : best_word(storage, records, view, order, limit);
        if (threadIdx.x == 0) {
            drafts[i] = limit == 0 ? NO_TOKEN : (int)key_id(limit);
        }
    }
}

// Replaces the arrivals in the records of a row by the arrivals of other words; by all threads of a block.
DEVICE void redraw_records(TileRecord* records, u32 tiles, const DraftStream& rng) {
    for (u32 tile = threadIdx.x; tile < tiles; tile += blockDim.x) {
        TileRecord& record = records[tile];
        const FirstArrival first = first_arrival(rng, tile);
        record.log2_first_arrival = log2_of_normal(first.e);
        record.log2_max_arrival = log2_of_normal(token_arrival(rng, first, tile, record.packed & 255));
    }
    // RAW on the records: each thread wrote some, all threads read any of them.
    __syncthreads();
}

// The shared memory of a block.
struct DraftRaceStorage {
    SummaryStorage summary;
    FilterStorage filter;
    RaceStorage race;
};

template <class T>
DEVICE void draw_drafts(const DraftRace& args, u32 row, DraftRaceStorage& storage) {
    const Step& step = args.step;
    int* drafts = args.drafts + (u64)row * args.siblings;
    RowBlocks::begin(storage.filter.search.reduce);
    grid_dependency_wait();
    const int slot = step.slots[row];
    const u32 features = step.params[slot < 0 ? 0 : slot].features;
    const int forced = forced_token(step, row, slot, features).id;
    if (slot < 0 || forced >= 0) {
        for (u32 i = threadIdx.x; i < args.siblings; i += blockDim.x) {
            drafts[i] = slot < 0 || i > 0 ? NO_TOKEN : forced;
        }
        return;
    }
    const RowContext<T, true> context(step, row, slot);
    const Params& params = context.params;
    const u32 depth = args.requests[row].draft_count;
    DraftStream rng{race_stream(params, context.state), 0};
    if (args.are_of_blocks) {
        rng.position -= depth;
        rng.block_depth = depth + 1;
        redraw_records(step.records + (u64)row * step.tiles, step.tiles, rng);
    }
    const RowRecords records(step, row, params.features & FEATURE_FILTER_SUMS);
    // The barrier inside also serves what RowBlocks::begin wrote (RAW).
    const RowSummary summary = summarise_row(storage.summary, records, true);
    Scales scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
    if (params.features & FEATURE_DYNAMIC_TEMPERATURE && summary.first_key != 0) {
        find_temperature<T, true>(step, row, slot, summary.first_key, storage.filter);
        scales = storage.filter.scales;
    }
    // An empty row has no tokens in either order.
    if (params.features & FEATURE_GREEDY || scales.temperature == 0.0f || summary.first_key == 0) {
        write_drafts(storage.race, records, context.view, KeyOrder{}, args.siblings, drafts);
        return;
    }
    find_kept_set<T, true>(step, row, slot, summary.first_key, params.filter_chain, scales.filter_log2e_over_t,
                           storage.filter);
    const GivenSet kept = storage.filter.kept;
    const ScoreOrder<EditedRow<T, true>> order{context.view, rng, kept.cut, Origin(kept.first_value),
                                               scales.log2e_over_t};
    write_drafts(storage.race, records, context.view, order, args.siblings, drafts);
}

#define DRAFT_RACE_OF(type, T) \
    KERNEL(draft_race_##type, DRAFT_RACE_THREADS, DraftRace, args) { \
        __shared__ DraftRaceStorage storage; \
        draw_drafts<T>(args, blockIdx.x, storage); \
    }

FOR_EACH_TYPE(DRAFT_RACE_OF)
