// verify.cu: chains of drafts, accepted or replaced by rejection (S4, P1).
//
// Computes   the accepted prefix of each chain and one more token: of the residual max(p - q, 0) where a draft was rejected, else
//            of the target's row
// Never      reads a row besides those that the last token is drawn from; never writes a residual
// Twins      oracle spec/src/verify.rs | CPU cpu/src/verify.rs | why docs/stages/verify.md
// Shapes     as Chains has them; records [chains, tiles]
// Grid       survey: x = (chain, block of 8 warps), per_warp tiles a warp; end: x = chain, whole warps; no dynamic shared memory
// Traffic    two numbers a draft, twice; the target's row and, after a rejection, the drafter's, once; 16 bytes a tile
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed
//
// A race of probabilities is one of logits L(r) at s = 1 (P1), so records hold logarithms, and the race is that of any row. What
// is larger is found among the probabilities themselves, of which only two a tile get a logarithm. In a tile that would likely be
// opened, all tokens run while the survey has them; its record says which one leads. So records are as survey_draw.cu makes them.

#include "warp/tile.cuh"
#include "block/bounded_race.cuh"
#include "stage/accept_drafts.cuh"

#define SURVEY_WARPS 8
#define MAX_TILES_PER_WARP 4

// A tile is run if p / e of a token besides its first is at least this, e being when the tile's first token arrives. What leads has
// p / e = m / x, with m what all p add up to and x an exponential variable: so hardly any tile is open that was not run.
#define RACE_TILE_FROM 0.0625f

// A lane's shares of a tile of one or two rows of probabilities.
struct LaneProbs {
    float p[ITEMS_PER_LANE];
    float q[ITEMS_PER_LANE];
};

// What the last token is drawn from: the target's row, or what it has more of than the drafter's.
struct Residual {
    const float* p;
    // Null: nothing is taken away.
    const float* q;
    u32 vocab;

    DEVICE_MEMBER Residual(const Chains& chains, u32 chain, const Acceptance& acceptance)
        : p(target_row(chains, chain, acceptance.emitted)),
          q(acceptance.rejected ? draft_row(chains, chain, acceptance.emitted) : nullptr), vocab(chains.vocab) {}

    // Whether 16 bytes can be loaded at once, of both rows. Found where it is asked for: there is more than registers.
    DEVICE_MEMBER bool is_vectorized(u32 tile) const {
        return are_aligned(opaque(p), opaque(q)) && tile * TILE + TILE <= vocab;
    }

    static DEVICE_MEMBER bool are_aligned(const float* p, const float* q) { return (((u64)p | (u64)q) & 15) == 0; }

    // A lane's shares of a tile as they came, 0 beyond the vocabulary and where nothing is taken away.
    DEVICE_MEMBER void fetch(u32 tile, u32 lane, LaneProbs& probs) const {
        u32 start = tile * TILE;
        bool tile_is_vectorized = is_vectorized(tile);
        const float *p = opaque(this->p), *q = opaque(this->q);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            probs.q[j] = 0.0f;
        }
        if (tile_is_vectorized) {
            load_vectorized_streaming<F32>(p + start, lane, probs.p);
            if (q) {
                load_vectorized_streaming<F32>(q + start, lane, probs.q);
            }
            return;
        }
        u32 id = start + lane;
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            bool inside = id + j * 32 < vocab;
            // From one address.
            probs.p[j] = inside ? (p + id)[j * 32] : 0.0f;
            probs.q[j] = inside && q ? (q + id)[j * 32] : 0.0f;
        }
    }
};

// Cleans probabilities; returns the status bits of what was odd.
DEVICE u32 clean_probs(float (&p)[ITEMS_PER_LANE]) {
    u32 nonfinite_flags = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        nonfinite_flags |= !(p[j] >= 0.0f) ? STATUS_NAN : p[j] > MAX_F32 ? STATUS_INF : 0;
        p[j] = clean_probability(p[j]);
    }
    return nonfinite_flags;
}

// The bits that any of a lane's numbers has.
DEVICE u32 or_bits(const float (&p)[ITEMS_PER_LANE]) {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        bits |= float_bits(p[j]);
    }
    return bits;
}

// Makes the residual of a lane's shares in the place of p; returns the status bits of what was odd. Where nothing is taken away
// p stays.
DEVICE u32 subtract_draft(LaneProbs& probs) {
    u32 nonfinite_flags = 0;
    // Whatever is below 2 and has no sign lacks the two highest bits.
    if ((or_bits(probs.p) | or_bits(probs.q)) >> 30 != 0) {
        nonfinite_flags = clean_probs(probs.p) | clean_probs(probs.q);
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        probs.p[j] = max_f32(probs.p[j] - probs.q[j], 0.0f);
    }
    return nonfinite_flags;
}

