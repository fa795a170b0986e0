// selected_logprobs.cu: the logprobs of tokens that lie in device memory, by a step in which they are forced.
//
// Computes   select_tokens: for each row a request whose token is forced, or none where the token is no id of the
//            vocabulary
//            write_selected: the row's logprob, rank and status, from the step's outputs
// Never      reads a row of logits
// Twins      host engine/src/operators/selected_logprobs.rs
// Shapes     as in SelectedTokens
// Grid       x = blocks of 128 rows, one thread per row
// Traffic    select_tokens out: 200 bytes per row; write_selected: 12 bytes per row in and out
// Requires   select_tokens: nothing of the kernels before it on the stream: it waits for them, and then triggers the
//            survey
//            write_selected: the step's kernels are complete

#include "abi/selected.cuh"
#include "math/num.cuh"

// The row of a thread; from `rows` on there is none.
DEVICE u32 row_of_thread() { return blockIdx.x * SELECTED_THREADS + threadIdx.x; }

DEVICE i64 token_of(const SelectedTokens& args, u32 row) {
    const u32 index = args.flags & SELECTED_ONE_TOKEN ? 0 : row;
    return args.flags & SELECTED_TOKENS_I64 ? ((const i64*)args.tokens)[index] : ((const int*)args.tokens)[index];
}

DEVICE bool is_id(const SelectedTokens& args, i64 token) { return token >= 0 && token < (i64)args.vocab; }

KERNEL(select_tokens, SELECTED_THREADS, SelectedTokens, args) {
    // The preceding kernel may write the tokens and the rows of logits. The survey reads the rows as soon as it starts,
    // so this kernel triggers it only after the wait.
    grid_dependency_wait();
    trigger_dependents();
    const u32 row = row_of_thread();
    if (row >= args.rows) {
        return;
    }
    const i64 token = token_of(args, row);
    const bool known = is_id(args, token);
    args.slots[row] = known ? (int)row : -1;
    args.forced[row] = known ? (int)token : NO_TOKEN;
    args.params[row] = args.base;
    State state{};
    state.step = 1;
    args.states[row] = state;
}

KERNEL(write_selected, SELECTED_THREADS, SelectedTokens, args) {
    grid_dependency_wait();
    const u32 row = row_of_thread();
    if (row >= args.rows) {
        return;
    }
    const i64 token = token_of(args, row);
    const bool known = is_id(args, token);
    const u64 rows = args.rows;
    args.logprobs[row] = known ? bits_float(args.outputs[OUTPUT_LOGPROBS * rows + row]) : -INF_F32;
    if (args.ranks != nullptr) {
        args.ranks[row] = known ? args.outputs[OUTPUT_RANKS * rows + row] : 0;
    }
    if (args.statuses != nullptr) {
        const u32 none = token == NO_TOKEN ? 0 : STATUS_NO_ID;
        args.statuses[row] = known ? args.outputs[OUTPUT_STATUSES * rows + row] : none;
    }
}
