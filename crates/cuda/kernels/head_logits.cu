// head_logits.cu: computes logits of hidden states in the order of adding that rule H1 fixes: all of a row, or the
// logits of listed ids.
//
// Computes   head_logits: the rows whose plan is PLAN_WHOLE, each row of weights read once for the hidden states that a
//            block has at once
//            listed_logits: the logits of the contenders of all other rows
// Never      writes other logits than these. A row without a request may be multiplied, by what its memory holds
// Twins      oracle spec/src/head.rs | CPU cpu/src/head/products.rs | why docs/stages/head.md
// Shapes     weights [vocab, width] of T; states [rows, padded_width]; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids; head_logits as block/stage_queue.cuh says, listed_logits
//            with dynamic shared memory
// Traffic    in: the weights, once for each HEAD_MANY_STATES rows that are computed whole, in `_few` for each; or a row
//            of weights for each contender; out: 4 bytes a logit
// Requires   head_states before, and head_contenders before listed_logits
//
// A product has sixteen partial sums, of the elements that lie sixteen apart. In head_logits two lanes have a product:
// each takes eight neighbouring elements of every sixteen, so it has eight of the sums. How a block reads weights:
// block/stage_queue.cuh. In listed_logits, which is bound by latency, sixteen lanes have a product.

#include "block/stage_queue.cuh"
#include "stage/head.cuh"
#include "warp/reduce.cuh"
#include "warp/row.cuh"

// The rows of a pass over the weights: the next STATES rows of a step of which all logits are computed.
template <u32 STATES>
struct PassRows {
    u32 rows[STATES], count = 0, next = 0;

    // Finds them after the last ones; returns whether there is any. Whole warps call it.
    DEVICE_MEMBER bool find(const HeadStep& args) {
        const bool is_screened = args.flags & HEAD_SCREENED;
        count = 0;
#pragma unroll
        for (u32 s = 0; s < STATES; s++) {
            // With a screen few rows are whole. Without one all are that have a request, so none is looked up.
            while (is_screened && next < args.step.rows) {
                const u32 whole = rows_that(args, next, [](u32 plan) INLINE { return plan == PLAN_WHOLE; });
                next += whole != 0 ? (u32)__ffs((int)whole) - 1 : 32;
                if (whole != 0) {
                    break;
                }
            }
            count += next < args.step.rows;
            // The first row stands in for missing ones.
            rows[s] = next < args.step.rows ? next : rows[0];
            next++;
        }
        return count > 0;
    }
    // A bit for each of them that is no padding.
    DEVICE_MEMBER u32 written(const HeadStep& args) const {
        u32 written = 0;
#pragma unroll
        for (u32 s = 0; s < STATES; s++) {
            written |= (u32)(s < count && args.head_rows[rows[s]].plan == PLAN_WHOLE) << s;
        }
        return written;
    }
    DEVICE_MEMBER u32 row(u32 index) const {
        u32 row = rows[0];
#pragma unroll
        for (u32 s = 1; s < STATES; s++) {
            row = s == index ? rows[s] : row;
        }
        return row;
    }
};

// A stage in shared memory: HEAD_STAGE_BYTES of the weights of each id of a set, and after the weights of `queue_ids`
// ids the elements of STATES hidden states that meet them.
template <class T, u32 STATES>
struct LogitStage {
    typedef typename T::Element Element;
    static constexpr u32 ELEMENTS = HEAD_STAGE_BYTES / sizeof(Element), PER_QUAD = 16 / sizeof(Element);
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, STATE_QUADS = ELEMENTS / 4;

    // Where a quad of a row lies: four neighbouring rows have theirs in different orders, so that the lanes of these
    // rows read different banks.
    static DEVICE_MEMBER u32 place(u32 row, u32 quad) { return row * ROW_QUADS + (quad ^ (row % 4 * 2)); }

