// find_cut.cu: finds the cut that temperature and filters leave of each row that is to be written, and its mass.
//
// Computes   per row: its first key, scale, cut, the mass inside and the status. If the survey pre-filled the row, and
//            the candidate list or the first key decides, also the kept tokens' numbers, as write_rows.cu writes them
// Never      reads a row in order to write it; draws a random word other than XTC's
// Twins      oracle spec/src/outputs.rs | CPU cpu/src/outputs.rs | why docs/probabilities.md
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; cuts [rows]
// Grid       x = rows, or rows * blocks of a cluster; whole warps, up to 1024 threads; no dynamic shared memory
// Traffic    in: 16 bytes per tile; logits as filter.cuh and candidate_filter.cuh state; the tiles that hold kept
//            tokens once more, if no list gives the mass
// Requires   the survey of the same rows before it on the stream; requests without edits
//
// The blocks of a row search it together (row_blocks.cuh); the first one does all the rest.
//
//     a row without a slot is not written; its content does not matter
//     wait for the survey; summarise the row's records
//     if no token is left:                    nothing is kept
//     else if the temperature is 0:           the first token is kept
//     else if the candidate list is certain:  the list gives the cut, and mostly the mass
//     else:                                   filter.cuh searches the row for the cut
//     if probabilities are written and the mass is still unknown: compute it from the row
//     if the survey pre-filled the row, and neither search nor mass read it: write the kept tokens
//     store the cut for write_rows.cu

#include "stage/written_probability.cuh"
#include "stage/candidate_filter.cuh"
#include "stage/kept_set.cuh"

// The shared memory of a block that finds a row's cut.
struct CutStorage {
    SummaryStorage summary;
    FilterStorage filter;
    Scales scales;
    FilterChain filter_chain;
    // From the candidate list: the mass of the kept tokens, 0 if unknown, and their range in the list.
    u64 mass;
    ListRange range;
    bool is_certain;
};

// Applies the filters to the row's candidate list and stores the kept set in `storage.filter.kept`. Returns whether the
// list decides for certain; otherwise the row must be searched.
template <class V>
DEVICE bool find_cut_in_candidates(CutStorage& storage, const Step& step, int slot, const RowRecords& records,
                                   const V& view, const RowSummary& summary) {
    u64 mass;
    if (!list_candidates<false>(storage.filter, step, records, view, storage.filter_chain, RngStream{0, 0, 0}, summary,
                                storage.scales.filter_log2e_over_t, mass)) {
        return false;
    }
    if (warp_id() == 0) {
        const CandidateList& list = storage.filter.search.candidates;
        const LaneCandidates lane_candidates(list);
        ListRange range =
            filter_candidates(list, lane_candidates, storage.filter_chain, storage.scales.filter_log2e_over_t, mass,
                              [&]() INLINE { return xtc_acts(step.params[slot], step.states[slot]); });
        if (lane_id() == 0) {
            u64 from = list.ordered[range.start], to = list.ordered[range.end - 1];
            storage.filter.kept = GivenSet{Cut{from, to}, key_logit(from), range.start == 0};
            // The list has masses of prefixes only, at the scale of the filters.
            storage.mass = range.start == 0 && storage.scales.log2e_over_t == storage.scales.filter_log2e_over_t
                               ? list.masses[range.end - 1]
                               : 0;
            storage.range = range;
            storage.is_certain = range.is_certain;
        }
    }
    // RAW on storage: warp 0 wrote them, all warps read them.
    __syncthreads();
    return storage.is_certain;
}

// Computes the mass of the kept set from the row, by all blocks of the row, or by the first one alone if only that
// knows the set. Not inlined, so that it does not raise the callers' registers.
template <class T>
DEVICE_NOINLINE void measure_cut_mass(const Step& step, u32 row, int slot, float log2e_over_t, bool is_alone,
                                      CutStorage& storage) {
    RowContext<T, false> context(step, row, slot);
    RowReduceStorage& reduce = storage.filter.search.reduce;
    const RowBlocks blocks = is_alone ? RowBlocks::alone(reduce) : RowBlocks::of(reduce);
    const GivenSet kept = storage.filter.kept;
    const Maxima maxima = maxima_of_set(step, row, blocks, context.view, kept);
    u64 mass = mass_of_set(blocks, context.view, maxima, kept, kept.cut, log2e_over_t).mass;
    if (threadIdx.x == 0) {
        storage.mass = mass;
    }
}

// Assembles a row's cut from shared memory.
DEVICE RowCut make_row_cut(const CutStorage& storage, u64 first, u32 flags) {
    RowCut cut{first, first, storage.mass, storage.scales.log2e_over_t, flags};
    if (!(flags & (CUT_EMPTY | CUT_FIRST_ONLY))) {
        const GivenSet& found = storage.filter.kept;
        cut.first_key = found.cut.first;
        cut.last_key = found.cut.last;
        cut.flags |= found.is_prefix ? CUT_IS_PREFIX : 0;
    }
    return cut;
}

