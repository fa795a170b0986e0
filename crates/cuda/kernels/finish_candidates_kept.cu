// finish_candidates_kept.cu: finishes the rows of finish_candidates_logprob.cu with their kept sets, and with a logprob
// of their token over these, or its radius.
//
// Computes   a row's token, its logprobs and rank, radius, kept set, status and temperature; the request's next state
//            (stage/finish.cuh)
// Never      reads a logit outside the tiles that the list, the race, the kept set or the rank needs
// Grid       x = rows, or rows * blocks of a cluster; whole warps up to 1024 threads; no dynamic shared memory
// Requires   what finish_candidates_logprob.cu requires, though steps may store kept sets; the caller must know no
//            row's token beforehand, other than those that are forced

#include "stage/finish.cuh"

#define FINISH_CANDIDATES_KEPT(type, T) \
    KERNEL(finish_candidates_kept_##type, FINISH_CANDIDATES_LOGPROB_THREADS, Step, step) { \
        finish_rows<CandidatesKeptPolicy, T>(step); \
    }

FOR_EACH_TYPE(FINISH_CANDIDATES_KEPT)
