// drafts.cu: makes requests of the rows after drafts, and accepts the drafts that equal what was emitted (rule S3).
//
// Computes   begin_drafts: for each row the request as it stands after the drafts on the path to the row (E6, N9);
//            also for the rows of a draft model, from which drafts are drawn (S8)
//            end_drafts: for each request the rows of the walk, the outputs of these rows at the request's first rows,
//            and the request's next state, history and counts
// Never      reads logits; trusts a draft or a parent that the device alone has seen; changes a request before all of
//            its rows are finished
// Twins      oracle spec/src/verify/coupled.rs, tree.rs | host engine/src/walk.rs | src/pipeline/draft_rows.rs
// Shapes     ids, parents [drafts]; requests, slots [requests]; rows [rows]: a request has a row for the end of its
//            history and one after each draft; outputs: the sections of Layout (spec/src/layout.rs)
// Grid       begin_drafts: x = rows; three warps or more; end_drafts: x = requests; four warps
// Traffic    begin_drafts: 384 bytes a row; after drafts of requests that count tokens also the bits of touched ids;
//            with edits that depend on the history also its ids, and of each entry that is used 32 bytes in and 64 to
//            128 out
//            end_drafts: the outputs of all rows; again for rows that no token was emitted for, and for rows that move
// Requires   begin_drafts, the kernels of the step over the rows, end_drafts, in this order on one stream; tables that
//            the host writes by copies, never kernels: the tables of DraftStep that are indexed by request, and
//            slot_params, slot_requests
//
// A failed exchange between ranks makes padding of slots. Whether these kernels see that does not matter: the outputs
// of such a step are padding, too. Of rows that ranks drew together (DRAFTS_IN_BATCH) some may have failed: a walk that
// lacks one is padding.
//
//     begin_drafts: for each row
//         path = the drafts from the root to the row
//         padding, if an id of the path is no token or a stop id, so that no walk gets there; or if there is no tree. A
//             block is judged as a whole, so there stop ids make no padding
//         the request's parameters; its state, later by the path's length; its lists, with the path beside or in them
//     end_drafts: for each request
//         row = 0; while a child of the row has the row's token, which is no stop id: row = that child's row
//         move the outputs of the rows of the walk to the front; make padding of the others
//         append the emitted tokens; advance position and mu
//
// Both kernels lie on the way from one step to the next, so the number of loads that follow one another decides:
//
//  1. Each kernel is launched while the one before it runs, and loads what that one does not write. Once it may go on,
//     it has one round of loads left: begin_drafts of the state and the drafts, end_drafts of the outputs.
//  2. A row after drafts shares the entries of its request. It has bits of touched ids of its own, and an edit adds how
//     often its id is on the path (count_on_path). The bits are copied while the path is found.
//  3. Edits that match the end of the history stamp entries in each row, so their rows have copies: of the entries that
//     are used, and not of the table, which has room for all ids that the history may yet take.
//  4. A warp compares the token of a row with all its children at once. Outputs move to the front only, within the
//     request's rows. A thread per emitted token counts it.
//
// Tried and left: a table of entries for each row (14 to 57 us for one request of 3 drafts, 146 to 275 for 128); the
// survey waiting until it knows which rows are padding (0.8 us longer at 8 requests of 3 drafts).

#include "math/edits.cuh"
#include "stage/lane_drafts.cuh"
#include "stage/row_result.cuh"

// Counts an id of the output in its entry, which it makes if there is none. Threads may count at the same time; which
// entry an id gets depends on their order, what lookups find does not. A full table counts no more ids.
DEVICE void count_output(const Request& request, u32 id) {
    u32 index = home_index(id, request.entries_mask);
    do {
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
    } while (index != home_index(id, request.entries_mask));
}

// Copies `count` units of 16 bytes; by the threads of a block from `first` on.
DEVICE void copy_units(void* to, const void* from, u64 count, u32 first = 0) {
#pragma unroll 4
    for (u64 i = threadIdx.x - first; i < count; i += blockDim.x - first) {
        ((U32x4*)to)[i] = ((const U32x4*)from)[i];
    }
}

