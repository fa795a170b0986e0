"""mlx-lm: three requests with seeds and parameters of their own, some of which mlx-lm has not, get their texts alone and in a batch.

pip install ./bindings/python mlx-lm "mlx[cpu]"        # on a Mac without [cpu]
python integrations/others/mlx_batch.py MODEL        # what `mlx_lm.load` takes
"""

import sys

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import BatchGenerator

from asked import compare
from gumball import Sampler

model, tokenizer = load(sys.argv[1])


def drawing(sampler):
    """A logits processor, which draws, and a sampler, which says what was drawn: mlx-lm hands it logprobs, not logits."""

    def process(tokens, logits):
        sampler.sample(logits)
        return logits

    return process, lambda logprobs: mx.array(sampler.output[-1:])


def texts(requests):
    prompts = [tokenizer.encode(prompt) for prompt, _ in requests]
    vocab = model.args.vocab_size
    samplers = [Sampler(params, vocab, prompt=prompt) for prompt, (_, params) in zip(prompts, requests)]
    batch, hooks = BatchGenerator(model, max_tokens=16), [drawing(sampler) for sampler in samplers]
    batch.insert(prompts, samplers=[say for _, say in hooks], logits_processors=[[process] for process, _ in hooks])
    while batch.next_generated():
        pass
    return [tokenizer.decode(sampler.output[:16]) for sampler in samplers]


compare(texts)
