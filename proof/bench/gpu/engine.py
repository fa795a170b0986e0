"""Runs one engine of `engines/`: as the runner's partner, to warm it up, or to list its ways.

    engine.py NAME                      answers the runner's lines
    engine.py NAME --warm VOCAB ROWS,.. DTYPE TASK,..    compiles what the shapes need into Triton's cache
    engine.py NAME --list               prints its ways; needs its package, no GPU

Lines are JSON, one object each, as in the bench on the CPU:

    engine: {"hello":{"engine":"vllm","version":"0.33.0","triton":true,"runtime":"torch 2.11.0, CUDA 13.0",
             "ways":[{"task":"plain","does":"...","given":"logits","dtypes":["f32"]}]}}
    runner: {"measure":{"way":0,"vocab":151936,"dtype":"f32","like":"model","file":null,"rows":[1,8],"modes":["graph"],"seconds":30}}
    engine: {"result":{...}}, one for each mode and number of rows, or {"skip":{"rows":8,"reason":"..."}}
    engine: {"done":{}}

An engine that cannot be says {"absent":{"reason":"..."}}. A failure of the device ends the program, for it would
fail everything after.
"""

import importlib
import json
import os
import sys
import time

import plan


def serve(name, out):
    def say(**line):
        out.write(json.dumps(line) + "\n")
        out.flush()

    try:
        import torch

        if not torch.cuda.is_available():
            raise ImportError("there is no GPU")
        engine = importlib.import_module(f"engines.{name}")
        ways = engine.ways()
    except (ImportError, OSError) as error:
        say(absent={"reason": str(error)})
        return
    from measure import Inputs, measure

    listed = [{"task": w.task, "does": w.does, "given": w.given, "dtypes": list(w.dtypes)} for w in ways]
    runtime = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    if engine.TRITON:
        runtime += f", triton {importlib.import_module('triton').__version__}"
    found = {"engine": name, "version": engine.version(), "triton": engine.TRITON, "runtime": runtime}
    say(hello={**found, "ways": listed})
    inputs = Inputs()
    for line in sys.stdin:
        asked = json.loads(line)["measure"]
        until = time.monotonic() + asked["seconds"]
        way, vocab, inputs.file = ways[asked["way"]], asked["vocab"], asked["file"]
        for rows in asked["rows"]:
            if time.monotonic() > until:
                say(skip={"rows": rows, "reason": "no time was left"})
                continue
            try:
                for result in measure(way, inputs, vocab, rows, asked["dtype"], asked["modes"], asked["like"]):
                    say(result={"rows": rows, **result})
            except Exception as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                say(skip={"rows": rows, "reason": reason})
                if "CUDA" in reason and not isinstance(error, torch.OutOfMemoryError):
                    os._exit(1)
        say(done={})


def main(arguments):
    name, rest = arguments[0], arguments[1:]
    # What packages print must not come between the lines.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not rest:
        return serve(name, out)
    ways = importlib.import_module(f"engines.{name}").ways()
    if rest[0] == "--list":
        for way in ways:
            out.write(f"{name}: {way.task}: {way.does}, given {way.given}, {' '.join(way.dtypes)}\n")
        return out.flush()
    from measure import warm

    vocab, rows, dtype, tasks = rest[1:]
    wanted = [way for way in ways if way.task in tasks.split(",")]
    for count in map(int, rows.split(",")):
        asked = [way for way in wanted if plan.rows_of(way.task, [count])]
        for way, error in warm(asked, int(vocab), count, dtype):
            print(f"{name}: {way.does}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
