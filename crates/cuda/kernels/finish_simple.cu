// finish_simple.cu: finishes rows that need only a token: greedy, unfiltered, or with min-p as the only filter.
//
// Computes   a row's token, status and temperature, as finish_general.cu would; empty logprobs; the request's next
//            state
// Never      reads a logit outside the tiles that the race opens
// Twins      finish_general.cu for every request, finish_candidates.cu for candidate lists; variant.rs chooses
// Shapes     records [rows, tiles]; logits [rows, vocab] of T; outputs: the sections of Layout (spec/src/layout.rs)
// Grid       x = row; whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream; rows without edits, masks, logprobs and kept sets;
//            no filter but min-p
//
// This kernel is separate from finish_general.cu because its time is little more than the latency of one warp's work. A
// block begins while the survey still runs, keeps its records in registers, and seldom reads a logit. Each stage is a
// chain of dependent instructions, so their number decides the time. Loops of one or two rounds are therefore not
// unrolled.
//
//     read the request; wait for the survey
//     padding: NO_TOKEN | forced: that token | empty: NO_TOKEN | greedy: the row's first token
//     otherwise: one reduction gives the row's first logit, the leading token, and a bound of all other scores
//                if the leader exceeds the bound, it is the token; otherwise the open tiles are searched
//     write the results, advance the request

#include "block/bounded_race.cuh"
#include "stage/general_draw.cuh"
#include "stage/logprobs.cuh"

// One thread per tile in vocabularies of up to 262144 tokens.
// Draws a row's token from all its tokens or from those that min-p keeps, and sets `status` to the row's status bits.
// Returns NO_TOKEN if the row is empty or its token is forced.
template <class RecordKind, class V>
DEVICE int race_row(const RowRecords& records, const V& view, const RngStream& rng, const Scales& scales, bool is_min_p,
                    float threshold, float offset, bool is_forced, u32& status) {
    WarpLeader warp_leader = reduce_warp_leaders<RecordKind>(records, scales.log2e_over_t);
    RowSummary summary = summarise_row(warp_leader);
    status = summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
    if (summary.first_key == 0 || is_forced) {
        return NO_TOKEN;
    }
    float first = key_logit(summary.first_key);
    const Origin origin(first);
    Cut cut = is_min_p ? min_p_cut(first, scales.filter_log2e_over_t, threshold, offset) : full_cut();
    u64 leader = best_leader(warp_leader, cut, origin, scales.log2e_over_t);
    if (leader_is_certain(warp_leader, origin, scales.log2e_over_t, leader)) {
        return (int)key_id(leader);
    }
    return (int)race_bounded<RecordKind>(records, view, rng, cut, origin, scales.log2e_over_t, leader);
}

template <class T, class RecordKind>
DEVICE void finish_simple(const Step& step) {
    // A dependent kernel may begin now. The one that writes the next requests waits for this grid before it does.
    trigger_dependents();
    u32 row = blockIdx.x;
    // The survey does not write what is read here, so these loads overlap with it.
    int slot = step.slots[row], forced = step.forced[row];
    const Params& params = step.params[slot < 0 ? 0 : slot];
    const State state = step.states[slot < 0 ? 0 : slot];
    RngStream rng{params.seed, state.position, params.draw};
    u32 features = params.features, filter = params.filter_chain;
    // The division inside overlaps with the survey; `opaque` keeps the compiler from moving it behind the wait.
    float threshold = min_p_threshold(params),
          offset = RecordKind::MIN_P ? opaque(min_p_offset(threshold, params.filter_log2e_over_t)) : 0.0f;
    RowResult result{forced, 0, params.temperature, state.mirostat_mu};
    Scales scales{params.effective_temperature, params.log2e_over_t, params.filter_log2e_over_t};
    EditedRow<T, false> view(step, row, slot);
    if (slot >= 0) {
        load_request(step, slot, features);
        // Before the wait: kernels and copies from before this step are done, so nothing reads these outputs any more.
        write_no_logprobs(step, row);
    }
    grid_dependency_wait();
    if (slot < 0) {
        write_padding(step, row);
        return;
    }

    RowRecords records(step, row, false);
    int token;
    if (RecordKind::GREEDY && features & FEATURE_GREEDY) {
        RowSummary summary = summarise_row(records, true);
        result.status = summary.nonfinite_flags | (summary.first_key == 0 ? STATUS_EMPTY : 0);
        token = (int)key_id(summary.first_key);
    } else {
        bool is_min_p = RecordKind::MIN_P && filter == FILTER_MIN_P;
        token =
            race_row<RecordKind>(records, view, rng, scales, is_min_p, threshold, offset, forced >= 0, result.status);
    }
    if (!(result.status & STATUS_EMPTY)) {
        result.temperature = scales.temperature;
        // A forced token replaces the drawn one.
        result.token = forced >= 0 ? forced : token;
    }
    if (threadIdx.x == 0) {
        finish_row(step, row, slot, features, state, result);
    }
}

#if GUMBALL_PROBABILITIES
#define FINISH_SIMPLE(type, T) \
    KERNEL(finish_simple_##type, FINISH_SIMPLE_THREADS, Step, step) { finish_simple<T, SurveyRecords>(step); }
#else
#define FINISH_SIMPLE(type, T) \
    KERNEL(finish_simple_##type, FINISH_SIMPLE_THREADS, Step, step) { finish_simple<T, SurveyRecords>(step); } \
    KERNEL(finish_survey_draw_##type, FINISH_SIMPLE_THREADS, Step, step) { finish_simple<T, SurveyDrawRecords>(step); }
#endif

FINISH_SIMPLE(f32, F32)
FINISH_SIMPLE(bf16, Bf16)
FINISH_SIMPLE(f16, F16)