// Copies the entry of an id to the table of another request, which has none; no two threads copy the same id.
DEVICE void copy_entry(const Request& from, const Request& to, u32 id) {
    const TokenEntry entry = *find_entry(from.entries, from.entries_mask, id);
    u32 index = home_index(id, to.entries_mask);
    do {
        if (atomicCAS(&to.entries[index].id_plus_1, 0u, id + 1) == 0) {
            to.entries[index] = entry;
            return;
        }
        index = (index + 1) & to.entries_mask;
    } while (index != home_index(id, to.entries_mask));
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

// Whether the row of a request after drafts shares the request's entries. It cannot if history_edits stamps them: the
// stamps of one row would count for the others.
DEVICE bool shares_entries(u32 features) {
    return (features & FEATURE_TOKEN_COUNTS) && !(features & FEATURE_HISTORY_EDITS);
}

// Adds a path to the lists that a row has beside the entries that it shares with its request: to `bits`, a copy of the
// request's bits of touched ids, and as a list after them. `to`, the row's request, gets these lists. `list_bytes` in
// src/requests/request_table.rs is the size of their memory. By all threads of a block, after a barrier.
DEVICE void share_entries(const DraftStep& args, Request& to, u32* bits, const int* path, u32 depth) {
    u32* list = bits + args.step.tiles * MASK_WORDS;
    if (threadIdx.x == 0) {
        to.touched = bits;
        to.history = list;
        to.history_capacity = depth;
    }
    for (u32 i = threadIdx.x; i < depth; i += blockDim.x) {
        const u32 id = (u32)path[i];
        atomicOr(bits + id / 32, 1u << (id % 32));
        list[i] = id;
    }
}

// Copies to `memory` those lists of a request that the tokens on a path change, and adds the path to them: for edits
// that depend on the history. `own`, in shared memory, is a copy of the request, and gets these lists. `list_bytes` in
// src/requests/request_table.rs is the size of their memory. By all threads of a block.
DEVICE void copy_lists(const DraftStep& args, const Request& request, Request& own, u32 features, u32 length,
                       TokenEntry* memory, const int* path, u32 depth, EntryIds& ids) {
    // Without edits there is a history alone.
    const bool counts = features & FEATURE_TOKEN_COUNTS, has_entries = features & FEATURE_EDITS;
    const u32 words = has_entries ? args.step.tiles * MASK_WORDS : 0;
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
    if (has_entries) {
        copy_entries(request, own, words, ids);
    }
    if (counts) {
        copy_units(own.touched, request.touched, words / 4);
    }
    // A list begins at a multiple of 32 bytes, so whole units of it can be read.
    copy_units(own.history, request.history, (length + 3) / 4);
    // RAW on the lists: all threads copied parts of them, threads change any part.
    __syncthreads();
    for (u32 i = threadIdx.x; i < depth; i += blockDim.x) {
        if (length + i < own.history_capacity) {
            own.history[length + i] = (u32)path[i];
            if (counts) {
                count_output(own, (u32)path[i]);
            }
        }
    }
}

// Writes the slot of a row: the row itself, or -1 for padding. `is_judged`: drafts after it or in front of it are
// judged by its probabilities, if any are.
DEVICE void write_row_slot(const DraftStep& args, u32 row, int slot, bool is_judged) {
    args.row_slots[row] = slot;
    if (args.judged_slots != nullptr) {
        args.judged_slots[row] = is_judged ? slot : -1;
    }
}

// The words of a struct of at most 64, as the lanes of a warp hold them: two each; at first zeros.
template <class T>
struct LaneWords {
    static constexpr u32 COUNT = sizeof(T) / 4;
    static_assert(COUNT <= 64, "a lane has two words");
    u32 words[2] = {0, 0};

    // Loads each word from where `address`, a function of the word's index, says that it lies.
    template <class F>
    DEVICE_MEMBER void load_each(F address) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 word = lane_id() + 32 * i;
            words[i] = word < COUNT ? *address(word) : 0;
        }
    }
    DEVICE_MEMBER void load(const T* from) {
        load_each([&](u32 word) INLINE { return (const u32*)from + word; });
    }
    DEVICE_MEMBER void store(T* to) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 word = lane_id() + 32 * i;
            if (word < COUNT) {
                ((u32*)to)[word] = words[i];
            }
        }
    }
};

