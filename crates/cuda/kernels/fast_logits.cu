// fast_logits.cu: computes all logits of hidden states on tensor cores.
//
// Computes   for each id and row, the product of weights and hidden state in the order of adding that the tensor cores
//            have, then bias, scale and softcap (H2)
// Never      reads the hidden state of padding, whose logits are made of stale memory; lets a logit depend on
//            other rows, on how many there are, or on how many blocks share the ids
// Twins      none: how tensor cores round is the hardware's | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; short_states as head_states.cu writes them; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids; HEAD_COPY_WARPS warps and one for each HEAD_WARP_IDS of
//            `queue_ids`; `queue_stages` stages in dynamic shared memory
// Traffic    in: the weights, once for each FAST_MOST_STATES rows; out: 4 bytes a logit
// Requires   head_states before
//
// How a block reads weights: block/stage_queue.cuh.

#include "block/stage_queue.cuh"
#include "platform/matrix.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Bf16) { mma_bf16(sums, a, b); }
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], F16) { mma_f16(sums, a, b); }

// A stage in shared memory: HEAD_STAGE_BYTES of the weights of `queue_ids` ids, and the elements of STATES hidden
// states that meet them.
struct FastStage {
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, CHUNK_QUADS = FAST_CHUNK * 2 / 16,
                         CHUNKS = ROW_QUADS / CHUNK_QUADS;

    // The stages of a row of weights, the last of which may be short.
    static DEVICE_MEMBER u32 count(const HeadStep& args) {
        return (args.short_width + FAST_STAGE_ELEMENTS - 1) / FAST_STAGE_ELEMENTS;
    }
};

// Starts to copy a stage's elements of STATES hidden states, from `first_row` on. They lie together, as in the stage.
template <u32 STATES>
DEVICE void copy_states(const HeadStep& args, U32x4* to, u32 first_row, u32 number) {
    constexpr u32 QUADS = STATES * FastStage::ROW_QUADS, GROUP_QUADS = FAST_MOST_STATES * FastStage::ROW_QUADS;
    const u32 stages = FastStage::count(args), group = first_row / FAST_MOST_STATES;
    const U32x4* from = (const U32x4*)args.short_states + ((u64)group * stages + number) * GROUP_QUADS;
#pragma unroll
    for (u32 i = threadIdx.x; i < QUADS; i += HEAD_COPY_WARPS * 32) {
        cp_async(to + i, from + i);
    }
}

// A copying thread's work: STATES hidden states from `first_row` on, and the ids of all sets of the block.
template <class T, u32 STATES>
DEVICE void copy_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row, bool& has_waited) {
    typedef typename T::Element Element;
    constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / FastStage::ROW_QUADS;
    const u32 quad = threadIdx.x % FastStage::ROW_QUADS, first = threadIdx.x / FastStage::ROW_QUADS;
    const u32 quads = args.short_width * 2 / 16, stages = FastStage::count(args), vocab = args.step.vocab;
    const u64 row_elements = (u64)ROWS * args.width;
    for (u32 set = 0; set < sets.count; set++) {
        const u32 first_id = sets.first(set), left = first_id < vocab ? vocab - first_id : 0;
        const u32 ids = left < sets.ids ? left : sets.ids, own = ids > first ? (ids - first + ROWS - 1) / ROWS : 0;
        const Element* weights = (const Element*)args.weights + (u64)(first_id + first) * args.width;
        for (u32 i = 0; i < stages; i++) {
            queue.acquire_empty();
            const u32 from = i * FastStage::ROW_QUADS + quad, at = from * 8;
            // The thread's rows are a multiple of eight apart, so their quads are in the same order.
            U32x4* to = queue.quads() + weight_place(first, quad);
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
            copy_states<STATES>(args, queue.quads() + args.queue_ids * FastStage::ROW_QUADS, first_row, i);
            queue.fill(!copies);
        }
    }
}

// A multiplying warp's work. Its lane 4 g + t has the elements of the ids g and g + 8, and of every eighth hidden state
// from g on, that are two of each eight, from 2 t on.
template <class T, u32 STATES>
DEVICE void multiply_stages(const HeadStep& args, const IdSets& sets, StageQueue& queue, u32 first_row) {
    // All chunks of 64 hidden states at once would spill registers.
    constexpr u32 COLUMNS = STATES / 8, CHUNKS_AT_ONCE = COLUMNS < 8 ? FastStage::CHUNKS : 2;
    const u32 lane = lane_id(), g = lane / 4, t = lane % 4, own = (warp_id() - HEAD_COPY_WARPS) * HEAD_WARP_IDS + g;
    const u32 all_chunks = args.short_width / FAST_CHUNK, stages = FastStage::count(args);
    const u32 vocab = args.step.vocab, rows = args.step.rows;
    for (u32 set = 0; set < sets.count; set++) {
        float sums[COLUMNS][4] = {};
#pragma unroll 1
        for (u32 i = 0; i < stages; i++) {
            queue.acquire_full();
            const U32x4* weights = queue.quads();
            const U32x4* states = weights + args.queue_ids * FastStage::ROW_QUADS;
            const auto multiply_chunk = [&](u32 chunk) INLINE {
                u32 of_weights[2][4];
                load_fragments(of_weights, weights, own, chunk);
                U32x4 of_states[COLUMNS];
#pragma unroll
                for (u32 column = 0; column < COLUMNS; column++) {
                    of_states[column] = states[state_place(column * 8 + g, chunk * FastStage::CHUNK_QUADS + t)];
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
            const u32 chunks = all_chunks - i * FastStage::CHUNKS;
            if (chunks >= FastStage::CHUNKS) {
                // Without a condition between them, loads for one chunk overlap the products of another.
#pragma unroll CHUNKS_AT_ONCE
                for (u32 chunk = 0; chunk < FastStage::CHUNKS; chunk++) {
                    multiply_chunk(chunk);
                }
            } else {
#pragma unroll 1
                for (u32 chunk = 0; chunk < chunks; chunk++) {
                    multiply_chunk(chunk);
                }
            }
            queue.release();
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
    const IdSets sets(args.step.vocab, args.queue_ids);
    bool has_waited = false;
    queue.stage_quads = (args.queue_ids + STATES) * FastStage::ROW_QUADS;
    for (u32 first_row = 0; first_row < args.step.rows; first_row += STATES) {
        if (warp_id() < HEAD_COPY_WARPS) {
            copy_stages<T, STATES>(args, sets, queue, first_row, has_waited);
        } else {
            multiply_stages<T, STATES>(args, sets, queue, first_row);
        }
    }
}

template <class T>
DEVICE void fast_logits(const HeadStep& args) {
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
    StageQueue queue(mbarriers, smem, args.queue_stages);
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

KERNEL(fast_logits_bf16, HEAD_QUEUE_THREADS, HeadStep, args) { fast_logits<Bf16>(args); }
KERNEL(fast_logits_f16, HEAD_QUEUE_THREADS, HeadStep, args) { fast_logits<F16>(args); }
