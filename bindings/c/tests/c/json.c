// Parameters are objects by name: a list, which could only set fields by their place, is refused wherever an object stands.

#include "check.h"

int main(void) {
    const char *lists[] = {"[]",
                           "[0.5]",
                           "[0]",
                           "[0.5, 50, 0.9]",
                           "{\"dry\": [0.8]}",
                           "{\"logprobs\": [\"raw\"]}",
                           "{\"logprobs\": []}",
                           "{\"mirostat\": [5, 0.1]}",
                           "{\"dynamic_temperature\": [0.5, 1.5]}"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        gumball_params *params = gumball_params_from_json(lists[i]);
        check(params == NULL && gumball_error(NULL) == GUMBALL_JSON, lists[i], __FILE__, __LINE__);
        gumball_params_free(params);
    }
    const char *fields[][2] = {{"dry", "[0.8]"},
                               {"logprobs", "[]"},
                               {"logprobs", "[\"raw\"]"},
                               {"mirostat", "[5, 0.1]"},
                               {"dynamic_temperature", "[0.5, 1.5]"}};
    gumball_params *params = gumball_params_new();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        check(gumball_params_set_json(params, fields[i][0], fields[i][1]) == GUMBALL_JSON, fields[i][1], __FILE__,
              __LINE__);
    }
    gumball_params *neutral = gumball_params_new();
    // The text lives until the next call that returns one.
    const char *text = gumball_params_to_json(params);
    char *kept = strcpy((char *)malloc(strlen(text) + 1), text);
    CHECK(strcmp(kept, gumball_params_to_json(neutral)) == 0);
    free(kept);
    // Lists of ids and pairs are lists as ever.
    OK(gumball_params_set_json(params, "logit_bias", "[[7, 3.0], [8, \"-inf\"]]"));
    OK(gumball_params_set_json(params, "banned_ids", "[1, 2]"));
    // Biases may be an object of ids, and null means absent.
    gumball_params *pairs = gumball_params_from_json("{\"logit_bias\": [[3, -100]]}");
    gumball_params *object = gumball_params_from_json(
        "{\"logit_bias\": {\"3\": -100}, \"temperature\": null, \"top_p\": null, \"stop_ids\": null, \"dry\": null}");
    CHECK(pairs != NULL && object != NULL);
    text = gumball_params_to_json(pairs);
    CHECK(strcmp(text, gumball_params_to_json(object)) == 0);
    gumball_params_free(pairs);
    gumball_params_free(object);
    // A key that stands twice is an error.
    CHECK(gumball_params_from_json("{\"seed\": 1, \"seed\": 2}") == NULL && gumball_error(NULL) == GUMBALL_JSON);
    gumball_params_free(neutral);
    gumball_params_free(params);
    return verdict("json");
}
