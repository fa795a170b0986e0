"""Stands in for vLLM's settings of an engine, which the bench has none of."""
