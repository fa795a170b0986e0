// probabilities.cpp: the kernels of rows of probabilities, which are those of logits compiled once more under other names.
#include "cuda.hpp"

#define GUMBALL_PROBABILITIES 1

// Apart, as everything in them but the kernels has the same names.
namespace probabilities {

#include "survey.cu"

#include "lean.cu"

#include "listed.cu"

#include "told.cu"

#include "step.cu"

#include "keep.cu"

#include "emit.cu"

}
