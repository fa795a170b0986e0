// edits.cuh: the data of a request's edits by id, and the logits that they make (rules E1 to E4).
//
// Computes   the entry of an id; an edited logit
// Never      probes for long: a table is at most half full, so runs of used entries are short; a full one ends a search
// Twins      oracle spec/src/edit.rs | src/requests/request_buffers.rs makes the tables
// Requires   a table with FEATURE_EDITS; one thread at a time advances a request
#pragma once

#include "abi/step.cuh"
#include "math/kind.cuh"

// The bitmaps that apply to a row of logits, from a word of 32 ids on; null if the row has none.
struct EditMasks {
    const u32* mask;
    const u32* allowed;
    const u32* touched;
    u32 mask_words;

    EditMasks() = default;
    // The row's mask alone, without the bitmaps of its request.
    DEVICE_MEMBER EditMasks(const Step& step, u32 row, u32 first_word = 0)
        : mask(nullptr), allowed(nullptr), touched(nullptr),
          mask_words(step.mask_words > first_word ? step.mask_words - first_word : 0) {
        if (step.masks && (!step.mask_present || step.mask_present[row])) {
            mask = step.masks + row * step.mask_stride + first_word;
        }
    }
    DEVICE_MEMBER EditMasks(const Step& step, u32 row, int slot, u32 features, u32 first_word = 0)
        : EditMasks(step, row, first_word) {
        add_request(step.requests[slot], features, first_word);
    }

    DEVICE_MEMBER void add_request(const Request& request, u32 features, u32 first_word = 0) {
        // Both pointers are loaded at once, and not after `features` is known: so the loads overlap.
        const u32 *bans = request.allowed, *entries = request.touched;
        allowed = features & FEATURE_BANNED_IDS ? bans + first_word : nullptr;
        touched = features & FEATURE_EDITS ? entries + first_word : nullptr;
    }

    // The mask's word for 32 ids.
    DEVICE_MEMBER u32 mask_word(u32 word) const { return !mask ? ~0u : word < mask_words ? mask[word] : 0; }
    // Which of 32 ids mask and lists allow.
    DEVICE_MEMBER u32 allowed_word(u32 word) const { return mask_word(word) & (allowed ? allowed[word] : ~0u); }

    DEVICE_MEMBER bool any() const { return mask || allowed || touched; }
};

// The index at which the search for an id begins: an even one, because entries are read in pairs.
DEVICE u32 home_index(u32 id, u32 entries_mask) {
    u32 x = id * ENTRY_HASH;
    return (x ^ x >> 15) & entries_mask & ~1u;
}

// The entry of an id, or the empty entry that would take it; another id's if there is neither.
DEVICE TokenEntry* find_entry(TokenEntry* entries, u32 entries_mask, u32 id) {
    u32 index = home_index(id, entries_mask);
    while (entries[index].id_plus_1 != 0 && entries[index].id_plus_1 != id + 1) {
        index = (index + 1) & entries_mask;
        if (index == home_index(id, entries_mask)) {
            break;
        }
    }
    return entries + index;
}

// The part of an entry that edits of its id always need, and its index.
struct EntryHead {
    u32 prompt_count;
    u32 output_count;
    float bias;
    u32 index;
};

// Finds the entry of an id and reads two entries at once, so that few loads depend on each other. Without an entry,
// counts and bias are 0.
DEVICE EntryHead find_entry_head(const TokenEntry* entries, u32 entries_mask, u32 id) {
    const U32x4* quads = (const U32x4*)entries;
    u32 index = home_index(id, entries_mask);
    while (true) {
        U32x4 first = quads[2 * (u64)index], second = quads[2 * (u64)index + 2];
        bool is_first = first.word[0] == id + 1, is_second = second.word[0] == id + 1;
        if (is_first || is_second || first.word[0] == 0 || second.word[0] == 0) {
            bool any = is_first || is_second;
            U32x4 found = is_first ? first : second;
            return EntryHead{any ? found.word[1] : 0, any ? found.word[2] : 0, any ? bits_float(found.word[3]) : 0.0f,
                             index + (is_first ? 0 : 1)};
        }
        index = (index + 2) & entries_mask;
        if (index == home_index(id, entries_mask)) {
            return EntryHead{0, 0, 0.0f, index};
        }
    }
}

