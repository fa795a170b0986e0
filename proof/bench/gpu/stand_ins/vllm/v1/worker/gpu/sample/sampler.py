"""Stands in for what vLLM's sampler of marks extends, whose states the bench gives it."""


class Sampler:
    pass
