// fast_logits.cu: computes all logits of hidden states on tensor cores.
//
// Computes   for each id and row, the product of weights and hidden state in the order of adding that the tensor cores have, then bias,
//            scale and softcap (H2)
// Never      reads padding; lets a logit depend on other rows, on how many there are, or on how many blocks share the ids
// Twins      none: how tensor cores round is the hardware's | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; short_states as head_states.cu writes them; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids; FAST_COPY_WARPS warps and one for each FAST_WARP_IDS of `fast_ids`;
//            `fast_stages` stages in dynamic shared memory
// Traffic    in: the weights, once for each FAST_MOST_STATES rows; out: 4 bytes a logit
// Requires   head_states before
//
// One block on a multiprocessor keeps its memory busy: some warps only copy, as many stages ahead as shared memory holds, also beyond
// the end of one set of ids into the next. The others only multiply. Two mbarriers a stage tell when it is full and when it is empty.

#include "platform/matrix.cuh"
#include "platform/sm90.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Bf16) { mma_bf16(sums, a, b); }
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], F16) { mma_f16(sums, a, b); }

// A stage in shared memory: HEAD_STAGE_BYTES of the weights of `fast_ids` ids, and the elements of STATES hidden states that meet them.
struct FastStage {
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, CHUNK_QUADS = FAST_CHUNK * 2 / 16,
                         CHUNKS = ROW_QUADS / CHUNK_QUADS;

    // The stages of a row of weights, the last of which may be short.
    static DEVICE_MEMBER u32 count(const HeadStep& args) {
        return (args.short_width + FAST_STAGE_ELEMENTS - 1) / FAST_STAGE_ELEMENTS;
    }
};

// The stages of a block as its warps go through them, those that copy and those that multiply alike. Two mbarriers a stage tell that it is
// full and that it is empty.
struct StageQueue {
    U32x4* smem;
    Mbarrier *full, *empty;
    u32 stages, stage_quads;
    u32 stage = 0, parity = 0;
    bool first_round = true;

    DEVICE_MEMBER U32x4* quads() const { return smem + stage * stage_quads; }
    // WAR on the stage: the warps that multiply have read what it held.
    DEVICE_MEMBER void wait_until_empty() const {
        if (!first_round) {
            mbarrier_wait_parity(empty + stage, parity ^ 1);
        }
    }
    // RAW on the stage: the copies to it are complete.
    DEVICE_MEMBER void wait_until_full() const { mbarrier_wait_parity(full + stage, parity); }
    DEVICE_MEMBER void advance() {
        stage++;
        if (stage == stages) {
            stage = 0;
            parity ^= 1;
            first_round = false;
        }
    }
};

// The ids of a block: each block has as many sets of them as every other, and all sets are of about the same size.
struct IdSets {
    u32 count, ids;

    DEVICE_MEMBER explicit IdSets(const HeadStep& args) {
        const u32 vocab = args.step.vocab, most = gridDim.x * args.fast_ids;
        count = (vocab + most - 1) / most;
        const u32 sets = count * gridDim.x, share = (vocab + sets - 1) / sets;
        ids = (share + FAST_WARP_IDS - 1) / FAST_WARP_IDS * FAST_WARP_IDS;
    }
    DEVICE_MEMBER u32 first(u32 set) const { return (set * gridDim.x + blockIdx.x) * ids; }
};

// Starts to copy a stage's elements of STATES hidden states, from `first_row` on. They lie together, as in the stage.
template <u32 STATES>
DEVICE void copy_states(const HeadStep& args, U32x4* to, u32 first_row, u32 number) {
    constexpr u32 QUADS = STATES * FastStage::ROW_QUADS, GROUP_QUADS = FAST_MOST_STATES * FastStage::ROW_QUADS;
    const u32 stages = FastStage::count(args), group = first_row / FAST_MOST_STATES;
    const U32x4* from = (const U32x4*)args.short_states + ((u64)group * stages + number) * GROUP_QUADS;
#pragma unroll
    for (u32 i = threadIdx.x; i < QUADS; i += FAST_COPY_WARPS * 32) {
        cp_async(to + i, from + i);
    }
}

