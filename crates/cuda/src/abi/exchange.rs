//! The arguments of the kernels that exchange rows and results between the devices of a group:
//! `abi/exchange.cuh` is generated from this file.
//!
//! Addresses are in the runtime's memory, or in that of a peer which the runtime has mapped.

use crate::abi::header::shared;
use crate::abi::step::Step;

const _: () = assert!(MAX_SURVEYED_RANKS <= 32 && MAX_RANKS <= 16 && MAX_RANKS <= SEND_ROWS_THREADS as usize);

shared! {
    /// the arguments of the kernels of exchange.cu, and what these kernels and the host must agree on.
    ///
    /// Each rank of a group has a window: memory that its peers write. A window begins with a WindowHeader;
    /// the results of the whole batch follow, which only the rank itself writes, then the results that
    /// arrive, the flags of blocks, and the rows of logits that this rank samples from.
    ///
    /// Requires   pointers are aligned to their types
    header EXCHANGE = "abi/exchange.cuh" includes "abi/drafts.cuh";

    constants {
        /// The threads of a block of send_rows.
        SEND_ROWS_THREADS: u32 = 256;

        /// The most blocks of send_rows.
        SEND_ROWS_MOST_BLOCKS: u32 = 1024;

        /// The threads of a block of send_results.
        SEND_RESULTS_THREADS: u32 = 512;

        /// The threads of a block of digest_drafts.
        DIGEST_DRAFTS_THREADS: u32 = 256;

        /// The words of a run of a row of the drafter's probabilities, of which digest_drafts reads whole
        /// ones; and how many runs further the next one lies where it does not read all of them.
        DIGEST_RUN_WORDS: u32 = 128;
        DIGEST_RUNS_APART: u32 = 16;

        /// The most ranks of a group, and of one whose ranks survey parts of rows.
        MAX_RANKS: usize = 16;
        MAX_SURVEYED_RANKS: usize = 8;

        /// The most threads of a block that finishes a row of which each rank has a part.
        FINISH_SHARDS_THREADS: u32 = 512;

        /// How many words a rank may send another about such a row, and which these are: the maximum of its
        /// part; then a token's score or logit, as ordered bits, and its id, or the number of its keys, each
        /// with status bits; then keys, two words each.
        SHARD_WORDS: u32 = 4 + 2 * gumball_spec::MOST_LISTED as u32;
        SHARD_WORD_MAXIMUM: u32 = 0;
        SHARD_WORD_BEST: u32 = 1;
        SHARD_WORD_KEYS: u32 = 3;

        /// In a step of which some rows are swapped, the slot of the others there.
        SLOT_ELSEWHERE: i32 = -2;
    }

    /// Why an exchange failed: `WindowHeader::failure`.
    codes exchange_failures = ExchangeFailure "FAILURE_" {
        /// A rank did not signal in time.
        TIMED_OUT = 1;
        /// A rank signalled with another digest of the step.
        OTHER_STEP = 2;
        /// A rank sent a token that no rank draws.
        CORRUPT = 3;
    }

    /// Bits of `SendRows::flags` and `SendResults::flags`.
    bits exchange_flags = ExchangeFlags "EXCHANGE_" {
        /// Every rank samples all rows: rows go to all ranks, and results to none.
        GATHER = 1 << 0;
        /// Rows whose slot is `SLOT_ELSEWHERE` are no part of the exchange.
        PARTIAL = 1 << 1;
        /// The kernel only sends: what it writes for other ranks lies in a window of this rank's own, and
        /// travels in messages after it.
        SENDS = 1 << 2;
        /// The kernel only collects what messages have brought: each other rank's window is the copy of it
        /// that came.
        COLLECTS = 1 << 3;
    }

    /// The start of a window. Peers write the two arrays, and only the rank itself the rest.
    struct WindowHeader align(16) {
        /// Of each rank the turn in which it last sent parts of rows, in the high word, and how many blocks
        /// it did so with.
        rows_coming: [u64; 16];
        /// Of each rank the turn in which it last sent its results, in the high word, and the digest of that
        /// step. It reads no rows of that turn any more.
        results_sent: [u64; 16];
        /// The number of completed turns, modulo 2^32.
        turn: u32;
        /// What all ranks must have alike in the steps of an assignment.
        digest: u32;
        /// 0, or why an exchange failed; then the rank that it failed for, that rank's digest of the step,
        /// and this rank's.
        failure: u32;
        failed_rank: u32;
        failed_digest: u32;
        own_digest: u32;
        /// The blocks of the running kernel that have done their part.
        blocks_done: u32;
        /// The digest of the drafts that this turn's step reads from device memory; 0 if it reads none.
        drafts: u32;
    }

    /// The ranks of a group.
    struct Peers {
        /// The address of each rank's window, as this rank has mapped it.
        windows: [u64; 16];
        world: u32;
        /// This rank.
        rank: u32;
        /// How long a rank is waited for, in nanoseconds.
        timeout_ns: u64;
    }

    /// The argument of digest_drafts: the drafts of a step, wherever their rows are drawn from.
    struct DigestDrafts {
        /// This rank's window.
        window: (WindowHeader*);
        /// As in DraftStep and DraftLinks. Null: there are none.
        ids: (const void*);
        parents: (const void*);
        first_child: (const void*);
        next_sibling: (const void*);
        /// `[rows, vocab]`, `draft_stride` elements apart: the drafter's probabilities of the rows of the
        /// batch. Null: there are none.
        draft_probs: (const float*);
        draft_stride: u64;
        /// `[requests]`
        requests: (const DraftRequest*);
        /// `[requests]`: -1 is padding, whose drafts nobody reads.
        slots: (const int*);
        vocab: u32;
        /// Bits of `DraftStep::flags`, and of `DraftLinks::flags`.
        flags: u32;
        link_flags: u32;
        /// As in DraftStep.
        path_stride: u32;
        /// The blocks of a request.
        blocks: u32;
        /// In turn t the runs of probabilities are read whose number is t modulo this many.
        runs_apart: u32;
    }

    /// The argument of send_rows: this rank's part of the rows of a batch.
    struct SendRows {
        peers: Peers;
        /// The parts: `row_bytes` bytes each, `stride_bytes` apart.
        parts: (const void*);
        stride_bytes: u64;
        row_bytes: u64;
        /// Where rows begin in a window, and how far apart they are.
        rows_offset: u64;
        window_stride_bytes: u64;
        /// Where this rank's part begins in a row.
        part_offset: u64;
        /// Where flags of blocks begin in a window: `[MAX_RANKS][SEND_ROWS_MOST_BLOCKS]`, of each block of
        /// each rank the turn in which it last sent all that it sends, in the high word, and the digest of
        /// that step.
        block_flags_offset: u64;
        /// `[rows]`: the row of the batch that each row of the step is; null if row i is row i. The rows of a
        /// rank are neighbours.
        batch_rows: (const u32*);
        /// `[slots]`: those of the step's rows, or of a verification's requests; made padding if the exchange
        /// fails.
        slots: (int*);
        rows: u32;
        slot_count: u32;
        /// The first row of each rank, and the end of the last.
        first_rows: [u32; 17];
        /// The most rows of a rank.
        most_rows: u32;
        /// A block sends a chunk of a row at a time.
        chunk_bytes: u32;
        chunks_per_row: u32;
        /// The bytes that a thread copies at a time: 16, 4 or 2. Parts and their places in windows are
        /// aligned to it.
        unit_bytes: u32;
        flags: u32;
        /// What stands for the type and the kind of the rows in the step's digest.
        row_digest: u32;
        reserved: u32;
    }

    /// The argument of send_results: what came out of this rank's rows.
    struct SendResults {
        peers: Peers;
        /// The step over this rank's rows: its outputs are sent. Its parameters, requests and states are
        /// those of slots.
        step: Step;
        /// `[requests]`: in a verification the requests of all rows; null in a step, and for rows of a
        /// verification that are swapped in a survey, where a row is a request of its own. Behind the outputs
        /// of a verification lie the rows of its walks and the numbers of accepted drafts, as `DraftStep` has
        /// them; so they do after the results.
        requests: (const DraftRequest*);
        /// Where results begin in a window.
        results_offset: u64;
        /// Where results arrive in a window: for each word of the results a word of 64 bits, which has the
        /// turn in its high half. There are two such arrays, for even and for odd turns, `arrivals_bytes`
        /// bytes each.
        arrivals_offset: u64;
        arrivals_bytes: u64;
        /// As in SendRows.
        batch_rows: (const u32*);
        slots: (int*);
        /// The number of rows of the batch, and the first of this rank.
        rows: u32;
        first_row: u32;
        /// The first request of each rank, and the end of the last.
        first_requests: [u32; 17];
        /// The most rows of a rank.
        most_rows: u32;
        flags: u32;
        /// As in SendRows.
        row_digest: u32;
    }

    /// The argument of the kernels of shards.cu: a step over rows of which each rank has a part.
    struct ShardStep {
        peers: Peers;
        /// The step over this rank's parts, of all rows of the batch. A row begins where the first tile does
        /// that the part has ids of, and ends where the part does. The outputs are the batch's.
        step: Step;
        /// Where words of other ranks arrive in a window: `[rows][ranks][SHARD_WORDS]` words of 64 bits,
        /// which have the turn in the high half. There are two such arrays, for even and for odd turns,
        /// `words_bytes` bytes each.
        words_offset: u64;
        words_bytes: u64;
        /// As in SendRows.
        batch_rows: (const u32*);
        slots: (int*);
        /// `[rows]`: takes the slots of rows that words about shards do not decide, and `SLOT_ELSEWHERE` for
        /// the others. Null if there are no such rows.
        swap_slots: (int*);
        /// The first tile of this rank's part, and how many of the tile's ids lie before the part.
        first_tile: u32;
        skipped: u32;
        /// The ids of a whole row.
        vocab: u32;
        /// As in SendRows.
        row_digest: u32;
    }
}
