// exchange.cu: sends rows and results between the devices of a group, by writes into the peers' memory.
//
// Computes   digest_drafts: adds the drafts of a step to the digest that the ranks compare in its turn: ids, trees, and
//            the drafter's probabilities
//            send_rows: copies this rank's part of each row into the windows of the ranks that sample it, signals, and
//            waits for the other ranks' parts
//            send_results: sends the results of this rank's rows to all ranks, collects the other ranks' results, and
//            advances the requests whose rows other ranks sampled: by a token, or in a verification by the tokens of a
//            walk. Where devices do not reach each other's memory, a launch sends, messages travel, and another launch
//            collects
// Never      reads the padding after a part; waits past the timeout; writes a window whose rows may still be read
// Twins      host engine/src/ranks/step.rs, verify.rs, alike.rs | why docs/scaling.md
// Shapes     as in DigestDrafts, SendRows and SendResults
// Grid       digest_drafts: `blocks` blocks of 256 threads a request, which share its probabilities
//            send_rows: up to SEND_ROWS_MOST_BLOCKS blocks of 256 threads, of which the last waits for the ranks'
//            blocks
//            send_results: any number of blocks of 512 threads, as many on all ranks. A block waits for the blocks of
//            its number only, so blocks may run one after the other
// Traffic    digest_drafts: 4 to 24 bytes a draft, and of the drafter's rows that have drafts after them a
//            sixteenth, or all of them under gather
//            send_rows: a part in, and once out for each rank that samples the row; send_results: 28 bytes a row, in a
//            verification 28, and 8 for each logprob in, and twice that out for each other rank
// Requires   windows of all ranks, mapped for writes; one turn at a time: one launch of each of both kernels
//            (stage/exchange.cuh)
//
//     digest_drafts: for each request that is no padding: sum up a mixture of each number with its place
//         of rows of probabilities: under gather, where each rank draws for itself, all words; else, where the owner of
//             a request decides for all ranks, those words whose turn it is
//     send_rows: wait until all ranks have ended the previous turn
//         for each chunk of the block: copy it into the window of each rank that samples its row
//         signal the block's end; the last block waits for the blocks of all ranks
//         after a failure: make padding of the step's slots
//     send_results: for each word of this rank's results: store it, with the turn, in the window of each other rank
//         signal the end of the turn
//         for each other rank: receive the words of its rows, and advance the requests of these rows
//         the last block: after a failure, make padding of all results; end the turn
//
// The links' bandwidth decides the first kernel, the latency of one way over them the second:
//
//  1. Neighbours in the order of chunks go to different ranks, and under gather each rank begins with the one after it,
//     so that all links are busy all the time.
//  2. The first chunk is loaded into the second-level cache while the block waits; of the others all loads are in
//     flight before the first store.
//  3. Parts are many bytes, so a block signals its end by one flag, which costs one wait for the link. Results are few
//     words: each is its own flag, as it travels with its turn, and no store waits for another.
//  4. A thread looks its first word and request up before it waits; a failure is tested after the loads that do not
//     depend on it.

#include "stage/exchange.cuh"
#include "stage/lane_drafts.cuh"
#include "stage/row_result.cuh"

// Mixes a word of a list with its place there: a sum over all places tells lists apart in any order of summation.
DEVICE u32 mixed(u32 word, u32 list, u64 place) {
    u32 x = (word ^ (u32)place * 0x9E3779B1u) + list * 0x7FEB352Du;
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}

// Whether a draft follows a row of a request.
DEVICE bool has_draft(const DigestDrafts& args, const DraftRequest& request, u32 row) {
    if (args.first_child != nullptr) {
        const bool is_64_bit = args.link_flags & LINKS_FIRST_CHILD_I64;
        return draft_number(args.first_child, is_64_bit, (u64)request.batch_row + row) != -1;
    }
    const bool is_64_bit = args.flags & DRAFTS_PARENTS_I64;
    u32 draft = row;
    while (args.parents != nullptr && draft < request.draft_count &&
           draft_number(args.parents, is_64_bit, (u64)request.first_draft + draft) != (int)row - 1) {
        draft++;
    }
    return draft < request.draft_count;
}

