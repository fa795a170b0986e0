// Gumball where a sampler of llama.cpp stands: to be the only one of a chain, or its last.
//
// With llama.cpp: cc -c -DGUMBALL_WITH_LLAMA -I bindings/c/include -I LLAMA/include -I LLAMA/ggml/include
// llama_sampler.c, and link libgumball beside libllama. Then, where a chain was built:
//
//     gumball_params *params = gumball_params_from_json("{\"temperature\": 0.8, \"top_k\": 40, \"seed\": 7}");
//     struct llama_sampler *sampler = gumball_llama_sampler(params, llama_vocab_n_tokens(vocab), 0);
//     gumball_params_free(params);
//     ... llama_sampler_sample(sampler, ctx, -1) ...
//     or, cheaper: gumball_llama_step(sampler, llama_get_logits_ith(ctx, -1), &token)
//     llama_sampler_free(sampler);
#ifndef GUMBALL_LLAMA_SAMPLER_H
#define GUMBALL_LLAMA_SAMPLER_H

#ifdef GUMBALL_WITH_LLAMA
#include "llama.h"
#else
#include "llama_stub.h"
#endif

#include "gumball.h"

#ifdef __cplusplus
extern "C" {
#endif

// Makes a sampler of llama.cpp's kind that draws as `params` say, under a draw index (0, unless several sequences share
// a seed). NULL after an error, which gumball_error_message tells. llama_sampler_free ends it.
//
// Penalties, bias, temperature, filters and the draw are all Gumball's: leave those of llama.cpp out. What stands
// before it in a chain (a grammar, say) may take candidates away, reorder them, or change logits.
struct llama_sampler *gumball_llama_sampler(const gumball_params *params, int32_t n_vocab, uint32_t draw);

// Puts a prompt before the output, for penalties that tell them apart; llama_sampler_accept would count it as output.
// Returns a gumball_code.
gumball_code gumball_llama_sampler_prompt(struct llama_sampler *sampler, const llama_token *prompt, size_t prompt_len);

// Draws a token from logits as they lie in llama.cpp's memory, without an array of candidates, and accepts it: what
// llama_sampler_sample does to a chain that has this sampler alone, for a part of its cost.
//
// `logits`: those of llama_get_logits_ith. `token`: the drawn one, -1 if no logit is above -INFINITY, and after an
// error. Returns a gumball_code.
gumball_code gumball_llama_step(struct llama_sampler *sampler, const float *logits, llama_token *token);

#ifdef __cplusplus
}
#endif

#endif
