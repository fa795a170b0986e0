// From hidden states to tokens: an auto head draws the same tokens with a screen and without, a clustered one over the
// same weights approximates them. `model` is yours; here it makes a hidden state of the last token, so that there is
// something to run.
//
// cc head.c -I bindings/c/include -L target/release -lgumball -lm -o head

#include <stdio.h>
#include <stdlib.h>

#include "gumball_heads.h"

enum { VOCAB = 8000, WIDTH = 128, STEPS = 12 };

static float weights[VOCAB * WIDTH];

static void check(int failed) {
    if (failed) {
        fprintf(stderr, "%s\n", gumball_error_message());
        exit(EXIT_FAILURE);
    }
}

// Numbers from -1 to 1.
static float number(uint32_t *word) {
    *word = *word * 1664525u + 1013904223u;
    return (float)(*word >> 8) / 8388608.0f - 1.0f;
}

// The last token in, the hidden state after it out.
static void model(uint32_t token, float *hidden) {
    uint32_t word = token * 16777619u + 7;
    for (size_t i = 0; i < WIDTH; i++) {
        hidden[i] = 2.0f * number(&word);
    }
}

static void decode(const char *name, gumball_head_kind kind, uint64_t no_screen) {
    gumball_head_config config = {.struct_size = sizeof config, .kind = kind, .no_screen = no_screen};
    config.weights =
        (gumball_matrix){.data = weights, .rows = VOCAB, .width = WIDTH}; /* borrowed: they stay as long as the head */
    const uint32_t special_ids[] = {0, 2};
    if (kind == GUMBALL_HEAD_CLUSTERED) {
        config.iterations = 4;
        config.probes = 125; /* of 500 clusters of 16 ids */
        config.special_ids = special_ids;
        config.special_ids_len = 2;
    }
    gumball_head *head = gumball_head_new(&config);
    const gumball_pool_config pool_config = {.struct_size = sizeof pool_config, .vocab = VOCAB};
    gumball_pool *pool = gumball_pool_new(&pool_config);
    gumball_params *params = gumball_params_from_json("{\"temperature\": 0.8, \"min_p\": 0.05, \"seed\": 7}");
    const uint32_t prompt[] = {1, 15, 92};
    int32_t slot;
    check(!head || !pool || !params || gumball_pool_admit(pool, params, prompt, 3, &slot));
    gumball_params_free(params);

    float state[WIDTH];
    const gumball_rows hidden = {
        .matrix = {.data = state, .rows = 1, .width = WIDTH}, .head = head, .what = GUMBALL_HIDDEN};
    const gumball_batch batch = {.struct_size = sizeof batch, .slots = &slot, .len = 1};
    gumball_outputs_view view = {.struct_size = sizeof view};
    gumball_outputs *outputs = gumball_outputs_new();
    uint32_t last = prompt[2];
    printf("%s:", name);
    for (int step = 0; step < STEPS; step++) {
        model(last, state);
        check(gumball_pool_step(pool, &hidden, &batch, outputs) || gumball_outputs_read(outputs, &view));
        last = (uint32_t)view.tokens[0];
        printf(" %u", (unsigned)last);
    }
    gumball_counts counts = {.struct_size = sizeof counts};
    check(gumball_pool_counts(pool, &counts));
    printf("\n    %u rows in full, %u by %u logits in all%s\n", (unsigned)counts.whole_rows,
           (unsigned)(counts.certified_rows + counts.clustered_rows),
           (unsigned)(counts.certified_logits + counts.clustered_logits), view.is_approximate ? ", approximate" : "");
    gumball_outputs_free(outputs);
    gumball_pool_free(pool);
    gumball_head_free(head);
}

int main(void) {
    uint32_t word = 3;
    for (size_t i = 0; i < VOCAB * WIDTH; i++) {
        weights[i] = 0.5f * number(&word);
    }
    decode("without a screen", GUMBALL_HEAD_AUTO, 1);
    decode("auto", GUMBALL_HEAD_AUTO, 0);
    decode("clustered", GUMBALL_HEAD_CLUSTERED, 0);
    return EXIT_SUCCESS;
}
