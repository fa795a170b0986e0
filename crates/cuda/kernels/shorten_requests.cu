// shorten_requests.cu: takes the last output tokens of requests away again, for a caller who stops after one of them.
//
// Computes   for each request its position, history, counts and mu as they were after the tokens that stay; how many
//            went
// Never      waits for the host; trusts a count that the device alone has seen
// Twins      host engine/src/sequence.rs, engine/src/slots.rs | why docs/speculation.md
// Shapes     slots, counts, taken [requests]
// Grid       x = requests; 128 threads
// Traffic    48 bytes a request; of requests that count tokens for each token that goes its id and 16 bytes
// Requires   no other kernel that changes the requests meanwhile; no dependent launch
//
// A count below 0 or above the number of output tokens takes nothing away. With mirostat or adaptive-p that holds for
// all above 1: mu before the last token is kept, and none before that.

#include "math/edits.cuh"
#include "math/sections.cuh"
#include "stage/lane_drafts.cuh"

// Takes an id away from the output's counts. Threads may do so at the same time.
DEVICE void discount_output(const Request& request, u32 id) {
    TokenEntry* entry = find_entry(request.entries, request.entries_mask, id);
    // Each id of the output has an entry. The host's tables are at most half full, so a missing one ends the search.
    if (entry->id_plus_1 != 0) {
        atomicAdd(&entry->output_count, ~0u);
    }
}

KERNEL(shorten_requests, SHORTEN_THREADS, ShortenRequests, args) {
    const u32 index = blockIdx.x;
    const int slot = args.slots[index];
    if (slot < 0) {
        if (threadIdx.x == 0) {
            args.taken[index] = 0;
        }
        return;
    }
    const u32 features = args.slot_params[slot].features;
    const Request& request = args.slot_requests[slot];
    State& state = args.slot_states[slot];
    const u32 length = state.length;
    const int asked = draft_number(args.counts, args.flags & SHORTEN_COUNTS_I64, index);
    const bool has_mu = features & (FEATURE_MIROSTAT | FEATURE_ADAPTIVE), knows_mu = state.mu_before == state.mu_before;
    const bool is_there =
        asked >= 0 && (u32)asked <= length - state.prompt_length && (!has_mu || asked == 0 || (asked == 1 && knows_mu));
    const u32 count = is_there ? (u32)asked : 0;
    if (features & FEATURE_TOKEN_COUNTS) {
        for (u32 i = threadIdx.x; i < count; i += blockDim.x) {
            const u32 place = length - 1 - i;
            if (place < request.history_capacity) {
                discount_output(request, request.history[place]);
            }
        }
    }
    // WAR on the state: all threads read it, thread 0 changes it.
    __syncthreads();
    if (threadIdx.x == 0) {
        args.taken[index] = count;
        if (count > 0) {
            state.position -= count;
            state.length = length - count;
            // Stamps of edits that matched the end of the longer history must not count after the shorter one.
            state.step++;
            if (features & FEATURE_SECTION) {
                shorten_section(SectionLists(request.section), state);
            }
            if (has_mu) {
                state.mirostat_mu = state.mu_before;
                state.mu_before = bits_float(0x7FC00000u);
            }
        }
    }
}
