"""Stands in for vLLM's platforms: an NVIDIA GPU."""


class _Cuda:
    device_type = "cuda"

    def is_cuda(self):
        return True

    def is_cuda_alike(self):
        return True

    def is_cpu(self):
        return False


current_platform = _Cuda()
