// finish_general.cu: finishes rows of every request: from the survey to the token, its logprobs and the kept set.
//
// Computes   all outputs of a row, as far as its request needs them; the request's next state (stage/finish.cuh)
// Grid       x = rows, or rows * blocks of a cluster; whole warps up to 512 threads; no dynamic shared memory
// Requires   the survey of the same step before it on the stream, and the kernel `history_edits` if a row has history
//            edits

#include "stage/finish.cuh"

// One resident block per multiprocessor: held to the registers of two, the compiler spills. With more threads it spills
// even with one block.
#define FINISH_GENERAL(type, T) \
    KERNEL_MIN_BLOCKS(finish_general_##type, FINISH_GENERAL_THREADS, 1, Step, step) { \
        finish_rows<GeneralPolicy, T>(step); \
    }

FOR_EACH_TYPE(FINISH_GENERAL)