// A copying thread's work: STATES hidden states from `first_row` on, and the ids of all sets of the block.
template <class T, u32 STATES>
DEVICE void copy_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row, bool& has_waited) {
    typedef typename T::Element Element;
    constexpr u32 ROWS = FAST_COPY_WARPS * 32 / FastStage::ROW_QUADS;
    const u32 quad = threadIdx.x % FastStage::ROW_QUADS, first = threadIdx.x / FastStage::ROW_QUADS;
    const u32 quads = args.short_width * 2 / 16, stages = FastStage::count(args), vocab = args.step.vocab;
    const u64 row_elements = (u64)ROWS * args.width;
    for (u32 set = 0; set < sets.count; set++) {
        const u32 first_id = sets.first(set), left = first_id < vocab ? vocab - first_id : 0;
        const u32 ids = left < sets.ids ? left : sets.ids, own = ids > first ? (ids - first + ROWS - 1) / ROWS : 0;
        const Element* weights = (const Element*)args.weights + (u64)(first_id + first) * args.width;
        for (u32 i = 0; i < stages; i++) {
            queue.wait_until_empty();
            const u32 from = i * FastStage::ROW_QUADS + quad, at = from * 8;
            // The thread's rows are an even number apart, so their quads are in the same order.
            U32x4* to = queue.quads() + quad_place(first, quad);
            const bool copies = from >= quads || (args.flags & HEAD_ALIGNED && at + 8 <= args.width);
            const Element* w = weights + at;
            if (!copies) {
                for (u32 n = 0; n < own; n++) {
                    for (u32 j = 0; j < 8; j++) {
                        ((Element*)(to + n * (ROWS * FastStage::ROW_QUADS)))[j] =
                            at + j < args.width ? w[j] : (Element)0;
                    }
                    w += row_elements;
                }
            } else if (from < quads) {
#pragma unroll 4
                for (u32 n = 0; n < own; n++) {
                    cp_async(to + n * (ROWS * FastStage::ROW_QUADS), w);
                    w += row_elements;
                }
            }
            if (!has_waited) {
                // Weights are on their way before the hidden states are there.
                grid_dependency_wait();
                trigger_dependents();
                has_waited = true;
            }
            copy_states<STATES>(args, queue.quads() + args.fast_ids * FastStage::ROW_QUADS, first_row, i);
            if (copies) {
                cp_async_mbarrier_arrive(queue.full + queue.stage);
            } else {
                cp_async_wait_all();
                mbarrier_arrive(queue.full + queue.stage);
            }
            queue.advance();
        }
    }
}

