"""Programs that are timed: rivals, which stay and are asked line by line, and our own, which prints its results."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import plan

HERE = Path(__file__).parent


def environment(*packages):
    """What engines find: folders of carried packages, and one cache for what Triton compiles."""
    found = dict(os.environ, PYTHONUNBUFFERED="1")
    paths = [*(str(Path(folder).resolve()) for folder in packages), found.get("PYTHONPATH", "")]
    found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    found.setdefault("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "gumball-rivals-triton"))
    return found


def command_of(name, *more):
    return [sys.executable, str(HERE / "engine.py"), name, *more]


class Ended(Exception):
    """An engine ended, or said nothing for too long; the message says which."""


class Engine:
    """A rival's process.

    `hello` is what it said of itself, and `absent` why it cannot be; `ways` are those it named first, and `lost` those
    that ended it.
    """

    def __init__(self, name, command, env=None):
        self.name, self.command, self.env = name, command, env
        self.hello = self.absent = None
        self.ways, self.lost = [], set()
        self.start()

    def start(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=self.env
        )
        lines = self.lines = queue.SimpleQueue()

        def read(stream):
            for line in stream:
                lines.put(line)
            lines.put(None)

        self.reader = threading.Thread(target=read, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def wait_for_hello(self, seconds):
        """Returns whether the engine takes part."""
        try:
            said = self.next(seconds)
        except Ended as error:
            said = {"absent": {"reason": str(error)}}
        self.hello, self.absent = said.get("hello"), said.get("absent", {}).get("reason")
        self.ways = self.ways or (self.hello or {}).get("ways", [])
        return self.hello is not None

    def next(self, seconds):
        try:
            line = self.lines.get(timeout=max(seconds, 0.1))
        except queue.Empty:
            self.end()
            raise Ended(f"said nothing for {seconds:.0f} s") from None
        if line is None:
            raise self.has_ended()
        return json.loads(line)

    def has_ended(self):
        """Returns the exception that says so, with the program's last words."""
        self.log.seek(0)
        words = [line.strip() for line in self.log.readlines() if line.strip()]
        self.end()
        return Ended(f"ended: {words[-1] if words else 'without a word'}")

    def measure(self, way, vocab, dtype, rows, modes, seconds, like="model", file=None):
        """Yields what the engine says of a way, `result` and `skip`. `file`: rows of the family `like`."""
        asked = {"way": way, "vocab": vocab, "dtype": dtype, "like": like, "rows": rows, "modes": modes}
        asked["file"] = file and str(file)
        asked["seconds"] = seconds
        try:
            self.process.stdin.write(json.dumps({"measure": asked}) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self.has_ended() from None
        while "done" not in (said := self.next(seconds + 30)):
            yield said

    def end(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                stream.close()


def ours(program, arguments, seconds):
    """Yields the results that a program of ours prints, and says what went wrong as a skip."""
    command = [str(program), "--json", *arguments]
    with tempfile.TemporaryFile("w+") as printed:
        try:
            done = subprocess.run(command, stdout=printed, stderr=subprocess.PIPE, text=True, timeout=max(seconds, 1))
            words = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            reason = words[-1] if done.returncode != 0 else None
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        printed.seek(0)
        for line in printed:
            if line.startswith("{") and line.endswith("}\n"):
                yield {"result": json.loads(line)}
    if reason:
        yield {"skip": {"rows": None, "reason": reason}}


def warm_up(wanted, env, seconds, processes):
    """Compiles Triton's kernels in several processes; returns how many ran to their end.

    All run before anything is timed, for they use the GPU as well. `wanted`: (engine, vocab, rows, dtype, tasks) each.
    """
    waiting = [command_of(name, "--warm", *map(str, rest), ",".join(tasks)) for name, *rest, tasks in wanted]
    budget, running, finished = plan.Budget(seconds), [], 0
    while (waiting or running) and budget.left() > 0:
        while waiting and len(running) < processes:
            running.append(subprocess.Popen(waiting.pop(0), env=env, stdout=subprocess.DEVNULL))
        for process in list(running):
            try:
                process.wait(timeout=0.1)
                running.remove(process)
                finished += process.returncode == 0
            except subprocess.TimeoutExpired:
                pass
    for process in running:
        process.kill()
        process.wait()
    return finished
