// fast_logits.cu: computes all logits of hidden states on tensor cores.
//
// Computes   for each id and row, the product of weights and hidden state in the order of adding that the tensor cores
//            have, then bias, scale and softcap (H2)
// Never      reads the hidden state of padding, whose logits are made of stale memory; lets a logit depend on
//            other rows, on how many there are, or on how many blocks share the ids
// Twins      none: how tensor cores round is the hardware's | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; short_states as head_states.cu writes them; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids; HEAD_COPY_WARPS warps and one for each HEAD_WARP_IDS of
//            `queue_ids`, on sm_90a a multiple of FAST_GROUP_IDS; `queue_stages` stages in dynamic shared memory, and
//            FAST_ALIGNMENT bytes on sm_90a
// Traffic    in: the weights, once for each 256 rows, or 64 before sm_90a and after it; out: 4 bytes a logit
// Requires   head_states before
//
// How a block reads weights: block/stage_queue.cuh.

#include "block/stage_queue.cuh"
#include "platform/matrix.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

#ifdef WARPGROUPS_MULTIPLY
template <u32 COLUMNS>
DEVICE void wgmma(float (*sums)[4], u64 weights, u64 states, Bf16) {
    wgmma_bf16(Columns<COLUMNS>{}, sums, weights, states);
}
template <u32 COLUMNS>
DEVICE void wgmma(float (*sums)[4], u64 weights, u64 states, F16) {
    wgmma_f16(Columns<COLUMNS>{}, sums, weights, states);
}
#else
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Bf16) { mma_bf16(sums, a, b); }
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], F16) { mma_f16(sums, a, b); }
#endif

// The pieces of a stage for at most 64 rows: longer pieces come faster from memory than short ones do.
constexpr u32 FEW_PIECES = HEAD_STAGE_BYTES / 16 / FastPiece::QUADS;

// A stage in shared memory: PIECES pieces of the weights of `queue_ids` ids, then of the STATES hidden states that meet
// them. All rows of a piece lie together.
template <u32 STATES, u32 PIECES>
struct FastStage {
    static constexpr u32 ROW_QUADS = PIECES * FastPiece::QUADS, ELEMENTS = ROW_QUADS * 8,
                         CHUNKS = ELEMENTS / FAST_CHUNK;

    // The stages of a row of weights, the last of which may be short.
    static DEVICE_MEMBER u32 count(const HeadStep& args) { return (args.short_width + ELEMENTS - 1) / ELEMENTS; }
    // Where its hidden states begin.
    static DEVICE_MEMBER u32 states(const HeadStep& args) { return args.queue_ids * ROW_QUADS; }
};

// Starts to copy a stage's pieces of STATES hidden states, from `first_row` on. They lie as in the stage.
template <u32 STATES, u32 PIECES>
DEVICE void copy_states(const HeadStep& args, U32x4* to, u32 first_row, u32 number) {
    constexpr u32 QUADS = STATES * FastPiece::QUADS;
#pragma unroll
    for (u32 piece = 0; piece < PIECES; piece++) {
        const u64 before = FastPiece::states_before(args, first_row, number * PIECES + piece);
        const U32x4* from = (const U32x4*)args.short_states + before + threadIdx.x;
#pragma unroll
        for (u32 i = 0; i < QUADS; i += HEAD_COPY_WARPS * 32) {
            if (i + HEAD_COPY_WARPS * 32 <= QUADS || threadIdx.x < QUADS - i) {
                cp_async(to + threadIdx.x + piece * QUADS + i, from + i);
            }
        }
    }
}

// A copying thread's work: STATES hidden states from `first_row` on, and the ids of all sets of the block.
template <class T, u32 STATES, u32 PIECES>
DEVICE void copy_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row) {
    typedef typename T::Element Element;
    typedef FastStage<STATES, PIECES> Stage;
    constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / Stage::ROW_QUADS;
    const u32 quad = threadIdx.x % Stage::ROW_QUADS, first = threadIdx.x / Stage::ROW_QUADS;
    // The thread's rows are a multiple of eight apart, so their quads are in the same order.
    const u32 place = quad / FastPiece::QUADS * (args.queue_ids * FastPiece::QUADS) + first * FastPiece::QUADS +
                      (quad % FastPiece::QUADS ^ first % 8);
    const u32 quads = args.short_width * 2 / 16, stages = Stage::count(args), vocab = args.step.vocab;
    const u64 row_elements = (u64)ROWS * args.width;
    for (u32 set = 0; set < sets.count; set++) {
        const u32 first_id = sets.first(set), left = first_id < vocab ? vocab - first_id : 0;
        const u32 ids = left < sets.ids ? left : sets.ids, own = ids > first ? (ids - first + ROWS - 1) / ROWS : 0;
        const Element* weights = (const Element*)args.weights + (u64)(first_id + first) * args.width;
        for (u32 i = 0; i < stages; i++) {
            queue.acquire_empty();
            const u32 from = i * Stage::ROW_QUADS + quad, at = from * 8;
            U32x4* to = queue.quads() + place;
            const bool copies = from >= quads || (args.flags & HEAD_ALIGNED && at + 8 <= args.width);
            const Element* w = weights + at;
            if (!copies) {
                for (u32 n = 0; n < own; n++) {
                    for (u32 j = 0; j < 8; j++) {
                        ((Element*)(to + n * (ROWS * FastPiece::QUADS)))[j] = at + j < args.width ? w[j] : (Element)0;
                    }
                    w += row_elements;
                }
            } else if (from < quads) {
#pragma unroll 4
                for (u32 n = 0; n < own; n++) {
                    cp_async(to + n * (ROWS * FastPiece::QUADS), w);
                    w += row_elements;
                }
            }
            if (first_row == 0 && set == 0 && i == 0) {
                // Weights are on their way before the hidden states are there.
                grid_dependency_wait();
                trigger_dependents();
            }
            copy_states<STATES, PIECES>(args, queue.quads() + Stage::states(args), first_row, i);
            queue.fill(!copies);
        }
    }
}