// A multiplying warp's work. Its lane 4 g + t has the elements of the ids g and g + 8, and of every eighth hidden state from g on, that
// begin at 8 t in each chunk. Which of them meet in one product of the tensor cores is the same for weights and hidden states, and so
// are the sums.
template <class T, u32 STATES>
DEVICE void multiply_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row) {
    constexpr u32 COLUMNS = STATES / 8;
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4, own = (warp_id() - FAST_COPY_WARPS) * FAST_WARP_IDS + g;
    const u32 all_chunks = args.short_width / FAST_CHUNK, stages = FastStage::count(args);
    const u32 vocab = args.step.vocab, rows = args.step.rows;
    for (u32 set = 0; set < sets.count; set++) {
        float sums[COLUMNS][4] = {};
#pragma unroll 1
        for (u32 i = 0; i < stages; i++) {
            queue.wait_until_full();
            const U32x4* weights = queue.quads();
            const U32x4* states = weights + args.fast_ids * FastStage::ROW_QUADS;
            const auto multiply_chunk = [&](u32 chunk) INLINE {
                const u32 quad = chunk * FastStage::CHUNK_QUADS + t;
                const U32x4 low = weights[quad_place(own, quad)], high = weights[quad_place(own + 8, quad)];
                U32x4 of_states[COLUMNS];
#pragma unroll
                for (u32 column = 0; column < COLUMNS; column++) {
                    of_states[column] = states[quad_place(column * 8 + g, quad)];
                }
#pragma unroll
                for (u32 k = 0; k < 4; k += 2) {
                    const u32 a[4] = {low.word[k], high.word[k], low.word[k + 1], high.word[k + 1]};
#pragma unroll
                    for (u32 column = 0; column < COLUMNS; column++) {
                        const u32 b[2] = {of_states[column].word[k], of_states[column].word[k + 1]};
                        mma(sums[column], a, b, T{});
                    }
                }
            };
            const u32 chunks = all_chunks - i * FastStage::CHUNKS;
            if (chunks >= FastStage::CHUNKS) {
                // Without a condition between them, loads for one chunk overlap the products of another.
#pragma unroll
                for (u32 chunk = 0; chunk < FastStage::CHUNKS; chunk++) {
                    multiply_chunk(chunk);
                }
            } else {
#pragma unroll 1
                for (u32 chunk = 0; chunk < chunks; chunk++) {
                    multiply_chunk(chunk);
                }
            }
            __syncwarp();
            if (lane == 0) {
                mbarrier_arrive(queue.empty + queue.stage);
            }
            queue.advance();
        }
        const u32 first_id = sets.first(set);
#pragma unroll
        for (u32 column = 0; column < COLUMNS; column++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 of_set = own + i / 2 * 8, id = first_id + of_set,
                          row = first_row + column * 8 + 2 * t + i % 2;
                if (of_set < sets.ids && id < vocab && row < rows) {
                    args.logits[(u64)row * vocab + id] = head_logit(args, sums[column][i], id);
                }
            }
        }
    }
}

// The logits of `STATES` rows at a time.
template <class T, u32 STATES>
DEVICE void fast_rows(const HeadStep& args, StageQueue& queue) {
    const IdSets sets(args);
    bool has_waited = false;
    queue.stage_quads = (args.fast_ids + STATES) * FastStage::ROW_QUADS;
    for (u32 first_row = 0; first_row < args.step.rows; first_row += STATES) {
        if (warp_id() < FAST_COPY_WARPS) {
            copy_stages<T, STATES>(args, sets, queue, first_row, has_waited);
        } else {
            multiply_stages<T, STATES>(args, sets, queue, first_row);
        }
    }
}

template <class T>
DEVICE void fast_logits(const HeadStep& args) {
    DYNAMIC_SMEM(smem);
    __shared__ Mbarrier full[FAST_MOST_STAGES], empty[FAST_MOST_STAGES];
    if (threadIdx.x < args.fast_stages) {
        mbarrier_init(full + threadIdx.x, FAST_COPY_WARPS * 32);
        mbarrier_init(empty + threadIdx.x, warp_count() - FAST_COPY_WARPS);
    }
    // RAW on full and empty: all threads use what some have initialised.
    __syncthreads();
    StageQueue queue{smem, full, empty, args.fast_stages, 0};
    // Steps of few rows multiply fewer columns of zeros. A column's sums are the same in all.
    const u32 rows = args.step.rows;
    if (rows <= 8) {
        fast_rows<T, 8>(args, queue);
    } else if (rows <= 16) {
        fast_rows<T, 16>(args, queue);
    } else if (rows <= 32) {
        fast_rows<T, 32>(args, queue);
    } else {
        fast_rows<T, 64>(args, queue);
    }
}

KERNEL(fast_logits_bf16, FAST_LOGITS_THREADS, HeadStep, args) { fast_logits<Bf16>(args); }
KERNEL(fast_logits_f16, FAST_LOGITS_THREADS, HeadStep, args) { fast_logits<F16>(args); }
