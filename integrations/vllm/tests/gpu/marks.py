"""Texts with vLLM's own watermark, as JSON: `marks.py OUT gumbel|dual_key_gumbel [eagle]`; `marks.py compare FILES..` says whether they are as they should be.

`GUMBALL_VLLM=0` takes vLLM's own sampler. A file is named after its algorithm and setting, then `own` or `ours`. Logits do not depend on the batch (`VLLM_BATCH_INVARIANT=1`),
so a marked text of one key is vLLM's own up to the first context that it repeats, where Gumball draws. Of two keys Gumball's draw also chooses one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

KEY, CONTEXT, LENGTH = 0x0123456789ABCDEF, 4, 160
MARKED: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 50},
]
FREE: list[dict[str, Any]] = [{"temperature": 1.0, "watermarking": False}, {"temperature": 0.0}]
EACH = 8


def texts(out_file: str, algorithm: str, setting: str) -> None:
    from shapes import engine, folder, prompt
    from vllm import SamplingParams
    from vllm.config.watermarking import WatermarkConfig
    from vllm.v1.watermarking.gumbel import DualKeyGumbelWatermarkDetector, GumbelWatermarkDetector

    marks = {"key": KEY, "algorithm": algorithm, "context_width": CONTEXT}
    options: dict[str, Any] = {"watermark_config": marks}
    if setting:
        options["speculative_config"] = {
            "method": "eagle",
            "model": folder("small", num_hidden_layers=1),
            "num_speculative_tokens": 3,
            "draft_sample_method": "probabilistic",
        }
    llm = engine("small", cache_gb=0.5, max_num_seqs=64, enforce_eager=True, **options)
    kinds = [kind for kind in (*MARKED, *FREE) for _ in range(EACH)]
    asked = [
        SamplingParams(seed=i, max_tokens=LENGTH, ignore_eos=True, detokenize=False, **kind)
        for i, kind in enumerate(kinds)
    ]
    outs = llm.generate([prompt(i, 20) for i in range(len(kinds))], asked, use_tqdm=False)
    written = [list(out.outputs[0].token_ids) for out in outs]
    if algorithm == "gumbel":
        detector: Any = GumbelWatermarkDetector(KEY, CONTEXT)
    else:
        detector = DualKeyGumbelWatermarkDetector(KEY, CONTEXT, alpha=WatermarkConfig(**marks).alpha)
    found: dict[str, Any] = {"texts": written, "vllm": [detector.detect(text).p_value for text in written]}
    if algorithm == "gumbel":
        import gumball

        gumball.add_watermark_keys(f"90 {KEY:#x}")
        mark = gumball.Watermark(key=90, context=CONTEXT)
        found["gumball"] = [gumball.detect(text, mark, scheme="vllm").p_value for text in written]
    Path(out_file).write_text(json.dumps(found))
    print("MARKS", Path(out_file).stem, os.environ.get("GUMBALL_VLLM", "1"), len(written), flush=True)


def compare(files: list[str]) -> int:
    made = {Path(file).stem: json.loads(Path(file).read_text()) for file in files}
    first_free, first_greedy = EACH * len(MARKED), EACH * (len(MARKED) + 1)
    failed = not made
    for name, found in made.items():
        for detector in ("vllm", "gumball"):
            if values := found.get(detector):
                marked, free = sorted(values[:first_free]), sorted(values[first_free:])
                wrong = sum(p > 1e-6 for p in marked) + sum(p < 1e-4 for p in free)
                failed |= wrong > 0
                print(
                    f"{name}, {detector}'s detector: marked {marked[0]:.1e} to {marked[-1]:.1e}, others from {free[0]:.1e}",
                    "FAILED" if wrong else "",
                )
    if {"gumbel_ours", "gumbel_own"} <= made.keys():
        pairs = zip(made["gumbel_ours"]["texts"], made["gumbel_own"]["texts"], strict=True)
        same = [ours == own for ours, own in pairs]
        # Texts repeat few contexts, so most marked ones are equal to the last token.
        wrong = not all(same[first_greedy:]) or 2 * sum(same[:first_free]) < first_free
        failed |= wrong
        print(
            f"gumbel_ours: {sum(same[:first_free])} of {first_free} marked texts are vLLM's own,",
            sum(same[first_greedy:]),
            "greedy ones",
            "FAILED" if wrong else "",
        )
    print("VERDICT: vLLM's marks", "FAILED" if failed else "passed")
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2:]))
    texts(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
