// Generates with llama.cpp, its tokens drawn by Gumball in one of three ways; all give the same ids where the model's
// logits are the same.
//
//     generate MODEL.gguf WAY PARAMS LENGTH PROMPT
//
// or, to compare what a draw costs, by llama.cpp's own samplers: generate MODEL.gguf own TOP_K,TOP_P,TEMPERATURE,SEED
// LENGTH PROMPT
//
// WAY: `chain`, a Gumball sampler in llama.cpp's sampler chain, which llama_sampler_sample calls; `step`, a step over
// the logits where llama_get_logits_ith says that they lie; `pool:N`, N sequences of the prompt whose seeds count up
// from the seed of PARAMS, all rows of a batch in one step. PARAMS: as JSON. It writes a line of ids for each sequence,
// and the microseconds that a draw took on average.
//
// cc -DGUMBALL_WITH_LLAMA -I bindings/c/include -I bindings/c/examples -I LLAMA/include generate.c
// bindings/c/examples/llama_sampler.c -L target/release -lgumball -L LLAMA/lib -lllama -lggml -lm

#include "llama_sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 512, MOST = 32 };

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, gumball_error_message());
    exit(EXIT_FAILURE);
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

// A model with its context, and a prompt that it has read.
typedef struct {
    struct llama_model *model;
    struct llama_context *ctx;
    int32_t n_vocab;
    llama_token prompt[CONTEXT];
    int32_t prompt_len;
} loaded;

static loaded load(const char *file, const char *text, uint32_t sequences) {
    loaded it;
    llama_log_set(quiet, NULL);
    it.model = llama_model_load_from_file(file, llama_model_default_params());
    if (!it.model) {
        fail("no model");
    }
    struct llama_context_params config = llama_context_default_params();
    config.n_ctx = CONTEXT;
    config.n_seq_max = sequences;
    config.kv_unified = true;
    config.n_threads = config.n_threads_batch = 1;
    it.ctx = llama_init_from_model(it.model, config);
    const struct llama_vocab *vocab = llama_model_get_vocab(it.model);
    it.n_vocab = llama_vocab_n_tokens(vocab);
    it.prompt_len = llama_tokenize(vocab, text, (int32_t)strlen(text), it.prompt, CONTEXT / 2, false, true);
    if (!it.ctx || it.prompt_len <= 0) {
        fail("no context, or no prompt");
    }
    if (llama_decode(it.ctx, llama_batch_get_one(it.prompt, it.prompt_len))) {
        fail("the prompt");
    }
    return it;
}

// llama.cpp's own samplers.
static void add_own(struct llama_sampler *chain, const char *text) {
    int top_k;
    float top_p, temperature;
    unsigned seed;
    if (sscanf(text, "%d,%f,%f,%u", &top_k, &top_p, &temperature, &seed) != 4) {
        fail("TOP_K,TOP_P,TEMPERATURE,SEED");
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(top_k));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(temperature));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
}

// One sequence, by a sampler of llama.cpp's kind.
static void one(loaded it, const char *params_text, int length, const char *way) {
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    struct llama_sampler *sampler = NULL;
    if (!strcmp(way, "own")) {
        add_own(chain, params_text);
    } else {
        gumball_params *params = gumball_params_from_json(params_text);
        sampler = params ? gumball_llama_sampler(params, it.n_vocab, 0) : NULL;
        if (!sampler || gumball_llama_sampler_prompt(sampler, it.prompt, (size_t)it.prompt_len)) {
            fail("the sampler");
        }
        gumball_params_free(params);
        llama_sampler_chain_add(chain, sampler);
    }
    bool by_chain = strcmp(way, "step") != 0;
    int64_t took = 0;
    for (int i = 0; i < length; i++) {
        llama_token token;
        // So that waiting for the model does not count as drawing.
        llama_synchronize(it.ctx);
        int64_t start = llama_time_us();
        if (by_chain) {
            token = llama_sampler_sample(chain, it.ctx, -1);
        } else if (gumball_llama_step(sampler, llama_get_logits_ith(it.ctx, -1), &token)) {
            fail("the step");
        }
        took += llama_time_us() - start;
        printf(i ? " %d" : "%d", token);
        if (i + 1 < length && llama_decode(it.ctx, llama_batch_get_one(&token, 1))) {
            fail("a token");
        }
    }
    printf("\n%.1f us\n", (double)took / length);
    llama_sampler_free(chain);
}