    // Starts to copy a copying thread's quads of the elements from `first` on of `ids` rows of weights, from `first_id`
    // on. What lies beyond the width becomes 0. Returns whether the thread has stored such elements by itself.
    static DEVICE_MEMBER bool copy_weights(const HeadStep& args, U32x4* quads, u32 first_id, u32 ids, u32 first) {
        constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / ROW_QUADS;
        const u32 quad = threadIdx.x % ROW_QUADS, row = threadIdx.x / ROW_QUADS, at = first + quad * PER_QUAD;
        if (at >= args.padded_width) {
            return false;
        }
        const Element* from = (const Element*)args.weights + (u64)(first_id + row) * args.width + at;
        const u64 apart = (u64)ROWS * args.width;
        // The thread's rows are a multiple of four apart, so their quads are in the same order.
        U32x4* to = quads + place(row, quad);
        const u32 own = ids > row ? (ids - row + ROWS - 1) / ROWS : 0;
        if (args.flags & HEAD_ALIGNED && at + PER_QUAD <= args.width) {
#pragma unroll 4
            for (u32 n = 0; n < own; n++) {
                cp_async(to + n * (ROWS * ROW_QUADS), from);
                from += apart;
            }
            return false;
        }
        for (u32 n = 0; n < own; n++) {
            for (u32 j = 0; j < PER_QUAD; j++) {
                ((Element*)(to + n * (ROWS * ROW_QUADS)))[j] = at + j < args.width ? from[j] : (Element)0;
            }
            from += apart;
        }
        return true;
    }

    // Starts to copy those elements of the rows' hidden states.
    static DEVICE_MEMBER void copy_states(const HeadStep& args, U32x4* quads, const PassRows<STATES>& rows, u32 first) {
        U32x4* to = quads + args.queue_ids * ROW_QUADS;
        for (u32 i = threadIdx.x; i < STATES * STATE_QUADS; i += HEAD_COPY_WARPS * 32) {
            const u32 state = i / STATE_QUADS, at = first + i % STATE_QUADS * 4;
            if (at < args.padded_width) {
                cp_async(to + i, args.states + (u64)rows.row(state) * args.padded_width + at);
            }
        }
    }

    // Eight neighbouring elements of a row of weights: half of the sixteen from `16 * group` on.
    static DEVICE_MEMBER void weights(const U32x4* quads, u32 row, u32 group, u32 half, float (&w)[8]) {
        const u32 quad = (16 * group + 8 * half) / PER_QUAD;
        if constexpr (PER_QUAD == 4) {
            const U32x4 low = quads[place(row, quad)], high = quads[place(row, quad + 1)];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                w[j] = bits_float(j < 4 ? low.word[j % 4] : high.word[j % 4]);
            }
        } else {
            const U32x4 all = quads[place(row, quad)];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                w[j] = T::convert((Element)(all.word[j / 2] >> (j % 2 * 16)));
            }
        }
    }

    // The elements of a hidden state that meet them.
    static DEVICE_MEMBER void state(const U32x4* states, u32 state, u32 group, u32 half, float (&h)[8]) {
        const U32x4* from = states + state * STATE_QUADS + 4 * group + 2 * half;
        const U32x4 low = from[0], high = from[1];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            h[j] = bits_float(j < 4 ? low.word[j % 4] : high.word[j % 4]);
        }
    }
};

