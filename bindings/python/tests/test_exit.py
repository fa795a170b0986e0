"""The end of a program whose daemon threads are inside calls: Python ends them by unwinding, which must find its way out."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

CALLS = {
    "Pool.step": "made.step(rows, slots)",
    "Pool.step over threads": "over.step(rows, slots)",
    "Sampler.sample": "sampler.sample(rows[0])",
    "softmax": "gumball.softmax(rows)",
    "a hook": "sampler.sample(rows[0], hook=hook)",
    "hooks of a step": "made.step(rows, Batch(slots, hooks=[hook] * 64))",
    "hooks over threads": "over.step(rows, Batch(slots, hooks=[hook] * 64))",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_program_ends_well_while_daemon_threads_are_in_calls(name: str) -> None:
    program = f"""
        import threading, time
        import numpy as np, gumball
        from gumball import Batch, Pool, Sampler, SamplingParams
        rows = np.zeros((64, 32000), np.float32)
        made, over = Pool(32000, slots=64, threads=1), Pool(32000, slots=64, threads=2)
        slots = [pool.admit(SamplingParams(seed=1)) for pool in (made, over) for _ in range(64)][:64]
        sampler = Sampler(SamplingParams(seed=1), 32000)
        hook = lambda logits: time.sleep(0)
        began = threading.Event()
        def work():
            while True:
                {CALLS[name]}
                began.set()
        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        [thread.start() for thread in threads]
        began.wait()
        time.sleep(0.1)
    """
    for _ in range(2):
        text = textwrap.dedent(program)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (done.returncode, done.stderr)
