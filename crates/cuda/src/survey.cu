// survey.cu: read each row, under its edits, once; learn what every later stage asks of it.
//
// Computes   for each tile of 256 tokens its maximum and the token that has it, when that token and the first of
//            all arrive in the race; a bound of its other tokens; the sums of its weights, if asked for; which odd
//            values the row holds
// Never      reads a row twice; never writes logits; never reads beyond the vocabulary
// Twins      oracle spec/src/survey.rs | CPU cpu/src/survey.rs | why docs/stages/survey.md
// Shapes     logits [rows, vocab] of T, row stride in elements; records, sums, told [rows, tiles]
// Grid       x = (row, block of warps); 8 warps a block, each GROUPS times TILES tiles; no dynamic shared memory
// Traffic    vocab * sizeof(T) per row in, 16 bytes per tile out, 8 and 16 more with sums; of edits see over.cuh
// Requires   1 <= vocab <= 2^20; 16-byte alignment only for speed; padding rows are not read, or in vain
//
// A warp finds a tile's maximum by one reduction; the lane that has it leaves its share on chip. Then the first warp works
// the tiles of the block out, one a lane, and draws their arrivals: else each warp would, with most lanes idle.

#include "arrival.cuh"
#include "over.cuh"
#include "tile.cuh"

// What a block's warps learn of a tile.
struct alignas(16) Seen {
    // The share of the lane that has the first token of the order.
    float z[PER_LANE];
    // Its largest logit and that of the other lanes, in signed order.
    int maximum;
    int others;
    u32 lane;
    u32 reserved;
};

// The sum of a tile's weights, and what they are relative to.
struct alignas(16) SumSeen {
    Halves sum;
    float maximum;
    u32 reserved;
};

// What a block learns of its tiles, in shared memory.
template <u32 TILES, u32 WARPS, bool EDITED>
struct Room {
    Seen seen[TILES];
    SumSeen told[TILES];
    Halves sums[TILES];
    u32 odd[WARPS];
    // The tiles' first arrivals, and log2 of them.
    First first[TILES];
    float log_first[TILES];
    Over<EDITED ? TILES : 1, 32 * WARPS> over;
};

// Whether the lane has a tile's first token, where several have its maximum: the least place.
template <class T, class Set>
DEVICE bool leads_of_several(const float (&z)[PER_LANE], const Set& set, float maximum, bool wide) {
    u32 lane = lane_id(), place = TILE;
#pragma unroll
    for (u32 j = PER_LANE; j-- > 0;) {
        // Places rise with j.
        place = set.has(j) && z[j] >= maximum ? place_of<T>(lane, j, wide) : place;
    }
    u32 least = __reduce_min_sync(ALL_LANES, place);
    // In a tile of nothing nobody has a place.
    return place == least && (least < TILE || lane == 0);
}

// The maximum in signed order of a set of a tile's logits, and the lane's own. Odd values are cleaned; `odd` takes the status
// bits of those that are counted.
template <class Set, class Counted>
DEVICE int maximum_of(float (&z)[PER_LANE], const Set& set, const Counted& counted, u32& odd, int& own) {
    // -0.0 is +0.0.
    own = signed_order(largest_of(z, set) + 0.0f);
    int maximum = __reduce_max_sync(ALL_LANES, own);
    // +inf and NaN, which no row has as a rule, show in the maximum.
    if (maximum >= signed_order(INFINITE)) {
        odd |= clean_share(z, counted.again());
        own = signed_order(largest_of(z, set.again()));
        maximum = __reduce_max_sync(ALL_LANES, own);
    }
    return maximum;
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

// What a warp saw of a tile.
template <class T, class Set>
DEVICE Top top_of(const Seen& seen, const Set& set, bool wide) {
    float maximum = from_signed_order(seen.maximum), others = from_signed_order(seen.others);
    u32 j = PER_LANE;
#pragma unroll
    for (u32 i = PER_LANE; i-- > 0;) {
        float z = set.has(i) ? seen.z[i] : -INFINITE;
        bool first = z >= maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = larger(others, first ? (j < PER_LANE ? maximum : -INFINITE) : z);
        j = first ? i : j;
    }
    // In a tile of nothing any place will do: none is asked for.
    return Top{maximum, place_of<T>(seen.lane, j % PER_LANE, wide), others};
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
                z[i][j] = start + j * 32 < row.vocab ? T::convert(row.logits[start + j * 32]) : -INFINITE;
            }
        }
    }
    return wide;
}

