"""Trains an EAGLE head for a small model on texts that the model draws itself: `eagle_head.py MODEL OUT [TEXTS [SECONDS]]`.

The head has the first EAGLE's shape: of a token's embedding and the model's last hidden state before it, one layer makes the next hidden
state, which the model's own last product reads.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

TASKS = ["Describe", "Write a letter about", "Tell me a joke about", "What is the history of", "Compare two kinds of"]
TASKS += [
    "Explain to a child",
    "Write a poem about",
    "Give three reasons for",
    "Why do people like",
    "How would you teach",
]
TOPICS = "snow cats algebra ships cheese stars ants music roads rivers glass clocks maps trees horses gardens paper bridges coffee castles".split()
BATCH, LENGTH, DEPTH = 512, 192, 3


class Head(nn.Module):
    """One layer without a norm in front of its attention, as vLLM's `EagleLlamaForCausalLM` has it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner, self.size = config.hidden_size, config.intermediate_size, config.head_dim
        self.theta, self.eps = config.rope_parameters["rope_theta"], config.rms_norm_eps
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads

        def product(read: int, written: int) -> nn.Linear:
            return nn.Linear(read, written, bias=False)

        self.fc = product(2 * hidden, hidden)
        layer, attention, mlp = nn.Module(), nn.Module(), nn.Module()
        attention.q_proj, attention.o_proj = (product(hidden, self.heads * self.size) for _ in range(2))
        attention.k_proj, attention.v_proj = (product(hidden, self.kv_heads * self.size) for _ in range(2))
        mlp.gate_proj, mlp.up_proj, mlp.down_proj = (
            product(hidden, inner),
            product(hidden, inner),
            product(inner, hidden),
        )
        layer.self_attn, layer.mlp, layer.post_attention_layernorm = attention, mlp, nn.RMSNorm(hidden, self.eps)
        self.layers = nn.ModuleList([layer])

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Queries or keys [texts, heads, tokens, size] turned by their positions."""
        half = self.size // 2
        frequencies = self.theta ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        low, high = x[..., :half].float(), x[..., half:].float()
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The next hidden states [texts, tokens, hidden]; mask: which tokens each may look at."""
        (layer,) = self.layers
        x = self.fc(torch.cat([embedded, hidden], -1))

        def parts(product: nn.Linear, heads: int) -> torch.Tensor:
            return product(x).unflatten(-1, (heads, self.size)).transpose(1, 2)

        attention = layer.self_attn
        q, k = self.turned(parts(attention.q_proj, self.heads)), self.turned(parts(attention.k_proj, self.kv_heads))
        v = parts(attention.v_proj, self.kv_heads)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + attention.o_proj(seen.transpose(1, 2).flatten(-2))
        read = layer.post_attention_layernorm(x)
        return x + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(read)) * layer.mlp.up_proj(read))


def drawn(folder: str, model: Any, texts: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Batches of ids, of which of them are text, and of the model's last hidden states; half are drawn at T 1, half at T 0.7 with top-p 0.9."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    asked = [f"{task} {topic}." for topic in TOPICS for task in TASKS]
    made = []
    for start in range(0, texts, BATCH):
        chosen = [asked[(start + i) * 7 % len(asked)] for i in range(min(BATCH, texts))]
        chats = [[{"role": "user", "content": one}] for one in chosen]
        read = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        ).to(model.device)
        how = {"temperature": 1.0, "top_p": 1.0} if start // BATCH % 2 == 0 else {"temperature": 0.7, "top_p": 0.9}
        ids = model.generate(
            **read, do_sample=True, top_k=0, min_new_tokens=LENGTH, max_new_tokens=LENGTH, pad_token_id=0, **how
        )
        is_text = F.pad(read["attention_mask"], (0, ids.shape[1] - read["attention_mask"].shape[1]), value=1).bool()
        with torch.no_grad():
            made.append((ids, is_text, model.model(ids, attention_mask=is_text.long()).last_hidden_state))
    return made


def step(model: Any, head: Head, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, list[float]]:
    """The loss over a batch, and how often a draft of each depth would be accepted by its probability."""
    ids, is_text, target = batch
    count = ids.shape[1] - 1
    causal = torch.ones(count, count, dtype=torch.bool, device=ids.device).tril()
    # A token of padding looks at itself, since a softmax over nothing is none.
    mask = (causal & is_text[:, None, :-1] | torch.eye(count, dtype=torch.bool, device=ids.device))[:, None]
    embedded = model.model.embed_tokens(ids)
    loss, shares, hidden = torch.zeros((), device=ids.device), [], target[:, :-1]
    for depth in range(DEPTH):
        # At place i the head sees id i + 1, and the hidden state before it, and is to say hidden state i + 1.
        made = head(embedded[:, 1:], hidden, mask)
        kept = is_text[:, :count] & (torch.arange(count, device=ids.device) >= depth)
        with torch.no_grad():
            wanted = model.lm_head(target[:, 1:][kept]).float().softmax(-1)
        logprobs = model.lm_head(made[kept]).float().log_softmax(-1)
        apart = F.smooth_l1_loss(made[kept].float(), target[:, 1:][kept].float())
        loss = loss - (wanted * logprobs).sum(-1).mean() + 0.2 * apart
        shares.append(torch.minimum(wanted, logprobs.detach().exp()).sum(-1).mean().item())
        hidden = torch.cat([target[:, :1], made[:, :-1]], 1)
    return loss, shares


def main(folder: str, out: str, texts: int = 4096, seconds: float = 75) -> None:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).requires_grad_(False)
    began = time.monotonic()
    *batches, last = drawn(folder, model, texts)
    print(f"drew {texts} texts in {time.monotonic() - began:.0f} s", flush=True)
    head = Head(model.config).to(device)
    weights = torch.optim.AdamW(head.parameters(), lr=1e-3, betas=(0.9, 0.95))
    began, steps = time.monotonic(), 0
    while (part := (time.monotonic() - began) / seconds) < 1:
        for group in weights.param_groups:
            group["lr"] = 1e-3 * min(1, (steps + 1) / 50) * (1 - part)
        rows = torch.randint(0, len(batches[0][0]), (32,))
        batch = tuple(one[rows.to(device)] for one in batches[steps % len(batches)])
        with torch.autocast(device, torch.bfloat16):
            loss, shares = step(model, head, batch)
        weights.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        weights.step()
        steps += 1
        if steps % 200 == 1:
            print(steps, round(loss.item(), 3), [round(share, 3) for share in shares], flush=True)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        _, shares = step(model, head, tuple(one[:32] for one in last))
    print("after", steps, "steps, texts not trained on:", [round(share, 3) for share in shares])
    Path(out).mkdir(parents=True, exist_ok=True)
    save_file(
        {name: one.bfloat16().contiguous() for name, one in head.state_dict().items()}, f"{out}/model.safetensors"
    )
    config = json.loads(Path(folder, "config.json").read_text())
    Path(out, "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "dtype": "bfloat16"}))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
