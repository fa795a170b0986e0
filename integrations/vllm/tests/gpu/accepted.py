"""How many drafts of a drafter that draws are accepted: `accepted.py OUT self|eagle|MODEL`; `accepted.py compare FOLDER` holds them to vLLM's.

The drafter is the target itself, an EAGLE head of its embedding and last layer, or of a real MODEL the head beside it that eagle_head.py trained
(`MODEL/../eagle`). `GUMBALL_VLLM=0` takes vLLM's own sampler,
`GUMBALL_VLLM_DRAFTS=rejection` ours by the drafter's probabilities. EAGER=1 leaves out the CUDA graphs, in which EAGLE's drafts are drawn. The files are `self_own`, `self_ours`, `self_rejection`, and
likewise `eagle` and `trained`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

KINDS: dict[str, dict[str, Any]] = {"T 1": {"temperature": 1.0}, "T 0.7, top-p 0.9": {"temperature": 0.7, "top_p": 0.9}}
REQUESTS, LENGTH, DRAFTS = 48, 96, 3


def counted(llm: Any) -> dict[str, int]:
    wanted = ("num_draft_tokens", "num_accepted_tokens")
    return {one.name: one.value for one in llm.get_metrics() if one.name.endswith(wanted)}


def main(out_file: str, drafter: str) -> None:
    from shapes import engine, folder, prompt
    from vllm import SamplingParams

    models = {"self": folder("small"), "eagle": folder("small", num_hidden_layers=1)}
    speculation = {
        "method": "draft_model" if drafter == "self" else "eagle",
        "model": models.get(drafter) or str(Path(drafter).parent / "eagle"),
        "num_speculative_tokens": DRAFTS,
        "draft_sample_method": "probabilistic",
    }
    graphs: dict[str, Any] = {"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}
    options = {"enforce_eager": True} if os.environ.get("EAGER") else graphs
    options |= {"speculative_config": speculation, "disable_log_stats": False, "max_num_seqs": 64}
    if drafter in models:
        llm = engine("small", cache_gb=0.5, **options)
        prompts = [prompt(i, 20) for i in range(REQUESTS)]
    else:
        import heads

        llm = heads.engine(drafter, kv_cache_memory_bytes=2**30, **options)
        prompts = [{"prompt_token_ids": ids} for ids in heads.prompts(llm.get_tokenizer()) * 4]
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        before = counted(llm)
        asked = [
            SamplingParams(seed=i, max_tokens=LENGTH, ignore_eos=True, detokenize=False, **kind)
            for i in range(len(prompts))
        ]
        outs = llm.generate(prompts, asked, use_tqdm=False)
        drafted, accepted = (now - then for now, then in zip(counted(llm).values(), before.values(), strict=True))
        found[name] = {"drafted": drafted, "accepted": accepted, "share": accepted / drafted}
        found[name]["texts"] = [list(out.outputs[0].token_ids) for out in outs]
        print(f"ACCEPTED {Path(out_file).stem} {name}: {accepted} of {drafted}, {accepted / drafted:.4f}", flush=True)
    Path(out_file).write_text(json.dumps(found))


def compare(folder: str) -> int:
    made = {path.stem: json.loads(path.read_text()) for path in Path(folder).glob("*_*.json")}
    failed = 0
    for drafter in ("self", "eagle", "trained"):
        for name in KINDS if any(one.startswith(drafter) for one in made) else ():
            try:
                own, ours, judged = (made[f"{drafter}_{who}"][name]["share"] for who in ("own", "ours", "rejection"))
            except KeyError as missing:
                print("missing:", missing)
                failed += 1
                continue
            # Shares of thousands of drafts are known to about 0.01. Of a good drafter nearly as many are accepted; of a poor one
            # few, but not many fewer.
            good = [ours >= 0.95 * own or drafter != "self" and ours >= own - 0.06, judged >= own - 0.02]
            print(
                f"{drafter}, {name}: vLLM {own:.4f}, coupled {ours:.4f}, rejection {judged:.4f}",
                "" if all(good) else "FAILED",
            )
            failed += not all(good)
    print("VERDICT: drafts", "FAILED" if failed else "passed")
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2]))
    main(sys.argv[1], sys.argv[2])
