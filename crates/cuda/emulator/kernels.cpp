// kernels.cpp: every kernel in one library for the host.
#include "cuda.hpp"

#include "kernels/edit.cu"

#include "kernels/survey.cu"

#include "kernels/survey_edited.cu"

#include "kernels/fused/survey_draw.cu"

#include "kernels/finish_simple.cu"

#include "kernels/finish_candidates.cu"

#include "kernels/finish_candidates_logprob.cu"

#include "kernels/finish_general.cu"

#include "kernels/softmax.cu"

#include "kernels/verify.cu"

#include "kernels/params_from_columns.cu"

#include "kernels/find_cut.cu"

#include "kernels/write_rows.cu"

#include "kernels/numbers.cu"

#include <cstddef>

// Runs a kernel of this library over a grid.
extern "C" void gumball_run(void (*kernel)(const void*), const void* argument, const emulator::Grid* grid) {
    emulator::run_grid(kernel, argument, *grid);
}

// Sizes and offsets of what crosses between host and kernels, as src/abi.rs has them.
extern "C" u64 gumball_layout(u64* out, u64 capacity) {
    const u64 layout[] = {
                sizeof(Params), offsetof(Params, seed), offsetof(Params, xtc_probability), offsetof(Params, draw), offsetof(Params, features), offsetof(Params, filter_chain), offsetof(Params, temperature),
        offsetof(Params, effective_temperature), offsetof(Params, log2e_over_t), offsetof(Params, filter_log2e_over_t),
        offsetof(Params, top_k), offsetof(Params, top_p), offsetof(Params, typical_p), offsetof(Params, top_n_sigma), offsetof(Params, min_p), offsetof(Params, epsilon), offsetof(Params, eta),
        offsetof(Params, xtc_threshold), offsetof(Params, dynamic_min), offsetof(Params, dynamic_max),
        offsetof(Params, dynamic_exponent), offsetof(Params, mirostat_tau), offsetof(Params, mirostat_eta),
        offsetof(Params, repetition_penalty), offsetof(Params, frequency_penalty), offsetof(Params, presence_penalty), offsetof(Params, repetition_scope), offsetof(Params, penalty_scope),
        offsetof(Params, dry_multiplier), offsetof(Params, dry_base), offsetof(Params, dry_allowed_length),
        offsetof(Params, no_repeat_ngram), offsetof(Params, min_tokens), offsetof(Params, logprob_mode),
        offsetof(Params, top_n), offsetof(Params, logprob_log2e_over_t), offsetof(Params, max_raise), offsetof(Params, min_ratio), offsetof(Params, reserved),
                sizeof(TokenEntry), offsetof(TokenEntry, id_plus_1), offsetof(TokenEntry, prompt_count), offsetof(TokenEntry, output_count),
        offsetof(TokenEntry, bias), offsetof(TokenEntry, dry_stamp), offsetof(TokenEntry, ban_step), offsetof(TokenEntry, reserved),
                sizeof(Request), offsetof(Request, history), offsetof(Request, entries), offsetof(Request, touched), offsetof(Request, allowed), offsetof(Request, stop_ids), offsetof(Request, breakers),
        offsetof(Request, bad_words), offsetof(Request, bad_word_ends), offsetof(Request, logprob_ids),
        offsetof(Request, history_capacity), offsetof(Request, entries_mask), offsetof(Request, stop_count),
        offsetof(Request, breaker_count), offsetof(Request, bad_word_count), offsetof(Request, logprob_id_count),
                sizeof(State), offsetof(State, position), offsetof(State, mirostat_mu), offsetof(State, length),
        offsetof(State, prompt_length), offsetof(State, step), offsetof(State, reserved),
                sizeof(TileRecord), offsetof(TileRecord, maximum), offsetof(TileRecord, log2_first_arrival), offsetof(TileRecord, log2_max_arrival), offsetof(TileRecord, packed),
                sizeof(TileSum), offsetof(TileSum, sum), offsetof(TileSum, maximum),
        offsetof(TileSum, reserved),
                sizeof(Step), offsetof(Step, logits), offsetof(Step, stride), offsetof(Step, rows),
        offsetof(Step, vocab), offsetof(Step, tiles), offsetof(Step, blocks_per_row), offsetof(Step, flags),
        offsetof(Step, mask_words), offsetof(Step, mask_stride), offsetof(Step, row_indices), offsetof(Step, slots),
        offsetof(Step, forced), offsetof(Step, masks), offsetof(Step, mask_present), offsetof(Step, params),
        offsetof(Step, requests), offsetof(Step, states), offsetof(Step, records), offsetof(Step, filter_sums), offsetof(Step, logprob_sums),
        offsetof(Step, shared_records), offsetof(Step, scratch), offsetof(Step, scratch_words), offsetof(Step, outputs), offsetof(Step, top_n_width), offsetof(Step, ids_width), offsetof(Step, kept_bits),
        offsetof(Step, blocks_per_row_inverse), offsetof(Step, chunks), offsetof(Step, work_sharing), offsetof(Step, shared_filter_sums),
        offsetof(Step, tokens), offsetof(Step, statuses), offsetof(Step, prefill_out), offsetof(Step, prefill_stride_bytes),
        offsetof(Step, prefill_element_bytes), offsetof(Step, prefill_word),
                sizeof(ParamColumns), offsetof(ParamColumns, base), offsetof(ParamColumns, temperatures), offsetof(ParamColumns, top_ks),
        offsetof(ParamColumns, top_ps), offsetof(ParamColumns, min_ps), offsetof(ParamColumns, seeds), offsetof(ParamColumns, positions),
        offsetof(ParamColumns, draws), offsetof(ParamColumns, row_indices), offsetof(ParamColumns, params), offsetof(ParamColumns, states),
        offsetof(ParamColumns, slots), offsetof(ParamColumns, forced), offsetof(ParamColumns, row_indices_out), offsetof(ParamColumns, rows),
        offsetof(ParamColumns, first_output), offsetof(ParamColumns, logits_rows), offsetof(ParamColumns, vocab), offsetof(ParamColumns, filter_chain),
        offsetof(ParamColumns, columns_64_bit), offsetof(ParamColumns, per_row_columns), offsetof(ParamColumns, position), offsetof(ParamColumns, mirostat_mu),
        offsetof(ParamColumns, flags),
                sizeof(FindCut), offsetof(FindCut, step), offsetof(FindCut, cuts), offsetof(FindCut, mask_only), offsetof(FindCut, reserved),
                sizeof(RowCut), offsetof(RowCut, first_key), offsetof(RowCut, last_key), offsetof(RowCut, mass), offsetof(RowCut, log2e_over_t),
        offsetof(RowCut, flags),
                sizeof(WriteRows), offsetof(WriteRows, logits), offsetof(WriteRows, out), offsetof(WriteRows, stride), offsetof(WriteRows, out_stride),
        offsetof(WriteRows, records), offsetof(WriteRows, cuts), offsetof(WriteRows, rows), offsetof(WriteRows, vocab), offsetof(WriteRows, tiles),
        offsetof(WriteRows, blocks_per_row), offsetof(WriteRows, tiles_per_block), offsetof(WriteRows, mask_only),
                sizeof(SoftmaxArgs), offsetof(SoftmaxArgs, logits), offsetof(SoftmaxArgs, out), offsetof(SoftmaxArgs, stride),
        offsetof(SoftmaxArgs, out_stride), offsetof(SoftmaxArgs, temperatures), offsetof(SoftmaxArgs, statuses), offsetof(SoftmaxArgs, tile_sums), offsetof(SoftmaxArgs, rows), offsetof(SoftmaxArgs, vocab), offsetof(SoftmaxArgs, tiles), offsetof(SoftmaxArgs, blocks_per_row), offsetof(SoftmaxArgs, tiles_per_block), offsetof(SoftmaxArgs, pairs_in_smem), offsetof(SoftmaxArgs, pairs_ahead),
        offsetof(SoftmaxArgs, temperature), offsetof(SoftmaxArgs, temperature_stride), offsetof(SoftmaxArgs, reserved),
                sizeof(Chains), offsetof(Chains, draft_probs), offsetof(Chains, draft_stride),
        offsetof(Chains, draft_row_stride), offsetof(Chains, target_probs), offsetof(Chains, target_stride),
        offsetof(Chains, target_row_stride), offsetof(Chains, drafts), offsetof(Chains, drafts_stride),
        offsetof(Chains, tokens), offsetof(Chains, tokens_stride), offsetof(Chains, accepted),
        offsetof(Chains, emitted), offsetof(Chains, statuses), offsetof(Chains, seeds),
        offsetof(Chains, positions), offsetof(Chains, draws), offsetof(Chains, seed),
        offsetof(Chains, position), offsetof(Chains, draw), offsetof(Chains, records),
        offsetof(Chains, draft_count), offsetof(Chains, vocab), offsetof(Chains, tiles),
        offsetof(Chains, blocks_per_chain), offsetof(Chains, tiles_per_warp), offsetof(Chains, flags),
        offsetof(Chains, first_chain), offsetof(Chains, reserved),
    };
    u64 count = sizeof(layout) / sizeof(layout[0]);
    for (u64 i = 0; i < count && i < capacity; i++) {
        out[i] = layout[i];
    }
    return count;
}
