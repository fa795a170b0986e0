// fast_logits.cu: computes all logits of hidden states on tensor cores.
//
// Computes   for each id and row, the product of weights and hidden state in the order of adding that the tensor cores
//            have, then bias, scale and softcap (H2)
// Never      gives a meaning to the logits of padding, which are made of stale memory; lets a logit depend on other
//            rows, on how many there are, or on how many blocks share the ids
// Twins      none: how tensor cores round is the hardware's | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; short_states as head_states.cu writes them; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids, as stage/matrix_product.cuh says
// Traffic    in: the weights, once for each 256 rows, or 64 on other GPUs than sm_90; out: 4 bytes a logit
// Requires   head_states before

#include "stage/matrix_product.cuh"

// The job of the block; matrix_product.cuh says what its members are for. A column is a hidden state.
struct FastLogits {
    const HeadStep& args;

    DEVICE_MEMBER MatrixOperands operands() const {
        const u64 apart = (u64)args.width * 2;
        return {(const char*)args.weights,
                apart,
                args.short_width * 2,
                args.width * 2,
                (args.flags & HEAD_ALIGNED) != 0,
                (const U32x4*)args.short_states,
                args.step.rows};
    }
    DEVICE_MEMBER bool begin() const {
        grid_dependency_wait();
        trigger_dependents();
        return true;
    }
    struct Ids {
        u32 first, end;
    };
    DEVICE_MEMBER Ids ids(u32 first_id, u32 end) const { return Ids{first_id, end}; }
    template <u32 COLUMNS>
    DEVICE_MEMBER void finish(const float (&sums)[COLUMNS / 8][4], const Ids& ids, u32 first_row) const {
        const u32 vocab = args.step.vocab, t = lane_id() % 4;
        // The logit of a sum; none if it is padding's.
        const auto place = [&](u32 column, u32 i) INLINE -> float* {
            const u32 id = ids.first + i / 2 * 8, row = first_row + column * 8 + 2 * t + i % 2;
            return id < ids.end && row < args.step.rows ? args.logits + (u64)row * vocab + id : nullptr;
        };
#pragma unroll
        for (u32 column = 0; column < COLUMNS / 8; column++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (float* logit = place(column, i)) {
                    *logit = uncapped_logit(args, sums[column][i], ids.first + i / 2 * 8);
                }
            }
        }
        // Few models have a softcap. A call, or its code for each sum, would take registers from the sums.
        if (args.softcap > 0.0f) {
#pragma unroll 1
            for (u32 i = 0; i < COLUMNS / 2; i++) {
                if (float* logit = place(i / 4, i % 4)) {
                    *logit = softcapped(*logit, args.softcap);
                }
            }
        }
    }
};

KERNEL(fast_logits_bf16, HEAD_QUEUE_THREADS, HeadStep, args) { matrix_product<Bf16>(FastLogits{args}); }
KERNEL(fast_logits_f16, HEAD_QUEUE_THREADS, HeadStep, args) { matrix_product<F16>(FastLogits{args}); }
