// survey.cu: read each row, under its edits, once; learn what every later stage asks of it.
//
// Computes   for each tile of 256 tokens its maximum and the token that has it, when that token and the first of all arrive in the
//            race; a bound of its other tokens; the sums of its weights, if asked for; which odd values the row holds
// Never      reads a row twice; never writes logits; never reads beyond the vocabulary
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, sums, told [rows, tiles]
// Grid       x = (row, block of warps); WARPS warps a block, each GROUPS times TILES tiles; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out, 8 and 16 more with sums; a row out where one is filled; edits: over.cuh
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are not read, or in vain
//
// A warp finds a tile's maximum by one reduction; the lane that has it leaves its share on chip. Then the first warp works
// the tiles of the block out, one a lane, and draws their arrivals: else each warp would, with most lanes idle.

#include "arrival.cuh"
#include "fill.cuh"
#include "over.cuh"
#include "tile.cuh"

// What a block's warps learn of a tile.
struct alignas(16) Seen {
    // The share of the lane that has the first token of the order.
    float z[PER_LANE];
    // The largest logit, and the largest of the other lanes, in signed order.
    int maximum;
    int others;
    u32 lane;
    u32 reserved;
};

// The sum of a tile's weights, and what they are relative to: finite, in a tile of nothing too.
struct alignas(16) SumSeen {
    Halves sum;
    float maximum;
    u32 reserved;
};

// What a block learns of its tiles, in shared memory.
template <u32 WARPS, u32 TILES>
struct Room {
    Seen seen[TILES];
    SumSeen told[TILES];
    Halves sums[TILES];
    u32 odd[WARPS];
};

// Whether the lane has a tile's first token, where several have its maximum: the least place.
template <class T, class Set>
DEVICE bool leads_of_several(const float (&z)[PER_LANE], const Set& set, float maximum, bool wide) {
    // Places are not to be made before they are asked for.
    u32 lane = found_here(lane_id()), place = TILE;
#pragma unroll
    for (u32 j = PER_LANE; j-- > 0;) {
        // Places rise with j.
        place = set.has(j) && z[j] >= maximum ? place_of<T>(lane, j, wide) : place;
    }
    u32 least = __reduce_min_sync(ALL_LANES, place);
    // In a tile of nothing nobody has a place.
    return place == least && (least < TILE || lane == 0);
}

// The maximum of a set of a tile's logits, in signed order, and by the lane that has it what else there is to know of them. Odd
// values are cleaned and counted.
template <class T, class Set>
DEVICE int see(float (&z)[PER_LANE], const Set& set, bool wide, Seen& seen, u32& odd) {
    int own, maximum = maximum_of(z, set, set, odd, own);
    u32 who = __ballot_sync(ALL_LANES, own == maximum);
    if ((who & (who - 1)) != 0) {
        who = __ballot_sync(ALL_LANES, leads_of_several<T>(z, set.again(), from_signed_order(maximum), wide));
    }
    bool leads = who >> lane_id() & 1;
    int others = __reduce_max_sync(ALL_LANES, leads ? signed_order(-INFINITE) : own);
    if (leads) {
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            seen.z[j] = z[j];
        }
        seen.maximum = maximum;
        seen.others = others;
        seen.lane = lane_id();
        // So that it is one store of four words.
        seen.reserved = 0;
    }
    return maximum;
}

// The record of a tile that its warp saw, arrivals aside.
template <class T, class Set>
DEVICE Record record_of(const Seen& seen, const Set& set, bool wide, u32 odd) {
    float maximum = from_signed_order(seen.maximum), others = from_signed_order(seen.others);
    u32 j = PER_LANE;
#pragma unroll
    for (u32 i = PER_LANE; i-- > 0;) {
        float z = set.has(i) ? seen.z[i] : NOTHING;
        bool first = z >= maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = larger(others, first ? (j < PER_LANE ? maximum : -INFINITE) : z);
        j = first ? i : j;
    }
    // In a tile of nothing any place will do: none is asked for.
    return Record{maximum, 0.0f, 0.0f, places_of(place_of<T>(seen.lane, j % PER_LANE, wide), odd, others)};
}

