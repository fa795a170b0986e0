"""Stands in for vLLM's outermost module, which sets up a whole engine; the bench wants its sampling kernels alone."""
