// keep.cu: what temperature and filters keep of rows that are to be written, and what it weighs.
//
// Computes   a row's first token, its temperature, its cut, the mass inside; its status; of a row that the survey filled what is listed of
//            it, as emit.cu would write it
// Never      reads a row to write it; draws nothing, XTC's word aside
// Twins      oracle spec/src/outputs.rs | CPU cpu/src/outputs.rs | why docs/probabilities.md
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; kept [rows]
// Grid       x = row, then blocks that help; whole warps up to 1024 threads, no dynamic shared memory
// Traffic    16 bytes a tile; logits as filter.cu and list.cu; once those of the tiles kept, where no list says what they weigh
// Requires   the survey of the same rows before it on the stream, and requests without edits

#include "kept.cuh"
#include "list.cu"

#define KEEP_THREADS 1024

// What is known of a row, in shared memory.
struct Keeping {
    Heat heat;
    Chain chain;
    u64 first;
    u32 asks;
    u32 status;
    // From a list: what is kept weighs so much, if that is known, and stands there.
    u64 mass;
    Places places;
    bool sure;
};

DEVICE Keeping& block_keeping() {
    __shared__ Keeping keeping;
    return keeping;
}

// What filters keep, where it fits a list; says whether it does for sure. What it is lies in `block_found`.
template <class V>
DEVICE bool keep_listed(const Step& step, u32 row, int slot, const Records& records, const V& view, const Whole& whole) {
    Keeping& keeping = block_keeping();
    u64 mass;
    if (!list_row<false>(step, records, view, keeping.chain, Stream{0, 0, 0}, whole, keeping.heat.filter_s, mass)) {
        return false;
    }
    if (warp_id() == 0) {
        Gathered& list = block_list();
        const Firsts firsts(list);
        Places places = filter_list(list, firsts, keeping.chain, keeping.heat.filter_s, mass,
                                    [&]() INLINE { return xtc_acts(step.params[slot], step.states[slot]); });
        if (lane_id() == 0) {
            u64 from = list.ordered[places.start], to = list.ordered[places.end - 1];
            block_found().kept = Given{Cut{from, to}, key_logit(from), places.start == 0};
            // Of a prefix, at the scale of the filters.
            keeping.mass = places.start == 0 && keeping.heat.s == keeping.heat.filter_s ? list.masses[places.end - 1] : 0;
            keeping.places = places;
            keeping.sure = places.sure;
        }
    }
    // Without it the other warps would read what came of it too early.
    __syncthreads();
    return keeping.sure;
}

// Weighs what is kept. Apart, so that its registers are its own.
template <class T>
DEVICE_APART void weigh_kept(const Step& step, u32 row, int slot, float s) {
    Ending<T, false> end(step, row, slot);
    const Given kept = block_found().kept;
    Filtering<View<T, false>> f = end.filtering(s);
    u64 mass = weigh(f.view, f.maxima(kept), kept, kept.cut, s).mass;
    if (threadIdx.x == 0) {
        block_keeping().mass = mass;
    }
}

// What is kept of a row, once that is known.
DEVICE Kept kept_of(u64 first, u32 flags) {
    const Keeping& keeping = block_keeping();
    Kept kept{first, first, keeping.mass, keeping.heat.s, flags};
    if (!(flags & (KEPT_NOTHING | KEPT_CERTAIN))) {
        const Given& found = block_found().kept;
        kept.first = found.cut.first;
        kept.last = found.cut.last;
        kept.flags |= found.prefix ? KEPT_PREFIX : 0;
    }
    return kept;
}

// Writes a token kept into a row that is filled with nothing.
template <class T>
DEVICE void write_token(const Keep& keep, u32 row, const Kept& kept, u64 key) {
    const Step& step = keep.step;
    float z = key_logit(key), p = keep.masks ? z : probability_of(z, kept);
    char* out = (char*)step.filled + row * step.filled_stride;
    if constexpr (sizeof(typename T::Element) == 2) {
        if (step.filled_bytes == 2) {
            store_one<T>((unsigned short*)out + key_id(key), p);
            return;
        }
    }
    store_one<T>((float*)out + key_id(key), p);
}