static_assert(OFFSET_OF(Params, features) < 128 && OFFSET_OF(State, length) < 128 && OFFSET_OF(State, position) < 128 &&
                  OFFSET_OF(State, step) < 128,
              "what lanes change is in the first of their two words");

// Where a row stands: how many drafts lie on the path to it, whether a walk may get there, and whether the request's
// drafts are a tree, as far as they were read.
struct RowPlace {
    u32 depth;
    bool is_reached;
    bool is_tree;
};

// Finds where the row after the draft `node` stands, -1 for a request's first row, and writes the ids of the path
// there to `path`; by one warp.
DEVICE RowPlace find_place(const DraftStep& args, u32 request, const DraftRequest& drafts, const LaneStopIds& stop_ids,
                           int node, int* path) {
    // No draft stands before a request's first row, which reads the drafts only to know whether they are to be judged.
    if (node < 0 && args.judged_slots == nullptr) {
        return RowPlace{0, true, true};
    }
    const LaneDrafts own(args, request, drafts);
    const bool is_tree = own.is_tree(args);
    if (node < 0 || !is_tree) {
        return RowPlace{0, node < 0, is_tree};
    }
    const u64 on_path = own.path_to(args, (u32)node);
    bool is_reached = true, is_stop_id[2];
    stop_ids.find(own.ids, is_stop_id);
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        const u32 draft = LaneDrafts::number(i);
        const int id = own.ids[i];
        if (on_path >> draft & 1) {
            const bool ends_walks = is_stop_id[i] && !(args.flags & DRAFTS_BLOCK);
            is_reached &= id >= 0 && (u32)id < args.step.vocab && !ends_walks;
            path[count_bits(on_path & ((1ull << draft) - 1))] = id;
        }
    }
    return RowPlace{count_bits(on_path), __all_sync(FULL_MASK, is_reached) != 0, true};
}