// The same row as the race sees it.
struct LogResidual : Residual {
    // Whether both rows lie on 16 bytes.
    bool vectorized;

    DEVICE_MEMBER explicit LogResidual(const Residual& row) : Residual(row), vectorized(are_aligned(p, q)) {}

    DEVICE_MEMBER bool is_vectorized(u32 tile) const { return vectorized && tile * TILE + TILE <= vocab; }

    DEVICE_MEMBER u32 offset(u32 tile, u32 lane, u32 j) const {
        return offset_in_tile<F32>(lane, j, is_vectorized(tile));
    }

    // The logarithms of a lane's share of a tile, -inf where nothing is left or there is no token.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE], u32&) const {
        LaneProbs probs;
        fetch(tile, lane, probs);
        subtract_draft(probs);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            z[j] = log2_rule(probs.p[j]);
        }
    }
};

// What a warp learns of a tile.
struct alignas(16) TileMax {
    // The share of the lane that has the first token of the order.
    float r[ITEMS_PER_LANE];
    // The bits of the largest number, and of the largest of the other lanes: of what is not negative they compare as it does.
    u32 maximum;
    u32 other_lanes_max;
    u32 leader_lane;
    u32 reserved;
};

DEVICE float max_of_probs(const float (&r)[ITEMS_PER_LANE]) {
    return max_f32(max_f32(max_f32(r[0], r[1]), max_f32(r[2], r[3])),
                   max_f32(max_f32(r[4], r[5]), max_f32(r[6], r[7])));
}

// Finds a tile's first token; the lane that has it leaves what it knows.
DEVICE void reduce_probs_tile(const float (&r)[ITEMS_PER_LANE], bool vectorized, TileMax& tile_max) {
    float largest = max_of_probs(r);
    u32 own = float_bits(largest), maximum = __reduce_max_sync(FULL_MASK, own);
    u32 leaders = __ballot_sync(FULL_MASK, own == maximum);
    if ((leaders & (leaders - 1)) != 0) {
        u32 lane = opaque(lane_id()), offset = TILE;
#pragma unroll
        for (u32 j = ITEMS_PER_LANE; j-- > 0;) {
            offset = float_bits(r[j]) == maximum ? offset_in_tile<F32>(lane, j, vectorized) : offset;
        }
        u32 least = __reduce_min_sync(FULL_MASK, offset);
        leaders = __ballot_sync(FULL_MASK, offset == least);
    }
    bool is_leader = leaders >> lane_id() & 1;
    u32 others = __reduce_max_sync(FULL_MASK, is_leader ? 0 : own);
    if (is_leader) {
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            tile_max.r[j] = r[j];
        }
        tile_max.maximum = maximum;
        tile_max.other_lanes_max = others;
        tile_max.leader_lane = lane_id();
        // So that it is one store of four words.
        tile_max.reserved = 0;
    }
}

// What a warp learns by running a tile's tokens.
struct alignas(16) TileRace {
    // Of the one that leads, or nearly: what is left of its probability, and its place in the tile; TILE if the tile was not run.
    float p;
    u32 offset;
    // What no other token's log2(p) - log2(arrival) exceeds, errors of approximate logarithms aside.
    float others_bound;
    u32 reserved;
};

// Whether a tile has a number at least as large as a bar besides its first; the same in all lanes.
DEVICE bool has_two_above(const float (&r)[ITEMS_PER_LANE], float threshold) {
    float largest = max_of_probs(r);
    u32 leaders = __ballot_sync(FULL_MASK, largest >= threshold), count = 0;
    if ((leaders & (leaders - 1)) != 0 || leaders == 0) {
        return leaders != 0;
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        count += r[j] >= threshold;
    }
    return __ballot_sync(FULL_MASK, count > 1) != 0;
}

// Runs the tokens of a wide tile, about; the lane that has the one that leads leaves what it knows.
DEVICE void race_tile(const float (&r)[ITEMS_PER_LANE], const LastTokenStream& rng, const FirstArrival& first, u32 tile,
                      TileRace& tile_race) {
    u32 lane = lane_id(), to = 0;
    float lead = -INF_F32, others_bound = -INF_F32, p = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ITEMS_PER_LANE; i += 4) {
        // One block after the other: side by side they take more registers than there are.
        u32 id = opaque(tile * TILE + offset_in_tile<F32>(lane, i, true));
        const PhiloxWords words = philox(rng.seed, id / 4, rng.position, rng.token_tag(), rng.draw);
#pragma unroll
        for (u32 j = i; j < i + 4; j++) {
            bool is_first = offset_in_tile<F32>(lane, j, true) == first.offset;
            float log2_arrival = approx_log2_arrival(first.e, is_first ? 0 : words.w[j - i]);
            // What is less than a normal number is taken for the least of these.
            float score = approx_log2(max_f32(opaque(r[j]), bits_float(1 << 23))) - log2_arrival;
            // Of several with the highest score the first is known, and bounds the others.
            others_bound = max_f32(others_bound, fminf(score, lead));
            p = score > lead ? r[j] : p;
            to = score > lead ? j : to;
            lead = max_f32(lead, score);
        }
    }
    u32 bits = ordered_bits(lead), top = __reduce_max_sync(FULL_MASK, bits);
    bool is_leader = is_first_active_lane(bits == top);
    others_bound = from_ordered_bits(__reduce_max_sync(FULL_MASK, ordered_bits(is_leader ? others_bound : lead)));
    if (is_leader) {
        tile_race = TileRace{p, offset_in_tile<F32>(lane, to, true), others_bound, 0};
    }
}

