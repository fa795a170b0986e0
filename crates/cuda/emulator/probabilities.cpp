// probabilities.cpp: the kernels for rows of probabilities. They are the kernels for logits, compiled once more under
// other names.
#define GUMBALL_PROBABILITIES 1
#include "cuda.hpp"

// A namespace, because device functions and types have the names of those in kernels.cpp.
namespace probabilities {

// The kernels' sources; src/abi/kernels.rs lists them.
#include "probabilities.inc"

} // namespace probabilities
