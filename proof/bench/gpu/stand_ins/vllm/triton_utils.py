"""Stands in for vLLM's import of Triton, which looks for other accelerators first."""

import triton
import triton.language as tl
import triton.language.extra.libdevice as tldevice

HAS_TRITON = True

__all__ = ["HAS_TRITON", "tl", "tldevice", "triton"]
