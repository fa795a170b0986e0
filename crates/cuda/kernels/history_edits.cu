// history_edits.cu: finds the ids that the end of a history bans or penalises in this step (rules E2 to E4, B1 to B5),
// and the words by which a marked row draws (W1, W2). It stamps the entries of these ids; survey_edited.cu applies
// these edits and all others.
//
// Computes   the counts of the ids in the penalties' window; DRY's penalty of each id; the ids that would complete an
//            n-gram or a bad word; the stop ids of a request with fewer than `min_tokens` output tokens; the last id
//            that would close a section too early; all as stamps in the ids' entries; and the token that the end of a
//            section forces, and the words of a mark, in the request's state
// Never      reads logits; clears a stamp: a stamp holds the number of its step, so later steps ignore it
// Twins      oracle spec/src/edit.rs | CPU cpu/src/history.rs, edit/{dry,bans}.rs | why docs/stages/edit.md
// Shapes     history [length]; entries: a hash table with capacity for every id that may be stamped
// Grid       x = rows; whole warps, up to 512 threads; no dynamic shared memory
// Traffic    in: 4 bytes per id of the history; matches are compared with the history's end, which stays in the cache
// Requires   the former step is complete; rows whose request lacks FEATURE_HISTORY_EDITS return at once
//
//     for each id of the penalties' window: clear its counts
//     for each index j of the penalties' window: count history[j]
//     reach = ids back to the nearest breaker, at most 64 more than DRY's allowed length
//     for each index j: n = how many ids before j equal those at the history's end
//                       if n >= ngram - 1:    ban history[j], if that n-gram counts and the id is not exempt
//                       n = how many of these n lie in DRY's window
//                       if n >= allowed:      stamp history[j] with DRY's penalty for min(n, reach) ids
//     for each bad word: if its ids but the last equal the history's end: ban its last id
//     if the output is shorter than min_tokens: ban the stop ids
//     move the place in the section and in loops on; ban the last id that closes it, or force the next one of an end
//     if the watermark's context is whole and did not come before: the row's words = key and context, mixed

#include "math/edits.cuh"
#include "math/num.cuh"
#include "math/sections.cuh"
#include "warp/reduce.cuh"

// How many ids directly before index j equal those at the history's end, `most` at most.
DEVICE u32 match_length(const u32* history, u32 length, u32 j, u32 most) {
    u32 n = 0, end = most < j ? most : j;
    while (n < end && history[j - 1 - n] == history[length - 1 - n]) {
        n++;
    }
    return n;
}

DEVICE bool contains_id(const u32* ids, u32 count, u32 id) {
    for (u32 i = 0; i < count; i++) {
        if (ids[i] == id) {
            return true;
        }
    }
    return false;
}

// DRY's penalty for a repeat of `length` ids, which must be at least the allowed length. It never falls as the length
// rises, and is constant from 64 ids beyond the allowed length on.
DEVICE float dry_penalty(const Params& params, u32 length) {
    u32 steps = length - params.dry_allowed_length;
    float power = 1.0f;
    for (u32 i = 0; i < steps && i < 64; i++) {
        power *= params.dry_base;
    }
    return params.dry_multiplier * power;
}

// The index of the first id of a window of the last ids, of all if `window` is 0.
DEVICE u32 window_start(u32 length, u32 window) { return window != 0 && window < length ? length - window : 0; }

// The indices at which the n-grams end that are not repeated: they lie whole in their scope and in their window (E4).
struct NgramEnds {
    u32 first;
    u32 end;

    DEVICE_MEMBER NgramEnds(const Params& params, const State& state)
        : first(window_start(state.length, params.no_repeat_ngram_window)), end(state.length) {
        if (params.no_repeat_ngram_scope == SCOPE_OUTPUT && first < state.prompt_length) {
            first = state.prompt_length;
        } else if (params.no_repeat_ngram_scope == SCOPE_PROMPT) {
            end = state.prompt_length;
        }
        first += params.no_repeat_ngram - 1;
    }

    DEVICE_MEMBER bool hold(u32 j) const { return j >= first && j < end; }
};