// Adds a stage's products to a warp's sums. Lane 4 g + t has `own`, the number of the warp's first id in the stage plus
// g, and the sums of the ids `own` and `own + 8` with the hidden states 8 i + 2 t and 8 i + 2 t + 1, for each i. The
// first `chunks` chunks of the stage are no padding.
template <class T, u32 STATES, u32 PIECES>
DEVICE void multiply_stage(const HeadStep& args, const U32x4* weights, u32 own, u32 chunks,
                           float (&sums)[STATES / 8][4]) {
    typedef FastStage<STATES, PIECES> Stage;
    const U32x4* states = weights + Stage::states(args);
#ifdef WARPGROUPS_MULTIPLY
    constexpr u32 AT_ONCE = STATES < 128 ? STATES : 128, CHUNK_QUADS = FAST_CHUNK / 8;
    const u64 of_ids = wgmma_operand(weights + own / FAST_GROUP_IDS * (FAST_GROUP_IDS * FastPiece::QUADS));
    const u64 of_states = wgmma_operand(states);
    wgmma_acquire();
    const auto multiply_chunk = [&](u32 chunk) INLINE {
        const u32 quad = chunk * CHUNK_QUADS % FastPiece::QUADS, piece = chunk * CHUNK_QUADS / FastPiece::QUADS;
        const u64 a = of_ids + piece * args.queue_ids * FastPiece::QUADS + quad;
        const u64 b = of_states + piece * STATES * FastPiece::QUADS + quad;
#pragma unroll
        for (u32 k = 0; k < CHUNK_QUADS; k += 2) {
#pragma unroll
            for (u32 first = 0; first < STATES; first += AT_ONCE) {
                wgmma<AT_ONCE / 8>(sums + first / 8, a + k, b + first * FastPiece::QUADS + k, T{});
            }
        }
    };
    constexpr u32 CHUNKS_AT_ONCE = Stage::CHUNKS;
#else
    // All chunks of 64 hidden states at once would spill registers.
    constexpr u32 COLUMNS = STATES / 8, CHUNKS_AT_ONCE = COLUMNS < 8 ? Stage::CHUNKS : 2;
    const u32 g = lane_id() / 4, t = lane_id() % 4;
    const auto multiply_chunk = [&](u32 chunk) INLINE {
        u32 of_weights[2][4];
        load_fragments(of_weights, weights, own, chunk);
        U32x4 of_states[COLUMNS];
#pragma unroll
        for (u32 column = 0; column < COLUMNS; column++) {
            of_states[column] = states[FastPiece::state_place(column * 8 + g, chunk * (FAST_CHUNK / 8) + t)];
        }
#pragma unroll
        for (u32 k = 0; k < 2; k++) {
#pragma unroll
            for (u32 column = 0; column < COLUMNS; column++) {
                const u32 of_state[2] = {of_states[column].word[2 * k], of_states[column].word[2 * k + 1]};
                mma(sums[column], of_weights[k], of_state, T{});
            }
        }
    };
#endif
    if (chunks >= Stage::CHUNKS) {
        // Without a condition between them, loads for one chunk overlap the products of another.
#pragma unroll CHUNKS_AT_ONCE
        for (u32 chunk = 0; chunk < Stage::CHUNKS; chunk++) {
            multiply_chunk(chunk);
        }
    } else {
#pragma unroll 1
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            multiply_chunk(chunk);
        }
    }
#ifdef WARPGROUPS_MULTIPLY
    wgmma_wait();
#endif
}

