// exchange.cu: rows and results on their way between the devices of a group, written into the peers' memory.
//
// Computes   send_rows: copies this rank's part of each row into the windows of the ranks that sample it, signals, and
//                waits for the other ranks' parts
//            send_results: sends what came out of this rank's rows to all ranks, collects what comes from these, and
//                advances the requests whose rows other ranks sampled: by a token, or in a verification by those of a walk
// Never      reads the padding behind a part; waits past the timeout; writes a window whose rows may still be read
// Twins      host engine/src/ranks/step.rs, verify.rs | why docs/scaling.md
// Shapes     as in SendRows and SendResults
// Grid       send_rows: up to SEND_ROWS_MOST_BLOCKS blocks of 256 threads, of which the last waits for the ranks' blocks
//            send_results: any number of blocks of 512 threads, as many on all ranks. A block waits for those of its number.
//            So blocks may run one after the other.
// Traffic    send_rows: a part in, and once out for each rank that samples the row; send_results: 24 bytes a row, in a
//            verification 28, and 8 for each logprob in, and twice that out for each other rank
// Requires   windows of all ranks, mapped for writes; one turn of both kernels at a time

#include "stage/exchange.cuh"
#include "stage/row_result.cuh"

// Waits until all ranks have ended the turn before, so that this rank may write their windows; by a whole block. Returns false
// if it must not.
DEVICE bool wait_for_last_turn(const Peers& peers, u32 turn) {
    WindowHeader& own = window_header(peers, peers.rank);
    bool is_refused = own.failure != 0;
    if (threadIdx.x < peers.world && !is_refused) {
        u64 flag;
        is_refused = !wait_for_flag(peers, threadIdx.x, own.results_sent + threadIdx.x, turn - 1, flag);
    }
    return !__syncthreads_or(is_refused);
}

// Where a row goes: to `copies` ranks from `first` on, of which the one behind the last rank is rank 0.
struct Receivers {
    u32 first, copies;
    // Where the bytes go in the windows.
    u64 offset;
};

// Copies bytes to all receivers, by a whole block; a thread has COUNT units in flight.
template <class Unit, u32 COUNT>
DEVICE void copy_units(const char* from, u32 bytes, const Peers& peers, const Receivers& receivers) {
    const u32 units = bytes / sizeof(Unit);
    for (u32 start = threadIdx.x; start < units; start += COUNT * SEND_ROWS_THREADS) {
        // All loads are in flight before the first store waits for one.
        Unit unit[COUNT];
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            const u32 index = start + i * SEND_ROWS_THREADS;
            if (index < units) {
                unit[i] = ((const Unit*)from)[index];
            }
        }
        for (u32 copy = 0; copy < receivers.copies; copy++) {
            Unit* to = (Unit*)(peers.windows[(receivers.first + copy) % peers.world] + receivers.offset);
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) {
                const u32 index = start + i * SEND_ROWS_THREADS;
                if (index < units) {
                    to[index] = unit[i];
                }
            }
        }
    }
}

// Returns the rank that owns a row of the step.
DEVICE u32 owner_of(const u32* first_rows, u32 row) {
    u32 rank = 0;
    while (row >= first_rows[rank + 1]) {
        rank++;
    }
    return rank;
}

// Returns the step's row of a place in the order in which rows are sent, `args.rows` or more if there is none there.
// Neighbours go to different ranks, so that all links are busy all the time.
DEVICE u32 row_to_send(const SendRows& args, u32 place) {
    if (args.flags & EXCHANGE_GATHER) {
        return place;
    }
    const u32 rank = place % args.peers.world, row = args.first_rows[rank] + place / args.peers.world;
    return row < args.first_rows[rank + 1] ? row : args.rows;
}

