// Parameters as JSON, as every language reads and writes them: json CASES.
//
// A case has three lines. The first is `same`, `written` or `refused`, the second a text to read. The third is for
// `same` another text that is read alike, for `written` a part of the JSON that is written, for `refused` a part of the
// error.

#include "check.h"

// Reads a line, without its end.
static int line_of(FILE *file, char *line, int size) {
    if (!fgets(line, size, file)) {
        return 0;
    }
    line[strcspn(line, "\n")] = 0;
    return 1;
}

// Writes what a text is read as.
static const char *written(const char *text) {
    gumball_params *params = gumball_params_from_json(text);
    check(params != NULL, text, __FILE__, __LINE__);
    return gumball_params_to_json(params ? keep_params(params) : NULL);
}

int main(int count, char **arguments) {
    static char kind[16], text[4096], other[4096];
    FILE *cases = count > 1 ? fopen(arguments[1], "r") : NULL;
    int taken = 0;
    while (cases && line_of(cases, kind, sizeof kind) && line_of(cases, text, sizeof text) &&
           line_of(cases, other, sizeof other)) {
        if (strcmp(kind, "refused") == 0) {
            check(gumball_params_from_json(text) == NULL, text, __FILE__, __LINE__);
            check(gumball_error(NULL) == GUMBALL_JSON && strstr(gumball_error_message(), other) != NULL, other,
                  __FILE__, __LINE__);
        } else if (strcmp(kind, "same") == 0) {
            check(strcmp(written(text), written(other)) == 0, text, __FILE__, __LINE__);
            check(strcmp(written(written(text)), written(text)) == 0, text, __FILE__, __LINE__);
        } else {
            check(strstr(written(text), other) != NULL, other, __FILE__, __LINE__);
        }
        free_kept();
        taken += 1;
    }
    CHECK(taken > 20);
    if (cases) {
        fclose(cases);
    }

    const uint32_t id = 3;
    const float bias = NAN;
    gumball_params *params = keep_params(gumball_params_new());
    OK(gumball_params_set_logit_bias(params, &id, &bias, 1));
    CHECK(gumball_params_to_json(params) == NULL && strstr(gumball_error_message(), "logit_bias is NaN") != NULL);

    // Of a long text an error shows the beginning, and no character that a terminal acts on.
    static char long_name[1 << 20];
    memset(long_name, 'x', sizeof long_name - 1);
    memcpy(long_name, "{\"\\u001b[2J", 11);
    memcpy(long_name + sizeof long_name - 6, "\": 1}", 6);
    CHECK(gumball_params_from_json(long_name) == NULL && gumball_error(NULL) == GUMBALL_JSON);
    CHECK(strlen(gumball_error_message()) < 4000 && strchr(gumball_error_message(), '\33') == NULL);
    return verdict("json");
}
