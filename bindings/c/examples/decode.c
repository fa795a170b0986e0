// A decode loop: one sequence with a sampler, then two in a batch with a pool. `model` is yours; here it makes logits
// of the history, so that there is something to run.
//
// cc decode.c -I bindings/c/include -L target/release -lgumball -lm -o decode

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gumball.h"

enum { VOCAB = 32000, STEPS = 12 };

static const uint32_t prompt[] = {1, 15, 92};

static void check(int failed) {
    if (failed) {
        fprintf(stderr, "%s\n", gumball_error_message());
        exit(EXIT_FAILURE);
    }
}

// Ids in, the logits of the next one out.
static void model(const uint32_t *ids, size_t count, float *logits) {
    uint32_t word = 2166136261u;
    for (size_t i = 0; i < count; i++) {
        word = (word ^ ids[i]) * 16777619u;
    }
    for (size_t id = 0; id < VOCAB; id++) {
        word = word * 1664525u + 1013904223u;
        logits[id] = (float)(word >> 20) / 256.0f;
    }
}

static gumball_params *request(uint64_t seed) {
    gumball_params *params = gumball_params_from_json("{\"temperature\": 0.8, \"top_k\": 50, \"top_p\": 0.9}");
    check(!params || gumball_params_set_seed(params, seed));
    return params;
}

static void print(const char *name, const uint32_t *ids) {
    printf("%s:", name);
    for (size_t i = 3; i < 3 + STEPS; i++) {
        printf(" %u", (unsigned)ids[i]);
    }
    printf("\n");
}

static void one_sequence(void) {
    static float logits[VOCAB];
    const gumball_sampler_config config = {.struct_size = sizeof config, .vocab = VOCAB};
    gumball_params *params = request(7);
    gumball_sampler *sampler = gumball_sampler_new(params, &config, NULL);
    gumball_params_free(params);
    check(!sampler || gumball_sampler_reset(sampler, prompt, 3));
    const gumball_rows row = {.matrix = {.data = logits, .rows = 1, .width = VOCAB}};
    uint32_t ids[3 + STEPS];
    memcpy(ids, prompt, sizeof prompt);
    for (size_t count = 3; count < 3 + STEPS; count++) {
        gumball_token token;
        model(ids, count, logits);
        check(gumball_sampler_sample(sampler, &row, NULL, &token));
        ids[count] = (uint32_t)token.id;
    }
    print("one sequence", ids);
    gumball_sampler_free(sampler);
}

static void a_batch(void) {
    enum { ROWS = 2 };
    static float rows[ROWS][VOCAB];
    const gumball_pool_config config = {.struct_size = sizeof config, .vocab = VOCAB, .slots = ROWS};
    gumball_pool *pool = gumball_pool_new(&config);
    gumball_outputs *outputs = gumball_outputs_new();
    int32_t slots[ROWS];
    uint32_t ids[ROWS][3 + STEPS];
    for (int row = 0; row < ROWS; row++) {
        gumball_params *params = request(7 + (uint64_t)row);
        check(gumball_pool_admit(pool, params, prompt, 3, &slots[row]));
        gumball_params_free(params);
        memcpy(ids[row], prompt, sizeof prompt);
    }
    const gumball_rows logits = {.matrix = {.data = rows, .rows = ROWS, .width = VOCAB}};
    const gumball_batch batch = {.struct_size = sizeof batch, .slots = slots, .len = ROWS};
    gumball_outputs_view view = {.struct_size = sizeof view};
    for (size_t count = 3; count < 3 + STEPS; count++) {
        for (int row = 0; row < ROWS; row++) {
            model(ids[row], count, rows[row]);
        }
        check(gumball_pool_step(pool, &logits, &batch, outputs) || gumball_outputs_read(outputs, &view));
        for (int row = 0; row < ROWS; row++) {
            ids[row][count] = (uint32_t)view.tokens[row];
        }
    }
    for (int row = 0; row < ROWS; row++) {
        print(row == 0 ? "the same in a batch" : "beside it", ids[row]);
    }
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
}

int main(void) {
    if (gumball_abi_version() != GUMBALL_ABI_VERSION) {
        fprintf(stderr, "libgumball has another interface than gumball.h\n");
        return EXIT_FAILURE;
    }
    one_sequence();
    a_batch();
    return EXIT_SUCCESS;
}
