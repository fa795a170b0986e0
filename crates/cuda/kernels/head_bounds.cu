// head_bounds.cu: bounds the logits of a head by a screen, and finds the logits that decide each row (H5).
//
// Computes   head_bounds: for each id and row an upper and a lower bound of the logit, from codes of 8 bits; -inf as
//            every logit
//            head_race: for rows without filters, the scores that these bounds have in the race
//            head_contenders: the ids whose bound reaches what is sure to be reached, as lists
// Never      reads weights; drops an id whose edits, mask or bound leave a doubt
// Twins      CPU cpu/src/head/screen.rs, cpu/src/contenders.rs | why docs/heads.md
// Shapes     codes [vocab, codes_width]; upper, lower [rows, bounds_stride]; maxima [rows, bound_tiles]
// Grid       head_bounds: x = any number of blocks, which share the ids, as block/stage_queue.cuh says;
//            head_race: a warp for each tile of each row; head_contenders: x = rows
// Traffic    in: the codes; out: 12 bytes an id and row
// Requires   head_states before head_bounds, which comes before head_race, and that before head_contenders
//
// Edits play no part in the bounds: an id that the request edits, and one that the screen does not bound, is a
// contender unless it is banned, and no other id is measured by it. Both bounds of these ids, and of banned ones, are
// -inf.

#include "block/kth_largest.cuh"
#include "block/reduce.cuh"
#include "block/stage_queue.cuh"
#include "math/arrival.cuh"
#include "platform/matrix.cuh"
#include "stage/head.cuh"

// The error of numbers computed here, at most: a part of the sizes of all terms, and the loss of subnormal numbers.
#define SLACK_PART bits_float((127 - 19) << 23)
#define BOUND_SLACK bits_float((127 - 108) << 23)

struct Bounds {
    float upper, lower;
};

// The numbers of a screen for an id, and its bias.
struct ScreenedId {
    float scale, own, code_norm, bias;

    ScreenedId() = default;
    DEVICE_MEMBER ScreenedId(const HeadStep& args, u32 id)
        : scale(args.scales[id]), own(args.own[id]), code_norm(args.code_norms[id]),
          bias(args.bias != nullptr ? args.bias[id] : 0.0f) {}
    DEVICE_MEMBER bool is_bounded() const { return own <= MAX_F32; }
};

// What bounds need of a HeadRow, in shared memory.
struct BoundRow {
    float unit, mean, norm, rest, slack;
    // Whether bitmasks or edits exclude ids from bounds.
    u32 has_exclusions;

    BoundRow() = default;
    DEVICE_MEMBER explicit BoundRow(const HeadRow& row)
        : unit(row.unit), mean(row.mean), norm(row.norm), rest(row.rest), slack(row.slack),
          has_exclusions(row.mask != nullptr || row.allowed != nullptr || row.touched != nullptr) {}
};

// The bounds of an id's logit, from the products of its codes with a hidden state's high and low digits.
// docs/bounds.md proves them.
DEVICE Bounds bounds_of(const HeadStep& args, const BoundRow& row, const ScreenedId& of_id, int high, int low) {
    // The high digits are worth 256 of the low ones.
    const float worth = of_id.scale * row.unit, highs = (float)high, lows = (float)low;
    const float center = fma_rn(worth, fma_rn(256.0f, highs, lows), row.mean);
    const float sizes = fma_rn(worth, fma_rn(256.0f, fabsf(highs), fabsf(lows)), fabsf(row.mean));
    const float reach = fma_rn(of_id.own, row.norm, fma_rn(of_id.code_norm, row.rest, row.slack));
    const float covered = reach + fma_rn(sizes + reach, SLACK_PART, BOUND_SLACK);
    const float above = (center + covered + of_id.bias) * args.logit_scale,
                below = (center - covered + of_id.bias) * args.logit_scale;
    if (!(args.softcap > 0.0f)) {
        return Bounds{above, below};
    }
    const float slack = args.softcap * SOFTCAP_SLACK;
    return Bounds{below_softcap(above, args.softcap) + slack, below_softcap(below, args.softcap) - slack};
}

// The bit of an id in a bitmap.
DEVICE bool has_id(const u32* bitmap, u32 id) { return bitmap[id / 32] >> (id % 32) & 1; }

// Whether a row's bitmasks ban an id. A mask has no bits for ids beyond its words, which are banned.
DEVICE bool is_banned(const HeadStep& args, const HeadRow& row, u32 id) {
    return (row.mask && (id / 32 >= args.step.mask_words || !has_id(row.mask, id))) ||
           (row.allowed && !has_id(row.allowed, id));
}

