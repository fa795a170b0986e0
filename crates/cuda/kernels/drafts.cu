// drafts.cu: makes requests of the rows behind drafts, and accepts the drafts that equal what was emitted (rule S3).
//
// Computes   begin_drafts: for each row the request as it stands behind the drafts on the path to the row (E6, N9)
//            end_drafts: for each request the rows of the walk, the outputs of these rows at the request's first rows,
//            and the request's next state, history and counts
// Never      reads logits; trusts a draft or a parent that the device alone has seen; changes a request before all of
//            its rows are finished
// Twins      oracle spec/src/verify/coupled.rs, tree.rs | host engine/src/walk.rs | src/pipeline/draft_rows.rs
// Shapes     ids, parents [drafts]; requests, slots [requests]; rows [rows]: a request has a row for the end of its
//            history and one behind each draft; outputs: the sections of Layout (spec/src/layout.rs)
// Grid       begin_drafts: x = rows; end_drafts: x = requests; whole warps
// Traffic    begin_drafts: 320 bytes a row; behind drafts of requests that count tokens also the bits of touched ids;
//            with edits that depend on the history also its ids, and of each entry that is used 32 bytes in and 64 to
//            128 out
//            end_drafts: the outputs of rows that no token was emitted for, and of those that move
// Requires   begin_drafts, the kernels of the step over the rows, end_drafts, in this order on one stream
//
//     begin_drafts: for each row
//         path = the drafts from the root to the row
//         padding, if an id of the path is no token or a stop id, so that no walk gets there; or if there is no tree. A block
//         is judged as a whole, so there stop ids make no padding
//         the request's parameters; its state, later by the path's length; its lists, with the path beside or in them
//     end_drafts: for each request
//         row = 0; while a child of the row has the row's token, which is no stop id: row = that child's row
//         move the outputs of the rows of the walk to the front; make padding of the others
//         append the emitted tokens; advance position and mu

#include "math/edits.cuh"
#include "stage/draft_tree.cuh"
#include "warp/reduce.cuh"

// Counts an id of the output in its entry, which it makes if there is none. Threads may count at the same time; which
// entry an id gets depends on their order, what lookups find does not.
DEVICE void count_output(const Request& request, u32 id) {
    u32 index = home_index(id, request.entries_mask);
    while (true) {
        TokenEntry* entry = request.entries + index;
        u32 found = atomicCAS(&entry->id_plus_1, 0u, id + 1);
        if (found == 0) {
            atomicOr(request.touched + id / 32, 1u << (id % 32));
        }
        if (found == 0 || found == id + 1) {
            atomicAdd(&entry->output_count, 1u);
            return;
        }
        index = (index + 1) & request.entries_mask;
    }
}

// Copies `count` units of 16 bytes; by all threads of a block.
DEVICE void copy_units(void* to, const void* from, u64 count) {
#pragma unroll 4
    for (u64 i = threadIdx.x; i < count; i += blockDim.x) {
        ((U32x4*)to)[i] = ((const U32x4*)from)[i];
    }
}

// Copies the entry of an id to the table of another request, which has none; no two threads copy the same id.
DEVICE void copy_entry(const Request& from, const Request& to, u32 id) {
    const TokenEntry entry = *find_entry(from.entries, from.entries_mask, id);
    u32 index = home_index(id, to.entries_mask);
    while (atomicCAS(&to.entries[index].id_plus_1, 0u, id + 1) != 0) {
        index = (index + 1) & to.entries_mask;
    }
    to.entries[index] = entry;
}

// Ids that have entries, in shared memory: as many as fit, so that each thread copies as many as another. `count` is
// the number of all of them.
struct EntryIds {
    static constexpr u32 CAPACITY = 2048;
    u32 count;
    u32 listed;
    u32 ids[CAPACITY];
};

