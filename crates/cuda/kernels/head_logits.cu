// head_logits.cu: computes logits of hidden states in the order of adding that rule H1 fixes: all of a row, or those of listed ids.
//
// Computes   head_logits: the rows whose plan is PLAN_WHOLE, each row of weights read once for the hidden states that a block has at once
//            listed_logits: the logits of each other row's contenders
// Never      reads or writes padding; writes other logits than these
// Twins      oracle spec/src/head.rs | CPU cpu/src/head/products.rs | why docs/stages/head.md
// Shapes     weights [vocab, width] of T; states [rows, padded_width]; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids; both kernels have dynamic shared memory
// Traffic    in: the weights, once for each HEAD_MANY_STATES rows, in `_few` for each row; or a row of weights for each contender; out: 4 bytes a logit
// Requires   head_states before, and head_contenders before listed_logits
//
// A product has sixteen partial sums, of the elements that lie sixteen apart. In head_logits two lanes have a product: each takes eight
// neighbouring elements of every sixteen, so it has eight of the sums. Lanes that are neighbours have different rows of weights, which are
// far apart in memory; so a block copies long pieces of its rows to shared memory, some stages ahead. In listed_logits, which is bound by
// latency, sixteen lanes have a product.

#include "platform/sm90.cuh"
#include "stage/head.cuh"
#include "warp/reduce.cuh"
#include "warp/row.cuh"

// A stage in shared memory: HEAD_STAGE_BYTES of each row of weights of a block, and the elements of STATES hidden states that meet them.
template <class T, u32 STATES>
struct LogitStage {
    typedef typename T::Element Element;
    static constexpr bool MANY = STATES > 1;
    static constexpr u32 IDS = MANY ? HEAD_MANY_IDS : HEAD_FEW_IDS, STAGES = MANY ? HEAD_MANY_STAGES : HEAD_FEW_STAGES;
    // The ids of a pair of lanes.
    static constexpr u32 ROWS = 2 * IDS / HEAD_LOGITS_THREADS;
    static constexpr u32 ELEMENTS = HEAD_STAGE_BYTES / sizeof(Element), PER_QUAD = 16 / sizeof(Element);
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, STATE_QUADS = ELEMENTS / 4;
    // The quad between rows lets lanes of neighbouring rows read different banks.
    static constexpr u32 PITCH = ROW_QUADS + 1, QUADS = IDS * PITCH + STATES * STATE_QUADS;

    U32x4* quads;

    // Starts to copy the elements from `first` on of the rows of weights from `first_id` on. What lies beyond the width becomes 0. The last
    // id stands in for those beyond the vocabulary.
    DEVICE_MEMBER void copy_weights(const HeadStep& args, u32 first_id, u32 first) const {
        const u32 last = args.step.vocab - 1;
#pragma unroll 4
        for (u32 i = threadIdx.x; i < IDS * ROW_QUADS; i += HEAD_LOGITS_THREADS) {
            const u32 row = i / ROW_QUADS, quad = i % ROW_QUADS, at = first + quad * PER_QUAD;
            const u32 id = first_id + row < last ? first_id + row : last;
            const Element* from = (const Element*)args.weights + (u64)id * args.width + at;
            U32x4* to = quads + row * PITCH + quad;
            if (args.flags & HEAD_ALIGNED && at + PER_QUAD <= args.width) {
                cp_async(to, from);
            } else {
                for (u32 j = 0; j < PER_QUAD; j++) {
                    ((Element*)to)[j] = at + j < args.width ? from[j] : (Element)0;
                }
            }
        }
    }

    // Starts to copy those elements of the hidden states from `first_row` on.
    DEVICE_MEMBER void copy_states(const HeadStep& args, u32 first_row, u32 first) const {
        for (u32 i = threadIdx.x; i < STATES * STATE_QUADS; i += HEAD_LOGITS_THREADS) {
            const u32 state = i / STATE_QUADS, at = first + i % STATE_QUADS * 4;
            if (at < args.padded_width) {
                cp_async(quads + IDS * PITCH + i, args.states + (u64)(first_row + state) * args.padded_width + at);
            }
        }
    }

