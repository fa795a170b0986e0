// probabilities.cpp: the kernels for rows of probabilities. They are the kernels for logits, compiled once more under
// other names.
#include "cuda.hpp"

#define GUMBALL_PROBABILITIES 1

// A namespace, because device functions and types have the names of those in kernels.cpp.
namespace probabilities {

#include "kernels/survey.cu"

#include "kernels/survey_edited.cu"

#include "kernels/finish_simple.cu"

#include "kernels/finish_candidates.cu"

#include "kernels/finish_candidates_logprob.cu"

#include "kernels/finish_general.cu"

#include "kernels/find_cut.cu"

#include "kernels/write_rows.cu"

} // namespace probabilities
