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

#define SURVEY_WARPS 8
#define SURVEY_THREADS (32 * SURVEY_WARPS)

// What a block's warps learn of a tile.
struct alignas(16) Seen {
    // The share of the lane that has the first token of the order.
    float z[PER_LANE];
    float maximum;
    // The largest of the other lanes, in signed order.
    int others;
    u32 lane;
    // Whether lanes' shares lie as in a wide tile.
    u32 wide;
};

// What a block learns of its tiles, in shared memory.
template <u32 TILES>
struct Room {
    Seen seen[TILES];
    u64 sums[TILES];
    TileWeights told[TILES];
    u32 odd[SURVEY_WARPS];
};

// Which lane has a tile's first token, where several have its maximum: the one with the least place.
template <class T>
DEVICE u32 lane_of_first(const float (&z)[PER_LANE], float maximum, bool wide) {
    u32 lane = lane_id(), place = TILE;
#pragma unroll
    for (u32 j = PER_LANE; j-- > 0;) {
        // Places rise with j.
        place = z[j] >= maximum ? place_of<T>(lane, j, wide) : place;
    }
    u32 least = __reduce_min_sync(ALL_LANES, place);
    return (u32)__ffs((int)__ballot_sync(ALL_LANES, place == least)) - 1;
}

// A tile's maximum in signed order, and the lane's own. Odd values are cleaned; `odd` takes the bits of those that count,
// as the bits that `counted` returns say.
template <class Counted>
DEVICE int maximum_of(float (&z)[PER_LANE], Counted counted, u32& odd, int& own) {
    // -0.0 is +0.0.
    own = signed_order(largest_of(z) + 0.0f);
    int maximum = __reduce_max_sync(ALL_LANES, own);
    // +inf and NaN, which no row has as a rule, show in the maximum.
    if (maximum >= signed_order(INFINITE)) {
        odd |= clean_share(z, counted());
        own = signed_order(largest_of(z));
        maximum = __reduce_max_sync(ALL_LANES, own);
    }
    return maximum;
}

// A tile's maximum, and by the lane that has it what else there is to know. Odd values are cleaned and counted.
template <class T>
DEVICE float see(float (&z)[PER_LANE], bool wide, Seen& seen, u32& odd) {
    int own, top = maximum_of(z, []() INLINE { return 255u; }, odd, own);
    float maximum = from_signed_order(top);
    u32 who = __ballot_sync(ALL_LANES, own == top), first = (u32)__ffs((int)who) - 1;
    if ((who & (who - 1)) != 0) {
        first = lane_of_first<T>(z, maximum, wide);
    }
    bool leads = lane_id() == first;
    int others = __reduce_max_sync(ALL_LANES, leads ? signed_order(-INFINITE) : own);
    if (leads) {
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            seen.z[j] = z[j];
        }
        seen.maximum = maximum;
        seen.others = others;
        seen.lane = first;
        seen.wide = wide;
    }
    return maximum;
}

