// entries.cuh: what a request's edits know of ids, and what they make of a logit (rules E1 to E4).
//
// Computes   an id's entry; an edited logit; the entries and the history after one more token
// Never      searches for long: a table is at most half full, so that a run of entries soon ends
// Twins      oracle spec/src/edit.rs | tables are made by src/lists.rs
// Requires   a table with ASKS_EDITS; one thread at a time moves a request on
#pragma once

#include "step.cuh"

// Where the search for an id begins.
DEVICE u32 home_of(u32 id, u32 entries_mask) {
    u32 x = id * 0x9E3779B1u;
    return (x ^ x >> 15) & entries_mask;
}

// The entry of an id, or the empty one where it would be.
DEVICE Entry* entry_of(Entry* entries, u32 entries_mask, u32 id) {
    u32 place = home_of(id, entries_mask);
    while (entries[place].id_plus_1 != 0 && entries[place].id_plus_1 != id + 1) {
        place = (place + 1) & entries_mask;
    }
    return entries + place;
}

// An infinite result of an edit becomes finite at once (E1).
DEVICE float finite(float z) { return fminf(fmaxf(z, -LARGEST), LARGEST); }

DEVICE u32 count_of(const Entry& entry, u32 scope) {
    return (scope & SCOPE_PROMPT ? entry.prompt : 0) + (scope & SCOPE_OUTPUT ? entry.output : 0);
}

// What the edits make of a finite logit (E2, E3).
DEVICE float edited(const Params& params, const Entry& entry, u32 step, float z) {
    // By 1 nothing changes: so there is one division, and it stands in no branch.
    float r = count_of(entry, params.repetition_scope) > 0 ? params.repetition_penalty : 1.0f;
    z = finite((z > 0.0f ? z : z * r) / (z > 0.0f ? r : 1.0f));
    u32 count = count_of(entry, params.penalty_scope);
    if (count > 0) {
        z = finite(z - params.frequency_penalty * u64_to_float(count));
        z = finite(z - params.presence_penalty);
    }
    if (params.asks & ASKS_SEARCH && (u32)(entry.dry >> 32) == step) {
        z = finite(z - bits_float((u32)entry.dry));
    }
    return finite(z + entry.bias) + 0.0f;
}

// Moves a request on by the token that it emitted; by one thread.
DEVICE void advance(const Step& step, int slot, u32 asks, const State& state, u32 id) {
    State* next = step.states + slot;
    next->position = state.position + 1;
    next->length = state.length + 1;
    next->step = state.step + 1;
    if (!(asks & (ASKS_COUNTS | ASKS_SEARCH))) {
        return;
    }
    const Request& request = step.requests[slot];
    // The host counts steps and refuses one too many; that memory stays whole must not hang on it.
    if (state.length >= request.room) {
        return;
    }
    request.history[state.length] = id;
    if (asks & ASKS_COUNTS) {
        Entry* entry = entry_of(request.entries, request.entries_mask, id);
        if (entry->id_plus_1 == 0) {
            entry->id_plus_1 = id + 1;
            request.touched[id / 32] |= 1u << (id % 32);
        }
        entry->output++;
    }
}
