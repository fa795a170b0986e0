// logits.cpp: the kernels for rows of logits, compiled for the host.
#include "cuda.hpp"

// An include of each source file of kernels, which src/driver/emulator.rs writes from src/programs/kernels.rs.
#include "logits.inc"
