"""Stands in for TokenSpeed's marks for a profiler, which are off by default."""

from contextlib import ContextDecorator


class nvtx_range(ContextDecorator):
    def __init__(self, *_, **__):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False
