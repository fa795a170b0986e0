//! The stages over SIMD lanes, chosen at run time, rows over threads.