// Copies the entries of a request to the table of `to`, which is cleared first; by all threads of a block.
DEVICE void copy_entries(const Request& from, const Request& to, u32 words, EntryIds& ids) {
    for (u32 i = threadIdx.x; i < (to.entries_mask + 1) * (u32)(sizeof(TokenEntry) / sizeof(U32x4)); i += blockDim.x) {
        ((U32x4*)to.entries)[i] = U32x4{};
    }
    // RAW on the table: all threads cleared parts of it, threads add entries anywhere.
    __syncthreads();
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
        for (u32 bits = from.touched[i]; bits != 0; bits &= bits - 1) {
            const u32 id = i * 32 + (u32)__ffs((int)bits) - 1, place = atomicAdd(&ids.listed, 1u);
            if (place < EntryIds::CAPACITY) {
                ids.ids[place] = id;
            } else {
                copy_entry(from, to, id);
            }
        }
    }
    // RAW on the list: all threads added ids, all threads read them.
    __syncthreads();
    for (u32 i = threadIdx.x; i < ids.listed && i < EntryIds::CAPACITY; i += blockDim.x) {
        copy_entry(from, to, ids.ids[i]);
    }
}

// Returns the size of a table, at most half full, for `count` entries and `more` ids that may have entries already. The
// request's own has room for all ids that its history may yet take, so `most`, its size, always suffices.
DEVICE u32 table_size(u32 count, u32 more, u32 most) {
    u32 size = 2;
    while (size < 2 * (count + more) && size < most) {
        size *= 2;
    }
    return size;
}

// Whether the row of a request behind drafts shares the request's entries. It cannot if history_edits stamps them: the
// stamps of one row would be those of the others.
DEVICE bool shares_entries(u32 features) {
    return (features & FEATURE_TOKEN_COUNTS) && !(features & FEATURE_HISTORY_EDITS);
}

// Writes to `memory` the bits of touched ids, with those of a path, and the path, which a row needs beside the entries
// that it shares with its request. `own`, in shared memory, is a copy of the request, and gets these lists. `list_bytes`
// in src/requests/request_table.rs is the size of their memory. By all threads of a block.
DEVICE void share_entries(const DraftStep& args, const Request& request, Request& own, u32* memory, const int* path,
                          u32 depth) {
    const u32 words = args.step.tiles * MASK_WORDS;
    copy_units(memory, request.touched, words / 4);
    if (threadIdx.x == 0) {
        own.touched = memory;
        own.history = memory + words;
        own.history_capacity = depth;
    }
    // RAW on the bits: all threads copied parts of them, threads set bits of any part. RAW on the lists' addresses:
    // thread 0 wrote them, the first warp reads them.
    __syncthreads();
    for (u32 i = threadIdx.x; i < depth; i += blockDim.x) {
        const u32 id = (u32)path[i];
        atomicOr(memory + id / 32, 1u << (id % 32));
        memory[words + i] = id;
    }
}

// Copies to `memory` those lists of a request that the tokens on a path change, and adds the path to them: for edits that
// depend on the history. `own`, in shared memory, is a copy of the request, and gets these lists. `list_bytes` in
// src/requests/request_table.rs is the size of their memory. By all threads of a block.
DEVICE void copy_lists(const DraftStep& args, const Request& request, Request& own, u32 features, u32 length,
                       TokenEntry* memory, const int* path, u32 depth, EntryIds& ids) {
    const bool counts = features & FEATURE_TOKEN_COUNTS;
    const u32 words = args.step.tiles * MASK_WORDS;
    if (threadIdx.x == 0) {
        ids.count = ids.listed = 0;
    }
    // WAW on the counts: thread 0 cleared them, all threads add to them.
    __syncthreads();
    u32 count = 0;
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
        count += __popc(request.touched[i]);
    }
    atomicAdd(&ids.count, count);
    // RAW on the count: all threads added to it, thread 0 reads it.
    __syncthreads();
    if (threadIdx.x == 0) {
        const u32 size = request.entries_mask + 1;
        u32* touched = (u32*)(memory + size);
        own.entries = memory;
        own.entries_mask = table_size(ids.count, counts ? depth : 0, size) - 1;
        own.touched = counts ? touched : own.touched;
        own.history = touched + (counts ? words : 0);
    }
    // RAW on the lists' addresses: thread 0 wrote them, all threads read them.
    __syncthreads();
    copy_entries(request, own, words, ids);
    if (counts) {
        copy_units(own.touched, request.touched, words / 4);
    }
    // A list begins at a multiple of 32 bytes, so whole units of it can be read.
    copy_units(own.history, request.history, (length + 3) / 4);
    // RAW on the lists: all threads copied parts of them, threads change any part.
    __syncthreads();
    for (u32 i = threadIdx.x; i < depth; i += blockDim.x) {
        if (counts) {
            count_output(own, (u32)path[i]);
        }
        if (length + i < own.history_capacity) {
            own.history[length + i] = (u32)path[i];
        }
    }
}

