// The adapter in a loop like llama.cpp's: candidates made of logits, apply, accept. Its tokens are those of a sampler.

#include "check.h"
#include "llama_sampler.h"
#include "rows.h"

enum { VOCAB = 500 };

// Stand-ins for what libllama has.
struct llama_sampler *llama_sampler_init(struct llama_sampler_i *iface, void *ctx) {
    struct llama_sampler *sampler = (struct llama_sampler *)malloc(sizeof *sampler);
    sampler->iface = iface;
    sampler->ctx = ctx;
    return sampler;
}

void llama_sampler_free(struct llama_sampler *sampler) {
    sampler->iface->free(sampler);
    free(sampler);
}

static llama_token_data data[VOCAB];

static llama_token_data_array candidates_of(const float *row) {
    for (int id = 0; id < VOCAB; id++) {
        data[id].id = id;
        data[id].logit = row[id];
        data[id].p = 0.0f;
    }
    llama_token_data_array candidates = {data, VOCAB, -1, false};
    return candidates;
}

// One step of a loop.
static llama_token draw(struct llama_sampler *sampler, const float *row) {
    llama_token_data_array candidates = candidates_of(row);
    sampler->iface->apply(sampler, &candidates);
    CHECK(candidates.selected >= 0 && candidates.selected < VOCAB);
    llama_token token = candidates.data[candidates.selected].id;
    sampler->iface->accept(sampler, token);
    return token;
}

int main(void) {
    static const char *const all[] = {
        "{\"seed\": 3, \"temperature\": 0.8, \"top_k\": 40, \"top_p\": 0.95, \"repetition_penalty\": 1.3}",
        "{\"seed\": 4, \"mirostat\": {\"tau\": 4.0, \"eta\": 0.3}}",
    };
    static const llama_token prompt[] = {5, 6};
    static float row[VOCAB];
    for (int i = 0; i < 2; i++) {
        gumball_params *params = params_of(all[i]);
        struct llama_sampler *sampler = gumball_llama_sampler(params, VOCAB, 0);
        gumball_sampler *plain = sampler_of(all[i], VOCAB, (const uint32_t *)prompt, 2);
        CHECK(strcmp(sampler->iface->name(sampler), "gumball") == 0);
        OK(gumball_llama_sampler_prompt(sampler, prompt, 2));
        for (int turn = 0; turn < 12; turn++) {
            gumball_token wanted;
            bell(row, VOCAB, (uint64_t)(100 * i + turn));
            OK(sample(plain, row, GUMBALL_F32, VOCAB, NULL, &wanted));
            if (turn == 4) {
                // Applied twice before anything is accepted: the first draw does not count.
                llama_token_data_array candidates = candidates_of(row);
                sampler->iface->apply(sampler, &candidates);
            }
            if (turn == 7) {
                // A clone goes on as the original does.
                struct llama_sampler *twin = sampler->iface->clone(sampler);
                CHECK(draw(twin, row) == wanted.id);
                llama_sampler_free(twin);
            }
            if (turn == 8) {
                // So does one that takes its state over, having gone elsewhere.
                struct llama_sampler *other = gumball_llama_sampler(params, VOCAB, 0);
                draw(other, row);
                sampler->iface->copy_state(sampler, other);
                CHECK(draw(other, row) == wanted.id);
                llama_sampler_free(other);
            }
            if (turn % 3 == 2) {
                // Without candidates, which counts as accepted.
                llama_token token;
                OK(gumball_llama_step(sampler, row, &token));
                CHECK(token == wanted.id);
                continue;
            }
            CHECK(draw(sampler, row) == wanted.id);
        }
        // A row without a token.
        static float nothing[VOCAB];
        for (int id = 0; id < VOCAB; id++) {
            nothing[id] = -INFINITY;
        }
        llama_token none = 5;
        OK(gumball_llama_step(sampler, nothing, &none));
        CHECK(none == -1);
        // Another token than the drawn one is accepted.
        llama_token_data_array candidates = candidates_of(row);
        sampler->iface->apply(sampler, &candidates);
        llama_token drawn = candidates.data[candidates.selected].id;
        sampler->iface->accept(sampler, (drawn + 1) % VOCAB);
        OK(gumball_sampler_push(plain, (uint32_t)((drawn + 1) % VOCAB)));
        gumball_token wanted;
        OK(sample(plain, row, GUMBALL_F32, VOCAB, NULL, &wanted));
        CHECK(draw(sampler, row) == wanted.id);

        // An earlier sampler left three candidates, out of order.
        candidates = candidates_of(row);
        data[0].id = 400;
        data[1].id = 30;
        data[2].id = 123;
        candidates.size = 3;
        sampler->iface->apply(sampler, &candidates);
        CHECK(candidates.selected >= 0 && candidates.selected < 3);
        // None is left.
        candidates.size = 0;
        sampler->iface->apply(sampler, &candidates);
        CHECK(candidates.selected == -1);
        sampler->iface->reset(sampler);
        OK(gumball_sampler_reset(plain, NULL, 0));
        OK(sample(plain, row, GUMBALL_F32, VOCAB, NULL, &wanted));
        CHECK(draw(sampler, row) == wanted.id);
        llama_sampler_free(sampler);
    }
    gumball_params *params = keep_params(gumball_params_new());
    CHECK(gumball_llama_sampler(params, 0, 0) == NULL && gumball_error(NULL) == GUMBALL_OUT_OF_RANGE);
    return verdict("llama");
}