// Returns the sum over a thread's part of a request's ids and tree.
DEVICE u32 digest_of_tree(const DigestDrafts& args, const DraftRequest& request, u32 request_index) {
    const bool is_path = args.flags & DRAFTS_PROPOSED;
    const u64 first_draft = is_path ? (u64)request_index * args.path_stride : request.first_draft;
    u32 sum = 0;
    for (u32 i = threadIdx.x; i < request.draft_count; i += DIGEST_DRAFTS_THREADS) {
        const u64 draft = first_draft + i;
        sum += mixed((u32)draft_number(args.ids, args.flags & DRAFTS_IDS_I64, draft), 0, draft);
        if (args.parents != nullptr) {
            sum += mixed((u32)draft_number(args.parents, args.flags & DRAFTS_PARENTS_I64, draft), 1, draft);
        }
    }
    for (u32 i = threadIdx.x; args.first_child != nullptr && i <= request.draft_count; i += DIGEST_DRAFTS_THREADS) {
        const u64 row = (u64)request.batch_row + i;
        sum += mixed((u32)draft_number(args.first_child, args.link_flags & LINKS_FIRST_CHILD_I64, row), 2, row);
        sum += mixed((u32)draft_number(args.next_sibling, args.link_flags & LINKS_NEXT_SIBLING_I64, row), 3, row);
    }
    return sum;
}

// Returns the sum over a thread's part of the words of a row of probabilities whose turn it is.
DEVICE u32 digest_of_row(const DigestDrafts& args, u64 row, u32 turn) {
    const u32* words = (const u32*)args.draft_probs + row * args.draft_stride;
    const u32 runs = (args.vocab + DIGEST_RUN_WORDS - 1) / DIGEST_RUN_WORDS;
    const u32 warps = DIGEST_DRAFTS_THREADS / 32, warp = blockIdx.x % args.blocks * warps + warp_id();
    u32 sum = 0;
    for (u32 run = turn % args.runs_apart + warp * args.runs_apart; run < runs;
         run += args.blocks * warps * args.runs_apart) {
#pragma unroll
        for (u32 i = 0; i < DIGEST_RUN_WORDS; i += 32) {
            const u32 id = run * DIGEST_RUN_WORDS + i + threadIdx.x % 32;
            sum += id < args.vocab ? mixed(words[id], 4, row * args.vocab + id) : 0;
        }
    }
    return sum;
}

// A dependent kernel begins once this one has ended: kernels behind it may read the header before they wait.
KERNEL(digest_drafts, DIGEST_DRAFTS_THREADS, DigestDrafts, args) {
    grid_dependency_wait();
    const u32 request_index = blockIdx.x / args.blocks;
    const DraftRequest request = args.requests[request_index];
    if (args.slots[request_index] < 0) {
        return;
    }
    WindowHeader& own = *args.window;
    u32 sum = blockIdx.x % args.blocks == 0 ? digest_of_tree(args, request, request_index) : 0;
    for (u32 row = 0; args.draft_probs != nullptr && row <= request.draft_count; row++) {
        if (has_draft(args, request, row)) {
            sum += digest_of_row(args, (u64)request.batch_row + row, own.turn + 1);
        }
    }
    const u32 of_warp = (u32)warp_sum_u32(sum);
    if (threadIdx.x % 32 == 0 && of_warp != 0) {
        atomicAdd(&own.drafts, of_warp);
    }
}

// Waits until all ranks have ended the previous turn, so that this rank may write their windows; by a whole block.
// Returns false after a failure.
DEVICE bool wait_for_previous_turn(const Peers& peers, u32 turn) {
    WindowHeader& own = window_header(peers, peers.rank);
    bool is_refused = own.failure != 0;
    if (threadIdx.x < peers.world && !is_refused) {
        u64 flag;
        is_refused = !wait_for_flag(peers, threadIdx.x, own.results_sent + threadIdx.x, turn - 1, flag);
    }
    return !__syncthreads_or(is_refused);
}