// Writes a kept token's number into a pre-filled row.
template <class T>
DEVICE void write_token(const FindCut& args, u32 row, const RowCut& cut, u64 key) {
    const Step& step = args.step;
    float z = key_logit(key), p = args.mask_only ? z : probability_of_key(z, cut);
    char* out = (char*)step.prefill_out + row * step.prefill_stride_bytes;
    if constexpr (sizeof(typename T::Element) == 2) {
        if (step.prefill_element_bytes == 2) {
            store_one<T>((unsigned short*)out + key_id(key), p);
            return;
        }
    }
    store_one<T>((float*)out + key_id(key), p);
}

// Writes all kept tokens into a pre-filled row: the tokens of the list's range, or the first token alone.
template <class T>
DEVICE void write_kept_tokens(const CutStorage& storage, const FindCut& args, u32 row, const RowCut& cut) {
    if (cut.flags & CUT_FIRST_ONLY) {
        if (threadIdx.x == 0) {
            write_token<T>(args, row, cut, cut.first_key);
        }
        return;
    }
    const ListRange& range = storage.range;
#pragma unroll 1
    for (u32 i = range.start + threadIdx.x; i < range.end; i += blockDim.x) {
        write_token<T>(args, row, cut, storage.filter.search.candidates.ordered[i]);
    }
}

template <class T>
DEVICE void find_row_cut(const FindCut& args, u32 row, CutStorage& storage) {
    const Step& step = args.step;
    // The survey triggers this kernel only after it has waited for params_from_columns.cu, so requests are complete.
    int slot = step.slots[row];
    if (slot < 0) {
        grid_dependency_wait();
        if (threadIdx.x == 0) {
            args.cuts[row] = RowCut{0, 0, 0, 0.0f, CUT_WRITTEN};
        }
        return;
    }
    const Params& params = step.params[slot];
    u32 features = params.features;
    if (threadIdx.x == 0) {
        storage.scales = Scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
        storage.filter_chain = filter_chain_of(params);
        storage.mass = 0;
    }
    clear(storage.filter.search.candidates);
    EditedRow<T, false> view(step, row, slot);
    bool uses_candidates =
        features & FEATURE_CANDIDATES && !(features & FEATURE_GREEDY) && !(step.flags & STEP_NO_CANDIDATES);
    RowReduceStorage& reduce = storage.filter.search.reduce;
    const bool is_first = cluster_ctarank() == 0;
    u32 calls = 0;
    RowBlocks::begin(reduce);
    grid_dependency_wait();
    RowRecords records(step, row, features & FEATURE_FILTER_SUMS);
    // The barrier inside also serves the inputs and the cleared list: thread 0 wrote them, all threads read them (RAW).
    RowSummary summary = summarise_row(storage.summary, records, true);
    u32 flags = 0;
    // Whether the candidate list gives the kept tokens and their mass.
    bool from_candidates = false;
    if (summary.first_key == 0) {
        flags = CUT_EMPTY;
    } else {
        if (features & FEATURE_DYNAMIC_TEMPERATURE) {
            RowBlocks::of(reduce).join(++calls);
            find_temperature<T, false>(step, row, slot, summary.first_key, storage.filter);
            if (threadIdx.x == 0) {
                storage.scales = storage.filter.scales;
            }
            // RAW on scales: thread 0 wrote it, all threads read it.
            __syncthreads();
        }
        if (storage.scales.temperature == 0.0f) {
            flags = CUT_FIRST_ONLY | CUT_IS_PREFIX;
        } else {
            from_candidates =
                uses_candidates && is_first && find_cut_in_candidates(storage, step, slot, records, view, summary);
            if (!from_candidates && !RowBlocks::of(reduce).join(++calls)) {
                return;
            }
            if (!from_candidates) {
                // WAR on storage: slower warps may still read it, thread 0 resets its mass.
                __syncthreads();
                if (threadIdx.x == 0) {
                    storage.mass = 0;
                }
                find_kept_set<T, false>(step, row, slot, summary.first_key, step.params[slot].filter_chain,
                                        storage.scales.filter_log2e_over_t, storage.filter);
            }
            if (!args.mask_only && storage.mass == 0) {
                measure_cut_mass<T>(step, row, slot, storage.scales.log2e_over_t, from_candidates, storage);
                from_candidates = false;
            }
        }
    }
    if (!is_first) {
        return;
    }
    // The survey is complete and has pre-filled the row.
    const bool writes = step.prefill_out != nullptr && (from_candidates || flags != 0);
    flags |= writes ? CUT_WRITTEN : 0;
    if (writes && !(flags & CUT_EMPTY)) {
        write_kept_tokens<T>(storage, args, row, make_row_cut(storage, summary.first_key, flags));
    }
    if (threadIdx.x == 0) {
        args.cuts[row] = make_row_cut(storage, summary.first_key, flags);
        if (step.statuses != nullptr) {
            step.statuses[row] = summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
        }
    }
}

template <class T>
DEVICE void find_cuts(const FindCut& args) {
    __shared__ CutStorage storage;
    trigger_dependents();
    find_row_cut<T>(args, blockIdx.x / cluster_nctarank(), storage);
}

#define FIND_CUT(type, T) \
    KERNEL(find_cut_##type, FIND_CUT_THREADS, FindCut, args) { find_cuts<T>(args); }

FOR_EACH_TYPE(FIND_CUT)
