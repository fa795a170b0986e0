"""MAX: three requests with seeds and parameters of their own, some of which MAX has not, get their texts alone and in a batch.

pip install ./bindings/python modular
python integrations/others/max_batch.py MODEL        # a folder of safetensors
"""

import sys

import numpy as np
from max.driver import DeviceSpec
from max.pipelines import PIPELINE_REGISTRY, PipelineArgs, PipelineConfig
from max.pipelines.context import SamplingParams
from max.pipelines.modeling.types import RequestID, TextGenerationRequest

from asked import compare
from gumball import Sampler

cpu = dict(device_specs=[DeviceSpec.cpu()], quantization_encoding="float32", max_batch_size=4, max_length=128)
args = PipelineArgs.from_flat_kwargs(model_path=sys.argv[1], **cpu)
made = PIPELINE_REGISTRY.retrieve_factory(PipelineConfig.from_args(args))
pipeline, tokenizer = made.factory(), made.tokenizer.delegate


def request(prompt, params):
    """A request with a logits processor that draws a token and leaves none but it."""
    sampler = Sampler(params, len(tokenizer), prompt=tokenizer.encode(prompt))

    def process(inputs):
        row = np.from_dlpack(inputs.logits)[-1]
        row[:] = np.where(np.arange(len(row)) == sampler.sample(row), 0, -np.inf)

    drawn = SamplingParams(max_new_tokens=16, logits_processors=[process])
    return TextGenerationRequest(request_id=RequestID(), model_name="", prompt=prompt, sampling_params=drawn)


def texts(requests):
    return [tokenizer.decode(output.tokens) for output in pipeline.generate([request(*one) for one in requests])]


compare(texts)
