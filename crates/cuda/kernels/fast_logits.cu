// fast_logits.cu: computes logits of hidden states on tensor cores, of all ids or of probed sets; scores centroids.
//
// Computes   for each id and row, the product of weights and hidden state in the order of adding that the tensor cores
//            have, then bias, scale and softcap (H2). `fast_probed`: for the ids of each row's probed set alone
// Never      gives a meaning to the logits of padding, which are made of stale memory; lets a logit depend on other
//            rows, on how many there are, or on how many blocks share the ids
// Twins      none: how tensor cores round is the hardware's | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; short_states as head_states.cu writes them; logits [rows, vocab]
// Grid       x = any number of blocks, which share the ids, as stage/matrix_product.cuh says
// Traffic    in: the weights, once for each 256 rows, or 64 on other GPUs than sm_90; `fast_probed` of up to
//            LISTED_TOGETHER rows only the weights of the ids that are listed; out: 4 bytes a logit
// Requires   head_states before; before `fast_probed` also head_probes, and list_probed for up to LISTED_TOGETHER rows

#include "stage/matrix_product.cuh"

// The job of the block; matrix_product.cuh says what its members are for. A column is a hidden state.
template <bool PROBED>
struct FastLogits {
    static constexpr bool MAY_LIST = PROBED;
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
    DEVICE_MEMBER u32 count() const {
        if (args.listed_ids == nullptr) {
            return args.step.vocab;
        }
        grid_dependency_wait();
        return *args.listed_count;
    }
    DEVICE_MEMBER u32 id_at(u32 i) const { return args.listed_ids == nullptr ? i : args.listed_ids[i]; }
    // The places of a lane's ids are `first` and `first + 8`; a place that is not below `end` has no id. Where PROBED
    // the ids and their clusters, which are loaded once.
    struct Ids {
        u32 first, end;
        u32 id_0, id_1, cluster_0, cluster_1;

        DEVICE_MEMBER bool has(u32 i) const { return first + i * 8 < end; }
        DEVICE_MEMBER u32 id(u32 i) const { return !PROBED ? first + i * 8 : i == 0 ? id_0 : id_1; }
        DEVICE_MEMBER u32 cluster(u32 i) const { return i == 0 ? cluster_0 : cluster_1; }
    };
    DEVICE_MEMBER Ids ids(u32 first, u32 end) const {
        Ids ids{first, end, 0, 0, 0, 0};
        if constexpr (PROBED) {
            ids.id_0 = ids.has(0) ? id_at(first) : 0;
            ids.id_1 = ids.has(1) ? id_at(first + 8) : 0;
            ids.cluster_0 = args.clusters_of_ids[ids.id_0];
            ids.cluster_1 = args.clusters_of_ids[ids.id_1];
        }
        return ids;
    }
    template <u32 COLUMNS>
    DEVICE_MEMBER void finish(const float (&sums)[COLUMNS / 8][4], const Ids& ids, u32 first_row) const {
        const u32 vocab = args.step.vocab, t = lane_id() % 4;
        // The logit of a sum; none if it is padding's.
        const auto place = [&](u32 column, u32 i) INLINE -> float* {
            const u32 id = ids.id(i / 2), row = first_row + column * 8 + 2 * t + i % 2;
            bool is_wanted = ids.has(i / 2) && row < args.step.rows;
            if constexpr (PROBED) {
                is_wanted = is_wanted && is_probed(probed_by_row(args, row), ids.cluster(i / 2));
            }
            return is_wanted ? args.logits + (u64)row * vocab + id : nullptr;
        };
#pragma unroll
        for (u32 column = 0; column < COLUMNS / 8; column++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                if (float* logit = place(column, i)) {
                    *logit = uncapped_logit(args, sums[column][i], ids.id(i / 2));
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

#define FAST_LOGITS_OF(type, T) \
    KERNEL(fast_logits_##type, HEAD_QUEUE_THREADS, HeadStep, args) { matrix_product<T>(FastLogits<false>{args}); } \
    KERNEL(fast_probed_##type, HEAD_QUEUE_THREADS, HeadStep, args) { matrix_product<T>(FastLogits<true>{args}); }

FAST_LOGITS_OF(bf16, Bf16)
FAST_LOGITS_OF(f16, F16)
