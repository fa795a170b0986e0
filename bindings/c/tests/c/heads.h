// Heads under test: each call from hidden states beside the same call from their logits.
#ifndef HEADS_H
#define HEADS_H

#include "check.h"

enum { REQUESTS = 4 };

static const char *const requests[REQUESTS] = {
    "{\"seed\": 1}",
    "{\"temperature\": 0, \"repetition_penalty\": 1.2, \"seed\": 4}",
    "{\"seed\": 2, \"top_k\": 20, \"top_p\": 0.9, \"logprobs\": {\"mode\": \"processed\", \"top_n\": 2}}",
    "{\"seed\": 3, \"top_p\": 0.8, \"frequency_penalty\": 0.3}",
};

// Two pools with the same requests in the same slots.
static inline void admit_to_both(gumball_pool *pools[2], int32_t slots[REQUESTS]) {
    const uint32_t prompt[] = {4, 9, 4};
    for (int i = 0; i < REQUESTS; i++) {
        slots[i] = admit(pools[0], requests[i], prompt, 3);
        CHECK(admit(pools[1], requests[i], prompt, 3) == slots[i]);
    }
}

// A step, drafts, their verification and a score from two hidden states of each request are those from the logits.
static inline void calls_are_those_of_the_logits(gumball_head *head, const float *states, size_t width,
                                                 const float *logits, size_t vocab, uint32_t is_approximate) {
    gumball_pool *pools[2] = {pool_of(vocab, 1), pool_of(vocab, 2)};
    gumball_outputs *wanted = gumball_outputs_new(0), *seen = gumball_outputs_new(0);
    gumball_verification *expected = gumball_verification_new(0), *verified = gumball_verification_new(0);
    int32_t slots[REQUESTS], ids[2][REQUESTS];
    admit_to_both(pools, slots);
    gumball_hidden hidden = hidden_states_of(states, REQUESTS, width);
    gumball_logits rows = logits_of(logits, GUMBALL_F32, REQUESTS, vocab);
    OK(gumball_pool_step(pools[0], &rows, slots, REQUESTS, NULL, wanted));
    OK(gumball_pool_step_hidden(pools[1], head, &hidden, slots, REQUESTS, NULL, seen));
    CHECK(same_outputs(wanted, seen) && gumball_outputs_is_approximate(wanted) == 0);
    CHECK(gumball_outputs_is_approximate(seen) == is_approximate);

    float *probs[2];
    SIZED(gumball_draft_rows, from);
    from.siblings = 1;
    for (int i = 0; i < 2; i++) {
        probs[i] = (float *)malloc(REQUESTS * vocab * sizeof(float));
    }
    OK(gumball_pool_draft(pools[0], &rows, slots, REQUESTS, &from, NULL, ids[0], probs[0]));
    OK(gumball_pool_draft_hidden(pools[1], head, &hidden, slots, REQUESTS, &from, NULL, ids[1], probs[1]));
    CHECK(memcmp(ids[0], ids[1], sizeof ids[0]) == 0);
    CHECK(memcmp(probs[0], probs[1], REQUESTS * vocab * sizeof(float)) == 0);
    OK(gumball_pool_draft_hidden(pools[1], head, &hidden, slots, REQUESTS, &from, NULL, ids[1], NULL));
    CHECK(memcmp(ids[0], ids[1], sizeof ids[0]) == 0);

    const uint32_t counts[REQUESTS] = {1, 1, 1, 1};
    hidden.rows = rows.rows = 2 * REQUESTS;
    SIZED(gumball_drafts, drafts);
    drafts.counts = counts;
    drafts.ids = ids[0];
    OK(gumball_pool_verify(pools[0], &rows, slots, REQUESTS, &drafts, NULL, expected));
    OK(gumball_pool_verify_hidden(pools[1], head, &hidden, slots, REQUESTS, &drafts, NULL, verified));
    CHECK(same_outputs(gumball_verification_outputs(expected), gumball_verification_outputs(verified)));
    CHECK(gumball_outputs_is_approximate(gumball_verification_outputs(verified)) == is_approximate);
    const uint32_t *accepted = gumball_verification_accepted(verified);
    // The first draft is from the row that verifies it.
    CHECK(memcmp(accepted, gumball_verification_accepted(expected), sizeof counts) == 0 && accepted[0] == 1);

    const uint32_t known[] = {4, 9, 4, 7, 30, 2, 11, 499, 5};
    gumball_params *params = params_of("{\"logprobs\": {\"mode\": \"raw\", \"top_n\": 2}}");
    SIZED(gumball_scored, scored);
    scored.params = params;
    scored.ids = known;
    scored.ids_len = 9;
    scored.prompt_len = 3;
    scored.start = 1;
    OK(gumball_pool_score(pools[0], &rows, &scored, 2 * REQUESTS, NULL, wanted));
    for (size_t chunk_rows = 1; chunk_rows < 10; chunk_rows += 4) {
        OK(gumball_pool_score_hidden(pools[1], head, &hidden, &scored, chunk_rows, NULL, seen));
        CHECK(same_outputs(wanted, seen) && gumball_outputs_is_approximate(seen) == is_approximate);
    }
    REFUSED(gumball_pool_score_hidden(pools[1], head, &hidden, &scored, 0, NULL, seen), GUMBALL_OUT_OF_RANGE,
            "chunk_rows is 0, but must be 1 or more");
    SIZED(gumball_head_counts, counted);
    SIZED(gumball_head_info, info);
    OK(gumball_pool_head_counts(pools[1], &counted));
    OK(gumball_head_describe(head, &info));
    CHECK((counted.certified_rows > 0) == (info.kind == GUMBALL_HEAD_CERTIFIED));
    CHECK((counted.clustered_rows > 0) == (info.kind == GUMBALL_HEAD_CLUSTERED));
    CHECK((counted.screen_reads > 0) == (counted.certified_rows > 0) &&
          counted.certified_logits >= counted.certified_rows);
    CHECK((counted.centroid_reads > 0) == (counted.clustered_rows > 0));
    gumball_params_free(params);
    gumball_verification_free(expected);
    gumball_verification_free(verified);
    gumball_outputs_free(wanted);
    gumball_outputs_free(seen);
    for (int i = 0; i < 2; i++) {
        gumball_pool_free(pools[i]);
        free(probs[i]);
    }
}

// Whether two heads draw the same tokens from some hidden states.
static inline void same_tokens(gumball_head *a, gumball_head *b, size_t vocab, const gumball_hidden *hidden) {
    gumball_pool *pools[2] = {pool_of(vocab, 1), pool_of(vocab, 1)};
    gumball_outputs *outputs[] = {gumball_outputs_new(0), gumball_outputs_new(0)};
    gumball_head *heads[] = {a, b};
    int32_t slots[REQUESTS];
    admit_to_both(pools, slots);
    for (int i = 0; i < 2; i++) {
        OK(gumball_pool_step_hidden(pools[i], heads[i], hidden, slots, REQUESTS, NULL, outputs[i]));
    }
    CHECK(same_outputs(outputs[0], outputs[1]));
    for (int i = 0; i < 2; i++) {
        gumball_pool_free(pools[i]);
        gumball_outputs_free(outputs[i]);
    }
}

#endif