// A multiplying warp's work.
template <class T, u32 STATES, u32 PIECES>
DEVICE void multiply_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row) {
    typedef FastStage<STATES, PIECES> Stage;
    const u32 lane = lane_id(), t = lane % 4, own = (warp_id() - HEAD_COPY_WARPS) * HEAD_WARP_IDS + lane / 4;
    const u32 all_chunks = args.short_width / FAST_CHUNK, stages = Stage::count(args);
    const u32 vocab = args.step.vocab, rows = args.step.rows;
    for (u32 set = 0; set < sets.count; set++) {
        float sums[STATES / 8][4] = {};
#pragma unroll 1
        for (u32 i = 0; i < stages; i++) {
            queue.acquire_full();
            multiply_stage<T, STATES, PIECES>(args, queue.quads(), own, all_chunks - i * Stage::CHUNKS, sums);
            queue.release();
        }
        const u32 first_id = sets.first(set);
        // The logit of a sum; none if it is padding's.
        const auto place = [&](u32 column, u32 i) INLINE -> float* {
            const u32 of_set = own + i / 2 * 8, id = first_id + of_set, row = first_row + column * 8 + 2 * t + i % 2;
            return of_set < sets.ids && id < vocab && row < rows ? args.logits + (u64)row * vocab + id : nullptr;
        };
#pragma unroll
        for (u32 column = 0; column < STATES / 8; column++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (float* logit = place(column, i)) {
                    *logit = uncapped_logit(args, sums[column][i], first_id + own + i / 2 * 8);
                }
            }
        }
        // Few models have a softcap. A call, or its code for each sum, would take registers from the sums.
        if (args.softcap > 0.0f) {
#pragma unroll 1
            for (u32 i = 0; i < STATES / 2; i++) {
                if (float* logit = place(i / 4, i % 4)) {
                    *logit = softcapped(*logit, args.softcap);
                }
            }
        }
    }
}

// The work of a thread that copies, or of one that multiplies, for STATES rows from `first_row` on.
template <class T, bool COPIES, u32 STATES, u32 PIECES>
DEVICE void fast_rows(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row) {
    if (queue.stage_quads == 0) {
        // No rows that follow are more at once.
        queue.stage_quads = (args.queue_ids + STATES) * FastStage<STATES, PIECES>::ROW_QUADS;
    }
    if constexpr (COPIES) {
        copy_stages<T, STATES, PIECES>(args, sets, queue, first_row);
    } else {
        multiply_stages<T, STATES, PIECES>(args, sets, queue, first_row);
    }
}

// The work of a thread for all rows. Fewer rows multiply fewer columns of zeros; a column's sums are the same in all.
template <class T, bool COPIES>
DEVICE void all_rows(const HeadStep& args, const IdSets& sets, StageQueue& queue) {
    const u32 rows = args.step.rows;
    if (rows <= 8) {
        fast_rows<T, COPIES, 8, FEW_PIECES>(args, sets, queue, 0);
    } else if (rows <= 16) {
        fast_rows<T, COPIES, 16, FEW_PIECES>(args, sets, queue, 0);
    } else if (rows <= 32) {
        fast_rows<T, COPIES, 32, FEW_PIECES>(args, sets, queue, 0);
#ifdef WARPGROUPS_MULTIPLY
    } else if (rows > 64) {
        for (u32 row = 0, left = rows; row < rows; left = rows - row) {
            if (left > 128) {
                fast_rows<T, COPIES, 256, 1>(args, sets, queue, row);
                row += 256;
            } else if (left > 64) {
                fast_rows<T, COPIES, 128, 1>(args, sets, queue, row);
                row += 128;
            } else {
                fast_rows<T, COPIES, 64, 1>(args, sets, queue, row);
                row += 64;
            }
        }
#endif
    } else {
        for (u32 row = 0; row < rows; row += 64) {
            fast_rows<T, COPIES, 64, FEW_PIECES>(args, sets, queue, row);
        }
    }
}

template <class T>
DEVICE void fast_logits(const HeadStep& args) {
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
#ifdef WARPGROUPS_MULTIPLY
    constexpr u32 ALIGNMENT = FAST_ALIGNMENT / 16;
    U32x4* const stages = smem + (ALIGNMENT - smem_address(smem) / 16 % ALIGNMENT) % ALIGNMENT;
#else
    U32x4* const stages = smem;
#endif
    StageQueue queue(mbarriers, stages, args.queue_stages);
    const IdSets sets(args.step.vocab, args.queue_ids);
    // The compiler is to see that all lanes of a warp go the same way.
    if (__shfl_sync(FULL_MASK, warp_id(), 0) < HEAD_COPY_WARPS) {
        shrink_registers<32>();
        all_rows<T, true>(args, sets, queue);
    } else {
        grow_registers<160>();
        all_rows<T, false>(args, sets, queue);
    }
}

KERNEL(fast_logits_bf16, HEAD_QUEUE_THREADS, HeadStep, args) { fast_logits<Bf16>(args); }
KERNEL(fast_logits_f16, HEAD_QUEUE_THREADS, HeadStep, args) { fast_logits<F16>(args); }
