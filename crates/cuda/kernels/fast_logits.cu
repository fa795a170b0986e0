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
    // The places of a lane's ids are `first` and `first + 8`; a place that is not below `end` has no id.
    struct Ids {
        u32 first, end;

        DEVICE_MEMBER bool has(u32 i) const { return first + i * 8 < end; }
    };
    DEVICE_MEMBER Ids ids(u32 first_id, u32 end) const { return Ids{first_id, end}; }
    template <u32 COLUMNS>
    DEVICE_MEMBER void finish(const float (&sums)[COLUMNS / 8][4], const Ids& ids, u32 first_row) const {
        const u32 vocab = args.step.vocab, t = lane_id() % 4;
        // Loaded after the products: before, they would take registers from the sums.
        u32 id_0 = ids.first, id_1 = ids.first + 8, cluster_0 = 0, cluster_1 = 0;
        if constexpr (PROBED) {
            id_0 = ids.has(0) ? id_at(ids.first) : 0;
            id_1 = ids.has(1) ? id_at(ids.first + 8) : 0;
            cluster_0 = args.clusters_of_ids[id_0];
            cluster_1 = args.clusters_of_ids[id_1];
        }
        const auto id_of = [&](u32 i) INLINE { return i / 2 == 0 ? id_0 : id_1; };
        const auto row_of = [&](u32 column, u32 i) INLINE { return first_row + column * 8 + 2 * t + i % 2; };
        // Whether the i-th sum of a column is a logit: of no padding, and of the row's probed set.
        const auto is_wanted = [&](u32 column, u32 i) INLINE {
            const u32 row = row_of(column, i);
            const bool is_logit = ids.has(i / 2) && row < args.step.rows;
            if constexpr (PROBED) {
                return is_logit && is_probed(probed_by_row(args, row), i / 2 == 0 ? cluster_0 : cluster_1);
            }
            return is_logit;
        };
        // Found before for probed sets, a bit for each sum: the addresses of bitmaps leave no registers for sums.
        constexpr u32 SUMS = COLUMNS / 2, WORD_SUMS = SUMS < 32 ? SUMS : 32;
        u32 wanted[SUMS / WORD_SUMS] = {};
        if constexpr (PROBED) {
#pragma unroll
            for (u32 word = 0; word < SUMS / WORD_SUMS; word++) {
#pragma unroll 4
                for (u32 bit = 0; bit < WORD_SUMS; bit++) {
                    const u32 sum = word * 32 + bit;
                    wanted[word] |= (u32)is_wanted(sum / 4, sum % 4) << bit;
                }
            }
        }
        const auto place = [&](u32 column, u32 i)
                               INLINE { return args.logits + (u64)row_of(column, i) * vocab + id_of(i); };
#pragma unroll
        for (u32 column = 0; column < COLUMNS / 8; column++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 sum = column * 4 + i;
                if (PROBED ? wanted[sum / 32] >> sum % 32 & 1 : is_wanted(column, i)) {
                    *place(column, i) = uncapped_logit(args, sums[column][i], id_of(i));
                }
            }
        }
        // Few models have a softcap. A call, or its code for each sum, would take registers from the sums.
        if (args.softcap > 0.0f) {
#pragma unroll 1
            for (u32 i = 0; i < COLUMNS / 2; i++) {
                if (is_wanted(i / 4, i % 4)) {
                    float& logit = *place(i / 4, i % 4);
                    logit = softcapped(logit, args.softcap);
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