// Adds the eight partial sums of this lane and of its neighbour in the order of H1. Both lanes have the product.
DEVICE float add_sums(const float (&sums)[8]) {
    float eight[8];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
        eight[j] = sums[j] + __shfl_xor_sync(FULL_MASK, sums[j], 1);
    }
    const float four[4] = {eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6], eight[3] + eight[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// A copying thread's work. `before_states` runs once weights are being copied, before hidden states are read.
template <class T, u32 STATES, class F>
DEVICE void copy_stages(const HeadStep& args, StageQueue& queue, const PassRows<STATES>& rows, F before_states) {
    typedef LogitStage<T, STATES> Stage;
    const IdSets sets(args.step.vocab, args.queue_ids);
    for (u32 set = 0; set < sets.count; set++) {
        const u32 first_id = sets.first(set), vocab = args.step.vocab, left = first_id < vocab ? vocab - first_id : 0;
        for (u32 first = 0; first < args.padded_width; first += Stage::ELEMENTS) {
            queue.acquire_empty();
            const bool has_stored =
                Stage::copy_weights(args, queue.quads(), first_id, left < sets.ids ? left : sets.ids, first);
            before_states();
            Stage::copy_states(args, queue.quads(), rows, first);
            queue.fill(has_stored);
        }
    }
}

// A multiplying warp's work. Its lanes 2 i and 2 i + 1 have ROWS ids of a set, sixteen apart.
template <class T, u32 STATES, u32 ROWS>
DEVICE void multiply_stages(const HeadStep& args, StageQueue& queue, const PassRows<STATES>& rows) {
    typedef LogitStage<T, STATES> Stage;
    const IdSets sets(args.step.vocab, args.queue_ids);
    const u32 lane = lane_id(), half = lane % 2, own = (warp_id() - HEAD_COPY_WARPS) * 16 * ROWS + lane / 2;
    const u32 written = rows.written(args);
    for (u32 set = 0; set < sets.count; set++) {
        float sums[ROWS][STATES][8] = {};
#pragma unroll 1
        for (u32 first = 0; first < args.padded_width; first += Stage::ELEMENTS) {
            queue.acquire_full();
            const U32x4 *quads = queue.quads(), *states = quads + args.queue_ids * Stage::ROW_QUADS;
            const u32 groups = (args.padded_width - first) / 16;
#pragma unroll
            for (u32 group = 0; group < Stage::ELEMENTS / 16; group++) {
                if (group >= groups) {
                    break;
                }
                float w[ROWS][8];
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
                    Stage::weights(quads, own + 16 * r, group, half, w[r]);
                }
#pragma unroll
                for (u32 s = 0; s < STATES; s++) {
                    float h[8];
                    Stage::state(states, s, group, half, h);
#pragma unroll
                    for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
                        for (u32 j = 0; j < 8; j++) {
                            sums[r][s][j] = fma_rn(w[r][j], h[j], sums[r][s][j]);
                        }
                    }
                }
            }
            queue.release();
        }
#pragma unroll
        for (u32 r = 0; r < ROWS; r++) {
            const u32 of_set = own + 16 * r, id = sets.first(set) + of_set;
#pragma unroll
            for (u32 s = 0; s < STATES; s++) {
                const float product = add_sums(sums[r][s]);
                // The two lanes of an id take turns to finish its products.
                if (s % 2 == half && of_set < sets.ids && id < args.step.vocab && written >> s & 1) {
                    args.logits[(u64)rows.rows[s] * args.step.vocab + id] = head_logit(args, product, id);
                }
            }
        }
    }
}

// The body of head_logits.
template <class T, u32 STATES, u32 ROWS>
DEVICE void whole_rows(const HeadStep& args) {
    typedef LogitStage<T, STATES> Stage;
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
    StageQueue queue(mbarriers, smem, args.queue_stages);
    queue.stage_quads = args.queue_ids * Stage::ROW_QUADS + STATES * Stage::STATE_QUADS;
    bool has_waited = false;
    const auto wait = [&]() INLINE {
        if (!has_waited) {
            grid_dependency_wait();
            trigger_dependents();
        }
        has_waited = true;
    };
    // Weights are copied before the kernel before has ended; only a screen has to say first which rows are whole.
    const bool copies = warp_id() < HEAD_COPY_WARPS;
    if (args.flags & HEAD_SCREENED || !copies) {
        wait();
    }
    PassRows<STATES> rows;
    while (rows.find(args)) {
        if (copies) {
            copy_stages<T, STATES>(args, queue, rows, wait);
        } else {
            multiply_stages<T, STATES, ROWS>(args, queue, rows);
        }
    }
}

// The shared memory of a block of listed_logits: a piece of a row of weights for each half of a warp, and the piece of
// a hidden state that meets them.
template <class T>
struct ListedPiece {
    typedef typename T::Element Element;
    static constexpr u32 ELEMENTS = LISTED_BYTES / sizeof(Element), PER_QUAD = 16 / sizeof(Element);

    Element* weights;
    float* state;

    DEVICE_MEMBER explicit ListedPiece(U32x4* smem)
        : weights((Element*)((char*)smem + threadIdx.x / 16 * LISTED_STRIDE)),
          state((float*)((char*)smem + LISTED_LOGITS_THREADS / 16 * LISTED_STRIDE)) {}

