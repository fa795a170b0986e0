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
// opened, all tokens run while the survey has them; its record says which one leads. So records are as raced.cu makes them.

#include "behind.cu"
#include "chains.cuh"
#include "tile.cuh"

#define SURVEY_WARPS 8
#define MOST_PER_WARP 4

// A tile is run if p / e of a token besides its first is at least this, e being when the tile's first token arrives. What leads has
// p / e = m / x, with m what all p add up to and x an exponential variable: so hardly any tile is open that was not run.
#define RUN_FROM 0.0625f

// A lane's shares of a tile of one or two rows of probabilities.
struct Shares {
    float p[PER_LANE];
    float q[PER_LANE];
};

// What the last token is drawn from: the target's row, or what it has more of than the drafter's.
struct Residual {
    const float* p;
    // Null: nothing is taken away.
    const float* q;
    u32 vocab;

    DEVICE_MEMBER Residual(const Chains& chains, u32 chain, const Judged& judged)
        : p(target_row(chains, chain, judged.emitted)),
          q(judged.rejected ? draft_row(chains, chain, judged.emitted) : nullptr), vocab(chains.vocab) {}

    // Whether 16 bytes can be loaded at once, of both rows. Found where it is asked for: there is more than registers.
    DEVICE_MEMBER bool is_wide(u32 tile) const {
        return are_aligned(found_here(p), found_here(q)) && tile * TILE + TILE <= vocab;
    }

    static DEVICE_MEMBER bool are_aligned(const float* p, const float* q) { return (((u64)p | (u64)q) & 15) == 0; }

    // A lane's shares of a tile as they came, 0 beyond the vocabulary and where nothing is taken away.
    DEVICE_MEMBER void fetch(u32 tile, u32 lane, Shares& shares) const {
        u32 start = tile * TILE;
        bool wide_tile = is_wide(tile);
        const float *p = found_here(this->p), *q = found_here(this->q);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            shares.q[j] = 0.0f;
        }
        if (wide_tile) {
            load_wide_once<F32>(p + start, lane, shares.p);
            if (q) {
                load_wide_once<F32>(q + start, lane, shares.q);
            }
            return;
        }
        u32 id = start + lane;
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            bool inside = id + j * 32 < vocab;
            // From one address.
            shares.p[j] = inside ? (p + id)[j * 32] : 0.0f;
            shares.q[j] = inside && q ? (q + id)[j * 32] : 0.0f;
        }
    }
};

// Cleans probabilities; returns the status bits of what was odd.
DEVICE u32 count_share(float (&p)[PER_LANE]) {
    u32 odd = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        odd |= !(p[j] >= 0.0f) ? STATUS_NAN : p[j] > LARGEST ? STATUS_INF : 0;
        p[j] = counted(p[j]);
    }
    return odd;
}

// The bits that any of a lane's numbers has.
DEVICE u32 bits_of(const float (&p)[PER_LANE]) {
    u32 bits = 0;
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        bits |= float_bits(p[j]);
    }
    return bits;
}

// Makes the residual of a lane's shares in the place of p; returns the status bits of what was odd. Where nothing is taken away
// p stays.
DEVICE u32 subtract(Shares& shares) {
    u32 odd = 0;
    // Whatever is below 2 and has no sign lacks the two highest bits.
    if ((bits_of(shares.p) | bits_of(shares.q)) >> 30 != 0) {
        odd = count_share(shares.p) | count_share(shares.q);
    }
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        shares.p[j] = larger(shares.p[j] - shares.q[j], 0.0f);
    }
    return odd;
}

// The same row as the race sees it.
struct LogResidual : Residual {
    // Whether both rows lie on 16 bytes.
    bool wide;

    DEVICE_MEMBER explicit LogResidual(const Residual& row) : Residual(row), wide(are_aligned(p, q)) {}

    DEVICE_MEMBER bool is_wide(u32 tile) const { return wide && tile * TILE + TILE <= vocab; }

    DEVICE_MEMBER u32 place(u32 tile, u32 lane, u32 j) const { return place_of<F32>(lane, j, is_wide(tile)); }

