// exchange.cuh: how the kernels of a rank signal the other ranks of a group, and wait for them.
//
// A turn is one step of the group. In a turn ranks may send parts of rows, and then results. A rank writes rows of turn
// t only once all ranks have signalled the results of turn t - 1: rows of that turn are no longer read. So one copy
// of the rows suffices, at an address that never changes.
//
// Parts of rows are many bytes: each block that sends some signals its own end by a flag, which costs one wait for the
// link. Results are few words: each is stored together with its turn, 64 bits at once, and is its own flag; no store
// waits for another. There are two places for each such word, for odd and for even turns: a rank that sends results of
// turn t + 2 has the results of turn t + 1 of all ranks, so these have read the words that they got in turn t.
//
// Every wait ends at a deadline. Then the window's `failure` is set, and no later exchange sends or waits.
#pragma once

#include "abi/exchange.cuh"
#include "platform/system_scope.cuh"

// How often a thread looks at a word before it looks at the clock, too.
#define LOOKS_PER_CLOCK 64

DEVICE WindowHeader& window_header(const Peers& peers, u32 rank) { return *(WindowHeader*)peers.windows[rank]; }

// Returns the flag of a turn and a step.
DEVICE u64 flag_of(u32 turn, u32 digest) { return (u64)turn << 32 | digest; }

DEVICE u32 turn_of(u64 flag) { return (u32)(flag >> 32); }

// Whether a flag stands for an earlier turn. Turn numbers wrap around.
DEVICE bool is_before(u64 flag, u32 turn) { return (int)(turn_of(flag) - turn) < 0; }

// Whether an exchange of this rank has failed.
DEVICE bool has_failed(WindowHeader& own) { return load_relaxed_system(&own.failure) != 0; }

// Records why an exchange failed, for which rank, and the flags that differ if two do, unless one has failed before.
DEVICE void fail(WindowHeader& own, ExchangeFailure failure, u32 rank, u64 flag = 0, u64 own_flag = 0) {
    if (atomicCAS(&own.failure, 0u, (u32)failure) == 0) {
        own.failed_rank = rank;
        own.failed_digest = (u32)flag;
        own.own_digest = (u32)own_flag;
    }
}

// Returns the digest of the running step: the host's digest for all steps of an assignment, of which type and kind the
// rows are, which each step knows itself, and of drafts in device memory.
DEVICE u32 step_digest(const WindowHeader& own, u32 row_digest) { return own.digest ^ row_digest ^ own.drafts; }

// Ends a turn; by one thread, after all others have read what the header has of it.
DEVICE void end_turn(WindowHeader& own, u32 turn) {
    own.blocks_done = 0;
    own.drafts = 0;
    own.turn = turn;
}

// Loads by `load` until `is_there` accepts what was loaded, and returns it in `word`. Returns false if the rank that is
// waited for does not come in time, or another wait has failed.
template <class Load, class IsThere>
DEVICE bool wait_for_word(const Peers& peers, u32 rank, u64& word, Load load, IsThere is_there) {
    word = load();
    if (is_there(word)) {
        return true;
    }
    WindowHeader& own = window_header(peers, peers.rank);
    const u64 began = global_time_ns();
    for (u32 looks = 1;; looks++) {
        spin_pause();
        word = load();
        if (is_there(word)) {
            return true;
        }
        if (looks % LOOKS_PER_CLOCK == 0 && (global_time_ns() - began > peers.timeout_ns || has_failed(own))) {
            fail(own, FAILURE_TIMED_OUT, rank);
            return false;
        }
    }
}

// Waits until a flag of this rank's window, which `rank` writes, has reached a turn. The thread sees then what `rank`
// wrote before. Returns false if it does not come.
DEVICE bool wait_for_flag(const Peers& peers, u32 rank, const u64* place, u32 turn, u64& flag) {
    return wait_for_word(
        peers, rank, flag, [&] { return load_acquire_system(place); },
        [&](u64 word) { return !is_before(word, turn); });
}

// Whether a rank took the same step, by its flag of this turn or a later one, and this rank's. A rank that is turns
// ahead has compared.
DEVICE bool is_same_step(const Peers& peers, u32 rank, u64 flag, u64 own_flag) {
    if (turn_of(flag) == turn_of(own_flag) && flag != own_flag) {
        fail(window_header(peers, peers.rank), FAILURE_OTHER_STEP, rank, flag, own_flag);
        return false;
    }
    return true;
}
