"""Stands in for vLLM's buffers that host and device share, which its runner keeps and the bench does not."""


class StagedWriteTensor:
    pass


class UvaBackedTensor:
    pass
