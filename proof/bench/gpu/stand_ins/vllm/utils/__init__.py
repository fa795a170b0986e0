"""Stands in for vLLM's utilities; `math_utils` beside this is its own."""
