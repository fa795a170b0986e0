// sections.cuh: where a history stands in the section and the loops of its request, and the token that this forces
// (rules B1 to B5).
//
// Computes   what `history_edits` moves on and asks: whether a section begins, is spent or is over; the place after a
//            shorter history; the forced token of a row, and its status
// Never      looks at ids in front of a section
// Twins      oracle spec/src/section.rs | CPU cpu/src/section.rs
// Requires   FEATURE_SECTION
#pragma once

#include "abi/step.cuh"

// The lists and the numbers of a section and of loops.
struct SectionLists {
    u32 budget;
    u32 min;
    u32 open_count;
    u32 close_count;
    u32 end_count;
    u32 loop_every;
    u32 loop_min_period;
    u32 loop_max_period;
    u32 loop_min_copies;
    u32 loop_min_tokens;
    u32 loop_closes;
    u32 loop_end_count;
    const u32* open;
    const u32* close;
    const u32* end;
    const u32* loop_end;

    DEVICE_MEMBER explicit SectionLists(const u32* words)
        : budget(words[SECTION_BUDGET]), min(words[SECTION_MIN]), open_count(words[SECTION_OPEN_COUNT]),
          close_count(words[SECTION_CLOSE_COUNT]), end_count(words[SECTION_END_COUNT]),
          loop_every(words[SECTION_LOOP_EVERY]), loop_min_period(words[SECTION_LOOP_MIN_PERIOD]),
          loop_max_period(words[SECTION_LOOP_MAX_PERIOD]), loop_min_copies(words[SECTION_LOOP_MIN_COPIES]),
          loop_min_tokens(words[SECTION_LOOP_MIN_TOKENS]), loop_closes(words[SECTION_LOOP_CLOSES]),
          loop_end_count(words[SECTION_LOOP_END_COUNT]), open(words + SECTION_IDS), close(open + open_count),
          end(close + close_count), loop_end(end + end_count) {}

    // Whether there is one section alone, which begins where the output does.
    DEVICE_MEMBER bool comes_once() const { return close_count > 0 && open_count == 0; }
};

// Whether the last of `count` tokens are the `length` ids of a list.
DEVICE bool ends_with(const u32* tokens, u32 count, const u32* list, u32 length) {
    if (count < length) {
        return false;
    }
    for (u32 i = 1; i <= length; i++) {
        if (tokens[count - i] != list[length - i]) {
            return false;
        }
    }
    return true;
}

// The most ids of a section's end, less than all, that its tokens end with.
DEVICE u32 begun_end(const SectionLists& lists, const u32* tokens, u32 count) {
    u32 begun = lists.end_count - 1;
    while (begun > 0 && !ends_with(tokens, count, lists.end, begun)) {
        begun--;
    }
    return begun;
}

// Whether the section that a place is in is to be closed because of a loop in it.
DEVICE bool has_looped(const SectionLists& lists, const State& state) {
    return lists.loop_closes && state.section_is_open && state.loop_end > state.section_start;
}

// Whether the section that a place is in is spent.
DEVICE bool is_spent(const SectionLists& lists, const State& state) {
    return state.section_is_open &&
           (has_looped(lists, state) || state.section_length - state.section_start >= lists.budget);
}

// Whether a section begins, or is over, behind the last id of a place, which else is that of the ids before.
DEVICE bool section_changes(const SectionLists& lists, const u32* history, const State& state) {
    const u32* tokens = history + state.section_start;
    const u32 count = state.section_length - state.section_start;
    if (!state.section_is_open) {
        return lists.open_count > 0 && ends_with(tokens, count, lists.open, lists.open_count);
    }
    if (is_spent(lists, state) && ends_with(tokens, count, lists.end, lists.end_count)) {
        return true;
    }
    const bool was_spent = has_looped(lists, state) || count > lists.budget;
    return ends_with(tokens, count, lists.close, lists.close_count) &&
           !(was_spent && lists.end[begun_end(lists, tokens, count - 1)] == tokens[count - 1]);
}

// Takes a state's place back where its history became shorter: it holds as far back as it begins, or as its loop does.
DEVICE void shorten_section(const SectionLists& lists, State& state) {
    if (state.section_length <= state.length) {
        return;
    }
    state.section_length = state.length;
    if (has_looped(lists, state) && state.section_start <= state.length && state.loop_end > state.length) {
        state.loop_end = 0;
    } else if (state.section_start > state.length || state.loop_end > state.length + lists.loop_end_count) {
        const bool comes_once = lists.comes_once();
        state.section_is_open = comes_once;
        state.section_start = state.section_length = comes_once ? state.prompt_length : 0;
        state.loop_end = 0;
    }
}

// A row's forced token, NO_TOKEN if none is, and the status bits for what forces it and for its loop. A known token has
// none.
struct ForcedToken {
    int id;
    u32 status;

    // Whether the kept set is the token: it is forced, and not known.
    DEVICE_MEMBER bool is_kept() const { return id >= 0 && status != 0; }
    // Whether the row is not read: its request asks neither for logprobs nor for a dynamic temperature (D2).
    DEVICE_MEMBER bool leaves_unread(u32 features) const {
        return is_kept() && (features & (FEATURE_LOGPROBS | FEATURE_DYNAMIC_TEMPERATURE)) == 0;
    }
};

// Returns the forced token of an element of `Step::forced`.
DEVICE ForcedToken listed_token(int listed) {
    const bool by_caller = listed >= FORCED_BY_CALLER;
    return ForcedToken{listed - (by_caller ? FORCED_BY_CALLER : 0), by_caller ? STATUS_FORCED : 0u};
}

// Returns the token that the caller forces in a row, or else the section or the loop of its request, and the status for
// these and for a mark, as `history_edits` found. It has no branch, so that all loads that follow the slot's are in
// flight at once.
DEVICE ForcedToken forced_token(const Step& step, u32 row, int slot, u32 features) {
    const ForcedToken listed = listed_token(step.forced[row]);
    const u32 word = step.states[slot < 0 ? 0 : slot].history_row;
    const bool is_found = slot >= 0 && listed.id < 0 && features & (FEATURE_SECTION | FEATURE_WATERMARK);
    return ForcedToken{is_found ? (int)(word >> 10) - 1 : listed.id, is_found ? word & 1023 : listed.status};
}