// The ranks that receive a row: `count` ranks from `first` on, where rank 0 follows the last rank.
struct Receivers {
    u32 first, count;
    // Where the bytes go in each window.
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
        for (u32 receiver = 0; receiver < receivers.count; receiver++) {
            Unit* to = (Unit*)(peers.windows[(receivers.first + receiver) % peers.world] + receivers.offset);
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

// Returns the step's row at a place in the order in which rows are sent; `args.rows` or more if the place is empty.
// Neighbours in this order go to different ranks, so that all links are busy all the time.
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

// Whether a row of the step does not take part in the exchange.
template <class Args>
DEVICE bool is_elsewhere(const Args& args, u32 row) {
    return args.flags & EXCHANGE_PARTIAL && args.slots[row] == SLOT_ELSEWHERE;
}

// A chunk of this rank's part of a row.
struct Chunk {
    u32 row;
    // The byte of the part at which the chunk begins.
    u64 start;
    const char* from;
    u32 bytes;
};

// Returns a chunk by its index in the order in which chunks are sent. Its row is `args.rows` or more if there is no
// such chunk.
DEVICE Chunk chunk_of(const SendRows& args, u32 chunk_index) {
    const u32 row = row_to_send(args, chunk_index / args.chunks_per_row);
    const u64 start = (u64)(chunk_index % args.chunks_per_row) * args.chunk_bytes, left = args.row_bytes - start;
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

// Waits until the other ranks' blocks have sent their parts; by a whole block. `blocks` is shared memory. Returns false
// if a block does not signal in time, or belongs to another step.
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
    const u32 chunk_count = places * args.chunks_per_row;
    // The first chunk is loaded into the second-level cache while the block waits.
    if (blockIdx.x < chunk_count) {
        const Chunk chunk = chunk_of(args, blockIdx.x);
        for (u32 byte = threadIdx.x * 32; chunk.row < args.rows && byte < chunk.bytes; byte += SEND_ROWS_THREADS * 32) {
            prefetch_l2(chunk.from + byte);
        }
    }
    bool succeeds = wait_for_previous_turn(args.peers, turn);
    if (succeeds) {
        for (u32 chunk_index = blockIdx.x; chunk_index < chunk_count; chunk_index += gridDim.x) {
            const Chunk chunk = chunk_of(args, chunk_index);
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

// A word of the outputs of some rows. A verification has one more word a row than the sections: the rows of its walks.
struct OutputWord {
    RowSection section;
    u32 row;
    // The word's place among the words of its row in this section.
    u32 column;
};

// Returns a word of the outputs of `rows` rows by its index.
DEVICE OutputWord word_at(const Step& step, u32 word_index, u32 rows) {
    const RowSection section(step, word_index / rows);
    const u32 in_section = word_index - section.start * rows;
    return OutputWord{section, in_section / section.width, in_section % section.width};
}

// Returns the index of a word in the outputs of `rows` rows, in which its row is `row`.
DEVICE u64 output_index(const OutputWord& word, u32 rows, u32 row) {
    return word.section.index(rows, row, word.column);
}

DEVICE u32 result_words_per_row(const SendResults& args) {
    return output_words(args.step) + (args.requests != nullptr ? 1 : 0);
}

DEVICE u32 batch_row_of(const SendResults& args, u32 row) {
    return args.batch_rows != nullptr ? args.batch_rows[row] : row;
}

// The rows of a rank whose results one block sends, and the block of the same number waits for on other ranks: the rows
// of neighbouring requests. All four are numbers of the assignment.
struct BlockRows {
    u32 first, count;
    u32 first_request, requests;
};

// Returns the first row of a request, or the end of the rows after the last one.
DEVICE u32 first_row_of(const SendResults& args, u32 request) {
    return request < args.first_requests[args.peers.world] ? args.requests[request].first_row : args.rows;
}

// Returns the rows of a block among the rows of some neighbouring requests.
DEVICE BlockRows rows_of_block(const SendResults& args, u32 first_request, u32 requests) {
    const u32 most = gridDim.x == 1 ? requests : requests / gridDim.x + 1, begin = most * blockIdx.x;
    const u32 left = begin < requests ? requests - begin : 0, count = left < most ? left : most;
    const u32 from = first_request + begin;
    if (args.requests == nullptr || count == 0) {
        return BlockRows{from, count, from, count};
    }
    // A graph of the host's that is replayed for more rows than it has ends at its own.
    const u32 first = first_row_of(args, from), end = first_row_of(args, from + count);
    return BlockRows{first, first < end && end <= args.rows ? end - first : 0, from, count};
}

// Returns the rows of a block among the rows that a rank sampled; under gather each samples all.
DEVICE BlockRows rows_of_rank(const SendResults& args, u32 rank) {
    const u32* first = args.first_requests;
    return args.flags & EXCHANGE_GATHER ? rows_of_block(args, 0, first[args.peers.world])
                                        : rows_of_block(args, first[rank], first[rank + 1] - first[rank]);
}

DEVICE u32* own_results(const SendResults& args) {
    return (u32*)(args.peers.windows[args.peers.rank] + args.results_offset);
}

// Returns where the results of a turn arrive in the window of a rank.
DEVICE u64* arrivals_at(const SendResults& args, u32 rank, u32 turn) {
    return (u64*)(args.peers.windows[rank] + args.arrivals_offset + turn % 2 * args.arrivals_bytes);
}

// Returns where the number of accepted drafts of a request lies in the results. In front of its rows in the batch lie a
// row for each draft of the requests before, and one for each of these requests.
DEVICE u64 accepted_index(const SendResults& args, const DraftRequest& request) {
    return (u64)(output_words(args.step) + 1) * args.rows + (request.batch_row - request.first_draft);
}

// Copies the numbers of accepted drafts of a block's requests, which this rank verified, to its results.
DEVICE void copy_accepted(const SendResults& args, const BlockRows& own) {
    const u32* accepted = args.step.outputs + (u64)(output_words(args.step) + 1) * args.step.rows;
    const u32 first = args.flags & EXCHANGE_GATHER ? 0 : args.first_requests[args.peers.rank];
    for (u32 i = threadIdx.x; i < own.requests; i += SEND_RESULTS_THREADS) {
        const u32 request = own.first_request + i;
        own_results(args)[accepted_index(args, args.requests[request])] = accepted[request - first];
    }
}

// Copies this rank's outputs to its results, and sends them to all other ranks unless each rank samples all rows. After
// a failure it sends nothing. `first` is the thread's first word of the block's rows.
DEVICE void send_outputs(const SendResults& args, u32 turn, bool failed, const BlockRows& own,
                         const OutputWord& first) {
    const u32 world = args.flags & EXCHANGE_GATHER ? 0 : args.peers.world;
    for (u32 word_index = threadIdx.x; word_index < own.count * result_words_per_row(args);
         word_index += SEND_RESULTS_THREADS) {
        const OutputWord word = word_index == threadIdx.x ? first : word_at(args.step, word_index, own.count);
        const u32 row = own.first + word.row;
        u32 value = args.step.outputs[output_index(word, args.step.rows, row - args.first_row)];
        if (word.section.start == output_words(args.step) && value != NO_ROW) {
            // The word names a row of a walk: in the results by the row's number in the batch.
            value = batch_row_of(args, args.first_row + value);
        }
        const u64 index = output_index(word, args.rows, batch_row_of(args, row));
        // Tested after the loads above, so that none of them waits for the window's header.
        if (failed) {
            return;
        }
        if (is_elsewhere(args, row)) {
            continue;
        }
        for (u32 rank = 0; rank < world; rank++) {
            if (rank != args.peers.rank) {
                store_relaxed_system(arrivals_at(args, rank, turn) + index, flag_of(turn, value));
            }
        }
        own_results(args)[index] = value;
    }
}

// Returns the rows of a rank that the block collects: none if this rank samples them.
DEVICE BlockRows rows_to_collect(const SendResults& args, u32 rank) {
    const bool is_here = rank == args.peers.rank || args.flags & EXCHANGE_GATHER;
    return is_here ? BlockRows{0, 0, 0, 0} : rows_of_rank(args, rank);
}

// Returns in whose window lies what a rank has sent here: this rank's, or the copy that a message has brought.
DEVICE u32 window_of_arrivals(const SendResults& args, u32 rank) {
    return args.flags & EXCHANGE_COLLECTS ? rank : args.peers.rank;
}

// Returns where a word of some rows lies in the results of the batch.
DEVICE u64 index_in_batch(const SendResults& args, u32 word_index, const BlockRows& rows) {
    const OutputWord word = word_at(args.step, word_index, rows.count);
    return output_index(word, args.rows, batch_row_of(args, rows.first + word.row));
}

// Receives the results of some rows from a rank into this rank's results. Returns false if a word does not come in
// time. `first` is the index of the thread's first word in the results of the batch.
DEVICE bool receive(const SendResults& args, u32 rank, const BlockRows& rows, u64 first, u32 turn) {
    for (u32 word_index = threadIdx.x; word_index < rows.count * result_words_per_row(args);
         word_index += SEND_RESULTS_THREADS) {
        if (args.flags & EXCHANGE_PARTIAL &&
            is_elsewhere(args, rows.first + word_at(args.step, word_index, rows.count).row)) {
            continue;
        }
        const u64 index = word_index == threadIdx.x ? first : index_in_batch(args, word_index, rows);
        const u64* place = arrivals_at(args, window_of_arrivals(args, rank), turn) + index;
        u64 arrived;
        if (!wait_for_word(
                args.peers, rank, arrived, [&] { return load_relaxed_system(place); },
                [&](u64 found) { return turn_of(found) == turn; })) {
            return false;
        }
        own_results(args)[index] = (u32)arrived;
    }
    return true;
}

// A request whose row another rank sampled.
struct RemoteRequest {
    // -1 for padding.
    int slot;
    u32 features;
    State state;
};

DEVICE RemoteRequest load_remote_request(const SendResults& args, u32 row) {
    RemoteRequest remote{args.slots[row], 0, State{}};
    if (remote.slot >= 0) {
        remote.features = args.step.params[remote.slot].features;
        remote.state = args.step.states[remote.slot];
    }
    return remote;
}

// Advances a request by the token of its row, if the step advances requests. Returns false if the token is outside the
// vocabulary.
DEVICE bool advance_by_token(const SendResults& args, u32 rank, u32 row, RemoteRequest remote) {
    const u32* results = own_results(args) + batch_row_of(args, row);
    const int token = (int)results[(u64)OUTPUT_TOKENS * args.rows];
    if (remote.slot < 0 || token == NO_TOKEN) {
        return true;
    }
    if ((u32)token >= args.step.vocab) {
        fail(window_header(args.peers, args.peers.rank), FAILURE_CORRUPT, rank);
        return false;
    }
    if (!advances(args.step, token)) {
        return true;
    }
    args.step.states[remote.slot].mirostat_mu = bits_float(results[(u64)OUTPUT_MIROSTAT_MU * args.rows]);
    args.step.states[remote.slot].mu_before = remote.state.mirostat_mu;
    const Request& request = args.step.requests[remote.slot];
    advance_request(args.step, request, remote.slot, remote.features, remote.state, (u32)token);
    return true;
}

// Advances a request by the tokens of its walk, which another rank sent; by one thread. Returns false if they are not a
// walk.
DEVICE bool advance_by_walk(const SendResults& args, u32 rank, u32 request_index) {
    const DraftRequest drafts = args.requests[request_index];
    const u32 rows = drafts.draft_count + 1;
    const u32* results = own_results(args) + drafts.batch_row;
    const int* tokens = (const int*)results + (u64)OUTPUT_TOKENS * args.rows;
    const u32* path = results + (u64)output_words(args.step) * args.rows;
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
    own_results(args)[accepted_index(args, drafts)] = emitted == 0 ? 0 : emitted - 1;
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
        state.length = args.step.states[slot].length;
    }
    return true;
}

// Collects the other ranks' results, and advances the requests that they sampled; by a whole block. Returns false if a
// result does not come in time, or is invalid.
DEVICE bool collect_results(const SendResults& args, u32 turn, u32 digest) {
    const Peers& peers = args.peers;
    // Each thread looks its first word and request up before it waits for results.
    const u32 first_peer = peers.rank == 0 && peers.world > 1 ? 1 : 0;
    const BlockRows first_rows = rows_to_collect(args, first_peer);
    RemoteRequest first{-1, 0, State{}};
    if (args.requests == nullptr && threadIdx.x < first_rows.count) {
        first = load_remote_request(args, first_rows.first + threadIdx.x);
    }
    const bool has_word = threadIdx.x < first_rows.count * result_words_per_row(args);
    const u64 first_index = has_word ? index_in_batch(args, threadIdx.x, first_rows) : 0;
    bool succeeds = true;
    if (threadIdx.x < peers.world && threadIdx.x != peers.rank) {
        u64 flag;
        const WindowHeader& arrived = window_header(peers, window_of_arrivals(args, threadIdx.x));
        succeeds = wait_for_flag(peers, threadIdx.x, arrived.results_sent + threadIdx.x, turn, flag) &&
                   is_same_step(peers, threadIdx.x, flag, flag_of(turn, digest));
    }
    // A rank that takes another step may send no results.
    if (__syncthreads_or(!succeeds)) {
        return false;
    }
    for (u32 rank = 0; rank < peers.world && succeeds; rank++) {
        const BlockRows rows = rows_to_collect(args, rank);
        const bool is_first = rank == first_peer || threadIdx.x >= rows.count * result_words_per_row(args);
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
                succeeds = advance_by_walk(args, rank, rows.first_request + i) && succeeds;
                continue;
            }
            const bool is_first = rank == first_peer && i == threadIdx.x;
            const RemoteRequest remote = is_first ? first : load_remote_request(args, rows.first + i);
            succeeds = advance_by_token(args, rank, rows.first + i, remote) && succeeds;
        }
    }
    return !__syncthreads_or(!succeeds);
}

// A whole block writes the results of padding for the whole batch, so that no reader takes results of an earlier step,
// or of the rows that did arrive, for the results of this step.
DEVICE void pad_results(const SendResults& args) {
    u32* results = own_results(args);
    const u32 words = args.rows * result_words_per_row(args);
    for (u32 word_index = threadIdx.x; word_index < words; word_index += SEND_RESULTS_THREADS) {
        const u32 word = word_at(args.step, word_index, args.rows).section.start;
        results[word_index] = word == output_words(args.step) ? NO_ROW : padding_word(args.step, word);
    }
    const u32 requests = args.requests != nullptr ? args.first_requests[args.peers.world] : 0;
    for (u32 i = threadIdx.x; i < requests; i += SEND_RESULTS_THREADS) {
        // The numbers of accepted drafts lie after the rows of the walks.
        results[words + i] = 0;
    }
}

// Whether all other blocks of the grid have ended; by the whole block, which then sees what they wrote. `is_last_word`
// is a word of shared memory.
DEVICE bool is_last_block(WindowHeader& own, u32& is_last_word) {
    if (gridDim.x == 1) {
        return true;
    }
    // RAW on the block's results: all threads wrote them, thread 0 publishes them.
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        is_last_word = atomicAdd(&own.blocks_done, 1u) + 1 == gridDim.x;
        __threadfence();
    }
    // RAW on is_last_word: thread 0 wrote it, all threads read it.
    __syncthreads();
    return is_last_word != 0;
}

KERNEL(send_results, SEND_RESULTS_THREADS, SendResults, args) {
    __shared__ u32 is_last_word;
    warm_constant_bank(args);
    const BlockRows rows = rows_of_rank(args, args.peers.rank);
    const bool has_word = threadIdx.x < rows.count * result_words_per_row(args);
    const OutputWord first =
        has_word ? word_at(args.step, threadIdx.x, rows.count) : OutputWord{RowSection(args.step, 0), 0, 0};
    grid_dependency_wait();
    WindowHeader& own = window_header(args.peers, args.peers.rank);
    const u32 turn = own.turn + 1, digest = step_digest(own, args.row_digest), failure = own.failure;
    const bool sends = !(args.flags & EXCHANGE_COLLECTS);
    if (sends) {
        send_outputs(args, turn, failure != 0, rows, first);
    }
    if (sends && args.requests != nullptr && failure == 0) {
        copy_accepted(args, rows);
    }
    if (sends && failure == 0 && blockIdx.x == 0 && threadIdx.x < args.peers.world) {
        // The flag also says that the kernels have ended which read the rows of this turn. It need not wait for earlier
        // stores, because each word of the results is its own flag.
        u64* flags = window_header(args.peers, threadIdx.x).results_sent;
        store_relaxed_system(flags + args.peers.rank, flag_of(turn, digest));
    }
    if (args.flags & EXCHANGE_SENDS) {
        return;
    }
    // All threads see a failure, or none: barriers follow.
    bool succeeds = !__syncthreads_or(failure != 0);
    if (succeeds && (args.flags & (EXCHANGE_GATHER | EXCHANGE_COLLECTS)) != EXCHANGE_GATHER) {
        succeeds = collect_results(args, turn, digest);
    }
    if (!is_last_block(own, is_last_word)) {
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
        end_turn(own, turn);
    }
}
