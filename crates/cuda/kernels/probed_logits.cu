// probed_logits.cu: computes the logits of each row's probed set, in the order of adding that rule H1 fixes.
//
// Computes   the products of listed rows of weights with the row's hidden state, then bias, scale and softcap (H2)
// Never      reads or writes rows of padding; writes other logits than these
// Twins      oracle spec/src/head.rs | CPU cpu/src/head/products.rs | why docs/heads.md, docs/stages/head.md
// Shapes     weights [vocab, width] of T; states [rows, padded_width]; contenders [rows, most_contenders]; logits
//            [rows, vocab]
// Grid       x = any number of blocks, which share the ids of each row; as block/stage_queue.cuh says, with at most
//            PROBED_IDS ids
// Traffic    in: a row of weights for each listed id; out: 4 bytes a logit
// Requires   head_probes before
//
// A product has sixteen partial sums, of the elements that lie sixteen apart. Eight lanes have a product, with two of
// its sums each: a block has few ids of a row, and so all of its warps have some.

#include "block/stage_queue.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

// The lanes of a product, and the ids of a warp.
#define PROBED_LANES 8
#define PROBED_WARP_IDS (32 / PROBED_LANES)

// A stage in shared memory: HEAD_STAGE_BYTES of the weights of each id of a set, and after the weights of `queue_ids`
// ids the elements of the hidden state that meet them.
template <class T>
struct ProbedStage {
    typedef typename T::Element Element;
    static constexpr u32 ELEMENTS = HEAD_STAGE_BYTES / sizeof(Element), PER_QUAD = 16 / sizeof(Element);
    static constexpr u32 ROW_QUADS = HEAD_STAGE_BYTES / 16, STATE_QUADS = ELEMENTS / 4;

    // Where a quad of a row lies: four neighbouring rows, a warp's, have theirs in different orders, so that its
    // lanes read different banks.
    static DEVICE_MEMBER u32 place(u32 row, u32 quad) { return row * ROW_QUADS + (quad ^ (row % 4 * 2)); }

    // Two neighbouring elements of a row of weights, for lane `part` of a product in the sixteen from `16 * group`
    // on.
    static DEVICE_MEMBER void weights(const U32x4* quads, u32 row, u32 group, u32 part, float (&w)[2]) {
        const u32 element = 16 * group + 2 * part;
        const Element* from = (const Element*)(quads + place(row, element / PER_QUAD)) + element % PER_QUAD;
        if constexpr (sizeof(Element) == 2) {
            const u32 both = *(const u32*)from;
            w[0] = T::convert((Element)both);
            w[1] = T::convert((Element)(both >> 16));
        } else {
            const u64 both = *(const u64*)from;
            w[0] = bits_float((u32)both);
            w[1] = bits_float((u32)(both >> 32));
        }
    }

    // The elements of the hidden state that meet them.
    static DEVICE_MEMBER void state(const U32x4* quads, u32 group, u32 part, float (&h)[2]) {
        const u64 both = *(const u64*)((const float*)quads + 16 * group + 2 * part);
        h[0] = bits_float((u32)both);
        h[1] = bits_float((u32)(both >> 32));
    }
};

// A row's listed ids, and how the blocks share them.
struct ListedIds {
    const u32* ids;
    u32 count;
    IdSets sets;

    DEVICE_MEMBER ListedIds(const HeadStep& args, u32 row)
        : ids(args.contenders + (u64)row * args.most_contenders), count(args.head_rows[row].contenders),
          sets(count, args.queue_ids, 1) {}
    // The id at a place of a set; HEAD_NO_ID where the set or the list has ended, or the place has none.
    DEVICE_MEMBER u32 id(u32 set, u32 of_set) const {
        const u32 place = sets.first(set) + of_set;
        return of_set < sets.ids && place < count ? ids[place] : HEAD_NO_ID;
    }
};

