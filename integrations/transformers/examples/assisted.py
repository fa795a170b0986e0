"""Assisted generation of transformers, with Gumball's verification: a smaller model drafts, and the text stays the model's own.

    python assisted.py [MODEL DRAFT_MODEL [PROMPT]]

Both are names or folders that transformers loads, of the same vocabulary; without them two tiny models of random weights write
ids. The draft model draws by the request's random words, so that it often drafts the token that the model draws.
"""

import sys

import torch
import transformers

from gumball import SamplingParams
from gumball_transformers import generate

COUNT = 40
params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7)
if len(sys.argv) > 2:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model, draft_model = (transformers.AutoModelForCausalLM.from_pretrained(name) for name in sys.argv[1:3])
    ids = tokenizer(" ".join(sys.argv[3:]) or "The sky is", return_tensors="pt").input_ids
else:
    torch.manual_seed(0)
    size = dict(vocab_size=512, hidden_size=32, intermediate_size=64, num_attention_heads=4)
    config = transformers.LlamaConfig(**size, num_hidden_layers=2, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    # A draft model that is often right: the model's weights and a little noise.
    draft_model = transformers.LlamaForCausalLM(config).eval()
    noise = {name: torch.randn_like(weight) / 500 for name, weight in model.state_dict().items()}
    draft_model.load_state_dict({name: weight + noise[name] for name, weight in model.state_dict().items()})
    ids = torch.tensor([[1, 2, 3]])

passes = []
model.register_forward_hook(lambda *_: passes.append(1))
asked = dict(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT)
drafted = generate(model, params, **asked, assistant_model=draft_model)
print(f"{drafted.shape[1] - ids.shape[1]} tokens in {len(passes)} passes of the model")
print(drafted[0].tolist() if len(sys.argv) < 3 else tokenizer.decode(drafted[0], skip_special_tokens=True))
# A model that computes a row alike in every pass writes the same; where two tokens nearly tie, rounding may part the texts.
print("the text is that without drafts:", torch.equal(drafted, generate(model, params, **asked)))
