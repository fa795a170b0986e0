// probabilities.cpp: the kernels for rows of probabilities. They are the kernels for logits, compiled once more under
// other names.
#define GUMBALL_PROBABILITIES 1
#include "cuda.hpp"

// A namespace, because device functions and types have the names of the ones in logits.cpp.
namespace probabilities {

// An include of each source file of kernels, which src/driver/emulator.rs writes from src/programs/kernels.rs.
#include "probabilities.inc"

} // namespace probabilities