// What the record of a tile says of its logits.
template <class T>
DEVICE u32 places_seen(const Seen& seen, u32 odd) {
    float others = from_signed_order(seen.others);
    u32 j = PER_LANE;
#pragma unroll
    for (u32 i = PER_LANE; i-- > 0;) {
        float z = seen.z[i];
        bool first = z >= seen.maximum;
        // Of several with the maximum the first is the tile's, and the maximum bounds the others.
        others = larger(others, first ? (j < PER_LANE ? seen.maximum : -INFINITE) : z);
        j = first ? i : j;
    }
    // In a tile of NaN no place has the maximum; none is asked for either.
    return places_of(place_of<T>(seen.lane, j % PER_LANE, seen.wide), odd, others);
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

template <class T, u32 TILES, u32 GROUPS, u32 UNROLL, bool EARLY, bool EDITED, bool SUMS>
DEVICE void survey(const Step& step) {
    constexpr u32 PER_WARP = TILES * GROUPS, PER_BLOCK = SURVEY_WARPS * PER_WARP;
    static_assert(PER_BLOCK <= 32, "the first warp has a lane for each tile");
    __shared__ Room<PER_BLOCK> room;
    let_next_begin();
    forget_declared(step);
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
    bool wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile, z);
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
    Over<T, PER_WARP> over;
    float* own = nullptr;
    if constexpr (EDITED) {
        alignas(16) __shared__ float logits[SURVEY_WARPS][PER_WARP * TILE];
        own = logits[warp];
        Edits edits(step, row_index, slot, asks);
        if (edits.any()) {
            Penalties penalties(params);
            u32 now = step.states[slot].step;
            const Request& request = step.requests[slot];
            raw = SUMS && told && params.logprob_mode == MODE_RAW;
            over = Over<T, PER_WARP>(edits, warp_tile, step.tiles);
            odd = over.edit(penalties, request, now, row, warp_tile, own);
        }
    }
    Record record{-INFINITE, 0.0f, 0.0f, 0};
    First first{1.0f, 0};
    Stream stream{0, 0, 0};
    bool races = false;
    if (warp == 0) {
        races = !(asks & ASKS_GREEDY);
        stream = Stream{params.seed, step.states[slot].position, params.draw};
        if (races) {
            first = first_arrival(stream, own_tile);
            record.log_first = log2_of_normal(first.e);
        }
    }

#pragma unroll UNROLL
    for (u32 group = 0; group < GROUPS; group++) {
        if (group > 0) {
            wide = load_tiles<T, TILES>(row, wide_tiles, warp_tile + group * TILES, z);
        }
#pragma unroll
        for (u32 i = 0; i < TILES; i++) {
            u32 tile = group * TILES + i, to = warp * PER_WARP + tile;
            bool plain = !EDITED || over.is_plain(tile);
            if constexpr (EDITED && SUMS) {
                if (raw && !plain) {
                    // The raw logits' first: their odd values are cleaned here, so they are counted here.
                    auto counted = [&]() INLINE { return over.share(over.allowed & ~over.touched, tile, wide); };
                    int lanes;
                    float maximum = from_signed_order(maximum_of(z[i], counted, odd, lanes));
                    u64 sum = sum_of_weights(z[i], maximum, logprob_s);
                    if (lane == 0) {
                        room.told[to] = TileWeights{sum, maximum, 0};
                    }
                }
            }
            if constexpr (EDITED) {
                if (!plain) {
                    over.apply(tile, wide, own, z[i]);
                }
            }
            float maximum = see<T>(z[i], wide, room.seen[to], odd);
            if constexpr (SUMS) {
                if (sums) {
                    u64 sum = about_sum_of_weights(z[i], maximum, s);
                    if (lane == 0) {
                        room.sums[to] = sum;
                    }
                }
                if (told && (!raw || plain)) {
                    u64 sum = sum_of_weights(z[i], maximum, logprob_s);
                    if (lane == 0) {
                        room.told[to] = TileWeights{sum, maximum, 0};
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
    if (warp == 0 && lane < PER_BLOCK && own_tile < step.tiles) {
        // Odd values of any of a warp's tiles stand in all their records: only the row's are asked for.
        const Seen& seen = room.seen[lane];
        record.maximum = seen.maximum;
        record.places = places_seen<T>(seen, room.odd[lane / PER_WARP]);
        if (races) {
            record.log_top = log2_of_normal(token_arrival(stream, first, own_tile, record.places & 255));
        }
        u64 to = (u64)row_index * step.tiles + own_tile;
        step.records[to] = record;
        if (sums) {
            step.sums[to] = room.sums[lane];
        }
        if (told) {
            step.told[to] = room.told[lane];
        }
    }
}

// Gives rows that share lines their records from those of the lines, a tile a thread: only the arrivals are a row's own.
KERNEL(arrive, SURVEY_THREADS, Step, step) {
    let_next_begin();
    const Standing standing = standing_of(step, blockIdx.x);
    u32 row = standing.row, tile = standing.part * SURVEY_THREADS + threadIdx.x;
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
#define SURVEY(name, T, SUMS)                                                \
    KERNEL_BESIDE(name##_few, SURVEY_THREADS, 5, Step, step) {               \
        survey<T, 1, 1, 1, true, false, SUMS>(step);                         \
    }                                                                        \
    KERNEL_BESIDE(name##_many, SURVEY_THREADS, 6, Step, step) {              \
        survey<T, 2, 2, 2, false, false, SUMS>(step);                        \
    }
#define SURVEY_EDITED(name, T, SUMS)                                         \
    KERNEL_BESIDE(name##_few, SURVEY_THREADS, 4, Step, step) {               \
        survey<T, 1, 1, 1, true, true, SUMS>(step);                          \
    }                                                                        \
    KERNEL_BESIDE(name##_many, SURVEY_THREADS, 5, Step, step) {              \
        survey<T, 1, 4, 1, false, true, SUMS>(step);                         \
    }
#define SURVEYS(type, T)                              \
    SURVEY(survey_##type, T, false)                   \
    SURVEY(survey_sums_##type, T, true)               \
    SURVEY_EDITED(survey_edited_##type, T, false)     \
    SURVEY_EDITED(survey_edited_sums_##type, T, true)

SURVEYS(f32, F32)
SURVEYS(bf16, Bf16)
SURVEYS(f16, F16)