template <class T, u32 WARPS, u32 HELPERS, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool EDITED, bool SUMS>
DEVICE void survey(const Step& step) {
    constexpr u32 PER_WARP = TILES * GROUPS, PER_BLOCK = WARPS * PER_WARP, ALL_WARPS = WARPS + HELPERS,
                  THREADS = 32 * ALL_WARPS;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ Room<PER_BLOCK, ALL_WARPS, EDITED> room;
    auto& over = room.over;
    let_next_begin();
    const Standing standing = standing_of(step, blockIdx.x);
    u32 row_index = standing.row, lane = lane_id(), warp = warp_id();
    u32 block_tile = standing.part * PER_BLOCK, own_tile = block_tile + lane;
    u32 warp_tile = block_tile + warp * PER_WARP;
    int slot = step.slots[row_index];
    // Where rows are few, their loads do not wait for the slot: padding is read in vain.
    if (!EARLY && slot < 0) {
        return;
    }
    Row<T> row(step, row_index);
    u32 wide_tiles = row.wide ? step.vocab / TILE : 0;
    float z[TILES][PER_LANE];
    const bool has_tiles = HELPERS == 0 || warp < WARPS;
    bool wide = false;
    if (has_tiles) {
        wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile, z);
    }
    Edits edits;
    u32 allowed[decltype(room.over)::OWN_WORDS];
    if constexpr (EDITED) {
        edits = Edits(step, row_index);
        over.read_mask(edits, block_tile, step.tiles, allowed);
        over.clear();
        // Without it a thread would list ids where another one has not cleared yet.
        __syncthreads();
    }
    if (EARLY && slot < 0) {
        return;
    }

    // While the loads fly.
    const Params& params = step.params[slot];
    u32 asks = params.asks, odd = 0;
    bool sums = false, told = false, raw = false;
    float s = 0.0f, logprob_s = 0.0f;
    if constexpr (SUMS) {
        sums = asks & ASKS_SUMS;
        told = asks & ASKS_TOLD;
        logprob_s = params.logprob_s;
        s = params.filter_s;
    }
    // From the last thread on: the first warp has arrivals to draw.
    const u32 number = THREADS - 1 - threadIdx.x;
    // What an entry is found by and says: read before others wait for it.
    const Request& whole = step.requests[slot];
    Request request;
    request.entries = whole.entries;
    request.entries_mask = whole.entries_mask;
    const Penalties penalties(params);
    const u32 now = step.states[slot].step;
    const Stream stream{params.seed, step.states[slot].position, params.draw};
    auto edited = [&](u32 i) INLINE {
        u32 id = block_tile * TILE + over.touched[i];
        return clean(edited_logit(penalties, request, now, id, T::convert(row.logits[id]), odd));
    };
    // What the edits leave of the first id that the thread is dealt, and whether such ids are weighed with their tiles.
    float held = -INFINITE;
    bool weighs = false;
    if constexpr (EDITED) {
        edits.add(whole, asks);
        // At once, so that nothing waits for one of these only where another says so.
        raw = SUMS & told & (params.logprob_mode == MODE_RAW) & edits.any();
        over.list(edits, block_tile, step.tiles, allowed);
        // Without it a thread would miss ids that another one has not listed yet.
        __syncthreads();
#pragma unroll 1
        for (u32 i = number; i < over.count; i += THREADS) {
            float own = edited(i);
            held = i == number ? own : held;
            over.take(over.touched[i], own);
        }
        weighs = (sums || (told && !raw)) && over.count > 0;
        if (weighs) {
            // Without it a warp would weigh its tiles by maxima that lack what others have not edited yet.
            __syncthreads();
        }
    }
    bool races = !(asks & ASKS_GREEDY);
    if (warp == 0 && lane < PER_BLOCK && races) {
        First first = first_arrival(stream, own_tile);
        // Not in registers, which all warps would have to have.
        room.first[lane] = first;
        room.log_first[lane] = log2_of_normal(first.e);
    }