// Whether a row's bitmasks or edits exclude an id from bounds.
DEVICE_NOINLINE bool excludes(const HeadStep& args, u32 row, u32 id) {
    const HeadRow& head_row = args.head_rows[row];
    return (head_row.touched && has_id(head_row.touched, id)) || is_banned(args, head_row, id);
}

// The rows that have bounds: a bit for each of SCREENED_STATES.
DEVICE u32 screened_rows(const HeadStep& args) {
    return rows_that(args, 0, [](u32 plan) INLINE { return plan > PLAN_WHOLE; });
}

// A stage in shared memory: HEAD_STAGE_BYTES codes of each id of a set, and after the codes of `queue_ids` ids the
// digits of 4 TILES hidden states that meet them.
template <u32 TILES>
struct BoundStage {
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, TILE_QUADS = DIGIT_TILE_BYTES / 16,
                         CHUNK_QUADS = DIGIT_CHUNK_BYTES / 16;

    // Starts to copy a copying thread's quads of the codes of `ids` ids from `first_id` on.
    static DEVICE_MEMBER void copy_codes(const HeadStep& args, U32x4* quads, u32 first_id, u32 ids, u32 number) {
        constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / ROW_QUADS;
        const u32 quad = threadIdx.x % ROW_QUADS, first = threadIdx.x / ROW_QUADS;
        if (quad / (CODE_CHUNK / 16) >= chunks(args, number)) {
            return;
        }
        const char* from = (const char*)args.codes + (u64)(first_id + first) * args.codes_width;
        from += (u64)number * HEAD_STAGE_BYTES + 16 * quad;
        // The thread's ids are a multiple of eight apart, so their quads are in the same order.
        U32x4* to = quads + weight_place(first, quad);
        const u32 own = ids > first ? (ids - first + ROWS - 1) / ROWS : 0;
#pragma unroll 4
        for (u32 n = 0; n < own; n++) {
            cp_async(to + n * (ROWS * ROW_QUADS), from);
            from += (u64)ROWS * args.codes_width;
        }
    }
    // Starts to copy its quads of the digits.
    static DEVICE_MEMBER void copy_digits(const HeadStep& args, U32x4* quads, u32 number) {
        const U32x4* digits = (const U32x4*)args.digits + (u64)number * BOUND_STAGE_CHUNKS * CHUNK_QUADS;
        U32x4* to = quads + args.queue_ids * ROW_QUADS;
        for (u32 i = threadIdx.x; i < chunks(args, number) * TILES * TILE_QUADS; i += HEAD_COPY_WARPS * 32) {
            cp_async(to + i, digits + i / (TILES * TILE_QUADS) * CHUNK_QUADS + i % (TILES * TILE_QUADS));
        }
    }
    // The chunks of a stage.
    static DEVICE_MEMBER u32 chunks(const HeadStep& args, u32 number) {
        const u32 left = args.codes_width / CODE_CHUNK - number * BOUND_STAGE_CHUNKS;
        return left < BOUND_STAGE_CHUNKS ? left : BOUND_STAGE_CHUNKS;
    }
};