// Replaces an infinite result of an edit by the largest finite number of its sign (E1).
DEVICE float clamp_finite(float z) { return fminf(fmaxf(z, -MAX_F32), MAX_F32); }

// The parameters that the edits of an id need, loaded before they are used.
struct Penalties {
    u32 features;
    float repetition;
    float frequency;
    float presence;
    u32 repetition_scope;
    u32 scope;
    u32 bias_first;

    DEVICE_MEMBER explicit Penalties(const Params& params)
        : features(params.features), repetition(params.repetition_penalty), frequency(params.frequency_penalty),
          presence(params.presence_penalty), repetition_scope(params.repetition_scope), scope(params.penalty_scope),
          bias_first(params.bias_first) {}
};

DEVICE u32 scoped_count(const EntryHead& entry, u32 scope) {
    return (scope & SCOPE_PROMPT ? entry.prompt_count : 0) + (scope & SCOPE_OUTPUT ? entry.output_count : 0);
}

// The hash table of a request's entries. `request` is read again only in rows after drafts.
struct EntryTable {
    const TokenEntry* entries;
    u32 mask;
    const Request* request;

    DEVICE_MEMBER EntryTable(const Request& request)
        : entries(request.entries), mask(request.entries_mask), request(&request) {}
};

// Returns how often an id is among the drafts before a row (FEATURE_DRAFT_PATH).
DEVICE u32 count_on_path(const Request& request, u32 id) {
    u32 count = 0;
#pragma unroll 1
    for (u32 i = 0; i < request.history_capacity; i++) {
        count += request.history[i] == id ? 1 : 0;
    }
    return count;
}

// Edits the logit of a touched id that mask and lists allow (E2 to E4). `nonfinite_flags` takes the status bits of the
// unedited logit, unless the id is banned here (E7). An edited +inf is finite and no longer shows; NaN stays NaN.
DEVICE float edited_logit(const Penalties& penalties, const EntryTable& table, u32 step, u32 id, float z,
                          u32& nonfinite_flags) {
    EntryHead entry = find_entry_head(table.entries, table.mask, id);
    float dry = 0.0f;
    if (penalties.features & FEATURE_HISTORY_EDITS) {
        const TokenEntry& full_entry = table.entries[entry.index];
        if (full_entry.ban_step == step) {
            return MASKED_VALUE;
        }
        dry = (u32)(full_entry.dry_stamp >> 32) == step ? bits_float((u32)full_entry.dry_stamp) : 0.0f;
        if ((penalties.features & FEATURE_PENALTY_WINDOW) && full_entry.count_step != step) {
            entry.prompt_count = entry.output_count = 0;
        }
    }
    nonfinite_flags |= nonfinite_flags_of(z);
#if GUMBALL_PROBABILITIES
    // Probabilities have no other edits (P2).
    return z;
#endif
    if (!(z > -INF_F32)) {
        return z;
    }
    z = fminf(z, MAX_F32);
    // A bias of 0 changes nothing, so both places add without a branch.
    z = clamp_finite(z + (penalties.bias_first ? entry.bias : 0.0f));
    if (penalties.features & FEATURE_DRAFT_PATH) {
        entry.output_count += count_on_path(*table.request, id);
    }
    // A factor of 1 changes nothing, so one division outside of any branch serves all cases.
    float r = scoped_count(entry, penalties.repetition_scope) > 0 ? penalties.repetition : 1.0f;
    z = clamp_finite((z > 0.0f ? z : z * r) / (z > 0.0f ? r : 1.0f));
    u32 count = scoped_count(entry, penalties.scope);
    if (count > 0) {
        z = clamp_finite(z - penalties.frequency * u64_to_float(count));
        z = clamp_finite(z - penalties.presence);
    }
    z = clamp_finite(z - dry);
    return clamp_finite(z + (penalties.bias_first ? 0.0f : entry.bias)) + 0.0f;
}