// Writes the stamps of one request in one step.
struct EditStamps {
    const Request& request;
    u32 step;
    u32 vocab;

    // Ids outside the vocabulary have no entry (E5).
    DEVICE_MEMBER void ban(u32 id) const {
        if (id < vocab) {
            find_entry(request.entries, request.entries_mask, id)->ban_step = step;
        }
    }

    DEVICE_MEMBER void clear_counts(u32 id) const {
        if (id < vocab) {
            TokenEntry* entry = find_entry(request.entries, request.entries_mask, id);
            entry->prompt_count = entry->output_count = 0;
            entry->count_step = step;
        }
    }

    DEVICE_MEMBER void count(u32 id, bool is_prompt) const {
        if (id < vocab) {
            TokenEntry* entry = find_entry(request.entries, request.entries_mask, id);
            atomicAdd(is_prompt ? &entry->prompt_count : &entry->output_count, 1u);
        }
    }

    DEVICE_MEMBER void dry(u32 id, float penalty) const {
        if (id < vocab) {
            TokenEntry* entry = find_entry(request.entries, request.entries_mask, id);
            // The step is the stamp's high word, so each stamp of this step exceeds all older ones. Among the stamps of
            // this step the longest repeat has the largest penalty.
            atomicMax(&entry->dry_stamp, ((u64)step << 32) | float_bits(penalty));
        }
    }
};

// Whether bans, stamps among them, or the bitmask forbid an id of the vocabulary.
DEVICE bool is_forbidden(const Step& step, u32 row, int slot, u32 features, const EditStamps& stamps, u32 id) {
    const EditMasks masks(step, row, slot, features);
    const Request& request = stamps.request;
    return !(masks.allowed_word(id / 32) >> id % 32 & 1) ||
           (features & FEATURE_EDITS && find_entry(request.entries, request.entries_mask, id)->ban_step == stamps.step);
}

// Whether the last of `count` tokens are a loop (B4): each warp compares for periods of its own. By all threads of a
// block.
DEVICE bool repeats(const SectionLists& lists, const u32* tokens, u32 count) {
    bool is_loop = false;
    for (u32 period = lists.loop_min_period + warp_id(); period <= lists.loop_max_period && !is_loop;
         period += warp_count()) {
        const u32 copies = period * lists.loop_min_copies,
                  least = copies < lists.loop_min_tokens ? lists.loop_min_tokens : copies;
        if (count < least) {
            break;
        }
        const u32* tail = tokens + (count - least);
        is_loop = true;
        for (u32 first = period; first < least && is_loop; first += 32) {
            const u32 i = first + lane_id();
            is_loop = __all_sync(FULL_MASK, i >= least || tail[i] == tail[i - period]) != 0;
        }
    }
    return __syncthreads_or(is_loop) != 0;
}

// Moves a state's place on to the end of its history: the tokens that came since the last step. By all threads of a
// block, which hold the same state.
DEVICE void follow_section(const SectionLists& lists, const u32* history, State& state) {
    while (state.section_length < state.length) {
        state.section_length++;
        if (section_changes(lists, history, state)) {
            state.section_is_open ^= 1;
            state.section_start = state.section_length;
        }
        const u32 end = state.section_length, output = end > state.prompt_length ? end - state.prompt_length : 0;
        if (lists.loop_every == 0 || output == 0 || output % lists.loop_every != 0 || is_spent(lists, state) ||
            (lists.loop_closes && !state.section_is_open)) {
            continue;
        }
        const u32 begin = lists.loop_closes ? state.section_start : state.loop_end,
                  first = begin < state.prompt_length ? state.prompt_length : begin;
        if (first <= end && repeats(lists, history + first, end - first)) {
            state.loop_end = end + lists.loop_end_count;
        }
    }
}