// What a row asks of its tiles' weights.
struct Weighs {
    bool sums;
    bool told;
    float s;
    float logprob_s;

    DEVICE_MEMBER Weighs() : sums(false), told(false), s(0.0f), logprob_s(0.0f) {}
    DEVICE_MEMBER explicit Weighs(const Params& params)
        : sums(params.asks & ASKS_SUMS), told(params.asks & ASKS_TOLD), s(params.filter_s),
          logprob_s(params.logprob_s) {}
};

// The sum that logprobs ask for.
DEVICE void tell(const float (&z)[PER_LANE], float maximum, float s, SumSeen& told) {
    Halves sum = sum_of_weights(z, maximum, s);
    if (lane_id() == 0) {
        told = SumSeen{sum, maximum, 0};
    }
}

// The sums that are asked for of neighbouring tiles' edited logits. Each is asked for once for all of them: then what is done to one
// tile fills the waits of the other.
template <u32 COUNT, u32 WARPS, u32 TILES>
DEVICE void weigh(const float (*z)[PER_LANE], const int (&top)[COUNT], const Weighs& weighs, bool told, u32 first_tile,
                  Room<WARPS, TILES>& room) {
    if (weighs.sums) {
        Halves sums[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            sums[i] = about_sum_of_weights(z[i], from_maximum(top[i]), weighs.s);
        }
        if (lane_id() == 0) {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                room.sums[first_tile + i] = sums[i];
            }
        }
    }
    if (told) {
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            // In a tile of nothing all lie infinitely far below.
            tell(z[i], larger(from_maximum(top[i]), LEAST), weighs.logprob_s, room.told[first_tile + i]);
        }
    }
}

// When a tile arrives, of a thread: before its record is known, and after it.
struct Arriving {
    bool races;
    Stream stream;
    First first;
    float log_first;

    DEVICE_MEMBER Arriving() : races(false), stream{0, 0, 0}, first{1.0f, 0}, log_first(0.0f) {}
    DEVICE_MEMBER Arriving(const Params& params, const State& state, u32 tile) : Arriving() {
        races = !(params.asks & ASKS_GREEDY);
        stream = Stream{params.seed, state.position, params.draw};
        if (races) {
            first = first_arrival(stream, tile);
            log_first = log2_of_normal(first.e);
        }
    }

    DEVICE_MEMBER void complete(Record& record, u32 tile) const {
        if (races) {
            record.log_first = log_first;
            record.log_top = log2_of_normal(token_arrival(stream, first, tile, record.places & 255));
        }
    }
};

// Hands on what is known of a tile.
template <u32 WARPS, u32 TILES>
DEVICE void hand_on(const Step& step, u32 row, u32 tile, const Record& record, const Weighs& weighs, u32 own,
                    const Room<WARPS, TILES>& room) {
    u64 to = (u64)row * step.tiles + tile;
    step.records[to] = record;
    if (weighs.sums) {
        step.sums[to] = room.sums[own].sum();
    }
    if (weighs.told) {
        u64 sum = room.told[own].sum.sum();
        step.told[to] = TileWeights{sum, sum != 0 ? room.told[own].maximum : NOTHING, 0};
    }
}

// Loads a warp's neighbouring tiles; returns whether lanes' shares lie as in wide tiles.
template <class T, u32 TILES>
DEVICE bool load_tiles(const Row<T>& row, u32 wide_tiles, u32 first_tile, float (&z)[TILES][PER_LANE]) {
    u32 lane = lane_id();
    bool wide = first_tile + TILES <= wide_tiles;
    if (wide) {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            load_wide_once<T>(row.logits + (first_tile + i) * TILE, lane, z[i]);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            u32 start = (first_tile + i) * TILE + lane;
#pragma unroll
            for (u32 j = 0; j < PER_LANE; j++) {
                z[i][j] = start + j * 32 < row.vocab ? T::convert(row.logits[start + j * 32]) : NOTHING;
            }
        }
    }
    return wide;
}