// A copying thread's work for a row.
template <class T>
DEVICE void copy_stages(const HeadStep& args, StageQueue& queue, u32 row) {
    typedef ProbedStage<T> Stage;
    typedef typename T::Element Element;
    constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / Stage::ROW_QUADS, MOST = PROBED_IDS / ROWS;
    const ListedIds listed(args, row);
    const u32 quad = threadIdx.x % Stage::ROW_QUADS, first_row = threadIdx.x / Stage::ROW_QUADS;
    const float* state = args.states + (u64)row * args.padded_width;
    for (u32 set = 0; set < listed.sets.count; set++) {
        // The thread's pieces of the rows of some ids; null where it has none.
        const Element* from[MOST];
#pragma unroll
        for (u32 n = 0; n < MOST; n++) {
            const u32 id = listed.id(set, first_row + n * ROWS);
            from[n] = id == HEAD_NO_ID ? nullptr
                                       : (const Element*)args.weights + (u64)id * args.width + quad * Stage::PER_QUAD;
        }
        for (u32 first = 0; first < args.padded_width; first += Stage::ELEMENTS) {
            queue.acquire_empty();
            // The thread's rows are a multiple of four apart, so their quads are in the same order.
            U32x4* to = queue.quads() + Stage::place(first_row, quad);
            const u32 at = first + quad * Stage::PER_QUAD;
            const bool copies = args.flags & HEAD_ALIGNED && at + Stage::PER_QUAD <= args.width;
            const bool stores = !copies && at < args.padded_width;
#pragma unroll
            for (u32 n = 0; n < MOST; n++) {
                if (from[n] != nullptr && copies) {
                    cp_async(to + n * (ROWS * Stage::ROW_QUADS), from[n] + first);
                }
            }
            for (u32 n = 0; stores && n < MOST; n++) {
                for (u32 j = 0; from[n] != nullptr && j < Stage::PER_QUAD; j++) {
                    // What lies beyond the width becomes 0.
                    ((Element*)(to + n * (ROWS * Stage::ROW_QUADS)))[j] =
                        at + j < args.width ? from[n][first + j] : (Element)0;
                }
            }
            const u32 of_state = threadIdx.x * 4;
            if (threadIdx.x < Stage::STATE_QUADS && first + of_state < args.padded_width) {
                cp_async(queue.quads() + args.queue_ids * Stage::ROW_QUADS + threadIdx.x, state + first + of_state);
            }
            queue.fill(stores);
        }
    }
}

// A multiplying warp's work for a row. It waits for the stages of all sets, also where it has no ids.
template <class T>
DEVICE void multiply_stages(const HeadStep& args, StageQueue& queue, u32 row) {
    typedef ProbedStage<T> Stage;
    constexpr u32 GROUPS = Stage::ELEMENTS / 16;
    const ListedIds listed(args, row);
    const u32 first = (warp_id() - HEAD_COPY_WARPS) * PROBED_WARP_IDS, own = first + lane_id() / PROBED_LANES;
    const u32 part = lane_id() % PROBED_LANES;
    for (u32 set = 0; set < listed.sets.count; set++) {
        const u32 id = listed.id(set, own);
        float sums[2] = {};
#pragma unroll 1
        for (u32 element = 0; element < args.padded_width; element += Stage::ELEMENTS) {
            queue.acquire_full();
            const U32x4 *quads = queue.quads(), *state = quads + args.queue_ids * Stage::ROW_QUADS;
            const auto multiply = [&](u32 group) INLINE {
                float w[2], h[2];
                Stage::weights(quads, own, group, part, w);
                Stage::state(state, group, part, h);
                sums[0] = fma_rn(w[0], h[0], sums[0]);
                sums[1] = fma_rn(w[1], h[1], sums[1]);
            };
            const u32 groups = (args.padded_width - element) / 16;
            if (first < listed.sets.ids && groups >= GROUPS) {
                // Without a condition between them, loads of one group overlap the products of another.
#pragma unroll
                for (u32 group = 0; group < GROUPS; group++) {
                    multiply(group);
                }
            } else if (first < listed.sets.ids) {
#pragma unroll 1
                for (u32 group = 0; group < groups; group++) {
                    multiply(group);
                }
            }
            queue.release();
        }
        // The sums eight apart are added first, then those four, two and one apart.
#pragma unroll
        for (u32 apart = PROBED_LANES / 2; apart > 0; apart /= 2) {
            sums[0] = sums[0] + __shfl_xor_sync(FULL_MASK, sums[0], (int)apart);
            sums[1] = sums[1] + __shfl_xor_sync(FULL_MASK, sums[1], (int)apart);
        }
        if (part == 0 && id != HEAD_NO_ID) {
            args.logits[(u64)row * args.step.vocab + id] = head_logit(args, sums[0] + sums[1], id);
        }
    }
}

template <class T>
DEVICE void probed_logits(const HeadStep& args) {
    typedef ProbedStage<T> Stage;
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
    StageQueue queue(mbarriers, smem, args.queue_stages);
    queue.stage_quads = args.queue_ids * Stage::ROW_QUADS + Stage::STATE_QUADS;
    grid_dependency_wait();
    trigger_dependents();
    for (u32 row = 0; row < args.step.rows; row++) {
        if (args.head_rows[row].plan != PLAN_PROBED) {
            continue;
        }
        if (warp_id() < HEAD_COPY_WARPS) {
            copy_stages<T>(args, queue, row);
        } else {
            multiply_stages<T>(args, queue, row);
        }
    }
}

#define PROBED_LOGITS_OF(type, T) \
    KERNEL(probed_logits_##type, HEAD_QUEUE_THREADS, HeadStep, args) { probed_logits<T>(args); }

FOR_EACH_TYPE(PROBED_LOGITS_OF)
