"""A decode loop of torch on a GPU, model and draw in one CUDA graph: a token a replay, and the host waits for nothing.

    python 02_torch_graph.py

A head of Gumball's takes the place of the last product: `Step(Hidden(head, states))` instead of `Step(logits)`. Without a GPU the same
loop runs eagerly on the CPU, to the same tokens as far as the model's logits are the same.
"""

import torch

from gumball import Pool, SamplingParams, Step
from gumball.torch import tokens_of

VOCAB, HIDDEN, STEPS = 32_000, 256, 32
DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"

torch.manual_seed(1)
embedding = torch.randn(VOCAB, HIDDEN, device=DEVICE)
head = torch.randn(HIDDEN, VOCAB, device=DEVICE) / 8


def model(ids: torch.Tensor) -> torch.Tensor:
    """Logits of the next ids, [rows, VOCAB]. Yours goes here."""
    return torch.tanh(embedding[ids.long()]) @ head


# The device keeps the histories, as no call fetches the tokens of each step.
pool = Pool(VOCAB, device=DEVICE, slots=4, rows=4, keep_histories=True)
slots = [pool.admit(SamplingParams(temperature=0.8, top_p=0.9, seed=seed), [seed]) for seed in range(4)]
pool.assign(slots)
ids = torch.arange(4, dtype=torch.int32, device=DEVICE)

if DEVICE == "cpu":
    for _ in range(STEPS):
        pool.enqueue([Step(model(ids))])
        ids = tokens_of(pool)
else:
    model(ids)  # Warms torch's own kernels up, as its graphs ask for.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # The graph holds only the kernels that these requests need. Capture a graph for each variant that you want.
        there = pool.on_device()
        recorded = there.record([Step(model(ids))], variant=there.needed_variant())
        # Where the tokens lie they stay: the next replay reads what this one drew.
        ids.copy_(tokens_of(pool))
    for _ in range(STEPS):
        # Requests may be admitted, released and assigned here, as long as the number of rows stays. A request that the
        # graph's kernels do not serve is refused.
        there.before_replay(recorded)
        graph.replay()

for slot in slots:
    print(f"slot {slot}: {pool.output(slot)}")