// Whether the context of a watermark lies in its scope and did not come before (W2). By all threads of a block.
DEVICE bool has_fresh_context(const u32* watermark, const u32* history, const State& state) {
    const u32 first = watermark[WATERMARK_OF_OUTPUT] ? state.prompt_length : 0, count = watermark[WATERMARK_CONTEXT],
              window = watermark[WATERMARK_WINDOW], length = state.length - first;
    if (length < count) {
        return false;
    }
    // The rows of which each has a context, and those among them that are looked at.
    const u32 rows = length - count, looked_at = window == 0 || rows < window ? rows : window;
    const u32* ids = history + first;
    const u32 last = ids[length - 1];
    bool came = false;
#pragma unroll 4
    for (u32 row = length - looked_at + threadIdx.x; row < length; row += blockDim.x) {
        if (ids[row - 1] == last) {
            came = came || match_length(ids, length, row, count) == count;
        }
    }
    return __syncthreads_or(came) == 0;
}

// Writes the words of a marked row's race into its state (W1); by one thread.
DEVICE void find_mark(const u32* watermark, const u32* history, State& state) {
    PhiloxWords mark{{watermark[0], watermark[1], watermark[2], watermark[3]}};
    for (u32 i = watermark[WATERMARK_CONTEXT]; i > 0; i--) {
        const u64 key = history[state.length - i] | (u64)TAG_WATERMARK << 32;
        const PhiloxWords mixed = philox(key, mark.w[0], mark.w[1], mark.w[2], mark.w[3]);
        for (u32 j = 0; j < 4; j++) {
            mark.w[j] ^= mixed.w[j];
        }
    }
    state.mark_seed = mark.w[0] | (u64)mark.w[1] << 32;
    state.mark_position = mark.w[2];
    state.mark_draw = mark.w[3];
    state.history_row |= STATUS_MARKED;
}

// Finds what the section and the loop of a row's request ban or force, from the place where its history ends; by one
// thread, after all stamps.
DEVICE void find_section(const Step& step, u32 row, int slot, u32 features, const SectionLists& lists, State& state,
                         const EditStamps& stamps) {
    const u32* tokens = stamps.request.history + state.section_start;
    const u32 count = state.length - state.section_start;
    const bool spent = is_spent(lists, state);
    if (state.section_is_open && !spent && count < lists.min &&
        ends_with(tokens, count, lists.close, lists.close_count - 1)) {
        stamps.ban(lists.close[lists.close_count - 1]);
    }
    u32 id_plus_1 = 0, status = 0;
    if (state.loop_end > state.length) {
        id_plus_1 = lists.loop_end[lists.loop_end_count - (state.loop_end - state.length)] + 1;
        status = STATUS_LOOP;
    } else {
        const bool is_found = lists.loop_end_count == 0 && !lists.loop_closes && state.loop_end == state.length;
        status = (is_found && state.loop_end > 0) || has_looped(lists, state) ? STATUS_LOOP : 0;
        if (spent) {
            id_plus_1 = lists.end[begun_end(lists, tokens, count)] + 1;
            status |= STATUS_SECTION;
        }
    }
    if (id_plus_1 != 0 && is_forbidden(step, row, slot, features, stamps, id_plus_1 - 1)) {
        status |= STATUS_FORBIDDEN;
    }
    static_assert(MAX_TILES * TILE < 1u << 22 &&
                      (STATUS_SECTION | STATUS_LOOP | STATUS_FORBIDDEN | STATUS_MARKED) < 1u << 10,
                  "an id, counted from 1, and the status share a word");
    state.history_row = id_plus_1 << 10 | status;
}

