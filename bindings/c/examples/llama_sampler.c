// Gumball where a sampler of llama.cpp stands; see llama_sampler.h.
//
// llama.cpp calls `apply`, which marks a candidate, and then `accept` with the token that is taken. A Gumball sampler
// appends what it draws at once, mirostat's limit included. So `apply` remembers that the last token is not accepted
// yet: `accept` of the same token leaves it there, anything else takes it back.

#include "llama_sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    gumball_sampler *sampler;
    // The candidates as a row: -INFINITY where there is none.
    float *row;
    // Where each id stands among the candidates.
    int32_t *places;
    size_t n_vocab;
    // The token that was drawn and not accepted yet, or -1.
    llama_token pending;
} context;

static struct llama_sampler *wrap(gumball_sampler *sampler, size_t n_vocab, llama_token pending);

static context *context_of(const struct llama_sampler *sampler) { return (context *)sampler->ctx; }

// What llama.cpp has no way to be told: a mistake of the program's.
static void complain(gumball_code code) {
    if (code != GUMBALL_OK) {
        fprintf(stderr, "gumball: %s\n", gumball_error_message());
    }
}

static gumball_state state_of(const context *it) {
    gumball_state state;
    memset(&state, 0, sizeof state);
    state.struct_size = sizeof state;
    complain(gumball_sampler_state(it->sampler, &state));
    return state;
}

static gumball_code sample(context *it, const float *logits, gumball_token *token) {
    gumball_rows row;
    memset(&row, 0, sizeof row);
    row.matrix.data = logits;
    row.matrix.rows = 1;
    row.matrix.width = it->n_vocab;
    return gumball_sampler_sample(it->sampler, &row, NULL, token);
}

static void take_back(context *it) {
    if (it->pending >= 0) {
        complain(gumball_sampler_shorten(it->sampler, 1));
        it->pending = -1;
    }
}

static const char *sampler_name(const struct llama_sampler *sampler) {
    (void)sampler;
    return "gumball";
}

static void sampler_accept(struct llama_sampler *sampler, llama_token token) {
    context *it = context_of(sampler);
    if (it->pending == token) {
        it->pending = -1;
        return;
    }
    take_back(it);
    if (token >= 0) {
        complain(gumball_sampler_push(it->sampler, (uint32_t)token));
    }
}

static void sampler_apply(struct llama_sampler *sampler, llama_token_data_array *candidates) {
    context *it = context_of(sampler);
    take_back(it);
    // Of the whole vocabulary, in order, nothing is missing; else what is missing must not be drawn.
    if (candidates->size < it->n_vocab) {
        for (size_t id = 0; id < it->n_vocab; id++) {
            it->row[id] = -INFINITY;
        }
    }
    for (size_t place = 0; place < candidates->size; place++) {
        llama_token id = candidates->data[place].id;
        if (id >= 0 && (size_t)id < it->n_vocab) {
            it->row[id] = candidates->data[place].logit;
            it->places[id] = (int32_t)place;
        }
    }
    gumball_token token;
    gumball_code code = sample(it, it->row, &token);
    complain(code);
    it->pending = code == GUMBALL_OK ? token.id : -1;
    candidates->selected = it->pending >= 0 ? it->places[it->pending] : -1;
}

static void sampler_reset(struct llama_sampler *sampler) {
    context *it = context_of(sampler);
    it->pending = -1;
    complain(gumball_sampler_reset(it->sampler, NULL, 0));
}

static struct llama_sampler *sampler_clone(const struct llama_sampler *sampler) {
    const context *it = context_of(sampler);
    return wrap(gumball_sampler_fork(it->sampler, state_of(it).draw), it->n_vocab, it->pending);
}

static void sampler_release(struct llama_sampler *sampler) {
    context *it = context_of(sampler);
    gumball_sampler_free(it->sampler);
    free(it->row);
    free(it->places);
    free(it);
}

static void sampler_copy_state(const struct llama_sampler *from, struct llama_sampler *to) {
    const context *source = context_of(from);
    context *it = context_of(to);
    gumball_sampler *copy = gumball_sampler_fork(source->sampler, state_of(source).draw);
    if (!copy) {
        complain(gumball_error(NULL));
        return;
    }
    gumball_sampler_free(it->sampler);
    it->sampler = copy;
    it->pending = source->pending;
}

// Set by name, so that members which newer versions of llama.h add are NULL.
static struct llama_sampler_i *interface_of(void) {
    static struct llama_sampler_i ours;
    ours.name = sampler_name;
    ours.accept = sampler_accept;
    ours.apply = sampler_apply;
    ours.reset = sampler_reset;
    ours.clone = sampler_clone;
    ours.free = sampler_release;
    ours.copy_state = sampler_copy_state;
    return &ours;
}

// Takes the sampler over, also where it fails.
static struct llama_sampler *wrap(gumball_sampler *sampler, size_t n_vocab, llama_token pending) {
    context *it = (context *)calloc(1, sizeof *it);
    float *row = (float *)malloc(n_vocab * sizeof *row);
    int32_t *places = (int32_t *)calloc(n_vocab, sizeof *places);
    if (!sampler || !it || !row || !places) {
        gumball_sampler_free(sampler);
        free(it);
        free(row);
        free(places);
        return NULL;
    }
    it->sampler = sampler;
    it->row = row;
    it->places = places;
    it->n_vocab = n_vocab;
    it->pending = pending;
    return llama_sampler_init(interface_of(), it);
}

struct llama_sampler *gumball_llama_sampler(const gumball_params *params, int32_t n_vocab, uint32_t draw) {
    gumball_sampler_config config;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.vocab = n_vocab > 0 ? (size_t)n_vocab : 0;
    config.draw = draw;
    return wrap(gumball_sampler_new(params, &config, NULL), config.vocab, -1);
}

gumball_code gumball_llama_sampler_prompt(struct llama_sampler *sampler, const llama_token *prompt, size_t prompt_len) {
    context *it = context_of(sampler);
    it->pending = -1;
    // Ids are not negative, so they are the same bits as unsigned.
    return gumball_sampler_reset(it->sampler, (const uint32_t *)prompt, prompt_len);
}

gumball_code gumball_llama_step(struct llama_sampler *sampler, const float *logits, llama_token *token) {
    context *it = context_of(sampler);
    take_back(it);
    gumball_token drawn;
    gumball_code code = sample(it, logits, &drawn);
    *token = code == GUMBALL_OK ? drawn.id : -1;
    return code;
}
