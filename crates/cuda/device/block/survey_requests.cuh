// survey_requests.cuh: which request the survey of a row reads, and when it may read it.
#pragma once

#include "abi/step.cuh"

// Returns the slot whose request the survey of a row reads; -1 for padding. With STEP_SLOT_IS_ROW padding has a request
// as well, and is surveyed although its records are not read.
DEVICE int survey_slot(const Step& step, u32 row) { return step.flags & STEP_SLOT_IS_ROW ? (int)row : step.slots[row]; }

// Waits for the previous kernel on the stream: in an operator's call params_from_columns.cu, which writes the requests
// of the rows; in a pool's step, in a verification begin_drafts, which does too, or history_edits, which stamps edits.
// Otherwise the survey starts after all earlier kernels, and the wait returns at once. Only then lets the finish kernel
// launch, because that kernel reads the requests too.
DEVICE void wait_for_requests() {
    grid_dependency_wait();
    trigger_dependents();
}
