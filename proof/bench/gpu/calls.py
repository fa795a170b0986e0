"""Runs that each fit a command of 550 seconds on one machine, by the names that `--call` takes; the most telling come first. What time
does not cover is the last families or drafts of a run, and stands in the record."""

import plan

SEVEN = ["model", "bell", "zipf-1", "zipf-1.5", "flat", "heaps", "model-t0.5"]
LONG, SHORT = ["mixture", "top-p-95", "top-k-top-p-t1"], ["top-p", "top-k-1000", "repetition-top-p"]
# TokenSpeed's kernel for a mixture compiles for minutes, so it has runs of its own.
SLOW = ["tokenspeed:mixture", "tokenspeed_backend:verify-mixture-chain-3", "tokenspeed_backend:verify-mixture-chain-5"]
FAMILIES, VERIFY = {"part": "families", "without": SLOW}, {"part": "verify", "without": SLOW}
CHAINS, TREES = ([task for task in plan.VERIFICATIONS if f"-{kind}-" in task] for kind in ("chain", "tree"))

# Options of `run`, each run's own.
CALLS = {
    "families-1": {**FAMILIES, "like": SEVEN, "tasks": LONG},
    "families-2": {**FAMILIES, "vocab": [128256], "like": ["zipf-1.5", "model", "bell", "flat"], "tasks": LONG},
    "families-3": {**FAMILIES, "like": SEVEN, "tasks": SHORT},
    "families-ours": {
        "part": "families",
        "engines": [],
        "tasks": ["greedy", "plain", "top-k-top-p", "top-p", *LONG, "everything"],
    },
    # Vocabularies of older models, over which FlashInfer was ahead of searches.
    "short": {
        "part": "families",
        "engines": ["flashinfer"],
        "vocab": [32000, 65536],
        "like": ["model", "bell"],
        "tasks": ["top-k-20000", "top-k-300-top-p", "top-k-1000", "top-p-95", "top-k-top-p-t1", "top-k-1000-top-p"],
    },
    "short-2": {
        "part": "families",
        "engines": ["flashinfer"],
        "vocab": [50257, 32000, 65536],
        "rows": [2, 8],
        "like": ["model", "bell"],
        "tasks": ["top-k-40000", "top-k-20000", "top-k-300-top-p", "top-p-95"],
    },
    "families-4": {**FAMILIES, "like": SEVEN, "tasks": ["greedy", "plain", "top-k-top-p", "everything"]},
    # Whole calls from the host, for which our package's wheel is wanted, and softmaxes of all types and at mixed temperatures.
    "host": {"part": "python", "tasks": plan.WHOLE_CALLS},
    "softmax": {"part": "operators", "tasks": plan.SOFTMAXES},
    "families-mixture": {
        "part": "families",
        "engines": ["tokenspeed"],
        "like": SEVEN,
        "tasks": ["mixture"],
        "compile": 0.7,
    },
    "verify-1": {**VERIFY, "tasks": CHAINS},
    "verify-2": {**VERIFY, "tasks": TREES},
    "verify-3": {**VERIFY, "vocab": [128256]},
    "verify-mixture": {
        "part": "verify",
        "engines": ["tokenspeed_backend"],
        "tasks": ["verify-mixture-chain-3"],
        "compile": 0.7,
    },
}