// Writes the slot of a row: the row itself, or -1 for padding. `is_judged`: drafts behind it or in front of it are judged by its
// probabilities, if any are.
DEVICE void write_row_slot(const DraftStep& args, u32 row, int slot, bool is_judged) {
    args.row_slots[row] = slot;
    if (args.judged_slots != nullptr) {
        args.judged_slots[row] = is_judged ? slot : -1;
    }
}

KERNEL(begin_drafts, BEGIN_DRAFTS_THREADS, DraftStep, args) {
    // The survey of rows without edits is a dependent launch, which waits for this kernel before it reads requests.
    trigger_dependents();
    __shared__ DraftTree tree;
    __shared__ int path[MAX_DRAFTS];
    __shared__ u32 depth;
    __shared__ u32 is_dead;
    __shared__ EntryIds ids;
    __shared__ Request request;
    __shared__ State state;
    const u32 row = blockIdx.x;
    const DraftRow own = args.rows[row];
    const DraftRequest drafts = args.requests[own.request];
    const int slot = args.slots[own.request];
    if (slot < 0) {
        if (threadIdx.x == 0) {
            write_row_slot(args, row, -1, false);
        }
        return;
    }
    // What follows does not depend on the drafts, so its loads overlap with theirs.
    const int node = (int)(row - drafts.first_row) - 1;
    const Params& params = args.slot_params[slot];
    const u32 features = params.features, lane = lane_id();
    const bool has_lists = node >= 0 && own.lists != nullptr, shares = has_lists && shares_entries(features);
    static_assert(sizeof(Request) <= 128, "a warp copies a request, a word per thread");
    if (warp_id() == 0 && lane < sizeof(Request) / 4) {
        ((u32*)&request)[lane] = ((const u32*)(args.slot_requests + slot))[lane];
    } else if (warp_id() == 1 && lane < sizeof(State) / 4) {
        ((u32*)&state)[lane] = ((const u32*)(args.slot_states + slot))[lane];
    } else if (warp_id() == 2) {
        const Params& from = args.greedy_params == nullptr ? params : args.greedy_params[own.request];
        for (u32 i = lane; i < sizeof(Params) / 4; i += 32) {
            const bool is_key = i < 2 || i == OFFSET_OF(Params, draw) / 4;
            const u32 path_flag = shares && i == OFFSET_OF(Params, features) / 4 ? FEATURE_DRAFT_PATH : 0;
            ((u32*)(args.row_params + row))[i] = ((const u32*)(is_key ? &params : &from))[i] | path_flag;
        }
    }
    if (threadIdx.x == 0) {
        is_dead = depth = 0;
    }
    // No draft stands before a request's first row, which reads the drafts only to know whether they are to be judged.
    if (node >= 0 || args.judged_slots != nullptr) {
        load_tree(args, own.request, drafts, tree);
        if (threadIdx.x == 0) {
            is_dead = node >= 0 && !tree.is_tree;
            // A parent lies before its child, so both walks end.
            for (int at = is_dead ? -1 : node; at >= 0; at = tree.parents[at]) {
                depth++;
            }
            u32 end = depth;
            for (int at = is_dead ? -1 : node; at >= 0; at = tree.parents[at]) {
                path[--end] = tree.ids[at];
            }
        }
    }
    // RAW on the path: thread 0 wrote it, all threads read it. RAW on the request and the state: the first two warps
    // copied them, all threads read them.
    __syncthreads();
    for (u32 i = threadIdx.x; i < depth; i += blockDim.x) {
        const bool is_token = path[i] >= 0 && (u32)path[i] < args.step.vocab;
        if (!is_token || (!(args.flags & DRAFTS_BLOCK) && is_stop_id(drafts, path[i]))) {
            is_dead = 1;
        }
    }
    // RAW on is_dead: any thread set it, all threads read it.
    __syncthreads();
    if (is_dead) {
        if (threadIdx.x == 0) {
            write_row_slot(args, row, -1, false);
        }
        return;
    }
    if (shares) {
        share_entries(args, args.slot_requests[slot], request, (u32*)own.lists, path, depth);
    } else if (has_lists) {
        copy_lists(args, args.slot_requests[slot], request, features, state.length, own.lists, path, depth, ids);
    }
    // Two warps write, so that they wait for memory side by side.
    if (warp_id() == 0 && lane < sizeof(Request) / 4) {
        ((u32*)(args.row_requests + row))[lane] = ((const u32*)&request)[lane];
    } else if (threadIdx.x == 32) {
        State behind = state;
        behind.position += depth;
        behind.length += depth;
        args.row_states[row] = behind;
        // Without drafts there is nothing to judge, nor where they are no tree: the row is that of a step.
        const bool is_judged = args.judged_slots != nullptr && drafts.draft_count > 0 && tree.is_tree;
        write_row_slot(args, row, (int)row, is_judged);
    }
}

