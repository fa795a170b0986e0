// finish_simple.cu: finishes rows that need only a token: greedy, unfiltered, or with min-p as the only filter.
//
// Computes   a row's token, status and temperature; empty logprobs; the request's next state (stage/finish.cuh)
// Never      reads a logit outside the tiles that the race opens
// Grid       x = rows, for finish_simple_* also rows * blocks; whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream; rows without edits, masks, logprobs and kept sets;
//            no filter but min-p. `finish_survey_draw_*`: records of survey_draw.cu, of rows without any filter
//
// A block begins while the survey still runs, keeps its records in registers, and seldom reads a logit.

#include "stage/finish.cuh"

#define FINISH_SIMPLE(type, T) \
    KERNEL(finish_simple_##type, FINISH_SIMPLE_THREADS, Step, step) { finish_rows<SimplePolicy, T>(step); }

FOR_EACH_TYPE(FINISH_SIMPLE)

#if !GUMBALL_PROBABILITIES
#define FINISH_SURVEY_DRAW(type, T) \
    KERNEL(finish_survey_draw_##type, FINISH_SIMPLE_THREADS, Step, step) { finish_rows<SurveyDrawPolicy, T>(step); }

FOR_EACH_TYPE(FINISH_SURVEY_DRAW)
#endif
