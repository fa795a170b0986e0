"""After a fork, and where no thread can be started: the calling thread does the work, or the call fails at once."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

BEGIN = """
import os, sys, signal, threading, time
import numpy as np
import gumball
from gumball import Pool, Sampler, SamplingParams
rows = np.random.default_rng(1).normal(0, 2, (64, 4000)).astype(np.float32)

def pool(**options):
    made = Pool(4000, slots=64, **options)
    return made, [made.admit(SamplingParams(seed=seed)) for seed in range(64)]

def first_of(row):
    return float(gumball.softmax(rows)[row, 0])

def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


def run(program: str, **options: object) -> subprocess.CompletedProcess[str]:
    text = BEGIN + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, **options)  # type: ignore[call-overload,no-any-return]


def succeeds(program: str, **options: object) -> None:
    done = run(program, **options)
    assert done.returncode == 0, done.stderr


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_a_child_of_a_fork_goes_on_with_its_parents_pool(threads: int | None) -> None:
    succeeds(f"""
        made, slots = pool(threads={threads})
        twin, _ = pool(threads=1)
        assert made.step(rows, slots).tolist() == twin.step(rows, slots).tolist()
        wanted = twin.step(rows, slots).tolist()
        def work():
            assert made.step(rows, slots).tolist() == wanted
            assert child(lambda: made.step(rows, slots)) == 0
        assert child(work) == 0
        assert made.step(rows, slots).tolist() == wanted
    """)


def test_children_of_a_fork_have_operators_and_new_pools() -> None:
    succeeds("""
        import multiprocessing
        wanted = gumball.softmax(rows)
        made, slots = pool()
        tokens = made.step(rows, slots).tolist()
        def work():
            assert (gumball.softmax(rows) == wanted).all()
            for threads in (None, 2):
                made, slots = pool(threads=threads)
                assert made.step(rows, slots).tolist() == tokens
        assert child(work) == 0
        with multiprocessing.get_context("fork").Pool(2) as workers:
            found = workers.map_async(first_of, range(8)).get(timeout=60)
        assert found == [float(wanted[row, 0]) for row in range(8)]
    """)


def test_what_another_thread_had_at_the_fork_is_refused_in_the_child() -> None:
    succeeds("""
        sampler, inside, leave = Sampler(SamplingParams(seed=1), 4000), threading.Event(), threading.Event()
        def hook(logits):
            inside.set()
            leave.wait()
        other = threading.Thread(target=lambda: sampler.sample(rows[0], hook=hook))
        other.start()
        inside.wait()
        def work():
            try:
                sampler.sample(rows[0])
            except RuntimeError as error:
                assert "when this process was forked" in str(error)
            else:
                raise AssertionError("taken")
            Sampler(SamplingParams(seed=1), 4000).sample(rows[0])
        status = child(work)
        leave.set()
        other.join()
        assert status == 0
        sampler.sample(rows[0])
    """)


# A user whose processes and threads can be limited: limits do not bind the superuser.
NOBODY = 65534
LIMITED = """
import resource
os.setgid({user}); os.setuid({user})
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    threading.Thread(target=int).start()
except RuntimeError:
    pass
else:
    sys.exit(77)
"""


def limited(program: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    done = run(LIMITED.format(user=NOBODY) + textwrap.dedent(program))
    if done.returncode == 77:
        pytest.skip("the limit on threads does not bind here")
    assert done.returncode == 0, done.stderr


def test_where_no_thread_can_be_started_the_caller_does_the_work() -> None:
    limited("""
made, slots = pool()
twin, _ = pool(threads=1)
for _ in range(3):
    assert made.step(rows, slots).tolist() == twin.step(rows, slots).tolist()
probabilities = gumball.softmax(rows)
gumball.sample(probabilities, kind="probabilities", seed=1, position=0)
gumball.probabilities(probabilities, kind="probabilities", top_k=5)
""")


def test_threads_of_its_own_that_cannot_be_started_are_refused() -> None:
    limited("""
try:
    Pool(4000, threads=2)
except gumball.UnavailableError as error:
    assert "threads for a pool" in str(error)
else:
    raise AssertionError("made")
""")