// Returns the ranks that sample a row, and where its start lies in their windows.
DEVICE Receivers receivers_of(const SendRows& args, u32 row) {
    const u64 offset = args.rows_offset + args.part_offset;
    if (args.flags & EXCHANGE_GATHER) {
        // Each rank begins with its neighbour, so that not all ranks write to the same one.
        return Receivers{args.peers.rank + 1, args.peers.world, offset + row * args.window_stride_bytes};
    }
    const u32 rank = owner_of(args.first_rows, row);
    return Receivers{rank, 1, offset + (row - args.first_rows[rank]) * args.window_stride_bytes};
}

// Whether a row of the step is no part of its exchange.
template <class Args>
DEVICE bool is_elsewhere(const Args& args, u32 row) {
    return args.flags & EXCHANGE_PARTIAL && args.slots[row] == SLOT_ELSEWHERE;
}

// A chunk of this rank's part of a row.
struct Chunk {
    u32 row;
    // Where it begins in the part.
    u64 start;
    const char* from;
    u32 bytes;
};

// Returns a chunk in the order in which chunks are sent; of row `args.rows` or a later one if there is none there.
DEVICE Chunk chunk_of(const SendRows& args, u32 item) {
    const u32 row = row_to_send(args, item / args.chunks_per_row);
    const u64 start = (u64)(item % args.chunks_per_row) * args.chunk_bytes, left = args.row_bytes - start;
    const u32 batch_row = args.batch_rows != nullptr && row < args.rows ? args.batch_rows[row] : row;
    const char* from = (const char*)args.parts + batch_row * args.stride_bytes + start;
    return Chunk{row, start, from, left < args.chunk_bytes ? (u32)left : args.chunk_bytes};
}

// Copies a chunk into the windows of the ranks that sample its row.
DEVICE void send_chunk(const SendRows& args, const Chunk& chunk) {
    const auto [row, start, from, bytes] = chunk;
    Receivers receivers = receivers_of(args, row);
    receivers.offset += start;
    if (args.unit_bytes == sizeof(U32x4)) {
        copy_units<U32x4, 4>(from, bytes, args.peers, receivers);
    } else if (args.unit_bytes == sizeof(u32)) {
        copy_units<u32, 8>(from, bytes, args.peers, receivers);
    } else {
        copy_units<unsigned short, 8>(from, bytes, args.peers, receivers);
    }
}

// Returns the flag of a rank's block in the window of `receiver`.
DEVICE u64* block_flag(const SendRows& args, u32 receiver, u32 rank, u32 block) {
    return (u64*)(args.peers.windows[receiver] + args.block_flags_offset) + rank * SEND_ROWS_MOST_BLOCKS + block;
}

// Tells the other ranks that a block has sent its parts; by the whole block.
DEVICE void signal_block(const SendRows& args, u32 turn, u32 digest) {
    const Peers& peers = args.peers;
    const bool is_peer = threadIdx.x < peers.world && threadIdx.x != peers.rank;
    if (is_peer && blockIdx.x == 0) {
        store_relaxed_system(window_header(peers, threadIdx.x).rows_coming + peers.rank, flag_of(turn, gridDim.x));
    }
    // RAW on the rows: all threads of the block wrote them, a few publish them.
    __syncthreads();
    if (is_peer) {
        store_release_system(block_flag(args, threadIdx.x, peers.rank, blockIdx.x), flag_of(turn, digest));
    }
}