// What a block does first. Returns where it stands.
template <bool SUMS>
DEVICE Standing begin(const Step& step) {
    if (SUMS) {
        // Only ends of rows with sums have help.
        forget_declared(step);
    }
    return standing_of(step, blockIdx.x);
}

template <class T, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool SUMS>
DEVICE void survey(const Step& step) {
    constexpr u32 WARPS = 8, PER_WARP = TILES * GROUPS, PER_BLOCK = WARPS * PER_WARP;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ Room<WARPS, PER_BLOCK> room;
    // Whether tiles are loaded before it is known what slot their row has, of padding in vain: where rows are few, or all have one.
    const bool early = EARLY || step.flags & STEP_OWN_SLOTS;
    if (!early || step.lines != nullptr) {
        wait_for_requests();
    }
    const Standing standing = begin<SUMS>(step);
    u32 row_index = standing.row, lane = lane_id(), warp = warp_id();
    u32 block_tile = standing.part * PER_BLOCK, own_tile = block_tile + lane;
    u32 warp_tile = block_tile + warp * PER_WARP;
    int slot = early ? (int)row_index : step.slots[row_index];
    if (slot < 0) {
        return;
    }
    Row<T> row(step, row_index);
    u32 wide_tiles = row.wide ? step.vocab / TILE : 0, odd = 0;
    float z[TILES][PER_LANE];
    bool wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile, z);
    if (early) {
        if (EARLY) {
            fetch_argument(step);
        }
        wait_for_requests();
        slot = EARLY ? surveyed_slot(step, row_index) : slot;
        if (slot < 0) {
            return;
        }
    }

    // While the loads fly.
    const Params& params = step.params[slot];
    Weighs weighs;
    if constexpr (SUMS) {
        weighs = Weighs(params);
    }
    Arriving arriving;
    if (warp == 0) {
        arriving = Arriving(params, step.states[slot], own_tile);
    }

#pragma unroll UNROLL
    for (u32 group = 0; group < GROUPS; group++) {
        if (group > 0) {
            wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile + group * TILES, z);
        }
        const u32 first_own = warp * PER_WARP + group * TILES;
        constexpr u32 TOGETHER = SUMS_TOGETHER ? TILES : 1;
#pragma unroll
        for (u32 start = 0; start < TILES; start += TOGETHER) {
            int top[TOGETHER];
#pragma unroll
            for (u32 i = 0; i < TOGETHER; i++) {
                top[i] = see<T>(z[start + i], All(), wide, room.seen[first_own + start + i], odd);
            }
            if constexpr (SUMS) {
                weigh(z + start, top, weighs, weighs.told, first_own + start, room);
            }
        }
    }
    odd = __reduce_or_sync(ALL_LANES, odd);
    if (lane == 0) {
        room.odd[warp] = odd;
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    if (warp == 0 && lane < PER_BLOCK && own_tile < step.tiles) {
        // Whether its warp had it so: with its neighbours. Odd values of any of them stand in all their records: only the row's
        // are asked for.
        bool was_wide = own_tile - own_tile % TILES + TILES <= wide_tiles;
        Record record = record_of<T>(room.seen[lane], All(), was_wide, room.odd[lane / PER_WARP]);
        arriving.complete(record, own_tile);
        hand_on(step, row_index, own_tile, record, weighs, lane, room);
    }
    if (step.filled != nullptr) {
        // The other warps begin while the first works the tiles out.
        fill_tiles(step, PER_BLOCK);
    }
}

