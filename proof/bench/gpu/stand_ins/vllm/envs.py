"""Stands in for vLLM's settings: the one that its launchers ask for. Nothing is compiled in the background here."""

VLLM_TRITON_JIT_WARMUP_NUM_THREADS = 1
