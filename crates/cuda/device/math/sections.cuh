// sections.cuh: where a history stands in the section of its request, and the token that this forces (rules B1 to B3).
//
// Computes   the place after a history, from the place after its first ids; the forced token of a row, and its status
// Never      looks at ids in front of a section that it knows: a step takes in the tokens that came since the last one
// Twins      oracle spec/src/section.rs | CPU cpu/src/section.rs
// Requires   FEATURE_SECTION; one thread
#pragma once

#include "abi/step.cuh"

// The lists of a section.
struct SectionLists {
    u32 budget;
    u32 min;
    u32 open_count;
    u32 close_count;
    u32 end_count;
    const u32* open;
    const u32* close;
    const u32* end;

    DEVICE_MEMBER explicit SectionLists(const u32* words)
        : budget(words[SECTION_BUDGET]), min(words[SECTION_MIN]), open_count(words[SECTION_OPEN_COUNT]),
          close_count(words[SECTION_CLOSE_COUNT]), end_count(words[SECTION_END_COUNT]), open(words + SECTION_IDS),
          close(open + open_count), end(close + close_count) {}
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

// Whether a section begins, or is over, after the last of `count` tokens.
DEVICE bool section_changes(const SectionLists& lists, bool is_open, const u32* tokens, u32 count) {
    if (!is_open) {
        return lists.open_count > 0 && ends_with(tokens, count, lists.open, lists.open_count);
    }
    if (count >= lists.budget && ends_with(tokens, count, lists.end, lists.end_count)) {
        return true;
    }
    return ends_with(tokens, count, lists.close, lists.close_count) &&
           (count <= lists.budget || lists.end[begun_end(lists, tokens, count - 1)] != tokens[count - 1]);
}

// Moves a state's place on to the end of its history.
DEVICE void follow_section(const SectionLists& lists, const u32* history, State& state) {
    while (state.section_length < state.length) {
        state.section_length++;
        if (section_changes(lists, state.section_is_open, history + state.section_start,
                            state.section_length - state.section_start)) {
            state.section_is_open ^= 1;
            state.section_start = state.section_length;
        }
    }
}

// Takes a state's place back where its history became shorter: it holds as far back as it begins.
DEVICE void shorten_section(const SectionLists& lists, State& state) {
    if (state.section_length <= state.length) {
        return;
    }
    state.section_length = state.length;
    if (state.section_start > state.length) {
        const bool comes_once = lists.open_count == 0;
        state.section_is_open = comes_once;
        state.section_start = state.section_length = comes_once ? state.prompt_length : 0;
    }
}

// A row's forced token, NO_TOKEN if none is, and the status bits for one that its section forces.
struct ForcedToken {
    int id;
    u32 status;
};

// Returns the token that the caller forces in a row, or else the section of its request, as `history_edits` found.
DEVICE ForcedToken forced_token(const Step& step, u32 row, int slot, u32 features) {
    const int forced = step.forced[row];
    if (slot >= 0 && forced < 0 && features & FEATURE_SECTION) {
        const u32 word = step.states[slot].section_row;
        return ForcedToken{(int)(word >> 8) - 1, word & 255};
    }
    return ForcedToken{forced, 0};
}