    // The logarithms of a lane's share of a tile, -inf where nothing is left or there is no token.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[PER_LANE], u32&) const {
        Shares shares;
        fetch(tile, lane, shares);
        subtract(shares);
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            z[j] = log2_rule(shares.p[j]);
        }
    }
};

// What a warp learns of a tile.
struct alignas(16) SeenShare {
    // The share of the lane that has the first token of the order.
    float r[PER_LANE];
    // The bits of the largest number, and of the largest of the other lanes: of what is not negative they compare as it does.
    u32 maximum;
    u32 others;
    u32 lane;
    u32 reserved;
};

DEVICE float largest_share(const float (&r)[PER_LANE]) {
    return larger(larger(larger(r[0], r[1]), larger(r[2], r[3])), larger(larger(r[4], r[5]), larger(r[6], r[7])));
}

// Finds a tile's first token; the lane that has it leaves what it knows.
DEVICE void see_share(const float (&r)[PER_LANE], bool wide, SeenShare& seen) {
    float largest = largest_share(r);
    u32 own = float_bits(largest), maximum = __reduce_max_sync(ALL_LANES, own);
    u32 who = __ballot_sync(ALL_LANES, own == maximum);
    if ((who & (who - 1)) != 0) {
        u32 lane = found_here(lane_id()), place = TILE;
#pragma unroll
        for (u32 j = PER_LANE; j-- > 0;) {
            place = float_bits(r[j]) == maximum ? place_of<F32>(lane, j, wide) : place;
        }
        u32 least = __reduce_min_sync(ALL_LANES, place);
        who = __ballot_sync(ALL_LANES, place == least);
    }
    bool leads = who >> lane_id() & 1;
    u32 others = __reduce_max_sync(ALL_LANES, leads ? 0 : own);
    if (leads) {
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            seen.r[j] = r[j];
        }
        seen.maximum = maximum;
        seen.others = others;
        seen.lane = lane_id();
        // So that it is one store of four words.
        seen.reserved = 0;
    }
}

// What a warp learns by running a tile's tokens.
struct alignas(16) RunShare {
    // Of the one that leads, or nearly: what is left of its probability, and its place in the tile; TILE if the tile was not run.
    float p;
    u32 place;
    // What no other token's log2(p) - log2(arrival) exceeds, errors of approximate logarithms aside.
    float rest;
    u32 reserved;
};

// Whether a tile has a number at least as large as a bar besides its first; the same in all lanes.
DEVICE bool has_two(const float (&r)[PER_LANE], float bar) {
    float largest = largest_share(r);
    u32 who = __ballot_sync(ALL_LANES, largest >= bar), count = 0;
    if ((who & (who - 1)) != 0 || who == 0) {
        return who != 0;
    }
#pragma unroll
    for (u32 j = 0; j < PER_LANE; j++) {
        count += r[j] >= bar;
    }
    return __ballot_sync(ALL_LANES, count > 1) != 0;
}

// Runs the tokens of a wide tile, about; the lane that has the one that leads leaves what it knows.
DEVICE void run_share(const float (&r)[PER_LANE], const LastStream& stream, const First& first, u32 tile, RunShare& run) {
    u32 lane = lane_id(), to = 0;
    float lead = -INFINITE, rest = -INFINITE, p = 0.0f;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; i += 4) {
        // One block after the other: side by side they take more registers than there are.
        u32 id = found_here(tile * TILE + place_of<F32>(lane, i, true));
        const Words words = philox(stream.seed, id / 4, stream.position, stream.token_tag(), stream.draw);
#pragma unroll
        for (u32 j = i; j < i + 4; j++) {
            bool is_first = place_of<F32>(lane, j, true) == first.place;
            float log_arrival = about_log_arrival(first.e, is_first ? 0 : words.w[j - i]);
            // What is less than a normal number is taken for the least of these.
            float score = about_log2(larger(found_here(r[j]), bits_float(1 << 23))) - log_arrival;
            // Of several with the highest score the first is known, and bounds the others.
            rest = larger(rest, fminf(score, lead));
            p = score > lead ? r[j] : p;
            to = score > lead ? j : to;
            lead = larger(lead, score);
        }
    }
    u32 bits = ordered_bits(lead), top = __reduce_max_sync(ALL_LANES, bits);
    bool leads = is_first_of(bits == top);
    rest = from_ordered_bits(__reduce_max_sync(ALL_LANES, ordered_bits(leads ? rest : lead)));
    if (leads) {
        run = RunShare{p, place_of<F32>(lane, to, true), rest, 0};
    }
}