// Waits until the other ranks' blocks have sent their parts; by a whole block. `blocks` is shared memory. Returns false if
// some do not come, or belong to another step.
DEVICE bool wait_for_blocks(const SendRows& args, u32 turn, u32 digest, u32 (&blocks)[MAX_RANKS]) {
    const Peers& peers = args.peers;
    WindowHeader& own = window_header(peers, peers.rank);
    bool is_late = false;
    if (threadIdx.x < peers.world) {
        const u32 rank = threadIdx.x;
        u64 flag = 0;
        is_late = rank != peers.rank && !wait_for_flag(peers, rank, own.rows_coming + rank, turn, flag);
        const u32 count = (u32)flag;
        blocks[rank] = count < SEND_ROWS_MOST_BLOCKS ? count : SEND_ROWS_MOST_BLOCKS;
    }
    if (__syncthreads_or(is_late)) {
        return false;
    }
    for (u32 rank = 0; rank < peers.world; rank++) {
        for (u32 block = threadIdx.x; block < blocks[rank] && !is_late; block += SEND_ROWS_THREADS) {
            u64 flag;
            is_late = !wait_for_flag(peers, rank, block_flag(args, peers.rank, rank, block), turn, flag) ||
                      !is_same_step(peers, rank, flag, flag_of(turn, digest));
        }
    }
    return !__syncthreads_or(is_late);
}

KERNEL_MIN_BLOCKS(send_rows, SEND_ROWS_THREADS, 4, SendRows, args) {
    __shared__ u32 blocks[MAX_RANKS];
    warm_constant_bank(args);
    grid_dependency_wait();
    const WindowHeader& own = window_header(args.peers, args.peers.rank);
    const u32 turn = own.turn + 1, digest = step_digest(own, args.row_digest);
    const u32 places = args.flags & EXCHANGE_GATHER ? args.rows : args.most_rows * args.peers.world;
    const u32 items = places * args.chunks_per_row;
    // The first chunk comes from memory while the block waits.
    if (blockIdx.x < items) {
        const Chunk chunk = chunk_of(args, blockIdx.x);
        for (u32 byte = threadIdx.x * 32; chunk.row < args.rows && byte < chunk.bytes; byte += SEND_ROWS_THREADS * 32) {
            prefetch_l2(chunk.from + byte);
        }
    }
    bool succeeds = wait_for_last_turn(args.peers, turn);
    if (succeeds) {
        for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
            const Chunk chunk = chunk_of(args, item);
            if (chunk.row < args.rows && !is_elsewhere(args, chunk.row)) {
                send_chunk(args, chunk);
            }
        }
        signal_block(args, turn, digest);
    }
    if (blockIdx.x + 1 < gridDim.x) {
        return;
    }
    succeeds = succeeds && wait_for_blocks(args, turn, digest, blocks);
    if (!succeeds) {
        // The step's kernels read no logits of padding, and change no request for it.
        for (u32 i = threadIdx.x; i < args.slot_count; i += SEND_ROWS_THREADS) {
            args.slots[i] = -1;
        }
    }
}

// A word of some rows' outputs. The sections are those of Layout in gumball-spec: six with a word a row, two of
// `top_n_width` words a row, and two of `ids_width`. A verification has one more, with a word a row: the rows of its walks.
struct Word {
    // The words that a row has in the sections before, and in this one.
    u32 words_before, width;
    u32 row;
    // Which of the section's words of the row it is.
    u32 column;
};

// The words that a row has in the sections of Layout.
DEVICE u32 words_of_outputs(const Step& step) { return OUTPUT_SECTIONS + 2 * step.top_n_width + 2 * step.ids_width; }

// Returns a word of the outputs of `rows` rows.
DEVICE Word word_of(const Step& step, u32 number, u32 rows) {
    const u32 top_n = step.top_n_width, ids = step.ids_width;
    u32 words_before = number / rows, width = 1;
    if (words_before >= OUTPUT_SECTIONS && words_before < words_of_outputs(step)) {
        const u32 ids_begin = OUTPUT_SECTIONS + 2 * top_n;
        const u32 begin = words_before < ids_begin ? OUTPUT_SECTIONS : ids_begin;
        width = words_before < ids_begin ? top_n : ids;
        words_before = begin + (words_before - begin) / width * width;
    }
    const u32 in_section = number - words_before * rows;
    return Word{words_before, width, in_section / width, in_section % width};
}

// Returns where a word lies in the outputs of `rows` rows, in which its row is `row`.
DEVICE u64 index_of(const Word& word, u32 rows, u32 row) {
    return (u64)word.words_before * rows + row * word.width + word.column;
}

