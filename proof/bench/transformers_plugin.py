"""Times a step of transformers' `generate` with its own draw and with Gumball's, in turn, on one core.

    taskset -c 1 python proof/bench/transformers_plugin.py MODEL

MODEL: the folder that integrations/real_model.py makes, of which the recorded rows of logits are taken. The model that runs is one of two small layers, whose
pass is part of each figure. Needs an environment of `ci/plugin make transformers` with Gumball installed. Prints microseconds of the process a step, the least of
three calls.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", HF_HOME=tempfile.mkdtemp())
sys.path.insert(0, str(Path(__file__).parents[2] / "integrations/transformers/tests"))

import numpy as np
import torch

import recorded_model
from gumball_transformers import FOLDER

STEPS, CALLS = 32, 3
WAYS = {
    "greedy": {"do_sample": False},
    "plain": {"do_sample": True, "top_k": 0},
    "T 0.8, top-k 50, top-p 0.9": {"do_sample": True, "temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "top-p 0.9": {"do_sample": True, "top_k": 0, "top_p": 0.9},
}


def main() -> None:
    """Prints a line for each number of rows and each way of drawing."""
    torch.set_num_threads(1)
    model = recorded_model.model(torch.from_numpy(np.load(Path(sys.argv[1]) / "recorded.npy")))
    model.generation_config.eos_token_id = None
    ours = {"custom_generate": FOLDER, "trust_remote_code": True}
    for rows in (1, 8, 32):
        ids = torch.randint(3, 40000, (rows, 8), generator=torch.Generator().manual_seed(1))
        asked = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": STEPS}
        for name, way in WAYS.items():
            least = {"transformers": float("inf"), "gumball": float("inf")}
            for call in range(1 + CALLS):
                for who, more in (("transformers", {}), ("gumball", ours | {"seed": call})):
                    start = time.process_time()
                    model.generate(**asked, **way, **more)
                    took = (time.process_time() - start) / STEPS * 1e6
                    # The first call warms up.
                    least[who] = min(least[who], took) if call else least[who]
            print(
                f"{rows} rows, {name}: transformers {least['transformers']:.0f} us, gumball {least['gumball']:.0f} us"
            )


if __name__ == "__main__":
    main()
