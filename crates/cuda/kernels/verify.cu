// verify.cu: verifies chains of drafts by rejection (S4, P1).
//
// Computes   the accepted prefix of each chain and one more token: drawn from the residual max(p - q, 0) after a
//            rejection, otherwise from the target's row
// Never      reads more than single numbers of a row that the last token is not drawn from; writes a residual
// Twins      oracle spec/src/verify.rs | CPU cpu/src/verify.rs | why docs/stages/verify.md
// Shapes     as in Chains; records [chains, tiles]
// Grid       survey: x = chains * blocks_per_chain, 8 warps, 1 to 4 tiles a warp; finish: x = chains, whole warps;
//            no dynamic shared memory
// Traffic    in: two probabilities per draft and block; the target's row and, after a rejection, the drafter's, once;
//            16 bytes per tile, written by the survey and read by the finish kernel
// Requires   1 <= vocab <= 2^20; 16-byte alignment affects speed only
//
// If the finish kernel would probably reread a tile, the survey races all its tokens while they are in registers. The
// tile's record then names the leader. So records have the form of SurveyDrawRecords (block/bounded_race.cuh).
//
//     verify_survey: judge the drafts of the block's chain, which gives the target's row p and the drafter's row q
//                    for each tile: r = max(p - q, 0), or r = p without a rejection
//                                   find the maximum of r, and the maximum of all others
//                                   if two numbers reach e / 16: race all tokens of the tile by approximate scores
//                    warp 0: make and store the records of the block's tiles, one per lane
//     verify_finish: judge the drafts again, then wait for the survey
//                    if the records hold no token and a draft was rejected: make the records of the target's row
//                    race the records' tokens; read the tiles again whose bound reaches the best score
//                    write tokens, rows, counts and status

#include "stage/residual_records.cuh"

// The survey races a tile if two of its tokens have p / e of at least this, with e the tile's first arrival. The row's
// winner has p / e = m / x, with m the sum of all p and x an exponential variable. So the finish kernel seldom rereads
// a tile that was not raced.
#define RACE_TILE_FROM 0.0625f

// The row that a chain's last token is drawn from: the target's row, or after a rejection the residual max(p - q, 0).
// There is no drafter's row if no draft was rejected.
struct Residual : ProbRows {
    DEVICE_MEMBER Residual(const Chains& chains, u32 chain, const Acceptance& acceptance)
        : ProbRows{target_row(chains, chain, acceptance.accepted),
                   acceptance.rejected ? draft_row(chains, chain, acceptance.accepted) : nullptr, chains.vocab} {}
};

// Joins the bits of a lane's numbers.
DEVICE u32 or_bits(const float (&p)[ITEMS_PER_LANE]) {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        bits |= float_bits(p[j]);
    }
    return bits;
}

// Replaces p by the residual max(p - q, 0), which is the cleaned p if q is 0. Returns the status bits of `clean_probs`.
DEVICE u32 subtract_draft(LaneProbs& probs) {
    u32 nonfinite_flags = 0;
    // A number in [0, 2) has neither of the two highest bits; only other numbers can need cleaning.
    if ((or_bits(probs.p) | or_bits(probs.q)) >> 30 != 0) {
        nonfinite_flags = clean_probs(probs.p) | clean_probs(probs.q);
    }
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        probs.p[j] = max_f32(probs.p[j] - probs.q[j], 0.0f);
    }
    return nonfinite_flags;
}

// The residual as the race reads it: as logarithms to base 2.
struct LogResidual : Residual {
    DEVICE_MEMBER explicit LogResidual(const Residual& row) : Residual(row) {}

    static DEVICE_MEMBER u32 offset(u32 lane, u32 j) { return offset_in_tile<F32>(lane, j); }