// The words of a row's outputs are numbered from 0: one of each section that has a word per row, then the top tokens'
// ids and logprobs, then the logprobs and ranks of the ids that the request names.
DEVICE u32 output_words(const Step& step) { return OUTPUT_SECTIONS + 2 * (step.top_n_width + step.ids_width); }

// Returns where a word of a row's outputs lies.
DEVICE u32* output_word(const Step& step, u32 row, u32 word) {
    const u64 rows = step.rows, top_n = step.top_n_width, ids = step.ids_width;
    if (word < OUTPUT_SECTIONS) {
        return step.outputs + word * rows + row;
    }
    u32* lists = step.outputs + OUTPUT_SECTIONS * rows;
    word -= OUTPUT_SECTIONS;
    if (word < 2 * top_n) {
        bool is_logprob = word >= top_n;
        return lists + (is_logprob ? rows * top_n : 0) + row * top_n + (word - (is_logprob ? top_n : 0));
    }
    lists += 2 * rows * top_n;
    word -= 2 * top_n;
    bool is_rank = word >= ids;
    return lists + (is_rank ? rows * ids : 0) + row * ids + (word - (is_rank ? ids : 0));
}

// Returns a word of the outputs of padding.
DEVICE u32 padding_word(const Step& step, u32 word) {
    const u32 top_n = step.top_n_width, top_logprobs = OUTPUT_SECTIONS + top_n, ids = top_logprobs + top_n;
    if (word == OUTPUT_TOKENS || (word >= OUTPUT_SECTIONS && word < top_logprobs)) {
        return (u32)NO_TOKEN;
    }
    bool is_logprob = word == OUTPUT_LOGPROBS || (word >= top_logprobs && word < ids + step.ids_width);
    return is_logprob ? float_bits(-INF_F32) : 0;
}

// The walk of a request, in shared memory.
struct DraftWalk {
    // Of each row: its token, and whether the walk ends there whatever the drafts are.
    int tokens[MAX_DRAFTS + 1];
    u32 ends[MAX_DRAFTS + 1];
    // The rows of the walk, and how many there are.
    u32 path[MAX_DRAFTS + 1];
    u32 emitted;
};

// Moves the words of the rows of a walk to the request's first rows, and fills those of the rows behind. Rows only move
// to the front, so no word is overwritten before it was read. By all threads of a block.
template <class Address, class Padding>
DEVICE void compact_rows(const DraftWalk& walk, u32 rows, u32 words, Address address, Padding padding) {
#pragma unroll 1
    for (u32 start = 0; start < rows * words; start += blockDim.x) {
        const u32 i = start + threadIdx.x, row = i / words, word = i - row * words;
        // A row that stays where it is need not be copied.
        const bool is_on_path = row < walk.emitted, moves = row < rows && !(is_on_path && walk.path[row] == row);
        u32 value = 0;
        if (moves) {
            value = is_on_path ? *address(walk.path[row], word) : padding(word);
        }
        // WAR on the outputs: threads read words that other threads of this round overwrite.
        __syncthreads();
        if (moves) {
            *address(row, word) = value;
        }
    }
}

// Walks from row 0 to the first row of which no child has the token; by one warp.
DEVICE void walk_tree(const DraftTree& tree, DraftWalk& walk) {
    u32 row = 0, count = 0;
    while (true) {
        if (lane_id() == 0) {
            walk.path[count] = row;
        }
        count++;
        if (walk.ends[row]) {
            break;
        }
        const int token = walk.tokens[row];
        u32 child = 0;
        for (u32 start = row; child == 0 && start < tree.count; start += 32) {
            const u32 node = start + lane_id();
            bool matches = node < tree.count && tree.parents[node] == (int)row - 1 && tree.ids[node] == token;
            u32 matching = __ballot_sync(FULL_MASK, matches);
            child = matching != 0 ? start + __ffs((int)matching) : 0;
        }
        if (child == 0) {
            break;
        }
        row = child;
    }
    if (lane_id() == 0) {
        walk.emitted = count;
    }
}