DEVICE u32 words_per_row(const SendResults& args) {
    return words_of_outputs(args.step) + (args.requests != nullptr ? 1 : 0);
}

DEVICE u32 batch_row_of(const SendResults& args, u32 row) {
    return args.batch_rows != nullptr ? args.batch_rows[row] : row;
}

// The rows of a rank whose results a block sends, and the same block of the other ranks awaits: those of neighbouring
// requests. Numbers are those of the assignment.
struct BlockRows {
    u32 first, count;
    u32 first_request, requests;
};

// Returns the first row of a request, or the end of the rows behind the last one.
DEVICE u32 first_row_of(const SendResults& args, u32 request) {
    return request < args.first_requests[args.peers.world] ? args.requests[request].first_row : args.rows;
}

// Returns the rows of a block among those of some neighbouring requests.
DEVICE BlockRows rows_of_block(const SendResults& args, u32 first_request, u32 requests) {
    const u32 most = gridDim.x == 1 ? requests : requests / gridDim.x + 1, begin = most * blockIdx.x;
    const u32 left = begin < requests ? requests - begin : 0, count = left < most ? left : most;
    const u32 from = first_request + begin;
    if (args.requests == nullptr || count == 0) {
        return BlockRows{from, count, from, count};
    }
    const u32 first = first_row_of(args, from);
    return BlockRows{first, first_row_of(args, from + count) - first, from, count};
}

// Returns the rows of a block among those that a rank sampled; under gather each samples all.
DEVICE BlockRows rows_of_rank(const SendResults& args, u32 rank) {
    const u32* first = args.first_requests;
    return args.flags & EXCHANGE_GATHER ? rows_of_block(args, 0, first[args.peers.world])
                                        : rows_of_block(args, first[rank], first[rank + 1] - first[rank]);
}

DEVICE u32* results_of(const SendResults& args) {
    return (u32*)(args.peers.windows[args.peers.rank] + args.results_offset);
}

// Returns where results of a turn arrive in the window of a rank.
DEVICE u64* arrivals_of(const SendResults& args, u32 rank, u32 turn) {
    return (u64*)(args.peers.windows[rank] + args.arrivals_offset + turn % 2 * args.arrivals_bytes);
}

// Returns where the number of accepted drafts of a request lies in the results. In front of its rows in the batch lie a row
// for each draft of the requests before, and one for each of these requests.
DEVICE u64 accepted_index(const SendResults& args, const DraftRequest& request) {
    return (u64)(words_of_outputs(args.step) + 1) * args.rows + (request.batch_row - request.first_draft);
}

// Copies the numbers of accepted drafts of a block's requests, which this rank verified, to its results.
DEVICE void copy_accepted(const SendResults& args, const BlockRows& own) {
    const u32* accepted = args.step.outputs + (u64)(words_of_outputs(args.step) + 1) * args.step.rows;
    const u32 first = args.flags & EXCHANGE_GATHER ? 0 : args.first_requests[args.peers.rank];
    for (u32 i = threadIdx.x; i < own.requests; i += SEND_RESULTS_THREADS) {
        const u32 request = own.first_request + i;
        results_of(args)[accepted_index(args, args.requests[request])] = accepted[request - first];
    }
}