// Writes all that is kept of such a row: what the list says, or the first token.
template <class T>
DEVICE void write_kept(const Keep& keep, u32 row, const Kept& kept) {
    if (kept.flags & KEPT_CERTAIN) {
        if (threadIdx.x == 0) {
            write_token<T>(keep, row, kept, kept.first);
        }
        return;
    }
    const Places& places = block_keeping().places;
#pragma unroll 1
    for (u32 i = places.start + threadIdx.x; i < places.end; i += blockDim.x) {
        write_token<T>(keep, row, kept, block_list().ordered[i]);
    }
}

template <class T>
DEVICE void keep_row(const Keep& keep, u32 row) {
    const Step& step = keep.step;
    Keeping& keeping = block_keeping();
    // Requests are made before the survey waits no more, and so before this begins.
    int slot = step.slots[row];
    const Params& params = step.params[slot];
    u32 asks = params.asks;
    if (threadIdx.x == 0) {
        keeping.heat = Heat{params.effective_temperature, params.s, params.filter_s};
        keeping.chain = chain_of(params);
        keeping.mass = 0;
    }
    clear(block_list());
    View<T, false> view(step, row, slot);
    bool lists = asks & ASKS_LIST && !(asks & ASKS_GREEDY) && !(step.flags & STEP_SEARCHES);
    wait_for_previous();
    if (!lists) {
        need_no_help(step);
    }
    Records records(step, row, asks & ASKS_SUMS);
    // Its barrier is that of what is known too.
    Whole whole = whole_of(records, true);
    u32 flags = 0;
    // Whether it is the list that says what is kept, and what it weighs.
    bool listed = false;
    if (whole.first == 0) {
        flags = KEPT_NOTHING;
        if (lists) {
            need_no_help(step);
        }
    } else {
        if (asks & ASKS_DYNAMIC_TEMPERATURE) {
            find_temperature<T>(step, row, slot, whole.first);
            if (threadIdx.x == 0) {
                keeping.heat = block_found().heat;
            }
            // Without it a thread would read the temperature before it is there.
            __syncthreads();
        }
        if (keeping.heat.temperature == 0.0f) {
            flags = KEPT_CERTAIN | KEPT_PREFIX;
        } else {
            listed = lists && keep_listed(step, row, slot, records, view, whole);
            if (!listed) {
                // Without it a thread could write what is known while a slower warp still reads it.
                __syncthreads();
                if (threadIdx.x == 0) {
                    keeping.mass = 0;
                }
                find_kept<T, false>(step, row, slot, whole.first, keeping.heat.filter_s);
                need_no_help(step);
            }
            if (!keep.masks && keeping.mass == 0) {
                listed = false;
                weigh_kept<T>(step, row, slot, keeping.heat.s);
            }
        }
    }
    // The survey filled the row before this began.
    const bool writes = step.filled != nullptr && (listed || flags != 0);
    flags |= writes ? KEPT_WRITTEN : 0;
    if (writes && !(flags & KEPT_NOTHING)) {
        write_kept<T>(keep, row, kept_of(whole.first, flags));
    }
    if (threadIdx.x == 0) {
        keep.kept[row] = kept_of(whole.first, flags);
        if (step.statuses != nullptr) {
            step.statuses[row] = whole.odd | (whole.first == 0 ? STATUS_EMPTY : 0);
        }
    }
}

template <class T>
DEVICE void keep_rows(const Keep& keep) {
    let_next_begin();
    if (blockIdx.x < keep.step.rows) {
        keep_row<T>(keep, blockIdx.x);
    } else {
        wait_for_previous();
        help<View<T, false>>(keep.step);
    }
}

#define KEEP(type, T) \
    KERNEL(keep_##type, KEEP_THREADS, Keep, keep) { keep_rows<T>(keep); }

KEEP(f32, F32)
KEEP(bf16, Bf16)
KEEP(f16, F16)
