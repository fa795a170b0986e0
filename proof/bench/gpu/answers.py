"""Says what is wrong with an answer, if anything is. Loose, since rivals rightly differ, and no proof of an engine."""

import torch

import plan

# How far a softmax of a type may be off, where some divide in that type; how many tokens more than k ties may keep.
OFF, TIES = {"f32": 1e-4, "bf16": 5e-2, "f16": 1e-2}, 16


def objection(way, logits, answer, dtype="f32"):
    """Says what is wrong with a way's answer for rows that come from such logits, given as f32; nothing if nothing is."""
    if way.task in plan.SOFTMAXES:
        return of_softmax(logits, column(way.request, "temperature", logits), answer, OFF[dtype])
    if way.task in plan.WRITES:
        return of_written(way.task, logits, answer)
    if plan.rows_each(way.task) > 1:
        # A ratio test and a race draw by the same law; the token of each request's first row is judged.
        answer = answer.view(len(logits), -1)[:, 0]
    return of_chains(logits.shape[1], answer) if way.task == "chain" else of_tokens(way.request, logits, answer)


def column(request, name, logits):
    """A parameter of each row, as f64 [rows]."""
    values = plan.column(request, name, len(logits))
    return torch.tensor(values, dtype=torch.float64, device=logits.device)


def of_tokens(request, logits, tokens):
    rows, vocab = logits.shape
    tokens = tokens.reshape(-1).long()
    if len(tokens) != rows:
        return f"{len(tokens)} tokens for {rows} rows"
    if ((tokens < 0) | (tokens >= vocab)).any():
        return f"a token is none of 0..{vocab}"
    edited = torch.tensor([request[row % len(request)].edited() for row in range(rows)], device=logits.device)
    # Rows with edits are other rows than these.
    drawn = logits.gather(1, tokens[:, None])
    above = (logits > drawn).sum(1).masked_fill(edited, 0)
    temperature, k, p, min_p = (column(request, name, logits) for name in ("temperature", "top_k", "top_p", "min_p"))
    if (greedy := (temperature == 0) & (above > 0)).any():
        return f"{int(greedy.sum())} greedy rows have a more likely token"
    if (outside := (k > 0) & (above >= k)).any():
        row = int(outside.nonzero()[0])
        return f"a token has {int(above[row])} more likely ones, of the top {int(k[row])}"
    scaled = logits.double() / temperature.clamp(min=1e-3)[:, None]
    ratio = (scaled.gather(1, tokens[:, None])[:, 0] - scaled.amax(1)).exp()
    if (unlikely := (ratio < min_p * 0.999) & ~edited).any():
        row = int(unlikely.nonzero()[0])
        return f"a token is {ratio[row].item():.4f} times as likely as the likeliest, of min-p {min_p[row].item()}"
    # Of the whole row: after top-k some take p of what is left, which keeps less.
    before = (scaled.softmax(-1) * (logits > drawn)).sum(1)
    if (late := (p < 1) & (before > p + 2e-3) & ~edited).any():
        row = int(late.nonzero()[0])
        return f"{before[row].item():.4f} of the mass comes before a token, of top-p {p[row].item()}"
    return None


def of_softmax(logits, temperatures, probs, most):
    if probs.shape != logits.shape:
        return f"probabilities of {tuple(probs.shape)} for logits of {tuple(logits.shape)}"
    wanted = ((row.double() / t).softmax(-1) for row, t in zip(logits, temperatures))
    off = max((row.double() - right).abs().max().item() for row, right in zip(probs, wanted))
    # A comparison that a NaN fails.
    return None if off <= most else f"a probability is off by {off:.2g}"


def of_written(task, logits, out):
    if out.shape != logits.shape:
        return f"rows of {tuple(out.shape)} for rows of {tuple(logits.shape)}"
    for z, row in zip(logits, out):
        kept = torch.isfinite(row) if task == "top-k-mask" else row > 0
        count, before = int(kept.sum()), (z.double() / plan.TEMPERATURE).softmax(-1)
        if task == "top-p-renorm":
            mass, last = before[kept].sum().item(), before[kept].min().item()
            if not mass - last - 2e-3 <= plan.TOP_P <= mass + 2e-3:
                return f"a row keeps {mass:.4f} of its mass, of top-p {plan.TOP_P}"
        elif count > plan.TOP_K + TIES or task in ("top-k-renorm", "top-k-mask") and count < plan.TOP_K:
            return f"a row keeps {count} tokens, of the top {plan.TOP_K}"
        if task == "top-k-mask" and not torch.equal(row[kept], z[kept]):
            return "a kept logit has changed"
        if task != "top-k-mask" and not abs(row.double().sum().item() - 1) <= 1e-3:
            return f"a row's probabilities sum to {row.double().sum().item():.4f}"
    return None


def of_chains(vocab, tokens):
    if tokens.shape[-1] != plan.DRAFTS + 1:
        return f"{tokens.shape[-1]} tokens a chain of {plan.DRAFTS} drafts"
    if ((tokens < -1) | (tokens >= vocab)).any() or (tokens[:, 0] < 0).any():
        return f"a token is none of 0..{vocab}"
    ended = (tokens < 0).int()
    return "a token follows the end of a chain" if (ended.diff(dim=-1) < 0).any() else None
