// head_bounds.cu: bounds the logits of a head by a screen, and finds the logits that decide each row (H5).
//
// Computes   head_bounds: for each id and row an upper and a lower bound of the logit, from codes of 8 bits; -inf as
//            every logit
//            head_race: for rows without filters, the scores that these bounds have in the race
//            head_contenders: the ids whose bound reaches what is sure to be reached, as lists
// Never      reads weights; drops an id whose edits, mask or bound leave a doubt
// Twins      CPU cpu/src/head/screen.rs, cpu/src/contenders.rs | why docs/heads.md
// Shapes     codes [vocab, codes_width]; upper, lower [rows, bounds_stride]; maxima [rows, bound_tiles]
// Grid       head_bounds: x = any number of blocks, which share the ids, as stage/matrix_product.cuh says;
//            head_race: any number of warps; head_contenders: x = rows
// Traffic    in: the codes, once for each 128 rows, or 32 on other GPUs than sm_90; out: 8 bytes an id and row, for
//            head_race 12
// Requires   head_states before head_bounds, which comes before head_race, and that before head_contenders
//
// Edits play no part in the bounds: an id that the request edits, and one that the screen does not bound, is a
// contender unless it is banned, and no other id is measured by it. Both bounds of these ids, and of banned ones, are
// -inf.

#include "block/kth_largest.cuh"
#include "block/reduce.cuh"
#include "math/arrival.cuh"
#include "stage/matrix_product.cuh"

// The error of numbers computed here, at most: a part of the sizes of all terms, and the loss of subnormal numbers.
#define SLACK_PART bits_float((127 - 19) << 23)
#define BOUND_SLACK bits_float((127 - 108) << 23)

struct Bounds {
    float upper, lower;
};

// The numbers of a screen for an id, and its bias.
struct ScreenedId {
    float scale, own, code_norm, bias;
};

// The bit of an id in a bitmap.
DEVICE bool has_id(const u32* bitmap, u32 id) { return bitmap[id / 32] >> (id % 32) & 1; }

// Which of 32 ids a row's bitmasks ban.
DEVICE u32 banned_ids(const HeadStep& args, const HeadRow& row, u32 word) {
    EditMasks masks;
    masks.mask = row.mask, masks.allowed = row.allowed, masks.mask_words = args.step.mask_words;
    return ~masks.allowed_word(word);
}

DEVICE bool is_banned(const HeadStep& args, const HeadRow& row, u32 id) {
    return banned_ids(args, row, id / 32) >> (id % 32) & 1;
}

// The numbers of a HeadRow that bounds are made of, and a bit for each of 32 ids that bitmasks or edits exclude.
struct BoundRow {
    float unit, mean, norm, rest, slack;
    u32 plan, excluded;

    DEVICE_MEMBER BoundRow(const HeadStep& args, u32 number, u32 word) {
        const HeadRow& row = args.head_rows[number < args.step.rows ? number : 0];
        unit = row.unit, mean = row.mean, norm = row.norm, rest = row.rest, slack = row.slack;
        plan = number < args.step.rows ? row.plan : PLAN_NONE;
        excluded = 0;
        // Padding has no bitmaps.
        if (has_bounds() && row.has_exclusions) {
            excluded = banned_ids(args, row, word) | (row.touched ? row.touched[word] : 0);
        }
    }
    DEVICE_MEMBER bool has_bounds() const { return plan > PLAN_WHOLE; }
};

// The bounds of an id's logit before its softcap, from the products of its codes with a hidden state's high and low
// digits. docs/bounds.md proves them.
DEVICE Bounds bounds_of(const HeadStep& args, const BoundRow& row, const ScreenedId& of_id, int high, int low) {
    // The high digits are worth 256 of the low ones.
    const float worth = of_id.scale * row.unit, highs = (float)high, lows = (float)low;
    const float center = fma_rn(worth, fma_rn(256.0f, highs, lows), row.mean);
    const float sizes = fma_rn(worth, fma_rn(256.0f, fabsf(highs), fabsf(lows)), fabsf(row.mean));
    const float reach = fma_rn(of_id.own, row.norm, fma_rn(of_id.code_norm, row.rest, row.slack));
    const float covered = reach + fma_rn(sizes + reach, SLACK_PART, BOUND_SLACK);
    return Bounds{(center + covered + of_id.bias) * args.logit_scale,
                  (center - covered + of_id.bias) * args.logit_scale};
}

// The job of a block of head_bounds; stage/matrix_product.cuh says what its members are for. A hidden state has two
// columns, its high digits and its low ones, so that a lane has both products of an id.
struct ScreenBounds {
    static constexpr bool MAY_LIST = false;
    const HeadStep& args;