// Bounds the logits of a block's ids for up to 4 TILES hidden states. A multiplying warp has BOUND_IDS ids of a set;
// its lane 4 g + t has the codes of the ids g and g + 8 that begin at 4 t in each sixteen, and gets the products of
// both ids with every fourth hidden state from t on.
template <u32 TILES>
DEVICE void bound_ids(const HeadStep& args, StageQueue& queue, BoundRow (&bound_rows)[SCREENED_STATES]) {
    typedef BoundStage<TILES> Stage;
    constexpr u32 CHUNKS_AT_ONCE = TILES < 8 ? BOUND_STAGE_CHUNKS : 1, DIGITS_AT_ONCE = TILES < 4 ? TILES : 4;
    queue.stage_quads = args.queue_ids * Stage::ROW_QUADS + BOUND_STAGE_CHUNKS * TILES * Stage::TILE_QUADS;
    const IdSets sets(args.step.vocab, args.queue_ids);
    const u32 chunks = args.codes_width / CODE_CHUNK, stages = (chunks + BOUND_STAGE_CHUNKS - 1) / BOUND_STAGE_CHUNKS;
    const u32 vocab = args.step.vocab, last = vocab - 1;
    if (warp_id() < HEAD_COPY_WARPS) {
        bool has_waited = false;
        for (u32 set = 0; set < sets.count; set++) {
            const u32 first_id = sets.first(set), left = first_id < vocab ? vocab - first_id : 0;
            for (u32 i = 0; i < stages; i++) {
                queue.acquire_empty();
                Stage::copy_codes(args, queue.quads(), first_id, left < sets.ids ? left : sets.ids, i);
                if (!has_waited) {
                    // Codes are on their way before the digits are there.
                    grid_dependency_wait();
                    trigger_dependents();
                    has_waited = true;
                    // RAW on bound_rows: see below.
                    __syncthreads();
                    if (screened_rows(args) == 0) {
                        cp_async_wait_all();
                        return;
                    }
                }
                Stage::copy_digits(args, queue.quads(), i);
                queue.fill(false);
            }
        }
        return;
    }
    grid_dependency_wait();
    trigger_dependents();
    const u32 screened = screened_rows(args);
    for (u32 row = threadIdx.x - HEAD_COPY_WARPS * 32; row < args.step.rows; row += blockDim.x - HEAD_COPY_WARPS * 32) {
        bound_rows[row] = BoundRow(args.head_rows[row]);
    }
    // RAW on bound_rows: the threads of all multiplying warps wrote some, each of them reads all.
    __syncthreads();
    if (screened == 0) {
        return;
    }
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4, own = (warp_id() - HEAD_COPY_WARPS) * BOUND_IDS + g;
    for (u32 set = 0; set < sets.count; set++) {
        const u32 first_id = sets.first(set);
        // These loads overlap the copies.
        ScreenedId ids[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 id = first_id + own + 8 * i;
            ids[i] = ScreenedId(args, id < last ? id : last);
        }
        int sums[TILES][4] = {};
#pragma unroll 1
        for (u32 i = 0; i < stages; i++) {
            queue.acquire_full();
            const U32x4 *codes = queue.quads(), *all_digits = codes + args.queue_ids * Stage::ROW_QUADS;
#pragma unroll CHUNKS_AT_ONCE
            for (u32 chunk = 0; chunk < BOUND_STAGE_CHUNKS; chunk++) {
                if (i * BOUND_STAGE_CHUNKS + chunk >= chunks) {
                    break;
                }
                u32 of_codes[2][4];
                load_fragments(of_codes, codes, own, chunk);
#pragma unroll
                for (u32 first = 0; first < TILES; first += DIGITS_AT_ONCE) {
                    U32x4 digits[DIGITS_AT_ONCE];
#pragma unroll
                    for (u32 tile = 0; tile < DIGITS_AT_ONCE; tile++) {
                        digits[tile] = all_digits[(chunk * TILES + first + tile) * Stage::TILE_QUADS + lane];
                    }
#pragma unroll
                    for (u32 k = 0; k < 2; k++) {
#pragma unroll
                        for (u32 tile = 0; tile < DIGITS_AT_ONCE; tile++) {
                            const u32 of_state[2] = {digits[tile].word[2 * k], digits[tile].word[2 * k + 1]};
                            mma_s8(sums[first + tile], of_codes[k], of_state);
                        }
                    }
                }
            }
            queue.release();
        }
        // A warp beyond the set's ids multiplied what was in shared memory.
        if (own - g >= sets.ids) {
            continue;
        }
        const u32 bound_tile = (first_id + own) / BOUND_IDS;
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            const u32 row = 4 * tile + t;
            const bool has_bounds = screened >> row & 1;
            const BoundRow& bound_row = bound_rows[row];
            float upper_max = -INF_F32, lower_max = -INF_F32;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 id = first_id + own + 8 * i;
                if (has_bounds && id <= last) {
                    Bounds bounds{-INF_F32, -INF_F32};
                    if (ids[i].is_bounded() && !(bound_row.has_exclusions && excludes(args, row, id))) {
                        bounds = bounds_of(args, bound_row, ids[i], sums[tile][2 * i], sums[tile][2 * i + 1]);
                    }
                    args.upper[(u64)row * args.bounds_stride + id] = bounds.upper;
                    args.lower[(u64)row * args.bounds_stride + id] = bounds.lower;
                    args.logits[(u64)row * args.step.vocab + id] = -INF_F32;
                    upper_max = max_f32(upper_max, bounds.upper);
                    lower_max = max_f32(lower_max, bounds.lower);
                }
            }
            // Lanes with the same t have the same row.
#pragma unroll
            for (u32 apart = 4; apart < 32; apart *= 2) {
                upper_max = max_f32(upper_max, __shfl_xor_sync(FULL_MASK, upper_max, (int)apart));
                lower_max = max_f32(lower_max, __shfl_xor_sync(FULL_MASK, lower_max, (int)apart));
            }
            if (g == 0 && has_bounds && bound_tile < args.bound_tiles) {
                args.upper_maxima[(u64)row * args.bound_tiles + bound_tile] = upper_max;
                args.lower_maxima[(u64)row * args.bound_tiles + bound_tile] = lower_max;
            }
        }
    }
}

