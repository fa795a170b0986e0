"""model.generate with every token drawn by Gumball.

    python 03_transformers.py [MODEL] [PROMPT]

MODEL is a name or a folder that transformers loads; without one, a tiny model of random weights writes ids.
"""

import sys

import torch
import transformers

from gumball import SamplingParams
from gumball.transformers import generate

params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7)
if len(sys.argv) > 1:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
    inputs = tokenizer(" ".join(sys.argv[2:]) or "The sky is", return_tensors="pt")
    ids = generate(model, params, **inputs, max_new_tokens=40)
    print(tokenizer.decode(ids[0], skip_special_tokens=True))
else:
    torch.manual_seed(0)
    size = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).eval()
    ids = torch.tensor([[1, 2, 3]])
    print(generate(model, params, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=20).tolist())