    DEVICE_MEMBER MatrixOperands operands() const {
        const u32 width = args.codes_width;
        return {(const char*)args.codes, width, width, width, true, (const U32x4*)args.digits, 2 * args.step.rows};
    }
    DEVICE_MEMBER bool begin() const {
        grid_dependency_wait();
        trigger_dependents();
        u32 screened = 0;
        for (u32 first = 0; first < args.step.rows; first += 32) {
            screened |= rows_that(args, first, [](u32 plan) INLINE { return plan > PLAN_WHOLE; });
        }
        // The compiler is to see that all lanes of a warp go the same way.
        return __shfl_sync(FULL_MASK, screened, 0) != 0;
    }
    // The ids of a lane, `first` and `first + 8`; an id that is not below `end` is none, and has no bounds.
    struct Ids {
        u32 first, end;
        ScreenedId of[2];
    };
    DEVICE_MEMBER Ids ids(u32 first_id, u32 end) const {
        Ids ids{first_id, end, {}};
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 id = first_id + 8 * i;
            ids.of[i].own = INF_F32;
            if (id < end) {
                const float bias = args.bias != nullptr ? args.bias[id] : 0.0f;
                ids.of[i] = ScreenedId{args.scales[id], args.own[id], args.code_norms[id], bias};
            }
        }
        return ids;
    }
    template <u32 COLUMNS>
    DEVICE_MEMBER void finish(const int (&sums)[COLUMNS / 8][4], const Ids& ids, u32 first_column) const {
        constexpr u32 COUNT = COLUMNS / 8, AT_ONCE = COUNT < 2 ? COUNT : 2;
        const u32 first_row = first_column / 2 + lane_id() % 4, last = args.step.vocab - 1;
        const u32 word = (ids.first < last ? ids.first : last) / 32;
        // The largest upper and lower bounds of AT_ONCE rows.
        float largest[2 * AT_ONCE];
#pragma unroll
        for (u32 n = 0; n < COUNT; n++) {
            const u32 number = first_row + 4 * n;
            const BoundRow row(args, number, word);
            // A u32 can number all bounds of SCREENED_STATES rows.
            const u32 place = number * args.bounds_stride + ids.first;
            float *upper = args.upper + place, *lower = args.lower + place;
            float* logits = args.logits + (number * args.step.vocab + ids.first);
            Bounds most{-INF_F32, -INF_F32};
            const u32 excluded = row.excluded >> ids.first % 32;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                Bounds bounds = bounds_of(args, row, ids.of[i], sums[n][2 * i], sums[n][2 * i + 1]);
                if (!(ids.of[i].own <= MAX_F32) || excluded >> 8 * i & 1) {
                    bounds = Bounds{-INF_F32, -INF_F32};
                }
                if (row.has_bounds() && ids.first + 8 * i < ids.end) {
                    upper[8 * i] = bounds.upper;
                    // Only the race reads lower bounds, and `cap`.
                    if (row.plan == PLAN_RACE || args.softcap > 0.0f) {
                        lower[8 * i] = bounds.lower;
                    }
                    logits[8 * i] = -INF_F32;
                }
                most = Bounds{max_f32(most.upper, bounds.upper), max_f32(most.lower, bounds.lower)};
            }
            largest[n % AT_ONCE * 2] = most.upper;
            largest[n % AT_ONCE * 2 + 1] = most.lower;
            if (n % AT_ONCE == AT_ONCE - 1) {
                write_maxima(largest, ids, number - 4 * (AT_ONCE - 1));
            }
        }
        // Few models have a softcap, whose code for each sum would take registers from the sums.
        if (args.softcap > 0.0f) {
            // WAW on the maxima: other lanes wrote some that `cap` writes again.
            __syncwarp();
#pragma unroll 1
            for (u32 n = 0; n < COUNT; n++) {
                cap(ids, first_row + 4 * n);
            }
        }
    }
    // Writes the maxima of the rows `number`, `number` + 4 and so on over the ids of the eight lanes that have them: of
    // each row that of upper bounds, then that of lower ones.
    template <u32 COUNT>
    DEVICE_MEMBER void write_maxima(float (&most)[COUNT], const Ids& ids, u32 number) const {
        u32 held = 0;
#pragma unroll
        for (u32 apart = 4, count = COUNT; apart < 32; apart *= 2, count = (count + 1) / 2) {
            // A lane keeps half of the maxima, the second one or the first, and gives its partner the other half.
            const bool keeps_second = lane_id() & apart;
#pragma unroll
            for (u32 j = 0; j < count / 2; j++) {
                const float first = most[j], second = most[j + count / 2];
                const float given = __shfl_xor_sync(FULL_MASK, keeps_second ? first : second, (int)apart);
                most[j] = max_f32(keeps_second ? second : first, given);
            }
            if (count == 1) {
                most[0] = max_f32(most[0], __shfl_xor_sync(FULL_MASK, most[0], (int)apart));
            } else if (keeps_second) {
                held += count / 2;
            }
        }
        const u32 row = number + held / 2 * 4, tile = ids.first / BOUND_IDS;
        if (row < args.step.rows && tile * BOUND_IDS < ids.end) {
            (held % 2 == 0 ? args.upper_maxima : args.lower_maxima)[(u64)row * args.bound_tiles + tile] = most[0];
        }
    }
    // Applies the softcap to the bounds that the lane wrote of a row.
    DEVICE_MEMBER void cap(const Ids& ids, u32 number) const {
        const bool has_bounds = number < args.step.rows && args.head_rows[number].plan > PLAN_WHOLE;
        float most[2] = {-INF_F32, -INF_F32};
        for (u32 id = ids.first; has_bounds && id < ids.first + BOUND_IDS && id < ids.end; id += 8) {
            const u64 place = (u64)number * args.bounds_stride + id;
            const float above = args.upper[place], slack = args.softcap * SOFTCAP_SLACK;
            if (above > -INF_F32) {
                args.upper[place] = softcapped(above, args.softcap) + slack;
                args.lower[place] = softcapped(args.lower[place], args.softcap) - slack;
                most[0] = max_f32(most[0], args.upper[place]);
                most[1] = max_f32(most[1], args.lower[place]);
            }
        }
        write_maxima(most, ids, number);
    }
};