// Copies outputs of this rank to its results, and sends them to all other ranks unless these sample the rows, too.
// After a failure nothing is sent. `first` is the thread's first word of the block's rows.
DEVICE void send_outputs(const SendResults& args, u32 turn, bool failed, const BlockRows& own, const Word& first) {
    const u32 world = args.flags & EXCHANGE_GATHER ? 0 : args.peers.world;
    for (u32 number = threadIdx.x; number < own.count * words_per_row(args); number += SEND_RESULTS_THREADS) {
        const Word word = number == threadIdx.x ? first : word_of(args.step, number, own.count);
        const u32 row = own.first + word.row;
        u32 value = args.step.outputs[index_of(word, args.step.rows, row - args.first_row)];
        if (word.words_before == words_of_outputs(args.step) && value != NO_ROW) {
            // A row of a walk, which the results name by its number in the batch.
            value = batch_row_of(args, args.first_row + value);
        }
        const u64 index = index_of(word, args.rows, batch_row_of(args, row));
        // Asked here, so that no load waits for the window's header.
        if (failed) {
            return;
        }
        if (is_elsewhere(args, row)) {
            continue;
        }
        for (u32 rank = 0; rank < world; rank++) {
            if (rank != args.peers.rank) {
                store_relaxed_system(arrivals_of(args, rank, turn) + index, flag_of(turn, value));
            }
        }
        results_of(args)[index] = value;
    }
}

// Returns the rows of a rank that the block collects; none of its own.
DEVICE BlockRows rows_to_collect(const SendResults& args, u32 rank) {
    return rank == args.peers.rank ? BlockRows{0, 0, 0, 0} : rows_of_rank(args, rank);
}

// Returns where a word of some rows lies in the results of the batch.
DEVICE u64 index_in_batch(const SendResults& args, u32 number, const BlockRows& rows) {
    const Word word = word_of(args.step, number, rows.count);
    return index_of(word, args.rows, batch_row_of(args, rows.first + word.row));
}

// Copies the results of some rows, which a rank sends, to this rank's. Returns false if they do not come. `first` is where the
// thread's first word lies in the batch.
DEVICE bool receive(const SendResults& args, u32 rank, const BlockRows& rows, u64 first, u32 turn) {
    for (u32 number = threadIdx.x; number < rows.count * words_per_row(args); number += SEND_RESULTS_THREADS) {
        if (args.flags & EXCHANGE_PARTIAL &&
            is_elsewhere(args, rows.first + word_of(args.step, number, rows.count).row)) {
            continue;
        }
        const u64 index = number == threadIdx.x ? first : index_in_batch(args, number, rows);
        const u64* place = arrivals_of(args, args.peers.rank, turn) + index;
        u64 arrived;
        if (!wait_for_word(
                args.peers, rank, arrived, [&] { return load_relaxed_system(place); },
                [&](u64 found) { return turn_of(found) == turn; })) {
            return false;
        }
        results_of(args)[index] = (u32)arrived;
    }
    return true;
}

// A request that another rank drew a token for.
struct Drawn {
    // -1 for padding.
    int slot;
    u32 features;
    State state;
};

DEVICE Drawn load_drawn(const SendResults& args, u32 row) {
    Drawn drawn{args.slots[row], 0, State{}};
    if (drawn.slot >= 0) {
        drawn.features = args.step.params[drawn.slot].features;
        drawn.state = args.step.states[drawn.slot];
    }
    return drawn;
}

// Advances a request by the results of its row. Returns false if these are none.
DEVICE bool advance_drawn(const SendResults& args, u32 rank, u32 row, Drawn drawn) {
    const u32* results = results_of(args) + batch_row_of(args, row);
    const int token = (int)results[(u64)OUTPUT_TOKENS * args.rows];
    if (drawn.slot < 0 || !advances(args.step, token)) {
        return true;
    }
    if ((u32)token >= args.step.vocab) {
        fail(window_header(args.peers, args.peers.rank), FAILURE_CORRUPT, rank);
        return false;
    }
    args.step.states[drawn.slot].mirostat_mu = bits_float(results[(u64)OUTPUT_MIROSTAT_MU * args.rows]);
    args.step.states[drawn.slot].mu_before = drawn.state.mirostat_mu;
    const Request& request = args.step.requests[drawn.slot];
    advance_request(args.step, request, drawn.slot, drawn.features, drawn.state, (u32)token);
    return true;
}