KERNEL(begin_drafts, BEGIN_DRAFTS_THREADS, DraftStep, args) {
    __shared__ int path[MAX_DRAFTS];
    __shared__ RowPlace place;
    __shared__ u32 length;
    __shared__ EntryIds ids;
    __shared__ Request request;
    // The host's data is loaded while the kernels before end, which may write drafts, states and lists, and
    // read what this kernel writes. A warp makes the row's state, another one its request, a third one its parameters.
    warm_constant_bank(args);
    const u32 row = blockIdx.x, lane = lane_id(), warp = warp_id();
    const DraftRow own = args.rows[args.first_row + row];
    const DraftRequest drafts = args.requests[own.request];
    const bool is_proposed = args.flags & DRAFTS_PROPOSED, is_summed = args.flags & DRAFTS_SUMMED;
    const int slot = args.slots[own.request],
              node = (int)(is_proposed ? drafts.draft_count : args.first_row + row - drafts.first_row) - 1;
    const Params& params = args.slot_params[slot < 0 ? 0 : slot];
    const bool has_lists = slot >= 0 && node >= 0 && own.lists != nullptr,
               shares = has_lists && shares_entries(params.features);
    const u32* touched = shares ? args.slot_requests[slot].touched : nullptr;
    const u32 capacity = has_lists && !shares ? args.slot_requests[slot].history_capacity : ~0u;
    const LaneStopIds stop_ids(drafts);
    LaneWords<Request> request_words;
    LaneWords<Params> param_words;
    if (slot >= 0 && warp == 1) {
        request_words.load(args.slot_requests + slot);
    } else if (slot >= 0 && warp == 2) {
        const Params& from = args.greedy_params == nullptr ? params : args.greedy_params[own.request];
        param_words.load_each([&](u32 word) INLINE {
            const bool is_key = word < 2 || word == OFFSET_OF(Params, draw) / 4,
                       is_scale = is_summed && word == OFFSET_OF(Params, logprob_log2e_over_t) / 4;
            return (const u32*)(is_key ? &params : &from) + (is_scale ? OFFSET_OF(Params, log2e_over_t) / 4 : word);
        });
        if (lane == OFFSET_OF(Params, features) / 4) {
            param_words.words[0] |=
                (shares ? FEATURE_DRAFT_PATH : 0) | (is_summed && slot >= 0 ? FEATURE_LOGPROB_SUMS : 0);
            // Rows of a draft model have no logprobs.
            param_words.words[0] &= is_proposed ? ~(u32)(FEATURE_LOGPROBS | FEATURE_LOGPROB_SUMS) : ~0u;
        }
    }
    grid_dependency_wait();
    // The survey of rows without edits is a dependent launch. It waits for this kernel before it reads requests, but
    // not before it reads logits: the kernels before may write these, so it must not begin while they run.
    trigger_dependents();

    // The survey may read the parameters and the state of any row, so padding gets zeros.
    if (warp == 2) {
        param_words.store(args.row_params + row);
    } else if (warp == 1) {
        request_words.store(has_lists && !shares ? &request : args.row_requests + row);
    }
    if (warp > 0 && shares) {
        copy_units(own.lists, touched, args.step.tiles * MASK_WORDS / 4, 32);
    }
    if (warp == 0) {
        LaneWords<State> state;
        RowPlace own_place{0, false, false};
        if (slot >= 0) {
            state.load(args.slot_states + slot);
            own_place = find_place(args, own.request, drafts, stop_ids, node, path);
        }
        if (lane == OFFSET_OF(State, length) / 4) {
            length = state.words[0];
        }
        // If drafts were drawn at the end of the request's history, copied entries hold stamps of the request's step. A
        // row after drafts has a later step, so that these do not count there.
        if (lane == OFFSET_OF(State, position) / 4 || lane == OFFSET_OF(State, length) / 4 ||
            lane == OFFSET_OF(State, step) / 4) {
            state.words[0] += own_place.depth;
        }
        if (lane == OFFSET_OF(State, length) / 4 && state.words[0] > capacity) {
            state.words[0] = capacity;
        }
        state.store(args.row_states + row);
        if (lane == 0) {
            place = own_place;
            // Without drafts there is nothing to judge, nor where they are no tree: the row is as of a step.
            write_row_slot(args, row, own_place.is_reached ? (int)row : -1,
                           drafts.draft_count > 0 && own_place.is_tree);
        }
    }
    if (!has_lists) {
        return;
    }
    // RAW on place, path and length: the first warp wrote them, all threads read them. RAW on the request: the second
    // warp copied it, all threads read it; or WAW, if a thread changes parts of it. RAW on the bits: all warps but the
    // first copied parts of them, threads set bits of any part.
    __syncthreads();
    if (!place.is_reached) {
        return;
    }
    if (shares) {
        share_entries(args, args.row_requests[row], (u32*)own.lists, path, place.depth);
        return;
    }
    copy_lists(args, args.slot_requests[slot], request, params.features, length, own.lists, path, place.depth, ids);
    if (warp == 1) {
        request_words.load(&request);
        request_words.store(args.row_requests + row);
    }
}

// Returns where a word of a row's outputs lies.
DEVICE u32* output_word(const Step& step, u32 row, u32 word) {
    const RowSection section(step, word);
    return step.outputs + section.index(step.rows, row, word - section.start);
}

// The walk of a request, in shared memory.
struct DraftWalk {
    // The sections of the outputs that have a word for each row, as the step wrote them.
    u32 words[OUTPUT_SECTIONS][MAX_DRAFTS + 1];
    // The rows of the walk, and how many there are.
    u32 path[MAX_DRAFTS + 1];
    u32 emitted;
    u32 is_tree;
};

