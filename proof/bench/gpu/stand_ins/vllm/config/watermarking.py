"""Stands in for vLLM's settings of watermarks: the names that its samplers' modules import."""

WatermarkPRFName = WatermarkContextScope = str


def derive_watermark_key(*_):
    raise NotImplementedError