// The record of a tile that its warp saw, as Raced reads it.
DEVICE TileRecord make_chain_record(const TileMax& tile_max, const TileRace& tile_race, bool vectorized,
                                    u32 nonfinite_flags, const LastTokenStream& rng, const FirstArrival& first,
                                    u32 tile) {
    float maximum = bits_float(tile_max.maximum), others = bits_float(tile_max.other_lanes_max);
    u32 j = ITEMS_PER_LANE;
#pragma unroll
    for (u32 i = ITEMS_PER_LANE; i-- > 0;) {
        float r = tile_max.r[i];
        bool is_leader = r >= maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = max_f32(others, is_leader ? (j < ITEMS_PER_LANE ? maximum : 0.0f) : r);
        j = is_leader ? i : j;
    }
    bool was_raced = tile_race.offset < TILE;
    u32 offset =
        was_raced ? tile_race.offset : offset_in_tile<F32>(tile_max.leader_lane, j % ITEMS_PER_LANE, vectorized);
    float others_bound = was_raced ? tile_race.others_bound : log2_rule(others) - log2_of_normal(first.e);
    return TileRecord{log2_rule(maximum), log2_rule(was_raced ? tile_race.p : maximum),
                      log2_of_normal(token_arrival(rng, first, tile, offset)),
                      pack_record_bits(offset, nonfinite_flags, others_bound)};
}

// What a block learns of its tiles, in shared memory.
struct ChainStorage {
    TileMax maxima[SURVEY_WARPS * MAX_TILES_PER_WARP];
    TileRace races[SURVEY_WARPS * MAX_TILES_PER_WARP];
    FirstArrival first[SURVEY_WARPS * MAX_TILES_PER_WARP];
    u32 nonfinite_flags[SURVEY_WARPS];
    LastTokenStream rngs[SURVEY_WARPS];
};

