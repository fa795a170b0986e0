"""Speculation in one CUDA graph of torch: a replay drafts, runs the model, verifies and advances, and the host waits for nothing.

    python 07_torch_drafts_graph.py

The drafts are drawn from a smaller model's rows by the requests' own races, so that they are right as often as can be; the text is that of decoding without drafts. Without a GPU there is nothing to capture, and the program says so.
"""

import sys
from typing import Any

import torch

from gumball import Batch, Draft, Pool, Recorded, SamplingParams, Verify

VOCAB, HIDDEN, REQUESTS, DRAFTS, TURNS = 32_000, 256, 4, 3, 16
ROWS = REQUESTS * (DRAFTS + 1)

if not torch.cuda.is_available():
    sys.exit(print("skipped: there is no GPU"))
DEVICE = "cuda:0"

torch.manual_seed(1)
embedding = torch.randn(VOCAB, HIDDEN, device=DEVICE)
head = torch.randn(HIDDEN, VOCAB, device=DEVICE) / 8
draft_head = head + torch.randn_like(head) / 80


def model(ids: torch.Tensor, head: torch.Tensor = head) -> torch.Tensor:
    """Logits after each id, [rows, VOCAB]. Your target model goes here, and your draft model where draft_head is."""
    return torch.tanh(embedding[ids.long()]) @ head


filters: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
prompts = [[row + 1] for row in range(REQUESTS)]
params = [SamplingParams(seed=row, **filters) for row in range(REQUESTS)]

# The device keeps the histories, as no call fetches the tokens of each turn.
pool = Pool(VOCAB, device=DEVICE, slots=REQUESTS, rows=ROWS, keep_histories=True)
slots = [pool.admit(one, prompt) for one, prompt in zip(params, prompts)]
pool.assign(Batch(slots, counts=[DRAFTS] * REQUESTS))

# Each draft of the chain has a batch of its own, after as many others.
there = pool.on_device()
batches = [there.add_draft_batch(REQUESTS) for _ in range(DRAFTS)]
for depth, batch in enumerate(batches):
    batch.assign(Batch(slots, counts=[depth] * REQUESTS))
drawn = [torch.from_dlpack(batch.drafts).flatten() for batch in batches]

# Each request's last token, which a turn leaves to the next.
last = torch.tensor(prompts, dtype=torch.int32, device=DEVICE).flatten()
drafts = torch.zeros(REQUESTS, DRAFTS, dtype=torch.int32, device=DEVICE)


def draft() -> tuple[torch.Tensor, list[Recorded]]:
    """Writes the drafts; returns the ids whose rows the model computes, the last token's first, and what was recorded."""
    ids, recorded = last, []
    for depth, batch in enumerate(batches):
        work = [Draft(batch, model(ids, draft_head), drafts)]
        recorded.append(there.record(work, variant=there.needed_variant()))
        ids = drawn[depth]
        drafts[:, depth] = ids
    return torch.cat([last[:, None], drafts], 1).flatten(), recorded


def turn() -> list[Recorded]:
    """Drafts, verifies, and makes ready for the next turn; returns what was recorded."""
    ids, recorded = draft()
    recorded.append(there.record([Verify(model(ids), drafts)], variant=there.needed_variant()))
    tokens, accepted = (torch.from_dlpack(there.outputs(name)) for name in ("tokens", "accepted"))
    accepted = accepted.view(torch.int32).long()
    # A request's emitted tokens are the first of its rows: the accepted drafts, then one more.
    last.copy_(tokens.view(REQUESTS, DRAFTS + 1).gather(1, accepted[:, None]).flatten())
    return recorded


model(draft()[0])  # Warms torch's own kernels up, and loads ours. Nothing of a request changes.
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    recorded = turn()
for _ in range(TURNS):
    # Requests may come and go here, as long as the number of rows stays.
    there.before_replay(recorded)
    graph.replay()
drafted = [pool.output(slot) for slot in slots]

# The tokens of these requests without drafts.
plain = Pool(VOCAB, device=DEVICE, slots=REQUESTS, rows=REQUESTS)
slots = [plain.admit(one, prompt) for one, prompt in zip(params, prompts)]
ids = torch.tensor(prompts, device=DEVICE).flatten()
for _ in range(max(map(len, drafted))):
    # As many rows as a turn has, so that the model's kernels are the same.
    ids = torch.from_numpy(plain.step(model(ids.repeat(DRAFTS + 1))[:REQUESTS], slots).tokens).to(DEVICE)
for slot, tokens in zip(slots, drafted):
    same = tokens == plain.output(slot)[: len(tokens)]
    print(f"slot {slot}: {len(tokens)} tokens in {TURNS} turns, those without drafts: {same}")
