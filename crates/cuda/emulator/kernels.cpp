// kernels.cpp: every kernel in one library for the host.
#include "cuda.hpp"

#include "edit.cu"

#include "survey.cu"

#include "raced.cu"

#include "lean.cu"

#include "listed.cu"

#include "told.cu"

#include "step.cu"

#include "softmax.cu"

#include "verify.cu"

#include "prepare.cu"

#include "keep.cu"

#include "emit.cu"

#include "numbers.cu"

#include <cstddef>

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, const emulator::Grid* grid) {
    emulator::run_grid(kernel, argument, *grid);
}

// Sizes and offsets of what crosses between host and kernels, as src/abi.rs has them.
extern "C" u64 gumball_layout(u64* out, u64 room) {
    const u64 layout[] = {
                sizeof(Params), offsetof(Params, seed), offsetof(Params, xtc_probability), offsetof(Params,
        draw), offsetof(Params, asks), offsetof(Params, chain), offsetof(Params, temperature),
        offsetof(Params, effective_temperature), offsetof(Params, s), offsetof(Params, filter_s),
        offsetof(Params, top_k), offsetof(Params, top_p), offsetof(Params, typical_p), offsetof(Params,
        top_n_sigma), offsetof(Params, min_p), offsetof(Params, epsilon), offsetof(Params, eta),
        offsetof(Params, xtc_threshold), offsetof(Params, dynamic_min), offsetof(Params, dynamic_max),
        offsetof(Params, dynamic_exponent), offsetof(Params, mirostat_tau), offsetof(Params, mirostat_eta),
        offsetof(Params, repetition_penalty), offsetof(Params, frequency_penalty), offsetof(Params,
        presence_penalty), offsetof(Params, repetition_scope), offsetof(Params, penalty_scope),
        offsetof(Params, dry_multiplier), offsetof(Params, dry_base), offsetof(Params, dry_allowed_length),
        offsetof(Params, no_repeat_ngram), offsetof(Params, min_tokens), offsetof(Params, logprob_mode),
        offsetof(Params, top_n), offsetof(Params, logprob_s), offsetof(Params, raise), offsetof(Params,
        min_ratio), offsetof(Params, reserved),
                sizeof(Entry), offsetof(Entry, id_plus_1), offsetof(Entry, prompt), offsetof(Entry, output),
        offsetof(Entry, bias), offsetof(Entry, dry), offsetof(Entry, ban_step), offsetof(Entry, reserved),
                sizeof(Request), offsetof(Request, history), offsetof(Request, entries), offsetof(Request,
        touched), offsetof(Request, allowed), offsetof(Request, stop_ids), offsetof(Request, breakers),
        offsetof(Request, bad_words), offsetof(Request, bad_word_ends), offsetof(Request, logprob_ids),
        offsetof(Request, room), offsetof(Request, entries_mask), offsetof(Request, stop_count),
        offsetof(Request, breaker_count), offsetof(Request, bad_word_count), offsetof(Request,
        logprob_id_count),
                sizeof(State), offsetof(State, position), offsetof(State, mu), offsetof(State, length),
        offsetof(State, prompt_length), offsetof(State, step), offsetof(State, reserved),
                sizeof(Record), offsetof(Record, maximum), offsetof(Record, log_first), offsetof(Record,
        log_top), offsetof(Record, places),
                sizeof(TileWeights), offsetof(TileWeights, weights), offsetof(TileWeights, maximum),
        offsetof(TileWeights, reserved),
                sizeof(Step), offsetof(Step, logits), offsetof(Step, stride), offsetof(Step, rows),
        offsetof(Step, vocab), offsetof(Step, tiles), offsetof(Step, blocks_per_row), offsetof(Step, flags),
        offsetof(Step, mask_words), offsetof(Step, mask_stride), offsetof(Step, lines), offsetof(Step, slots),
        offsetof(Step, forced), offsetof(Step, masks), offsetof(Step, masked), offsetof(Step, params),
        offsetof(Step, requests), offsetof(Step, states), offsetof(Step, records), offsetof(Step, sums), offsetof(Step, told),
        offsetof(Step, line_records), offsetof(Step, scratch), offsetof(Step, scratch_words), offsetof(Step, outputs), offsetof(Step,
        top_n_width), offsetof(Step, ids_width), offsetof(Step, kept),
        offsetof(Step, blocks_inverse), offsetof(Step, parts), offsetof(Step, help), offsetof(Step, line_sums),
        offsetof(Step, tokens), offsetof(Step, statuses), offsetof(Step, filled), offsetof(Step, filled_stride),
        offsetof(Step, filled_bytes), offsetof(Step, filled_word),
                sizeof(Prepare), offsetof(Prepare, base), offsetof(Prepare, temperatures), offsetof(Prepare, top_ks),
        offsetof(Prepare, top_ps), offsetof(Prepare, min_ps), offsetof(Prepare, seeds), offsetof(Prepare, positions),
        offsetof(Prepare, draws), offsetof(Prepare, lines), offsetof(Prepare, params), offsetof(Prepare, states),
        offsetof(Prepare, slots), offsetof(Prepare, forced), offsetof(Prepare, read), offsetof(Prepare, rows),
        offsetof(Prepare, first), offsetof(Prepare, line_count), offsetof(Prepare, vocab), offsetof(Prepare, filters),
        offsetof(Prepare, wide), offsetof(Prepare, of_each), offsetof(Prepare, position), offsetof(Prepare, mu),
        offsetof(Prepare, flags),
                sizeof(Keep), offsetof(Keep, step), offsetof(Keep, kept), offsetof(Keep, masks), offsetof(Keep, reserved),
                sizeof(Kept), offsetof(Kept, first), offsetof(Kept, last), offsetof(Kept, mass), offsetof(Kept, s),
        offsetof(Kept, flags),
                sizeof(Emit), offsetof(Emit, logits), offsetof(Emit, out), offsetof(Emit, stride), offsetof(Emit, out_stride),
        offsetof(Emit, records), offsetof(Emit, kept), offsetof(Emit, rows), offsetof(Emit, vocab), offsetof(Emit, tiles),
        offsetof(Emit, blocks_per_row), offsetof(Emit, share), offsetof(Emit, masks),
                sizeof(Softmax), offsetof(Softmax, logits), offsetof(Softmax, out), offsetof(Softmax, stride),
        offsetof(Softmax, out_stride), offsetof(Softmax, temperatures), offsetof(Softmax, statuses), offsetof(Softmax,
        told), offsetof(Softmax, rows), offsetof(Softmax, vocab), offsetof(Softmax, tiles), offsetof(Softmax,
        blocks_per_row), offsetof(Softmax, share), offsetof(Softmax, slots), offsetof(Softmax, ahead),
        offsetof(Softmax, temperature), offsetof(Softmax, temperature_stride), offsetof(Softmax, reserved),
                sizeof(Chains), offsetof(Chains, draft_probs), offsetof(Chains, draft_stride),
        offsetof(Chains, draft_row_stride), offsetof(Chains, target_probs), offsetof(Chains, target_stride),
        offsetof(Chains, target_row_stride), offsetof(Chains, drafts), offsetof(Chains, drafts_stride),
        offsetof(Chains, tokens), offsetof(Chains, tokens_stride), offsetof(Chains, accepted),
        offsetof(Chains, emitted), offsetof(Chains, statuses), offsetof(Chains, seeds),
        offsetof(Chains, positions), offsetof(Chains, draws), offsetof(Chains, seed),
        offsetof(Chains, position), offsetof(Chains, draw), offsetof(Chains, records),
        offsetof(Chains, length), offsetof(Chains, vocab), offsetof(Chains, tiles),
        offsetof(Chains, blocks_per_chain), offsetof(Chains, per_warp), offsetof(Chains, flags),
        offsetof(Chains, first), offsetof(Chains, reserved),
    };
    u64 count = sizeof(layout) / sizeof(layout[0]);
    for (u64 i = 0; i < count && i < room; i++) {
        out[i] = layout[i];
    }
    return count;
}
