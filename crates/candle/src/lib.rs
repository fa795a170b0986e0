//! A drop-in for the LogitsProcessor of candle-transformers.