#pragma unroll UNROLL
    for (u32 group = has_tiles ? 0 : GROUPS; group < GROUPS; group++) {
        if (group > 0) {
            wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile + group * TILES, z);
        }
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            u32 to = warp * PER_WARP + group * TILES + i;
            int top;
            if constexpr (EDITED) {
                // The lanes have been apart: together again at once, not before each reduction.
                __syncwarp();
                const Share<T> kept(over.kept + to * MASK_WORDS, lane, wide);
                if (raw) {
                    // The raw logits' first: their odd values are cleaned here, so they are counted here.
                    int lanes;
                    float maximum = from_signed_order(maximum_of(z[i], All(), kept, odd, lanes));
                    Halves sum = sum_of_weights(z[i], maximum, logprob_s);
                    if (lane == 0) {
                        room.told[to] = SumSeen{sum, maximum, 0};
                    }
                }
                top = see<T>(z[i], kept, wide, room.seen[to], odd);
                if (sums || (told && !raw)) {
                    leave(z[i], kept.again());
                }
            } else {
                top = see<T>(z[i], All(), wide, room.seen[to], odd);
            }
            if (sums || (told && !raw)) {
                float maximum = from_signed_order(top);
                if constexpr (EDITED) {
                    maximum = weighs ? over.maximum_with(to, maximum) : maximum;
                }
                if (sums) {
                    Halves sum = about_sum_of_weights(z[i], maximum, s);
                    if (lane == 0) {
                        room.sums[to] = sum;
                    }
                }
                if (told && !raw) {
                    Halves sum = sum_of_weights(z[i], maximum, logprob_s);
                    if (lane == 0) {
                        room.told[to] = SumSeen{sum, maximum, 0};
                    }
                }
            }
        }
    }
    odd = __reduce_or_sync(ALL_LANES, odd);
    if (lane == 0) {
        room.odd[warp] = odd;
    }
    // Without it the first warp would read of tiles that others have not seen yet.
    __syncthreads();
    if constexpr (EDITED && SUMS) {
        if (weighs) {
#pragma unroll 1
            for (u32 i = number; i < over.count; i += THREADS) {
                float own = i == number ? held : edited(i);
                u32 tile = over.touched[i] / TILE;
                float distance = own - over.maximum_with(tile, from_signed_order(room.seen[tile].maximum));
                if (sums) {
                    room.sums[tile].add(weight(distance * s));
                }
                if (told && !raw) {
                    room.told[tile].sum.add(weight(distance * logprob_s));
                }
            }
            // Without it the first warp would lack weights that others have not added yet.
            __syncthreads();
        }
    }
    if (warp != 0) {
        return;
    }
    // All tiles' records have the odd values of any of the block's: only the row's are asked for.
    odd = __reduce_or_sync(ALL_LANES, lane < ALL_WARPS ? room.odd[lane] : 0);
    if (lane < PER_BLOCK && own_tile < step.tiles) {
        const Seen& seen = room.seen[lane];
        // Whether its warp had it so: with its neighbours.
        wide = own_tile - own_tile % TILES + TILES <= wide_tiles;
        Top top;
        if constexpr (EDITED) {
            const Share<T> kept(over.kept + lane * MASK_WORDS, seen.lane, wide);
            top = over.top_with(lane, top_of<T>(seen, kept, wide));
        } else {
            top = top_of<T>(seen, All(), wide);
        }
        Record record{top.maximum, 0.0f, 0.0f, places_of(top.place, odd, top.others)};
        if (races) {
            record.log_first = room.log_first[lane];
            record.log_top = log2_of_normal(token_arrival(stream, room.first[lane], own_tile, top.place));
        }
        u64 to = (u64)row_index * step.tiles + own_tile;
        step.records[to] = record;
        if (sums) {
            step.sums[to] = room.sums[lane].sum();
        }
        if (told) {
            step.told[to] = TileWeights{room.told[lane].sum.sum(), room.told[lane].maximum, 0};
        }
    }
}

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
    Record record = step.line_records[(u64)step.lines[row] * step.tiles + tile];
    if (!(params.asks & ASKS_GREEDY)) {
        Stream stream{params.seed, step.states[slot].position, params.draw};
        First first = first_arrival(stream, tile);
        record.log_first = log2_of_normal(first.e);
        record.log_top = log2_of_normal(token_arrival(stream, first, tile, record.places & 255));
    }
    step.records[(u64)row * step.tiles + tile] = record;
}

// Kernels for rows without edits and with them, and for rows that ask for no sums and for any. Where rows are few, a warp
// takes one tile, so that all of them load at once; else four, two at a time where nothing is edited. As many blocks a
// multiprocessor as registers allow; more code for each tile than that, and instructions come late.
#define SURVEY(name, T, SUMS)                                     \
    KERNEL_BESIDE(name##_few, 256, 5, Step, step) {               \
        survey<T, 8, 0, 1, 1, 1, true, false, SUMS>(step);           \
    }                                                             \
    KERNEL_BESIDE(name##_many, 256, 6, Step, step) {              \
        survey<T, 8, 0, 2, 2, 2, false, false, SUMS>(step);          \
    }
#define SURVEY_EDITED(name, T, SUMS)                              \
    KERNEL_BESIDE(name##_few, 256, 4, Step, step) {               \
        survey<T, 8, 0, 1, 1, 1, true, true, SUMS>(step);            \
    }                                                             \
    KERNEL_BESIDE(name##_many, 128, 10, Step, step) {             \
        survey<T, 4, 0, 1, 8, 1, false, true, SUMS>(step);           \
    }
#define SURVEYS(type, T)                              \
    SURVEY(survey_##type, T, false)                   \
    SURVEY(survey_sums_##type, T, true)               \
    SURVEY_EDITED(survey_edited_##type, T, false)     \
    SURVEY_EDITED(survey_edited_sums_##type, T, true)

SURVEYS(f32, F32)
SURVEYS(bf16, Bf16)
SURVEYS(f16, F16)
