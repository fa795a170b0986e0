// row_result.cuh: writes a row's results, except logprobs and the kept set, and advances its request.
//
// Computes   the row's entries of the outputs token, status, temperature and mu; the request's next state, history and
//            counts
// Requires   outputs with the sections that Layout defines (spec/src/layout.rs)
#pragma once

#include "math/edits.cuh"

// A part of a kernel's shared memory, if it needs that.
template <bool NEEDED, class Part>
struct PartIf : Part {};
template <class Part>
struct PartIf<false, Part> {};

// The results of a row.
struct RowResult {
    // NO_TOKEN if the row has none.
    int token;
    // Bits of Status.
    u32 status;
    float temperature;
    float mirostat_mu;
};

// Writes a row's results; by one thread.
DEVICE void write_result(const Step& step, u32 row, const RowResult& result) {
    u32* out = step.outputs + row;
    out[(u64)OUTPUT_TOKENS * step.rows] = (u32)result.token;
    out[(u64)OUTPUT_STATUSES * step.rows] = result.status;
    out[(u64)OUTPUT_TEMPERATURES * step.rows] = float_bits(result.temperature);
    out[(u64)OUTPUT_MIROSTAT_MU * step.rows] = float_bits(result.mirostat_mu);
    if (step.tokens != nullptr) {
        int token = result.token < 0 && step.flags & STEP_ZERO_FOR_NONE ? 0 : result.token;
        if (step.flags & STEP_TOKENS_I64) {
            ((i64*)step.tokens)[row] = token;
        } else {
            ((int*)step.tokens)[row] = token;
        }
    }
    if (step.statuses != nullptr) {
        step.statuses[row] = result.status;
    }
}

// How many words a row has in the sections of the outputs. They are numbered from 0: one of each section that has a
// word per row, then the top tokens' ids and logprobs, then the logprobs and ranks of the ids that the request names.
DEVICE u32 output_words(const Step& step) { return OUTPUT_SECTIONS + 2 * (step.top_n_width + step.ids_width); }

// A section of the outputs: the number of its first word in a row, and how many words a row has in it.
struct RowSection {
    u32 start, width;

    // The section of a row's word. Behind the sections' words a verification has more, each a section of its own.
    DEVICE_MEMBER RowSection(const Step& step, u32 word) : start(word), width(1) {
        if (word >= OUTPUT_SECTIONS && word < output_words(step)) {
            const u32 ids = OUTPUT_SECTIONS + 2 * step.top_n_width;
            start = word < ids ? OUTPUT_SECTIONS : ids;
            width = word < ids ? step.top_n_width : step.ids_width;
            start += word - start >= width ? width : 0;
        }
    }

    // Returns where a column of a row lies in the outputs of `rows` rows.
    DEVICE_MEMBER u64 index(u64 rows, u32 row, u32 column) const { return start * rows + (u64)row * width + column; }
};

// Returns a word of the outputs of padding.
DEVICE u32 padding_word(const Step& step, u32 word) {
    const u32 top_n = step.top_n_width, top_logprobs = OUTPUT_SECTIONS + top_n, ids = top_logprobs + top_n;
    if (word == OUTPUT_TOKENS || (word >= OUTPUT_SECTIONS && word < top_logprobs)) {
        return (u32)NO_TOKEN;
    }
    bool is_logprob = word == OUTPUT_LOGPROBS || word == OUTPUT_SECOND_LOGPROBS ||
                      (word >= top_logprobs && word < ids + step.ids_width);
    return is_logprob ? float_bits(-INF_F32) : 0;
}

// Whether a request has lists that a finish kernel reads: edits, token counts or a history.
DEVICE bool has_lists(u32 features) {
    return features & (FEATURE_EDITS | FEATURE_TOKEN_COUNTS | FEATURE_HISTORY_EDITS | FEATURE_KEEP_HISTORY);
}

// Copies a request's lists to shared memory if it has any, so that nothing after the wait depends on a further load
// from global memory. A barrier must follow before they are read.
DEVICE void load_request(Request& to, const Step& step, int slot, u32 features) {
    if (has_lists(features) && threadIdx.x < sizeof(Request) / 4) {
        ((u32*)&to)[threadIdx.x] = ((const u32*)(step.requests + slot))[threadIdx.x];
    }
}

// Advances a request by the token that it emitted: position, history and the token's count; by one thread.
DEVICE void advance_request(const Step& step, const Request& request, int slot, u32 features, const State& state,
                            u32 id) {
    State* next = step.states + slot;
    const bool has_history = features & (FEATURE_TOKEN_COUNTS | FEATURE_HISTORY_EDITS | FEATURE_KEEP_HISTORY);
    // The host counts steps and refuses those beyond the capacity. This test keeps the write in bounds, and later reads
    // up to the length, even if that count is wrong.
    const bool is_full = has_history && state.length >= request.history_capacity;
    next->position = state.position + 1;
    next->length = state.length + (is_full ? 0 : 1);
    next->step = state.step + 1;
    if (!has_history || is_full) {
        return;
    }
    request.history[state.length] = id;
    if (!(features & FEATURE_TOKEN_COUNTS)) {
        return;
    }
    u32 index = home_index(id, request.entries_mask);
    do {
        TokenEntry* entry = request.entries + index;
        // One 16-byte load reads the id and its counts, so that the row waits for memory once.
        U32x4 head = *(const U32x4*)entry;
        if (head.word[0] == id + 1) {
            entry->output_count = head.word[2] + 1;
            return;
        }
        if (head.word[0] == 0) {
            entry->id_plus_1 = id + 1;
            entry->output_count = 1;
            atomicOr(request.touched + id / 32, 1u << (id % 32));
            return;
        }
        index = (index + 1) & request.entries_mask;
    } while (index != home_index(id, request.entries_mask));
}

// Whether a row advances its request: it has a token, and the step is not one whose rows stay where they are.
DEVICE bool advances(const Step& step, int token) {
    return token != NO_TOKEN && !(step.flags & (STEP_KNOWN_TOKENS | STEP_NO_ADVANCE));
}
