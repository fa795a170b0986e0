// finish_candidates_logprob.cu: finishes the rows of finish_candidates.cu under edits and masks, and with their token's
// logprob.
//
// Computes   a row's token, its logprob and rank, status and temperature; the request's next state (stage/finish.cuh)
// Never      reads a logit outside the tiles that the list, the race or the rank needs, unless the list fails or leaves
//            a doubt
// Grid       x = rows, or rows * blocks of a cluster; whole warps up to 1024 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream, and the kernel `history_edits` if a row has history
//            edits; filter chains with FEATURE_CANDIDATES, or no filter but min-p; logprobs of the row's token alone,
//            with FEATURE_LOGPROB_SUMS; no kept sets
//
// While warp 0 draws from the candidates, the other warps sum the row's mass and count each candidate's rank.

#include "stage/finish.cuh"

#define FINISH_CANDIDATES_LOGPROB(type, T) \
    KERNEL(finish_candidates_logprob_##type, FINISH_CANDIDATES_LOGPROB_THREADS, Step, step) { \
        finish_rows<CandidatesLogprobPolicy, T>(step); \
    }

FOR_EACH_TYPE(FINISH_CANDIDATES_LOGPROB)