// Several sequences, a row of the batch each.
static void several(loaded it, const char *params_text, int length, int sequences) {
    gumball_pool_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.vocab = (size_t)it.n_vocab;
    config.slots = (size_t)sequences;
    gumball_pool *pool = gumball_pool_new(&config);
    gumball_outputs *outputs = gumball_outputs_new();
    gumball_params *params = gumball_params_from_json(params_text);
    if (!pool || !outputs || !params) {
        fail("the pool");
    }
    int32_t slots[MOST];
    llama_token ids[MOST][CONTEXT];
    gumball_state state;
    memset(&state, 0, sizeof state);
    state.struct_size = sizeof state;
    uint64_t seed = 0;
    for (int i = 0; i < sequences; i++) {
        // The first has the seed of `params`, or one that it draws itself.
        if ((i && gumball_params_set_seed(params, seed + (uint64_t)i)) ||
            gumball_pool_admit(pool, params, (const uint32_t *)it.prompt, (size_t)it.prompt_len, &slots[i]) ||
            (!i && gumball_pool_state(pool, slots[0], &state))) {
            fail("a sequence");
        }
        seed = i ? seed : state.seed;
        if (i) {
            llama_memory_seq_cp(llama_get_memory(it.ctx), 0, i, -1, -1);
        }
    }
    gumball_rows logits;
    memset(&logits, 0, sizeof logits);
    logits.matrix.width = (size_t)it.n_vocab;
    logits.matrix.rows = 1;
    // All sequences read the only row that the prompt has left.
    uint32_t first[MOST] = {0};
    gumball_batch requests;
    memset(&requests, 0, sizeof requests);
    requests.struct_size = sizeof requests;
    requests.slots = slots;
    requests.len = (size_t)sequences;
    requests.row_indices = first;
    gumball_outputs_view view;
    memset(&view, 0, sizeof view);
    view.struct_size = sizeof view;
    struct llama_batch batch = llama_batch_init(sequences, 0, 1);
    int64_t took = 0;
    for (int step = 0; step < length; step++) {
        llama_synchronize(it.ctx);
        int64_t start = llama_time_us();
        logits.matrix.data = llama_get_logits_ith(it.ctx, step ? 0 : -1);
        if (gumball_pool_step(pool, &logits, &requests, outputs) || gumball_outputs_read(outputs, &view)) {
            fail("the step");
        }
        took += llama_time_us() - start;
        batch.n_tokens = sequences;
        for (int i = 0; i < sequences; i++) {
            ids[i][step] = batch.token[i] = view.tokens[i];
            batch.pos[i] = it.prompt_len + step;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = i;
            batch.logits[i] = 1;
        }
        if (step + 1 < length && llama_decode(it.ctx, batch)) {
            fail("a batch");
        }
        // The rows of a batch follow each other.
        logits.matrix.rows = (size_t)sequences;
        requests.row_indices = NULL;
    }
    for (int i = 0; i < sequences; i++) {
        for (int step = 0; step < length; step++) {
            printf(step ? " %d" : "%d", ids[i][step]);
        }
        printf("\n");
    }
    printf("%.1f us\n", (double)took / length);
    llama_batch_free(batch);
    gumball_params_free(params);
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
}

int main(int count, char **words) {
    int length = count == 6 ? atoi(words[4]) : 0;
    if (length < 1 || length > CONTEXT / 2) {
        fprintf(stderr, "generate MODEL.gguf chain|step|pool:N|own PARAMS LENGTH PROMPT, with a length of 1 to %d\n",
                CONTEXT / 2);
        return EXIT_FAILURE;
    }
    int sequences = strncmp(words[2], "pool:", 5) ? 1 : atoi(words[2] + 5);
    if (sequences < 1 || sequences > MOST) {
        fprintf(stderr, "pool:N has N = %d, but must be 1 to %d\n", sequences, MOST);
        return EXIT_FAILURE;
    }
    loaded it = load(words[1], words[5], (uint32_t)sequences);
    if (!strncmp(words[2], "pool:", 5)) {
        several(it, words[3], length, sequences);
    } else {
        one(it, words[3], length, words[2]);
    }
    llama_free(it.ctx);
    llama_model_free(it.model);
    return EXIT_SUCCESS;
}
