"""Stands in for vLLM's copies to the device, which its runner makes between steps and the bench does not."""


def async_tensor_h2d(*_, **__):
    raise NotImplementedError
