"""ONNX Runtime GenAI: three requests with seeds and parameters of their own get their texts alone and in a batch, whose rows GenAI gives one set.

pip install ./bindings/python onnxruntime-genai onnx-ir torch transformers
python -m onnxruntime_genai.models.builder -i MODEL -o FOLDER -p fp32 -e cpu       # MODEL: a folder of safetensors
python integrations/others/onnxruntime_genai_batch.py FOLDER
"""

import sys

import numpy as np
import onnxruntime_genai as og

from asked import compare
from gumball import Pool

model = og.Model(sys.argv[1])
tokenizer = og.Tokenizer(model)


def texts(requests):
    ids, settings = tokenizer.encode_batch([prompt for prompt, _ in requests]), og.GeneratorParams(model)
    settings.set_search_options(batch_size=len(requests), max_length=ids.shape()[1] + 16, do_sample=False)
    generator = og.Generator(model, settings)
    generator.append_tokens(ids)
    pool = Pool(generator.get_logits().shape[-1], slots=len(requests))
    slots = [pool.admit(params, tokenizer.encode(prompt)) for prompt, params in requests]
    while not generator.is_done():
        logits = generator.get_logits()[:, -1]
        drawn = pool.step(logits, slots).tokens
        # Greedy search takes the only token that is left of a row.
        left = np.full_like(logits, -np.inf)
        np.put_along_axis(left, drawn[:, None].astype(int), 0, 1)
        generator.set_logits(left)
        generator.generate_next_token()
    return [tokenizer.decode(pool.output(slot)) for slot in slots]


compare(texts)