    // Eight neighbouring elements of a row of weights: half of the sixteen from `16 * group` on.
    DEVICE_MEMBER void weights(u32 row, u32 group, u32 half, float (&w)[8]) const {
        const U32x4* from = quads + row * PITCH + (16 * group + 8 * half) / PER_QUAD;
        if constexpr (PER_QUAD == 4) {
            const U32x4 low = from[0], high = from[1];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                w[j] = bits_float(j < 4 ? low.word[j % 4] : high.word[j % 4]);
            }
        } else {
            const U32x4 all = from[0];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                w[j] = T::convert((Element)(all.word[j / 2] >> (j % 2 * 16)));
            }
        }
    }

    // The elements of a hidden state that meet them.
    DEVICE_MEMBER void state(u32 state, u32 group, u32 half, float (&h)[8]) const {
        const U32x4* from = quads + IDS * PITCH + state * STATE_QUADS + 4 * group + 2 * half;
        const U32x4 low = from[0], high = from[1];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            h[j] = bits_float(j < 4 ? low.word[j % 4] : high.word[j % 4]);
        }
    }
};

// Adds the eight partial sums of this lane and those of its neighbour in the order of H1. Both lanes have the product.
DEVICE float add_sums(const float (&sums)[8]) {
    float eight[8];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
        eight[j] = sums[j] + __shfl_xor_sync(FULL_MASK, sums[j], 1);
    }
    const float four[4] = {eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6], eight[3] + eight[7]};
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Computes the products of a block's ids, from `first_id` on, with STATES hidden states, from `first_row` on. Lanes 2 i and 2 i + 1 of the
// block have the ids i and, with ROWS = 2, i + IDS / 2. `before_states` runs once weights are being copied, before hidden states are read.
template <class T, u32 STATES, u32 ROWS, class F>
DEVICE void block_products(const HeadStep& args, U32x4* smem, u32 first_id, u32 first_row, F before_states,
                           float (&products)[ROWS][STATES]) {
    typedef LogitStage<T, STATES> Stage;
    const u32 id = threadIdx.x / 2, half = threadIdx.x % 2;
    const u32 stages = (args.padded_width + Stage::ELEMENTS - 1) / Stage::ELEMENTS;
    const auto stage = [=](u32 number) INLINE { return Stage{smem + number % Stage::STAGES * Stage::QUADS}; };
    for (u32 i = 0; i + 1 < Stage::STAGES && i < stages; i++) {
        stage(i).copy_weights(args, first_id, i * Stage::ELEMENTS);
    }
    before_states();
    // The first group of copies has the weights of all of these stages.
    for (u32 i = 0; i + 1 < Stage::STAGES; i++) {
        if (i < stages) {
            stage(i).copy_states(args, first_row, i * Stage::ELEMENTS);
        }
        cp_async_commit_group();
    }
    float sums[ROWS][STATES][8] = {};
#pragma unroll 1
    for (u32 i = 0; i < stages; i++) {
        cp_async_wait_group<Stage::STAGES - 2>();
        // RAW on the stage: each thread has waited for its own copies, all threads read all of them. WAR on the stage before it, which is
        // copied to next: all threads have read it.
        __syncthreads();
        const u32 next = i + Stage::STAGES - 1;
        if (next < stages) {
            stage(next).copy_weights(args, first_id, next * Stage::ELEMENTS);
            stage(next).copy_states(args, first_row, next * Stage::ELEMENTS);
        }
        cp_async_commit_group();
        const u32 groups = (args.padded_width - i * Stage::ELEMENTS) / 16;
#pragma unroll
        for (u32 group = 0; group < Stage::ELEMENTS / 16; group++) {
            if (group >= groups) {
                break;
            }
            float w[ROWS][8];
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                stage(i).weights(id + r * (HEAD_LOGITS_THREADS / 2), group, half, w[r]);
            }
#pragma unroll
            for (u32 s = 0; s < STATES; s++) {
                float h[8];
                stage(i).state(s, group, half, h);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
                    for (u32 j = 0; j < 8; j++) {
                        sums[r][s][j] = fma_rn(w[r][j], h[j], sums[r][s][j]);
                    }
                }
            }
        }
    }
    // WAR on all stages: the block's next ids are copied to them.
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
        for (u32 s = 0; s < STATES; s++) {
            products[r][s] = add_sums(sums[r][s]);
        }
    }
}