// The same under edits: the tiles of a round wait on chip.
template <class T, u32 WARPS, u32 OWN, u32 ROUNDS, bool EARLY, bool SUMS>
DEVICE void survey_edited(const Step& step) {
    constexpr u32 AT_ONCE = WARPS * OWN, TILES = AT_ONCE * ROUNDS;
    static_assert(TILES <= 32, "the first warp has a lane for each tile");
    __shared__ Over<T, WARPS, OWN, ROUNDS> over;
    __shared__ Room<WARPS, TILES> room;
    let_next_begin();
    const Standing standing = begin<SUMS>(step);
    u32 row_index = standing.row, lane = lane_id(), warp = warp_id();
    u32 block_tile = standing.part * TILES, own_tile = block_tile + lane;
    int slot = step.slots[row_index];
    if (!EARLY && slot < 0) {
        return;
    }
    Row<T> row(step, row_index);
    over.fetch(row, block_tile);
    Edits edits(step, row_index);
    u32 masked[ROUNDS];
#pragma unroll
    for (u32 round = 0; round < ROUNDS; round++) {
        u32 tile = block_tile + round * AT_ONCE;
        masked[round] = over.has_word(tile, step.tiles) ? edits.masked(tile * MASK_WORDS + threadIdx.x) : 0;
    }
    if (threadIdx.x < ROUNDS) {
        over.count[threadIdx.x] = 0;
    }
    // Without it a thread would list ids before there is a list.
    __syncthreads();
    if (EARLY && slot < 0) {
        copies_end();
        return;
    }

    const Params& params = step.params[slot];
    const State& state = step.states[slot];
    const Request& request = step.requests[slot];
    // Entries are found by these, and edits go by those: read here, lest somebody waits for them later.
    const Table table{request.entries, request.entries_mask};
    const Penalties penalties(params);
    const u32 now = state.step;
    edits.add(request, params.asks);
    Weighs weighs;
    bool raw = false;
    if constexpr (SUMS) {
        weighs = Weighs(params);
        // A row without edits has raw logits only. All three are read at once.
        raw = weighs.told & (params.logprob_mode == MODE_RAW) & edits.any();
    }
    over.list(edits, block_tile, step.tiles, masked);
    over.settle(row, block_tile);
    // Without it a thread would miss ids that another one has not listed yet, or logits that came for it.
    __syncthreads();
    Arriving arriving;
    if (warp == 0) {
        arriving = Arriving(params, state, own_tile);
    }
    if (SUMS && raw) {
#pragma unroll 1
        for (u32 round = 0; round < ROUNDS; round++) {
            over.each_touched(request, block_tile, round, [&](u32 place) INLINE {
                u32 id = (block_tile + round * AT_ONCE) * TILE + place;
                const Entry* home = table.entries + home_of(id, table.mask);
                load_soon(home);
                load_soon(home + 1);
            });
        }
    }
    u32 odd = 0;
    float z[1][PER_LANE];
#pragma unroll 1
    for (u32 round = 0; round < ROUNDS; round++) {
        const u32 first_tile = block_tile + round * AT_ONCE, first_own = round * AT_ONCE + warp * OWN;
        const bool any = over.count[round] > 0;
        if (round > 0) {
            over.settle(row, first_tile);
        }
        if (SUMS && raw) {
            const Quad* quads = held_on_chip(over.quads(warp * OWN));
            SumSeen* told = held_on_chip(room.told + first_own);
#pragma unroll 1
            for (u32 i = 0; i < OWN; i++, quads += 64, told++) {
                // The lanes have been apart: together again at once, not before each reduction.
                __syncwarp();
                over.load(quads, z[0]);
                tell(z[0], maximum_to_weigh_by(z[0]), weighs.logprob_s, *told);
            }
        }
        if (any) {
            if ((SUMS && raw) || round > 0) {
                // Without it a logit would be edited that another warp has not weighed yet, or that has not come.
                __syncthreads();
            }
            over.each_touched(request, block_tile, round, [&](u32 place) INLINE {
                u32 id = first_tile * TILE + place;
                over.logits[place] = clean(edited_logit(penalties, table, now, id, over.logits[place], odd));
            });
            // Without it a warp would see tiles that others have not edited yet.
            __syncthreads();
        }
        const Quad* quads = held_on_chip(over.quads(warp * OWN));
        const unsigned char* shares = held_on_chip(over.allowed + first_own * 32 + lane);
        Seen* seen = held_on_chip(room.seen + first_own);
        const bool weighed = SUMS && (weighs.sums || (weighs.told && !raw));
#pragma unroll 1
        for (u32 i = 0; i < OWN; i++, quads += 64, shares += 32, seen++) {
            __syncwarp();
            over.load(quads, z[0]);
            const Share allowed(shares);
            const int top[1] = {see<F32>(z[0], allowed, true, *seen, odd)};
            if (weighed) {
                leave(z[0], allowed.again());
                weigh(z, top, weighs, weighs.told && !raw, first_own + i, room);
            }
        }
        if (round + 1 < ROUNDS) {
            // Without it tiles would come where a lane still reads; other warps' threads are done with them.
            __syncwarp();
            over.fetch(row, first_tile + AT_ONCE);
        }
    }
    odd = __reduce_or_sync(ALL_LANES, odd);
    if (lane == 0) {
        room.odd[warp] = odd;
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    if (warp != 0) {
        return;
    }
    // The odd values of any of the block's tiles stand in all their records.
    odd = __reduce_or_sync(ALL_LANES, lane < WARPS ? room.odd[lane] : 0);
    if (lane < TILES && own_tile < step.tiles) {
        const Seen& seen = room.seen[lane];
        Record record = record_of<F32>(seen, over.share(lane, seen.lane), true, odd);
        arriving.complete(record, own_tile);
        hand_on(step, row_index, own_tile, record, weighs, lane, room);
    }
}

#if !GUMBALL_PROBABILITIES
#define ARRIVE_THREADS 256

// Gives rows that share lines their records from those of the lines, a tile a thread: only the arrivals are a row's own.
KERNEL(arrive, ARRIVE_THREADS, Step, step) {
    let_next_begin();
    const Standing standing = standing_of(step, blockIdx.x);
    u32 row = standing.row, tile = standing.part * ARRIVE_THREADS + threadIdx.x;
    int slot = step.slots[row];
    if (slot < 0 || tile >= step.tiles) {
        return;
    }
    const Params& params = step.params[slot];
    u64 from = (u64)step.lines[row] * step.tiles + tile, to = (u64)row * step.tiles + tile;
    Record record = step.line_records[from];
    Arriving(params, step.states[slot], tile).complete(record, tile);
    step.records[to] = record;
    if (step.line_sums != nullptr && params.asks & ASKS_SUMS) {
        step.sums[to] = step.line_sums[from];
    }
}
#endif

// Kernels for rows without edits and with them, and for rows that ask for no sums and for any. Where rows are few, a warp
// takes one tile, so that all of them load at once; else several, and under edits twice as many where not all blocks are there at
// once. As many blocks a multiprocessor as registers allow; more code
// for each tile than that, and instructions come late.
#define SURVEY(name, T, SUMS)                                     \
    KERNEL_BESIDE(name##_few, 256, 5, Step, step) {               \
        survey<T, 1, 1, 1, true, SUMS>(step);                     \
    }                                                             \
    KERNEL_BESIDE(name##_many, 256, 6, Step, step) {              \
        survey<T, 2, 2, 2, false, SUMS>(step);                    \
    }
#define SURVEY_EDITED(name, T, SUMS)                              \
    KERNEL_BESIDE(name##_few, 256, 5, Step, step) {               \
        survey_edited<T, 8, 1, 1, true, SUMS>(step);              \
    }                                                             \
    KERNEL_BESIDE(name##_some, 128, 10, Step, step) {             \
        survey_edited<T, 4, 4, 1, false, SUMS>(step);             \
    }                                                             \
    KERNEL_BESIDE(name##_many, 128, 10, Step, step) {             \
        survey_edited<T, 4, 4, 2, false, SUMS>(step);             \
    }
#define SURVEYS(type, T)                              \
    SURVEY(survey_##type, T, false)                   \
    SURVEY(survey_sums_##type, T, true)               \
    SURVEY_EDITED(survey_edited_##type, T, false)     \
    SURVEY_EDITED(survey_edited_sums_##type, T, true)

SURVEYS(f32, F32)
SURVEYS(bf16, Bf16)
SURVEYS(f16, F16)