KERNEL(head_bounds, HEAD_QUEUE_THREADS, HeadStep, args) {
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
    __shared__ BoundRow bound_rows[SCREENED_STATES];
    StageQueue queue(mbarriers, smem, args.queue_stages);
    // Steps of few rows multiply fewer columns.
    const u32 rows = args.step.rows;
    if (rows <= 4) {
        bound_ids<1>(args, queue, bound_rows);
    } else if (rows <= 8) {
        bound_ids<2>(args, queue, bound_rows);
    } else if (rows <= 16) {
        bound_ids<4>(args, queue, bound_rows);
    } else {
        bound_ids<8>(args, queue, bound_rows);
    }
}

// How far scores computed here may be from the draw's, besides: see docs/bounds.md.
#define SCORE_SLACK bits_float((127 - 8) << 23)

// Loads neighbouring floats, a multiple of four, from a multiple of 16 bytes.
template <u32 COUNT>
DEVICE void load_floats(const float* from, float (&x)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i += 4) {
        const U32x4 quad = *(const U32x4*)(from + i);
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            x[i + j] = bits_float(quad.word[j]);
        }
    }
}

// The score of a bound in the race. -inf stays apart: it stands for no bound, so the score of a bound is finite,
// however low the temperature.
DEVICE float bounded_score(float bound, float log2e_over_t, float log2_arrival) {
    return bound > -INF_F32 ? clamp_finite(fma_rn(bound, log2e_over_t, -log2_arrival)) : -INF_F32;
}

// A lane has the eight neighbouring ids of a tile that begin at 8 lane. Rows of bounds begin at multiples of a tile,
// and have whole tiles.
KERNEL(head_race, HEAD_RACE_THREADS, HeadStep, args) {
    grid_dependency_wait();
    trigger_dependents();
    const u32 item = blockIdx.x * warp_count() + warp_id(), tiles = args.step.tiles, row_number = item / tiles,
              tile = item % tiles;
    if (row_number >= args.step.rows || args.head_rows[row_number].plan != PLAN_RACE) {
        return;
    }
    const HeadRow& row = args.head_rows[row_number];
    const u32 in_tile = lane_id() * ITEMS_PER_LANE, start = tile * TILE + in_tile;
    float* upper = args.upper + (u64)row_number * args.bounds_stride + start;
    float above[ITEMS_PER_LANE], below[ITEMS_PER_LANE];
    load_floats(upper, above);
    load_floats(args.lower + (u64)row_number * args.bounds_stride + start, below);
    const RngStream rng{row.seed, row.position, row.draw};
    const FirstArrival first = first_arrival(rng, tile);
    u32 words[ITEMS_PER_LANE];
    lane_words(rng, start, start + 4, words);
    float most = -INF_F32, least = -INF_F32;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const float later = first.e + exponential_from_u32(words[j]);
        const float late = log2_of_normal(in_tile + j == first.offset ? first.e : later);
        above[j] = bounded_score(above[j], row.log2e_over_t, late);
        if (start + j < args.step.vocab) {
            most = max_f32(most, above[j]);
            least = max_f32(least, bounded_score(below[j], row.log2e_over_t, late));
        }
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS_PER_LANE; i += 4) {
        U32x4 quad;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            quad.word[j] = float_bits(above[i + j]);
        }
        *(U32x4*)(upper + i) = quad;
    }
    // Two lanes have the ids of a maximum.
    most = max_f32(most, __shfl_xor_sync(FULL_MASK, most, 1));
    least = max_f32(least, __shfl_xor_sync(FULL_MASK, least, 1));
    const u32 bound_tile = start / BOUND_IDS;
    if (lane_id() % 2 == 0 && bound_tile < args.bound_tiles) {
        args.upper_maxima[(u64)row_number * args.bound_tiles + bound_tile] = most;
        args.lower_maxima[(u64)row_number * args.bound_tiles + bound_tile] = least;
    }
}

// The largest of `count` floats, none of which is NaN; -inf if there are none. All threads of the block call it.
DEVICE float largest(ReduceStorage& storage, const float* values, u32 count) {
    float most = -INF_F32;
#pragma unroll 8
    for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
        most = max_f32(most, values[i]);
    }
    return from_ordered_bits((u32)block_max(storage, ordered_bits(most)));
}

// The list of a row's contenders.
struct Contenders {
    u32* ids;
    u32* count;
    u32 most;

    DEVICE_MEMBER void add(u32 id) const {
        const u32 place = atomicAdd(count, 1u);
        if (place < most) {
            ids[place] = id;
        }
    }
};

