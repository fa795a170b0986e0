"""Stands in for vLLM's questions about the device: the one that its sampler asks."""

from functools import cache

import torch


@cache
def num_compute_units(device_id=0):
    return torch.cuda.get_device_properties(device_id or 0).multi_processor_count
