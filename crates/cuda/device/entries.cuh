// entries.cuh: what a request's edits know of ids, and what they make of a logit (rules E1 to E4).
//
// Computes   an id's entry; an edited logit; the entries and the history after one more token
// Never      searches for long: a table is at most half full, so that a run of entries soon ends
// Twins      oracle spec/src/edit.rs | tables are made by src/lists.rs
// Requires   a table with ASKS_EDITS; one thread at a time moves a request on
#pragma once

#include "step.cuh"

// What lies over a row of logits; null where it has none.
struct Edits {
    const u32* mask;
    const u32* allowed;
    const u32* touched;
    u32 mask_words;

    DEVICE_MEMBER Edits() : mask(nullptr), allowed(nullptr), touched(nullptr), mask_words(0) {}
    // Of a row as such: its mask.
    DEVICE_MEMBER Edits(const Step& step, u32 row) : Edits() {
        bool masked = step.masks && (!step.masked || step.masked[row]);
        mask = masked ? step.masks + row * step.mask_stride : nullptr;
        mask_words = step.mask_words;
    }
    DEVICE_MEMBER Edits(const Step& step, u32 row, int slot, u32 asks) : Edits(step, row) {
        add(step.requests[slot], asks);
    }

    DEVICE_MEMBER void add(const Request& request, u32 asks) {
        // Read at once, not where it is known that they are asked for.
        const u32 *bans = request.allowed, *entries = request.touched;
        allowed = asks & ASKS_ALLOWED ? bans : nullptr;
        touched = asks & ASKS_EDITS ? entries : nullptr;
    }

    // The mask's word of 32 ids.
    DEVICE_MEMBER u32 masked(u32 word) const { return !mask ? ~0u : word < mask_words ? mask[word] : 0; }

    DEVICE_MEMBER bool any() const { return mask || allowed || touched; }
};

// Where the search for an id begins: at a pair of entries.
DEVICE u32 home_of(u32 id, u32 entries_mask) {
    u32 x = id * 0x9E3779B1u;
    return (x ^ x >> 15) & entries_mask & ~1u;
}

// The entry of an id, or the empty one where it would be.
DEVICE Entry* entry_of(Entry* entries, u32 entries_mask, u32 id) {
    u32 place = home_of(id, entries_mask);
    while (entries[place].id_plus_1 != 0 && entries[place].id_plus_1 != id + 1) {
        place = (place + 1) & entries_mask;
    }
    return entries + place;
}

// What the edits of an id go by.
struct EntryHead {
    u32 prompt;
    u32 output;
    float bias;
    u32 place;
};

// The same entry, read in few trips: two at a time. Where there is none all is 0.
DEVICE EntryHead head_of(const Entry* entries, u32 entries_mask, u32 id) {
    const Quad* quads = (const Quad*)entries;
    u32 place = home_of(id, entries_mask);
    while (true) {
        Quad first = quads[2 * (u64)place], second = quads[2 * (u64)place + 2];
        bool is_first = first.word[0] == id + 1, is_second = second.word[0] == id + 1;
        if (is_first || is_second || first.word[0] == 0 || second.word[0] == 0) {
            bool any = is_first || is_second;
            Quad found = is_first ? first : second;
            return EntryHead{any ? found.word[1] : 0, any ? found.word[2] : 0, any ? bits_float(found.word[3]) : 0.0f,
                             place + (is_first ? 0 : 1)};
        }
        place = (place + 2) & entries_mask;
    }
}

// An infinite result of an edit becomes finite at once (E1).
DEVICE float finite(float z) { return fminf(fmaxf(z, -LARGEST), LARGEST); }

// What of a request's parameters the edits of an id go by, read before they are needed.
struct Penalties {
    u32 asks;
    float repetition;
    float frequency;
    float presence;
    u32 repetition_scope;
    u32 scope;

    DEVICE_MEMBER explicit Penalties(const Params& params)
        : asks(params.asks), repetition(params.repetition_penalty), frequency(params.frequency_penalty),
          presence(params.presence_penalty), repetition_scope(params.repetition_scope), scope(params.penalty_scope) {}
};

DEVICE u32 count_of(const EntryHead& entry, u32 scope) {
    return (scope & SCOPE_PROMPT ? entry.prompt : 0) + (scope & SCOPE_OUTPUT ? entry.output : 0);
}

// Where a request's entries are.
struct Table {
    const Entry* entries;
    u32 mask;
};

// What becomes of the logit of a touched id that mask and lists allow (E2 to E4). What edits make of +inf says nothing of it
// any more, so `odd` takes its bit, and that of NaN, which they leave alone.
DEVICE float edited_logit(const Penalties& penalties, const Table& table, u32 step, u32 id, float z, u32& odd) {
    EntryHead entry = head_of(table.entries, table.mask, id);
    float dry = 0.0f;
    if (penalties.asks & ASKS_SEARCH) {
        const Entry& whole = table.entries[entry.place];
        if (whole.ban_step == step) {
            return NOTHING;
        }
        dry = (u32)(whole.dry >> 32) == step ? bits_float((u32)whole.dry) : 0.0f;
    }
    odd |= odd_of_value(z);
#if GUMBALL_PROBABILITIES
    // Nothing else is done to probabilities (P2).
    return z;
#endif
    if (!(z > -INFINITE)) {
        return z;
    }
    z = fminf(z, LARGEST);
    // By 1 nothing changes: so there is one division, and it stands in no branch.
    float r = count_of(entry, penalties.repetition_scope) > 0 ? penalties.repetition : 1.0f;
    z = finite((z > 0.0f ? z : z * r) / (z > 0.0f ? r : 1.0f));
    u32 count = count_of(entry, penalties.scope);
    if (count > 0) {
        z = finite(z - penalties.frequency * u64_to_float(count));
        z = finite(z - penalties.presence);
    }
    z = finite(z - dry);
    return finite(z + entry.bias) + 0.0f;
}

DEVICE float edited_logit(const Penalties& penalties, const Request& request, u32 step, u32 id, float z, u32& odd) {
    return edited_logit(penalties, Table{request.entries, request.entries_mask}, step, id, z, odd);
}

// Moves a request on by the token that it emitted; by one thread.
DEVICE void advance(const Step& step, const Request& request, int slot, u32 asks, const State& state, u32 id) {
    State* next = step.states + slot;
    next->position = state.position + 1;
    next->length = state.length + 1;
    next->step = state.step + 1;
    if (!(asks & (ASKS_COUNTS | ASKS_SEARCH | ASKS_HISTORY))) {
        return;
    }
    // The host counts steps and refuses one too many; that memory stays whole must not hang on it.
    if (state.length >= request.room) {
        return;
    }
    request.history[state.length] = id;
    if (!(asks & ASKS_COUNTS)) {
        return;
    }
    u32 place = home_of(id, request.entries_mask);
    while (true) {
        Entry* entry = request.entries + place;
        // At once: the row has no further trip to make.
        Quad head = *(const Quad*)entry;
        if (head.word[0] == id + 1) {
            entry->output = head.word[2] + 1;
            return;
        }
        if (head.word[0] == 0) {
            entry->id_plus_1 = id + 1;
            entry->output = 1;
            atomicOr(request.touched + id / 32, 1u << (id % 32));
            return;
        }
        place = (place + 1) & request.entries_mask;
    }
}
