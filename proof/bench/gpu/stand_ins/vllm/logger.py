"""Stands in for vLLM's logger."""

import logging


def init_logger(name):
    return logging.getLogger(name)