// Advances a request by the tokens of its walk, which another rank sent; by one thread. Returns false if these are none of a walk.
DEVICE bool advance_walked(const SendResults& args, u32 rank, u32 request_index) {
    const DraftRequest drafts = args.requests[request_index];
    const u32 rows = drafts.draft_count + 1;
    const u32* results = results_of(args) + drafts.batch_row;
    const int* tokens = (const int*)results + (u64)OUTPUT_TOKENS * args.rows;
    const u32* path = results + (u64)words_of_outputs(args.step) * args.rows;
    const int slot = args.slots[request_index];
    u32 emitted = 0, token_count = 0;
    bool is_walk = true;
    while (emitted < rows && path[emitted] != NO_ROW) {
        const int token = tokens[emitted];
        is_walk &= path[emitted] - drafts.batch_row < rows && token_count == emitted;
        is_walk &= token == NO_TOKEN || (u32)token < args.step.vocab;
        // Only the last row of a walk may have no token.
        token_count += token != NO_TOKEN;
        emitted++;
    }
    if (!is_walk || (emitted != 0) != (slot >= 0)) {
        fail(window_header(args.peers, args.peers.rank), FAILURE_CORRUPT, rank);
        return false;
    }
    results_of(args)[accepted_index(args, drafts)] = emitted == 0 ? 0 : emitted - 1;
    if (token_count == 0) {
        return true;
    }
    State state = args.step.states[slot];
    args.step.states[slot].mirostat_mu = bits_float(results[(u64)OUTPUT_MIROSTAT_MU * args.rows + emitted - 1]);
    args.step.states[slot].mu_before = state.mirostat_mu;
    const u32 features = args.step.params[slot].features;
    for (u32 i = 0; i < token_count; i++) {
        advance_request(args.step, args.step.requests[slot], slot, features, state, (u32)tokens[i]);
        // A walk is one step of the request.
        state.position++;
        state.length++;
    }
    return true;
}

// Collects what other ranks send, and advances the requests that they sampled; by a whole block. Returns false if something
// does not come or is not right.
DEVICE bool collect(const SendResults& args, u32 turn, u32 digest) {
    const Peers& peers = args.peers;
    WindowHeader& own = window_header(peers, peers.rank);
    // A thread's first word and request are looked up while results are on their way.
    const u32 first_peer = peers.rank == 0 && peers.world > 1 ? 1 : 0;
    const BlockRows first_rows = rows_to_collect(args, first_peer);
    Drawn first{-1, 0, State{}};
    if (args.requests == nullptr && threadIdx.x < first_rows.count) {
        first = load_drawn(args, first_rows.first + threadIdx.x);
    }
    const bool has_word = threadIdx.x < first_rows.count * words_per_row(args);
    const u64 first_index = has_word ? index_in_batch(args, threadIdx.x, first_rows) : 0;
    bool succeeds = true;
    if (threadIdx.x < peers.world && threadIdx.x != peers.rank) {
        u64 flag;
        succeeds = wait_for_flag(peers, threadIdx.x, own.results_sent + threadIdx.x, turn, flag) &&
                   is_same_step(peers, threadIdx.x, flag, flag_of(turn, digest));
    }
    // Ranks that take another step may send nothing more.
    if (__syncthreads_or(!succeeds)) {
        return false;
    }
    for (u32 rank = 0; rank < peers.world && succeeds; rank++) {
        const BlockRows rows = rows_to_collect(args, rank);
        const bool is_first = rank == first_peer || threadIdx.x >= rows.count * words_per_row(args);
        succeeds = receive(args, rank, rows, is_first ? first_index : index_in_batch(args, threadIdx.x, rows), turn);
    }
    // RAW on results: the threads of a row's words wrote them, one thread of the row's request reads them.
    if (__syncthreads_or(!succeeds)) {
        return false;
    }
    for (u32 rank = 0; rank < peers.world; rank++) {
        const BlockRows rows = rows_to_collect(args, rank);
        for (u32 i = threadIdx.x; i < rows.requests; i += SEND_RESULTS_THREADS) {
            if (args.requests != nullptr) {
                succeeds = advance_walked(args, rank, rows.first_request + i) && succeeds;
                continue;
            }
            const bool is_first = rank == first_peer && i == threadIdx.x;
            const Drawn drawn = is_first ? first : load_drawn(args, rows.first + i);
            succeeds = advance_drawn(args, rank, rows.first + i, drawn) && succeeds;
        }
    }
    return !__syncthreads_or(!succeeds);
}