// The record of a tile that its warp saw, as Raced reads it.
DEVICE Record record_of_share(const SeenShare& seen, const RunShare& run, bool wide, u32 odd, const LastStream& stream,
                              const First& first, u32 tile) {
    float maximum = bits_float(seen.maximum), others = bits_float(seen.others);
    u32 j = PER_LANE;
#pragma unroll
    for (u32 i = PER_LANE; i-- > 0;) {
        float r = seen.r[i];
        bool leads = r >= maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = larger(others, leads ? (j < PER_LANE ? maximum : 0.0f) : r);
        j = leads ? i : j;
    }
    bool ran = run.place < TILE;
    u32 place = ran ? run.place : place_of<F32>(seen.lane, j % PER_LANE, wide);
    float rest = ran ? run.rest : log2_rule(others) - log2_of_normal(first.e);
    return Record{log2_rule(maximum), log2_rule(ran ? run.p : maximum),
                  log2_of_normal(token_arrival(stream, first, tile, place)), places_of(place, odd, rest)};
}

// What a block learns of its tiles, in shared memory.
struct ChainRoom {
    SeenShare seen[SURVEY_WARPS * MOST_PER_WARP];
    RunShare run[SURVEY_WARPS * MOST_PER_WARP];
    First first[SURVEY_WARPS * MOST_PER_WARP];
    u32 odd[SURVEY_WARPS];
    LastStream streams[SURVEY_WARPS];
};