// Adds the ids whose bound reaches `least`. Rows of bounds begin at multiples of a tile, and have whole tiles.
DEVICE void add_from(const HeadStep& args, u32 row, float least, const Contenders& contenders) {
    const float* maxima = args.upper_maxima + (u64)row * args.bound_tiles;
    const float* upper = args.upper + (u64)row * args.bounds_stride;
    // Several maxima are loaded at once, since few of them are large enough.
    constexpr u32 AT_ONCE = 8;
    for (u32 start = threadIdx.x; start < args.bound_tiles; start += AT_ONCE * blockDim.x) {
        u32 large = 0;
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 tile = start + i * blockDim.x;
            const float most = tile < args.bound_tiles ? maxima[tile] : -INF_F32;
            large |= (u32)(most >= least && most > -INF_F32) << i;
        }
        for (; large != 0; large &= large - 1) {
            const u32 first = (start + ((u32)__ffs((int)large) - 1) * blockDim.x) * BOUND_IDS;
            float bounds[BOUND_IDS];
            load_floats(upper + first, bounds);
            u32 reaching = 0;
#pragma unroll
            for (u32 j = 0; j < BOUND_IDS; j++) {
                reaching |= (u32)(bounds[j] >= least && bounds[j] > -INF_F32) << j;
            }
            for (; reaching != 0; reaching &= reaching - 1) {
                const u32 id = first + (u32)__ffs((int)reaching) - 1;
                if (id < args.step.vocab) {
                    contenders.add(id);
                }
            }
        }
    }
}

// Adds the ids that are edited or that no screen bounds, unless they are banned.
DEVICE void add_unbounded(const HeadStep& args, const HeadRow& row, const Contenders& contenders) {
    for (u32 i = threadIdx.x; i < args.unscreened_count; i += blockDim.x) {
        const u32 id = args.unscreened[i];
        const bool is_edited = row.touched && has_id(row.touched, id);
        if (!is_edited && !is_banned(args, row, id)) {
            contenders.add(id);
        }
    }
    for (u32 word = threadIdx.x; row.touched && word * 32 < args.step.vocab; word += blockDim.x) {
        for (u32 bits = row.touched[word]; bits != 0; bits &= bits - 1) {
            const u32 id = word * 32 + (u32)__ffs((int)bits) - 1;
            if (id < args.step.vocab && !is_banned(args, row, id)) {
                contenders.add(id);
            }
        }
    }
}

KERNEL(head_contenders, HEAD_CONTENDERS_THREADS, HeadStep, args) {
    __shared__ KthStorage storage;
    __shared__ u32 count;
    grid_dependency_wait();
    trigger_dependents();
    const u32 row = blockIdx.x;
    HeadRow& head_row = args.head_rows[row];
    const u32 plan = head_row.plan;
    if (plan <= PLAN_WHOLE) {
        return;
    }
    if (threadIdx.x == 0) {
        count = 0;
    }
    // WAW on count: thread 0 cleared it, all count in it.
    __syncthreads();
    const Contenders contenders{args.contenders + (u64)row * args.most_contenders, &count, args.most_contenders};
    // A maximum belongs to several ids, but at most one of them is counted: so the k-th bound is at least what is found
    // here.
    const float* lower_maxima = args.lower_maxima + (u64)row * args.bound_tiles;
    const bool is_one = plan != PLAN_FIRST || head_row.count == 1;
    float least =
        is_one ? largest(storage.reductions, lower_maxima, args.bound_tiles)
               : kth_largest(storage, args.bound_tiles, head_row.count, [&](u32 i) INLINE { return lower_maxima[i]; });
    if (least > -INF_F32 && plan == PLAN_LIKELY) {
        // The filter rounds this distance at another place: 2^-19 of both numbers cover that.
        least += head_row.offset - (fabsf(least) + fabsf(head_row.offset)) * SLACK_PART;
    } else if (least > -INF_F32 && plan == PLAN_RACE) {
        least -= SCORE_SLACK + fabsf(least) * SLACK_PART;
    }
    add_from(args, row, least, contenders);
    add_unbounded(args, head_row, contenders);
    // RAW on count: all threads counted, thread 0 reads.
    __syncthreads();
    if (threadIdx.x == 0) {
        const bool too_many = count > args.most_contenders;
        head_row.plan = too_many ? PLAN_WHOLE : plan;
        head_row.contenders = too_many ? 0 : count;
        atomicAdd(&args.counts[too_many ? 0 : 1], (u64)1);
        atomicAdd(&args.counts[2], (u64)(too_many ? 0 : count));
    }
}