// Makes the results of the whole batch those of padding, by a whole block: nothing of an earlier step, or of rows that did come, may
// be taken for what this one drew.
DEVICE void pad_results(const SendResults& args) {
    u32* results = results_of(args);
    const u32 words = args.rows * words_per_row(args);
    for (u32 number = threadIdx.x; number < words; number += SEND_RESULTS_THREADS) {
        const u32 word = word_of(args.step, number, args.rows).words_before;
        results[number] = word == words_of_outputs(args.step) ? NO_ROW : padding_word(args.step, word);
    }
    const u32 requests = args.requests != nullptr ? args.first_requests[args.peers.world] : 0;
    for (u32 i = threadIdx.x; i < requests; i += SEND_RESULTS_THREADS) {
        // The numbers of accepted drafts lie behind the rows of the walks.
        results[words + i] = 0;
    }
}

// Whether all other blocks of the grid have come here; by the whole block, which sees what they wrote then. `shared` is a
// word of shared memory.
DEVICE bool is_last_block(WindowHeader& own, u32& shared) {
    if (gridDim.x == 1) {
        return true;
    }
    // RAW on all that the block wrote: its threads wrote it, thread 0 publishes it.
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        shared = atomicAdd(&own.blocks_done, 1u) + 1 == gridDim.x;
        __threadfence();
    }
    // RAW on shared: thread 0 wrote it, all threads read it.
    __syncthreads();
    return shared != 0;
}

KERNEL(send_results, SEND_RESULTS_THREADS, SendResults, args) {
    __shared__ u32 shared;
    warm_constant_bank(args);
    const BlockRows rows = rows_of_rank(args, args.peers.rank);
    const bool has_word = threadIdx.x < rows.count * words_per_row(args);
    const Word first = has_word ? word_of(args.step, threadIdx.x, rows.count) : Word{0, 1, 0, 0};
    grid_dependency_wait();
    WindowHeader& own = window_header(args.peers, args.peers.rank);
    const u32 turn = own.turn + 1, digest = step_digest(own, args.row_digest), failure = own.failure;
    send_outputs(args, turn, failure != 0, rows, first);
    if (args.requests != nullptr && failure == 0) {
        copy_accepted(args, rows);
    }
    if (failure == 0 && blockIdx.x == 0 && threadIdx.x < args.peers.world) {
        // Says that rows of this turn are read no more, too: the kernels that read them have ended. So the flag need not wait
        // for earlier stores, and the results bear their own.
        u64* flags = window_header(args.peers, threadIdx.x).results_sent;
        store_relaxed_system(flags + args.peers.rank, flag_of(turn, digest));
    }
    // All threads see a failure, or none: barriers follow.
    bool succeeds = !__syncthreads_or(failure != 0);
    if (succeeds && !(args.flags & EXCHANGE_GATHER)) {
        succeeds = collect(args, turn, digest);
    }
    if (!is_last_block(own, shared)) {
        return;
    }
    if (gridDim.x > 1 ? has_failed(own) : !succeeds) {
        pad_results(args);
        for (u32 i = threadIdx.x; i < args.first_requests[args.peers.world]; i += SEND_RESULTS_THREADS) {
            // The next steps of a graph change no request.
            args.slots[i] = -1;
        }
    }
    if (threadIdx.x == 0) {
        own.turn = turn;
        own.blocks_done = 0;
    }
}
