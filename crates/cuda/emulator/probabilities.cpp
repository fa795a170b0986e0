// probabilities.cpp: the kernels of rows of probabilities, which are those of logits compiled once more under other names.
#include "cuda.hpp"

#define GUMBALL_PROBABILITIES 1

// Apart, as everything in them but the kernels has the same names.
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