    // Loads the logarithms of a lane's slice of a tile: -inf where the residual is 0, and beyond the vocabulary.
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

// Whether at least two numbers of a tile reach a threshold. The result is uniform across the warp.
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

// Races the tokens of a tile by approximate scores; the lane with the largest score stores `tile_race`.
DEVICE void race_tile(const float (&r)[ITEMS_PER_LANE], const LastTokenStream& rng, const FirstArrival& first, u32 tile,
                      TileRace& tile_race) {
    u32 lane = lane_id(), to = 0;
    float lead = -INF_F32, others_bound = -INF_F32, p = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ITEMS_PER_LANE; i += 4) {
        // `opaque` keeps the two Philox blocks in sequence: interleaved, they need more registers than the kernel has.
        u32 id = opaque(tile * TILE + offset_in_tile<F32>(lane, i));
        const PhiloxWords words = philox(rng.seed, id / 4, rng.position, rng.token_tag(), rng.draw);
#pragma unroll
        for (u32 j = i; j < i + 4; j++) {
            bool is_first = offset_in_tile<F32>(lane, j) == first.offset;
            float log2_arrival = approx_log2_arrival(first.e, is_first ? 0 : words.w[j - i]);
            // Numbers below the normal ones count as the least normal one, which `approx_log2` accepts.
            float score = approx_log2(max_f32(opaque(r[j]), bits_float(1 << 23))) - log2_arrival;
            // On a tie the lane's first token leads, and its score bounds the others.
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
        tile_race = TileRace{p, offset_in_tile<F32>(lane, to), others_bound, 0};
    }
}

// The survey's shared memory. Besides `acceptance`, each warp writes the elements of its own tiles; warp 0 reads all of
// them.
struct ChainStorage {
    AcceptanceStorage acceptance;
    static_assert(SURVEY_WARPS * MAX_TILES_PER_WARP <= 32, "the first warp has a lane for each tile");
    TileReduction maxima[SURVEY_WARPS * MAX_TILES_PER_WARP];
    TileRace races[SURVEY_WARPS * MAX_TILES_PER_WARP];
    FirstArrival first[SURVEY_WARPS * MAX_TILES_PER_WARP];
    u32 nonfinite_flags[SURVEY_WARPS];
    LastTokenStream rngs[SURVEY_WARPS];
};

KERNEL_MIN_BLOCKS(verify_survey, 32 * SURVEY_WARPS, 5, Chains, chains) {
    __shared__ ChainStorage storage;
    // The preceding kernel may belong to another program and write what this one reads.
    grid_dependency_wait();
    u32 chain = blockIdx.x / chains.blocks_per_chain, block_in_chain = blockIdx.x % chains.blocks_per_chain;
    u32 per_block = SURVEY_WARPS * chains.tiles_per_warp, block_tile = block_in_chain * per_block, lane = lane_id(),
        warp = warp_id();
    const RngStream of_chain = chain_stream(chains, chain);
    const Acceptance acceptance = accept_drafts(storage.acceptance, chains, of_chain, chain);
    const Residual row(chains, chain, acceptance);
    LastTokenStream& rng = storage.rngs[warp];
    if (lane == 0) {
        // In shared memory, because the kernel has no registers left for it.
        rng = last_token_stream(of_chain, acceptance);
        storage.nonfinite_flags[warp] = 0;
    }
    // RAW on rng and nonfinite_flags of this warp: lane 0 wrote them, all its lanes use them.
    __syncwarp();
#pragma unroll 1
    for (u32 group = 0; group < chains.tiles_per_warp; group++) {
        // `opaque` makes the compiler compute the addresses of the tile's elements here. Otherwise it keeps all of them
        // in registers from iteration to iteration.
        u32 own = opaque(group * SURVEY_WARPS + warp), tile = block_tile + own;
        LaneProbs probs;
        row.fetch(tile, lane, probs);
        if (group == 0) {
            trigger_dependents();
            // The loads of the warp's first tile are in flight. Meanwhile each of the first four lanes draws the first
            // arrival of one of the warp's tiles.
            u32 offset = lane % MAX_TILES_PER_WARP * SURVEY_WARPS + warp;
            FirstArrival first = first_arrival(rng, block_tile + offset);
            if (lane < MAX_TILES_PER_WARP) {
                storage.first[offset] = first;
            }
            // RAW on first: one lane per tile wrote it, all lanes of the warp read it.
            __syncwarp();
        }
        u32 nonfinite_flags = subtract_draft(probs);
        if (nonfinite_flags != 0) {
            atomicOr(&storage.nonfinite_flags[warp], nonfinite_flags);
        }
        reduce_probs_tile(probs.p, storage.maxima[own]);
        if (has_two_above(probs.p, storage.first[own].e * RACE_TILE_FROM)) {
            race_tile(probs.p, rng, storage.first[own], tile, storage.races[own]);
        } else if (lane == 0) {
            storage.races[own].offset = TILE;
        }
    }
    // RAW on maxima, races, first and nonfinite_flags: all warps wrote their tiles' values, warp 0 reads them.
    __syncthreads();
    u32 tile = block_tile + lane;
    if (warp == 0 && lane < per_block && tile < chains.tiles) {
        u32 nonfinite_flags = storage.nonfinite_flags[lane % SURVEY_WARPS];
        chains.records[(u64)chain * chains.tiles + tile] = make_chain_record(
            storage.maxima[lane], storage.races[lane], nonfinite_flags, rng, storage.first[lane], tile);
    }
}

// Overwrites a chain's records by the records of the target's row; one block surveys it. The finish kernel needs this
// if a draft was rejected and the residual is empty.
DEVICE void survey_target_row(TileReduction (&tile_max)[32], const Residual& row, const LastTokenStream& rng, u32 tiles,
                              TileRecord* records) {
    const TileRace not_raced{0.0f, TILE, 0.0f, 0};
#pragma unroll 1
    for (u32 tile = warp_id(); tile < tiles; tile += warp_count()) {
        LaneProbs probs;
        row.fetch(tile, lane_id(), probs);
        subtract_draft(probs);
        reduce_probs_tile(probs.p, tile_max[warp_id()]);
        // RAW on tile_max of this warp: the leader wrote it, lane 0 reads it.
        __syncwarp();
        if (lane_id() == 0) {
            // The flags are 0: the survey's records have already reported the row's non-finite values.
            FirstArrival first = first_arrival(rng, tile);
            records[tile] = make_chain_record(tile_max[warp_id()], not_raced, 0, rng, first, tile);
        }
        // WAR on tile_max of this warp: lane 0 read it, the next tile's leader overwrites it.
        __syncwarp();
    }
    // RAW on records: lane 0 of each warp wrote them, all threads of the block read them.
    __syncthreads();
}

// The shared memory of a block that finishes a chain.
struct ChainFinishStorage {
    AcceptanceStorage acceptance;
    BoundedRaceStorage race;
    // One per warp.
    TileReduction tile_max[32];
};

KERNEL(verify_finish, VERIFY_FINISH_THREADS, Chains, chains) {
    __shared__ ChainFinishStorage storage;
    u32 chain = blockIdx.x, tiles = chains.tiles;
    // The survey writes no memory that is read before the wait, so these reads overlap it.
    const RngStream of_chain = chain_stream(chains, chain);
    const Acceptance acceptance = accept_drafts(storage.acceptance, chains, of_chain, chain);
    const LastTokenStream rng = last_token_stream(of_chain, acceptance);
    Residual row(chains, chain, acceptance);
    TileRecord* own = chains.records + (u64)chain * tiles;
    grid_dependency_wait();

    u32 status = 0;
    int token = NO_TOKEN;
#pragma unroll 1
    for (;;) {
        RowRecords records(own, nullptr, tiles);
        WarpLeader warp_leader = reduce_warp_leaders<SurveyDrawRecords>(storage.race, records, 1.0f);
        RowSummary summary = summarise_row(warp_leader);
        status |= summary.nonfinite_flags;
        if (summary.first_key != 0) {
            token = race_weights(storage.race, records, warp_leader, summary, LogResidual(row), rng);
            break;
        }
        if (row.q == nullptr) {
            status |= STATUS_EMPTY;
            break;
        }
        // The residual is empty. Only rounding leads here, or rows that do not add up to 1.
        row.q = nullptr;
        survey_target_row(storage.tile_max, row, rng, tiles, own);
    }

    write_judgement(chains, chain, acceptance.accepted, token, status, [](u32 j) INLINE { return j; });
    if (threadIdx.x == 0) {
        write_count(chains, chains.accepted_alone, chain, acceptance.accepted_alone);
    }
}
