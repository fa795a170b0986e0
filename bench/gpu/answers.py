"""Says what is wrong with an answer, if anything is. Loose, since rivals rightly differ, and no proof of an engine."""

import torch

import plan

WITH_TOP_K = ("top-k-top-p", "top-k-top-p-min-p", "probs-top-k", "probs-top-k-top-p", "probs-joint")
WITH_TOP_P = ("top-p", "top-k-top-p", "top-k-top-p-min-p", "probs-top-p", "probs-top-k-top-p", "probs-joint")
WITH_MIN_P = ("min-p", "top-k-top-p-min-p", "probs-min-p")
# How far a softmax of a type may be off, where some divide in that type; how many tokens more than k ties may keep.
OFF, TIES = {"f32": 1e-4, "bf16": 5e-2, "f16": 1e-2}, 16


def objection(task, logits, answer, dtype="f32"):
    """Says what is wrong with an answer for rows that come from such logits, given as f32; nothing if nothing is."""
    if task in plan.SOFTMAXES:
        return of_softmax(logits, answer, OFF[dtype])
    if task in plan.WRITES:
        return of_written(task, logits, answer)
    return of_chains(logits.shape[1], answer) if task == "chain" else of_tokens(task, logits, answer)


def of_tokens(task, logits, tokens):
    rows, vocab = logits.shape
    tokens = tokens.reshape(-1).long()
    if len(tokens) != rows:
        return f"{len(tokens)} tokens for {rows} rows"
    if ((tokens < 0) | (tokens >= vocab)).any():
        return f"a token is none of 0..{vocab}"
    drawn = logits.gather(1, tokens[:, None])
    above = (logits > drawn).sum(1)
    if task == "greedy" and above.any():
        return f"{int((above > 0).sum())} rows have a more likely token"
    if task in WITH_TOP_K and (above >= plan.TOP_K).any():
        return f"a token has {int(above.max())} more likely ones, of the top {plan.TOP_K}"
    scaled = logits.double() / plan.TEMPERATURE
    if task in WITH_MIN_P:
        ratio = (drawn.double()[:, 0] / plan.TEMPERATURE - scaled.amax(1)).exp().min().item()
        if ratio < plan.MIN_P * 0.999:
            return f"a token is {ratio:.4f} times as likely as the likeliest, of min-p {plan.MIN_P}"
    if task in WITH_TOP_P:
        # Of the whole row: after top-k some take p of what is left, which keeps less.
        before = (scaled.softmax(-1) * (logits > drawn)).sum(1).max().item()
        if before > plan.TOP_P + 2e-3:
            return f"{before:.4f} of the mass comes before a token, of top-p {plan.TOP_P}"
    return None


def of_softmax(logits, probs, most):
    if probs.shape != logits.shape:
        return f"probabilities of {tuple(probs.shape)} for logits of {tuple(logits.shape)}"
    wanted = ((row.double() / plan.TEMPERATURE).softmax(-1) for row in logits)
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
        elif not plan.TOP_K <= count <= plan.TOP_K + TIES:
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
