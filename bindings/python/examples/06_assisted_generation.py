"""Assisted generation of transformers, with Gumball's verification: a smaller model drafts, and the text stays the model's own.

    python 06_assisted_generation.py [MODEL DRAFT_MODEL [PROMPT]]

Both are names or folders that transformers loads, of the same vocabulary; without them two tiny models of random weights write
ids. The candidates come from transformers' own AssistedCandidateGenerator, whose model draws by the request's random words.
"""

import sys

import torch
import transformers
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from gumball import Pool, SamplingParams
from gumball.transformers import generate

COUNT = 40


class Drafting(transformers.LogitsProcessor):
    """Leaves a draft model only the token that the request would draw from its row."""

    def __init__(self, pool: Pool, slot: int) -> None:
        self.pool, self.slot = pool, slot

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        path = input_ids[0, len(self.pool.history(self.slot)) :].tolist()
        draft = self.pool.draft(scores.float().cpu(), [self.slot], paths=[path]).item()
        return torch.full_like(scores, float("-inf")).index_fill(1, torch.tensor([draft], device=scores.device), 0.0)


@torch.no_grad()
def assisted(model, draft_model, params: SamplingParams, ids: torch.Tensor) -> tuple[list[int], int, int]:
    """Returns the tokens behind a prompt [1, length], how many of them were drafts, and the passes of the model."""
    length, stops = ids.shape[1], model.generation_config.eos_token_id
    stops = [stops] if isinstance(stops, int) else stops or []
    pool = Pool(model.config.vocab_size, slots=1)
    slot = pool.admit(params, ids[0].tolist())
    config = transformers.GenerationConfig(max_length=length + COUNT + 1, min_length=0, do_sample=False)
    drafter = AssistedCandidateGenerator(ids, draft_model, config, {}, logits_processor=[Drafting(pool, slot)])
    cache, accepted, passes = transformers.DynamicCache(config=model.config), 0, 0
    while len(pool.output(slot)) < COUNT:
        candidates, _ = drafter.get_candidates(ids)
        drafts = candidates[:, ids.shape[1] :]
        # The model reads what its cache lacks: in the first pass the prompt, then the last token, and the drafts.
        unread = torch.cat([ids[:, cache.get_seq_length() :], drafts], 1)
        rows = model(unread, past_key_values=cache).logits[:, -drafts.shape[1] - 1 :]
        out = pool.verify(rows[0].float().cpu(), [slot], drafts.tolist())
        tokens = out.tokens(0).tolist()
        stop = next((place for place, token in enumerate(tokens) if token in stops), None)
        accepted, passes = accepted + int(out.accepted[0]), passes + 1
        ids = torch.cat([ids, ids.new_tensor([tokens])], 1)
        # The drafts that were refused leave the cache, which has not read the last token yet.
        if cache.get_seq_length() >= ids.shape[1]:
            cache.crop(ids.shape[1] - 1 - cache.get_seq_length())
        drafter.update_candidate_strategy(ids, rows, int(out.accepted[0]))
        if stop is not None:
            pool.shorten([slot], [len(tokens) - 1 - stop])
            break
    return pool.output(slot)[:COUNT], accepted, passes


params = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7)
if len(sys.argv) > 2:
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model, draft_model = (transformers.AutoModelForCausalLM.from_pretrained(name).eval() for name in sys.argv[1:3])
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

tokens, accepted, passes = assisted(model, draft_model, params, ids)
plain = generate(model, params, input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=COUNT)
print(f"{len(tokens)} tokens in {passes} passes, {accepted} of them drafts")
print(tokens if len(sys.argv) < 3 else tokenizer.decode(tokens, skip_special_tokens=True))
# A model that computes a row alike in every pass writes the same; where two tokens nearly tie, rounding may part the texts.
print("the text is that without drafts:", tokens == plain[0, ids.shape[1] :].tolist())
