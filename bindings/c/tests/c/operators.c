// Operators on whole matrices: every type and stride, lists and common parameters, in place; draws beside a pool;
// chains and trees.

#include "check.h"
#include "rows.h"

enum { VOCAB = 700, ROWS = 5, STRIDE = 768 };

static float logits[ROWS * STRIDE];
static float out[ROWS * STRIDE], each[ROWS * STRIDE];

static gumball_matrix out_of(void *data, gumball_dtype dtype, size_t rows, size_t vocab, size_t stride) {
    gumball_matrix to = matrix_of(data, dtype, rows, vocab);
    to.stride = stride;
    return to;
}

static gumball_rows strided(const void *data, gumball_dtype dtype, gumball_what what) {
    gumball_rows rows = rows_of(data, dtype, ROWS, VOCAB);
    rows.matrix.stride = STRIDE;
    rows.what = what;
    return rows;
}

static void softmax(const gumball_operators *operators) {
    gumball_rows rows = strided(logits, GUMBALL_F32, GUMBALL_LOGITS);
    gumball_matrix to = out_of(out, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    uint32_t statuses[ROWS] = {9, 9, 9, 9, 9};
    const float temperatures[ROWS] = {0.5f, 1.0f, 1.5f, 2.0f, 0.75f};
    for (size_t i = 0; i < ROWS * STRIDE; i++) {
        out[i] = 77.0f;
    }
    // One list is as many calls with one temperature, and only the rows' own numbers are written.
    OK(gumball_operators_softmax(operators, &rows, 9.0f, temperatures, &to, statuses));
    gumball_matrix of_one = out_of(each, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    for (int row = 0; row < ROWS; row++) {
        OK(gumball_operators_softmax(operators, &rows, temperatures[row], NULL, &of_one, NULL));
        CHECK(memcmp(out + row * STRIDE, each + row * STRIDE, VOCAB * sizeof(float)) == 0 && statuses[row] == 0);
        CHECK(row == ROWS - 1 || (out[row * STRIDE + VOCAB] == 77.0f && out[row * STRIDE + STRIDE - 1] == 77.0f));
    }

    // In place, the same numbers; so it is for the other types, where the rows are read from their rounded form.
    static float place[ROWS * STRIDE];
    memcpy(place, logits, sizeof place);
    gumball_rows here = strided(place, GUMBALL_F32, GUMBALL_LOGITS);
    gumball_matrix same = out_of(place, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    OK(gumball_operators_softmax(operators, &rows, 0.7f, NULL, &to, NULL));
    OK(gumball_operators_softmax(operators, &here, 0.7f, NULL, &same, NULL));
    for (int row = 0; row < ROWS; row++) {
        CHECK(memcmp(place + row * STRIDE, out + row * STRIDE, VOCAB * sizeof(float)) == 0);
    }
    for (int type = 0; type < 2; type++) {
        const gumball_dtype dtype = type == 0 ? GUMBALL_BF16 : GUMBALL_F16;
        static uint16_t narrow[VOCAB], written[VOCAB];
        static float halves[VOCAB], wanted[VOCAB], seen[VOCAB];
        grid(halves, VOCAB, 6);
        dtype == GUMBALL_BF16 ? to_bf16(halves, narrow, VOCAB) : to_f16(halves, narrow, VOCAB);
        const gumball_rows wide = rows_of(halves, GUMBALL_F32, 1, VOCAB), one = rows_of(narrow, dtype, 1, VOCAB);
        const gumball_matrix in_full = out_of(wanted, GUMBALL_F32, 1, VOCAB, 0);
        const gumball_matrix of_narrow = out_of(seen, GUMBALL_F32, 1, VOCAB, 0);
        const gumball_matrix apart = out_of(written, dtype, 1, VOCAB, 0), over = out_of(narrow, dtype, 1, VOCAB, 0);
        OK(gumball_operators_softmax(operators, &wide, 1.0f, NULL, &in_full, NULL));
        OK(gumball_operators_softmax(operators, &one, 1.0f, NULL, &of_narrow, NULL));
        CHECK(memcmp(wanted, seen, sizeof seen) == 0);
        OK(gumball_operators_softmax(operators, &one, 1.0f, NULL, &apart, NULL));
        OK(gumball_operators_softmax(operators, &one, 1.0f, NULL, &over, NULL));
        CHECK(memcmp(written, narrow, sizeof narrow) == 0 && written[0] != 0);
    }
}

// One value for all rows and one for each, for both kinds of rows, and in place.
static void probabilities(const gumball_operators *operators) {
    static float weights[ROWS * STRIDE], masked[ROWS * STRIDE];
    for (size_t i = 0; i < ROWS * STRIDE; i++) {
        weights[i] = (float)(3 * exp((double)logits[i] / 2));
    }
    const int64_t top_ks[] = {0, 20, 0, 0, 50};
    const float top_ps[] = {1.0f, 1.0f, 0.8f, 1.0f, 0.9f}, min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.01f};
    const gumball_matrix to = out_of(out, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    const gumball_matrix to_each = out_of(each, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    const gumball_matrix to_masked = out_of(masked, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    SIZED(gumball_row_params, lists);
    lists.top_k = top_ks;
    lists.top_p = top_ps;
    lists.min_p = min_ps;
    for (int turn = 0; turn < 2; turn++) {
        const float *data = turn == 0 ? logits : weights;
        const gumball_rows rows = strided(data, GUMBALL_F32, turn == 0 ? GUMBALL_LOGITS : GUMBALL_PROBABILITIES);
        OK(gumball_operators_probabilities(operators, &rows, &lists, &to_each, NULL));
        OK(gumball_operators_mask_logits(operators, &rows, &lists, &to_masked, NULL));
        for (int row = 0; row < ROWS; row++) {
            gumball_params *params = gumball_params_new();
            OK(gumball_params_set(params, "top_k", (double)top_ks[row]));
            OK(gumball_params_set(params, "top_p", (double)top_ps[row]));
            OK(gumball_params_set(params, "min_p", (double)min_ps[row]));
            SIZED(gumball_row_params, common);
            common.params = params;
            OK(gumball_operators_probabilities(operators, &rows, &common, &to, NULL));
            const size_t first = (size_t)row * STRIDE;
            CHECK(memcmp(out + first, each + first, VOCAB * sizeof(float)) == 0);
            for (size_t i = first; i < first + VOCAB; i++) {
                CHECK(masked[i] == (out[i] > 0.0f ? data[i] : turn == 0 ? -INFINITY : 0.0f));
            }
            gumball_params_free(params);
        }
    }
    const gumball_rows here = strided(weights, GUMBALL_F32, GUMBALL_PROBABILITIES);
    const gumball_matrix same = out_of(weights, GUMBALL_F32, ROWS, VOCAB, STRIDE);
    OK(gumball_operators_probabilities(operators, &here, &lists, &same, NULL));
    CHECK(memcmp(weights, each, VOCAB * sizeof(float)) == 0);
}

// A call that draws many outputs, each with its line, seed and position, gives each the token that a call for it alone
// gives.
static void draws(const gumball_operators *operators) {
    enum { OUTPUTS = 40 };
    gumball_params *params = params_of("{\"top_k\": 30, \"temperature\": 1}");
    SIZED(gumball_row_params, common);
    common.params = params;
    uint32_t lines[OUTPUTS], positions[OUTPUTS], indices[OUTPUTS], statuses[OUTPUTS];
    uint64_t seeds[OUTPUTS];
    int32_t tokens[OUTPUTS], token;
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        lines[i] = i * 7 % (ROWS - 1);
        seeds[i] = 100 + i;
        positions[i] = 3 + i % 2;
        indices[i] = i % 3;
    }
    SIZED(gumball_draws, which);
    which.outputs = OUTPUTS;
    which.row_indices = lines;
    which.seeds = seeds;
    which.positions = positions;
    which.draws = indices;
    const gumball_rows rows = strided(logits, GUMBALL_F32, GUMBALL_LOGITS);
    memset(statuses, 1, sizeof statuses);
    OK(gumball_operators_sample(operators, &rows, &common, &which, tokens, statuses));
    CHECK(statuses[0] == 0 && statuses[OUTPUTS - 1] == 0);
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        SIZED(gumball_draws, one);
        one.outputs = 1;
        one.row_indices = lines + i;
        one.seed = seeds + i;
        one.position = positions + i;
        one.draws = indices + i;
        OK(gumball_operators_sample(operators, &rows, &common, &one, &token, NULL));
        CHECK(token == tokens[i]);
    }

    const float few[] = {2.0f, 0.0f, 5.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    gumball_rows two = rows_of(few, GUMBALL_F32, 2, 4);
    two.what = GUMBALL_PROBABILITIES;
    SIZED(gumball_draws, plain);
    plain.seed = seeds;
    plain.position = positions;
    plain.outputs = 2;
    OK(gumball_operators_sample(operators, &two, NULL, &plain, tokens, statuses));
    CHECK(tokens[0] >= 0 && tokens[1] == -1 && statuses[0] == 0 && statuses[1] == GUMBALL_STATUS_EMPTY);
}

// Logits that move by less than a row's radius, each up or down, draw the same token.
static void radii(const gumball_operators *operators) {
    const uint64_t seed = 9;
    const uint32_t position = 4, lines[ROWS] = {0};
    static float moved[ROWS * STRIDE];
    float found[ROWS];
    int32_t tokens[ROWS], after[ROWS];
    gumball_params *params = params_of("{\"temperature\": 0.8, \"top_k\": 20}");
    gumball_params *unknown = params_of("{\"typical_p\": 0.5}");
    SIZED(gumball_row_params, common);
    common.params = params;
    SIZED(gumball_draws, draws);
    draws.outputs = ROWS;
    draws.seed = &seed;
    draws.position = &position;
    gumball_rows rows = strided(logits, GUMBALL_F32, GUMBALL_LOGITS);
    OK(gumball_operators_radii(operators, &rows, &common, &draws, found));
    OK(gumball_operators_sample(operators, &rows, &common, &draws, tokens, NULL));
    for (size_t i = 0; i < ROWS * STRIDE; i++) {
        const float radius = found[i / STRIDE];
        moved[i] = logits[i] + (isfinite(radius) ? (i % 3 == 0 ? 0.9f : -0.9f) * radius : 0.0f);
    }
    CHECK(isfinite(found[0]) && found[0] > 0.0f);
    gumball_rows others = strided(moved, GUMBALL_F32, GUMBALL_LOGITS);
    OK(gumball_operators_sample(operators, &others, &common, &draws, after, NULL));
    CHECK(memcmp(tokens, after, sizeof tokens) == 0);

    draws.row_indices = lines;
    FAILS(gumball_operators_radii(operators, &rows, &common, &draws, found), GUMBALL_OUT_OF_RANGE, "row_indices");
    draws.row_indices = NULL;
    draws.outputs = 1;
    FAILS(gumball_operators_radii(operators, &rows, &common, &draws, found), GUMBALL_LENGTH, "outputs");
    draws.outputs = ROWS;
    common.params = unknown;
    CHECK(gumball_operators_radii(operators, &rows, &common, &draws, found) == GUMBALL_CONFLICT);
}

// Numbers at a request's slot are those that a list of rows' own numbers would have.
static void draws_from_pools(const gumball_operators *operators) {
    enum { REQUESTS = 2, EACH = 2, SIZE = 4, ALL = REQUESTS * EACH };
    const uint32_t slots[REQUESTS] = {2, 3};
    const float temperatures[SIZE] = {1.0f, 0.0f, 0.7f, 1.5f};
    const int64_t top_ks[SIZE] = {0, 3, 20, 5};
    const uint64_t seeds[SIZE] = {4, 5, 6, UINT64_MAX};
    const uint32_t positions[SIZE] = {0, 7, UINT32_MAX, 9}, indices[SIZE] = {3, 2, 1, 0};
    float of_rows[ALL];
    int64_t ks_of_rows[ALL], words[SIZE];
    uint64_t seeds_of_rows[ALL];
    uint32_t places[ALL], draws_of_rows[ALL];
    for (uint32_t row = 0; row < ALL; row++) {
        const uint32_t slot = slots[row / EACH];
        of_rows[row] = temperatures[slot];
        ks_of_rows[row] = top_ks[slot];
        seeds_of_rows[row] = seeds[slot];
        places[row] = positions[slot] + row % EACH;
        draws_of_rows[row] = indices[slot];
    }
    for (int slot = 0; slot < SIZE; slot++) {
        words[slot] = (int64_t)indices[slot] << 32 | positions[slot];
    }
    gumball_rows rows = strided(logits, GUMBALL_F32, GUMBALL_LOGITS);
    rows.matrix.rows = ALL;
    SIZED(gumball_row_params, params);
    SIZED(gumball_draws, draws);
    params.temperature = of_rows;
    params.top_k = ks_of_rows;
    draws.outputs = ALL;
    draws.seeds = seeds_of_rows;
    draws.positions = places;
    draws.draws = draws_of_rows;
    int32_t gathered[ALL], tokens[ALL];
    OK(gumball_operators_sample(operators, &rows, &params, &draws, gathered, NULL));
    params.temperature = temperatures;
    params.top_k = top_ks;
    draws.seeds = seeds;
    draws.positions = positions;
    draws.draws = indices;
    draws.slots = slots;
    draws.size = SIZE;
    draws.rows_per_slot = EACH;
#define SAMPLE() gumball_operators_sample(operators, &rows, &params, &draws, tokens, NULL)
    OK(SAMPLE());
    CHECK(memcmp(tokens, gathered, sizeof tokens) == 0);
    draws.offsets = words;
    REFUSED(SAMPLE(), GUMBALL_CONFLICT, "offsets cannot be combined with draws: an offset holds both");
    draws.positions = draws.draws = NULL;
    memset(tokens, 0, sizeof tokens);
    OK(SAMPLE());
    CHECK(memcmp(tokens, gathered, sizeof tokens) == 0);

    draws.row_indices = slots;
    REFUSED(SAMPLE(), GUMBALL_CONFLICT, "row_indices cannot be combined with slots: slots say what each row reads");
    draws.row_indices = draws.slots = NULL;
    FAILS(SAMPLE(), GUMBALL_CONFLICT, "size");
}

// Chains and trees of a drafter who is of the target's opinion: where the arrays lie, and what is written.
static void judged(const gumball_operators *operators) {
    enum { TREES = 2, DRAFTS = 2, IDS = 3 };
    float probs[TREES * (DRAFTS + 1) * IDS], own[TREES * DRAFTS * IDS];
    const int32_t drafted[TREES * DRAFTS] = {1, 2, -1, 0};
    int32_t tokens[TREES * (DRAFTS + 1)], again[TREES * (DRAFTS + 1)], from[TREES * (DRAFTS + 1)];
    uint32_t accepted[TREES], alone[TREES], statuses[TREES] = {9, 9};
    for (size_t i = 0; i < sizeof probs / sizeof *probs; i++) {
        probs[i] = i % IDS == 2 ? 0.5f : 0.25f;
    }
    memcpy(own, probs, sizeof own);
    gumball_rows target = rows_of(probs, GUMBALL_F32, TREES * (DRAFTS + 1), IDS);
    target.what = GUMBALL_PROBABILITIES;
    SIZED(gumball_drafts, drafts);
    drafts.ids = ints_of(drafted, TREES * DRAFTS);
    drafts.probs = matrix_of(own, GUMBALL_F32, TREES * DRAFTS, IDS);
    SIZED(gumball_draws, draws);
    draws.outputs = TREES;
    const uint64_t seed = 3;
    const uint32_t position = 10;
    draws.seed = &seed;
    draws.position = &position;
    gumball_judged to = {tokens, from, accepted, alone, statuses};
#define JUDGE(mode, threshold) \
    gumball_operators_judge(operators, &target, &drafts, &draws, mode, threshold, threshold, &to)
    OK(JUDGE(GUMBALL_REJECTION, 0));
    CHECK(accepted[0] == DRAFTS && alone[0] == DRAFTS && accepted[1] == 0 && statuses[0] == 0 && statuses[1] == 0);
    CHECK(tokens[0] == 1 && tokens[1] == 2 && tokens[3] >= 0 && tokens[4] == -1);
    CHECK(from[0] == 0 && from[DRAFTS] == DRAFTS && from[DRAFTS + 1] == 0 && from[DRAFTS + 2] == -1);
    // A row more, which nobody reads.
    drafts.probs = target.matrix;
    to.tokens = again;
    to.accepted_alone = NULL;
    OK(JUDGE(GUMBALL_REJECTION, 0));
    CHECK(memcmp(tokens, again, sizeof tokens) == 0);
    drafts.probs = matrix_of(NULL, GUMBALL_F32, 0, 0);
    const int32_t parents[TREES * DRAFTS] = {-1, -1, -1, -1};
    drafts.parents = ints_of(parents, TREES * DRAFTS);
    OK(JUDGE(GUMBALL_THRESHOLD, 0.25f));
    CHECK(accepted[0] == 1 && again[0] == 1 && from[1] == 1 && again[2] == -1);
    REFUSED(JUDGE(GUMBALL_COUPLED, 0), GUMBALL_OUT_OF_RANGE,
            "mode is 0, but must be GUMBALL_REJECTION, GUMBALL_BLOCK or GUMBALL_THRESHOLD");
    target.matrix.data = NULL;
    FAILS(JUDGE(GUMBALL_REJECTION, 0), GUMBALL_OUT_OF_RANGE, "rows");
}

// The raw logprobs of tokens, and their ranks.
// Of every function that draws: a seed needs a position, and without both each call draws by fresh entropy.
static void seeds_need_positions(const gumball_operators *operators) {
    enum { OUTPUTS = 16, IDS = 500 };
    static float flat[OUTPUTS * IDS];
    const uint64_t seed = 7, seeds[OUTPUTS] = {7};
    const uint32_t position = 3, slots[OUTPUTS] = {0};
    int32_t tokens[2][OUTPUTS];
    const gumball_judged to[2] = {{tokens[0], NULL, NULL, NULL, NULL}, {tokens[1], NULL, NULL, NULL, NULL}};
    for (size_t i = 0; i < OUTPUTS * IDS; i++) {
        flat[i] = 1.0f;
    }
    gumball_rows rows = rows_of(flat, GUMBALL_F32, OUTPUTS, IDS);
    rows.what = GUMBALL_PROBABILITIES;
    SIZED(gumball_drafts, drafts);
    for (int call = 0; call < 3; call++) {
        SIZED(gumball_draws, draws);
        draws.outputs = OUTPUTS;
        draws.slots = call == 1 ? slots : NULL;
        draws.size = call == 1 ? OUTPUTS : 0;
#define DRAW(i) \
    (call < 2 ? gumball_operators_sample(operators, &rows, NULL, &draws, tokens[i], NULL) \
              : gumball_operators_judge(operators, &rows, &drafts, &draws, GUMBALL_REJECTION, 0, 0, &to[i]))
        for (int listed = 0; listed < 2; listed++) {
            draws.seed = listed ? NULL : &seed;
            draws.seeds = listed ? seeds : NULL;
            draws.position = NULL;
            REFUSED(DRAW(0), GUMBALL_OUT_OF_RANGE,
                    "positions is absent, but must be given with a seed, as in seed=7, position=step, because a seed "
                    "draws the same again at one position");
            draws.position = &position;
            OK(DRAW(0));
            OK(DRAW(1));
            CHECK(memcmp(tokens[0], tokens[1], sizeof *tokens) == 0);
        }
        draws.seed = &seed;
        REFUSED(DRAW(0), GUMBALL_CONFLICT,
                "seeds cannot be combined with seed: one is for all outputs, the other for each");
        draws.seed = draws.seeds = NULL;
        for (int with_position = 0; with_position < 2; with_position++) {
            draws.position = with_position ? &position : NULL;
            // Equal by chance with a probability of 1e-43.
            OK(DRAW(0));
            OK(DRAW(1));
            CHECK(memcmp(tokens[0], tokens[1], sizeof *tokens) != 0);
        }
#undef DRAW
    }
}

static void selected(const gumball_operators *operators) {
    const float z[2 * 3] = {0.0f, (float)log(2.0), (float)log(5.0), 1.0f, 1.0f, 1.0f};
    const int32_t tokens[2] = {1, -1};
    float logprobs[2];
    uint32_t ranks[2], statuses[2];
    gumball_rows here = rows_of(z, GUMBALL_F32, 2, 3);
    OK(gumball_operators_selected_logprobs(operators, &here, tokens, logprobs, ranks, statuses));
    CHECK(fabs((double)logprobs[0] - log(0.25)) < 1e-6 && ranks[0] == 2 && statuses[0] == 0);
    CHECK(isinf(logprobs[1]) && ranks[1] == 0);
    OK(gumball_operators_selected_logprobs(operators, &here, tokens, logprobs, NULL, NULL));
    const int32_t beyond[2] = {3, 0};
    CHECK(gumball_operators_selected_logprobs(operators, &here, beyond, logprobs, NULL, NULL) == GUMBALL_OUT_OF_RANGE);
    REFUSED(gumball_operators_selected_logprobs(operators, &here, NULL, logprobs, NULL, NULL), GUMBALL_OUT_OF_RANGE,
            "tokens is NULL, but must be a pointer to something");
    REFUSED(gumball_operators_selected_logprobs(operators, &here, tokens, NULL, NULL, NULL), GUMBALL_OUT_OF_RANGE,
            "logprobs is NULL, but must be a pointer to something");
}

static void all(void) {
    for (size_t threads = 1; threads <= most_threads; threads++) {
        gumball_operators *operators = gumball_operators_new(NULL, threads, threads == 1 ? "scalar" : NULL);
        CHECK(operators != NULL);
        softmax(operators);
        probabilities(operators);
        draws(operators);
        radii(operators);
        draws_from_pools(operators);
        judged(operators);
        seeds_need_positions(operators);
        selected(operators);
        gumball_operators_free(operators);
    }
}

int main(int argc, char **argv) {
    for (uint64_t row = 0; row < ROWS; row++) {
        model_like(logits + row * STRIDE, VOCAB, row + 1);
    }
    return verdict_of("operators", all, argc, argv);
}