// Moves the words of the first `emitted` rows of a walk to the request's first rows, and fills those of the rows
// behind. Rows only move to the front, so no word is overwritten before it was read. By all threads of a block.
template <class Address, class Padding>
DEVICE void compact_rows(const DraftWalk& walk, u32 emitted, u32 rows, u32 words, Address address, Padding padding) {
#pragma unroll 1
    for (u32 start = 0; start < rows * words; start += blockDim.x) {
        const u32 i = start + threadIdx.x, row = i / words, word = i - row * words;
        // A row that stays where it is need not be copied.
        const bool is_on_path = row < emitted, moves = row < rows && !(is_on_path && walk.path[row] == row);
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

// Walks from row 0 to the first row of which no accepted draft is a child; by one warp.
DEVICE void walk_tree(const LaneDrafts& drafts, const bool (&is_accepted)[2], DraftWalk& walk) {
    u32 row = 0, count = 0;
    do {
        if (lane_id() == 0) {
            walk.path[count] = row;
        }
        count++;
        row = drafts.child_row(row, is_accepted);
    } while (row != 0);
    if (lane_id() == 0) {
        walk.emitted = count;
    }
}

// Moves the words that each row has in the first sections of the outputs like `compact_rows`, from where the walk has
// them. Without a tree the first row says so. By all threads of a block; a thread has one row.
DEVICE void compact_words(const DraftWalk& walk, u32 emitted, const Step& step, u32 first, u32 rows) {
    const u32 row = threadIdx.x;
    if (row >= rows) {
        return;
    }
    const bool is_on_path = row < emitted;
    const u32 from = is_on_path ? walk.path[row] : row;
    if (!is_on_path || from != row) {
#pragma unroll
        for (u32 section = 0; section < OUTPUT_SECTIONS; section++) {
            *output_word(step, first + row, section) =
                is_on_path ? walk.words[section][from] : padding_word(step, section);
        }
    } else if (row == 0 && !walk.is_tree) {
        *output_word(step, first, OUTPUT_STATUSES) = walk.words[OUTPUT_STATUSES][0] | STATUS_NO_TREE;
    }
}

KERNEL(end_drafts, END_DRAFTS_THREADS, DraftStep, args) {
    // begin_drafts of another verification is a dependent launch, which waits for this kernel before it reads states or
    // writes.
    trigger_dependents();
    constexpr u32 WALKING_WARP = END_DRAFTS_THREADS / 32 - 1;
    static_assert(32 * WALKING_WARP > MAX_DRAFTS, "the threads of the other warps have a row each");
    __shared__ DraftWalk walk;
    __shared__ Request request;
    warm_constant_bank(args);
    const Step& step = args.step;
    const u32 request_index = args.first_request + blockIdx.x;
    const DraftRequest drafts = args.requests[request_index];
    const int slot = args.slots[request_index];
    const bool in_batch = args.flags & DRAFTS_IN_BATCH;
    const u32 rows = drafts.draft_count + 1, first = in_batch ? drafts.batch_row : drafts.first_row - args.first_row,
              place = in_batch ? drafts.batch_row - drafts.first_draft : blockIdx.x;
    // The step changes no request of a slot, so these loads overlap with it.
    const int source = slot < 0 ? 0 : slot;
    const u32 features = args.slot_params[source].features;
    State& state = args.slot_states[source];
    const u32 position = state.position, length = state.length, state_step = state.step;
    const float mirostat_mu = state.mirostat_mu;
    const bool has_history = features & (FEATURE_TOKEN_COUNTS | FEATURE_HISTORY_EDITS | FEATURE_KEEP_HISTORY);
    if (warp_id() == 0 && has_history) {
        LaneWords<Request> words;
        words.load(args.slot_requests + source);
        words.store(&request);
    }
    if (warp_id() == WALKING_WARP) {
        const LaneStopIds stop_ids(drafts);
        const LaneDrafts own(args, request_index, drafts);
        const bool is_tree = own.is_tree(args);
        bool is_accepted[2], is_stop_id[2];
        stop_ids.find(own.ids, is_stop_id);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // A row without a token emits -1, which is no id.
            is_accepted[i] = is_tree && own.ids[i] >= 0 && !is_stop_id[i];
        }
        grid_dependency_wait();
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            if (is_accepted[i]) {
                const u32 parent_row = first + (u32)(own.parents[i] + 1), row = first + 1 + LaneDrafts::number(i);
                const int token = (int)*output_word(step, parent_row, OUTPUT_TOKENS);
                // What was judged left padding of all rows but those of the walk, which goes nowhere else.
                const int row_slot = args.flags & DRAFTS_JUDGED ? args.row_slots[row] : 0;
                is_accepted[i] = token == own.ids[i] && row_slot >= 0;
            }
        }
        walk_tree(own, is_accepted, walk);
        walk.is_tree = is_tree;
    } else {
        grid_dependency_wait();
        if (threadIdx.x < rows) {
#pragma unroll
            for (u32 section = 0; section < OUTPUT_SECTIONS; section++) {
                walk.words[section][threadIdx.x] = *output_word(step, first + threadIdx.x, section);
            }
        }
    }
    if (slot < 0) {
        // The step has written the rows' outputs.
        for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
            args.path[first + i] = NO_ROW;
        }
        if (threadIdx.x == 0) {
            args.accepted[place] = 0;
        }
        return;
    }
    // RAW on walk: the last warp wrote the path, the threads of the others the words of their rows; all threads read
    // them. WAR on the outputs: all threads have read the words of their rows, threads move rows. RAW on the request:
    // the first warp copied it, all threads read it.
    __syncthreads();
    const u32 last_row = walk.path[walk.emitted - 1];
    const bool has_last = (int)walk.words[OUTPUT_TOKENS][last_row] != NO_TOKEN;
    // A row that was drawn without a token has a status. Another one did not come, so neither do the rows before it.
    const bool is_cut = in_batch && !has_last && walk.words[OUTPUT_STATUSES][last_row] == 0;
    const u32 emitted = is_cut ? 0 : walk.emitted, tokens = is_cut || has_last ? emitted : emitted - 1;
    compact_words(walk, emitted, step, first, rows);
    for (u32 i = threadIdx.x; i < rows; i += blockDim.x) {
        args.path[first + i] = i < emitted ? first + walk.path[i] : NO_ROW;
    }
    if (threadIdx.x == 32 * WALKING_WARP) {
        args.accepted[place] = is_cut ? 0 : emitted - 1;
        if (is_cut) {
            // The next steps of a graph change no request.
            args.slots[request_index] = -1;
        }
        state.position = position + tokens;
        // A length never passes the capacity of a history, even if the host's count is wrong.
        const u32 room = !has_history                        ? tokens
                         : length < request.history_capacity ? request.history_capacity - length
                                                             : 0;
        state.length = length + (tokens < room ? tokens : room);
        if (tokens != 0) {
            state.step = state_step + 1;
            state.mu_before = mirostat_mu;
            state.mirostat_mu = bits_float(walk.words[OUTPUT_MIROSTAT_MU][last_row]);
            if (features & FEATURE_SECTION && !in_batch) {
                // The last row's history has all emitted tokens but its own. Only this rank's rows have places.
                const State& last = args.row_states[first + last_row];
                state.section_length = last.section_length;
                state.section_is_open = last.section_is_open;
                state.section_start = last.section_start;
                state.loop_end = last.loop_end;
            }
        }
    }
    compact_rows(
        walk, emitted, rows, output_words(step) - OUTPUT_SECTIONS,
        [&](u32 row, u32 word) INLINE { return output_word(step, first + row, OUTPUT_SECTIONS + word); },
        [&](u32 word) INLINE { return padding_word(step, OUTPUT_SECTIONS + word); });
    if (step.kept_bits != nullptr) {
        const u32 words = step.tiles * MASK_WORDS;
        compact_rows(
            walk, emitted, rows, words,
            [&](u32 row, u32 word) INLINE { return step.kept_bits + (u64)(first + row) * words + word; },
            [](u32) INLINE { return 0u; });
    }
    if (!has_history) {
        return;
    }
    for (u32 i = threadIdx.x; i < tokens; i += blockDim.x) {
        const u32 id = walk.words[OUTPUT_TOKENS][walk.path[i]];
        // The host counts tokens and refuses those beyond the capacity; this test keeps the writes in bounds even if
        // that count is wrong.
        if (length + i < request.history_capacity) {
            request.history[length + i] = id;
            if (features & FEATURE_TOKEN_COUNTS) {
                count_output(request, id);
            }
        }
    }
}