    // Starts to copy the piece of a hidden state from `first` on; the block calls it.
    DEVICE_MEMBER void copy_state(const HeadStep& args, const float* from, u32 first) const {
        for (u32 i = threadIdx.x * 4; i < ELEMENTS && first + i < args.padded_width; i += LISTED_LOGITS_THREADS * 4) {
            cp_async(state + i, from + first + i);
        }
    }
    // Starts to copy the piece of an id's weights; half a warp calls it.
    DEVICE_MEMBER void copy_weights(const HeadStep& args, u32 id, u32 first) const {
        const Element* from = (const Element*)args.weights + (u64)id * args.width;
#pragma unroll 4
        for (u32 i = threadIdx.x % 16 * PER_QUAD; i < ELEMENTS && first + i < args.padded_width; i += 16 * PER_QUAD) {
            const u32 at = first + i;
            if (args.flags & HEAD_ALIGNED && at + PER_QUAD <= args.width) {
                cp_async(weights + i, from + at);
            } else {
                for (u32 j = 0; j < PER_QUAD; j++) {
                    weights[i + j] = at + j < args.width ? from[at + j] : (Element)0;
                }
            }
        }
    }
    // Takes the elements of the lane's partial sum in, which lie sixteen apart.
    DEVICE_MEMBER float add(const HeadStep& args, float sum, u32 first) const {
        const u32 left = args.padded_width - first, count = left < ELEMENTS ? left : ELEMENTS;
#pragma unroll 16
        for (u32 i = threadIdx.x % 16; i < count; i += 16) {
            sum = fma_rn(T::convert(weights[i]), state[i], sum);
        }
        return sum;
    }
};

// The body of listed_logits. Half a warp has a contender at a time, and all of a block are of one row.
template <class T>
DEVICE void listed(const HeadStep& args) {
    DYNAMIC_SMEM(smem);
    grid_dependency_wait();
    trigger_dependents();
    constexpr u32 HALVES = LISTED_LOGITS_THREADS / 16;
    const ListedPiece<T> piece(smem);
    const u32 half = threadIdx.x / 16, halves = gridDim.x * HALVES;
    // Rows begin with different blocks, so that the first blocks do not get contenders of each row.
    u32 first_block = blockIdx.x, counts = 0;
    for (u32 row = 0; row < args.step.rows; row++) {
        if (row % 32 == 0) {
            // The numbers of contenders of 32 rows come in one load.
            const u32 of_lane = row + lane_id();
            const bool is_screened = of_lane < args.step.rows && args.head_rows[of_lane].plan > PLAN_WHOLE;
            counts = is_screened ? args.head_rows[of_lane].contenders : 0;
        }
        const u32 count = __shfl_sync(FULL_MASK, counts, (int)row % 32);
        const float* state = args.states + (u64)row * args.padded_width;
        for (u32 start = first_block * HALVES; start < count; start += halves) {
            const u32 index = start + half;
            const bool is_listed = index < count;
            const u32 id = is_listed ? args.contenders[(u64)row * args.most_contenders + index] : 0;
            float sum = 0.0f;
            for (u32 first = 0; first < args.padded_width; first += ListedPiece<T>::ELEMENTS) {
                piece.copy_state(args, state, first);
                if (is_listed) {
                    piece.copy_weights(args, id, first);
                }
                cp_async_wait_all();
                // RAW on smem: each thread has waited for its own copies, others read them.
                __syncthreads();
                sum = is_listed ? piece.add(args, sum, first) : sum;
                // WAR on smem: all threads have read it, the next piece is copied there.
                __syncthreads();
            }
#pragma unroll
            for (u32 apart = 8; apart > 0; apart /= 2) {
                sum = sum + __shfl_xor_sync(FULL_MASK, sum, (int)apart);
            }
            if (is_listed && threadIdx.x % 16 == 0) {
                args.logits[(u64)row * args.step.vocab + id] = head_logit(args, sum, id);
            }
        }
        const u32 blocks = (count + HALVES - 1) / HALVES % gridDim.x;
        first_block = first_block >= blocks ? first_block - blocks : first_block + gridDim.x - blocks;
    }
}

#define HEAD_LOGITS_OF(type, T) \
    KERNEL(head_logits_##type##_few, HEAD_QUEUE_THREADS, HeadStep, args) { \
        whole_rows<T, HEAD_FEW_STATES, HEAD_FEW_IDS>(args); \
    } \
    KERNEL(head_logits_##type##_many, HEAD_MANY_THREADS, HeadStep, args) { \
        whole_rows<T, HEAD_MANY_STATES, HEAD_MANY_IDS>(args); \
    } \
    KERNEL(listed_logits_##type, LISTED_LOGITS_THREADS, HeadStep, args) { listed<T>(args); }

FOR_EACH_TYPE(HEAD_LOGITS_OF)
