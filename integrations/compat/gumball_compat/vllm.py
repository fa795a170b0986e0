raise ImportError(
    "gumball_compat.vllm is in the package gumball-vllm: import gumball_vllm, whose modules have the names that were here"
)