KERNEL_MIN_BLOCKS(verify_survey, 32 * SURVEY_WARPS, 5, Chains, chains) {
    __shared__ ChainStorage storage;
    // The kernel before may be anyone's, and make what is read here.
    grid_dependency_wait();
    u32 chain = blockIdx.x / chains.blocks_per_chain, block_in_chain = blockIdx.x % chains.blocks_per_chain;
    u32 per_block = SURVEY_WARPS * chains.tiles_per_warp, block_tile = block_in_chain * per_block, lane = lane_id(),
        warp = warp_id();
    const RngStream of_chain = chain_stream(chains, chain);
    const Acceptance acceptance = accept_drafts(chains, of_chain, chain);
    const Residual row(chains, chain, acceptance);
    LastTokenStream& rng = storage.rngs[warp];
    if (lane == 0) {
        // Read there where it is needed: there is more than registers.
        rng = last_token_stream(of_chain, acceptance);
        storage.nonfinite_flags[warp] = 0;
    }
    // Without it lanes would draw by what the first one has not left yet.
    __syncwarp();
#pragma unroll 1
    for (u32 group = 0; group < chains.tiles_per_warp; group++) {
        // Found here, else the compiler keeps the places of all that is told of a tile from round to round.
        u32 own = opaque(group * SURVEY_WARPS + warp), tile = block_tile + own;
        LaneProbs probs;
        row.fetch(tile, lane, probs);
        if (group == 0) {
            trigger_dependents();
            // While the first of the warp's tiles come, which are under way by now: a lane a tile.
            u32 offset = lane % MAX_TILES_PER_WARP * SURVEY_WARPS + warp;
            FirstArrival first = first_arrival(rng, block_tile + offset);
            if (lane < MAX_TILES_PER_WARP) {
                storage.first[offset] = first;
            }
            // Without it lanes would miss what others have just drawn.
            __syncwarp();
        }
        u32 nonfinite_flags = subtract_draft(probs);
        if (nonfinite_flags != 0) {
            atomicOr(&storage.nonfinite_flags[warp], nonfinite_flags);
        }
        bool vectorized = row.is_vectorized(tile);
        reduce_probs_tile(probs.p, vectorized, storage.maxima[own]);
        if (vectorized && has_two_above(probs.p, storage.first[own].e * RACE_TILE_FROM)) {
            race_tile(probs.p, rng, storage.first[own], tile, storage.races[own]);
        } else if (lane == 0) {
            storage.races[own].offset = TILE;
        }
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    u32 tile = block_tile + lane;
    if (warp == 0 && lane < per_block && tile < chains.tiles) {
        u32 nonfinite_flags = storage.nonfinite_flags[lane % SURVEY_WARPS];
        chains.records[(u64)chain * chains.tiles + tile] =
            make_chain_record(storage.maxima[lane], storage.races[lane], row.is_vectorized(tile), nonfinite_flags, rng,
                              storage.first[lane], tile);
    }
}

// Makes the records of the target's row anew, by one block: where the drafter has all that the target has.
DEVICE void survey_target_row(const Residual& row, const LastTokenStream& rng, u32 tiles, TileRecord* records) {
    __shared__ TileMax tile_max[32];
    const TileRace not_raced{0.0f, TILE, 0.0f, 0};
#pragma unroll 1
    for (u32 tile = warp_id(); tile < tiles; tile += warp_count()) {
        LaneProbs probs;
        row.fetch(tile, lane_id(), probs);
        subtract_draft(probs);
        reduce_probs_tile(probs.p, row.is_vectorized(tile), tile_max[warp_id()]);
        // Without it the first lane would read what the one that leads has not left yet.
        __syncwarp();
        if (lane_id() == 0) {
            // What is odd in the row is known.
            FirstArrival first = first_arrival(rng, tile);
            records[tile] =
                make_chain_record(tile_max[warp_id()], not_raced, row.is_vectorized(tile), 0, rng, first, tile);
        }
        // Without it another lane would leave the next tile's before this one was read.
        __syncwarp();
    }
    // Without it a thread would read records that others have not made yet.
    __syncthreads();
}

// Adds to a number of the chain's, or sets it.
DEVICE void write_count(const Chains& chains, u32* counts, u32 chain, u32 count) {
    if (counts) {
        counts[chain] = chains.flags & CHAIN_ADD_COUNTS ? counts[chain] + count : count;
    }
}

KERNEL(verify_finish, 1024, Chains, chains) {
    u32 chain = blockIdx.x, tiles = chains.tiles, length = chains.draft_count;
    // What the survey does not write is read before it is done.
    const RngStream of_chain = chain_stream(chains, chain);
    const Acceptance acceptance = accept_drafts(chains, of_chain, chain);
    const LastTokenStream rng = last_token_stream(of_chain, acceptance);
    Residual row(chains, chain, acceptance);
    TileRecord* own = chains.records + (u64)chain * tiles;
    grid_dependency_wait();

    u32 status = 0;
    int token = NO_TOKEN;
#pragma unroll 1
    for (;;) {
        RowRecords records(own, nullptr, tiles);
        WarpLeader warp_leader = reduce_warp_leaders<SurveyDrawRecords>(records, 1.0f);
        RowSummary summary = summarise_row(warp_leader);
        status |= summary.nonfinite_flags;
        if (summary.first_key != 0) {
            const Origin first(key_logit(summary.first_key));
            u64 leader = best_leader(warp_leader, full_cut(), first, 1.0f);
            token = (int)key_id(leader);
            if (!leader_is_certain(warp_leader, first, 1.0f, leader)) {
                token = (int)race_bounded<SurveyDrawRecords>(records, LogResidual(row), rng, full_cut(), first, 1.0f,
                                                             leader);
            }
            break;
        }
        if (row.q == nullptr) {
            status |= STATUS_EMPTY;
            break;
        }
        // Nothing is left: only roundings led here, or rows that do not add up to 1.
        row.q = nullptr;
        survey_target_row(row, rng, tiles, own);
    }

    int last = token < 0 && chains.flags & CHAIN_ZERO_FOR_NONE ? 0 : token;
#pragma unroll 1
    for (u32 j = threadIdx.x; j <= length; j += blockDim.x) {
        i64 id = j < acceptance.emitted ? draft_id(chains, chain, j) : j == acceptance.emitted ? last : NO_TOKEN;
        u64 offset = chain * chains.tokens_stride + j;
        if (chains.flags & CHAIN_TOKENS_I64) {
            ((i64*)chains.tokens)[offset] = id;
        } else {
            ((int*)chains.tokens)[offset] = (int)id;
        }
    }
    if (threadIdx.x == 0) {
        write_count(chains, chains.accepted, chain, acceptance.accepted);
        write_count(chains, chains.emitted, chain, acceptance.emitted);
        if (chains.statuses) {
            chains.statuses[chain] = status;
        }
    }
}