KERNEL(history_edits, HISTORY_EDITS_THREADS, Step, step) {
    // The kernel before may make the rows' requests. The survey waits for this one before it reads slots, requests or
    // stamps; its logits are complete once the kernels before this one are.
    grid_dependency_wait();
    trigger_dependents();
    const int slot = step.slots[blockIdx.x], source = slot < 0 ? 0 : slot;
    const Params& params = step.params[source];
    const Request& request = step.requests[source];
    // These loads are in flight together, before the first test.
    const u32 features = params.features;
    State state = step.states[source];
    const u32 *history = request.history, *watermark = request.watermark;
    if (slot < 0 || !(features & FEATURE_HISTORY_EDITS)) {
        return;
    }
    u32 length = state.length, allowed = params.dry_allowed_length;
    EditStamps stamps{request, state.step, step.vocab};

    if (features & FEATURE_PENALTY_WINDOW) {
        const u32 start = window_start(length, params.penalty_window);
        for (u32 j = start + threadIdx.x; j < length; j += blockDim.x) {
            stamps.clear_counts(history[j]);
        }
        // WAW on the counts: one thread clears the count of an id, another adds to it.
        __syncthreads();
        for (u32 j = start + threadIdx.x; j < length; j += blockDim.x) {
            stamps.count(history[j], j < state.prompt_length);
        }
    }

    // How many ids back DRY compares: not across a breaker, and at most 64 ids beyond the allowed length, because
    // longer repeats have the same penalty.
    __shared__ u32 unbroken;
    const u32 dry_start = window_start(length, params.dry_window), dry_length = length - dry_start;
    bool dry = params.dry_multiplier > 0.0f && allowed < dry_length;
    u32 reach = !dry ? 0 : dry_length - allowed < 64 ? dry_length : allowed + 64;
    if (threadIdx.x == 0) {
        unbroken = reach;
    }
    // WAW on unbroken: thread 0 wrote its initial value, threads that find a breaker lower it.
    __syncthreads();
    for (u32 i = threadIdx.x; i < reach; i += blockDim.x) {
        if (contains_id(request.breakers, request.breaker_count, history[length - 1 - i])) {
            atomicMin(&unbroken, i);
            break;
        }
    }
    // RAW on unbroken: threads that found a breaker lowered it, all threads read it.
    __syncthreads();
    u32 longest = unbroken;
    dry = dry && longest >= allowed;

    u32 ngram = params.no_repeat_ngram;
    bool has_ngram = ngram > 0 && ngram <= length;
    const NgramEnds ends(params, state);
    if (dry || has_ngram) {
        u32 most = dry ? longest : 0;
        most = has_ngram && ngram - 1 > most ? ngram - 1 : most;
        const u32 begin = !has_ngram || (dry && dry_start < ends.first) ? dry_start : ends.first;
        for (u32 j = begin + threadIdx.x; j < length; j += blockDim.x) {
            u32 same = match_length(history, length, j, most);
            if (has_ngram && same >= ngram - 1 && ends.hold(j) &&
                !contains_id(request.no_repeat_ngram_exempt_ids, params.no_repeat_ngram_exempt_count, history[j])) {
                stamps.ban(history[j]);
            }
            same = j < dry_start ? 0 : same < j - dry_start ? same : j - dry_start;
            if (dry && same >= allowed) {
                stamps.dry(history[j], dry_penalty(params, same < longest ? same : longest));
            }
        }
    }

    for (u32 i = threadIdx.x; i < request.bad_word_count; i += blockDim.x) {
        u32 start = i == 0 ? 0 : request.bad_word_ends[i - 1], last = request.bad_word_ends[i] - 1;
        u32 before = last - start, same = 0;
        while (same < before && same < length && request.bad_words[last - 1 - same] == history[length - 1 - same]) {
            same++;
        }
        if (same == before) {
            stamps.ban(request.bad_words[last]);
        }
    }
    if (length - state.prompt_length < params.min_tokens) {
        for (u32 i = threadIdx.x; i < request.stop_count; i += blockDim.x) {
            stamps.ban(request.stop_ids[i]);
        }
    }
    if (!(features & (FEATURE_SECTION | FEATURE_WATERMARK))) {
        return;
    }
    state.history_row = 0;
    const bool is_fresh = features & FEATURE_WATERMARK && has_fresh_context(watermark, history, state);
    if (features & FEATURE_SECTION) {
        follow_section(SectionLists(request.section), history, state);
    }
    // RAW on the stamps: any thread banned ids, thread 0 looks one up. WAR on the state: all threads read it.
    __syncthreads();
    if (threadIdx.x == 0) {
        if (features & FEATURE_SECTION) {
            find_section(step, blockIdx.x, slot, features, SectionLists(request.section), state, stamps);
        }
        if (is_fresh && state.history_row >> 10 == 0) {
            find_mark(watermark, history, state);
        }
        step.states[slot] = state;
    }
}