// The body of head_logits.
template <class T, u32 STATES>
DEVICE void whole_rows(const HeadStep& args) {
    typedef LogitStage<T, STATES> Stage;
    DYNAMIC_SMEM(smem);
    const u32 vocab = args.step.vocab, rows = args.step.rows, half = threadIdx.x % 2;
    bool has_waited = false;
    const auto wait = [&]() INLINE {
        if (!has_waited) {
            grid_dependency_wait();
            trigger_dependents();
        }
        has_waited = true;
    };
    // Behind a screen rows are rarely whole. Without one all are, and weights are copied before the kernel before has ended.
    if (args.flags & HEAD_SCREENED) {
        wait();
    }
    const auto is_whole = [](u32 plan) INLINE { return plan == PLAN_WHOLE; };
    for (u32 first_row = 0; first_row < rows; first_row += STATES) {
        if (args.flags & HEAD_SCREENED && rows_that(args, first_row, STATES, is_whole) == 0) {
            continue;
        }
        // Some rows before stand in for those that are missing at the end; the memory has STATES hidden states at least.
        const u32 from = first_row + STATES <= rows ? first_row : rows < STATES ? 0 : rows - STATES;
        for (u32 block = blockIdx.x; block * Stage::IDS < vocab; block += gridDim.x) {
            float products[Stage::ROWS][STATES];
            block_products<T, STATES>(args, smem, block * Stage::IDS, from, wait, products);
            const u32 whole = rows_that(args, from, STATES, is_whole);
#pragma unroll
            for (u32 r = 0; r < Stage::ROWS; r++) {
                const u32 id = block * Stage::IDS + threadIdx.x / 2 + r * (HEAD_LOGITS_THREADS / 2);
#pragma unroll
                for (u32 s = 0; s < STATES; s++) {
                    // The two lanes of an id take turns to finish its products.
                    if (s % 2 == half && id < vocab && whole >> s & 1) {
                        args.logits[(u64)(from + s) * vocab + id] = head_logit(args, products[r][s], id);
                    }
                }
            }
        }
    }
}

// The shared memory of a block of listed_logits: a piece of a row of weights for each half of a warp, and the piece of a hidden state that
// meets them.
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
    // Takes the elements of the lane's partial sum in: those that lie sixteen apart.
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
    u32 first_block = blockIdx.x;
    for (u32 row = 0; row < args.step.rows; row++) {
        const HeadRow& head_row = args.head_rows[row];
        const u32 count = head_row.plan > PLAN_WHOLE ? head_row.contenders : 0;
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
    KERNEL(head_logits_##type##_few, HEAD_LOGITS_THREADS, HeadStep, args) { whole_rows<T, HEAD_FEW_STATES>(args); } \
    KERNEL(head_logits_##type##_many, HEAD_LOGITS_THREADS, HeadStep, args) { whole_rows<T, HEAD_MANY_STATES>(args); } \
    KERNEL(listed_logits_##type, LISTED_LOGITS_THREADS, HeadStep, args) { listed<T>(args); }

HEAD_LOGITS_OF(f32, F32)
HEAD_LOGITS_OF(bf16, Bf16)
HEAD_LOGITS_OF(f16, F16)