KERNEL(end_drafts, END_DRAFTS_THREADS, DraftStep, args) {
    __shared__ DraftTree tree;
    __shared__ DraftWalk walk;
    const Step& step = args.step;
    const u32 request_index = blockIdx.x;
    const DraftRequest drafts = args.requests[request_index];
    const int slot = args.slots[request_index];
    const u32 rows = drafts.draft_count + 1, first = drafts.first_row;
    load_tree(args, request_index, drafts, tree);
    // The step changes no request of a slot, so these loads overlap with it.
    const int source = slot < 0 ? 0 : slot;
    const u32 features = args.slot_params[source].features;
    const State state = args.slot_states[source];
    grid_dependency_wait();
    if (slot < 0) {
        // The step has written the rows' outputs.
        for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
            args.path[first + i] = NO_ROW;
        }
        if (threadIdx.x == 0) {
            args.accepted[request_index] = 0;
        }
        return;
    }
    if (args.flags & DRAFTS_JUDGED) {
        // What was judged left padding of all rows but those of the walk, which goes nowhere else.
        for (u32 i = threadIdx.x; i < tree.count; i += blockDim.x) {
            tree.ids[i] = args.row_slots[first + 1 + i] < 0 ? -2 : tree.ids[i];
        }
    }
    for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
        const int token = (int)*output_word(step, first + i, OUTPUT_TOKENS);
        walk.tokens[i] = token;
        walk.ends[i] = token == NO_TOKEN || !tree.is_tree || is_stop_id(drafts, token);
    }
    // RAW on walk and tree: each thread wrote some of them, the first warp reads all of them.
    __syncthreads();
    if (warp_id() == 0) {
        walk_tree(tree, walk);
    }
    // RAW on walk: the first warp wrote the path, all threads read it.
    __syncthreads();
    const u32 emitted = walk.emitted, last_row = walk.path[emitted - 1];
    const u32 tokens = emitted - (walk.tokens[last_row] == NO_TOKEN ? 1 : 0);
    const float mirostat_mu = bits_float(*output_word(step, first + last_row, OUTPUT_MIROSTAT_MU));
    if (threadIdx.x == 0) {
        if (!tree.is_tree) {
            *output_word(step, first, OUTPUT_STATUSES) |= STATUS_NO_TREE;
        }
        args.accepted[request_index] = emitted - 1;
    }
    for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
        args.path[first + i] = i < emitted ? first + walk.path[i] : NO_ROW;
    }
    // WAR on the outputs: all threads read the last row's mu, threads move rows.
    __syncthreads();
    compact_rows(
        walk, rows, output_words(step), [&](u32 row, u32 word) INLINE { return output_word(step, first + row, word); },
        [&](u32 word) INLINE { return padding_word(step, word); });
    if (step.kept_bits != nullptr) {
        const u32 words = step.tiles * MASK_WORDS;
        compact_rows(
            walk, rows, words,
            [&](u32 row, u32 word) INLINE { return step.kept_bits + (u64)(first + row) * words + word; },
            [](u32) INLINE { return 0u; });
    }
    if (threadIdx.x == 0) {
        State next = state;
        next.position += tokens;
        next.length += tokens;
        next.step += tokens == 0 ? 0 : 1;
        next.mirostat_mu = tokens == 0 ? state.mirostat_mu : mirostat_mu;
        args.slot_states[slot] = next;
    }
    if (!(features & (FEATURE_TOKEN_COUNTS | FEATURE_HISTORY_EDITS | FEATURE_KEEP_HISTORY))) {
        return;
    }
    const Request& request = args.slot_requests[slot];
    for (u32 i = threadIdx.x; i < tokens; i += blockDim.x) {
        const u32 id = (u32)walk.tokens[walk.path[i]];
        // The host counts tokens and refuses those beyond the capacity; this test keeps the writes in bounds even if
        // that count is wrong.
        if (state.length + i < request.history_capacity) {
            request.history[state.length + i] = id;
            if (features & FEATURE_TOKEN_COUNTS) {
                count_output(request, id);
            }
        }
    }
}