KERNEL(head_bounds, HEAD_QUEUE_THREADS, HeadStep, args) { matrix_product<Codes>(ScreenBounds{args}); }

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

// A score that the winner surely reaches if some score is at least `least`.
DEVICE float surely_reached(float least) { return least - (SCORE_SLACK + fabsf(least) * SLACK_PART); }

// Scores the bounds of a tile of a row. A lane has the eight neighbouring ids of the tile that begin at 8 lane. Rows of
// bounds begin at multiples of a tile, and have whole tiles.
DEVICE void race_tile(const HeadStep& args, u32 row_number, u32 tile) {
    HeadRow& row = args.head_rows[row_number];
    const u32 best = *(const volatile u32*)&row.best_score;
    const RngStream rng{row.seed, row.position, row.draw};
    const FirstArrival first = first_arrival(rng, tile);
    const u32 in_tile = lane_id() * ITEMS_PER_LANE, start = tile * TILE + in_tile;
    float* upper = args.upper + (u64)row_number * args.bounds_stride + start;
    float above[ITEMS_PER_LANE], below[ITEMS_PER_LANE];
    load_floats(upper, above);
    u32 words[ITEMS_PER_LANE];
    lane_words(rng, start, start + 4, words);
    // Few ids could still win once some were scored. Twice the slack also covers how arrivals are approximated.
    const float reached = best != 0 ? surely_reached(surely_reached(from_ordered_bits(best))) : -INF_F32;
    u32 reaching = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        const float early = approx_log2_arrival(first.e, in_tile + j == first.offset ? 0 : words[j]);
        const bool reaches = bounded_score(above[j], row.log2e_over_t, early) >= reached;
        reaching |= (u32)(reaches && start + j < args.step.vocab) << j;
    }
    float most = -INF_F32, least = -INF_F32;
    // Two lanes share a maximum. Bounds of ids below a maximum of -inf are never read, so two lanes of which no id
    // reaches `reached` leave theirs as they are.
    if ((reaching | __shfl_xor_sync(FULL_MASK, reaching, 1)) != 0) {
        load_floats(args.lower + (u64)row_number * args.bounds_stride + start, below);
#pragma unroll
        for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
            const float later = first.e + exponential_from_u32(words[j]);
            const float late = log2_of_normal(in_tile + j == first.offset ? first.e : later);
            const bool reaches = reaching >> j & 1;
            above[j] = reaches ? bounded_score(above[j], row.log2e_over_t, late) : -INF_F32;
            most = max_f32(most, above[j]);
            least = max_f32(least, reaches ? bounded_score(below[j], row.log2e_over_t, late) : -INF_F32);
        }
        *(U32x4*)upper = quad_of(above, 0);
        *(U32x4*)(upper + 4) = quad_of(above, 1);
    }
    most = max_f32(most, __shfl_xor_sync(FULL_MASK, most, 1));
    least = max_f32(least, __shfl_xor_sync(FULL_MASK, least, 1));
    const u32 bound_tile = start / BOUND_IDS;
    if (lane_id() % 2 == 0 && bound_tile < args.bound_tiles) {
        args.upper_maxima[(u64)row_number * args.bound_tiles + bound_tile] = most;
        args.lower_maxima[(u64)row_number * args.bound_tiles + bound_tile] = least;
    }
    const u32 found = (u32)warp_max(ordered_bits(least));
    if (lane_id() == 0 && found > best && from_ordered_bits(found) > -INF_F32) {
        atomicMax(&row.best_score, found);
    }
}

// Neighbouring warps have different rows, so that most tiles of a row find some that were scored before.
KERNEL(head_race, HEAD_RACE_THREADS, HeadStep, args) {
    grid_dependency_wait();
    trigger_dependents();
    const u32 rows = args.step.rows, all = rows * args.step.tiles;
    for (u32 item = blockIdx.x * warp_count() + warp_id(); item < all; item += gridDim.x * warp_count()) {
        if (args.head_rows[item % rows].plan == PLAN_RACE) {
            race_tile(args, item % rows, item / rows);
        }
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
        least = surely_reached(least);
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
