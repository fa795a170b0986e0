// finish_candidates.cu: finishes rows that need only a token, drawn from a candidate list, and the rows of
// finish_simple.cu.
//
// Computes   a row's token, status and temperature; empty logprobs; the request's next state (stage/finish.cuh)
// Never      reads a logit outside the tiles that the list or the race needs, unless the list fails or leaves a doubt
// Grid       x = rows, or rows * blocks of a cluster; whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream; rows without edits, masks, logprobs and kept sets;
//            filter chains with FEATURE_CANDIDATES, or no filter but min-p

#include "stage/finish.cuh"

#define FINISH_CANDIDATES(type, T) \
    KERNEL(finish_candidates_##type, FINISH_CANDIDATES_THREADS, Step, step) { finish_rows<CandidatesPolicy, T>(step); }

FOR_EACH_TYPE(FINISH_CANDIDATES)