KERNEL_BESIDE(survey_chains, 32 * SURVEY_WARPS, 5, Chains, chains) {
    __shared__ ChainRoom room;
    // The kernel before may be anyone's, and make what is read here.
    wait_for_previous();
    u32 chain = blockIdx.x / chains.blocks_per_chain, part = blockIdx.x % chains.blocks_per_chain;
    u32 per_block = SURVEY_WARPS * chains.per_warp, block_tile = part * per_block, lane = lane_id(), warp = warp_id();
    const Stream of_chain = stream_of(chains, chain);
    const Judged judged = judge(chains, of_chain, chain);
    const Residual row(chains, chain, judged);
    LastStream& stream = room.streams[warp];
    if (lane == 0) {
        // Read there where it is needed: there is more than registers.
        stream = stream_of_last(of_chain, judged);
        room.odd[warp] = 0;
    }
    // Without it lanes would draw by what the first one has not left yet.
    __syncwarp();
#pragma unroll 1
    for (u32 group = 0; group < chains.per_warp; group++) {
        // Found here, else the compiler keeps the places of all that is told of a tile from round to round.
        u32 own = found_here(group * SURVEY_WARPS + warp), tile = block_tile + own;
        Shares shares;
        row.fetch(tile, lane, shares);
        if (group == 0) {
            let_next_begin();
            // While the first of the warp's tiles come, which are under way by now: a lane a tile.
            u32 place = lane % MOST_PER_WARP * SURVEY_WARPS + warp;
            First first = first_arrival(stream, block_tile + place);
            if (lane < MOST_PER_WARP) {
                room.first[place] = first;
            }
            // Without it lanes would miss what others have just drawn.
            __syncwarp();
        }
        u32 odd = subtract(shares);
        if (odd != 0) {
            atomicOr(&room.odd[warp], odd);
        }
        bool wide = row.is_wide(tile);
        see_share(shares.p, wide, room.seen[own]);
        if (wide && has_two(shares.p, room.first[own].e * RUN_FROM)) {
            run_share(shares.p, stream, room.first[own], tile, room.run[own]);
        } else if (lane == 0) {
            room.run[own].place = TILE;
        }
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    u32 tile = block_tile + lane;
    if (warp == 0 && lane < per_block && tile < chains.tiles) {
        u32 odd = room.odd[lane % SURVEY_WARPS];
        chains.records[(u64)chain * chains.tiles + tile] =
            record_of_share(room.seen[lane], room.run[lane], row.is_wide(tile), odd, stream, room.first[lane], tile);
    }
}

// Makes the records of the target's row anew, by one block: where the drafter has all that the target has.
DEVICE void survey_target(const Residual& row, const LastStream& stream, u32 tiles, Record* records) {
    __shared__ SeenShare seen[32];
    const RunShare not_run{0.0f, TILE, 0.0f, 0};
#pragma unroll 1
    for (u32 tile = warp_id(); tile < tiles; tile += warps()) {
        Shares shares;
        row.fetch(tile, lane_id(), shares);
        subtract(shares);
        see_share(shares.p, row.is_wide(tile), seen[warp_id()]);
        // Without it the first lane would read what the one that leads has not left yet.
        __syncwarp();
        if (lane_id() == 0) {
            // What is odd in the row is known.
            First first = first_arrival(stream, tile);
            records[tile] = record_of_share(seen[warp_id()], not_run, row.is_wide(tile), 0, stream, first, tile);
        }
        // Without it another lane would leave the next tile's before this one was read.
        __syncwarp();
    }
    // Without it a thread would read records that others have not made yet.
    __syncthreads();
}

// Adds to a number of the chain's, or sets it.
DEVICE void tell_count(const Chains& chains, u32* counts, u32 chain, u32 count) {
    if (counts) {
        counts[chain] = chains.flags & CHAIN_ADDS ? counts[chain] + count : count;
    }
}

KERNEL(finish_chains, 1024, Chains, chains) {
    u32 chain = blockIdx.x, tiles = chains.tiles, length = chains.length;
    // What the survey does not write is read before it is done.
    const Stream of_chain = stream_of(chains, chain);
    const Judged judged = judge(chains, of_chain, chain);
    const LastStream stream = stream_of_last(of_chain, judged);
    Residual row(chains, chain, judged);
    Record* own = chains.records + (u64)chain * tiles;
    wait_for_previous();

    u32 status = 0;
    int token = NONE;
#pragma unroll 1
    for (;;) {
        Records records(own, nullptr, tiles);
        Front front = front_of<Raced>(records, 1.0f);
        Whole whole = whole_of(front);
        status |= whole.odd;
        if (whole.first != 0) {
            const Origin first(key_logit(whole.first));
            u64 leader = leader_of(front, cut_all(), first, 1.0f);
            token = (int)key_id(leader);
            if (!is_sure(front, first, 1.0f, leader)) {
                token = (int)race_behind<Raced>(records, LogResidual(row), stream, cut_all(), first, 1.0f, leader);
            }
            break;
        }
        if (row.q == nullptr) {
            status |= STATUS_EMPTY;
            break;
        }
        // Nothing is left: only roundings led here, or rows that do not add up to 1.
        row.q = nullptr;
        survey_target(row, stream, tiles, own);
    }

    int last = token < 0 && chains.flags & CHAIN_ZERO_TOKENS ? 0 : token;
#pragma unroll 1
    for (u32 j = threadIdx.x; j <= length; j += blockDim.x) {
        i64 id = j < judged.emitted ? draft_of(chains, chain, j) : j == judged.emitted ? last : NONE;
        u64 place = chain * chains.tokens_stride + j;
        if (chains.flags & CHAIN_WIDE_TOKENS) {
            ((i64*)chains.tokens)[place] = id;
        } else {
            ((int*)chains.tokens)[place] = (int)id;
        }
    }
    if (threadIdx.x == 0) {
        tell_count(chains, chains.accepted, chain, judged.accepted);
        tell_count(chains, chains.emitted, chain, judged.emitted);
        if (chains.statuses) {
            chains.statuses[chain] = status;
        }
    }
}
